"""The verdict and the findings as parts of a document."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from perfnb.draw.as_html import section_html
from perfnb.draw.as_text import document_text, section_text
from perfnb.draw.document import Link
from perfnb.findings.finding import Findings
from perfnb.findings.proposed_code import trial_line
from perfnb.findings.tab import document_verdict, finding_cards
from perfnb.profile.report import report_document
from tests.findings import findings_samples as samples


def test_the_report_s_first_words_are_the_verdict() -> None:
    lines = document_text(report_document(samples.with_findings())).splitlines()
    assert lines[1:4] == [
        "Bound by waiting for data (high confidence)",
        "Why   The step waits.",
        "Next  Use 2 workers.",
    ]


def test_findings_stand_in_their_order_with_what_each_costs() -> None:
    text = "\n".join(section_text(finding_cards(samples.three()), 100))
    assert [line for line in text.splitlines() if line[:1].isdigit()] == [
        "1. input pipeline: up to 6.15 ms (50 %), high confidence",
        "2. memory bandwidth: up to 1.23 ms (10 %), low confidence",
        "3. activation memory: up to 3.00 MiB of memory, medium confidence",
    ]
    assert "      loader = DataLoader(dataset, num_workers=2)" in text
    assert "Try: Use 2 workers." not in text, "the verdict gave that advice"
    assert "Try: Fuse them." in text
    html = section_html(finding_cards(samples.three()))
    assert html.count("<li>") == 3
    assert "layer model.features.1" in html
    assert "memory at 1.50 ms" in html


def test_the_finding_of_the_verdict_comes_first() -> None:
    three = samples.three()
    second = Findings(three.table, type(three.verdict)("Bound by memory.", "", "Fuse.", 1), three.step_ms)
    assert [card.title for card in finding_cards(second).cards][:2] == ["memory bandwidth", "input pipeline"]
    assert document_verdict(second).selects == "findings"


def test_a_card_leaves_out_what_the_verdict_says() -> None:
    three = samples.three()
    why, more = "Look. The step waits 6.15 ms for its batch.", "Use 2 workers. Or fuse them."
    said = replace(three, verdict=replace(three.verdict, why=why, next=more))
    cards = finding_cards(said).cards
    assert [(card.evidence, card.advice) for card in cards[:2]] == [("", ""), ("Layers wait for memory.", "Fuse them.")]
    verdict = document_verdict(replace(said, verdict=replace(said.verdict, finding=1)))
    assert (verdict.why, verdict.confidence) == (f"{why} Guessed.", "low")
    assert document_verdict(said).why == why


def test_memory_that_grows_is_not_said_to_be_saved() -> None:
    (card,) = finding_cards(samples.growing()).cards
    assert card.bound == "2.50 MiB more in use after the step"
    assert card.code == ""


CELL, LINE = (f"To try it, run this in place of {mark}profile_step and its options:" for mark in ("%%", "%"))


@pytest.mark.parametrize(
    ("call", "words", "code"),
    [
        ({"magic": "cell"}, CELL, "%%try_levers --levers compile"),
        ({"magic": "line"}, LINE, "%try_levers --levers compile"),
        ({"step": "s", "batches": "b", "imported": True}, "To try it:", 'perfnb.try_levers(s, b, levers=["compile"])'),
        ({"step": "s"}, "To try it:", 'import perfnb; perfnb.try_levers(s, levers=["compile"])'),
        (None, "", ""),
        ("cell", "", ""),
        ({}, "", ""),
        ({"magic": "<b>"}, "", ""),
        ({"step": None, "batches": "loader"}, "", ""),
        ({"step": "s", "batches": "__import__('os').abort()"}, "", ""),
        ({"step": "train()", "batches": None}, "", ""),
        ({"step": ["train"], "batches": None}, "", ""),
    ],
)
def test_a_report_says_how_to_try_a_lever_if_the_user_s_names_are_known(call: object, words: str, code: str) -> None:
    assert trial_line(call, "compile") == (words, code)
    memory = " --goal memory" if code.startswith("%") else ', goal="memory")'
    assert trial_line(call, "compile", saves_memory=True) == (words, code and code.rstrip(")") + memory)
    (card,) = finding_cards(samples.with_remedy(call)).cards
    assert (card.lever, card.trial) == ("compile", (words, code) if code else None)


@pytest.mark.parametrize(("ms", "size", "goal"), [(None, 5, " --goal memory"), (4.0, 5, ""), (None, None, "")])
def test_a_lever_is_tried_for_memory_if_only_memory_is_to_be_saved(
    ms: float | None, size: int | None, goal: str
) -> None:
    made = samples.with_remedy({"magic": "line"})
    bounds = {"bound_ms": pd.array([ms], dtype="Float64"), "bound_bytes": pd.array([size], dtype="Int64")}
    (card,) = finding_cards(replace(made, table=made.table.assign(**bounds))).cards
    assert card.trial == (LINE, f"%try_levers --levers compile{goal}")


def test_where_nothing_stands_out_the_verdict_stands_alone() -> None:
    document = report_document(samples.with_findings(samples.none()))
    assert document.verdict.state == "open"
    assert "Nothing stands out" in document.verdict.sentence
    assert "findings" not in {tab.kind for tab in document.tabs}


def test_links_name_the_rows_of_other_sections() -> None:
    first, second, third = finding_cards(samples.three()).cards
    assert list(first.links) == [Link("", "data", "phase data")]
    assert list(second.links)[:2] == [
        Link("layers", "model.features.1", "layer model.features.1"),
        Link("ops", "aten::relu", "op aten::relu"),
    ]
    assert list(third.links) == [Link("memory", "1.5", "memory at 1.50 ms")]
