"""The report as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from perfnb.views.assets import report_script
from perfnb.views.page import standalone_page
from perfnb.views.report_data import report_data
from tests.views import summaries


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


def test_the_script_is_small_and_never_writes_markup():
    script = report_script()
    assert len(script.encode()) < 150_000
    assert "</script" not in script.lower()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(", script)
