"""The documentation has four kinds of pages; how-to pages have pictures, and the README is short."""

from __future__ import annotations

import re

import pytest

from notebooks.pictures import FOLDER, PICTURES
from tests.accuracy.judging import BEGIN, END
from tests.docs.pages import DOCS, README, prose

KINDS = {
    caption: pages.split()
    for caption, pages in re.findall(
        r"```\{toctree\}\n:hidden:\n:caption: (\S+)\n\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL
    )
}
_IMAGE = re.compile(r"!\[([^\]]+)\]\(images/(\w+\.(?:png|svg))\)")
#: Largest size of one picture and of all of them, in bytes; words of the README.
ONE, ALL, README_WORDS = 60_000, 1_000_000, 950


def words(text: str) -> int:
    """Return how many words a page has, without code and the lines of tables."""
    return len(re.findall(r"[^\s|]*\w[^\s|]*", prose(text)))


def test_there_are_four_kinds() -> None:
    assert list(KINDS) == ["Tutorials", "How-to", "Reference", "Explanation"]


def without_figures(text: str) -> str:
    """Return a page without the table that `make accuracy` writes."""
    return text.partition(BEGIN)[0] + text.partition(END)[2]


def test_only_references_are_longer_than_1200_words() -> None:
    pages = [name for kind, names in KINDS.items() if kind != "Reference" for name in names]
    lengths = {name: len(without_figures((DOCS / f"{name}.md").read_text("utf-8")).split()) for name in pages}
    assert {name: words for name, words in lengths.items() if words > 1200} == {}


# What to do about messages has no view to show.
@pytest.mark.parametrize("page", [page for page in KINDS["How-to"] if page != "troubleshooting"])
def test_a_how_to_page_has_a_picture_and_describes_it(page: str) -> None:
    pictures = _IMAGE.findall((DOCS / f"{page}.md").read_text("utf-8"))

    assert pictures
    assert [name for described, name in pictures if len(described.split()) < 8] == []


def test_pictures_are_small_and_made_by_the_script() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}

    assert {name for name in sizes if name.endswith(".png")} == {f"{name}.png" for name in PICTURES}
    assert {name: size for name, size in sizes.items() if size > ONE} == {}
    assert sum(sizes.values()) < ALL


def test_the_readme_is_read_in_a_minute_or_two() -> None:
    assert words(README.read_text("utf-8")) <= README_WORDS
