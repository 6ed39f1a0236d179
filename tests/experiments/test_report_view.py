"""A report on a change as text, HTML, Markdown and a page. Golden texts: ``pytest --overwrite-golden``."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from perfnb.bench.quality import Loss
from perfnb.draw import escape
from perfnb.experiments.decision import Quality
from perfnb.experiments.report_view import (
    report_html,
    report_line,
    report_markdown,
    report_page,
    report_text,
)
from tests.experiments.report_samples import EXAMPLES, experiment, figures
from tests.summaries import HOSTILE

DECISIONS = {
    **dict.fromkeys(EXAMPLES, "? inconclusive"),
    **dict.fromkeys(("accept", "judged"), "✓ accept"),
    **dict.fromkeys(("wrong", "worse", "worse than the baseline", "of another form", "over"), "✕ reject"),
    **dict.fromkeys(("slower", "no gain"), "✕ reject"),
}


def test_golden(golden: Callable[[str, str], None]) -> None:
    texts = (f"== {name}\n{report_text(example)}\n" for name, example in EXAMPLES.items())
    golden("report.txt", "\n".join(texts))
    golden("report.md", report_markdown(EXAMPLES["judged"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_decision_comes_first_everywhere(name: str) -> None:
    example, words = EXAMPLES[name], DECISIONS[name]
    assert report_text(example).startswith(f"perfnb · report · {words}\n")
    assert report_markdown(example).startswith(f"**{words}**: ")
    assert report_line(example).startswith(f"{words[2:]}: ")
    page = report_html(example)
    assert re.search(r'<strong class="pf-step">(.)', page)[1] == words[0]
    assert page.index(words) < page.index("<table>")


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    for line in report_text(EXAMPLES[name], width).splitlines():
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    quality = Quality((Loss(name or "x", 0.5, limit=0.1),), "function")
    example = figures(times=experiment(0.8, a=name, b=name), quality=quality, limits={name or "x": 0.1}, change=name)

    seen = _Seen(report_page(example).replace("<!DOCTYPE html>", ""))
    assert seen.tags <= {
        *("div", "style", "p", "strong", "br", "img", "table", "caption", "thead", "tbody", "tr", "th", "td"),
        *("html", "head", "meta", "title", "body", "main", "h1"),
    }
    assert not {key for key in seen.keys if key.startswith("on")}
    markdown = report_markdown(example)
    assert not re.search(r"<(?!/?[a-z]*\b(?:&|$))[a-z/]", markdown)
    assert "](" not in markdown
    assert "\x1b" not in report_text(example) + markdown
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 6, line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("[a](javascript:x)", r"\[a\](javascript:x)"),
        ("![a](b)", r"!\[a\](b)"),
        ("a|b `c` *d* _e_ ~f~ $g$", r"a\|b \`c\` \*d\* \_e\_ \~f\~ \$g\$"),
        ("<img src=x> &lt;", "&lt;img src=x> &amp;lt;"),
        ("https://e.org www.e.org a@e.org", "https&#58;//e.org www&#46;e.org a&#64;e.org"),
        ("\\", r"\\"),
        ("two\nlines", r"two\\nlines"),
    ],
)
def test_markdown_holds_no_markup_of_a_name(name: str, words: str) -> None:
    assert escape.markdown(name) == words


class _Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.keys: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.keys |= {key for key, _ in attrs}
