"""Documents as Markdown for a pull request."""

from __future__ import annotations

import pytest

from perfnb.draw import escape
from perfnb.draw.as_markdown import document_markdown
from perfnb.draw.document import Code, Column, Document, Effect, Effects, Figure, Table, Verdict
from tests.draw.document_samples import everything
from tests.samples import HOSTILE


def test_markdown_has_the_answer_effects_tables_and_notes() -> None:
    columns = (Column("op"), Column("time", "ms"), Column("never", "ms"), Column("kind"))
    effects = Effects("Times", (Effect("a|b", 0.54, (0.51, 0.57), "faster"),))
    table = Table("Ops", columns, [("a|b", 1.5, None, "x"), ("c", None, None, "y")], details=["", "It waits."])
    verdict = Verdict("open", "Bound by a|b", next="Try c.")
    figures, notes = (Figure("step", 12.3, "ms"),), ("One.", "Two.")
    shown = Document("profile", "a|b", "cpu", verdict, figures, ("2 of 3",), (effects, table, Code("x")), notes)
    assert document_markdown(shown).split("\n\n") == [
        *("**? Bound by a\\|b**", "Try c.", "profile, a\\|b, cpu", "step 12.3 ms · 2 of 3"),
        "| candidate | ratio | verdict |\n| :--- | ---: | :--- |\n| a\\|b | 0.540 × \\[0.510, 0.570\\] | faster |",
        "| op | time | kind |\n| :--- | ---: | :--- |\n| a\\|b | 1.50 ms | x |\n| c | n/a | y |",
        *("c: It waits.", "- One.\n- Two.\n"),
    ]
    assert document_markdown(Document("empty")) == "empty\n"
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
