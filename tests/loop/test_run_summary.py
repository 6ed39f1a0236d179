"""What held a run back is found where it was planted, and nowhere else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

import perfnb
from perfnb.draw.document import Cards, Effects
from perfnb.errors import RecordingError
from perfnb.loop.record import RunRecorder
from perfnb.loop.run import RUN, RunSummary, summarise
from perfnb.recording.schema import SCHEMA
from perfnb.recording.store import SavedFolder
from tests.loop.planted_runs import MIB, recorded, run, steady_memory, usual
from tests.samples import texts
from tests.samples.loop import DOCUMENTS

pytestmark = pytest.mark.usefixtures("clock")
N = 2000


def bottlenecks(found: RunSummary) -> list[str]:
    return found.findings["bottleneck"].tolist()


def evidence(found: RunSummary) -> str:
    return str(found.findings["evidence"].iloc[0])


def test_a_run_in_which_all_is_normal(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(usual(N))
    found.show()
    assert str(found) in capsys.readouterr().out
    assert found.verdict == "Steady"
    assert found.findings.empty
    assert found.next is None
    assert found.median_ms == pytest.approx(10.0, rel=0.01)
    assert found.ci_ms is not None
    assert found.ci_ms[0] < 10.0 < found.ci_ms[1]
    assert "memory does not grow" in " ".join(found.sentences)


def test_waits_for_data() -> None:
    waits = usual(N, 6.0, seed=2)
    found = run(usual(N) + waits, waits)
    assert found.verdict.startswith("Input-bound")
    assert bottlenecks(found) == ["input pipeline"]
    (bound,) = found.findings["bound_ms"]
    assert bound == pytest.approx(waits.mean(), rel=1e-3)
    share = waits.sum() / (usual(N) + waits).sum()
    low, high = (float(part) for part in evidence(found).split("[")[1].split("]")[0].split(","))
    assert low <= 100 * share <= high
    assert high - low < 2
    assert found.sentences[0] == "Input-bound: removing the wait for data could save up to 5.99 ms per step, 37 %."
    assert not any(isinstance(section, Cards) for section in found._document().sections)  # the verdict says it all
    assert found._document().verdict.selects == ""


def stalled(step: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"wall_ms": usual(N) + 90.0 * (step % 100 == 50)}


def starved(step: np.ndarray[Any, Any]) -> dict[str, Any]:
    waits = 120.0 * (step % 40 == 10)
    return {"wall_ms": usual(N) + waits, "data_ms": waits}


def grown(step: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"wall_ms": usual(N) * np.exp(step / 400.0)}


def jumped(step: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"wall_ms": usual(N) * np.where(step < 1234, 1.0, 1.3)}


def leaked(step: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"wall_ms": usual(N), "memory": lambda step: steady_memory(step) + step * MIB // 4}


@pytest.mark.parametrize(
    ("planted", "bottleneck", "said"),
    [
        (stalled, "stalls", "every 100 steps"),
        (starved, "input pipeline", "in bursts"),
        (grown, "drift", "Step time rose over the run from"),
        (jumped, "change of pace", "at step 1,23"),
        (leaked, "memory growth", "256 KiB per step"),
    ],
)
def test_what_was_planted_is_found(planted: Callable[[Any], dict[str, Any]], bottleneck: str, said: str) -> None:
    found = run(**planted(np.arange(N)))
    assert bottlenecks(found) == [bottleneck]
    assert said in evidence(found)
    assert pd.isna(found.findings["bound_share"].max()) or found.findings["bound_share"].max() < 1
    assert list(found.findings.columns) == list(SCHEMA["findings"])
    assert found.next is not None


def test_warm_up_and_profiled_windows_are_left_out() -> None:
    wall = usual(N)
    wall[:2], wall[100:130] = (900, 30), 30 * wall[100:130]
    kept = recorded(wall, windows=[(100, 130)], pass_name="traced")
    kept.facts.update(load=6.5, cpus=4)
    found = RunSummary(kept)
    assert (found.verdict, len(found.slow)) == ("Steady", 0)
    assert found._document().verdict.sentence.endswith("; only faster steps can shorten the run")
    said = " ".join(found.sentences)
    assert "the first 2 steps (warm-up)" in said
    assert "30 profiled steps" in said
    assert "busy, with a mean load of 6.5 on 4 CPUs" in said


def test_a_surer_finding_that_is_not_much_smaller_is_the_verdict() -> None:
    other, wall = np.zeros(N), usual(N)
    other[[500, 1500]] = 700.0
    wall[1000] = 2500.0  # one slow step, as other work on the machine causes
    found = run(wall, other_ms=other)
    assert bottlenecks(found) == ["stalls", "between steps"]
    cards = next(section for section in found._document().sections if isinstance(section, Cards))
    assert [card.title for card in cards.cards] == ["between steps", "stalls"]
    assert found._document().verdict.selects == "findings"
    assert found.findings["confidence"].tolist() == ["low", "high"]
    assert found.verdict == "Much time passes between steps"


@pytest.mark.parametrize(
    "memory",
    [
        lambda step: steady_memory(step) + (500 * MIB if step > 900 else 0),  # one jump
        lambda step: steady_memory(step) + int(300 * MIB * (1 - math.exp(-step / 100))),  # a cache that fills
        lambda step: steady_memory(step) + (step % 97) * MIB,  # garbage that is collected
    ],
)
def test_memory_that_changes_but_does_not_keep_growing(memory: Any) -> None:
    assert "memory growth" not in bottlenecks(run(usual(N), memory=memory))


def test_memory_that_profiles_take_is_not_growth_and_does_not_hide_it() -> None:
    def memory(step: int) -> int:
        return steady_memory(step) + 300 * MIB * ((step > 420) + (step > 1020))

    windows = [(400, 425), (1000, 1025)]
    assert run(usual(N), memory=memory, windows=windows).verdict == "Steady"
    growing = run(usual(N), memory=lambda step: memory(step) + step * MIB // 4, windows=windows)
    assert growing.verdict == "Memory grows"
    assert "255 KiB per step" in evidence(growing)


@pytest.mark.parametrize("steps", [1, 29])
def test_too_few_steps_for_a_verdict(steps: int) -> None:
    waits = np.full(steps, 50.0)
    found = run(usual(steps) + waits, waits)
    assert found.verdict == "Too few steps for a verdict"
    assert found.findings.empty
    assert found.next is None
    assert str(found)


def test_no_step_no_summary() -> None:
    assert summarise(RunRecorder()) is None


def test_phases_add_up_to_the_run() -> None:
    waits, other = usual(N, 2.0, seed=3), np.full(N, 0.5)
    found = run(usual(N) + waits, waits, other, windows=[(100, 130), (0, 5)], window_ms=800.0)
    phases = found.phases
    assert phases["ms"].sum() == pytest.approx(found.duration_ms, rel=1e-6)
    assert phases["share"].sum() == pytest.approx(1.0)
    inside = (usual(N) + waits)[[*range(5), *range(100, 130)]].sum() + 35 * 0.5 + 2 * 800.0
    assert phases.at["profiled", "ms"] == pytest.approx(inside, abs=1.0)


def test_a_jump_between_uneven_levels_has_its_ratio_inside_the_interval() -> None:
    wall = usual(N)
    wall[:800] = np.where(np.arange(800) // 33 % 3, 1.3, 9.0)
    wall[800:] *= 2.7
    ratio = run(wall).changes.ratio  # type: ignore[union-attr]
    assert ratio.low <= ratio.estimate <= ratio.high


def test_waits_that_nobody_measured_are_not_zero() -> None:
    found = run(usual(N), np.full(N, -1e-6))
    assert pd.isna(found.phases.at["data", "ms"])
    assert "waits for data are unknown" in " ".join(found.sentences).lower()


def test_saved_and_loaded(tmp_path: Path) -> None:
    waits = usual(N, 6.0, seed=2)
    found = run(usual(N) + waits, waits, windows=[(100, 120)])
    again = perfnb.load(found.save(tmp_path / "run.perfnb"))
    assert isinstance(again, perfnb.results.RunSummary)
    assert str(again) == str(found)
    pd.testing.assert_frame_equal(again.steps, found.steps)
    pd.testing.assert_frame_equal(again.memory, found.memory)


def test_a_loaded_run_keeps_and_logs_what_was_found_when_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[Any] = []

    def log(*given: Any) -> list[str]:
        logged.append(given)
        return ["a note"]

    monkeypatch.setattr("perfnb.loop.run.log_result", log)
    waits = usual(N, 6.0, seed=2)
    found = run(usual(N) + waits, waits)
    saved: Any = SavedFolder(RUN, found.save(tmp_path / "run")).outcome
    again: Any = perfnb.load(tmp_path / "run")

    assert again.log_to("a tracker", 3) == ["a note"]
    [(of, target, step)] = logged
    assert (of.kind, of.result, of.outcome, target, step) == ("run", again, saved, "a tracker", 3)
    assert SavedFolder(RUN, again.save(tmp_path / "copy")).outcome == saved
    assert found.log_to("a tracker") == ["a note"]
    assert structs.replace(logged[1][0].outcome, at=saved.at) == saved  # it has not been loaded
    assert (saved.name, saved.verdict, saved.findings[0].bottleneck) == ("train.py", "Input-bound", "input pipeline")
    assert saved.bound_ms == found.findings["bound_ms"].iloc[0]
    assert (saved.step_ms, saved.step_ci_ms, saved.data_share) == (found.median_ms, found.ci_ms, found.wait.estimate)
    assert saved.peak_bytes == found._recorded.facts["peak_resident_bytes"] > 0
    found._recorded.facts["peak_allocated_bytes"] = 0
    assert found._outcome().peak_bytes == 0


@pytest.mark.parametrize(("name", "value"), [("ratio", -1.0), ("interval", [1.0]), ("left", -1)])
def test_what_was_tried_is_saved_with_the_run_and_checked(name: str, value: object, tmp_path: Path) -> None:
    tried = {"lever": "threads", "verdict": "faster", "ratio": 0.5, "interval": [0.4, 0.6], "values": "exact"}
    tried |= {"saves_ms": 3.0, "setup_s": None, "left": 7, "kept": True, "why_not": "", "code": ["a line"]}
    found = run(usual(100))._recorded
    found.facts["tried"] = [tried]
    path = RunSummary(found).save(tmp_path / "run.perfnb")
    [loaded] = perfnb.load(path).tried
    assert loaded == tried

    meta = json.loads((path / "run.json").read_text())
    meta["meta"]["tried"][0][name] = value
    (path / "run.json").write_text(json.dumps(meta))
    with pytest.raises(RecordingError, match=r"run\.json.*tried"):
        perfnb.load(path)


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    path = run(usual(100)).save(tmp_path / "run.perfnb")
    (path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecordingError, match=r"rows\.parquet"):
        perfnb.load(path)
    meta = path / "run.json"
    meta.write_text(meta.read_text().replace('"stride": 1', '"stride": "many"'))
    with pytest.raises(RecordingError, match=r"run\.json"):
        perfnb.load(path)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("one_wall_ns", -1, "one_wall_ns"),
        ("sum_data_ns", 2**61, "wait for data is longer"),
    ],
)
def test_durations_that_cannot_be_are_refused(column: str, value: int, words: str, tmp_path: Path) -> None:
    path = run(usual(100), usual(100, 2.0)).save(tmp_path / "run.perfnb")
    rows = pd.read_parquet(path / "rows.parquet")
    for which in ("sum", "one"):
        rows[f"{which}_data_ns"] = rows[f"{which}_wall_ns"]  # a step may do nothing but wait
    rows.to_parquet(path / "rows.parquet")
    assert perfnb.load(path).verdict
    rows.loc[0, column] = value
    rows.to_parquet(path / "rows.parquet")
    with pytest.raises(RecordingError, match=words):
        perfnb.load(path)


def test_two_runs() -> None:
    waits = usual(N, 6.0, seed=2)
    a = run(usual(N) + waits, waits, name="before")
    b = run(usual(N, seed=4), memory=lambda step: steady_memory(step) + step * MIB // 4, name="after")
    found = a.compare(b)
    assert found.verdict == "faster"
    assert found.ratio_ci is not None
    assert found.ratio_ci[0] < 10 / 16 < found.ratio_ci[1]
    change = found.step.loc["waiting for data"]
    assert change["low_ms"] < -waits.mean() < change["high_ms"]
    assert found.memory.at["growth of resident", "low_bytes"] > 0
    assert found.step["ratio"].isna().tolist() == [False, False, True, False, True], "nothing to compare with 0"
    ratio = found.step.loc["mean step"]
    assert ratio["ratio_low"] < 10 / 16 < ratio["ratio_high"]
    effects = next(section for section in found._document().sections if isinstance(section, Effects))
    assert [row.label for row in effects.rows] == ["step (median)", "step (mean)", "working"]
    assert effects.rows[0].interval == found.ratio_ci
    sentence, why, *_ = found.sentences
    assert re.fullmatch(r"The candidate's steps are faster: 37 % less time, 0\.626 × \[0\.62\d, 0\.62\d\]\.", sentence)
    assert "waiting for data −5.99 ms [−6.00, −5.98]" in why
    assert "Memory (resident) grows faster, by 256 KiB per step" in why


def test_two_runs_alike_and_two_too_short() -> None:
    assert run(usual(N)).compare(run(usual(N, seed=9))).verdict == "same"
    short = run(usual(N)).compare(run(usual(20)))
    assert short.verdict == "inconclusive"
    assert short.ratio_ci is None
    assert short.step["low_ms"].isna().any()
    with pytest.raises(TypeError, match="another run"):
        run(usual(40)).compare("run.perfnb")  # type: ignore[arg-type]
    for wrong in (1, -0.1, None):
        with pytest.raises(ValueError, match="equal_within"):
            run(usual(40)).compare(run(usual(40)), equal_within=wrong)  # type: ignore[arg-type]
    assert run(usual(40)).compare(run(usual(40)), equal_within=0).equal_within == 0


def test_the_format_of_a_saved_run(tmp_path: Path) -> None:
    path = run(usual(40)).save(tmp_path / "r")
    assert SavedFolder(RUN, path).facts["steps"] == 40
    earlier = json.loads((path / "run.json").read_text())
    del earlier["meta"]["load"], earlier["meta"]["cpus"]
    (path / "run.json").write_text(json.dumps(earlier))
    assert "busy" not in str(perfnb.load(path))


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
