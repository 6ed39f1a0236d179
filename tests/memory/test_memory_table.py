"""Bytes alive, their peak and its owners, in recordings made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.memory.allocations import Watched
from perfnb.memory.table import (
    INSTANTS,
    LARGEST,
    MemorySummary,
    _largest,
    fullest,
    memory_summary,
    memory_table,
)
from perfnb.recording.schema import CATEGORIES
from tests.attribution.test_attribution import training_step
from tests.recordings import ByHand
from tests.watched_steps import C, random_blocks, step_with_memory, watch


def summary_of(hand: ByHand, samples: int | None = None, **meta: Any) -> MemorySummary:
    watched = watch(hand, **meta)
    summary = memory_summary(watched, memory_table(watched), samples)
    assert summary is not None
    return summary


def test_every_change_is_an_instant_with_all_that_is_alive() -> None:
    table = memory_table(watch(step_with_memory()))

    assert (table["t_ms"] * 1000).round().tolist() == [
        *(0, 130, 250, 420, 512, 515, 520, 620, 660, 700, 960, 1000),
    ]
    assert table["total"].tolist() == [300, 600, 1100, 1104, 1304, 1777, 1304, 804, 904, 604, 600, 600]
    assert table["activations"].tolist() == [0, 300, 800, 804, 804, 804, 804, 304, 304, 4, 0, 0]
    assert table["gradients"].tolist() == [0, 0, 0, 0, 200, 200, 200, 200, 300, 300, 300, 300]
    assert (table["parameters"] == 300).all()
    assert table["temporaries"].tolist() == [0, 0, 0, 0, 0, 473, 0, 0, 0, 0, 0, 0]
    assert (table[list(CATEGORIES)].sum(axis=1) == table["total"]).all()
    assert set(table["device"]) == {"cpu"}
    assert table[["reserved", "process"]].isna().all(axis=None)


def test_the_process_is_shown_from_the_first_reading_on_and_on_the_cpu_alone() -> None:
    hand = step_with_memory().block(C + 300, None, 1, 50, "cuda:1")
    hand.process(C + 250, 9000).process(C + 514, 9500).process(C + 700, 9400)

    table = memory_table(watch(hand))

    cpu = table[table["device"] == "cpu"]
    assert cpu["process"].astype(object).where(cpu["process"].notna(), None).tolist() == [
        *[None, None, 9000, 9000, 9000, 9500, 9500, 9500, 9500, 9400, 9400, 9400],
    ]
    assert table.loc[table["device"] == "cuda:1", "process"].isna().all()
    assert table.loc[table["device"] == "cuda:1", "total"].tolist() == [0, 50, 50]
    summary = summary_of(hand)
    assert (summary.device, summary.process_peak_bytes) == ("cpu", 9500)
    assert summary_of(step_with_memory()).process_peak_bytes is None


def test_what_the_allocator_gave_out_and_nobody_owns_is_other() -> None:
    hand = training_step(2).alloc(1900, 1, 100, "cuda:0", allocated=1100, reserved=2000)
    hand.alloc(C + 200, 2, 400, "cuda:0", allocated=1500, reserved=2000)
    hand.alloc(C + 300, 3, 700, "cuda:0", allocated=2200, reserved=4000)
    hand.alloc(C + 800, 3, -700, "cuda:0", allocated=1500, reserved=4000)
    statistics = {"cuda:0": {"retries": 3, "ooms": 1, "largest_free_bytes": 99}}

    summary = summary_of(hand, allocator=statistics)

    assert summary.timeline["total"].tolist() == [1100, 1500, 2200, 1500, 1500]
    assert summary.timeline["other"].tolist() == [1100] * 5  # 1,000 of them made before all that was watched
    assert summary.reserved_peak_bytes == 4000
    assert summary.fragmentation == pytest.approx(1 - 2200 / 4000)
    assert (summary.retries, summary.ooms, summary.largest_free_bytes) == (3, 1, 99)
    owners = summary.owners[summary.owners["category"] == "other"]
    assert owners[["bytes", "count"]].to_numpy().tolist() == [[1100, 1]]
    assert summary.owners["bytes"].sum() == summary.peak_bytes == 2200
    assert watch(hand).recording.memory is not None
    without = summary_of(step_with_memory())
    assert (without.fragmentation, without.reserved_peak_bytes, without.retries) == (None, None, None)


def test_the_peak_and_its_owners() -> None:
    summary = summary_of(step_with_memory().block(C + 505, C + 515, 17, 90))  # gone at the peak

    assert (summary.device, summary.peak_bytes) == ("cpu", 1777)
    assert summary.peak_ms == pytest.approx(0.515)
    assert summary.step_ms == pytest.approx(1.0)
    known = {"parameters": 300, "gradients": 200, "activations": 804, "temporaries": 473}
    assert summary.by_category == dict.fromkeys(CATEGORIES, 0) | known
    rows = summary.owners.assign(layer=summary.owners["layer"].fillna("-"))
    assert [tuple(row) for row in rows[["category", "layer", "bytes", "count"]].to_numpy()] == [
        *[("activations", "model.b", 500, 1), ("temporaries", "model.b", 473, 1), ("activations", "model.a", 300, 1)],
        *[("parameters", "model.b", 200, 1), ("gradients", "model.b", 200, 1), ("parameters", "model.a", 100, 1)],
        *[("activations", "-", 4, 1)],
    ]
    assert summary.owners["share"].tolist() == [size / 1777 for size in summary.owners["bytes"]]
    assert summary.incomplete is None


def test_a_failed_step_shows_the_failure_instead_of_the_peak() -> None:
    summary = summary_of(step_with_memory(), failure="RuntimeError: no memory")

    assert (summary.peak_ms, summary.peak_bytes) == (1.0, 600)
    assert summary.owners["bytes"].sum() == 600
    assert summary.incomplete == "RuntimeError: no memory"


def test_what_each_of_two_recorded_steps_left_behind_is_reported_with_its_owner() -> None:
    hand = training_step(2).block(130, None, 1, 300).block(C + 130, None, 2, 200)
    hand.block(250, None, 3, 50).block(C + 250, None, 4, 70)
    kept = summary_of(hand.block(130, None, 5, 9, "cuda:0").block(C + 130, None, 6, 9, "cuda:0"))
    nothing = summary_of(training_step(2).block(C + 130, None, 2, 200))
    single = summary_of(training_step(1).block(130, None, 1, 300))

    assert (kept.device, kept.kept_bytes, kept.kept_by) == ("cpu", 250, "model.a, aten::mm")
    assert (nothing.kept_bytes, nothing.kept_by) == (0, None)
    assert (single.kept_bytes, single.kept_by) == (None, None)


def test_phases_are_in_order_and_neighbours_of_one_phase_are_joined() -> None:
    phases = summary_of(step_with_memory()).phases

    assert [(row.phase, round(row.start_ms * 1000), round(row.end_ms * 1000)) for row in phases.itertuples()] == [
        *[("data", 0, 100), ("forward", 100, 400), ("loss", 400, 450), ("backward", 450, 760), ("other", 760, 800)],
        *[("optimizer", 800, 950), ("other", 950, 1000)],
    ]


def test_two_calls_one_after_the_other_are_one_stretch_of_forward() -> None:
    hand = ByHand().step(0, 1000)
    first, second = hand.layer("first"), hand.layer("second")
    hand.call(first, 100, 300).call(second, 300, 500).block(150, None, 1, 100)

    phases = summary_of(hand).phases

    forward = phases[phases["phase"] == "forward"]
    assert [(round(row.start_ms, 6), round(row.end_ms, 6)) for row in forward.itertuples()] == [(0.1, 0.5)]


def test_a_long_timeline_is_thinned_to_its_envelope() -> None:
    watched = watch(random_blocks(3000))
    table = memory_table(watched)
    summary = memory_summary(watched, table)

    assert summary is not None
    line = summary.timeline
    assert len(table) > 5000
    assert INSTANTS / 2 < len(line) <= INSTANTS
    assert line["total"].max() == summary.peak_bytes == table["total"].max()
    assert line["t_ms"].is_monotonic_increasing
    assert line["t_ms"].is_unique
    assert (line["t_ms"].iloc[0], line["t_ms"].iloc[-1]) == (0, 10)
    assert len(line.merge(table, on=[*line.columns[:1], *CATEGORIES, "total"])) == len(line)
    stretches = [np.floor(frame["t_ms"].astype(float) * 1e-1 * (INSTANTS - 3)) for frame in (table, line)]
    most = [frame["total"].groupby(stretch).max() for frame, stretch in zip((table, line), stretches, strict=True)]
    assert most[0].to_dict() == most[1].to_dict()


@pytest.mark.slow
def test_the_largest_at_every_instant_are_listed() -> None:
    watched = watch(random_blocks(3000))
    summary = memory_summary(watched, memory_table(watched))
    assert summary is not None

    listed = summary.largest
    assert len(listed) < 2000
    start, end = watched.blocks["start"].to_numpy() / 1e6, watched.blocks["end"].to_numpy() / 1e6
    for t_ms in summary.timeline["t_ms"].iloc[::7]:
        alive = watched.blocks.loc[(start <= t_ms) & (end > t_ms), "bytes"].nlargest(LARGEST)
        ours = listed.loc[(listed["start_ms"] <= t_ms) & (listed["end_ms"] > t_ms), "bytes"].nlargest(LARGEST)
        assert ours.tolist() == alive.tolist()


def test_lives_of_the_largest_are_clipped_to_the_step() -> None:
    largest = summary_of(step_with_memory().block(500, C + 200, 17, 50)).largest.set_index("bytes")

    lives = {size: (round(row["start_ms"], 6), round(row["end_ms"], 6)) for size, row in largest.iterrows()}
    assert (lives[50], lives[500], lives[473]) == ((0, 0.2), (0.25, 0.62), (0.515, 0.52))
    assert largest.loc[500, ["category", "layer", "phase", "op"]].tolist() == [
        *("activations", "model.b", "forward", "aten::mm"),
    ]
    gradient = largest[largest["category"] == "gradients"]
    assert gradient["end_ms"].tolist() == [1.0, 1.0]


def test_blocks_are_listed_if_they_are_among_the_eight_largest_at_any_instant() -> None:
    everywhere = [(size, 0, 1_000) for size in range(100, 107)]  # seven of them
    lives = [(9, 200, 400), (8, 300, 400), (7, 401, 499), (6, 400, 1_000), (5, -50, 100), (4, 500, 9_000), (3, 0, 101)]
    blocks = pd.DataFrame([*lives, *everywhere, (999, 0, 9)], columns=["bytes", "start", "end"])
    blocks = blocks.assign(**dict.fromkeys(("category", "layer", "phase", "op", "name"), ""), device="cpu")
    blocks.loc[len(blocks) - 1, "device"] = "cuda:0"

    found = _largest(Watched(None, None, blocks, 0, 1_000), "cpu", np.array([0, 100, 200, 300, 400, 500]) / 1e6)

    # At 300, 9 is larger than 8. Between 401 and 499 there is no instant. At 500, 6 is larger than 4.
    assert found["bytes"].tolist() == [*range(106, 99, -1), 9, 6, 5, 3]
    assert found[["start_ms", "end_ms"]].iloc[7:].to_numpy().tolist() == [
        *([0.0002, 0.0004], [0.0004, 0.001], [0, 0.0001], [0, 0.000101])
    ]


def test_of_many_instants_the_fullest_of_each_part_and_both_ends_are_kept() -> None:
    levels = np.array([0, 9, 1, 5, 0, 0, 0, 7, 0, 3])
    assert fullest(np.arange(10.0), levels, 5).tolist() == [0, 1, 3, 7, 9]
    assert fullest(np.arange(10.0), np.append(levels[:9], 90), 5).tolist() == [0, 1, 3, 9]
    assert fullest(100 + np.arange(10.0), levels, 4).tolist() == [0, 1, 7, 9]
    assert fullest(np.full(4, 3.0), levels[:4], 5).tolist() == [0, 1, 3]
