"""Compute how much of a step's peak memory some well-known changes would free."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from perfnb.recording.text import TEXT

#: The columns of the table of options, and their types.
_TYPES = {"option": TEXT, "frees_bytes": "Int64", "basis": TEXT, "detail": TEXT}


def options_to_fit(
    by_category: Mapping[str, int],
    *,
    of_optimizer: int,
    samples: int | None = None,
    batches: int = 1,
    checkpoints: tuple[int, str] = (0, ""),
    single: bool,
    half: bool,
) -> pd.DataFrame:
    """Return how much of the peak each change would free by itself, in descending order.

    *Computed* savings are derived from sizes alone. *Estimated* savings assume that the peak stays in the same place
    and that activations behave as usual.

    Parameters
    ----------
    by_category : mapping
        The number of bytes in each category at the peak.
    of_optimizer : int
        The size of temporaries in the optimizer's step, which does not depend on the batch.
    samples, batches : int
        The number of samples in a batch (``None`` if unknown), and the number of batches in a step.
    checkpoints : tuple of int and str
        The number of bytes that checkpointing would free, and the layers.
    single : bool
        Whether parameters take at least four bytes each.
    half : bool
        Whether the arithmetic already uses half precision.

    Returns
    -------
    DataFrame
        A table with the columns ``option``, ``frees_bytes``, ``basis`` and ``detail``. Options that free less than a
        thousandth of the peak are omitted.
    """
    moving = sum(by_category[name] for name in ("activations", "inputs", "temporaries")) - of_optimizer
    size, over = "", f"{2 * batches:,}" if batches > 1 else "two"
    if samples and batches > 1:
        size = f": {over} batches of {samples // 2:,} samples instead of {batches:,} of {samples:,}"
    elif samples:
        size = f", {samples // 2:,} samples instead of {samples:,}"
    held = sum(by_category[name] for name in ("parameters", "gradients", "optimizer_state"))
    kept, layers = checkpoints
    options = [
        (
            "half the batch",
            moving // 2 if samples is None or samples > 1 else 0,
            "estimated",
            f"Activations, inputs and temporaries shrink with the batch{size}; accumulate gradients over {over} "
            "batches.",
        ),
        (
            "checkpointing",
            kept,
            "estimated",
            f"Keep only the last activation of each of the {layers} layers and recompute the rest in the backward pass "
            "(torch.utils.checkpoint).",
        ),
        (
            "an optimizer without state",
            by_category["optimizer_state"],
            "computed",
            "Plain SGD has no state, but it may require a different learning rate and more steps.",
        ),
        (
            "half precision for the model",
            held // 2 if single else 0,
            "computed",
            "Parameters, gradients and optimizer state in bfloat16 take half the bytes of float32.",
        ),
        (
            "half precision for activations",
            0 if half else by_category["activations"] // 2,
            "estimated",
            "This is an upper limit, because bfloat16 autocast keeps some activations in float32 and adds copies of "
            "the weights. For a more precise estimate, pass autocast=torch.bfloat16 to perfnb.estimate_memory.",
        ),
    ]
    least = sum(by_category.values()) / 1000
    frame = pd.DataFrame([option for option in options if option[1] > least], columns=[*_TYPES]).astype(_TYPES)
    return frame.sort_values("frees_bytes", ascending=False, kind="stable", ignore_index=True)
