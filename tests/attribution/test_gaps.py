"""What lies between the blocks of a step has a phase too: loss before a backward, else what lies around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfnb.attribution.blocks import host_blocks
from perfnb.profile.profile import Profile
from tests.attribution.test_attribution import in_us
from tests.recordings import ByHand


def phases(hand: ByHand) -> dict[str, int | None]:
    """Return the phases that took any time."""
    return {name: us for name, us in in_us(Profile(hand.recording()).phases["ms"]).items() if us != 0}


def begun() -> tuple[ByHand, int]:
    hand = ByHand()
    return hand.step(0, 1000), hand.layer("model")


Change = Callable[[ByHand, int], object]

#: What runs in a step of 1000 µs with a model, and the phases that take time; the rest is other.
STEPS: dict[str, tuple[Change, dict[str, int]]] = {
    "nothing": (lambda hand, model: None, {}),
    "loss lies between forward and backward": (
        lambda hand, model: hand.call(model, 100, 300).op("aten::mm", 110, 290, 1).node("MmBackward0", 450, 700, 1),
        {"forward": 200, "loss": 150, "backward": 250},
    ),
    "no backward": (lambda hand, model: hand.call(model, 100, 300).op("aten::argmax", 400, 500), {"forward": 200}),
    "a module that computes the loss": (
        lambda hand, model: hand.call(model, 100, 300).call(-1, 350, 450, loss=True).call(-1, 360, 400, loss=True),
        {"forward": 200, "loss": 100},
    ),
    "two models before a backward": (
        lambda hand, model: (
            hand.call(model, 100, 200).op("aten::mm", 110, 190, 1).call(model, 300, 400).op("aten::mm", 310, 390, 2)
            .node("MmBackward0", 500, 600, 2).node("MmBackward0", 600, 700, 1)
        ),
        {"forward": 200, "loss": 200, "backward": 200},
    ),
    "two backward runs without a forward between them": (
        lambda hand, model: (
            hand.call(model, 0, 200).op("aten::mm", 10, 190, 1).node("MmBackward0", 300, 400, 1)
            .op("aten::square", 410, 490, 2).node("PowBackward0", 500, 600, 2)
        ),
        {"forward": 200, "loss": 200, "backward": 200},
    ),
    "a new forward after a backward": (
        lambda hand, model: (
            hand.call(model, 0, 100).op("aten::mm", 10, 90, 1).node("MmBackward0", 100, 200, 1)
            .op("aten::zero_", 210, 290)
            .call(model, 300, 400).op("aten::mm", 310, 390, 2).node("MmBackward0", 400, 500, 2)
        ),
        {"forward": 200, "backward": 200},
    ),
    "an optimizer between two backward runs": (
        lambda hand, model: (
            hand.op("aten::mm", 10, 90, 1).node("MmBackward0", 100, 200, 1)
            .event("Optimizer.step#SGD.step", 300, 400, "user_annotation")
            .op("aten::mm", 410, 490, 2).node("MmBackward0", 500, 600, 2)
        ),
        {"backward": 200, "optimizer": 100},
    ),
    "a closure that the optimizer calls": (
        lambda hand, model: (
            hand.event("Optimizer.step#LBFGS.step", 100, 900, "user_annotation")
            .call(model, 200, 300).op("aten::mm", 210, 290, 1).node("MmBackward0", 400, 600, 1)
        ),
        {"optimizer": 400, "forward": 100, "loss": 100, "backward": 200},
    ),
    "a loader's own events": (
        lambda hand, model: (
            hand.event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100, "user_annotation")
            .op("aten::stack", 10, 90).call(model, 100, 200)
        ),
        {"data": 100, "forward": 100},
    ),
    "a loss that is computed again": (
        lambda hand, model: (
            hand.call(model, 100, 300).op("aten::mm", 110, 290, 1)
            .node("CheckpointBackward", 400, 900, 1).call(model, 450, 600).op("aten::mse_loss", 460, 590, 3)
        ),
        {"forward": 200, "loss": 100, "backward": 500},
    ),
    "a layer that fills the step": (
        lambda hand, model: hand.call(model, 0, 1000).op("aten::mm", 10, 20), {"forward": 1000},
    ),
    "making an optimizer is no step of it": (
        lambda hand, model: (
            hand.event("Optimizer.__init__", 100, 300).event("Optimizer.step#SGD.step", 400, 500)
            .op("aten::_amp_update_scale_", 600, 650).op("aten::amp", 700, 800)
        ),
        {"optimizer": 150},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), STEPS.values(), ids=STEPS)
def test_what_lies_between_the_blocks_of_a_step_has_a_phase(change: Change, expected: dict[str, int]) -> None:
    hand, model = begun()
    change(hand, model)
    other = 1000 - sum(expected.values())

    assert phases(hand) == expected | ({"other": other} if other else {})


def test_the_engine_owns_the_time_between_its_nodes_but_not_what_the_step_does_between_two_runs() -> None:
    hand, model = begun()
    hand.call(model, 0, 100).op("aten::mm", 10, 50, 1).op("aten::mm", 50, 90, 2)
    hand.node("MmBackward0", 100, 200, 2).node("MmBackward0", 230, 300, 1)
    hand.op("aten::add", 310, 320)
    hand.node("MmBackward0", 330, 400, 1)

    p = Profile(hand.recording())

    assert in_us(p.layers["self_ms"])["(autograd engine)"] == 30
    assert in_us(p.phases["ms"])["backward"] == 270
    assert in_us(p.phases["ms"])["loss"] == 30


def test_a_loss_that_the_model_computes_itself_is_loss_and_so_is_its_row() -> None:
    hand, model = begun()
    hand.call(model, 100, 500).op("aten::mm", 110, 290, 1)
    hand.op("aten::cross_entropy_loss", 300, 450, 2).op("aten::nll_loss_nd", 320, 440, 2)
    hand.node("NllLossBackward0", 600, 700, 2).node("MmBackward0", 700, 800, 1)

    # In forward: 400 less the loss's op; between forward and backward: 100.
    assert phases(hand) == {"forward": 250, "loss": 250, "backward": 200, "other": 300}
    layers = Profile(hand.recording()).layers
    assert in_us(layers["forward_ms"])["model"] == 250
    assert in_us(layers["backward_ms"]) == {"model": 100, "(loss)": 100}
    assert in_us(layers["self_ms"]) == {"model": 350, "(loss)": 100}


@pytest.mark.parametrize(
    ("around", "name", "copying"),
    [
        ([("aten::to", 100, 200), ("aten::copy_", 110, 190)], "Memcpy HtoD (Pinned -> Device)", 100),
        ([("aten::to", 100, 200)], "Memcpy DtoH (Device -> Pinned)", 0),
        ([], "Memcpy HtoD", 1),
        ([("mine::load", 90, 210), ("aten::to", 100, 200)], "Memcpy HtoD", 100),
        ([("aten::to", 100, 200), ("mine::load", 110, 190)], "Memcpy HtoD", 1),
        ([("aten::to", 1_100, 1_200)], "Memcpy HtoD", 0),
    ],
)
def test_the_outermost_torch_op_that_copies_to_a_device_is_host_to_device(
    around: list[tuple[str, int, int]], name: str, copying: int
) -> None:
    hand, _ = begun()
    for op, begin, end in around:
        hand.op(op, begin, end)
    hand.kernel(name, 1_120 if (around or [("", 0, 0)])[0][1] > 1_000 else 120, 2_000, 2_100, category="gpu_memcpy")

    assert phases(hand) == {"other": 1000 - copying} | ({"host_to_device": copying} if copying else {})


def test_a_copy_in_another_block_or_in_a_users_range_is_not_host_to_device_itself() -> None:
    hand, model = begun()
    hand.call(model, 100, 300).op("aten::to", 110, 200).kernel("Memcpy HtoD", 120, 150, 160, category="gpu_memcpy")
    hand.event("aten::to", 400, 500, "user_annotation").op("aten::copy_", 410, 450)
    hand.kernel("Memcpy HtoD", 420, 450, 460, category="gpu_memcpy")
    hand.event("load", 600, 700, "user_annotation", correlation=-1).event("Memcpy HtoD", 610, 620, "gpu_memcpy")

    assert phases(hand) == {"forward": 200, "host_to_device": 40, "other": 760}


def test_without_a_step_there_is_no_time() -> None:
    none = host_blocks(ByHand().op("aten::mm", 10, 20).recording().events)
    assert none.blocks.empty
    assert none.block.tolist() == [-1]
