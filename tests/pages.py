"""What a page without scripts may hold."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

from perfnb.draw.frame import live_page

TAGS = {
    "p", "strong", "br", "i", "em", "img", "table", "caption", "thead", "tbody", "tr", "th", "td", "bdi",
}  # fmt: skip
ATTRIBUTES = {"class", "style", "scope", "title", "align", "alt", "src", "width", "role", "aria-label", "tabindex"}


def static_page(title: str, body: str) -> str:
    """HTML without scripts as a page of its own."""
    return live_page(title, "", body, "", "")


def spaced(page: str) -> str:
    """The page with spaces of one kind only."""
    return page.replace("\u00a0", " ")


class Seen(HTMLParser):
    """The elements and the text of a page; an element that is not closed is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Seen:
    """Only known elements and attributes, and no address but a picture's own bytes."""
    seen = Seen(page)
    assert {tag for tag, _ in seen.tags} <= TAGS
    assert {key for _, attributes in seen.tags for key in attributes} <= ATTRIBUTES
    for _, attributes in seen.tags:
        assert re.match("data:image/png;base64,", attributes.get("src") or "data:image/png;base64,")
    assert not re.search(r"https?:|url\(|@import", page)
    return seen


def picture_bytes(page: str) -> bytes:
    """The page's one picture."""
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return base64.b64decode(data)
