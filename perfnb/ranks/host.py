"""Analyse ranks whose collectives run on the host.

The module computes how each rank spends its steps, and finds the work that makes the straggler late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import attribute, owner_names
from perfnb.attribution.collectives import collective_calls
from perfnb.attribution.interval_sets import IntervalSet, union
from perfnb.ranks.lanes import host_lane
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES

#: The phases that count as computation.
_COMPUTES = ("host_to_device", "forward", "loss", "backward", "optimizer")


@dataclass(frozen=True)
class HostRank:
    """How a rank's host spent the traced steps.

    Attributes
    ----------
    phases : DataFrame
        The time in milliseconds, with a row per step (indexed by step number) and a column per phase.
    layers : DataFrame
        The milliseconds per step for each ``phase`` and ``layer``, excluding child layers. The layer is empty for code
        outside all layers.
    calls : DataFrame
        The output of `collective_calls`.
    lane : DataFrame
        The output of `host_lane`.
    """

    phases: pd.DataFrame
    layers: pd.DataFrame
    calls: pd.DataFrame
    lane: pd.DataFrame


@dataclass(frozen=True)
class LateWork:
    """A phase that took longer on the straggler than on the other ranks, and the layer that contributed most to this.

    The differences are in milliseconds per step.
    """

    phase: str
    more_ms: float
    layer: str
    layer_ms: float


def host_rank(recording: Recording) -> HostRank:
    """Attribute the time of a rank's steps to phases and layers."""
    attribution = attribute(recording)
    traced = recording.steps[recording.steps["pass"] == "traced"]["step"].to_numpy(dtype=np.int64)
    cells = pd.DataFrame(
        {
            "step": attribution.cells["step"].to_numpy(),
            "phase": attribution.cells["phase"].to_numpy(dtype=object),
            "layer": owner_names(recording, attribution),
            "ms": attribution.cells["ns"].to_numpy() / 1e6,
        }
    )
    cells = cells[(cells["step"] >= 0) & (cells["step"] < len(traced))]
    sums = cells.groupby(["step", "phase"])["ms"].sum()
    phases = pd.DataFrame(
        {phase: [float(sums.get((step, phase), 0.0)) for step in range(len(traced))] for phase in PHASES}
    )
    phases.index = pd.Index(traced, name="step")
    layers = cells.groupby(["phase", "layer"])["ms"].sum().div(attribution.steps).reset_index()
    return HostRank(phases, layers, collective_calls(recording, attribution), host_lane(attribution, traced))


def with_host_times(times: pd.DataFrame, host: HostRank) -> pd.DataFrame:
    """Return a rank's times per step, including the host's computation and communication."""
    own = host.phases.reindex(times["step"].astype("int64"))
    numbers = dict(enumerate(host.phases.index))
    flying: dict[int, float] = {}
    for place in np.unique(host.calls["step"]).tolist():
        part = host.calls[host.calls["step"] == place]
        flying[numbers[place]] = union(part["start_ns"].to_numpy(), part["end_ns"].to_numpy()).length / 1e6
    exposed = own["communication"].to_numpy()
    communicating = np.maximum([flying.get(int(step), 0.0) for step in times["step"]], exposed)
    computing = own[list(_COMPUTES)].sum(axis=1).to_numpy()
    figures = {
        "computation_ms": computing,
        "communication_ms": communicating,
        "overlap_ms": np.minimum(communicating - exposed, computing),
        "exposed_ms": exposed,
        "idle_ms": np.maximum(own.sum(axis=1).to_numpy() - computing - exposed, 0.0),
    }
    return times.assign(**{name: pd.array(values, dtype="Float64") for name, values in figures.items()})


def waits_alone(host: HostRank, base_ns: int) -> IntervalSet:
    """Return the times when a rank did nothing except wait for collectives, offset by `base_ns`."""
    mine = host.lane[(host.lane["part"] == "communication").to_numpy()]
    return union(mine["start_ns"].to_numpy() + base_ns, mine["end_ns"].to_numpy() + base_ns)


def late_work(hosts: Mapping[int, HostRank], straggler: int | None) -> LateWork | None:
    """Find the phase and layer where the straggler exceeds the mean of the other ranks the most."""
    if straggler is None or straggler not in hosts or len(hosts) < 2:
        return None
    means = pd.DataFrame({rank: one.phases.mean() for rank, one in hosts.items()}).drop("communication")
    more = means[straggler] - means.drop(columns=straggler).mean(axis=1)
    phase = str(more.idxmax())
    if not more[phase] > 0:
        return None
    tables = {rank: one.layers[one.layers["phase"] == phase].set_index("layer")["ms"] for rank, one in hosts.items()}
    layers = pd.DataFrame(tables).fillna(0.0)
    beyond = layers[straggler] - layers.drop(columns=straggler).mean(axis=1)
    beyond = beyond[beyond.index != ""]
    layer = str(beyond.idxmax()) if len(beyond) and beyond.max() > 0 else ""
    return LateWork(phase, float(more[phase]), layer, float(beyond[layer]) if layer else 0.0)
