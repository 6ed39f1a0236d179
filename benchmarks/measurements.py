"""Compare perfnb's step times with torch's, and test fitted scaling laws on a size that was left out of the fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from torch.utils import benchmark

import perfnb
from benchmarks.models import STEPS

_ALTERNATIONS, _STUDIES = 20, 20
_SIZES, _LEFT_OUT = (128, 160, 203, 256, 323, 406, 512), 287


def run() -> Iterator[str]:
    """Yield one line per model, followed by two lines about matmuls of increasing size."""
    for name in ("ByteGPT", "BERT (small)"):
        step = STEPS[name]()
        timer = benchmark.Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
        ratios = []
        for _ in range(_ALTERNATIONS):
            ours = _median_ms(step, 1.0)
            ratios.append(ours / 1e3 / timer.blocked_autorange(min_run_time=1.0).median)
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield (
            f"measurements: {name}: time_step / torch.utils.benchmark: {middle:.3f} "
            f"(median of {_ALTERNATIONS} alternations; quartiles {low:.3f} to {high:.3f})"
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _studies()
    finally:
        torch.set_num_threads(threads)


def _median_ms(step: Callable[[], object], budget_s: float) -> float:
    median = perfnb.time_step(step, budget_s=budget_s).median_ms
    assert median is not None
    return median


def _studies() -> Iterator[str]:
    inside, exponents, flagged = 0, [], 0
    for _ in range(_STUDIES):
        study = perfnb.scaling_study(_product, _SIZES, budget_s=4.0)
        exponents.append(study.exponent)
        flagged += study.warning is not None
        low, high = study.predict(_LEFT_OUT).ci_ms
        inside += low <= _median_ms(_product(_LEFT_OUT), 0.5) <= high
    yield (
        f"measurements: matmul of sizes {_SIZES[0]} to {_SIZES[-1]}, 1 thread: exponent {min(exponents):.2f} to "
        f"{max(exponents):.2f} in {_STUDIES} studies; {flagged} with a warning"
    )
    yield f"measurements: size {_LEFT_OUT}, left out of the fit: inside its interval in {inside} of {_STUDIES}"


def _product(size: float) -> Callable[[], torch.Tensor]:
    left, right = torch.randn(int(size), int(size)), torch.randn(int(size), int(size))
    return lambda: left @ right
