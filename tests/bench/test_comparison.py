"""Timing and comparing real steps: verdicts, checks, and the notes next to them."""

from __future__ import annotations

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

    timing = perfnb.time_step(step, [torch.ones(16, 2)], budget_s=3)

    assert 10 <= len(timing.warmup_ms) <= 30
    assert min(timing.warmup_ms[:10]) >= 8.0
    assert timing.median_ms == pytest.approx(2.0, rel=0.01)
    assert timing.batch_size == 16
    assert timing.throughput_per_s == pytest.approx(16e3 / timing.median_ms)
    assert len(timing.warmup_ms) + timing.steps == count
    assert timing.noise["cpus"] >= 1
    assert "warm-up step" in str(timing)


def test_as_many_steps_are_timed_as_were_asked_for(busy: Busy) -> None:
    timing = perfnb.time_step(busy(0.2), steps=50, budget_s=20)

    assert timing.steps == 50
    assert timing.quantile_ms(0.9) is not None
    assert timing.quantile_ms(0.99) is None


def test_a_budget_that_is_too_small_times_one_step(busy: Busy) -> None:
    timing = perfnb.time_step(busy(50), budget_s=0.01)

    assert timing.steps == 1
    assert timing.ci_ms is None
    assert timing.steady is None


def test_a_step_of_half_the_time_is_faster_and_one_of_twice_the_time_slower(busy: Busy) -> None:
    long, short = busy(4.0), busy(2.0)
    faster = perfnb.ab_test(long, short, budget_s=1)
    slower = perfnb.ab_test(short, long, budget_s=1)

    assert (faster.verdict, slower.verdict) == ("faster", "slower")
    assert faster.ratio == pytest.approx(0.5, rel=0.01)
    assert slower.ratio == pytest.approx(2.0, rel=0.01)
    assert faster.ratio_ci is not None
    assert faster.ratio_ci[0] <= faster.ratio <= faster.ratio_ci[1]
    assert faster.pairs.columns.tolist() == ["a_ms", "b_ms", "ratio"]
    assert faster.check is None
    assert faster.a.median_ms == pytest.approx(4.0, rel=0.01)
    assert faster.b.median_ms == pytest.approx(2.0, rel=0.01)


def test_both_steps_see_the_same_batches_and_random_numbers(busy: Busy) -> None:
    seen: dict[str, list[tuple[int, float]]] = {"a": [], "b": []}

    def step(name: str) -> Callable[[int], None]:
        def run(batch: int) -> None:
            busy(1.0)()
            seen[name].append((batch, float(torch.rand((), dtype=torch.float64))))

        return run

    perfnb.ab_test(step("a"), step("b"), batches=[1, 2, 3], budget_s=0.3)

    assert seen["a"] == seen["b"]
    assert len(set(seen["a"])) == len(seen["a"]) > 3


@pytest.mark.slow
def test_results_that_differ_stand_before_the_verdict() -> None:
    x = torch.ones(4)

    wrong = perfnb.ab_test(lambda: x * 2, lambda: x * 3, budget_s=0.3, check=1e-6)
    right = perfnb.ab_test(lambda: x * 2, lambda: x + x, budget_s=0.3, check=1e-6)

    assert wrong.check == "the result differs by up to 0.5 times the largest value"
    assert "Reject: the results are not good enough, regardless of speed: the result differs by up" in str(wrong)
    assert right.check == ""
    assert "results agree" in str(right)


@pytest.mark.slow
def test_a_check_of_the_users_own_may_look_at_models() -> None:
    models = [torch.nn.Linear(4, 4) for _ in range(2)]

    def step(model: torch.nn.Module) -> Callable[[], Any]:
        return lambda: model(torch.ones(2, 4))

    def same_parameters(*_: Any) -> None:
        torch.testing.assert_close(models[0].weight, models[1].weight)

    differing = perfnb.ab_test(step(models[0]), step(models[1]), budget_s=0.3, check=same_parameters)
    assert differing.check is not None
    assert differing.check.startswith("Tensor-likes are not close!")
    models[1].load_state_dict(models[0].state_dict())
    assert perfnb.ab_test(step(models[0]), step(models[1]), budget_s=0.3, check=same_parameters).check == ""


def test_steps_that_return_nothing_are_not_said_to_agree(busy: Busy) -> None:
    test = perfnb.ab_test(busy(0.1), lambda: None, budget_s=0.2, check=1e-5)

    assert test.check is not None
    assert test.check == "a step does not return any tensor or number"
    assert "The results agree" not in str(test)


