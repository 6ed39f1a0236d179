"""Memory and FLOPs of many ways to train one model, to the byte and to the operation as they follow from the shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.known_steps import (
    BATCH,
    FIRST,
    INPUTS,
    LAST,
    WHOLE,
    at_end,
    batches,
    bytes_of,
    flops,
    linear,
    mlp,
    profile,
    saved,
    sgd,
    training,
)


@pytest.mark.slow
def test_gradients_accumulate_in_the_blocks_of_the_first_backward() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    optimizer = sgd(model)

    def step(batch: Tensor) -> None:
        optimizer.zero_grad()
        for part in batch.chunk(2):
            model(part).square().mean().backward()
        optimizer.step()

    p = profile(step, batches())

    assert at_end(p) == {"parameters": WHOLE, "gradients": WHOLE, "inputs": INPUTS}
    assert bytes_of(p, "gradients") == WHOLE
    assert p.memory["gradients"].max() == WHOLE
    # Those of the second backward are added to them and go; in addition, the gradient of each half's hidden layer.
    assert bytes_of(p, "temporaries", layer="model.0") == FIRST
    assert bytes_of(p, "temporaries", layer="model.1") == LAST + 2 * 4 * BATCH // 2 * 32
    assert saved(p) == {"model": 4 * BATCH * 36, "model.0": 4 * BATCH * 32, "model.1": 4 * BATCH * 4}
    first, last = linear(BATCH, 16, 32), linear(BATCH, 32, 4)
    assert flops(p)["model"] == [first + last, first + 2 * last, 0]


@pytest.mark.slow
def test_what_an_operator_in_place_saves_is_its_inputs_block() -> None:
    model = mlp(nn.ReLU(inplace=True))

    p = profile(training(model, sgd(model)), batches())

    assert at_end(p) == {"parameters": WHOLE, "gradients": WHOLE, "inputs": INPUTS}
    assert saved(p) == {"model": 4 * BATCH * 36, "model.0": 4 * BATCH * 32, "model.1": 0, "model.2": 4 * BATCH * 4}


@pytest.mark.slow
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_let_go_and_gradients_zeroed(to_none: bool) -> None:
    model = mlp()
    optimizer = sgd(model)

    def step(batch: Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    p = profile(step, batches())

    alive = {"parameters": WHOLE, "inputs": INPUTS}
    assert at_end(p) == (alive if to_none else alive | {"gradients": WHOLE})
    assert p.memory["gradients"].iloc[0] == (0 if to_none else WHOLE)
    assert p.memory["gradients"].max() == WHOLE
    assert bytes_of(p, "gradients") == (WHOLE if to_none else 0)
    assert bytes_of(p, "temporaries", layer="model.0", direction="backward") == (0 if to_none else FIRST)


@pytest.mark.slow
def test_gradients_that_are_gone_before_an_optimizer_or_the_end_sees_them() -> None:
    model = mlp()

    def step(batch: Tensor) -> None:
        model(batch).square().mean().backward()
        model.zero_grad()

    p = profile(step, batches())

    assert at_end(p) == {"parameters": WHOLE, "inputs": INPUTS}
    assert p.memory["gradients"].max() == bytes_of(p, "gradients") == WHOLE


@pytest.mark.slow
def test_batches_of_a_loader_are_inputs_of_the_phase_data() -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(4 * BATCH, 16), torch.randn(4 * BATCH, 16))

    def step(batch: list[Tensor]) -> None:
        optimizer.zero_grad()
        (model(batch[0]) - batch[1]).square().mean().backward()
        optimizer.step()

    p = profile(step, torch.utils.data.DataLoader(data, batch_size=BATCH))

    size = 4 * (16 * 16 + 16)
    assert at_end(p) == {"parameters": size, "gradients": size, "optimizer_state": 2 * size + 2 * 4}
    assert p.memory["inputs"].max() == bytes_of(p, "inputs", phase="data") == 2 * INPUTS


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("torch without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("process_group")
def test_a_model_trained_in_parallel() -> None:
    model = nn.parallel.DistributedDataParallel(mlp())

    # The buckets are alive too, but no Python object is theirs.
    p = profile(training(model, sgd(model)), batches(), all_seen=False)

    assert at_end(p) == {"parameters": WHOLE, "gradients": WHOLE, "inputs": INPUTS}
    hidden, out = 4 * BATCH * 32, 4 * BATCH * 4
    kept = [hidden + out, hidden + out, 0, hidden, out]
    layers = ["model", *(f"model.module{part}" for part in ("", ".0", ".1", ".2"))]
    assert saved(p) == dict(zip(layers, kept, strict=True))
    assert bytes_of(p, "gradients", layer="model.module.0") == FIRST
    first, last = linear(BATCH, 16, 32), linear(BATCH, 32, 4)
    assert flops(p)["model"] == flops(p)["model.module"] == [first + last, first + 2 * last, 0]
