"""Two traces side by side: operators matched through their trees, and the kernels that each launched.

Kernels of two vendors share no names, and neither do the operators that call their libraries. So GPU work belongs to
the closest operator around its launch that both traces have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.events import all_events
from perfnb.diff import tables
from perfnb.diff.op_matching import matched_ops
from perfnb.diff.op_tree import op_tree
from perfnb.diff.tables import BOTH, LAYER, NAME, ONLY_A, ONLY_B, SHAPES, SIDES, changed_most, grown
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.recording.nesting import NONE, forest_of, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import NO_OP_ROW, conform

GPU_FIGURES = ("total", "busy", "computation", "communication", "memcpy", "idle")


@dataclass(frozen=True)
class TraceDiff:
    """Traced steps of b against those of a. Every figure is per step.

    Attributes
    ----------
    ops : DataFrame
        The frame ``diff_ops``, in a's order of execution, then what only b has.
    kernels : DataFrame
        The frame ``diff_kernels``, largest change first.
    outermost : DataFrame
        Outermost operators with all inside them, annotated ranges with what no operator inside them took, and work
        launched by an unknown operator; largest change first. Their times add up to the whole. Columns ``op``,
        ``shapes``, ``layer``, ``phase``, ``matched``, ``ratio``; ``calls``, ``host_ms``, ``gpu_ms`` and ``kernels``
        (lists of names, heaviest first) of both; ``grew_ms``, ``grew_host_ms``, ``grew_gpu_ms``.
    operators : DataFrame
        The frame ``diff_by_op``: `outermost` with all layers summed, by name and shapes; ``layers`` is how many.
        ``matched`` is missing if they were matched in several ways.
    uneven : DataFrame
        Operators that the two call a different number of times, all layers summed, longest on the host first, nested
        ones only once: ``op``, ``shapes``, ``matched`` (``only a``, ``only b``, ``both``), and ``calls``, ``host_ms``
        and ``gpu_ms`` of both.
    sums : DataFrame
        The time of ``grew_ms``, by where it was spent: operators in both, ``only a``, ``only b``, and for GPU time work
        launched by an unknown operator: ``ms_a``, ``ms_b``, ``grew_ms``.
    gpu_time : DataFrame or None
        The frame ``diff_gpu_time``; ``None`` if either has no GPU work.
    on_gpu : bool
        Whether ``grew_ms`` and ``ratio`` are GPU times, as both have GPU work; else they are host times.
    alike : tuple of (float or None)
        Share of a's and of b's time in operators that the other has in the same layer or with the same shapes.
    steps : tuple of int
        Traced steps of a and of b.
    works : tuple of int
        Kernels, copies and memsets in all traced steps of a and of b.
    unmarked : tuple of bool
        Whether a and b have no marked steps, so that the whole trace counts as one.
    without_shapes, without_layers : tuple of bool
        Whether a and b have no input shapes, and no layers.
    """

    ops: pd.DataFrame
    kernels: pd.DataFrame
    outermost: pd.DataFrame
    operators: pd.DataFrame
    uneven: pd.DataFrame
    sums: pd.DataFrame
    gpu_time: pd.DataFrame | None
    on_gpu: bool
    alike: tuple[float | None, float | None]
    steps: tuple[int, int]
    works: tuple[int, int]
    unmarked: tuple[bool, bool]
    without_shapes: tuple[bool, bool]
    without_layers: tuple[bool, bool]


def diff_traces(a: Recording, b: Recording, layers: pd.DataFrame) -> TraceDiff | None:
    """Compare operators and kernels of two recordings; ``None`` if either traced no step.

    Parameters
    ----------
    a, b : Recording
    layers : DataFrame
        Matching layers in the columns ``a`` and ``b``, as in `ProfileDiff.layers`.
    """
    if any(len(one.events) == 0 or one.traced_steps == 0 for one in (a, b)):
        return None
    both = matched_ops(op_tree(a), op_tree(b), layers)
    on_gpu = all(len(tree.work) for tree in both.trees)
    what = "gpu_ms" if on_gpu else "host_ms"
    table, forest = tables.rows_of(both), forest_of(both.around)
    # The outermost operator around each row; a range in no operator stands for itself.
    top = outermost(forest, ~table["is_range"].to_numpy(dtype=bool))
    top = np.where(top != NONE, top, np.arange(len(top)))
    ops = tables.with_times_inside(table, both)
    work = tables.work_of(both)
    kernels = tables.kernels_of(work, table, top)
    first_look = tables.outermost_of(table, top, work)
    by_op = changed_most(grown(tables.over_layers(first_look), what))
    return TraceDiff(
        ops=conform(grown(tables.with_lost(ops, work), what), "diff_ops"),
        kernels=conform(changed_most(grown(kernels, "gpu_ms").drop(columns="grew_gpu_ms")), "diff_kernels"),
        outermost=changed_most(grown(first_look, what)),
        operators=conform(by_op, "diff_by_op"),
        uneven=tables.uneven_of(ops, by_op),
        sums=_sums(table, work, what),
        gpu_time=_gpu_times(a, b) if on_gpu else None,
        on_gpu=on_gpu,
        alike=(_alike(table, f"self_{what}_a"), _alike(table, f"self_{what}_b")),
        steps=(both.trees[0].steps, both.trees[1].steps),
        works=(len(both.trees[0].work), len(both.trees[1].work)),
        unmarked=(_unmarked(a), _unmarked(b)),
        without_shapes=both.lacking("shapes"),
        without_layers=both.lacking("layer"),
    )


def _sums(table: pd.DataFrame, work: pd.DataFrame, what: str) -> pd.DataFrame:
    own = table[[f"self_{what}_{side}" for side in SIDES]].set_axis(["ms_a", "ms_b"], axis=1)
    word = table["matched"].where(table["matched"].isin([ONLY_A, ONLY_B]), BOTH)
    sums = own.groupby(word).sum().reindex([BOTH, ONLY_A, ONLY_B], fill_value=0.0)
    if what == "gpu_ms":
        lost = work[work["row"] == NONE].groupby("side")["ms"].sum().reindex(SIDES, fill_value=0.0)
        sums.loc[NO_OP_ROW] = lost.to_numpy()
    return sums.assign(grew_ms=sums["ms_b"] - sums["ms_a"]).rename_axis("ops")


def _unmarked(recording: Recording) -> bool:
    return recording.is_loaded and not recording.meta["trace"].get("steps_marked", True)


def _alike(table: pd.DataFrame, time: str) -> float | None:
    """Share of the time in rows that are the same operator in the same layer, or with the same shapes."""
    own = table[time].fillna(0.0).to_numpy(dtype=float)
    untold = table["shapes_a"].isna() | table["shapes_b"].isna()
    same = table["matched"].isin([LAYER, SHAPES]) | ((table["matched"] == NAME) & untold)
    return float(own[same.to_numpy(dtype=bool)].sum() / own.sum()) if own.sum() > 0 else None


def _gpu_times(a: Recording, b: Recording) -> pd.DataFrame:
    columns = {f"ms_{side}": _gpu_time_of(one) for side, one in zip(SIDES, (a, b), strict=True)}
    frame = pd.DataFrame(columns, index=pd.Index(GPU_FIGURES))
    return conform(frame.assign(grew_ms=frame["ms_b"] - frame["ms_a"]), "diff_gpu_time")


def _gpu_time_of(recording: Recording) -> dict[str, float]:
    """What a device did per step: the mean over steps and devices."""
    events = all_events(recording)
    table = gpu_time_by_step(events)
    if table.empty:  # no step is marked
        table = gpu_time(events)
    devices = table[["rank", "device"]].drop_duplicates()
    return {name: float(table[f"{name}_ms"].sum()) / recording.traced_steps / len(devices) for name in GPU_FIGURES}
