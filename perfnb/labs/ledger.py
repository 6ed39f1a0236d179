"""What the reader has answered so far, and what was found."""

from __future__ import annotations

import importlib
import inspect
import linecache
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfnb.errors import LabError
from perfnb.labs.exercise import Exercise, Facts, Hint, quoted, what_was_raised
from perfnb.labs.placeholders import FromCell

#: Characters kept of an answer, for a teacher to read.
LONGEST_ANSWER = 4000
#: Characters of a hint.
LONGEST_HINT = 1200


@dataclass(frozen=True)
class Result:
    """An answer to an exercise. ``hint`` is empty where it was right; ``facts`` is empty where none were had.

    ``tries`` counts the answers to this exercise so far.
    """

    number: str
    title: str
    right: bool
    hint: str
    answer: str
    facts: Facts
    tries: int = 1


@dataclass(frozen=True)
class Progress:
    """How far the reader is. Shows itself as text.

    Attributes
    ----------
    rows : tuple of (exercise, result)
        A row an exercise, in order; the result is ``None`` where it was not tried.
    """

    rows: tuple[tuple[Exercise, Result | None], ...]

    @property
    def right(self) -> int:
        """Exercises that were once answered rightly."""
        return sum(result is not None and result.right for _, result in self.rows)

    @property
    def complete(self) -> bool:
        """Whether every exercise was answered rightly."""
        return self.right == len(self.rows)

    def __repr__(self) -> str:
        lines = []
        for lab in sorted({_lab(exercise.number) for exercise, _ in self.rows}, key=int):
            rows = [row for row in self.rows if _lab(row[0].number) == lab]
            lines.append(f"Lab {lab}: {Progress(tuple(rows)).right} of {len(rows)} right")
            for exercise, result in rows:
                state = "not tried" if result is None else exercise.accepted if result.right else "not yet"
                lines.append(f"  {state:9}  {exercise.number}  {exercise.title}")
        return "\n".join(lines)


class Ledger:
    """The results of one reader: for each exercise the last answer that was right, or else the last."""

    def __init__(self) -> None:
        self._results: dict[str, Result] = {}

    def judge(self, number: str, answer: Any, evidence: dict[str, Any]) -> Result:
        """Measure and judge an answer. What is wrong takes nothing away that was right before, but counts as a try."""
        exercise = exercise_of(number)
        before = self._results.get(number)
        facts, hint = judged(exercise, answer, evidence)
        result = Result(number, exercise.title, not hint, hint, _text(answer), facts, before.tries + 1 if before else 1)
        self._results[number] = replace(before, tries=result.tries) if before and before.right and hint else result
        return result

    def progress(self, lab: int | None = None) -> Progress:
        """Of one lab, or of every lab that was begun."""
        labs = {_lab(number) for number in self._results} if lab is None else {str(lab)}
        every = [exercise for each in sorted(labs, key=int) for exercise in exercises_of(each)]
        return Progress(tuple((exercise, self._results.get(exercise.number)) for exercise in every))

    def results(self) -> Iterable[Result]:
        """In the order of the exercises."""
        return [result for _, result in self.progress().rows if result is not None]


def judged(exercise: Exercise, answer: Any, evidence: dict[str, Any]) -> tuple[Facts, str]:
    """The facts of an answer, and what is wrong with it; empty where nothing is.

    Whatever the answer and the evidence are, what is wrong is said in a sentence. Only `KeyboardInterrupt` goes
    through.
    """
    facts: Facts = {}
    try:
        _require_cells(answer, *evidence.values())
        if _absent(answer) or _only_absent(answer):
            return {}, "There is no answer yet."
        if absent := [name for name, value in evidence.items() if _absent(value)]:
            return {}, f"There is no {', '.join(absent)} yet: run the cell that makes it, then this one again."
        facts = exercise.measure(answer, **evidence)
        exercise.judge(facts)
    except Hint as hint:
        return facts, _bounded(str(hint))
    except (Exception, SystemExit) as error:
        return facts, _bounded(_not_judged(exercise, evidence, error))
    return facts, ""


def _absent(value: Any) -> bool:
    return value is None or value is ...


def _only_absent(answer: Any) -> bool:
    return isinstance(answer, dict) and bool(answer) and all(map(_absent, answer.values()))


def _require_cells(*values: Any) -> None:
    """Raise a `Hint` if something is still to be made by a cell that was not run, or failed."""
    for value in values:
        inside = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else ()
        for part in (value, *inside):
            if isinstance(part, FromCell):
                raise Hint(part.what_to_run())


def _not_judged(exercise: Exercise, evidence: dict[str, Any], error: BaseException) -> str:
    """Why a check came to no judgement: most often what it is given with the answer is missing, or of another kind."""
    _, *needed = inspect.signature(exercise.measure).parameters
    missing, unknown = (
        [name for name in needed if name not in evidence],
        [name for name in evidence if name not in needed],
    )
    if missing or unknown:
        given = "".join(f", {name}=..." for name in needed)
        return f"Run the check as its cell has it: labs.check({exercise.number!r}, your answer{given})."
    besides = f" and in {', '.join(needed)}" if needed else ""
    return (
        f"The check cannot read what it was given ({what_was_raised(error)}). Look for a value of the wrong kind in "
        f"your answer{besides}."
    )


def _bounded(hint: str) -> str:
    """A hint of which no text from an answer makes a flood, or more than plain text."""
    cut = hint if len(hint) <= LONGEST_HINT else f"{hint[:LONGEST_HINT]}..."
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in cut)


def exercise_of(number: str) -> Exercise:
    """The exercise of a number such as ``2.3``.

    Raises
    ------
    LabError
        If there is none.
    """
    every = exercises_of(_lab(str(number)))
    for exercise in every:
        if exercise.number == number:
            return exercise
    raise LabError(f"Lab {_lab(str(number))} has no exercise {number!r}, only {every[0].number} to {every[-1].number}.")


def exercises_of(lab: str) -> tuple[Exercise, ...]:
    """All exercises of a lab, in order; raises `LabError` where there is no such lab."""
    labs = known_labs()
    if lab not in labs:
        raise LabError(f"There is no lab {lab!r}; there are {', '.join(labs)}. An exercise is named as in '2.3'.")
    exercises: tuple[Exercise, ...] = importlib.import_module(labs[lab]).EXERCISES
    return exercises


def known_labs() -> dict[str, str]:
    """The modules with the checks, by lab."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return {str(int(name[4:])): f"{__package__}.{name}" for name in sorted(names) if name.startswith("lab_")}


def _lab(number: str) -> str:
    return number.partition(".")[0]


def _text(answer: Any) -> str:
    """An answer for a teacher to read: the source where it is code."""
    try:
        text = inspect.getsource(answer) if callable(answer) else ""
    except (Exception, SystemExit):
        text = ""
    if not text:
        try:
            text = _class_text(answer)
        except (Exception, SystemExit):
            text = ""
    return text[:LONGEST_ANSWER] or quoted(answer, LONGEST_ANSWER)


def _class_text(answer: Any) -> str:
    """The source of a class from a notebook's cell, found by one of its methods: Python finds it from 3.13 on."""
    if not isinstance(answer, type):
        return ""
    for method in vars(answer).values():
        code = getattr(method, "__code__", None)
        if code is None or method.__qualname__ != f"{answer.__qualname__}.{method.__name__}":
            continue
        lines = linecache.getlines(code.co_filename)
        for at in range(min(code.co_firstlineno, len(lines)) - 1, -1, -1):
            if re.match(rf"\s*class {answer.__name__}\b", lines[at]):
                return "".join(inspect.getblock(lines[at:]))
    return ""
