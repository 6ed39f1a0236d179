"""The made-up machines, queues and scripts of the labs, by figures that are worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from perfnb.errors import LabError
from perfnb.labs import lab_03, lab_06, lab_09, lab_10, lab_11
from perfnb.labs.exercise import Hint
from perfnb.labs.made_allocator import CachingAllocator, steps
from perfnb.labs.made_job import CountedModel, planted_step
from perfnb.labs.made_night import Archive, Work, run_counted, work_of
from perfnb.labs.made_service import queued
from tests.labs.planted import Clock, Pool


def spans(frame: pd.DataFrame) -> list[tuple[int, str, float, float]]:
    return [(rank, what, round(start, 6), round(end, 6)) for rank, what, start, end in frame.itertuples(index=False)]


def test_a_step_of_one_process() -> None:
    """Four parts of two cards each, and then the optimizer."""
    parts = [(0, "computing", 10.0 * part, 10.0 * part + 10.0) for part in range(4)]

    assert spans(planted_step([2], [270e3])) == [*parts, (0, "computing", 40.0, 44.0)]


def test_a_bucket_is_sent_when_all_ranks_have_it() -> None:
    """Rank 0 waits for rank 1. The first half of the gradients is ready after two thirds of the slower rank's part."""
    found = spans(planted_step([1, 3], [270e3, 270e3], synced=(False, False, False, True)))
    sent = found[6:-2]

    assert found[:6] == [
        (rank, "computing", 15.0 * part, 15.0 * part + ms) for part in range(3) for rank, ms in ((0, 5.0), (1, 15.0))
    ]
    assert sent == [
        (0, "computing", 45.0, 50.0),
        (1, "computing", 45.0, 60.0),
        (0, "waiting", 50.0, 60.0),
        (0, "sending", 55.0, 56.5),
        (1, "sending", 55.0, 56.5),
        (0, "sending", 60.0, 61.5),
        (1, "sending", 60.0, 61.5),
    ]
    assert found[-2:] == [(0, "computing", 61.5, 65.5), (1, "computing", 61.5, 65.5)]


def test_a_bucket_waits_for_the_one_before() -> None:
    found = spans(planted_step([1, 1], [2700e3, 270e3], synced=(True, False, False, False)))
    sending = [(start, end) for rank, what, start, end in found if what == "sending" and rank == 0]
    ready = 5 * (1 / 3 + 2 / 3 * 10 / 11)

    assert sending == [
        (pytest.approx(ready), pytest.approx(ready + 10.5)),
        (pytest.approx(ready + 10.5), pytest.approx(ready + 12.0)),
    ]
    assert "waiting" not in [what for _, what, _, _ in found]
    assert max(end for *_, end in found) == pytest.approx(ready + 12.0 + 3 * 5.0 + 4.0)


@pytest.mark.parametrize("synced", [(True,) * 3, (True,) * 5])
def test_a_step_needs_a_value_for_each_part(synced: tuple[bool, ...]) -> None:
    with pytest.raises(LabError, match="must have 4 values"):
        planted_step([1], synced=synced)


def test_a_model_counts_when_gradients_would_be_sent() -> None:
    model = CountedModel(nn.Linear(2, 1))
    x = torch.ones(3, 2)

    model(x).sum().backward()
    with model.no_sync():
        loss = model(x).sum()
    loss.backward()
    with model.no_sync(), model.no_sync():
        model(x)
    model(x).sum().backward()
    with torch.no_grad():
        model(x)

    assert model.synced == [True, False, True]
    assert model.forwards == 5
    frozen = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    counted = CountedModel(frozen)
    counted(x).sum().backward()
    assert counted.synced == [True]


@pytest.mark.parametrize(
    ("arrivals", "services", "latencies"),
    [
        ([0.0, 1.0, 2.0, 10.0], [3.0, 1.0, 1.0, 2.0], [3.0, 3.0, 3.0, 2.0]),
        ([5.0, 6.0, 6.5], [1.0, 1.0, 1.0], [1.0, 1.0, 1.5]),
        ([], [], []),
    ],
)
def test_a_queue(arrivals: list[float], services: list[float], latencies: list[float]) -> None:
    assert queued(arrivals, services) == latencies


