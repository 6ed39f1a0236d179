"""What ranks of a job on this machine wait for, and what synchronising each micro-step costs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import perfnb
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")

SLEEP_MS, WITHIN_MS = 10, 1.5
#: How far the bound may be from what adding `no_sync` saves, as a share of that.
WITHIN = 0.2


def sleeping(layers: int = 6) -> Callable[[], None]:
    """Return a step of which rank 1 sleeps in forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*[nn.Linear(256, 256) for _ in range(layers)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.distributed.get_rank() == 1:
                time.sleep(SLEEP_MS / 1000)
            out: torch.Tensor = self.body(x)
            return out

    model = nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def accumulating(synchronised: bool) -> Callable[[], Callable[[], None]]:
    """Return a job whose step accumulates four micro-steps, with or without `no_sync`."""

    def set_up() -> Callable[[], None]:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(16, 512)

        def step() -> None:
            optimizer.zero_grad()
            for number in range(4):
                with nullcontext() if synchronised or number == 3 else model.no_sync():
                    model(x).square().mean().backward()
            optimizer.step()

        return step

    return set_up


def test_a_sleep_of_one_rank_is_what_the_other_waits(figure: Figures) -> None:
    ranks = perfnb.profile_ranks(sleeping, 2, traced=15, memory=False)

    waited = ranks.times[ranks.times["rank"] == 0]["waiting_ms"].median()
    figure("10 ms sleep of rank 1: waiting of rank 0, error", abs(waited - SLEEP_MS), at_most=WITHIN_MS, unit="ms")
    late = ranks._summary.late
    assert ranks.straggler == 1
    assert late is not None
    assert late.phase == "forward"
    for rank in ranks:
        whole = rank.phases["ms"].sum() / rank.steps.loc[rank.steps["pass"] == "traced", "wall_ms"].mean()
        figure(f"two ranks, rank {rank.meta['rank']}: sum of phases / step", whole, within=(0.99, 1.01))
    sent = ranks[0].collectives
    parameters = 6 * (256 * 256 + 256) * 4
    assert int((sent["bytes"] * sent["calls"])[sent["bucket"].notna()].sum()) == parameters


def test_the_bound_of_synchronising_each_micro_step_is_what_no_sync_saves(figure: Figures) -> None:
    each, once = (perfnb.profile_ranks(accumulating(way), 2, traced=10, memory=False) for way in (True, False))

    found = each[0].findings.set_index("bottleneck")
    bound = float(found.loc["every micro-step", "bound_ms"])
    before, after = each[0].timing.median_ms, once[0].timing.median_ms
    assert before is not None
    assert after is not None
    saved = before - after
    figure("synchronising each micro-step: bound / saved by no_sync", bound / saved, within=(1 - WITHIN, 1 + WITHIN))
    assert "every micro-step" not in once[0].findings["bottleneck"].tolist()
