"""The verdict and the findings as text, as HTML without scripts, and as data for the browser."""

from __future__ import annotations

import json
import re

import pytest

from perfnb.draw import escape
from perfnb.findings.tab import findings_html, findings_text, verdict_html, verdict_text
from perfnb.profile.report import report_data, summary_html, summary_text
from tests import summaries
from tests.findings import findings_samples as samples
from tests.pages import spaced


def test_the_report_s_first_words_are_the_verdict() -> None:
    lines = summary_text(samples.with_findings()).splitlines()

    assert lines[1:5] == [
        "Verdict Bound by waiting for data.",
        "Why     The step waits.",
        "Next    Use 2 workers.",
        lines[4],
    ]
    assert lines[4].startswith("step 12.3 ms")
    html = spaced(summary_html(samples.with_findings()))
    assert html.index("Bound by waiting for data.") < html.index("step 12.3 ms")


def test_findings_stand_in_their_order_with_what_each_could_save() -> None:
    text = "\n".join(findings_text(samples.three(), 100))

    assert re.findall(r"^\d\. .*", text, re.M) == [
        "1. input pipeline: up to 6.15 ms (50 %), high confidence",
        "2. memory bandwidth: up to 1.23 ms (10 %), low confidence",
        "3. activation memory: up to 3.00 MiB of memory, medium confidence",
    ]
    assert "   Try: Use 2 workers.\n   loader = DataLoader(dataset, num_workers=2)" in text
    html = findings_html(samples.three())
    assert html.count("<li>") == 3
    assert "layer model.features.1" in html
    assert "memory at 1.50 ms" in html


def test_memory_that_grows_is_not_said_to_be_saved() -> None:
    findings = samples.growing()

    assert "1. memory may grow: 2.50 MiB more in use after the step, low confidence" in findings_text(findings, 100)
    assert "memory may grow</strong>: 2.50 MiB more in use after the step" in spaced(findings_html(findings))
    assert report_data(samples.with_findings(findings))["findings"]["rows"][0]["grows"] is True
    assert [row["grows"] for row in report_data(samples.with_findings())["findings"]["rows"]] == [False] * 3


def test_advice_in_words_alone_leaves_no_empty_line_of_code() -> None:
    text, html = findings_text(samples.growing(), 100), findings_html(samples.growing())

    assert all(line.strip() for line in text)
    assert "<code>" not in html


@pytest.mark.parametrize(
    ("call", "words", "code"),
    [
        ({"magic": "cell"}, "run this in place of %%profile_step and its options:", "%%try_levers --levers compile"),
        ({"magic": "line"}, "run this in place of %profile_step and its options:", "%try_levers --levers compile"),
        (
            {"step": "train", "batches": "loader", "imported": True},
            "To try it:",
            'perfnb.try_levers(train, loader, levers=["compile"])',
        ),
        ({"step": "train", "batches": None}, "", 'import perfnb; perfnb.try_levers(train, levers=["compile"])'),
    ],
)
def test_a_static_report_says_how_to_try_it(call: object, words: str, code: str) -> None:
    findings = samples.with_remedy(call)

    said = " ".join(" ".join(findings_text(findings, 100)).split())
    assert f"{words} {code}".strip() in said
    assert f"<code>{escape.html(code)}</code>" in findings_html(findings)
    row = report_data(samples.with_findings(findings))["findings"]["rows"][0]
    assert (row["remedy"], row["trial"][1]) == ("compile", code)


@pytest.mark.parametrize(
    "call",
    [
        None,
        "cell",
        {},
        {"magic": "<b>"},
        {"step": None, "batches": "loader"},
        {"step": "train", "batches": "__import__('os').abort()"},
        {"step": "train()", "batches": None},
        {"step": ["train"], "batches": None},
    ],
)
def test_where_names_are_not_known_there_is_no_line(call: object) -> None:
    findings = samples.with_remedy(call)

    assert "try_levers" not in "".join((*findings_text(findings, 100), findings_html(findings)))
    assert report_data(samples.with_findings(findings))["findings"]["rows"][0]["trial"] == ["", ""]


def test_where_nothing_was_found_the_verdict_stands_alone() -> None:
    text = summary_text(samples.with_findings(samples.none()))

    assert "Nothing stands out" in text
    assert "Findings" not in text
    assert findings_html(samples.none()) == ""
    assert report_data(samples.with_findings(samples.none()))["findings"]["rows"] == []


def test_no_line_is_wider_than_asked_for() -> None:
    for lines in (findings_text(samples.three(), 80), verdict_text(samples.three(), 80)):
        assert max(map(escape.cells, lines)) <= 80


def test_links_name_rows_of_the_tables() -> None:
    data = report_data(samples.with_findings())
    layer, op, lost = data["findings"]["rows"][1]["links"]

    assert data["layers"]["label"][layer["at"]] == "1"
    assert data["layers"]["module"][layer["at"]] == "ReLU"
    assert data["ops"]["label"][op["at"]] == "aten::relu"
    assert lost["at"] == -1
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("name", summaries.HOSTILE)
def test_a_stranger_s_names_do_nothing(name: str) -> None:
    findings = samples.hostile(name)

    for html in (findings_html(findings), verdict_html(findings)):
        assert not re.search(r"<(script|img|svg|b>)", html)
        assert "\x1b" not in html
    text = "\n".join((*findings_text(findings, 100), *verdict_text(findings, 100)))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2028]", text)
