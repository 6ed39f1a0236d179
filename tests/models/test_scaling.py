"""Laws of time and memory, from sizes whose figures are planted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.models import scaling
from perfnb.models.scaling import ScalingStudy
from perfnb.models.size_laws import SizePrediction, measured_sizes
from tests.models.idle_bench import IdleBench

SIZES = (4.0, 8.0, 16.0, 32.0)


def study(peak: float | None = 100.0, sizes: tuple[float, ...] = SIZES) -> ScalingStudy:
    """Return a study of steps that take the square of the size, in any order, and so much memory for each size."""
    samples = {size: [size**2 * more for more in (0.99, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0)] for size in reversed(sizes)}
    peaks = {size: None if peak is None else int(peak * size) for size in sizes}
    return ScalingStudy(**measured_sizes(samples, peaks, {size: int(2 * size) for size in sizes[1:]}), device="cpu")


def test_each_size_has_its_figures_in_ascending_order() -> None:
    table = study().table

    assert table["size"].tolist() == list(SIZES)
    assert table["median_ms"].tolist() == [16, 64, 256, 1024]
    assert table["ci_low_ms"].tolist() == pytest.approx([0.99 * size**2 for size in SIZES])
    assert table["ci_high_ms"].tolist() == pytest.approx([1.01 * size**2 for size in SIZES])
    assert table["peak_bytes"].tolist() == [400, 800, 1600, 3200]
    assert table["flops"].tolist() == [pd.NA, 16, 32, 64]
    assert table["predicted_ms"].tolist() == pytest.approx([16, 64, 256, 1024], rel=1e-3)
    assert table["residual"].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-3)


def test_the_laws_are_those_planted() -> None:
    found = study()

    assert found.exponent == pytest.approx(2, abs=1e-3)
    assert found.exponent_ci is not None
    assert found.memory_law is not None
    assert found.memory_law.exponent == pytest.approx(1)
    assert found.warning is None
    assert found.fit["measured"].tolist() == pytest.approx([16, 64, 256, 1024])
    shown = found.fit
    shown["measured"] = 0.0  # a copy
    assert found.fit["measured"].tolist() == pytest.approx([16, 64, 256, 1024])
    assert study(sizes=(4.0, 8.0)).exponent_ci is None


def test_time_and_memory_of_other_sizes_are_predicted() -> None:
    found = study().predict(64)

    assert found.size == 64
    assert found.median_ms == pytest.approx(4096, rel=1e-2)
    assert found.ci_ms[0] <= found.median_ms <= found.ci_ms[1]
    assert found.peak_bytes == 6400
    assert study(None).predict(64).peak_bytes is None
    assert study(None).memory_law is None
    assert "peak memory 6.25 KiB" in repr(found)
    assert repr(SizePrediction(64.0, 2.0, (1.0, 3.0), None)) == "<perfnb.SizePrediction: size 64: 2.00 ms [1.00, 3.00]>"


def test_one_size_without_memory_leaves_memory_unknown() -> None:
    samples = {size: [size] * 7 for size in SIZES}
    peaks = dict.fromkeys(SIZES, 100) | {16.0: None}

    assert measured_sizes(samples, peaks, {})["memory_law"] is None
    assert measured_sizes(samples, dict.fromkeys(SIZES[:3], 100), {})["memory_law"] is None


def test_the_curve_goes_from_half_the_smallest_size_to_twice_the_largest() -> None:
    curve = study().curve

    assert curve["size"].iloc[[0, -1]].tolist() == pytest.approx([2, 64])
    assert set(SIZES) <= set(curve["size"])
    assert (np.diff(curve["size"]) > 0).all()
    assert curve["median_ms"].tolist() == pytest.approx((curve["size"] ** 2).tolist(), rel=1e-2)
    assert ((curve["low_ms"] <= curve["median_ms"]) & (curve["median_ms"] <= curve["high_ms"])).all()
    assert curve["peak_bytes"].tolist() == pytest.approx((100 * curve["size"]).tolist())
    assert study(None).curve["peak_bytes"].isna().all()


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), "8", None])
def test_a_size_that_is_not_a_number_above_0_is_not_predicted(size: Any) -> None:
    with pytest.raises(ValueError, match="size must be a number above 0, not "):
        study().predict(size)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sizes": [4]}, ValueError, "sizes must be at least two different numbers above 0"),
        ({"sizes": [4, 4]}, ValueError, "sizes must be at least two different numbers above 0"),
        ({"sizes": [0, 4]}, ValueError, "sizes must be at least two different numbers above 0"),
        ({"sizes": [4, "8"]}, ValueError, "sizes must be at least two different numbers above 0"),
        ({"budget_s": 0}, ValueError, "budget_s must be"),
        ({"make_step": 3}, TypeError, "make_step must be a function that returns the step for a size, not int"),
        ({"make_step": lambda size: size}, TypeError, r"make_step\(4\) must return a function.*but returned int"),
        ({"make_step": lambda size: lambda x: x}, TypeError, "the step that make_step returns"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"make_step": lambda size: lambda: size, "sizes": [8, 4]}
    with pytest.raises(error, match=message):
        perfnb.scaling_study(**given | arguments)


def summary_of(peak: int | None, other: int, flops: int | None) -> Any:
    memory = None if peak is None else SimpleNamespace(peak_bytes=peak, by_category={"inputs": 5, "other": other})
    return SimpleNamespace(memory=memory, roofline=None if flops is None else SimpleNamespace(flops=flops))


@pytest.mark.parametrize(
    ("summary", "counted"),
    [(summary_of(100, 30, 7), (70, 7)), (summary_of(30, 30, 0), (None, 0)), (summary_of(None, 0, None), (None, None))],
)
def test_memory_that_is_not_the_steps_own_does_not_count(
    summary: Any, counted: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "run_profile", lambda *_, **__: SimpleNamespace(_summary=summary))

    assert scaling._counted(lambda: None) == counted


@pytest.mark.parametrize(
    ("steady", "now", "pilot_ms", "rounds"),
    [(True, 5.0, 400.0, 10), (None, 8.5, 10.0, 50), (None, 12.0, 10.0, 6), (False, 5.0, 10.0, 100)],
)
def test_the_time_that_the_warm_up_leaves_decides_how_many_rounds_run(
    monkeypatch: pytest.MonkeyPatch, steady: bool | None, now: float, pilot_ms: float, rounds: int
) -> None:
    ran: list[tuple[int, int, int, int | None]] = []
    said: list[tuple[str, int, int]] = []

    class Bench(IdleBench):
        def rounds(self, orders: tuple[int, int, int], planned: int | None = None) -> Any:
            ran.append((*orders, planned))
            return np.full((2, orders[0]), pilot_ms / 2)

    class Progress(Bench):
        def __init__(self) -> None:
            pass

        def __call__(self, what: str, done: int, of: int) -> None:
            said.append((what, done, of))

    shown = iter([2.0, now])
    monkeypatch.setattr("perfnb.bench.rounds.Bench", Bench)
    monkeypatch.setattr(scaling, "Progress", Progress)
    monkeypatch.setattr(scaling, "time", SimpleNamespace(perf_counter=lambda: next(shown)))
    monkeypatch.setattr(scaling, "warm_up", lambda bench, start, budget_s: steady if budget_s == 7 else None)
    monkeypatch.setattr(scaling, "random_orders", lambda count, steps, seed: (count, steps, seed))
    monkeypatch.setattr(scaling, "noise_sentences", lambda facts: ["busy"] if facts == "facts" else [])
    monkeypatch.setattr(scaling, "_counted", lambda step: (70 * step(), 3 * step()))

    found = perfnb.scaling_study(lambda size: lambda: size, [9, 3, 9], budget_s=10.0)

    (first, *pilot), (count, steps, seed, planned) = ran
    assert (first, pilot[0], count, steps, planned) == (1, 2, rounds, 2, rounds)
    assert pilot[1] != seed  # the pilot run is no part of the measurement
    assert said == [("counted", 1, 2), ("counted", 2, 2)]
    assert found.table[["median_ms", "peak_bytes", "flops"]].to_numpy().tolist() == [
        [pilot_ms / 2, 70 * size, 3 * size] for size in (3, 9)
    ]
    warned = ["Not all sizes had reached steady state when the warm-up ended."]
    assert list(found.notes) == (warned if steady is False else []) + ["busy"]


def test_sizes_run_side_by_side_and_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    ran: list[float] = []

    def make(size: float) -> Any:
        made.append(size)
        return lambda: ran.append(size) or torch.ones(int(size)).sum()

    monkeypatch.setattr(scaling, "_counted", lambda step: (len(ran), None))
    found = perfnb.scaling_study(make, [9, 3, 9], budget_s=0.05)

    assert made == [3, 9]
    assert found.table["size"].tolist() == [3, 9]
    assert ran.count(3) == ran.count(9) >= scaling.FEWEST_ROUNDS
    assert found.table["peak_bytes"].tolist() == [len(ran)] * 2
    assert found.table["flops"].isna().all()
