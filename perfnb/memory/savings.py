"""What would make a step fit: how much of the peak some well-known changes would free.

Each change is considered on its own. *Computed* savings follow from sizes alone; *estimated* ones assume that the peak
stays where it is and that activations behave as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfnb.attribution.arithmetic import main_dtype
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT

#: Bytes of a float32 parameter.
_WHOLE = 4
_COLUMNS = ["option", "frees_bytes", "basis", "detail"]
Option = tuple[str, int, str, str]


def fitting_options(
    alive: pd.DataFrame, by_category: Mapping[str, int], recording: Recording, samples: int | None
) -> pd.DataFrame:
    """The changes that would free memory at the peak, largest first.

    Parameters
    ----------
    alive : DataFrame
        Blocks alive at the peak, in the order they were allocated.
    by_category : mapping
        Bytes at the peak.
    samples : int or None
        Samples in a batch.

    Returns
    -------
    DataFrame
        ``option``, ``frees_bytes``, ``basis``, ``detail``; options that free nothing are left out.
    """
    options = [
        *_smaller_batch(by_category, samples),
        *_checkpointing(alive, recording.modules),
        *_stateless(by_category),
        *_half_precision(by_category, recording),
    ]
    frame = pd.DataFrame([option for option in options if option[1] > 0], columns=_COLUMNS)
    frame = frame.astype({"option": TEXT, "frees_bytes": "Int64", "basis": TEXT, "detail": TEXT})
    return frame.sort_values("frees_bytes", ascending=False, kind="stable", ignore_index=True)


def _smaller_batch(by_category: Mapping[str, int], samples: int | None) -> Iterator[Option]:
    moving = sum(by_category[name] for name in ("activations", "inputs", "temporaries"))
    if samples is None or samples > 1:
        size = "" if samples is None else f", {samples // 2:,} samples instead of {samples:,}"
        yield (
            "half the batch",
            moving // 2,
            "estimated",
            f"Activations, inputs and temporaries shrink with the batch{size}; accumulate gradients over two batches.",
        )


def _checkpointing(alive: pd.DataFrame, modules: pd.DataFrame) -> Iterator[Option]:
    """In sibling layers of one class: all activations but each layer's last, one layer recomputed at a time."""
    parent, depth = modules["parent"].to_numpy(), modules["depth"].to_numpy()
    row = {name: place for place, name in enumerate(modules["name"])}
    saved = alive[(alive["category"] == "activations") & alive["layer"].isin(row)]
    at, size = saved["layer"].map(row).to_numpy(dtype=np.int64), saved["bytes"].to_numpy()
    best: tuple[int, int, str] = (0, 0, "")
    for level in range(int(depth.max(initial=0)), 0, -1):
        at = np.where(depth[at] > level, parent[at], at)  # the enclosing layer at this level
        here = depth[at] == level
        blocks = pd.DataFrame({"row": at[here], "bytes": size[here]}).groupby("row")["bytes"].agg(["sum", "last"])
        alike = [parent[blocks.index], modules["module"].to_numpy(dtype=object)[blocks.index]]
        for (_, kind), group in blocks.groupby(alike):
            frees = int(group["sum"].sum() - group["last"].sum() - group["sum"].max())
            best = max(best, (frees, len(group), str(kind)))
    if best[0] > 0:
        yield (
            "checkpointing",
            best[0],
            "estimated",
            f"Keep only the last activation of each of the {best[1]} {best[2]} layers and recompute the rest in the "
            "backward pass (torch.utils.checkpoint).",
        )


def _stateless(by_category: Mapping[str, int]) -> Iterator[Option]:
    yield (
        "an optimizer without state",
        by_category["optimizer_state"],
        "computed",
        "Plain SGD keeps no state, but may need a different learning rate and more steps.",
    )


def _half_precision(by_category: Mapping[str, int], recording: Recording) -> Iterator[Option]:
    roots = recording.modules[recording.modules["parent"] == NONE]
    if roots["parameter_bytes"].sum() >= _WHOLE * roots["parameters"].sum():
        yield (
            "half precision for the model",
            sum(by_category[name] for name in ("parameters", "gradients", "optimizer_state")) // 2,
            "computed",
            "Parameters, gradients and optimizer state in bfloat16 take half the bytes of float32.",
        )
    counted = recording.arithmetic
    if counted is None or main_dtype(counted.calls.astype({"dtype": TEXT})) not in ("bfloat16", "float16"):
        yield (
            "half precision for activations",
            by_category["activations"] // 2,
            "estimated",
            "Under bfloat16 autocast most activations take half the bytes, but copies of the weights are added.",
        )
