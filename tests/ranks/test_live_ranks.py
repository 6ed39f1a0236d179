"""Two real gloo ranks: every byte of the gradients is in a bucket, and the phases add up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("nothing_left")]
FAST = {"warmup": 2, "steps": 6, "traced": 2, "memory": False}


def job() -> Callable[[], None]:
    body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    model = nn.parallel.DistributedDataParallel(body, bucket_cap_mb=0.02, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def test_buckets_hold_the_bytes_of_the_parameters_and_phases_add_up() -> None:
    ranks = perfnb.profile_ranks(job, 2, **FAST)  # type: ignore[arg-type]

    for profile in ranks:
        sent = profile.collectives
        buckets = sent[sent["bucket"].notna()]
        assert int((buckets["bytes"] * buckets["calls"]).sum()) == 4 * (64 * 64 + 64) * 4
        assert set(buckets["dtype"]) == {"float32"}
        assert set(sent["group"]) == {"0 [0, 1]"}
        assert profile.phases["ms"].sum() == pytest.approx(
            profile.steps.loc[profile.steps["pass"] == "traced", "wall_ms"].mean(), rel=0.01
        )
        assert profile.meta["parts"]["parallel"][0]["find_unused_parameters"] is True
        assert "unused parameters" in profile.findings["bottleneck"].tolist()
    assert ranks.clocks["collectives"].gt(0).all()
    assert ranks.times["waiting_ms"].notna().all()
    text = ranks._text()
    assert "median of 6 timed steps" in text
    assert "mean of 2 traced steps" in text
    assert "Findings (with the most that each could save per step" in text
