"""Record the reader's answers and the verdicts on them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from perfnb.errors import LabError
from perfnb.labs.exercise import Exercise, Facts, Hint, quoted, shortened, what_was_raised


class FromCell:
    """Placeholder for the result of a later cell. Using it too early raises an error that names the cell.

    Attribute access, indexing and calls all return the placeholder itself, so it always reaches the check.
    """

    def __init__(self, section: str, line: str) -> None:
        self._section, self._line = section, line

    def what_to_run(self) -> str:
        """A sentence that names the cell to run."""
        cell = f'the cell with "{self._line}" in the section "{self._section}"'
        return f"First run {cell}, then this one again. If that cell failed, its error message gives the reason."

    def __repr__(self) -> str:
        return self.what_to_run()

    def __getattr__(self, name: str) -> FromCell:
        if name.startswith("_"):  # the notebook looks for a display method, or Python for a protocol
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> FromCell:
        return self

    def __call__(self, *_: Any, **__: Any) -> FromCell:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __iter__(self) -> NoReturn:
        raise LabError(self.what_to_run())

    __len__ = __bool__ = __float__ = __iter__


#: Maximum length of an answer that is saved for the teacher, in characters.
LONGEST_ANSWER = 4000
#: Maximum length of a hint, in characters.
LONGEST_HINT = 1200


@dataclass(frozen=True)
class Result:
    """An answer to an exercise and the verdict on it.

    ``hint`` is empty if the answer was right, and ``facts`` is empty if nothing was measured. ``tries`` is the number
    of answers to this exercise so far.
    """

    number: str
    title: str
    right: bool
    hint: str
    answer: str
    facts: Facts
    tries: int = 1


@dataclass(frozen=True)
class LabProgress:
    """The reader's progress. Displays as text.

    Attributes
    ----------
    rows : tuple of (exercise, result)
        One row per exercise, in order. The result is ``None`` if the exercise has not been tried.
    """

    rows: tuple[tuple[Exercise, Result | None], ...]

    @property
    def right(self) -> int:
        """Number of exercises answered correctly at least once."""
        return sum(result is not None and result.right for _, result in self.rows)

    @property
    def complete(self) -> bool:
        """Whether every exercise was answered correctly."""
        return self.right == len(self.rows)

    def __repr__(self) -> str:
        labs = sorted({_lab(exercise.number) for exercise, _ in self.rows}, key=int)
        lines = [f"{self.right} of {len(self.rows)} right in {len(labs)} labs"] if len(labs) > 1 else []
        for lab in labs:
            rows = [row for row in self.rows if _lab(row[0].number) == lab]
            if len(labs) > 1 and not any(result for _, result in rows):
                lines.append(f"Lab {lab}: not started, {len(rows)} exercises")
                continue
            lines.append(f"Lab {lab}: {LabProgress(tuple(rows)).right} of {len(rows)} right")
            for exercise, result in rows:
                state = "not tried" if result is None else exercise.accepted if result.right else "not yet"
                lines.append(f"  {state:9}  {exercise.number}  {exercise.title}")
        return "\n".join(lines)


class Ledger:
    """One reader's results.

    For each exercise, the ledger keeps the last right answer. If there is none, it keeps the last answer.
    """

    def __init__(self) -> None:
        self._results: dict[str, Result] = {}

    def judge(self, number: str, answer: Any, evidence: dict[str, Any]) -> Result:
        """Measure and judge an answer.

        A wrong answer counts as a try, but it does not replace an earlier right answer.
        """
        exercise = exercise_of(number)
        before = self._results.get(number)
        facts, hint = judged(exercise, answer, evidence)
        result = Result(number, exercise.title, not hint, hint, _text(answer), facts, before.tries + 1 if before else 1)
        self._results[number] = replace(before, tries=result.tries) if before and before.right and hint else result
        return result

    def progress(self, lab: int | None = None, exported: Mapping[str, bool] | None = None) -> LabProgress:
        """Return the progress in one lab, or in every lab that was started.

        `exported` lists the exercises that results files show to be right. If it is given, the progress covers all
        labs, including those that were not started.
        """
        started = known_labs() if exported is not None else {_lab(number) for number in self._results}
        every = [each for one in sorted(started if lab is None else {str(lab)}, key=int) for each in exercises_of(one)]
        return LabProgress(tuple((exercise, self._result(exercise, exported or {})) for exercise in every))

    def _result(self, exercise: Exercise, exported: Mapping[str, bool]) -> Result | None:
        """Return the reader's result, or the result from a file if only that one is right."""
        own, filed = self._results.get(exercise.number), exported.get(exercise.number)
        if filed is None or (own and own.right >= filed):
            return own
        return Result(exercise.number, exercise.title, filed, "", "", {})

    def results(self) -> Iterable[Result]:
        """All results, in the order of the exercises."""
        return [result for _, result in self.progress().rows if result is not None]


