"""The labs' exercises: each answer is judged by measuring on the reader's machine.

``from perfnb import labs``, then ``labs.check("2.3", answer)``. The labs are notebooks, in ``notebooks/labs``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from perfnb.labs.ledger import Ledger, Progress, exercise_of
from perfnb.labs.placeholders import FromCell
from perfnb.labs.results_file import Verification, verify_results, write_results

__all__ = ["check", "export", "from_cell", "progress", "verify"]

_ledger = Ledger()


def check(number: str, answer: Any, **evidence: Any) -> None:
    """Judge an answer, and say what is wrong with it. The notebook goes on either way.

    An exercise that was right stays so in `progress` and `export`, whatever is tried after it.

    What is wrong is written to the error stream, by which nbgrader gives no points; what is right to the other.

    Parameters
    ----------
    number : str
        The exercise, such as ``"2.3"``.
    answer : object
        What the exercise asks for: a number, a dictionary, a function.
    **evidence
        The measurements that the answer rests on, where the exercise asks for them.

    Raises
    ------
    LabError
        If there is no such exercise.
    """
    result = _ledger.judge(number, answer, evidence)
    lab = _ledger.progress(int(number.partition(".")[0]))
    about = f"{number} {result.title.rstrip('?')}"
    if result.right:
        exercise = exercise_of(number)
        doubts = exercise.doubts(result.facts) if exercise.doubts else ""
        said = f"{exercise.accepted}, but inconclusive: {doubts}" if doubts else exercise.accepted
        print(f"{about}: {said}. Lab {number.partition('.')[0]}: {lab.right} of {len(lab.rows)}.")
    else:
        print(f"{about}: not yet. {result.hint}", file=sys.stderr)


def from_cell(section: str, line: str) -> Any:
    """Stand in for what a cell further down makes, until it has run: ``p = from_cell("2.2 Ratio", "%%profile_step")``.

    A check that is given it, and a cell that uses it, say which cell to run first.

    Parameters
    ----------
    section : str
        The heading that the cell stands under.
    line : str
        A line of the cell, or as much of it as tells it from other cells.
    """
    return FromCell(section, line)


def progress(lab: int | None = None) -> Progress:
    """How far you are, in one lab or in all that you have begun since the kernel started."""
    return _ledger.progress(lab)


def export(path: str | Path) -> Path:
    """Write your answers to a small JSON file for a teacher, right ones with the facts by which they were judged."""
    return write_results(_ledger.results(), path)


def verify(path: str | Path) -> Verification:
    """For a teacher: judge the facts in such a file again. Nothing in it is run."""
    return verify_results(path)
