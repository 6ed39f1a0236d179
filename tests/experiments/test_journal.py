"""A journal as its user holds it: reports, profiles and timings, what is said of them, and how they come back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import perfnb
from perfnb.errors import RecordingError
from perfnb.experiments.journal import _facts, _measured
from perfnb.stats.step_times import StepTimes
from perfnb.step.environment import provenance
from tests.experiments.ab_samples import EXAMPLES
from tests.recordings import ByHand

pytestmark = pytest.mark.usefixtures("nothing_left")


def timing(ms: float) -> perfnb.Timing:
    """Of a step that takes so long, known to less than a percent."""
    return perfnb.Timing(tuple(ms * (1 + 0.001 * (place % 5 - 2)) for place in range(40)))


@pytest.fixture
def journal(tmp_path: Path) -> perfnb.results.Journal:
    return perfnb.journal(tmp_path / "experiments")


def test_what_is_added_comes_back(journal: perfnb.results.Journal) -> None:
    hand = ByHand().step(0, 1000).block(0, None, 1, 64)
    profile = perfnb.Profile(hand.recording(environment={"torch": "2.13.0", "threads": 1}))
    names = [
        journal.add(timing(6.0), hypothesis="where we begin"),
        journal.add(profile, hypothesis="current state", change="nothing"),
    ]

    history = journal.history
    assert history.index.tolist() == names
    assert history["kind"].tolist() == ["timing", "profile"]
    assert history["hypothesis"].tolist() == ["where we begin", "current state"]
    assert history["change"].tolist() == ["", "nothing"]
    assert history["accepted"].tolist() == [False, False]
    assert history.loc[names[1], "peak_memory_bytes"] == profile.memory["total"].max() == 64
    assert history["torch"].tolist() == [torch.__version__, "2.13.0"]
    assert [type(journal.load(place)) for place in (1, -1)] == [perfnb.Timing, perfnb.Profile]
    assert journal.load(names[0]) == timing(6.0)
    assert str(journal.load(names[1][:24])) == str(profile)
    assert len(journal) == 2
    assert perfnb.journal(str(journal.path)).history.equals(history)


def test_a_journal_stays_where_it_is_when_the_notebook_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    journal = perfnb.journal("experiments")
    monkeypatch.chdir(tmp_path / "elsewhere")
    journal.add(timing(10.0))

    assert (tmp_path / "experiments").is_dir()
    assert repr(journal) == "<perfnb.Journal: experiments: Nothing accepted yet: entries are compared with entry 1>"


def test_two_journals_of_one_folder_see_each_other(journal: perfnb.results.Journal) -> None:
    other = perfnb.journal(journal.path)
    journal.add(timing(10.0))
    other.add(timing(9.0))

    assert journal.history["median_ms"].tolist() == other.history["median_ms"].tolist() == [10.0, 9.0]


def test_a_plain_timing_of_a_profile_may_be_added(journal: perfnb.results.Journal) -> None:
    journal.add(StepTimes((1.0,) * 10, batch_size=4, noise={"load_before": 9.0, "cpus": 2}))

    assert journal.history["throughput_per_s"].tolist() == [4000.0]
    assert "load 9.0 on 2 CPUs" in journal.history["disturbed"].iloc[0]
    assert journal.load(1).batch_size == 4


class Trials:
    """Two trials, one of which is kept."""

    def journal_entries(self) -> list[tuple[perfnb.Timing, str, bool]]:
        return [(timing(9.0), "lever a", False), (timing(8.0), "levers b and c", True)]


def test_trials_are_added_one_by_one(journal: perfnb.results.Journal) -> None:
    names: Any = journal.add(Trials(), hypothesis="they help", name="train")  # type: ignore[call-overload]

    history = journal.history
    assert history.index.tolist() == names
    assert history[["change", "accepted", "hypothesis", "name"]].to_numpy().tolist() == [
        ["lever a", False, "they help", "train"],
        ["levers b and c", True, "they help", "train"],
    ]
    assert history["median_ms"].tolist() == [9.0, 8.0]


def test_a_trend_is_of_one_name_or_of_all(journal: perfnb.results.Journal) -> None:
    for ms, name in ((10.0, "a"), (20.0, "b"), (30.0, "a")):
        journal.add(timing(ms), name=name)

    assert journal.trend().table["step_ms"].tolist() == [10.0, 20.0, 30.0]
    found = journal.trend("a", across="host")
    assert found.table["step_ms"].tolist() == [10.0, 30.0]
    assert "2 entries" in str(found)


def test_a_report_is_kept_with_the_figures_of_both_sides(journal: perfnb.results.Journal) -> None:
    report = replace(EXAMPLES["accept"], profiles={})
    journal.add(report)
    journal.add(report, accepted=False, change="other")

    history = journal.history
    columns = ["kind", "decision", "change", "accepted", "baseline_ms", "median_ms", "candidate_ratio", "reason"]
    facts = ["report", "accept", "fused optimizer", True, report.baseline.median_ms, report.candidate.median_ms]
    assert history[columns].to_numpy().tolist()[0] == [*facts, report.ratio, report.reason]
    assert history[["change", "accepted"]].to_numpy().tolist()[1] == ["other", False]
    loaded = journal.load(1)
    assert isinstance(loaded, perfnb.results.ABTest)
    assert str(loaded) == str(report)


class Made(perfnb.Profile):
    """A profile with made-up figures."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    timing = StepTimes((1.0,) * 10, batch_size=4)  # type: ignore[assignment]
    meta = property(lambda self: self.facts["meta"])
    roofline = property(lambda self: self.facts["roofline"])
    _summary = property(lambda self: SimpleNamespace(memory=self.facts["memory"]))
    _measured_here = property(lambda self: self.facts["here"])


