"""Lab exercises, each of which is judged by measuring on the reader's machine.

Use ``from perfnb import labs`` and then ``labs.check("2.3", answer)``. The notebooks are in ``notebooks/labs``.

This package is large because it checks the exercises of twelve labs, each in its own module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from perfnb.labs.ledger import FromCell, LabProgress, Ledger, exercise_of
from perfnb.labs.results_file import Verification, exported_results, verify_results, write_results

__all__ = ["check", "export", "from_cell", "progress", "verify"]

_ledger = Ledger()


def check(number: str, answer: Any, **evidence: Any) -> None:
    """Judge an answer and print the verdict. The notebook continues either way.

    Once you have answered an exercise correctly, `progress` and `export` count it as right, whatever you try
    afterwards.

    The verdict on a wrong answer is printed to stderr, which makes nbgrader award no points. The verdict on a right
    answer is printed to stdout.

    Parameters
    ----------
    number : str
        The exercise, such as ``"2.3"``.
    answer : object
        The answer that the exercise asks for, which can be a number, a dictionary or a function.
    **evidence
        The measurements that the answer is based on, if the exercise asks for them.

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
    """Return a placeholder for the result of a later cell, as in ``p = from_cell("2.2 Ratio", "%%profile_step")``.

    If a check or another cell uses the placeholder, the error message names the cell to run first.

    Parameters
    ----------
    section : str
        The heading above that cell.
    line : str
        A line of that cell, or enough of it to identify the cell.
    """
    return FromCell(section, line)


def progress(lab: int | None = None, *, exported: str | Path | None = None) -> LabProgress:
    """Return your progress in one lab, or in all labs that you have started since the kernel started.

    Parameters
    ----------
    lab : int, optional
        The lab to report on. By default, every lab that you have started is included.
    exported : str or Path, optional
        A folder with files written by `export`. The right answers in them are counted as well, and labs that you have
        not started are listed.
    """
    return _ledger.progress(lab, None if exported is None else exported_results(exported))


def export(path: str | Path) -> Path:
    """Write your answers to a small JSON file for a teacher.

    For each right answer, the file includes the facts that it was judged on.
    """
    return write_results(_ledger.results(), path)


def verify(path: str | Path) -> Verification:
    """Judge the facts in an exported file again, for teachers. Nothing in the file is executed."""
    return verify_results(path)
