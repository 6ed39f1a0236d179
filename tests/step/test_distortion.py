"""What tracing costs is measured and taken off; tests/accuracy tells how well that corrects shares."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import perfnb
from perfnb.step.layers import LayerSpans
from perfnb.step.tracer import Costs, measure_costs
from tests.step.models import three_linears

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_costs_are_what_tracing_adds_and_never_negative() -> None:
    assert Costs(3.0, 5.0).beyond(Costs(1.0, 1.5)) == (2.0, 3.5)
    assert Costs(1.0, 1.0).beyond(Costs(2.0, 2.0)) == (0.0, 0.0)
    assert all(cost > 0 for cost in measure_costs())


def test_costs_are_found_with_hooks_of_others_too_and_these_hear_nothing() -> None:
    heard: list[nn.Module] = []
    with torch.profiler.profile(), LayerSpans() as spans:
        handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(module))
        beside = measure_costs(spans)
        handle.remove()

    assert heard == []
    assert beside.op_ns > 0
    assert beside.call_ns > 0


@pytest.mark.slow
def test_the_profile_says_what_it_corrected_for() -> None:
    model = three_linears()
    p = perfnb.profile_step(lambda: model(torch.ones(4, 8)), warmup=1, steps=1, traced=2)

    assert set(p.meta["cost"]) == {"op_ns", "call_ns"}
    assert all(cost >= 0 for cost in p.meta["cost"].values())
    assert p.phases["share"].sum() == pytest.approx(1)
    own = p.layers["self_share"].sum()
    assert own == pytest.approx(p.phases.loc[["forward", "backward"], "share"].sum())
    assert p.layers.loc["model", "share"] == pytest.approx(own)
