"""Tracing slows a layer of many tiny ops more than one of a few large ones; shares are corrected for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.capture.calibration import Costs, measure_costs
from perfnb.capture.layers import LayerSpans
from tests.capture.models import three_linears
from tests.capture.timed import BusyError, judged_on_time

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Most that the shares of two layers of equal time may differ.
POINTS = 0.05


class ManyTiny(nn.Module):
    def __init__(self, ops: int) -> None:
        super().__init__()
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ones(2000)
        for _ in range(self.ops):
            y.mul_(1.0)
        return x


class OneLarge(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.rand(width, width))

    def forward(self, x: Tensor) -> Tensor:
        self.matrix @ self.matrix
        return x


def true_times(layers: Iterable[nn.Module], x: Tensor) -> list[float]:
    """Median time of each layer without any profiler, called in turn as a model calls them."""
    times: list[list[float]] = []
    for _ in range(30):
        marks = [time.perf_counter()]
        for layer in layers:
            layer(x)
            marks.append(time.perf_counter())
        times.append([end - begin for begin, end in pairwise(marks)])
    return [statistics.median(column) for column in zip(*times, strict=True)]


def of_equal_time(tiny: nn.Module, x: Tensor) -> OneLarge:
    """The product whose untraced time is that of `tiny`, by bisection over its width."""
    narrow, wide = 16, 1024
    while wide - narrow > 1:
        width = (narrow + wide) // 2
        one, other = true_times([OneLarge(width), tiny], x)
        narrow, wide = (width, wide) if one < other else (narrow, width)
    return OneLarge(narrow)


@judged_on_time
def test_two_layers_of_equal_true_time_have_equal_shares() -> None:
    torch.set_num_threads(1)
    x = torch.ones(1)
    tiny = ManyTiny(200)
    model = nn.Sequential(of_equal_time(tiny, x), tiny)

    with torch.no_grad():
        profiles = [perfnb.profile_step(lambda: model(x), warmup=3, steps=3, traced=4) for _ in range(12)]
        large_s, tiny_s = true_times(model, x)
    calm = sorted(profiles, key=lambda p: p.phases["ms"].sum())[:6]  # other work can only add to a step

    def gap(column: str) -> float:
        """How much more of the model's time the many tiny ops seem to take; median of the calmest profiles."""
        rows = [p.layers[column].astype(float) / p.layers.loc["model", column] for p in calm]
        return statistics.median(row["model.1"] - row["model.0"] for row in rows)

    truth = (tiny_s - large_s) / (tiny_s + large_s)
    print(f"gap in truth {truth:+.1%}, in shares {gap('share'):+.1%}, in traced times {gap('total_ms'):+.1%}")
    traced_large_s = statistics.median(p.layers.loc["model.0", "total_ms"] for p in calm) / 1e3
    if abs(truth) >= POINTS or not 0.9 < traced_large_s / large_s < 1.1:
        raise BusyError(f"layers {truth:+.1%} apart, one op of {large_s:.2g} s traced as {traced_large_s:.2g} s")
    assert abs(gap("share") - truth) <= POINTS
    assert abs(gap("share") - truth) < abs(gap("total_ms") - truth)


def test_costs_are_what_tracing_adds_and_never_negative() -> None:
    assert Costs(3.0, 5.0).beyond(Costs(1.0, 1.5)) == (2.0, 3.5)
    assert Costs(1.0, 1.0).beyond(Costs(2.0, 2.0)) == (0.0, 0.0)
    assert all(cost > 0 for cost in measure_costs())


@judged_on_time
def test_costs_are_found_with_hooks_of_others_too_and_these_hear_nothing() -> None:
    heard: list[nn.Module] = []
    with torch.profiler.profile(), LayerSpans() as spans:
        alone = measure_costs(spans)
        handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(module))
        beside = measure_costs(spans)
        handle.remove()

    assert heard == []
    assert beside.call_ns == pytest.approx(alone.call_ns, rel=0.9)


def test_the_profile_says_what_it_corrected_for() -> None:
    model = three_linears()
    p = perfnb.profile_step(lambda: model(torch.ones(4, 8)), warmup=1, steps=1, traced=2)

    assert set(p.meta["cost"]) == {"op_ns", "call_ns"}
    assert all(cost >= 0 for cost in p.meta["cost"].values())
    assert p.phases["share"].sum() == pytest.approx(1)
    own = p.layers["self_share"].sum()
    assert own == pytest.approx(p.phases.loc[["forward", "backward"], "share"].sum())
    assert p.layers.loc["model", "share"] == pytest.approx(own)