def test_an_allocator_rounds_segments_and_keeps_the_rest() -> None:
    gpu = CachingAllocator()
    first, second = gpu.allocate(3), gpu.allocate(1)
    third = gpu.allocate(2)
    gpu.free(second)
    gpu.free(first)

    assert gpu.history == [(4, 3), (4, 4), (6, 6), (6, 5), (6, 2)]
    assert (gpu.reserved_mib, gpu.allocated_mib) == (6, 2)
    gpu.allocate(4)
    assert gpu.history[-1] == (6, 6)
    gpu.free(third)
    assert gpu.history[-1] == (6, 4)


def test_of_two_blocks_of_the_same_size_the_older_one_is_taken() -> None:
    gpu = CachingAllocator()
    blocks = [gpu.allocate(4), gpu.allocate(4)]
    for block in blocks:
        gpu.free(block)
    gpu.allocate(3)

    assert [[(each.mib, each.free) for each in segment] for segment in gpu._segments] == [
        [(3, False), (1, True)],
        [(4, True)],
    ]


@pytest.mark.parametrize("mib", [0, -2, 1.5])
def test_sizes_are_whole_and_positive(mib: Any) -> None:
    with pytest.raises(LabError, match=f"at least 1, not {mib}"):
        CachingAllocator().allocate(mib)


def test_a_whole_number_of_another_type_is_a_size() -> None:
    assert steps([2.0, 1.0]).history == [(2, 2), (2, 0), (2, 1), (2, 0)]  # type: ignore[list-item]
    assert CachingAllocator().allocate(1).mib == 1


def test_made_up_seconds_of_a_step() -> None:
    """A ten-thousandth for each card, 16.6 µs for each box of a pass, of which backward takes two, and 2 ms besides."""
    work = Work(steps=2, reads=20, passes=4, boxes=4000, longest=256, float64=False)

    assert work.step_s == pytest.approx(1e-4 * 10 + 0.0166 * (2000 + 2 * 1000) / 1000 + 0.002)
    double = Work(**vars(work) | {"float64": True})
    assert double.step_s == pytest.approx(1e-4 * 10 + 2.6 * 0.0166 * 4 + 0.002)
    assert Work(2, 20, 0, 0, 0, float64=False).step_s == pytest.approx(0.003)


class Script:
    """Two passes of another number of boxes in each step, which reads two cards."""

    def __init__(self, archive: Archive, seed: int) -> None:
        self.archive, self.seed, self.reader = archive, seed, nn.Linear(64, 10)
        archive.read(0)

    def step(self) -> None:
        pixels = [self.archive.read(number)[0] for number in (0, 1)]
        boxes = torch.tensor(np.stack(pixels), dtype=torch.float32)
        self.reader(boxes)
        self.reader(boxes[:1, :100])


def test_the_work_of_a_script_is_counted() -> None:
    archive = Archive(2)
    archive.read(1)
    script, work = run_counted(Script, archive, 3, seed=7)

    assert script.seed == 7
    assert work == Work(steps=3, reads=7, passes=6, boxes=3 * 356, longest=128, float64=False)
    assert not script.reader._forward_pre_hooks
    assert work_of(Script, Archive(2), 1).reads == 3


def test_double_precision_is_noticed_in_weights_and_in_inputs() -> None:
    class Doubled(Script):
        def __init__(self, archive: Archive, seed: int) -> None:
            super().__init__(archive, seed)
            self.reader = nn.Linear(64, 10).double()

        def step(self) -> None:
            self.reader(torch.zeros(2, 3, 64, dtype=torch.float64))

    class Cast(nn.Module):
        def forward(self, boxes: Any) -> Any:
            return boxes.float()

    class OfInputs(Script):
        def __init__(self, archive: Archive, seed: int) -> None:
            super().__init__(archive, seed)
            self.reader = Cast()  # type: ignore[assignment]

        def step(self) -> None:
            self.reader(boxes=torch.zeros(2, 3, 64, dtype=torch.float64))

    for kind in (Doubled, OfInputs):
        assert run_counted(kind, Archive(1), 2)[1] == Work(2, 1, 2, 12, 3, float64=True)


def test_a_reader_takes_three_dimensions() -> None:
    class Flat(Script):
        def step(self) -> None:
            self.reader(torch.zeros(5, 64))

    with pytest.raises(Hint, match="cards, boxes, pixels"):
        run_counted(Flat, Archive(1), 1)
    with pytest.raises(Hint, match="has no Reader"):
        run_counted(lambda *_: object(), Archive(1), 1)
    assert run_counted(lambda *_: type("Idle", (), {"reader": nn.Linear(1, 1), "step": int})(), Archive(1), 1)[1] == (
        Work(1, 0, 0, 0, 0, float64=False)
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lab_06, "time", clock)
    monkeypatch.setattr(lab_06, "ThreadPoolExecutor", Pool(clock))
    return clock


