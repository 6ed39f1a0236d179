"""What the report of a job says first: the timed step, and the findings that could save most."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.draw.document import Document
from perfnb.findings.finding import Conclusion, Finding, Findings, Row
from perfnb.ranks.findings import RanksFacts, _late, job_report, without_waiting
from perfnb.ranks.host import LateWork
from perfnb.ranks.view import JobSteps, ranks_document
from tests.ranks.rank_traces import rank_trace, written


def finding(rank: int | None, name: str, ms: float, confidence: str = "medium") -> dict[str, object]:
    return {
        "rank": rank,
        "bottleneck": name,
        "evidence": f"evidence of rank {rank}",
        "advice": "less of it",
        "bound_ms": ms,
        "bound_share": ms / 100,
        "bound_bytes": None,
        "confidence": confidence,
        "why": "",
        "blind": "",
        "code": "",
        "remedy": "",
        "rows": [],
    }


def reported(*rows: dict[str, object], step_ms: float = 100.0) -> Findings:
    table = pd.DataFrame(rows, columns=list(finding(0, "", 0.0))).astype({"rank": "Int64"})
    return job_report(RanksFacts(None, None, step_ms), table)  # type: ignore[arg-type]


def test_each_bottleneck_is_there_once_with_the_ranks_that_have_it() -> None:
    found = reported(finding(1, "collectives", 24.8), finding(0, "collectives", 23.4), finding(2, "compute", 13.7))

    assert found.table["bottleneck"].tolist() == ["collectives (ranks 0, 1; figures of rank 1)", "compute (rank 2)"]
    assert found.table["evidence"].tolist() == ["evidence of rank 1", "evidence of rank 2"]
    assert found.verdict.verdict == (
        "Communication-bound: overlapping it with computation, or sending less, could save up to 24.8 ms of 100 ms per "
        "step, 25 %"
    )


def test_a_surer_finding_that_is_not_much_smaller_is_the_verdict() -> None:
    rows = finding(0, "dispatch overhead", 50.0, "low"), finding(0, "compute", 30.0), finding(0, "optimizer", 20.0)

    assert reported(*rows).verdict.finding == 1
    assert reported(rows[0], rows[2] | {"bound_ms": 10.0}).verdict.finding == 0


def test_a_finding_that_saves_next_to_nothing_is_not_the_verdict() -> None:
    assert reported(finding(0, "compute", 1.9)).verdict.finding is None
    assert reported().verdict.finding is None


def test_the_timed_step_of_the_slowest_rank_comes_first_and_unlike_traced_ones_are_noted(tmp_path: Path) -> None:
    summary = perfnb.load(written(tmp_path, [rank_trace(0), rank_trace(0)]))._summary
    nothing = Findings(reported().table, Conclusion("", "", ""), 1.0)

    def document(timed: dict[int, float], traced_ms: float) -> Document:
        return ranks_document(summary, JobSteps(timed, 200, 3, traced_ms), nothing)

    step, traced = document({0: 18.7, 1: 19.6}, 20.0).figures
    assert (step.value, step.basis) == (19.6, "median of 200 timed steps, rank 1, the slowest")
    assert (traced.label, traced.basis) == ("traced step", "mean of 3 steps, as below")
    assert document({1: 19.6}, 20.0).figures[0].basis == "median of 200 timed steps"
    assert [figure.basis for figure in document({}, 20.0).figures] == ["as traced, mean of 3 steps"]
    for traced_ms, unlike in ((199.0, True), (200.0, False), (450.0, False), (451.0, True)):
        assert any("unlike timed steps" in note for note in document({0: 9.0, 1: 300.0}, traced_ms).notes) == unlike


def test_a_straggler_that_is_late_in_no_phase_of_its_own() -> None:
    late = LateWork("other", 6.72, "", 0.0)

    assert _late(late, 1.0) == (
        " It is late in code outside the model, loss and optimizer, which takes 6.72 ms longer than on the others."
    )


LATE = Finding("", 20.0, "", "medium", "", "", rows=(Row("rank", "1"),), bottleneck="straggler")


def calls(*rows: tuple[int, int, int, int | None]) -> pd.DataFrame:
    """Return collectives with these starts, ends, exposed parts and waits, in nanoseconds."""
    return pd.DataFrame(rows, columns=["start_ns", "end_ns", "exposed_ns", "waiting_ns"]).astype("Int64")


def test_a_finding_about_communication_keeps_the_share_that_is_transfer() -> None:
    names = "collectives", "small buckets", "every micro-step", "compute"
    found = reported(*(finding(None, name, 22.0) for name in names), finding(None, "optimizer", 1.0)).table

    def kept(*rows: tuple[int, int, int, int | None], rank: int = 0) -> dict[str, float]:
        table = without_waiting(found, calls(*rows), rank, LATE)
        assert (table["bound_share"] * 100).tolist() == pytest.approx(table["bound_ms"].tolist())
        assert table.loc[table["bound_ms"] == 22.0, "evidence"].eq("evidence of rank None").all()
        bounds = dict(zip(table["bottleneck"], table["bound_ms"], strict=True))
        assert bounds.pop("optimizer") == 1.0  # it has nothing to do with waiting
        return bounds

    assert kept((0, 10, 10, 10), rank=1) == dict.fromkeys(names, 22.0)  # the late rank itself does not wait
    assert kept((0, 10, 10, 0), (20, 30, 10, None)) == dict.fromkeys(names, 22.0)
    assert kept((0, 10, 10, 4), (20, 30, 10, 5)) == {**dict.fromkeys(names, pytest.approx(12.1)), "compute": 22.0}
    # All of the wait is exposed, and the transfer of another collective is hidden behind computation.
    assert kept((0, 10, 10, 10), (20, 120, 0, 0)) == {"every micro-step": pytest.approx(20.0), "compute": 22.0}
    # At most the exposed part of a collective is transfer, and what is hidden may have been the wait.
    assert kept((0, 100, 30, 50), (200, 220, 20, 20))["collectives"] == pytest.approx(22.0 * 30 / 50)


def test_a_finding_without_its_waits_says_which_finding_covers_them() -> None:
    found = reported(finding(None, "collectives", 20.0), finding(None, "small buckets", 10.0)).table
    table = without_waiting(found, calls((0, 10, 10, 4)), 0, LATE)
    assert table["evidence"].tolist() == [
        "For 12.0 ms (12 % of the step), the rank only waits for the transfers of collectives. In addition, it waits "
        "8.00 ms in them for rank 1, which is part of the finding straggler.",
        "evidence of rank None The bound does not include the wait for rank 1, which is part of the finding straggler.",
    ]
    assert table["why"].tolist() == ["It may not be possible to hide all transfers behind computation.", ""]
