"""Compare the achieved rate of a matmul in a profile with torch.utils.benchmark on the same matmul."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
from torch.utils import benchmark

import perfnb
from perfnb.profile.profile import Profile

_SIZES, _ROUNDS = (512, 1024), 7


def run() -> Iterator[str]:
    """Yield one line per size with the ratio of the rates over all rounds."""
    for size in _SIZES:
        left, right = torch.randn(size, size), torch.randn(size, size)
        ratios = [_ours(left, right) / _theirs(left, right) for _ in range(_ROUNDS)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield (
            f"roofline: matmul of size {size}: achieved FLOP/s / torch.utils.benchmark: {middle:.3f} "
            f"(quartiles {low:.3f} to {high:.3f})"
        )


def _ours(left: torch.Tensor, right: torch.Tensor) -> float:
    p = perfnb.profile_step(lambda: left @ right, steps=20, traced=20, memory=False)
    assert isinstance(p, Profile)
    assert p.roofline is not None
    points = p.roofline.points.set_index("name")
    return float(points["achieved_flops_per_s"]["aten::mm"])


def _theirs(left: torch.Tensor, right: torch.Tensor) -> float:
    timer = benchmark.Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
    return float(2 * left.shape[0] ** 3 / timer.blocked_autorange(min_run_time=0.3).mean)