def judged(exercise: Exercise, answer: Any, evidence: dict[str, Any]) -> tuple[Facts, str]:
    """Return the facts of an answer and the hint on it, which is empty if the answer is right.

    Any problem with the answer or the evidence is described in a sentence. The only exception that propagates is
    `KeyboardInterrupt`.
    """
    facts: Facts = {}
    try:
        _require_cells(answer, *evidence.values())
        if _absent(answer) or (isinstance(answer, dict) and answer and all(map(_absent, answer.values()))):
            return {}, "There is no answer yet."
        if absent := [name for name, value in evidence.items() if _absent(value)]:
            return {}, f"There is no {', '.join(absent)} yet: run the cell that makes it, then this one again."
        facts = exercise.measure(answer, **evidence)
        exercise.judge(facts)
    except Hint as hint:
        return facts, shortened(str(hint), LONGEST_HINT)
    except (Exception, SystemExit) as error:
        return facts, shortened(_not_judged(exercise, evidence, error), LONGEST_HINT)
    return facts, ""


def _absent(value: Any) -> bool:
    return value is None or value is ...


def _require_cells(*values: Any) -> None:
    """Raise a `Hint` if a value comes from a cell that has not run, or that failed."""
    for value in values:
        inside = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else ()
        for part in (value, *inside):
            if isinstance(part, FromCell):
                raise Hint(part.what_to_run())


def _not_judged(exercise: Exercise, evidence: dict[str, Any], error: BaseException) -> str:
    """Explain why a check could not judge an answer. Usually an argument is missing or has the wrong type."""
    _, *needed = inspect.signature(exercise.measure).parameters
    if set(needed) != set(evidence):
        given = "".join(f", {name}=..." for name in needed)
        return f"Call the check as in its cell: labs.check({exercise.number!r}, your answer{given})."
    besides = f" and in {', '.join(needed)}" if needed else ""
    return (
        f"The check cannot read its arguments ({what_was_raised(error)}). Look for a value of the wrong type"
        f" in your answer{besides}."
    )


def exercise_of(number: str) -> Exercise:
    """Return the exercise with the given number, such as ``2.3``.

    Raises
    ------
    LabError
        If there is no exercise with this number.
    """
    lab = _lab(str(number))
    every = {exercise.number: exercise for exercise in exercises_of(lab)}
    if number not in every:
        raise LabError(f"Lab {lab} has no exercise {number!r}, only {min(every)} to {max(every)}.")
    return every[number]


def exercises_of(lab: str) -> tuple[Exercise, ...]:
    """Return all exercises of a lab in order, or raise `LabError` if the lab does not exist."""
    labs = known_labs()
    if lab not in labs:
        raise LabError(f"There is no lab {lab!r}; there are {', '.join(labs)}. Exercises are numbered like '2.3'.")
    exercises: tuple[Exercise, ...] = importlib.import_module(labs[lab]).EXERCISES
    return exercises


def known_labs() -> dict[str, str]:
    """Return the name of the module that contains the checks, for each lab."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return {str(int(name[4:])): f"{__package__}.{name}" for name in sorted(names) if name.startswith("lab_")}


def _lab(number: str) -> str:
    return number.partition(".")[0]


def _text(answer: Any) -> str:
    """Return an answer as text for a teacher. For code, this is its source."""
    for source in (inspect.getsource, _class_text):
        with contextlib.suppress(Exception, SystemExit):
            if callable(answer) and (text := source(answer)):
                return text[:LONGEST_ANSWER]
    return quoted(answer, LONGEST_ANSWER)


def _class_text(answer: Any) -> str:
    """Return the source of a class that was defined in a notebook cell.

    The source is found through one of the class's methods, because Python only finds it since version 3.13.
    """
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
