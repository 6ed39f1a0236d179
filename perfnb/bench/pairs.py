"""Time two steps in randomised pairs, or in blocks if batches are prefetched for one step while the other runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from perfnb.bench.design import planned_blocks, planned_rounds, slower_back_to_back, warm_up
from perfnb.bench.paired_times import PairedTimes, paired_times
from perfnb.draw.progress import Progress


def time_pairs(
    a: Callable[..., Any],
    b: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None,
    names: tuple[str, str],
    *,
    budget_s: float,
    equal_within: float = 0.02,
    compare: Callable[[Any, Any], object] | None = None,
) -> PairedTimes:
    """Run two steps in pairs or blocks, and compare their times.

    At the end of the warm-up, when both steps have run equally often, `compare` is called with their last return
    values.
    """
    from perfnb.bench.rounds import Bench

    __tracebackhide__ = True
    begin = time.perf_counter()
    with Progress() as progress, Bench([a, b], batches, progress) as bench:
        steady = warm_up(bench, begin, budget_s)
        if compare is not None:
            compare(*bench.results)
        bench.results = []
        blocks, turn_ms, prefetching = None, None, bench.prefetching()
        if prefetching is None and (slower := slower_back_to_back(bench, budget_s)) is not None:
            prefetching, turn_ms = slower
        if prefetching is None:
            plan, times = planned_rounds(bench, begin, budget_s, equal_within)
        else:
            steady = None  # the warm-up was interleaved, so it did not time any back-to-back turns
            plan, blocks, times = planned_blocks(bench, begin, budget_s, prefetching, turn_ms)
    sizes = set(bench.sizes)
    return paired_times(
        times[0].tolist(),
        times[1].tolist(),
        equal_within=equal_within,
        a_name=names[0],
        b_name=names[1],
        planned=plan.count,
        needed=plan.needed,
        noise=bench.conditions.facts,
        steady=steady,
        batch_size=sizes.pop() if len(sizes) == 1 else None,
        blocks=blocks,
    )
