"""Two traces side by side: operators matched through their trees, and the kernels that each launched.

Kernels of two makers share no names, and neither do the operators that call their libraries. So what is compared is the
closest operator that both have: work on the GPU belongs to the closest matched operator around its launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.events import all_events
from perfnb.diff import tables as tables
from perfnb.diff.matched_ops import matched_ops
from perfnb.diff.op_tree import op_tree
from perfnb.diff.tables import BOTH, LAYER, NAME, ONLY_A, ONLY_B, SHAPES, SIDES, changed_most, grown
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.recording.nesting import NONE, forest_of, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import NO_OP_ROW, conform

GPU_FIGURES = ("total", "busy", "computation", "communication", "memcpy", "idle")


@dataclass(frozen=True)
class TraceDiff:
    """What the traced steps of b have against those of a. Every figure is per step.

    Attributes
    ----------
    ops : DataFrame
        The frame ``diff_ops``, in the order in which a runs them, then those that only b has.
    kernels : DataFrame
        The frame ``diff_kernels``, what changed most first.
    outermost : DataFrame
        What to look at first, what changed most first: the operators that lie in no other, with all inside them;
        annotated ranges, with what no operator inside them took; and the work that no operator is known to have
        launched. Their times add up to the whole. ``op``, ``shapes``, ``layer``, ``phase``, ``matched``, ``calls_a``,
        ``calls_b``, ``host_ms_a``, ``host_ms_b``, ``gpu_ms_a``, ``gpu_ms_b``, ``grew_ms``, ``grew_host_ms``,
        ``grew_gpu_ms``, ``ratio``, and ``kernels_a``, ``kernels_b`` (lists of names, the heaviest first).
    operators : DataFrame
        The frame ``diff_by_op``: `outermost` with an operator's rows of all layers in one, where name and shapes are
        the same; ``layers``: how many. ``matched`` is missing where they were matched in several ways.
    uneven : DataFrame
        The operators that the two do not call equally often, all layers in one, the longest on the host first; of those
        that lie in each other the outermost: ``op``, ``shapes``, ``matched`` (``only a``, ``only b``, ``both``), and
        ``calls``, ``host_ms`` and ``gpu_ms`` of both.
    sums : DataFrame
        Time as ``grew_ms`` tells it, by what it was in: operators that both have, ``only a``, ``only b``, and for the
        GPU the work that no operator is known to have launched: ``ms_a``, ``ms_b``, ``grew_ms``.
    gpu_time : DataFrame or None
        The frame ``diff_gpu_time``; ``None`` where one of the two has no work on a GPU.
    on_gpu : bool
        Whether ``grew_ms`` and ``ratio`` are of the GPU's time, as both have some; else they are of the host's.
    alike : tuple of (float or None)
        The share of a's time, and of b's, in operators that the other has in the same layer or with the same shapes.
    steps : tuple of int
        Traced steps of a, and of b.
    works : tuple of int
        Kernels, copies and fills on the GPU in all traced steps of a, and of b.
    unmarked : tuple of bool
        Whether a, and b, mark no steps, so that all of the trace counts as one.
    without_shapes, without_layers : tuple of bool
        Whether a, and b, tell no input shapes, and no layers.
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
    """Set operators and kernels of two recordings side by side; ``None`` where one of them traced no step.

    Parameters
    ----------
    a, b : Recording
    layers : DataFrame
        Which layer of b is which of a, as `ProfileDiff.layers` tells in the columns ``a`` and ``b``.
    """
    if any(len(one.events) == 0 or one.traced_steps == 0 for one in (a, b)):
        return None
    both = matched_ops(op_tree(a), op_tree(b), layers)
    on_gpu = all(len(tree.work) for tree in both.trees)
    what = "gpu_ms" if on_gpu else "host_ms"
    table, forest = tables.rows_of(both), forest_of(both.around)
    # The farthest operator around each row; a range in no operator stands for itself.
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
    """The share of the time in rows that are the same operator in the same layer, or with the same shapes."""
    own = table[time].fillna(0.0).to_numpy(dtype=float)
    untold = table["shapes_a"].isna() | table["shapes_b"].isna()
    same = table["matched"].isin([LAYER, SHAPES]) | ((table["matched"] == NAME) & untold)
    return float(own[same.to_numpy(dtype=bool)].sum() / own.sum()) if own.sum() > 0 else None


def _gpu_times(a: Recording, b: Recording) -> pd.DataFrame:
    columns = {f"ms_{side}": _gpu_time_of(one) for side, one in zip(SIDES, (a, b), strict=True)}
    frame = pd.DataFrame(columns, index=pd.Index(GPU_FIGURES))
    return conform(frame.assign(grew_ms=frame["ms_b"] - frame["ms_a"]), "diff_gpu_time")


def _gpu_time_of(recording: Recording) -> dict[str, float]:
    """What a device did in a step: the mean over steps and devices."""
    events = all_events(recording)
    table = gpu_time_by_step(events)
    if table.empty:  # no step is marked
        table = gpu_time(events)
    devices = table[["rank", "device"]].drop_duplicates()
    return {name: float(table[f"{name}_ms"].sum()) / recording.traced_steps / len(devices) for name in GPU_FIGURES}