@pytest.mark.parametrize(("ahead", "together_ms"), [(False, 17.0), (True, 12.0 + 5.0 / 12)])
def test_a_feed_records_the_true_times(clock: Clock, ahead: bool, together_ms: float) -> None:
    feed = lab_06.Feed(5.0, 12.0, ahead=ahead)
    for batch in feed:
        feed.step(batch)
    assert list(feed) == list(range(12))
    feed.step(0)

    assert len(feed) == 12
    assert feed.took["together"] == [pytest.approx(together_ms, rel=1e-3)]
    assert feed.took["loader"] == [pytest.approx(5.0, rel=1e-3)]
    assert feed.took["model"] == [pytest.approx(12.0, rel=1e-3)] * 13


def test_a_pass_that_stops_early_does_not_count(clock: Clock) -> None:
    feed = lab_06.Feed(5.0, 12.0, ahead=False)
    for batch in feed:
        feed.step(batch)
        if batch == 10:
            break
    for batch in feed:
        if batch < 11:
            feed.step(batch)

    assert feed.took["together"] == feed.took["loader"] == []


class Turned:
    """Samples of eight numbers, turned by the next of the given shifts, with a label."""

    def __init__(self, *shifts: int, label: Any = 3, dtype: torch.dtype = torch.float32) -> None:
        self.shifts, self.label, self.dtype, self.drawn = shifts, label, dtype, 0

    def __getitem__(self, place: int) -> tuple[torch.Tensor, Any]:
        shift = self.shifts[self.drawn % len(self.shifts)]
        self.drawn += 1
        return torch.roll(torch.arange(8.0), shift).to(self.dtype), self.label


@pytest.mark.parametrize(
    ("after", "facts"),
    [
        (Turned(0, 1, 2, 3, 4, 5, 6, 7), {"same": True, "label": True, "shifts": 8, "never": 0}),
        (Turned(0, 2, 3), {"same": True, "label": True, "shifts": 3, "never": 4}),
        (Turned(5), {"same": True, "label": True, "shifts": 1, "never": 7}),
        (Turned(1, 2, label=4), {"same": True, "label": False, "shifts": 2, "never": 6}),
        (Turned(1, 2, label=3.0), {"same": True, "label": False, "shifts": 2, "never": 6}),
        (Turned(1, dtype=torch.float64), {"same": False, "label": True, "shifts": 0, "never": 7}),
    ],
)
def test_shifts_that_are_drawn(after: Turned, facts: dict[str, Any]) -> None:
    assert lab_06.drawn(Turned(0), after, [0], 16) == facts


def test_the_worst_of_several_samples_counts() -> None:
    class Uneven(Turned):
        def __getitem__(self, place: int) -> tuple[torch.Tensor, Any]:
            found = super().__getitem__(place)
            return found if place else (torch.arange(8.0), 3)

    assert lab_06.drawn(Turned(0), Uneven(0, 4), [1, 0], 8) == {"same": True, "label": True, "shifts": 1, "never": 7}


def neighbours(shared: int, rows: int = 20) -> list[int]:
    """An order of which that many neighbours are neighbours in the plain order, too."""
    start = list(range(shared + 1))
    rest = list(range(shared + 1, rows))
    half = (len(rest) + 1) // 2
    mixed = [row for pair in zip(rest[half:], rest[:half], strict=False) for row in pair]
    return mixed + [row for row in rest if row not in mixed] + start


def test_a_quarter_of_the_neighbours_may_be_the_same() -> None:
    for shared in (4, 5, 6):
        order = neighbours(shared)
        pairs = sum(abs(one - other) == 1 for one, other in itertools.pairwise(order))
        assert lab_06._same_neighbours(list(range(20)), order) is (pairs > 5)
        assert lab_06._same_neighbours(list(range(20)), order[::-1]) is (pairs > 5)


def test_lines_of_text_come_from_their_seed() -> None:
    lines = lab_06.text_lines(3, 4, 7)

    assert lines == lab_06.text_lines(3, 4, 7) != lab_06.text_lines(3, 4, 8)
    assert [len(line.split(",")) for line in lines] == [5, 5, 5]
    assert all(line.split(",")[0] in "0123456789" for line in lines)
    assert all(len(number.partition(".")[2]) == 3 for line in lines for number in line.split(",")[1:])


