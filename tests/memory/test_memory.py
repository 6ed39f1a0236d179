"""Memory of a real step: to the byte where it is known, and whose it was when there was not enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb

BATCH = 32


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))


def training(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[tuple[torch.Tensor, torch.Tensor]], None]:
    loss_fn = nn.CrossEntropyLoss()

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def profile(step: Callable[..., object], batches: object = None) -> perfnb.Profile:
    return perfnb.profile_step(step, batches, warmup=1, steps=1, traced=1)  # type: ignore[arg-type]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(BATCH, 256), torch.randint(0, 64, (BATCH,)))]


#: The step when memory runs out, of two warm-up, two timed, one lead-in, three traced and two watched ones; its
#: pass, and what was executed until then.
FAILURES = {
    1: ("warm-up", "did not run"),
    4: ("timed", "2 warm-up, 1 timed"),
    6: ("traced", "2 warm-up, 2 timed, 1 lead-in"),
    10: ("counted", "2 warm-up, 2 timed, 2 lead-in, 3 traced"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("at", FAILURES)
def test_an_error_for_want_of_memory_reaches_the_user_with_the_profile_up_to_it(at: int) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    begun = 0

    def step() -> None:
        nonlocal begun
        begun += 1
        optimizer.zero_grad()
        out = model(torch.ones(32, 256))
        if begun >= at:
            torch.empty(2**60)
        out.sum().backward()
        optimizer.step()

    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        perfnb.profile_step(step, model={"model": model}, warmup=2, steps=2, traced=3)

    (note,) = caught.value.__notes__
    pass_name, executed = FAILURES[at]
    assert "incomplete" in note
    assert f"memory ran out in the {pass_name} pass" in " ".join(note.split())
    assert f"\nOut of memory in the {pass_name} pass" in note
    assert "step n/a" not in note
    assert executed in note
    assert ("\nLayers\n" in note) is (at == 10)
    owners = [line for line in note.splitlines() if line.startswith("model.")]
    (kept,) = [line for line in owners if line.startswith("model.1 ") and "activations" in line]
    assert "64.0 KiB" in kept  # 32 rows of 512 float32: what the second linear layer needs for its backward
    assert any("optimizer state" in line for line in owners) is (at > 1)
    assert begun == at + (at != 10)  # once more to watch it, but where memory was watched already


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_memory_that_suffices_the_second_time_is_reported() -> None:
    model = mlp()
    begun = 0

    def step() -> None:
        nonlocal begun
        begun += 1
        model(torch.ones(4, 256)).sum().backward()
        if begun == 2:
            torch.empty(2**60)

    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        profile(step)

    assert any("did not run out of memory" in note for note in caught.value.__notes__)


@pytest.mark.usefixtures("nothing_left")
def test_without_the_counted_pass_its_figures_are_missing() -> None:
    model = mlp()
    step = training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    p = perfnb.profile_step(step, batches(), warmup=1, steps=1, traced=1, memory=False, flops=False)

    assert "counted" not in set(p.steps["pass"])
    assert p.memory.empty
    assert p.allocations.empty
    assert p.layers[["forward_flops", "activation_bytes", "peak_bytes"]].isna().all(axis=None)
