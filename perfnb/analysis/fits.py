"""What would make it fit: how much of the peak some well-known changes would free.

Each change is taken alone. *Computed* follows from sizes alone; *estimated* supposes that the peak stays where it is
and that activations behave as they usually do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfnb.analysis.attribution import Attribution
from perfnb.analysis.nesting import NONE
from perfnb.frames.recording import Recording

_COLUMNS = ["option", "frees_bytes", "basis", "detail"]
Option = tuple[str, int, str, str]


def fitting_options(
    alive: pd.DataFrame,
    by_category: Mapping[str, int],
    attribution: Attribution,
    recording: Recording,
    samples: int | None,
) -> pd.DataFrame:
    """The changes that would free memory at the peak, the greatest first.

    Parameters
    ----------
    alive : DataFrame
        The blocks of memory alive at the peak.
    by_category : mapping
        Bytes at the peak.
    samples : int or None
        Samples in a batch.
    """
    options = [
        *_smaller_batch(by_category, samples),
        *_checkpointing(alive, recording),
        *_stateless(by_category),
        *_half_precision(by_category),
    ]
    frame = pd.DataFrame([option for option in options if option[1] > 0], columns=_COLUMNS)
    frame = frame.astype({"option": "str", "frees_bytes": "Int64", "basis": "str", "detail": "str"})
    return frame.sort_values("frees_bytes", ascending=False, kind="stable", ignore_index=True)


def _smaller_batch(by_category: Mapping[str, int], samples: int | None) -> Iterator[Option]:
    moving = sum(by_category[name] for name in ("activations", "inputs", "temporaries"))
    if samples is None or samples > 1:
        size = "" if samples is None else f", {samples // 2:,} samples instead of {samples:,}"
        yield (
            "half the batch",
            moving // 2,
            "estimated",
            f"Activations, inputs and temporaries shrink with the batch{size}; accumulate gradients over two.",
        )


def _checkpointing(alive: pd.DataFrame, recording: Recording) -> Iterator[Option]:
    """Of repeated blocks of layers, all activations but each block's last; one block's are made again at a time."""
    saved = alive[(alive["category"] == "activations") & alive["layer"].notna()]
    modules = recording.modules
    names = modules["name"].tolist()
    parents = modules["parent"].to_numpy()
    groups: dict[tuple[int, str], list[int]] = {}
    for row, (parent, kind) in enumerate(zip(parents.tolist(), modules["module"], strict=True)):
        groups.setdefault((parent, str(kind)), []).append(row)
    inside = {name: row for row, name in enumerate(names)}
    line = [set(_line(row, parents)) for row in range(len(names))]
    owner = saved["layer"].map(inside).fillna(NONE).astype("int64").to_numpy()
    size = saved["bytes"].to_numpy()
    best: tuple[int, int, str] = (0, 0, "")
    for (parent, kind), rows in groups.items():
        if parent == NONE or len(rows) < 2:
            continue
        parts = [size[np.array([row in line[at] if at != NONE else False for at in owner], dtype=bool)] for row in rows]
        sums = [int(part.sum()) for part in parts]
        kept = [int(part[-1]) if len(part) else 0 for part in parts]
        frees = sum(sums) - sum(kept) - max(sums)
        if len(rows) > 1 and any(len(part) > 1 for part in parts) and frees > best[0]:
            best = (frees, len(rows), kind)
    if best[0] > 0:
        yield (
            "checkpointing",
            best[0],
            "estimated",
            f"Keep only the last activation of each of the {best[1]} {best[2]} layers and run their forward again in "
            "the backward pass (torch.utils.checkpoint).",
        )


def _line(row: int, parents: np.ndarray) -> Iterator[int]:
    while row != NONE:
        yield row
        row = int(parents[row])


def _stateless(by_category: Mapping[str, int]) -> Iterator[Option]:
    yield (
        "an optimizer without state",
        by_category["optimizer_state"],
        "computed",
        "Plain SGD keeps no state; it may need another learning rate and more steps.",
    )


def _half_precision(by_category: Mapping[str, int]) -> Iterator[Option]:
    whole = ("parameters", "gradients", "optimizer_state")
    yield (
        "half precision for the model",
        sum(by_category[name] for name in whole) // 2,
        "computed",
        "Parameters, gradients and optimizer state in bfloat16 take half the bytes of float32.",
    )
    yield (
        "half precision for activations",
        by_category["activations"] // 2,
        "estimated",
        "Under bfloat16 autocast most activations take half the bytes; copies of the weights are added.",
    )
