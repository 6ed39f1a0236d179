"""What the report of a job says first: the timed step, and the findings that could save most."""

from __future__ import annotations

import pandas as pd

from perfnb.ranks.findings import _late
from perfnb.ranks.host import LateWork
from perfnb.ranks.report_head import JobHead, found_html, found_text, head_lines

BAD = "<b>every micro-step</b>"


def finding(rank: int | None, name: str, ms: float) -> dict[str, object]:
    return {
        "rank": rank,
        "bottleneck": name,
        "evidence": f"evidence of rank {rank}",
        "advice": "less of it",
        "bound_ms": ms,
        "bound_share": ms / 100,
        "bound_bytes": None,
        "confidence": "medium",
    }


def told(timed: dict[int, float], traced_ms: float = 20.0, rows: list[dict[str, object]] | None = None) -> JobHead:
    table = pd.DataFrame(rows or [], columns=list(finding(0, "", 0.0)))
    return JobHead(timed, 200, 3, traced_ms, table.astype({"rank": "Int64"}))


def test_the_timed_step_of_the_slowest_rank_comes_first() -> None:
    assert head_lines(told({0: 18.7, 1: 19.6})) == [
        "Step 19.6 ms on rank 1, the slowest.",
        "That is the median of 200 timed steps. What follows is the mean of 3 traced steps.",
    ]
    assert head_lines(told({0: 18.7}))[0] == "Step 18.7 ms."
    assert head_lines(told({})) == []


def test_traced_steps_unlike_the_timed_ones_are_said() -> None:
    for traced_ms in (155.0, 2000.0):
        assert any("unlike timed ones" in line for line in head_lines(told({0: 705.0}, traced_ms)))
    assert not any("unlike" in line for line in head_lines(told({0: 705.0}, 800.0)))


def test_each_bottleneck_is_shown_once_with_the_ranks_that_have_it() -> None:
    rows = [finding(1, BAD, 24.8), finding(0, BAD, 23.4), finding(None, "straggler", 13.7)]
    shown = told({0: 92.0}, rows=rows)

    text, html = "\n".join(found_text(shown, 100)), found_html(shown)

    assert "1. <b>every micro-step</b> (ranks 0, 1; figures of rank 1): up to 24.8 ms (25 %), medium conf" in text
    assert "2. straggler: up to 13.7 ms" in text
    assert text.count("evidence of") == 2
    assert "evidence of rank 0" not in text
    assert BAD not in html
    assert "&lt;b&gt;every micro-step" in html


def test_more_findings_than_are_shown() -> None:
    rows = [finding(0, f"kind {number}", 50.0 - number) for number in range(6)]

    text = "\n".join(found_text(told({0: 92.0}, rows=rows), 100))

    assert "4 of 6" in text
    assert "kind 3" in text
    assert "kind 4" not in text
    assert found_text(told({0: 92.0}), 100) == []
    assert found_html(told({0: 92.0})) == ""


def test_a_straggler_that_is_late_in_no_phase_of_its_own() -> None:
    late = LateWork("other", 6.72, "", 0.0)

    assert _late(late, 1.0) == (
        " It is late in code outside model, loss and optimizer, which takes it 6.72 ms longer than the others."
    )
