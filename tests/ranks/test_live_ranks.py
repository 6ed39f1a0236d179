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
    assert "mean of 2 steps, as below" in text
    assert "What each finding costs at most per step" in text


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.down(self.up(x).relu()))
        return out


def trained(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def sharded() -> Callable[[], None]:
    from torch.distributed.fsdp import fully_shard

    model = Net()
    for part in (model.up, model.down, model):
        fully_shard(part)
    return trained(model)


def split_among_ranks() -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return trained(parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}))


@pytest.mark.parametrize(("set_up", "ranks_share"), [(sharded, 1), (split_among_ranks, 2)])
def test_layers_of_sharded_and_split_models(set_up: Callable[[], Callable[[], None]], ranks_share: int) -> None:
    """Each layer's backward is where it belongs although hooks that gather parameters run in it."""
    one = perfnb.profile_ranks(set_up, 2, **FAST)[0]  # type: ignore[arg-type]

    product = 2 * 32 * 64 * 256 // ranks_share
    flops = one.layers.loc[["model.up", "model.down"], ["forward_flops", "backward_flops"]]
    assert flops.to_numpy().tolist() == [[product, product], [product, 2 * product]]
    sent = one.collectives
    assert sent["bytes"].notna().all()
    kinds = {"allgather", "reducescatter"} if ranks_share == 1 else {"allreduce"}
    assert set(sent["collective"]) == kinds
    if ranks_share == 1:
        gathered = sent[(sent["collective"] == "allgather") & (sent["layer"] == "model.up")]
        assert gathered["bytes"].tolist() == [(64 * 256 + 256) * 4]
