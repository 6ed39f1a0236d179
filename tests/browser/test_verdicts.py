"""The test of the input in a narrow page: nothing is cut off."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Browser

from perfnb.bench.input_figures import KINDS, InputBound
from perfnb.bench.input_view import input_bound_document
from perfnb.draw.as_html import document_html

pytestmark = pytest.mark.browser


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