def test_a_profile_is_kept_with_its_own_environment_before_that_of_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.step.environment.provenance", lambda: {"host": "lab", "threads": 4})
    roofline, memory = SimpleNamespace(utilisation=0.3), SimpleNamespace(peak_bytes=7)
    meta = {"environment": {"threads": 2}, "options": {"steps": 10}}

    known = _facts(Made(meta=meta, roofline=roofline, memory=memory, here=True))
    unknown = _facts(Made(meta={}, roofline=None, memory=None, here=False))

    figures = ("kind", "steps", "batch_size", "median_ms", "ci_ms", "throughput_per_s")
    for facts in (known, unknown):
        assert [facts[name] for name in figures] == ["profile", 10, 4, 1.0, (1.0, 1.0), 4000.0]
    rest = ("utilisation", "peak_memory_bytes", "environment", "options")
    assert [known[name] for name in rest] == [0.3, 7, {"host": "lab", "threads": 2}, {"steps": 10}]
    assert [unknown[name] for name in rest] == [None, None, {}, {}]
    untimed = _measured("timing", StepTimes(()))
    assert [untimed[name] for name in figures] == ["timing", 0, None, None, None, None]


def test_it_shows_itself(journal: perfnb.results.Journal) -> None:
    assert "Nothing added yet" in str(journal)
    journal.add(timing(10.0))
    bundle = journal._repr_mimebundle_()

    assert bundle["text/plain"] == str(journal)
    assert repr(journal).endswith(": Nothing accepted yet: entries are compared with entry 1>")
    drawn = journal.plot()
    assert isinstance(drawn, Figure)
    assert list(drawn.axes[0].lines[0].get_ydata()) == [10.0]  # a single entry is drawn, too
    page = journal.to_html(journal.path.parent / "journal.html").read_text("utf-8")
    assert bundle["text/html"] in page
    with pytest.raises(RecordingError, match="cannot be written"):
        journal.to_html(journal.path.parent / "journal.html" / "inside")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda j: j.add({"median_ms": 3}), TypeError, "timings and trials, not dict"),
        (lambda j: j.add(timing(1), hypothesis=3), TypeError, "hypothesis must be a string"),
        (lambda j: j.add(timing(1), accepted="no"), TypeError, "accepted must be True, False or None, not 'no'"),
        (lambda j: j.add(timing(1), change="x" * 2**21), RecordingError, "its texts are larger than 1,048,576 bytes"),
        (lambda j: j.add(timing(1), change="\ud800"), RecordingError, "cannot be written to .*surrogate"),
        (lambda j: j.add(Trials(), change="x"), TypeError, "change and accepted cannot be passed with trials"),
        (lambda j: j.add(Trials(), accepted=False), TypeError, "change and accepted cannot be passed with trials"),
        (lambda j: j.add(Trials(), name=3), TypeError, "name must be a string"),
        (lambda j: j.trend(figure="x"), ValueError, "figure must be one of step_ms, .*, not 'x'"),
        (lambda j: j.trend(across=["host", "x"]), ValueError, "across must be one or more of .*, not 'x'"),
        (lambda j: j.load(1), ValueError, "there is no entry 1"),
        (lambda j: j.load("x"), ValueError, "no entry starts with 'x'"),
        (lambda j: perfnb.journal(j.path, equal_within=0), ValueError, "equal_within must be"),
        (lambda j: perfnb.journal(j.path, equal_within=1), ValueError, "equal_within must be"),
    ],
)
def test_what_makes_no_sense_is_refused(
    journal: perfnb.results.Journal, call: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(journal)
    assert not journal.path.exists()


def test_a_commit_is_recorded_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "commit" not in provenance()
    author = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (tmp_path / "step.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], check=True, env={**os.environ, **author})

    first = provenance()
    (tmp_path / "step.py").write_text("2")

    assert len(first["commit"]) == 40
    assert (first["uncommitted"], provenance()["uncommitted"]) == (False, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "commit" not in provenance()
