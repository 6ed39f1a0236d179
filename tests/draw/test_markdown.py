"""Documents as Markdown for a pull request."""

from __future__ import annotations

import pytest

from perfnb.draw import escape
from perfnb.draw.as_markdown import document_markdown
from tests.draw.document_samples import everything
from tests.samples import HOSTILE


def test_answer_effects_tables_and_notes_are_there() -> None:
    lines = document_markdown(everything("a|b")).splitlines()
    assert lines[0] == "**? Bound by a\\|b: up to 1.5 ms**"
    assert "| candidate | ratio | verdict |" in lines
    assert "| a\\|b | 0.540 × \\[0.510, 0.570\\] | faster |" in lines
    assert "| operator | calls | time | dtype |" in lines
    assert "- a\\|b" in lines
    assert document_markdown(everything(HOSTILE)).count("**") == 2


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
