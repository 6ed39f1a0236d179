"""The JSON file of something saved has the dated outcome, which can be read without anything else."""

from __future__ import annotations

import json
import math
import platform
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.errors import RecordingError
from perfnb.experiments.ab_test import ABTest
from perfnb.recording.outcome import Outcome, make_outcome
from perfnb.recording.store import SavedFolder, SavedKind, save
from tests.experiments.ab_samples import ENVIRONMENT, SAME, experiment
from tests.loop.planted_runs import run, usual
from tests.step.models import three_linears, training_step


def read_outcome(folder: Path) -> Outcome | None:
    """Return what any reader of JSON finds."""
    (file,) = folder.glob("*.json")
    return msgspec.convert(json.loads(file.read_text("utf-8")).get("outcome"), Outcome | None)


@pytest.fixture(scope="module")
def profile() -> perfnb.Profile:
    step = training_step(three_linears(), torch.ones(4, 8))
    return perfnb.profile_step(step, warmup=1, steps=8, traced=2, name="mine")


def test_a_profile_keeps_its_verdict_findings_and_origin(profile: perfnb.Profile, tmp_path: Path) -> None:
    before = datetime.now(UTC)
    found = read_outcome(profile.save(tmp_path / "run"))

    assert found is not None
    assert found.name == "mine"
    assert found.verdict == profile._summary.findings.verdict.verdict  # type: ignore[union-attr]
    row = profile._summary.findings.verdict.finding  # type: ignore[union-attr]
    assert [one.bottleneck for one in found.findings] == profile.findings["bottleneck"].tolist()
    assert [one.bound_ms for one in found.findings] == [
        None if pd.isna(ms) else ms for ms in profile.findings["bound_ms"]
    ]
    assert found.bound_ms == (None if row is None else found.findings[row].bound_ms)
    assert found.confidence == (None if row is None else found.findings[row].confidence)
    assert (found.step_ms, found.step_ci_ms) == (profile.timing.median_ms, profile.timing.ci_ms)
    assert found.data_share == profile.phases["share"].get("data")
    assert found.peak_bytes == profile._summary.memory.peak_bytes  # type: ignore[union-attr]
    assert (found.host, found.torch) == (platform.node(), torch.__version__)
    assert found.device
    assert before <= found.at <= datetime.now(UTC) + timedelta(seconds=1)


def test_a_loaded_profile_keeps_what_was_found_first(profile: perfnb.Profile, tmp_path: Path) -> None:
    first = profile.save(tmp_path / "run")
    edited(first, verdict="As it was found then.")

    again = perfnb.load(first).save(tmp_path / "again")

    assert read_outcome(again) == read_outcome(first)
    assert "As it was found then." in (again / "profile.json").read_text("utf-8")


def test_a_run_keeps_what_held_it_back(tmp_path: Path) -> None:
    held = run(usual(400) + 6.0, 6.0 + 0 * usual(400))
    found = read_outcome(held.save(tmp_path / "run"))

    assert found is not None
    assert found.verdict == held.verdict
    assert found.findings[0].bottleneck == held.findings["bottleneck"][0]
    assert found.bound_ms == pytest.approx(held.findings["bound_ms"][0])
    assert found.data_share == pytest.approx(
        held.phases["ms"]["data"] / held.phases["ms"][["data", "step"]].sum(), rel=0.1
    )
    assert (found.step_ms, found.step_ci_ms) == (pytest.approx(held.median_ms), pytest.approx(held.ci_ms))
    assert found.peak_bytes is not None
    assert read_outcome(perfnb.load(tmp_path / "run").save(tmp_path / "again")) == found


def test_a_report_keeps_its_decision_and_ratio(tmp_path: Path) -> None:
    report = ABTest(**vars(experiment(0.9)), quality=SAME, environment=ENVIRONMENT, change="none")
    found = read_outcome(report.save(tmp_path / "report"))

    assert found is not None
    assert (found.name, found.verdict) == ("none", report.decision)
    assert (found.step_ms, found.ratio, found.ratio_ci) == (report.candidate.median_ms, report.ratio, report.ratio_ci)
    assert found.peak_bytes == report.candidate.peak_memory_bytes


def edited(saved: Path, **changes: Any) -> None:
    file = next(saved.glob("*.json"))
    content = json.loads(file.read_text("utf-8"))
    content["outcome"] |= changes
    file.write_text(json.dumps(content))


