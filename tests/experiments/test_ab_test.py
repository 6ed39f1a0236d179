"""Reports on changes with a known effect: on time, on the answer, on memory."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.bench.quality import Loss
from perfnb.errors import RecordingError
from perfnb.experiments import ab_test as module
from perfnb.experiments.compared_figures import Quality
from perfnb.experiments.report_files import read_report, save_report
from perfnb.results import ABTest
from tests.experiments.ab_samples import EXAMPLES, UNLIMITED, experiment, figures
from tests.fake_clock import FakeClock
from tests.recordings import ByHand

#: Time passes only in the steps' sleeps, so that verdicts are the same on every machine.
pytestmark = pytest.mark.usefixtures("nothing_left", "clock")

X = torch.linspace(0, 1, 64)
#: Few pairs tell a step from one of half the time.
COARSE: dict[str, Any] = {"budget_s": 1.2, "equal_within": 0.2}


def sleeping(ms: float, result: Any = X) -> Callable[..., Any]:
    def step(*_: Any) -> Any:
        time.sleep(ms / 1e3)
        return result

    return step


@pytest.fixture(scope="module")
def accepted() -> ABTest:
    with pytest.MonkeyPatch.context() as patch:
        FakeClock().install(patch)
        report = perfnb.ab_test(
            sleeping(8.0), sleeping(7.2), change="sleeps 10 % less", budget_s=3, equal_within=0.04, profile=True,
        )  # fmt: skip
    return report


@pytest.mark.slow
def test_a_candidate_that_is_10_percent_faster_and_equal_is_accepted(accepted: ABTest) -> None:
    assert accepted.decision == "accept"
    assert accepted.reason.startswith("The candidate is faster (0.9")
    assert accepted.reason.endswith("and its results agree.")
    table = accepted.table
    assert table.loc["median_ms", "ratio"] == pytest.approx(0.9, abs=0.01)
    assert table.loc["median_ms", "ci_low"] <= table.loc["median_ms", "ratio"] <= table.loc["median_ms", "ci_high"]
    assert table.loc["throughput_per_s", "ratio"] == pytest.approx(1 / table.loc["median_ms", "ratio"])
    assert table.loc["difference", "candidate"] == 0.0
    assert table.loc["difference", "limit"] == 1e-4
    assert pd.isna(table.loc["utilisation", "candidate"])
    assert accepted.verdict == "faster"
    assert accepted.candidate.median_ms < accepted.baseline.median_ms
    assert list(accepted.profiles) == ["baseline", "candidate"]
    assert accepted.environment["torch"] == torch.__version__


def test_a_faster_candidate_with_a_wrong_answer_is_rejected() -> None:
    wrong = X.clone()
    wrong[7] += 0.01

    report = perfnb.ab_test(sleeping(6.0), sleeping(2.0, wrong), limits={}, **COARSE)

    assert report.verdict == "faster"
    assert report.decision == "reject"
    assert "differs by up to 0.01 times the largest value (limit 0.0001)" in report.reason


def test_quality_is_judged_after_both_have_run_equally_often() -> None:
    models = [nn.Linear(8, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    counts, seen = [0, 0], []

    def training(place: int, ms: float) -> Callable[[Tensor], None]:
        optimizer = torch.optim.SGD(models[place].parameters(), lr=0.01)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            models[place](batch).square().mean().backward()
            optimizer.step()
            counts[place] += 1
            time.sleep(ms / 1e3)

        return step

    def quality() -> dict[str, float]:
        seen.append(tuple(counts))
        with torch.no_grad():
            return {"loss": float(models[1](torch.ones(4, 8)).square().mean())}

    batch = torch.ones(4, 8)
    same = perfnb.ab_test(training(0, 3), training(1, 2), batches=[batch], quality=quality, **COARSE)

    assert len(seen) == 1
    assert seen[0][0] == seen[0][1] > 6
    with torch.no_grad():
        assert torch.equal(models[0](batch), models[1](batch))
    assert same.decision == "inconclusive"
    assert "Pass limits={'loss': ...}" in same.reason
    assert same.table.loc["throughput_per_s", "unit"] == "samples/s"


def old(batch: Tensor) -> None: ...


def new(batch: Tensor) -> None: ...


WORDS = "the result differs by up to 0.5 times the largest value"


@pytest.mark.parametrize(
    ("given", "judged_by", "check"),
    [
        ({}, "nothing", None),
        ({"profile": True}, "results", WORDS),
        ({"limits": {}}, "results", WORDS),
        ({"limits": {"difference": 0.5}}, "results", ""),
        ({"check": 0.5}, "check", ""),
        ({"check": 0.4, "limits": {"difference": 0.5}, "profile": True}, "check", WORDS),
        ({"quality": lambda: {"loss": 1.0}}, "function", None),
        ({"quality": lambda: {"loss": 1.0}, "limits": {"loss": 2.0}, "profile": True}, "function", None),
    ],
)
def test_results_are_compared_if_a_decision_is_asked_for_and_profiles_share_the_budget(
    given: dict[str, Any], judged_by: str, check: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def pairs(*steps: Any, compare: Any, **options: Any) -> Any:
        ran.append((steps, options))
        if compare is not None:
            compare(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.5]))
        return experiment(0.5)

    def profile(*steps: Any, **options: Any) -> Any:
        ran.append((steps, options["name"], options["budget_s"]))
        numbers.append(float(torch.rand(())))
        return options["name"]

    numbers = list[float]()
    monkeypatch.setattr(module, "time_pairs", pairs)
    monkeypatch.setattr(module, "profile_step", profile)
    report = perfnb.ab_test(old, new, [X], budget_s=10, equal_within=0.1, change="it is new", **given)

    profiled = given.get("profile", False)
    options = {"budget_s": pytest.approx(6.0 if profiled else 10.0), "equal_within": 0.1}
    of_profiles = [((old, [X]), "old", pytest.approx(2.0)), ((new, [X]), "new", pytest.approx(2.0))]
    assert ran == [((old, new, [X], ("old", "new")), options), *of_profiles * profiled]
    assert len(set(numbers)) == profiled  # both have the same random numbers, and so the same batches
    assert (report.quality.judged_by, report.check, report.judged) == (judged_by, check, bool(given))
    assert report.options == {"budget_s": 10, "equal_within": 0.1, "profile": profiled}
    assert (report.limits, report.change) == (given.get("limits", {}), "it is new")
    assert dict[str, Any](report.profiles) == ({"baseline": "old", "candidate": "new"} if profiled else {})


def test_steps_have_their_own_names_if_these_differ() -> None:
    assert module._names(old, new) == ("old", "new")
    for other in (old, lambda batch: None, partial(old, X)):
        assert module._names(old, other) == module._names(other, old) == ("baseline", "candidate")


def test_a_tracker_gets_the_decision_and_the_samples_of_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []

    def log(*given: Any) -> list[str]:
        logged.append(given)
        return ["a note"]

    monkeypatch.setattr(module, "log_result", log)
    report = replace(EXAMPLES["judged"], profiles={})
    assert report.log_to("a tracker", 3) == ["a note"]
    [(of, target, step)] = logged
    assert (of.kind, of.result, target, step) == ("ab_test", report, "a tracker", 3)
    assert (of.outcome.verdict, of.outcome.ratio) == (report.decision, report.ratio)
    assert of.more == {"samples_per_s": report.candidate.throughput_per_s}


def test_a_limit_of_a_loss_that_quality_does_not_return_is_named() -> None:
    report = figures(0.5, UNLIMITED, {"los": 1.0}, profiles=())
    assert report.decision == "inconclusive"
    assert "no limit on quality loss was given; limits names 'los', which quality does not return." in report.reason


@pytest.mark.slow
def test_a_report_that_is_saved_and_loaded_is_the_same(accepted: ABTest, tmp_path: Path) -> None:
    accepted.save(tmp_path / "report")
    loaded = perfnb.load(accepted.save(tmp_path / "report"))

    assert isinstance(loaded, ABTest)
    assert str(loaded) == str(accepted)
    pd.testing.assert_frame_equal(loaded.table, accepted.table)
    pd.testing.assert_frame_equal(loaded.pairs, accepted.pairs)
    for name in ("change", "limits", "options", "environment", "quality"):
        assert getattr(loaded, name) == getattr(accepted, name)
    assert loaded._repr_mimebundle_() == accepted._repr_mimebundle_()
    assert isinstance(perfnb.load(tmp_path / "report" / "candidate"), perfnb.Profile)
    content = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["meta"]
    assert (content["decision"], content["reason"]) == (accepted.decision, accepted.reason)
    assert pd.read_parquet(tmp_path / "report" / "table.parquet")["metric"].tolist() == accepted.table.index.tolist()


def test_losses_of_a_saved_report_have_their_values_and_what_is_not_known_of_them(tmp_path: Path) -> None:
    report = replace(EXAMPLES["judged"], profiles={})
    _, _, read = read_report(save_report(report, tmp_path / "report"))

    assert [astuple(loss) for loss in read["quality"].losses] == [
        ("val_loss", 0.312, 0.310, 0.32),
        ("1 - F1", 0.08, 0.09, None),
    ]


def test_a_report_lacks_both_profiles_or_none_and_its_contents_form_one(tmp_path: Path) -> None:
    path = save_report(replace(EXAMPLES["judged"], profiles={}), tmp_path / "report")
    assert read_report(path)[1] == {}
    file = path / "report.json"
    content = json.loads(file.read_text("utf-8"))
    for part in ("experiment", "quality"):
        file.write_text(json.dumps(content | {"meta": content["meta"] | {part: {"x": 1}}}))
        with pytest.raises(RecordingError, match=f"{re.escape(str(file))} is damaged: .*{part}"):
            read_report(path)
    file.write_text(json.dumps(content))
    recording = ByHand().step(0, 1000).recording()
    for side, other in (("baseline", "candidate"), ("candidate", "baseline")):
        perfnb.Profile(recording).save(path / side)
        with pytest.raises(RecordingError, match=f"is damaged: the profile of the {other} is missing"):
            read_report(path)
        shutil.rmtree(path / side)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["pairs.parquet", "losses.parquet", "report.json", "baseline/profile.json"])
def test_a_damaged_report_is_one_error_that_names_it(accepted: ABTest, tmp_path: Path, file: str) -> None:
    path = accepted.save(tmp_path / "report")
    (path / file).write_bytes(b"{}")

    with pytest.raises(RecordingError) as caught:
        perfnb.load(path)

    assert str(tmp_path) in str(caught.value)


@pytest.mark.slow
def test_a_report_does_not_replace_what_is_none(accepted: ABTest, tmp_path: Path) -> None:
    accepted.save(tmp_path / "report")
    (tmp_path / "report" / "notes.txt").write_text("mine")

    with pytest.raises(RecordingError, match="is not just a perfnb report"):
        accepted.save(tmp_path / "report")
    assert (tmp_path / "report" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"quality": {"loss": 1.0}}, TypeError, "pass quality, not quality"),
        (
            {"quality": lambda model: {"loss": 1.0}},
            TypeError,
            "without arguments: missing a required argument: 'model'",
        ),
        ({"limits": {"peak_memory": 1}}, ValueError, "did you mean 'peak_memory_bytes'"),
        ({"limits": {"peak_memory_bytes": 1}, "profile": False}, ValueError, "only be limited if memory is measured"),
        ({"change": 3}, TypeError, "change must be a string"),
        *(({"check": odd}, TypeError, "check must be a tolerance such as 1e-5 or a func") for odd in (True, "1e-5")),
        *(({"check": odd}, ValueError, "check must be a finite number that is at") for odd in (-1e-9, float("inf"))),
        ({"check": 0, "quality": lambda: {"loss": 1}}, TypeError, "check and quality cannot be combined"),
        ({"budget_s": 0}, ValueError, "budget_s must be"),
        ({"profile": 1}, TypeError, "profile must be True or False"),
        *(({"equal_within": odd}, ValueError, "equal_within must be") for odd in (0, 1, 3)),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_step_has_run(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    ran: list[int] = []

    with pytest.raises(error, match=words):
        perfnb.ab_test(lambda: ran.append(1), lambda: ran.append(2), **given)

    assert ran == []


def test_the_error_of_quality_reaches_the_user() -> None:
    def quality() -> dict[str, float]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        perfnb.ab_test(sleeping(0.2), sleeping(0.1), quality=quality, budget_s=0.1, profile=True)


def of_loss(loss: float, baseline: float | None = None, **limits: float) -> ABTest:
    return figures(0.5, Quality((Loss("loss", loss, baseline, **limits),), "function"), profiles=())


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_a_number_is_worse_than_any(loss: str) -> None:
    report = of_loss(float(loss), limit=1.0)
    assert report.decision == "reject"
    assert f"loss is {loss}" in report.reason


def test_a_baseline_whose_loss_is_not_a_number_sets_no_limit() -> None:
    report = of_loss(0.3, float("nan"))
    assert report.decision == "inconclusive"
    assert "loss of the baseline is nan. Pass limits={'loss': ...}" in report.reason
