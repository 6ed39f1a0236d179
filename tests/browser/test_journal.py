"""A journal as a page: no column is cut off where there is little room."""

from __future__ import annotations

import pytest

from perfnb.draw.frame import static_page
from perfnb.experiments.journal_table import journal_history
from perfnb.experiments.journal_view import journal_html
from tests.browser.conftest import OpenPage
from tests.experiments.journal_entries import report_entry, timing_entry

WORDS = "gradient checkpointing in the decoder and half precision everywhere else"

pytestmark = pytest.mark.browser


@pytest.mark.smoke
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_800_pixels_shows_every_column(open_page: OpenPage, scheme: str) -> None:
    entries = {
        f"e{number}": report_entry(
            number, 10.0, 0.9, "inconclusive", name=f"step {number}", change=WORDS, hypothesis=WORDS
        )
        for number in range(2)
    } | {"e2": timing_entry(2, 12.0)}

    html = static_page("Journal", journal_html(journal_history(entries), {}, "experiments"))
    page = open_page(html, viewport={"width": 800, "height": 900}, color_scheme=scheme)

    room = page.evaluate(
        "(() => { const all = document.querySelector('.perfnb-static'); return [all.scrollWidth, all.clientWidth]; })()"
    )
    assert room[0] <= room[1]
    decision = page.locator("th", has_text="decision").bounding_box()
    assert decision is not None
    assert decision["x"] + decision["width"] <= 800
    assert page.locator("em", has_text=WORDS).count() == 2
    figure = page.locator("td[align=right]").first.bounding_box()
    assert figure is not None
    assert figure["height"] < 160
