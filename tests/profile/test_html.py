"""The static twin reads well without scripts and without styles, and cannot be made to run anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from perfnb.draw import escape
from perfnb.profile.report import summary_html
from tests import summaries

TAGS = {
    "div",
    "style",
    "p",
    "strong",
    "br",
    "img",
    "i",
    "em",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "bdi",
    "ul",
    "li",
}


@pytest.mark.parametrize("make", [summaries.small_cnn, summaries.gan, summaries.hostile, summaries.unknown_figures])
def test_only_known_elements_and_attributes(make):
    seen = _Seen(summary_html(make()))
    assert {tag for tag, _ in seen.tags} <= TAGS
    assert {key for _, attributes in seen.tags for key in attributes} <= {
        "class", "style", "scope", "title", "colspan", "aria-hidden", "align", "role", "aria-label", "tabindex",
        "src", "alt", "width",
    }  # fmt: skip
    assert not seen.unclosed


def test_names_stand_in_the_page_as_text():
    text = "".join(_Seen(summary_html(summaries.hostile())).text)
    for name in summaries.HOSTILE:
        assert escape.plain(name, 60) in text


def test_tables_have_captions_and_heads():
    page = summary_html(summaries.small_cnn())
    assert page.count("<table>") == page.count("<caption>") == 2
    assert '<th scope="col"' in page
    assert '<th scope="row"' in page


def test_nesting_survives_without_styles():
    rows = re.findall(r"<tr>.*?</tr>", summary_html(summaries.small_cnn()))
    assert any("&nbsp;" * 8 + "<bdi" in row for row in rows)


def test_a_page_of_two_thousand_layers_is_small():
    assert len(summary_html(summaries.big()).encode()) < 60_000


def test_no_address_is_asked_for():
    assert not re.search(r"https?:|url\(|@import|src=(?!\"data:image/png;base64,)", summary_html(summaries.small_cnn()))


class _Seen(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.unclosed = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.unclosed.append(tag)

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        if self.unclosed[-1:] != ["style"]:
            self.text.append(data)