def test_numbered_rows_have_three_times_their_number_as_label() -> None:
    x, y = lab_06.numbered_rows(5)[4]

    assert (x.tolist(), int(y)) == ([4.0] * 16, 12)


@pytest.mark.parametrize(
    ("sizes", "full", "found"),
    [([1, 6, 2, 3, 4], 5, [7.0, 5.0, 4.0]), ([5, 5], 1000, [10.0]), ([5, 5], 5, [5.0, 5.0]), ([], 5, [])],
)
def test_buckets_are_full_when_they_have_their_size(sizes: list[float], full: float, found: list[float]) -> None:
    assert lab_10.filled(sizes, lambda held, _: held >= full) == found
    assert lab_10.filled(sizes, lambda held, _: held >= full, rest=False) == [size for size in found if size >= full]


def test_a_rule_for_buckets_knows_the_next_gradient() -> None:
    seen: list[tuple[float, float]] = []

    lab_10.filled([1, 2, 3], lambda held, following: bool(seen.append((held, following))))

    assert seen == [(1, 2), (3, 3), (6, 0)]


@pytest.mark.parametrize(
    ("times", "best"),
    [((40.0, 20.0, 22.0, 6.0, 3.0), 27.0), ((38.0, 16.0, 28.0, 7.0, 4.0), 29.0), ((30.0, 24.0, 8.0, 8.0, 0.0), 30.0)],
)
def test_no_more_is_hidden_than_there_is_to_hide_or_to_hide_behind(times: Any, best: float) -> None:
    assert lab_10.overlapped(*times) == best


@pytest.mark.parametrize(
    ("work", "threads"),
    [((1.0, 8.0, 0.55, 8), 4), ((0.0, 9.0, 1.0, 2), 2), ((0.2, 0.3, 0.5, 4), 1), ((1.0, 4.0, 0.0, 6), 6)],
)
def test_the_best_number_of_threads(work: Any, threads: int) -> None:
    serial, divisible, start, cores = work
    times = [serial + divisible / count + start * (count - 1) for count in range(1, cores + 1)]

    assert lab_11.best_threads(*work) == threads == 1 + times.index(min(times))
    assert lab_11._shortest_ms(*work) == pytest.approx(min(times))


@pytest.mark.parametrize(
    ("lengths", "fixed", "unset", "free"),
    [((5, 5), 1, 1, 1), ((5, 6, 5), 2, 2, 1), (tuple(range(8)), 8, 2, 1), (tuple(range(9)), 8, 2, 1)],
)
def test_versions_of_compiled_code(lengths: tuple[int, ...], fixed: int, unset: int, free: int) -> None:
    assert [lab_11.versions(lengths, dynamic) for dynamic in (False, None, True)] == [fixed, unset, free]


def test_the_memory_of_plain_attention() -> None:
    assert lab_11.plain_bytes(2, 3, 5, 7) == 4 * (2 * 2 * 3 * 5 * 5 + 2 * 3 * 5 * 7)


def test_the_highest_rate_within_a_bound() -> None:
    sizes = {1: 10.0, 2: 11.0, 4: 25.0}

    assert lab_09._most(sizes, 22.0, 2) == pytest.approx(2000 / 11)
    assert lab_09._most(sizes, 21.9, 2) == 100.0
    assert lab_09._most(sizes, 19.9, 2) == 0.0
    assert lab_09._most(sizes, 25.0, 1) == pytest.approx(2000 / 11)
    case = {"sizes": [[size, ms] for size, ms in sizes.items()], "bound": 22.0}
    assert (lab_09._best_size(case), lab_09._largest(case)) == (2, pytest.approx(2000 / 11))
    assert (lab_09._best_size(case | {"bound": 19.9}), lab_09._largest(case | {"bound": 19.9})) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], ""),
        ([[1.0, 2.0], [3.0, 4.00009]], ""),
        ([[1.0, 2.0], [3.0, 4.0002]], "numbers"),
        (None, "nothing"),
        ([1.0, 2.0], "type list"),
        ([[1.0, 2.0]], "shape 1 x 2"),
        ([[1.0], [3.0, 4.0]], "shape 2 x 1 or 2"),
        ([[1.0, "2"], [3.0, 4.0]], "values"),
        ([[1.0, 2.0]] * 2, "repeated"),
    ],
)
def test_what_is_wrong_with_a_product(returned: Any, says: str) -> None:
    assert lab_03._wrong_with(returned, [[1.0, 2.0], [3.0, 4.0]]) == says
