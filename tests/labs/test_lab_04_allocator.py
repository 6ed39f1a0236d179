"""Lab 4, the caching allocator: it keeps its rules, the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perfnb.errors import LabError
from perfnb.labs.made_allocator import CachingAllocator
from tests.labs.judging import expect


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda sizes: sorted(sizes, reverse=True), ""),
        (lambda sizes: (max(sizes), *(sizes[: sizes.index(max(sizes))] + sizes[sizes.index(max(sizes)) + 1 :])), ""),
        (lambda sizes: sizes, "in the given order, 66 MiB are reserved; 30 are enough"),
        (sorted, "with the shortest first"),
        (lambda sizes: sizes[::-1], "in your order"),
        (lambda sizes: [max(sizes)] * len(sizes), "you return other sizes"),
    ],
)
def test_the_order_of_steps(answer: Any, words: str) -> None:
    expect("4.9", words, answer)


def test_neighbours_become_one_again_and_segments_never_do() -> None:
    gpu = CachingAllocator()
    gpu.free(gpu.allocate(60))
    parts = [gpu.allocate(20) for _ in range(3)]
    for part in (parts[0], parts[2], parts[1]):
        gpu.free(part)
    gpu.free(gpu.allocate(60))
    assert gpu.reserved_mib == 60
    other = gpu.allocate(61)
    assert (gpu.reserved_mib, gpu.allocated_mib) == (122, 61)
    gpu.free(other)
    with pytest.raises(LabError, match="already been freed"):
        gpu.free(other)
    with pytest.raises(LabError, match="at least 1"):
        gpu.allocate(0)


@pytest.mark.parametrize("seed", range(2))
def test_blocks_always_fill_what_is_reserved(seed: int) -> None:
    chance, gpu, kept = random.Random(seed), CachingAllocator(), []
    for _ in range(200):
        if kept and chance.random() < 0.5:
            gpu.free(kept.pop(chance.randrange(len(kept))))
        else:
            kept.append(gpu.allocate(chance.randint(1, 64)))
        blocks = [block for segment in gpu._segments for block in segment]
        assert sum(block.mib for block in blocks) == gpu.reserved_mib
        assert sum(block.mib for block in kept) == gpu.allocated_mib <= gpu.reserved_mib
        assert gpu.history[-1] == (gpu.reserved_mib, gpu.allocated_mib)