def test_a_profile_saved_without_an_outcome_is_loaded_and_gets_one(profile: perfnb.Profile, tmp_path: Path) -> None:
    saved = profile.save(tmp_path / "run")
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    del content["outcome"]
    (saved / "profile.json").write_text(json.dumps(content))

    assert read_outcome(saved) is None
    again = read_outcome(perfnb.load(saved).save(tmp_path / "again"))

    assert again is not None
    assert again.step_ms == profile.timing.median_ms
    assert again.host is None  # not that of the machine that loads it


@pytest.mark.parametrize(
    ("key", "value"),
    [("at", "yesterday"), ("at", "2026-03-01T12:00:00"), ("step_ms", -1.0), ("findings", {}), ("name", 3)],
)
def test_a_damaged_outcome_is_one_error_that_names_the_file_and_the_key(tmp_path: Path, key: str, value: Any) -> None:
    saved = run(usual(40)).save(tmp_path / "run")
    edited(saved, **{key: value})

    with pytest.raises(RecordingError, match=rf"run\.json is damaged: .*`outcome\.{key}`\.$"):
        perfnb.load(saved)


def test_an_outcome_has_the_finding_behind_the_verdict_and_the_circumstances() -> None:
    findings = pd.DataFrame({"bottleneck": ["a", "b"], "confidence": ["low", "high"], "bound_ms": [math.nan, 2.0]})
    around: dict[str, Any] = {"at": "2026-03-01T12:00:00+02:00", "host": "h", "torch": 2.6, "commit": None}
    around |= {"gpus": ["A", "B"], "processor": "P", "threads": 3}
    figures = {"step_ms": 3, "peak_bytes": 7.0, "batch_size": 8.0, "ratio": 0.75, "data_share": 0.0}

    made = make_outcome(
        "x", around, verdict="v", findings=findings, row=1, interval_ms=(1, 2), ratio_interval=(0.5, 1.5), **figures
    )

    assert made.at == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert (made.name, made.verdict, made.confidence, made.bound_ms) == ("x", "v", "high", 2.0)
    assert [(one.bottleneck, one.confidence, one.bound_ms) for one in made.findings] == [
        *(("a", "low", None), ("b", "high", 2.0))
    ]
    assert (made.step_ms, made.step_ci_ms, made.ratio, made.ratio_ci) == (3.0, (1.0, 2.0), 0.75, (0.5, 1.5))
    assert (made.peak_bytes, made.batch_size, made.data_share) == (7, 8, 0.0)
    assert (type(made.peak_bytes), type(made.batch_size), type(made.step_ms)) == (int, int, float)
    assert (made.host, made.torch, made.commit, made.device) == ("h", "2.6", None, "A, B")
    assert made.environment == {"gpus": ["A", "B"], "processor": "P", "threads": 3}
    unverdicted = make_outcome("x", {"processor": "P", "gpus": [], "at": "then"}, findings=findings)
    assert (unverdicted.device, unverdicted.bound_ms, unverdicted.confidence) == ("P", None, None)
    assert len(unverdicted.findings) == 2
    assert abs(datetime.now(UTC) - unverdicted.at) < timedelta(hours=1)


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, pd.NA])
def test_figures_that_are_not_known_are_none(unknown: Any) -> None:
    made = make_outcome("x", {}, step_ms=unknown, peak_bytes=unknown, interval_ms=(1.0, unknown))

    assert (made.step_ms, made.peak_bytes, made.step_ci_ms, made.host) == (None, None, None, None)


def test_parts_that_cannot_be_written_name_the_place_and_the_cause(tmp_path: Path) -> None:
    inner, outer = SavedKind("inner", dict), SavedKind("outer", dict)

    def full(path: Path) -> None:
        path.mkdir()
        raise OSError(28, "No space left on device")

    def part(path: Path) -> None:
        save(inner, {}, {}, path, parts={"deep": full})

    with pytest.raises(RecordingError) as caught:
        save(outer, {}, {}, tmp_path / "thing", parts={"part": part})
    assert str(caught.value) == (
        f"The outer cannot be written to {tmp_path / 'thing'}: [Errno 28] No space left on device."
    )
    assert not list(tmp_path.iterdir())


def test_unlisted_facts_come_back(tmp_path: Path) -> None:
    kind = SavedKind("thing", dict[str, Any])
    saved = save(kind, {}, {"a": {"b": [1, None]}}, tmp_path / "thing")

    assert SavedFolder(kind, saved).facts == {"a": {"b": [1, None]}}
    assert SavedFolder(kind, saved).outcome is None