def test_steps_of_one_name_are_told_apart_by_their_places(busy: Busy) -> None:
    test = perfnb.ab_test(busy(0.1), busy(0.1), budget_s=0.2)

    assert (test.a_name, test.b_name) == ("baseline", "candidate")


def test_a_faster_step_is_accepted_only_if_its_results_were_judged(busy: Busy, tmp_path: Path) -> None:
    plain = perfnb.ab_test(busy(4.0), busy(2.0), budget_s=1)
    checked = perfnb.ab_test(busy(4.0), busy(2.0), budget_s=1, check=0.6)
    slower = perfnb.ab_test(busy(2.0), busy(4.0), budget_s=1)

    assert (plain.decision, checked.decision, slower.decision) == ("inconclusive", "accept", "reject")
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

    timing = perfnb.time_step(step, budget_s=2)

    assert timing.steady is False
    assert "not steady after" in str(timing)


def test_a_budget_that_ends_the_steps_is_said(busy: Busy) -> None:
    timing = perfnb.time_step(busy(5), steps=5000, budget_s=0.5)

    assert "The budget ended before the required 5,000 steps had run" in " ".join(str(timing).split())


@pytest.mark.slow
def test_two_profiles_are_set_side_by_side(tmp_path: Path) -> None:
    def profile(width: int) -> perfnb.Profile:
        model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))
        x = torch.randn(256, 64)
        step = lambda: model(x).sum().backward()  # noqa: E731
        return perfnb.profile_step(step, model={"m": model}, warmup=1, steps=2, traced=1, name=f"width {width}")

    narrow, wide = profile(16), profile(1024)
    comparison = narrow.compare(wide)

    layers = comparison.layers.set_index("a")
    assert layers.loc["m.0", "b"] == "m.0"
    assert layers.loc["m.0", "forward_flops_b"] == 64 * layers.loc["m.0", "forward_flops_a"]
    assert layers.loc["m.0", "grew_ms"] == pytest.approx(
        layers.loc["m.0", "self_ms_b"] - layers.loc["m.0", "self_ms_a"]
    )
    assert "width 1024 against width 16" in str(comparison)
    assert "<table>" in comparison._repr_mimebundle_()["text/html"]
    assert comparison._repr_mimebundle_()["text/html"] in comparison.to_html(tmp_path / "page.html").read_text("utf-8")
    with pytest.raises(TypeError, match="compare requires another profile"):
        narrow.compare(3)  # type: ignore[arg-type]


def test_what_judges_the_results_is_said_once(busy: Busy) -> None:
    with pytest.raises(TypeError, match="check and quality cannot be combined"):
        perfnb.ab_test(busy(1), busy(1), check=1e-5, quality=lambda: {"loss": 1.0})
    with pytest.raises(TypeError, match="resolution must be True, False or a step, not 3"):
        perfnb.system_check(resolution=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("check", [True, "x", [1]])
def test_a_check_that_is_none_is_refused(check: Any, busy: Busy) -> None:
    with pytest.raises(TypeError, match="check must be a tolerance"):
        perfnb.ab_test(busy(1), busy(1), check=check)


def test_what_makes_no_sense_is_refused(busy: Busy) -> None:
    with pytest.raises(ValueError, match="budget_s must be"):
        perfnb.ab_test(busy(1), busy(1), budget_s=0)
    with pytest.raises(ValueError, match="equal_within must be"):
        perfnb.ab_test(busy(1), busy(1), equal_within=2)
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


@pytest.mark.deep
@pytest.mark.slow
def test_a_scaling_study_finds_the_exponent_of_planted_work(busy: Busy) -> None:
    def make(size: float) -> Callable[[], float]:
        return busy(0.02 * size**1.5)

    study = perfnb.scaling_study(make, [4, 8, 16, 24, 32], budget_s=6)

    assert study.exponent == pytest.approx(1.5, abs=0.02)
    assert study.exponent_ci is not None
    assert study.table["size"].tolist() == [4, 8, 16, 24, 32]
    inside, outside = study.predict(20), study.predict(300)
    assert inside.ci_ms[0] < 0.02 * 20**1.5 * 1.01
    assert outside.ci_ms[1] / outside.ci_ms[0] > inside.ci_ms[1] / inside.ci_ms[0]
    with pytest.raises(ValueError, match="at least two different numbers"):
        perfnb.scaling_study(make, [4])


def test_every_public_name_is_there() -> None:
    for name in perfnb.__all__:
        assert getattr(perfnb, name).__name__ == name
