"""The check of wording in `make style` sees prose and nothing else, and lets nothing be added."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import habits

CONTRIBUTING = (habits.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def found(file: str, text: str) -> list[tuple[int, str]]:
    return [(each.line, each.habit) for each in habits.offences(file, text)]


@pytest.mark.parametrize(
    ("words", "habit"),
    [
        ("the report says so", "says so"),
        ("The notes say why.", "says so"),
        ("what a layer does", "what it does"),
        ("it is told in a note", "told"),
        ("beside the loop", "beside"),
        ("a loop that goes on", "goes on"),
        ("a call of the model", "call of"),
        ("a profile shows itself", "shows itself"),
        ("the step as it is", "as it is"),
        ("a pass in which nothing runs", "in which"),
        ("an error of the user's", "of the user's"),
        ("12 ms a step", "a step"),
        ("its unit stands in the name", "stands in"),
    ],
)
def test_a_habit_is_found(words: str, habit: str) -> None:
    assert found("page.md", f"# A page\n\nHere: {words}.") == [(3, habit)]
    assert found("module.py", f'"""A module.\n\n{words}\n"""') == [(3, habit)]


def test_each_habit_has_an_example_above() -> None:
    (mark,) = test_a_habit_is_found.pytestmark  # type: ignore[attr-defined]
    assert [habit for _, habit in mark.args[1] if habit != "says so"] == [
        name for name in habits.HABITS if name != "says so"
    ]


def test_code_quotations_and_other_words_are_not_prose() -> None:
    page = 'No: "told", `it says so`, besides.\n\n```python\ntold = 1\n```\n\n<!-- told -->\n[x](https://a.org/told)\n'
    assert found("page.md", page) == []
    assert found("module.py", "told = beside = 1  # `told`\n") == []
    assert found("module.py", "x = 1  # told\n") == [(1, "told")]
    assert found("module.py", 'raise ValueError(f"{x} told")\n') == [(1, "told")]


def test_a_notebook_has_prose_in_its_markdown() -> None:
    cells = [("code", "told = 1"), ("markdown", "A note\nis told.")]
    text = json.dumps({"cells": [{"cell_type": kind, "source": [source]} for kind, source in cells]})

    assert found("book.ipynb", text) == [(2, "told")]


def test_counts_may_only_go_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"a.md": "told told", "b.md": "beside"}
    monkeypatch.setattr(habits, "RECORDED", tmp_path / "habits.txt")
    monkeypatch.setattr(
        habits, "everywhere", lambda: [each for name, text in texts.items() for each in habits.offences(name, text)]
    )

    assert habits.main(["--write"]) == 0
    assert habits.recorded(habits.RECORDED.read_text()) == Counter({("a.md", "told"): 2, ("b.md", "beside"): 1})
    assert habits.main([]) == 0

    texts["b.md"] = "beside beside"
    assert habits.main(["--write"]) == 1
    assert "b.md:1: “beside”: write next to" in capsys.readouterr().out

    texts["b.md"], texts["a.md"] = "told", "told"
    assert habits.main([]) == 1  # one less in one file allows none in another
    texts["b.md"] = ""
    assert habits.main(["--write"]) == 0
    assert habits.RECORDED.read_text() == "a.md\ttold\t1\n"
    texts["a.md"] = "told told"
    assert habits.main([]) == 1


def test_the_style_guide_has_its_pairs() -> None:
    section = CONTRIBUTING.split("\n## Style\n")[1].split("\n## ")[0]
    pairs = re.findall(r"^\| (\".+\") \| (.+) \| .+ \|$", section, re.MULTILINE)

    assert len(pairs) == 20
    assert [each for _, after in pairs for each in habits.offences("page.md", after)] == []
