"""Memory of a real step: to the byte where it is known, and whose it was when there was not enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb

MIB = 2**20
PARAMETERS = 4 * (256 * 512 + 512 + 512 * 64 + 64)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 0),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), PARAMETERS),
        (lambda parameters: torch.optim.Adam(parameters), 2 * PARAMETERS + 4 * 4),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_parameters_gradients_and_optimizer_state_to_the_byte(
    make: Callable[..., torch.optim.Optimizer], state: int
) -> None:
    model = mlp()

    p = profile(training(model, make(model.parameters())), batches())

    last = p.memory.iloc[-1]
    assert last[["parameters", "gradients", "optimizer_state"]].tolist() == [PARAMETERS, PARAMETERS, state]
    assert last["inputs"] == BATCH * (256 * 4 + 8)
    assert last[["activations", "temporaries"]].tolist() == [0, 0]
    assert (p.memory["total"] == p.memory.loc[:, "parameters":"other"].sum(axis=1)).all()


@pytest.mark.slow
def test_activations_belong_to_the_layer_that_made_them() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 64))

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        model.zero_grad()
        model(batch[0]).square().sum().backward()

    layers = profile(step, batches()).layers

    assert layers.loc["model.0", "activation_bytes"] == BATCH * 512 * 4
    assert layers.loc["model.1", "activation_bytes"] == BATCH * 64 * 4
    assert layers.loc["model", "activation_bytes"] == BATCH * (512 + 64) * 4


@pytest.mark.slow
def test_flops_of_layers_are_exact() -> None:
    model = mlp()

    layers = profile(training(model, torch.optim.SGD(model.parameters(), lr=0.1)), batches()).layers

    first, second = 2 * BATCH * 256 * 512, 2 * BATCH * 512 * 64
    assert layers.loc[["model.0", "model.2"], "forward_flops"].tolist() == [first, second]
    assert layers.loc[["model.0", "model.2"], "backward_flops"].tolist() == [first, 2 * second]  # its input needs none
    assert layers.loc["model", ["forward_flops", "backward_flops"]].tolist() == [first + second, first + 2 * second]
    assert layers.loc["model.1", ["forward_flops", "backward_flops"]].isna().all()  # an activation has no formula


@pytest.mark.slow
def test_a_temporary_of_one_layer_stands_at_the_peak_and_is_gone_at_the_end() -> None:
    class Wasteful(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.empty(16 * MIB)
            return super().forward(x)

    model = nn.Sequential(nn.Linear(256, 32), Wasteful(32, 8))

    def step() -> None:
        model(torch.ones(4, 256)).sum().backward()

    p = profile(step)

    (large,) = p.allocations[p.allocations["bytes"] == 64 * MIB].to_dict("records")
    assert (large["layer"], large["category"], large["phase"]) == ("model.1", "temporaries", "forward")
    assert p.memory["total"].max() > 64 * MIB > p.memory["total"].iloc[-1]
    assert p.layers.loc["model.1", "peak_bytes"] == p.memory["total"].max() > p.layers.loc["model.0", "peak_bytes"]


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
def test_memory_that_suffices_the_second_time_is_said() -> None:
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
