"""Lab exercises, each judged by measuring on the reader's machine.

``from perfnb import labs``, then ``labs.check("2.3", answer)``. The notebooks are in ``notebooks/labs``.

The room is large because it checks the exercises of twelve labs, one module each.
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
    """Judge an answer and print what is wrong with it; the notebook carries on either way.

    An exercise once answered correctly stays so in `progress` and `export`, whatever you try afterwards.

    A wrong answer is reported on stderr, so that nbgrader gives it no points; a right one on stdout.

    Parameters
    ----------
    number : str
        The exercise, such as ``"2.3"``.
    answer : object
        What the exercise asks for: a number, a dictionary, a function.
    **evidence
        The measurements behind the answer, if the exercise asks for them.

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
    """Stand in for the result of a later cell until it has run: ``p = from_cell("2.2 Ratio", "%%profile_step")``.

    A check or cell that receives the placeholder names the cell to run first.

    Parameters
    ----------
    section : str
        The heading above that cell.
    line : str
        A line of that cell, or enough of it to identify the cell.
    """
    return FromCell(section, line)


def progress(lab: int | None = None, *, exported: str | Path | None = None) -> LabProgress:
    """Your progress in one lab, or in all labs you have started since the kernel started.

    Parameters
    ----------
    lab : int, optional
        Only this lab.
    exported : str or Path, optional
        A folder of files that `export` wrote. Their right answers count, too, and labs not yet started are listed.
    """
    return _ledger.progress(lab, None if exported is None else exported_results(exported))


def export(path: str | Path) -> Path:
    """Write your answers to a small JSON file for a teacher; right answers include the facts they were judged by."""
    return write_results(_ledger.results(), path)


def verify(path: str | Path) -> Verification:
    """Re-judge the facts in an exported file, for teachers. Nothing in the file is run."""
    return verify_results(path)
