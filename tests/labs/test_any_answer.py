"""A check answers any input with a sentence about what is wrong, and empty facts verify nothing."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from perfnb import labs
from perfnb.labs import lab_06
from perfnb.labs.exercise import Exercise, Facts, Hint, shortened
from perfnb.labs.ledger import LONGEST_HINT, Ledger, exercises_of, judged, known_labs

EVERY = [exercise for lab in known_labs() for exercise in exercises_of(lab)]


class Raises:
    """Raises whatever is asked of it."""

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("\x1b[31mnot this\x1b[0m" + "!" * 5000)

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __contains__ = _raise  # type: ignore[assignment]
    __float__ = __int__ = __index__ = __call__ = __getitem__ = __getattr__ = __lt__ = __add__ = _raise  # type: ignore[assignment]


class Number(float):
    """A number whose repr raises."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


class Dictionary(dict[Any, Any]):
    """Has every key, and raises when it is read."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Any) -> NoReturn:
        raise RuntimeError("no value")

    def values(self) -> NoReturn:
        raise RuntimeError("no values")

    get = items = keys = __iter__ = __getitem__  # type: ignore[assignment]


def leaves(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("bye")


def hostile() -> dict[str, Any]:
    """Fresh ones each time; by name."""
    deep: list[Any] = []
    deep.append(deep)
    return {
        "None": None,
        "NaN": float("nan"),
        "infinity": float("inf"),
        "1e308": 1e308,
        "-1e308": Number(-1e308),
        "10**400": 10**400,
        "a long text": "x\x1b[31m" * 300_000,
        "bytes": b"\x00" * 100,
        "a complex number": 1j,
        "nothing in it": {},
        "an empty list": [],
        "a list in itself": deep,
        "raises": Raises(),
        "a dictionary that raises": Dictionary(a=1),
        "returns what raises": lambda *_, **__: Raises(),
        "returns 1e308": lambda *_, **__: 1e308,
        "returns 10**400": lambda *_, **__: 10**400,
        "exits": leaves,
        "a class": Raises,
        "a type": int,
    }


#: The keys of every dictionary that an exercise asks for.
NAMES = (
    *("forward", "backward", "optimizer", "rest", "stem", "up", "layer", "at_most", "arithmetic", "time"),
    *("not_arithmetic", "most", "sum_of_most", "phase", "memory", "kib_per_step", "per_flop", "off_by", "inside"),
    *("perfect_loader", "perfect_model", "batch_bytes", "written", "speedup", "shown", "fused", "bf16", "compile"),
    *("larger batches", "int8", "product", "iterations", "batch", "ranks", "op", "share", "saves_ms", "call"),
    *("per_iteration", "rank", "waits_ms", "op_ratio", "busy_ratio", "smallest_percent", "sees_one_percent"),
    *("half", "nine_tenths", "cached", "utilization", "inside", "row_product", "numpy", "torch", "all_rungs"),
    *("gain", "compilations"),
    *("balance_ms", "network_ms", "pageable", "pinned", "transfers", "overlap"),
    *("model", "waste", "faster", "brightness", "padded", "ratio", "low", "high", "unnamed", "text"),
)


def told(exercise: Exercise, answer: Any, evidence: dict[str, Any]) -> None:
    """The check ends with a sentence, short and printable."""
    _, hint = judged(exercise, answer, evidence)

    assert hint
    assert len(hint) <= LONGEST_HINT + 3
    assert all(each.isprintable() or each == "\n" for each in hint)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EVERY, ids=lambda exercise: exercise.number)
def test_any_answer_gets_a_sentence(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *needed = inspect.signature(exercise.measure).parameters
    monkeypatch.setattr(lab_06, "FILE", (64, 64))
    for value in hostile().values():
        told(exercise, value, {})
        told(exercise, value, dict.fromkeys(needed))
        told(exercise, value, dict.fromkeys(needed, Raises()))
        told(exercise, value, dict.fromkeys(needed, value))
        told(exercise, dict.fromkeys(NAMES, value), {})
        told(exercise, 1.0, dict.fromkeys(needed, value))
        told(exercise, dict.fromkeys(NAMES, -1.0), dict.fromkeys(needed, value))
        told(exercise, lambda *_, **__: 1.0, {"unheard_of": value})


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EVERY, ids=lambda exercise: exercise.number)
def test_evidence_left_out_is_named(exercise: Exercise) -> None:
    """Of an answer of the right form: no KeyError, AttributeError or TypeError from inside the check."""
    _, *needed = inspect.signature(exercise.measure).parameters
    for answer in (dict.fromkeys(NAMES, 1.0), 1.0, lambda *_: 1.0):
        _, hint = judged(exercise, answer, {})
        assert "has no attribute" not in hint
        assert not needed or hint


@pytest.mark.parametrize("value", hostile().values(), ids=list(hostile()))
def test_a_check_goes_on_and_progress_is_kept(
    value: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(labs, "_ledger", Ledger())

    labs.check("1.2", value)
    labs.check("2.1", {"forward": value, "backward": 0.5, "optimizer": 0.1, "rest": 0.1})
    labs.check("2.2", value, profile=value)

    assert capsys.readouterr().err.count(": not yet. ") == 3
    assert labs.verify(labs.export(tmp_path / "results.json")).right == 0


def test_an_interrupt_goes_through() -> None:
    class Stopped:
        def __float__(self) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        labs.check("2.1", dict.fromkeys(("forward", "backward", "optimizer", "rest"), Stopped()))


#: Stand for a fact that is missing; each empty in its own way.
EMPTY: tuple[Any, ...] = ([], {}, "", None, True, False, 0.0, 1.0, 5)


def accepted(judge: Callable[[Facts], Any], facts: Facts, left: list[int]) -> Facts | None:
    """Facts with something empty in each place, if there are any that the judge accepts."""
    left[0] -= 1
    if left[0] < 0:
        return None
    try:
        judge(facts)
    except KeyError as error:
        name = error.args[0]
        if not isinstance(name, str) or name in facts:
            return None
        tries = (accepted(judge, {**facts, name: empty}, left) for empty in EMPTY)
        return next((found for found in tries if found is not None), None)
    except (Hint, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    return facts


@pytest.mark.parametrize(
    ("number", "facts"),
    [
        ("2.1", {"forward": 1, "backward": False, "optimizer": False, "rest": False}),
        ("2.2", {"ratio": True, "forward_ms": True, "backward_ms": True, "of_layers": [], "of_shares": []}),
        ("2.2", {"ratio": 1.0, "forward_ms": True, "backward_ms": True, "of_layers": [], "of_shares": []}),
    ],
)
def test_true_and_false_are_no_numbers(tmp_path: Path, number: str, facts: Facts) -> None:
    assert verdict(tmp_path, number, facts) == "does not follow"
    numbers = {name: float(value) if isinstance(value, bool) else value for name, value in facts.items()}
    assert verdict(tmp_path, number, numbers) == "right"


@pytest.mark.parametrize(("can", "found"), [(False, "right"), (0, "does not follow"), (None, "does not follow")])
def test_only_false_is_false(tmp_path: Path, can: Any, found: str) -> None:
    assert verdict(tmp_path, "7.7", {"can": can}) == found


@pytest.mark.parametrize("exercise", EVERY, ids=lambda exercise: exercise.number)
def test_empty_facts_verify_nothing(exercise: Exercise) -> None:
    found = accepted(exercise.judge, {}, [20_000])

    assert found is None or not [name for name, value in found.items() if value in ([], {}, "")], found


def test_a_file_of_empty_facts_does_not_verify(tmp_path: Path) -> None:
    for number, facts in (("1.6", {"claims": {}}), ("2.3", {"cases": [{}, {}]}), ("12.6", {"tests": []})):
        assert verdict(tmp_path, number, facts) == "does not follow"


def verdict(folder: Path, number: str, facts: Facts) -> str:
    """Return the message for a teacher whose file claims with these facts that an exercise is right."""
    result = {"number": number, "title": "", "right": True, "hint": "", "answer": "", "facts": facts, "tries": 1}
    path = folder / "results.json"
    path.write_text(json.dumps({"format": "perfnb labs 3", "results": [result]}))
    return labs.verify(path).verdicts[number]


@pytest.mark.parametrize(
    ("text", "shown"), [("a" * 10, "a" * 10), ("a" * 11, "a" * 7 + "..."), ("a\x1b[31m\nb", "a?[31m\nb"), ("", "")]
)
def test_somebody_elses_text_is_short_and_without_control_characters(text: str, shown: str) -> None:
    assert shortened(text, 10) == shown
