"""A recording: the raw frames and metadata of one run, from which every table of a profile is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class MemoryRecord:
    """What was seen of memory in the watched steps.

    Attributes
    ----------
    events : DataFrame
        The trace of the watched steps, as `Recording.events`. Allocations and frees are events without duration, named
        ``[memory]``, in the category ``memory``.
    changes : DataFrame
        One row an allocation or free, in order of time: ``event`` (its row in `events`), ``time_ns``, ``address``,
        ``bytes`` (negative where it is freed), ``device``, ``allocated`` and ``reserved`` (the allocator's totals, -1
        where it tells none).
    known : DataFrame
        One row a block whose owner was seen: ``time_ns``, ``address``, ``bytes``, ``device``, ``category``, ``layer``
        (row of `Recording.modules`, else -1), ``name``.
    resident : DataFrame
        The process's resident memory: ``time_ns``, ``bytes``.
    """

    events: pd.DataFrame
    changes: pd.DataFrame
    known: pd.DataFrame
    resident: pd.DataFrame


@dataclass(frozen=True)
class ArithmeticRecord:
    """What was counted of the arithmetic of one step.

    Attributes
    ----------
    events : DataFrame
        The trace of the counted step, as `Recording.events`; operator number n runs in an event named ``pf_op#<n>``.
    calls : DataFrame
        One row a call of an operator, indexed by its number: ``op``, ``flops`` (missing where there is no formula),
        ``bytes`` (that it moves at least), ``dtype``.
    """

    events: pd.DataFrame
    calls: pd.DataFrame


@dataclass(frozen=True)
class WatchRecord:
    """What the sampler read of the machine.

    Attributes
    ----------
    samples : DataFrame
        One row per device and reading, see `perfnb.recording.schema`. Old rows may stand for several readings.
    marks : DataFrame
        One row a stretch of time that the user or the notebook named: ``name``, ``depth``, ``start_s``, ``end_s``
        (missing while it lasts).
    """

    samples: pd.DataFrame
    marks: pd.DataFrame


@dataclass(frozen=True)
class Recording:
    """Raw frames of one run; analysis never changes them.

    Attributes
    ----------
    events : DataFrame
        One row an event of the traced steps: ``name``, ``category``, ``start_ns`` (from the trace's base),
        ``duration_ns``, ``thread``, ``device``, ``stream``, ``correlation``, ``sequence``, ``forward_thread`` (-1 where
        the event has none), ``span`` (number of the layer span, else -1). Where it is known also ``process``,
        ``external_id``, ``wait_stream``, ``wait_correlation``, ``bytes`` (that a copy moves), and as text ``shapes``,
        ``collective`` and ``group``. Of a trace that was loaded also ``marks_step`` (number of the step that the event
        stands for, else -1).
    steps : DataFrame
        One row an executed step: ``pass``, ``wall_ms``, ``data_ms``, ``samples`` (in its batch), ``start_s`` (from the
        begin of the first), ``step`` (number of a traced one).
    modules : DataFrame
        One row a layer, in model order: ``name``, ``module``, ``parent`` (row of the layer around it, else -1),
        ``depth``, ``parameters``, ``parameter_bytes``, ``compiled``.
    spans : DataFrame
        One row a layer span, indexed by its number: ``layer`` (row of `modules`, else -1), ``loss`` (whether it is the
        call of a loss: its time is not its layer's).
    meta : mapping
        Name, options, environment and findings of the run; JSON-able.
    memory : MemoryRecord or None
        Where memory was watched.
    arithmetic : ArithmeticRecord or None
        Where arithmetic was counted.
    watch : WatchRecord or None
        Where the machine was watched.
    outside : DataFrame or None
        The events of a loaded trace that belong to none of its steps, as `events`.
    trace_memory : DataFrame or None
        The allocations and frees of a loaded trace, where it holds some, in order of time, in and outside its steps:
        ``time_ns``, ``process``, ``thread``, ``address``, ``bytes`` (negative where it is freed), ``device_type``
        (torch's number), ``device``, ``allocated``, ``reserved`` (the allocator's totals after it); -1 for what an
        event does not carry.
    """

    events: pd.DataFrame
    steps: pd.DataFrame
    modules: pd.DataFrame
    spans: pd.DataFrame
    meta: Mapping[str, Any]
    memory: MemoryRecord | None = None
    arithmetic: ArithmeticRecord | None = None
    watch: WatchRecord | None = None
    outside: pd.DataFrame | None = None
    trace_memory: pd.DataFrame | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether a trace was loaded, instead of a step profiled."""
        return "trace" in self.meta

    @property
    def rank(self) -> int:
        """Of a distributed job; 0 where there is none."""
        return int(self.meta.get("rank", 0))

    @property
    def traced_steps(self) -> int:
        """How many steps were traced."""
        return int((self.steps["pass"] == "traced").sum())

    @property
    def span_layers(self) -> pd.Series:
        """Which layer owns the time of each span, by the span's number; -1 for a loss, a phase of its own."""
        return self.spans["layer"].mask(self.spans["loss"], -1)

    def of_memory(self) -> Recording | None:
        """The recording as if the watched steps were the traced ones."""
        return None if self.memory is None else replace(self, events=self.memory.events)

    def of_arithmetic(self) -> Recording | None:
        """The recording as if the counted step were the traced one."""
        return None if self.arithmetic is None else replace(self, events=self.arithmetic.events)

    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames by name, as they are saved."""
        frames = {"events": self.events, "steps": self.steps, "modules": self.modules, "spans": self.spans}
        for name, part in (("memory", self.memory), ("arithmetic", self.arithmetic), ("watch", self.watch)):
            if part is not None:
                frames |= {f"{name}_{field.name}": getattr(part, field.name) for field in fields(part)}
        alone = {"outside": self.outside, "trace_memory": self.trace_memory}
        return frames | {name: frame for name, frame in alone.items() if frame is not None}
