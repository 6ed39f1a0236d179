"""Rows of steps may become fewer: sums, order, numbers and slowest steps stay exact, and chosen steps are real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.loop import record
from perfnb.loop.thinning import COLUMNS, Rows, joined, rows_of
from tests.loop.planted_runs import recorder_of, usual

AT = {name: place for place, name in enumerate(COLUMNS)}
TIMES = st.lists(st.tuples(*[st.integers(0, 10**12)] * 3), min_size=1, max_size=60)


def made(steps: list[tuple[int, int, int]]) -> Rows:
    wall, data, other = np.array(steps, dtype=np.int64).T
    begin = np.cumsum(wall + other) - wall
    return rows_of(np.arange(len(wall)), begin, wall, np.minimum(data, wall), other, np.full(len(wall), -1))


def check(before: Rows, after: Rows) -> None:
    for name in ("steps", "sum_wall_ns", "sum_data_ns", "sum_other_ns"):
        assert after[:, AT[name]].sum() == before[:, AT[name]].sum()
    assert after[:, AT["slowest_ns"]].max() == before[:, AT["slowest_ns"]].max()
    firsts = np.concatenate([[0], np.cumsum(after[:, AT["steps"]])])
    assert after[:, AT["step"]].tolist() == firsts[:-1].tolist()
    wall, data = before[:, AT["one_wall_ns"]], before[:, AT["one_data_ns"]]
    for row, first, end in zip(after, firsts, firsts[1:], strict=False):
        assert row[AT["sum_wall_ns"]] == wall[first:end].sum()
        assert row[AT["slowest_ns"]] == wall[first:end].max() == wall[row[AT["slowest_step"]]]
        assert (row[AT["one_wall_ns"]], row[AT["one_data_ns"]]) in set(
            zip(wall[first:end].tolist(), data[first:end].tolist(), strict=True)
        )


@settings(deadline=None)
@given(TIMES, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_joining_again_and_again_keeps_what_it_promises(
    steps: list[tuple[int, int, int]], sizes: list[int], seed: int
) -> None:
    before = after = made(steps)
    for size in sizes:
        after = joined(after, size, np.random.default_rng(seed))
        check(before, after)


def test_every_step_of_a_row_is_equally_likely_to_be_the_one_kept() -> None:
    rows = np.concatenate([made([(step, 0, 0) for step in range(1, 5)])] * 5000)
    pairs = joined(rows, 3, np.random.default_rng(1))  # rows of different weight are then joined again
    kept = joined(pairs[:6666], 2, np.random.default_rng(2))[:, AT["one_wall_ns"]]
    shares = np.bincount(kept, minlength=5)[1:] / len(kept)
    assert shares == pytest.approx(np.full(4, 0.25), abs=0.03)


def test_rows_are_joined_as_soon_as_they_are_as_many_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_ROWS", 8)
    monkeypatch.setattr(record, "_CHUNK", 4)
    strides = [recorder_of([10.0] * count).recorded().facts["stride"] for count in (7, 8, 15, 16)]
    assert strides == [1, 2, 2, 4]


def test_a_long_run_needs_bounded_memory_and_keeps_its_sums(clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_ROWS", 5000)
    monkeypatch.setattr(record, "_CHUNK", 512)
    wall = usual(40_000)
    wall[31_234] = 900.0
    recorder = recorder_of(wall, wall / 4, windows=[(10, 20), (20_000, 20_030)])
    found = recorder.recorded()
    assert sum(map(len, recorder._rows)) < 5000 + 512
    assert found.facts["stride"] == 8
    assert len(found.rows) < 5600
    own = np.ones(len(wall), dtype=bool)
    own[10:20] = own[20_000:20_030] = False
    ns = (wall * 1e6).astype(np.int64)
    assert found.rows[:, AT["steps"]].sum() == own.sum() == 40_000 - 40
    assert found.rows[:, AT["sum_wall_ns"]].sum() == ns[own].sum()
    assert found.windows[:, 1].tolist() == [10, 30]
    assert found.windows[:, 3].tolist() == [ns[10:20].sum(), ns[20_000:20_030].sum()]
    slowest = found.rows[found.rows[:, AT["slowest_ns"]].argmax()]
    assert slowest[AT["slowest_step"]] == 31_234
    assert (np.diff(found.rows[:, AT["begin_ns"]]) > 0).all()
    ones = found.rows[:, AT["one_wall_ns"]] / 1e6
    assert np.median(ones) == pytest.approx(np.median(wall), rel=0.005), "as all steps, not as means of rows"
    assert ones.std() == pytest.approx(usual(40_000).std(), rel=0.1)


def test_memory_readings_are_bounded(clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_READINGS", 64)
    found = recorder_of(usual(5000)).recorded()
    assert len(found.readings) <= 66
    assert (np.diff(found.readings[:, 0]) >= 0).all()
    assert found.readings[-1, 0] == found.facts["duration_ns"]
