"""Build the labs' notebooks from the files in `source`, both for students and with solutions.

Run ``python -m notebooks.labs.build`` from the project's folder whenever a source has changed. A test fails until you
do.

A source is a Python file with cells. A Markdown cell starts with ``# %% [markdown]``, followed by comment lines, and a
code cell starts with ``# %%``. There are three special kinds of code cells, from which nbgrader's metadata is built:

- ``# %% answer 2.3`` is the cell for an answer.
- ``# %% check 2.3 points=2`` is the cell that checks it.
- ``# %% progress`` is the last cell. In the solutions, it requires that every check has passed.

In code, a line such as ``# %load_ext perfnb`` is a magic. The lines between ``### BEGIN SOLUTION`` and ``### END
SOLUTION``, and between ``### BEGIN HIDDEN TESTS`` and its end, are left out for students.

Besides the answer, a check needs objects from earlier cells, which may have failed. The cell that imports `labs`
therefore defines a placeholder for each of these names, which allows the check to name the cell to run first.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from notebooks.publish import as_file, repository, with_colab_cell

HERE = Path(__file__).parent
SOURCE = HERE / "source"
STUB = "pass  # YOUR CODE HERE"

DELIMITER = re.compile(
    r"^# %%(?: (?P<what>\[markdown\]|answer|check|progress))?(?: (?P<number>\d+\.\d+))?(?: points=(?P<points>\d+))?$"
)
SOLUTION = re.compile(r"^(?P<indent> *)### BEGIN SOLUTION\n.*?^ *### END SOLUTION$", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"^ *### BEGIN HIDDEN TESTS\n.*?^ *### END HIDDEN TESTS\n?", re.DOTALL | re.MULTILINE)
MAGIC_LINE = re.compile(r"^%.*", re.MULTILINE)
IMPORTS_LABS = re.compile(r"^from perfnb import labs$", re.MULTILINE)
MAGIC = re.compile(r"^# (?=%%?[a-z])", re.MULTILINE)


def cells(text: str, lab: str) -> Iterator[dict[str, Any]]:
    """Return the cells of a source, including the solutions."""
    what: re.Match[str] | None = None
    lines: list[str] = []
    places: dict[str, int] = {}
    for line in [*text.splitlines(), "# %%"]:
        found = DELIMITER.match(line)
        if line.startswith("# %% ") and not found:
            raise ValueError(f"{lab}: not a cell: {line}")
        if not found:
            lines.append(line)
            continue
        if what is not None:
            kind = what["what"] or "code"
            places[kind] = places.get(kind, 0) + 1
            place = what["number"].replace(".", "-") if what["number"] else f"{places[kind]:02}"
            named = kind if kind == "progress" else f"{kind}-{place}"
            yield _cell(what, "\n".join(lines).strip("\n"), f"{lab}-{named}".replace("[markdown]", "text"))
        what, lines = found, []


def _cell(what: re.Match[str], text: str, name: str) -> dict[str, Any]:
    if what["what"] == "[markdown]":
        source = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}
    answer, last = what["what"] == "answer", what["what"] == "progress"
    grade = last or what["what"] == "check"
    metadata: dict[str, Any] = {}
    if answer or grade:
        facts: dict[str, Any] = {"cell_type": "code", "grade": grade, "grade_id": name, "locked": grade}
        # The last one bears no points. It is nbgrader's so that nbgrader leaves out for students what it demands.
        facts |= {"points": 0 if last else int(what["points"] or 1)} if grade else {}
        metadata["nbgrader"] = facts | {"schema_version": 3, "solution": answer, "task": False}
    source = MAGIC.sub("", text)
    return {"cell_type": "code", "execution_count": None, "id": name, "metadata": metadata, "outputs": [],
            "source": source}  # fmt: skip


def for_students(source: str) -> str:
    """Return code without its solution and hidden tests."""
    return HIDDEN.sub("", SOLUTION.sub(lambda found: textwrap.indent(STUB, found["indent"]), source)).rstrip("\n")


def placeholders(every: list[dict[str, Any]]) -> str:
    """Return lines that bind placeholders for the objects that cells need until the cells that create them have run.

    Checks need objects from ordinary cells, and ordinary cells need objects from answers.
    """
    needed: dict[str, None] = {}
    made: dict[str, str] = {}
    answered: dict[str, str] = {}
    there, section = set(), ""
    for cell in every:
        if cell["cell_type"] == "markdown":
            section = (re.findall(r"^## (.*)", cell["source"], re.MULTILINE) or [section])[-1]
            continue
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("points"):
            needed |= dict.fromkeys(name for name in _read(cell["source"]) if name not in answered)
        elif marks.get("solution"):
            answered |= {name: _from_cell(section, line) for name, line in _bound(for_students(cell["source"]))}
        elif IMPORTS_LABS.search(cell["source"]):
            there |= {name for name, _ in _bound(cell["source"])}
        elif not marks:
            for name in _read(cell["source"]):
                if name in answered:
                    needed[name] = made[name] = answered[name]
            for name, line in _bound(cell["source"]):
                made.setdefault(name, _from_cell(section, line))
    lines = [f"{name} = {made[name]}" for name in needed if name in made and name not in there]
    return "\n".join(["# Placeholders: a check that needs one names the cell below to run first.", *lines])


def _from_cell(section: str, line: str) -> str:
    return f"labs.from_cell({_quoted(section)}, {_quoted(line)})"


def _read(source: str) -> list[str]:
    """Return the names that a Python cell reads but does not bind."""
    body = re.sub(r"^%%profile_step.*", "", source)
    if body.startswith("%%"):
        return []
    names = [node for node in ast.walk(ast.parse(MAGIC_LINE.sub("pass", body))) if isinstance(node, ast.Name)]
    own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return [name.id for name in names if name.id not in own]


def _bound(source: str) -> Iterator[tuple[str, str]]:
    """Return the names that a cell binds, and the line that identifies the cell for the reader."""
    if found := re.match(r"%%profile_step\b.* --into (\w+)", source):
        yield found[1], found[0]
    if source.startswith("%%"):
        return
    lines = MAGIC_LINE.sub("pass", source).splitlines()
    for node in ast.parse("\n".join(lines)).body:
        line = re.split(r"[(:{#]", lines[node.lineno - 1])[0].rstrip()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, line
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name, line) for each in node.names)
        elif isinstance(node, ast.Assign):
            yield from ((each.id, line) for target in node.targets for each in ast.walk(target) if _stored(each))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _stored(node: ast.AST) -> Any:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def notebook(text: str, lab: str, *, solved: bool, published: str = "") -> str:
    """Return a notebook as the text of its file.

    If `published` is an OWNER/REPO, the notebook includes the cell for Colab.
    """
    every = list(cells(text, lab))
    if first := next((cell for cell in every if IMPORTS_LABS.search(cell["source"])), None):
        first["source"] += f"\n\n{placeholders(every)}"
    for cell in every:
        if not solved:
            cell["source"] = for_students(cell["source"])
        elif cell["cell_type"] == "markdown":  # a solution lies one folder deeper
            cell["source"] = cell["source"].replace("](../", "](../../")
        cell["source"] = cell["source"].splitlines(keepends=True)
    every = with_colab_cell(every, published)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return as_file({"cells": every, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def built() -> dict[Path, str]:
    """Return every notebook that is built from the sources, by path."""
    files, published = {}, repository()
    for path in sorted(SOURCE.glob("lab_*.py")):
        text, name = path.read_text("utf-8"), path.stem.removeprefix("lab_")
        lab = f"lab-{name[:2]}"
        files[HERE / f"{name}.ipynb"] = notebook(text, lab, solved=False, published=published)
        files[HERE / "solutions" / f"{name}.ipynb"] = notebook(text, lab, solved=True, published=published)
    return files


if __name__ == "__main__":
    for path, text in built().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        print(path.relative_to(HERE))
