"""The report as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest

from perfnb.diff.layers import diff_profiles
from perfnb.diff.view import diff_page
from perfnb.draw import escape
from perfnb.experiments.journal_table import journal_history
from perfnb.experiments.journal_view import journal_page
from perfnb.profile.display import standalone_page
from perfnb.profile.report import report_data, report_script
from tests import summaries
from tests.experiments.journal_entries import timing_entry
from tests.summaries import HOSTILE


def test_nothing_outside_the_file_is_asked_for():
    page = standalone_page(summaries.small_cnn())
    assert not re.search(
        r"<link|@import|url\((?!#)|\bsrc=(?!\"data:image/png;base64,)|\bimport\(|^import ", page, re.MULTILINE
    )
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_data_comes_back_whole():
    made = summaries.hostile()
    (data,) = re.findall(r'<script type="application/json" id="perfnb-data">(.*?)</script>', standalone_page(made))
    assert json.loads(data) == report_data(made, "page")


def test_only_the_report_s_own_script_may_run():
    page = standalone_page(summaries.hostile())
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in page
    kinds = re.findall(r'<script type="([^"]*)"', page)
    assert kinds == ["application/json", "application/octet-stream", "module"]  # the first two are data and never run
    assert len(re.findall(r"<script", page)) == 3


def test_the_page_says_what_it_is():
    page = standalone_page(summaries.small_cnn())
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<title>small CNN · perfnb</title>" in page
    assert '<meta name="viewport"' in page


@pytest.mark.parametrize(
    ("page", "title"),
    [
        (journal_page(journal_history({"e1": timing_entry(0, 10.0)}), {}, HOSTILE[0]), f"journal {HOSTILE[0]}"),
        (diff_page(diff_profiles(summaries.hostile(), replace(summaries.gan(), name=HOSTILE[0]))), HOSTILE[0]),
    ],
    ids=["journal", "two profiles"],
)
def test_a_page_without_scripts_asks_for_nothing_and_runs_nothing(page: str, title: str) -> None:
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.count("<title>") == 1
    (shown,) = re.findall("<title>(.*?)</title>", page)
    assert escape.html(title)[:40] in shown
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in page
    assert "<script" not in page
    assert "<img src=x" not in page
    assert not re.search(r"https?:|<link|@import|url\((?!#)", page)
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'<img [^>]*src="([^"]*)', page))
    assert page.endswith("</main>\n</body>\n</html>\n")


def test_the_script_is_small_and_never_writes_markup():
    script = report_script()
    assert len(script.encode()) < 240_000
    assert "</script" not in script.lower()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(", script)
