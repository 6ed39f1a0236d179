"""A recording: the raw frames and metadata of one run, from which every table of a profile is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Recording:
    """Raw frames of one run; analysis never changes them.

    Attributes
    ----------
    events : DataFrame
        One row an event of the traced steps: ``name``, ``category``, ``start_ns`` (from the trace's base),
        ``duration_ns``, ``thread``, ``device``, ``stream``, ``correlation``, ``sequence``, ``forward_thread`` (-1 where
        the event has none), ``span`` (number of the layer span, else -1).
    steps : DataFrame
        One row an executed step: ``pass``, ``wall_ms``, ``data_ms``, ``samples`` (in its batch).
    modules : DataFrame
        One row a layer, in model order: ``name``, ``module``, ``parent`` (row of the layer around it, else -1),
        ``depth``, ``parameters``, ``parameter_bytes``, ``compiled``.
    spans : DataFrame
        One row a layer span, indexed by its number: ``layer`` (row of `modules`, else -1), ``loss``.
    meta : mapping
        Name, options, environment and findings of the run; JSON-able.
    """

    events: pd.DataFrame
    steps: pd.DataFrame
    modules: pd.DataFrame
    spans: pd.DataFrame
    meta: Mapping[str, Any]

    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames by name, as they are saved."""
        return {"events": self.events, "steps": self.steps, "modules": self.modules, "spans": self.spans}
