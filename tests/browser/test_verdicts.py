"""The checks of the machine and the test of the input, in a narrow page: nothing is torn apart or cut off."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Browser

from perfnb.bench.input_figures import KINDS, InputBound
from perfnb.bench.input_view import input_bound_document
from perfnb.draw.as_html import document_html
from perfnb.system.system import COLUMNS
from perfnb.system.view import system_html

pytestmark = pytest.mark.browser


def test_a_line_ends_neither_in_a_name_nor_in_an_option(chromium: Browser) -> None:
    row = ("GPU persistence", "found " * 30, "expected " * 20, "attention", "why " * 40, "docker run --ipc=host " * 9)
    page = chromium.new_page(viewport={"width": 700, "height": 400})
    page.set_content(system_html(pd.DataFrame([row], columns=list(COLUMNS))))
    pieces = page.evaluate("() => [...document.querySelectorAll('td span')].map(e => e.getClientRects().length)")
    heights = page.evaluate(
        "() => ['table strong div', 'td span'].map(s => document.querySelector(s).getBoundingClientRect().height)"
    )
    page.close()

    assert pieces == [1] * 9
    assert heights[0] < 2.9 * heights[1]  # two lines, a word each


@pytest.mark.smoke
def test_the_times_of_the_input_test_are_in_sight(chromium: Browser) -> None:
    rounds = {kind: [34.8 + place / 100 for place in range(15)] for kind in KINDS}
    page = chromium.new_page(viewport={"width": 700, "height": 600})
    page.set_content(document_html(input_bound_document(InputBound(rounds, 4, 99))))
    cells = page.evaluate(
        "() => [...document.querySelectorAll('td')].map(e => [e.innerText, e.getBoundingClientRect().right])"
    )
    page.close()

    times = [right for text, right in cells if "ms [" in text]
    assert len(times) == 5
    assert max(times) < 700
