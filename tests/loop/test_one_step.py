"""A step is the same however it is driven: its waits, batches and samples, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.run import RunSummary, summarise
from perfnb.loop.script_steps import ScriptSteps
from perfnb.profile.profile import Profile
from tests.fake_clock import FakeClock
from tests.loop.accumulating import BATCHES, MAKING_MS, ROWS, WORK_MS, Accumulating

pytestmark = pytest.mark.usefixtures("nothing_left")
SHORT: dict[str, Any] = {"steps": 8, "traced": 2}


def as_script(made: type[Accumulating] = Accumulating, by: str = "first") -> tuple[Profile, RunSummary]:
    """Profile as `perfnb run` drives a script."""
    drivers = list[LoopProfiler]()

    def start(loader: Any) -> LoopProfiler:
        drivers.append(LoopProfiler(at=4, namespace=lambda: training.namespace, loader=loader, **SHORT))
        return drivers[0]

    with ScriptSteps(start, by).installed():
        training = made()
        training.loop(training.loader)
    [driver] = drivers
    driver.close()
    run = summarise(driver.recorder)
    assert run is not None
    return driver.profiles[0], run


def as_profiled() -> tuple[Profile, RunSummary]:
    training = Accumulating()
    loop = perfnb.profiled(training.loader, at=8, **SHORT)
    training.loop(loop)
    assert loop.run is not None
    return loop.profiles[0], loop.run


Way = Callable[[], tuple[Profile, RunSummary]]


@pytest.mark.parametrize("way", [as_script, as_profiled])
def test_a_step_has_all_its_waits_and_batches(way: Way, clock: FakeClock, tmp_path: Path) -> None:
    profile, run = way()

    steps = profile.steps[profile.steps["pass"] == "timed"]
    assert steps["data_ms"].tolist() == pytest.approx([BATCHES * MAKING_MS] * len(steps), rel=0.02)
    assert steps["wall_ms"].tolist() == pytest.approx([BATCHES * (MAKING_MS + WORK_MS)] * len(steps), rel=0.02)
    assert set(profile.steps["samples"]) == {BATCHES * ROWS}
    throughput = profile.timing.throughput_per_s
    assert throughput == pytest.approx(ROWS / (MAKING_MS + WORK_MS) * 1000, rel=0.02)
    text = " ".join(str(profile).split())
    assert f"batch of {BATCHES * ROWS}" in text
    assert "per batch" not in text
    assert "one optimizer step on 4 batches" in text
    assert "8 batches of 2 samples instead of 4 of 5" in text  # what would make it fit
    first = profile.findings.iloc[0]
    assert first["bottleneck"] == "input pipeline"
    assert first["bound_ms"] == pytest.approx(BATCHES * MAKING_MS, rel=0.02)
    assert "ms for its 4 batches" in first["evidence"]
    assert "the step's 4 batches take about 40" in first["advice"]
    assert run.verdict == "Input-bound"
    assert run.findings.iloc[0]["bound_ms"] == pytest.approx(BATCHES * MAKING_MS, rel=0.05)
    assert "for their 4 batches on average" in run.findings.iloc[0]["evidence"]
    assert run.median_ms == pytest.approx(BATCHES * (MAKING_MS + WORK_MS), rel=0.02)
    assert "Each step is one optimizer step on 4 batches." in run.sentences
    assert str(perfnb.load(run.save(tmp_path / "run"))) == str(run)


def without_an_optimizer() -> tuple[Profile, RunSummary]:
    training = Accumulating()
    loop = perfnb.profiled(training.loader, at=8, **SHORT)
    for batch in loop:
        training.work(batch)
    assert loop.run is not None
    return loop.profiles[0], loop.run


@pytest.mark.parametrize("way", [lambda: as_script(by="batch"), without_an_optimizer])
def test_where_each_batch_is_a_step_the_headline_says_per_batch(way: Way, clock: FakeClock, tmp_path: Path) -> None:
    profile, run = way()

    assert profile.timing.median_ms == pytest.approx(MAKING_MS + WORK_MS, rel=0.02)
    headline = next(line for line in str(profile).splitlines() if line.startswith("step "))
    assert headline.startswith("step per batch ")
    assert run._document().figures[0].label == "step (one batch)"
    assert "Each step is one batch, because no optimizer step shows where a step ends." in run.sentences
    assert str(perfnb.load(run.save(tmp_path / "run"))) == str(run)


def test_the_waits_for_a_second_loader_count_and_its_rows_do_not(clock: FakeClock) -> None:
    class Two(Accumulating):
        def loop(self, batches: Iterable[Any]) -> None:
            for batch, _ in zip(batches, Accumulating().loader, strict=True):
                self.work(batch)
                self.optimizer.step()

    profile, _ = as_script(Two)
    steps = profile.steps[profile.steps["pass"] == "timed"]
    assert steps["data_ms"].tolist() == pytest.approx([2 * MAKING_MS] * len(steps), rel=0.02)
    assert set(profile.steps["samples"]) == {ROWS}


@pytest.mark.parametrize("at", [1, 3])
def test_accumulated_batches_before_the_first_optimizer_step_count_as_one_step(at: int, clock: FakeClock) -> None:
    """The profile, the whole run and the loop number the steps alike, also if a window opened among these batches."""
    training = Accumulating()
    loop = perfnb.profiled(training.loader, at=at, **SHORT)
    training.loop(loop)

    assert loop.run is not None
    assert loop.profiles.at == [at]
    assert set(loop.profiles[0].steps["samples"]) == {BATCHES * ROWS}
    assert "per batch" not in str(loop.profiles[0])
    assert loop.run.windows["step"].tolist()[-1:] == [at]
    assert loop.run.steps["steps"].sum() == len(training.loader) // BATCHES
    assert "after 60 steps" in repr(loop)


def test_the_message_about_a_loop_too_short_has_its_true_steps(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Accumulating(steps=10)
    training.loop(perfnb.profiled(training.loader, at=10, **SHORT))
    training.loop(perfnb.profiled(training.loader, at=9, **SHORT))
    length = SHORT["steps"] + SHORT["traced"] + 4
    later = ", or make one profiled object before the epochs and iterate over it in each of them"
    assert capsys.readouterr().out.splitlines() == [
        f"perfnb: no step has been profiled yet: the loop had 10 steps, and {why}. "
        f"Choose a smaller at= or steps={more}."
        for why, more in (
            (f"the window of {length} opens only after 10", later),
            (f"no window of {length} fitted between step 9 and the epoch's end", ""),
        )
    ]
