"""Find habits of wording that CONTRIBUTING.md advises against: `make style` runs this.

`python -m tests.habits` looks at the prose of the project: Markdown, and comments, docstrings and texts in Python. It
fails if a file has more of a habit than `habits.txt` records, so that every added line is free of them. Numbers there
may only go down: `python -m tests.habits --write` records what has become less, and refuses what has become more.
Code and names in backquotes do not count, nor do quotations in Markdown.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.project_files import ROOT, project_files

RECORDED = Path(__file__).with_suffix(".txt")

#: What to avoid, by name, and what to write instead.
HABITS = {
    "says so": (r"\b(?:say|says|said) (?:so|why|whether|what|which|who|where|how)\b", "name the reason, or the noun"),
    "what it does": (
        r"\bwhat (?:it|they|perfnb|(?:the|a|an|its|each) \w+) (?:do|does|did|has|have)\b",
        "name the noun",
    ),
    "told": (r"\btold\b", "reported, named"),
    "beside": (r"\bbeside\b", "next to"),
    "goes on": (r"\b(?:go|goes|going|went) on\b", "continues; a running loop"),
    "call of": (r"\b(?:a|an|the|each|one|every|its|in|by|at) calls? of\b", "call to"),
    "shows itself": (r"\bshows? (?:itself|themselves)\b", "is displayed"),
    "as it is": (r"\bas (?:it is|it was|they are|they were)\b", "unmodified, unchanged, the baseline"),
    "in which": (r"\b(?:in|for|with) which\b", "where, or two sentences"),
    "of the user's": (r"\bof the (?:user|reader|caller)'s\b", "the user's"),
    "a step": (r"\b(?:ms|s|bytes|KiB|MiB|GiB|µs) a (?:step|second|call|token)\b", "per step"),
    "stands in": (r"\bstands? (?:in|on|there|here|below|above|next)\b", "is"),
}
_HABITS = {name: re.compile(pattern) for name, (pattern, _) in HABITS.items()}
_ANY = re.compile("|".join(pattern for pattern, _ in HABITS.values()))

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|\(https?://[^)]*\)")
#: This file, and its test, name the habits.
_APART = ("tests/habits.py", "tests/test_habits.py")


class Offence(NamedTuple):
    """A habit in a line of a file."""

    file: str
    line: int
    habit: str
    words: str


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page, numbered, without code and quotations."""
    for pattern in (_FENCE, _COMMENT, _CODE, _QUOTED):
        text = pattern.sub(lambda found: re.sub(r"[^\n]+", "…", found[0]), text)
    yield from enumerate(text.splitlines(), start=1)


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments, docstrings and texts of a module, numbered, without code in backquotes."""
    inside = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in inside:
            words = _CODE.sub(lambda found: re.sub(r"[^\n]+", "…", found[0]), token.string)
            yield from enumerate(words.splitlines(), start=token.start[0])


def prose_of_notebook(text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a notebook's cells, with the number of the cell."""
    for number, cell in enumerate(json.loads(text)["cells"], start=1):
        if cell["cell_type"] == "markdown":
            yield from ((number, line) for _, line in prose_of_markdown("".join(cell["source"])))


PROSE = {".md": prose_of_markdown, ".py": prose_of_python, ".ipynb": prose_of_notebook}


def offences(file: str, text: str) -> Iterator[Offence]:
    """Yield the habits in a file."""
    if not _ANY.search(text):
        return  # to read a module as tokens takes long
    for line, words in PROSE[Path(file).suffix](text):
        for habit, pattern in _HABITS.items():
            yield from (Offence(file, line, habit, found[0]) for found in pattern.finditer(words))


def everywhere() -> list[Offence]:
    """Return the habits in all files under version control, and in those that would be."""
    files = {path.relative_to(ROOT).as_posix(): path for path in project_files() if path.suffix in PROSE}
    chosen = sorted(files.keys() - set(_APART))
    return [each for name in chosen for each in offences(name, files[name].read_text(encoding="utf-8"))]


def counted(found: list[Offence]) -> Counter[tuple[str, str]]:
    """Return how often each file has each habit."""
    return Counter((each.file, each.habit) for each in found)


def recorded(text: str) -> Counter[tuple[str, str]]:
    """Return what `habits.txt` records: a file, a habit and a number in each line, separated by tabs."""
    rows = (line.split("\t") for line in text.splitlines() if line)
    return Counter({(file, habit): int(number) for file, habit, number in rows})


def as_text(counts: Counter[tuple[str, str]]) -> str:
    """Return the content of `habits.txt`."""
    return "".join(f"{file}\t{habit}\t{number}\n" for (file, habit), number in sorted(counts.items()) if number)


def main(arguments: list[str]) -> int:
    """Report habits beyond those recorded; with ``--write``, record what has become less."""
    found = everywhere()
    now = counted(found)
    before = recorded(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else now
    more = now - before
    for each in found:
        if (each.file, each.habit) in more:
            print(f"{each.file}:{each.line}: “{each.words}”: write {HABITS[each.habit][1]}")
    if more:
        print("Habits of wording that CONTRIBUTING.md advises against, more than before in these files.")
        return 1
    if "--write" in arguments:
        RECORDED.write_text(as_text(now), encoding="utf-8")
        print(f"{RECORDED.name} now records {now.total():,} habits; before {before.total():,}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
