"""Lab 12, the journal and the report: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import perfnb
from perfnb.labs.lab_12 import measure_journal, measure_report, undecided
from perfnb.labs.made_night import Archive
from perfnb.results import ABTest, Journal
from tests.labs.judging import expect, expect_of, hint
from tests.labs.lab_12_answers import HYPOTHESES, Cured, Nightly, Once, OnePass, Single, a_journal, a_profile, a_test


@pytest.mark.slow
@pytest.mark.parametrize(("make", "hypothesis", "words"), [(Nightly, "the model takes most of it", "")])
def test_a_recorded_profile(tmp_path: Path, make: Any, hypothesis: str, words: str) -> None:
    journal = a_journal(tmp_path / "journal")
    journal.add(a_test(), hypothesis="a test is no profile")
    journal.add(a_profile(make), hypothesis=hypothesis, name="nightly")

    expect("12.2", words, journal)


def test_a_journal_is_needed(tmp_path: Path) -> None:
    for number, answer in (("12.2", tmp_path), ("12.6", "journal")):
        assert "Pass the journal" in hint(number, answer)
    assert "no profile yet" in hint("12.2", a_journal(tmp_path / "empty"))
    assert "no A/B test yet" in hint("12.6", a_journal(tmp_path / "empty"), changes={})


WASTE = {"brightness": 201, "new_reader": 2, "right": 2, "padded": 2}


def without(name: str, **more: Any) -> dict[str, Any]:
    return {method: factor for method, factor in WASTE.items() if method != name} | more


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({name: np.float64(factor) for name, factor in WASTE.items()}, ""),
        ({name: torch.tensor(factor) for name, factor in WASTE.items()}, ""),
        ({getattr(Nightly, name): factor for name, factor in WASTE.items()}, ""),
        (without("new_reader", cards=2), ""),
        (without("brightness", brightness=400), "count the cards"),
        (without("brightness", brightness=2, new_reader=2), "name the same waste"),
        (without("right", right=2, step=2), "name the same waste"),
        (without("padded", read=2), "no method 'read'"),
        (without("padded"), "half of its FLOPs in p.layers"),
        ({}, "The dictionary is empty"),
        (["padded"], "must be a dictionary"),
    ],
)
def test_a_diagnosis(answer: Any, words: str) -> None:
    expect("12.3", words, answer, script=Nightly)


FOUR = tuple(a_test(change, seed=place) for place, change in enumerate(("once", "float32", "one pass", "tight")))


#: The classes that these tests compare.
CHANGES = {"once": (Nightly, Once), "float32": (Once, Single), "one pass": [Single, OnePass], "tight": (OnePass, Cured)}


#: Their work in three steps, from Maya's script to the cured one.
STAGES: tuple[dict[str, Any], ...] = tuple(
    {"steps": 3, "reads": reads, "passes": passes, "boxes": boxes, "longest": longest, "float64": float64}
    for reads, passes, boxes, longest, float64 in (
        (42, 6, 3072, 256, True),
        (18, 6, 3072, 256, True),
        (18, 6, 3072, 256, False),
        (18, 3, 1536, 256, False),
        (18, 3, 768, 128, False),
    )
)
WORKS = dict(zip(CHANGES, map(list, itertools.pairwise(STAGES)), strict=True))


def changed(tests: Any) -> Callable[[Path], Journal]:
    return lambda path: a_journal(path, tests)


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        (changed(FOUR), ""),
        (changed((*FOUR[:3], a_test("tight", check=None))), "did not compare the results"),
        (lambda path: a_journal(path, FOUR, accepted=False), "Let the test decide"),
    ],
)
def test_a_journal_of_proofs(tmp_path: Path, journal: Callable[[Path], Journal], words: str) -> None:
    tests = measure_journal(journal(tmp_path / "journal"), {})["tests"]
    expect_of("12.6", words, {"tests": tests, "changes": WORKS})


class Idle:
    """A script that does nothing but count how often it was made and run."""

    kind, made, steps = torch.float32, 0, 0

    def __init__(self, archive: Any, seed: int = 0) -> None:
        type(self).made += 1
        self.reader = torch.nn.Linear(2, 2, dtype=self.kind)

    def step(self) -> None:
        type(self).steps += 1


class IdleDouble(Idle):
    kind = torch.float64


def test_each_class_of_the_changes_runs_once(tmp_path: Path) -> None:
    journal = a_journal(tmp_path / "journal")
    changes = {" One\n CHANGE ": (IdleDouble, Idle), "back": [Idle, IdleDouble]}

    facts = measure_journal(journal, changes)

    single = {"steps": 3, "reads": 0, "passes": 0, "boxes": 0, "longest": 0, "float64": False}
    double = single | {"float64": True}
    assert facts == {"tests": [], "changes": {"one change": [double, single], "back": [single, double]}}
    assert [(each.made, each.steps) for each in (Idle, IdleDouble)] == [(1, 3), (1, 3)]
    for sides in (Idle, (Idle,), (Idle, Idle, Idle), {Idle, IdleDouble}):
        assert "'one' needs two classes" in hint("12.6", journal, changes={"one": sides})
    assert "changes must be a dictionary" in hint("12.6", journal, changes=["one"])


@pytest.mark.slow
def test_the_cures_of_the_lab_cure_one_fault_each(tmp_path: Path) -> None:
    changes = {name.upper(): sides for name, sides in CHANGES.items()}
    journal = a_journal(tmp_path / "journal", [*FOUR, a_test("all cures", 0.12)])

    assert hint("12.6", journal, changes=changes) == ""


def test_what_is_not_decided_is_named(tmp_path: Path) -> None:
    """A busy machine does not cost an exercise."""
    facts = measure_journal(a_journal(tmp_path / "journal", [a_test("tight", pairs=3), *FOUR[:3]]), {})
    assert "these times do not decide on 'tight'" in undecided(facts)
    assert undecided(measure_journal(a_journal(tmp_path / "journal", [FOUR[3]]), {})) == ""


def test_a_damaged_entry_is_left_out(tmp_path: Path) -> None:
    journal = a_journal(tmp_path / "journal", FOUR)
    for file in (tmp_path / "journal" / str(journal.history.index[0])).glob("report/*.json"):
        file.write_text("{")

    assert len(measure_journal(journal, {})["tests"]) == 3


WHOLE = a_test("all cures", 0.12)
LOW, HIGH = WHOLE.ratio_ci or (0.0, 0.0)
TEXT = (
    "Your script measured the brightness of all cards in each step, had float64 in new_reader, ran the Reader again to "
    "count what is right, and padded the cards. All four are cured; the losses are the same. "
    "It is now 8.3 times as fast."
)
REPORT = {"ratio": WHOLE.ratio, "low": LOW, "high": HIGH, "unnamed": "padded", "text": TEXT}


@pytest.fixture(scope="module")
def with_whole(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return a_journal(tmp_path_factory.mktemp("whole") / "journal", [*FOUR, WHOLE])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"ratio": np.float32(WHOLE.ratio), "low": torch.tensor(LOW), "high": round(HIGH, 3)}, ""),
        ({"text": 8.3}, "text in quotes"),
    ],
)
def test_a_report(with_whole: Journal, change: dict[str, Any], words: str) -> None:
    expect("12.7", words, REPORT | change, whole=WHOLE, scripts=compared(), waste=WASTE, journal=with_whole)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, ""),
        ({"ratio": 0.14}, "at least three digits of whole.ratio"),
        ({"low": 0.13}, "low: give at least three digits"),
        ({"high": 0.15}, "high: give at least three digits"),
        ({"ratio": 0.1392}, "the ratio of the two medians"),
    ],
)
def test_rounded_figures_and_the_medians(said: dict[str, float], words: str) -> None:
    test = {"ratio": 0.144, "ratio_ci": [0.134, 0.154], "medians": 0.1392, "check": "", "hypothesis": HYPOTHESES[0]}
    right = {"ratio": 0.144, "low": 0.134, "high": 0.154, "unnamed": "padded"}
    logged = [{"logged": 12} | STAGES[place] | {"steps": 1} for place in (0, -1)]
    logged[1] |= {"reads": 2, "boxes": 256}
    facts = {"said": right | said, "tests": [test], "numbers": [[0.144, 0.0005]], "words": 40, "unsaid": []}
    expect_of("12.7", words, facts | {"pairs": 12, "scripts": logged})


def compared(before: Any = Nightly, after: Any = Cured, steps: int = 12) -> list[Any]:
    """Two scripts that have run as often as a test with this number of pairs."""
    scripts = [make(Archive(4)) for make in (before, after)]
    for script in scripts:
        script.log += [(2.5, 20)] * steps
    return scripts


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        (lambda: tuple(compared()), ""),
        (lambda: compared(after=OnePass), "mine still has 1 of the 4 faults"),
        (lambda: compared()[:1], "Pass the two scripts"),
        (lambda: (Nightly, Cured), "has no log"),
    ],
)
def test_the_scripts_of_the_whole(with_whole: Journal, scripts: Callable[[], Any], words: str) -> None:
    expect("12.7", words, REPORT, whole=WHOLE, scripts=scripts(), waste=WASTE, journal=with_whole)


@pytest.mark.parametrize(
    ("whole", "hypothesis", "words"),
    [(WHOLE, "", "has no hypothesis"), (a_test("all", 0.12, pairs=3), HYPOTHESES[0], "too few pairs")],
)
def test_the_test_of_the_whole(tmp_path: Path, whole: ABTest, hypothesis: str, words: str) -> None:
    journal = perfnb.journal(tmp_path / "journal")
    journal.add(whole, hypothesis=hypothesis)
    low, high = whole.ratio_ci or (0.0, 0.0)
    report = REPORT | {"ratio": whole.ratio, "low": low, "high": high}
    expect("12.7", words, report, whole=whole, scripts=compared(), waste=WASTE, journal=journal)


def test_the_whole_is_in_the_journal(tmp_path: Path, with_whole: Journal) -> None:
    other = a_journal(tmp_path / "journal", FOUR)
    more: dict[str, Any] = {"scripts": compared(), "waste": WASTE}
    assert "not in the journal" in hint("12.7", REPORT, whole=WHOLE, journal=other, **more)
    assert "Pass the test of the whole" in hint("12.7", REPORT, whole=0.12, journal=with_whole, **more)
    assert "Solve 12.3 first" in hint("12.7", REPORT, whole=WHOLE, journal=with_whole, **more | {"waste": {}})
    facts = measure_report(REPORT, whole=WHOLE, journal=with_whole, **more)
    assert facts["numbers"] == [[64.0, 0.5], [8.3, 0.05]]
    assert [(script["logged"], script["steps"]) for script in facts["scripts"]] == [(13, 1)] * 2
