"""Ranks of CPU jobs: collectives that the host runs are matched, and the straggler's late work is reported."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import perfnb
from perfnb.draw.document import Bars, Heat, Picture
from perfnb.findings.finding import found_by
from perfnb.ranks.findings import RULES, RanksFacts
from perfnb.ranks.ranks import Ranks
from tests.attribution.test_waits_for_collectives import JOB, ddp_step
from tests.ranks.rank_traces import rank_trace
from tests.written_traces import Written


@cache
def job(late: tuple[float, ...], clock: float = 0.0) -> Ranks:
    """Return ranks that sleep `late` µs in forward, so that the others wait for the latest at the end of backward."""
    with TemporaryDirectory() as folder:
        paths = []
        for rank, sleep in enumerate(late):
            trace = Written(distributedInfo=JOB | {"rank": rank, "world_size": len(late)})
            for number in range(3):
                begin = 10_000.0 * number + clock * rank
                ddp_step(trace, number, begin, sleep, max(late) - sleep, end=1000 + max(late))
            paths.append(trace.write(Path(folder) / f"rank{rank}.json"))
        ranks = perfnb.load(paths)
    assert isinstance(ranks, Ranks)
    return ranks


def test_the_sleep_of_a_rank_is_the_others_waiting_and_its_late_phase() -> None:
    ranks = job((0, 2000), 2_500_000.25)

    assert ranks.straggler == 1
    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 2_500_000.25])
    assert ranks.times["waiting_ms"].tolist() == pytest.approx([2.025] * 3 + [0] * 3)
    assert ranks.times["exposed_ms"].tolist() == pytest.approx([2.255] * 3 + [0.255] * 3)
    assert ranks.times["wall_ms"].tolist() == [3.0] * 6
    assert (ranks.phases.groupby("rank")["ms"].sum()).tolist() == pytest.approx([3.0, 3.0])
    late = ranks._summary.late
    assert late is not None
    assert (late.phase, late.more_ms) == ("forward", pytest.approx(2.0, rel=1e-9))
    (one,) = ranks.findings[ranks.findings["bottleneck"] == "straggler"].itertuples()
    assert "It is late in forward, which takes 2.00 ms longer than on the others" in str(one.evidence)


def test_waiting_for_the_last_rank_is_distinguished_from_the_transfer() -> None:
    table = job((0, 2000)).collectives

    first = table[(table["rank"] == 0) & (table["bucket"] == 0)].iloc[0]
    assert first["waiting_ms"] == pytest.approx(2.0)
    assert first["transfer_ms"] == pytest.approx(0.175)
    assert first["bytes_per_s"] == pytest.approx(400 / 175e-6)
    assert (table.loc[table["rank"] == 1, "waiting_ms"] == 0).all()


def test_equal_ranks_have_no_straggler_and_no_late_work() -> None:
    ranks = job((500, 500))

    assert ranks.straggler is None
    assert ranks._summary.late is None


def test_one_step_on_one_clock_and_who_waited_when() -> None:
    bars, heat, lanes, *_ = job((0, 2000, 100))._document().sections

    assert isinstance(bars, Bars)
    assert [sum(part.value for part in bar.parts) for bar in bars.bars] == pytest.approx([3.0] * 3), "its phases"
    assert isinstance(heat, Heat)
    assert heat.values[0][1] == pytest.approx(2.025)
    assert isinstance(lanes, Picture)
    drawn, text = lanes.html(), lanes.text(100)  # type: ignore[misc]
    assert drawn.count("<circle") == 2  # the last arrival at each of two collectives
    assert "allreduce: rank 1 arrived last, 2.00 ms after the first" in drawn
    assert lanes.title.startswith("Step 1 of all ranks on a common clock")
    assert "rank 0 arrived first after 0.275 ms, and rank 1 last after 2.27 ms" in " ".join(text)


@pytest.mark.deep
def test_many_ranks_of_gpus_are_drawn_in_a_page_of_moderate_size(tmp_path: Path) -> None:
    paths = [rank_trace(10 + rank % 7, steps=2).write(tmp_path / f"rank{rank}.json") for rank in range(64)]

    page = perfnb.load(paths).to_html(tmp_path / "page.html").read_text("utf-8")

    assert page.count("<svg") == 1
    assert len(page) < 600_000
    assert page.count('text-anchor="end"') == 64


def test_waiting_for_a_straggler_is_in_one_bound_only() -> None:
    found = job((0, 2000)).findings

    late = found[found["bottleneck"] == "straggler"].iloc[0]
    sent = found[(found["bottleneck"] == "collectives") & (found["rank"] == 0)].iloc[0]
    assert late["bound_ms"] == pytest.approx(2.025)
    transfers_ms = 0.255  # what rank 1, which waits for none, is seen to wait; rank 0 hides a part of them
    assert transfers_ms <= sent["bound_ms"] <= 1.5 * transfers_ms
    assert sent["bound_share"] == pytest.approx(sent["bound_ms"] / 3.0)
    assert "it waits 1.92 ms in them for rank 1, which is part of the finding straggler" in sent["evidence"]
    assert found.iloc[0]["bottleneck"] == "straggler"


def test_waiting_that_uneven_input_explains_is_not_a_second_finding() -> None:
    ranks = job.__wrapped__((0, 2000))
    for profile, samples in zip(ranks, (8, 16), strict=True):
        profile._recording.steps["samples"] = samples

    found = ranks.findings

    (uneven,) = found[found["bottleneck"] == "unbalanced input"].itertuples()
    assert uneven.bound_ms == pytest.approx(2.025)
    assert "Rank 1 gets 16 samples per step, but rank 0 only 8" in uneven.evidence
    assert "straggler" not in set(found["bottleneck"])
    sent = found[(found["bottleneck"] == "collectives") & (found["rank"] == 0)].iloc[0]
    assert "for rank 1, which is part of the finding unbalanced input" in sent["evidence"]


def test_bounds_of_a_job_refer_to_its_timed_step() -> None:
    ranks = job((0, 2000))

    (late,) = found_by(RULES, RanksFacts(ranks._summary, None, 1.5), 1.5)  # traced steps took 3 ms

    assert late.bound_ms == pytest.approx(2.025 / 2)
    assert "The other ranks wait 1.01 ms per step for it (68 % of the step)" in late.evidence
    assert "1.00 ms longer than on the others" in late.evidence
