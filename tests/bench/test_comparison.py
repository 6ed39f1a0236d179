"""Timing and comparing real steps: verdicts, checks, and the notes next to them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import perfnb
from perfnb.errors import CaptureError
from perfnb.quantities import share
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Makes a step that takes so many milliseconds.
Busy = Callable[[float], Callable[..., float]]


@pytest.fixture
def busy(clock: FakeClock) -> Busy:
    """Return steps of a known length: times, verdicts and plans are the same on every machine."""

    def make(ms: float) -> Callable[..., float]:
        def step(*_: Any) -> float:
            clock.sleep(ms / 1e3)
            return ms

        return step

    return make


def test_a_step_is_timed_with_its_warm_up_apart(busy: Busy) -> None:
    count = 0

    def step(_: torch.Tensor) -> None:
        nonlocal count
        count += 1
        busy(8.0 if count <= 10 else 2.0)()
        if count in (5, 25):
            gc.collect()

    timing = perfnb.time_step(step, [torch.ones(16, 2)], budget_s=3)

    assert 10 <= len(timing.warmup_ms) <= 30
    assert min(timing.warmup_ms[:10]) >= 8.0
    assert timing.median_ms == pytest.approx(2.0, rel=0.01)
    assert (timing.batch_size, timing.samples) == (16, 16 * timing.steps)
    assert timing.throughput_per_s == pytest.approx(16e3 / timing.median_ms)
    assert len(timing.warmup_ms) + timing.steps == count
    assert timing.noise["cpus"] >= 1
    paused = [place for place, _ in timing.noise["gc_pauses"]]  # counted from the first step after the warm-up
    assert 24 - len(timing.warmup_ms) in paused
    assert min(paused) >= 0
    assert "warm-up step" in str(timing)


def test_a_budget_that_is_too_small_times_one_step(busy: Busy) -> None:
    timing = perfnb.time_step(busy(50), budget_s=0.01)

    assert timing.steps == 1
    assert timing.ci_ms is None
    assert timing.steady is None


def test_a_step_of_half_the_time_is_faster(busy: Busy) -> None:
    faster = perfnb.ab_test(busy(4.0), busy(2.0), budget_s=1)

    assert faster.verdict == "faster"
    assert faster.ratio == pytest.approx(0.5, rel=0.01)
    assert faster.pairs.columns.tolist() == ["a_ms", "b_ms", "ratio"]
    assert faster.check is None
    assert (faster.a.median_ms, faster.b.median_ms) == (pytest.approx(4.0, rel=0.01), pytest.approx(2.0, rel=0.01))


def test_both_steps_see_the_same_batches_and_random_numbers(busy: Busy) -> None:
    seen: dict[str, list[tuple[int, float]]] = {"a": [], "b": []}

    def step(name: str) -> Callable[[torch.Tensor], None]:
        def run(batch: torch.Tensor) -> None:
            busy(1.0)()
            seen[name].append((int(batch[0]), float(torch.rand((), dtype=torch.float64))))

        return run

    alike = perfnb.ab_test(step("a"), step("b"), batches=[torch.full((4,), n) for n in range(3)], budget_s=0.3)
    uneven = perfnb.ab_test(step("a"), step("b"), batches=[torch.zeros(4), torch.ones(5)], budget_s=0.3)

    assert (alike.batch_size, uneven.batch_size) == (4, None)
    assert seen["a"] == seen["b"]
    assert len(set(seen["a"])) == len(seen["a"]) > 3


def test_a_faster_step_is_accepted_only_if_its_results_were_judged(busy: Busy, tmp_path: Path) -> None:
    plain = perfnb.ab_test(busy(4.0), busy(2.0), budget_s=1)
    checked = perfnb.ab_test(busy(4.0), busy(2.0), budget_s=1, check=0.6)

    assert (plain.decision, checked.decision) == ("inconclusive", "accept")
    assert plain.reason.endswith("its results could not be checked: they were not compared. Pass check or quality.")
    assert str(plain).splitlines()[1].startswith("The candidate is faster: ")
    assert plain.table.loc["median_ms", "ratio"] == plain.ratio
    for test in (plain, checked):
        loaded = perfnb.load(test.save(tmp_path / "test"))
        assert isinstance(loaded, perfnb.results.ABTest)
        assert (str(loaded), loaded.check, loaded.decision) == (str(test), test.check, test.decision)


def test_a_step_that_is_never_steady_is_flagged_and_ends(busy: Busy) -> None:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        busy(0.2 * 1.03**count)()

    timing = perfnb.time_step(step, budget_s=20)

    assert timing.steady is False
    assert len(timing.warmup_ms) == 200
    assert "not steady after" in str(timing)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(TypeError, match="resolution must be True, False or a step, not 3"):
        perfnb.system_check(resolution=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step must be a function"):
        perfnb.time_step(3)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="batches"):
        perfnb.time_step(lambda batch: None, [])


def test_a_step_against_itself(busy: Busy, tmp_path: Path) -> None:
    whole = perfnb.system_check(tmp_path, resolution=busy(1.0), budget_s=2)
    check = whole.resolution

    assert check is not None
    found = [check.detectable_in(seconds) for seconds in (10, 60)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] > found[1] > 0
    assert f"A difference of {share(found[0])} can be resolved in 10 s" in str(check)
    assert perfnb.system_check(tmp_path).resolution is None
    assert "<table>" in check._repr_mimebundle_()["text/html"]
