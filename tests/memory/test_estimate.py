"""`estimate_memory` against the measured peak, against arithmetic by hand, and for what it must leave alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from perfnb.errors import CaptureError
from perfnb.memory.estimate.batches import tensor_resized, with_tensors
from perfnb.memory.estimate.estimate import MemoryEstimate, _largest_fitting, _next_size, estimate_memory
from perfnb.memory.estimate.model_step import ModelStep, left_as_they_were, model_step
from perfnb.memory.estimate.scratch import has_tiles
from perfnb.memory.estimate.view import estimate_document, step_words
from tests.step.allocated import measured_peak, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")

MOMENTUM = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))


def cnn() -> nn.Module:
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2))
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


def digits() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def rows(n: int = 128) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 256), torch.randint(64, (n,))


def text() -> tuple[Tensor, Tensor]:
    return torch.randint(100, (16, 32)), torch.randint(100, (16, 32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "batches", "kind"),
    [
        (cnn, digits, MOMENTUM),
        (mlp, rows, torch.optim.SGD),
        (mlp, rows, torch.optim.Adam),
        (Transformer, text, torch.optim.AdamW),
    ],
)
@pytest.mark.usefixtures("two_threads")
def test_the_peak_is_the_measured_one(
    make: Callable[[], nn.Module],
    batches: Callable[[], tuple[Tensor, Tensor]],
    kind: Callable[..., torch.optim.Optimizer],
) -> None:
    model, (x, y) = make(), batches()
    optimizer = kind(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    estimate = estimate_memory(model, (x, y), kind, loss=F.cross_entropy)

    step()
    measured = measured_peak(step, [*model.parameters(), *model.buffers(), *state_of(optimizer), x, y])
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.02)
    assert sum(estimate.by_category.values()) == estimate.peak_bytes


def test_a_scaled_batch_takes_what_a_batch_of_that_size_takes() -> None:
    model = cnn()
    small = estimate_memory(model, (torch.randn(2, 3, 32, 32), torch.zeros(2).long()), "adam", loss=F.cross_entropy,
                            batch_size=32)  # fmt: skip

    assert small.peak_bytes == estimate_memory(model, digits(), "adam", loss=F.cross_entropy).peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("make", "batches"), [(mlp, rows), (cnn, digits), (Transformer, text)])
@pytest.mark.usefixtures("two_threads")
def test_the_peak_of_inference_is_the_measured_one(
    make: Callable[[], nn.Module], batches: Callable[[], tuple[Tensor, Tensor]]
) -> None:
    model, (x, _) = make().eval(), batches()

    estimate = estimate_memory(model, x, training=False)

    with torch.no_grad():
        measured = measured_peak(lambda: model(x), [*model.parameters(), *model.buffers(), x])
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.02)
    assert (estimate.gradients, estimate.optimizer_state) == (0, 0)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [("sgd", 0), (MOMENTUM, 657_664), ("adam", 1_315_328 + 16), (torch.optim.AdamW, 1_315_328 + 16)],
)
def test_sizes_to_the_byte(optimizer: Any, state: int) -> None:
    estimate = estimate_memory(mlp(), rows(8), optimizer, loss=F.cross_entropy)

    assert (estimate.parameters, estimate.gradients, estimate.optimizer_state) == (657_664, 657_664, state)
    assert estimate.inputs == 8 * 256 * 4 + 8 * 8


def test_activations_to_the_byte() -> None:
    estimate = estimate_memory(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)), rows(8)[0])

    # The rectifier's result is kept once, for itself and for the layer behind it; the sum's input is not kept. The loss
    # and its gradient are 4 bytes each.
    assert estimate.activations - 4 - 4 == 8 * 512 * 4


@pytest.mark.parametrize("given", ["instance", "stepped instance", "class", "name"])
def test_an_optimizer_may_be_given_in_four_ways(given: str) -> None:
    model = mlp()
    optimizer: Any = torch.optim.Adam(model.parameters())
    if given == "stepped instance":
        model(rows()[0]).sum().backward()
        optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    params = optimizer.param_groups[0]["params"]

    wanted = {"class": torch.optim.Adam, "name": "Adam"}.get(given, optimizer)
    estimate = estimate_memory(model, rows(), wanted, loss=F.cross_entropy)

    assert (estimate.optimizer, estimate.optimizer_state) == ("Adam", 1_315_344)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()
    assert all(torch.equal(after["state"][i][k], v) for i, values in before["state"].items() for k, v in values.items())
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True))


def digits_on_meta(n: int = 8) -> tuple[Tensor, Tensor]:
    return torch.empty(n, 3, 32, 32, device="meta"), torch.empty(n, dtype=torch.long, device="meta")


def test_what_does_not_fit_is_not_made() -> None:
    with torch.device("meta"):
        huge = nn.Sequential(*[nn.Linear(40_000, 40_000, bias=False) for _ in range(7)])
    process = psutil.Process()
    estimate_memory(mlp(), rows(2), "adam")
    before = process.memory_info().rss

    parameters = estimate_memory(huge, torch.empty(2, 40_000, device="meta"), "adam")
    batch = estimate_memory(cnn(), digits_on_meta(2), "sgd", loss=F.cross_entropy, batch_size=2**40)

    assert parameters.parameters == 7 * 40_000**2 * 4
    assert parameters.optimizer_state == 2 * parameters.parameters + 7 * 4
    assert batch.inputs == 2**40 * (3 * 32 * 32 * 4 + 8)
    assert process.memory_info().rss - before < 2**28


def test_more_bytes_than_can_be_counted() -> None:
    with pytest.raises(OverflowError, match="more bytes than can be counted"):
        estimate_memory(mlp(), rows(2), batch_size=2**62)


def test_shared_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.Linear(64, 64))
    model[2].weight = model[0].weight
    model[3].requires_grad_(False)

    estimate = estimate_memory(model, torch.randn(4, 64), "adam")

    tied, frozen = 64 * 64 * 4, 64 * 65 * 4
    assert estimate.parameters == tied + frozen
    assert estimate.optimizer_state == 2 * tied + 4
    assert estimate_memory(model, torch.randn(4, 64)).by_category["gradients"] <= 2 * tied
    assert estimate.gradients == tied


def test_memory_that_does_not_depend_on_the_batch() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * 2

    estimate = estimate_memory(Alone(), torch.randn(2, 0))

    with pytest.raises(CaptureError, match="does not depend on the batch"):
        estimate.largest_batch(10_000)


def test_masks_are_looked_into() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(256, 256)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = self.linear(x)
            return x if (mask == 1).all() else x * mask[:, None].exp() * 2

    full, holes = torch.ones(8, dtype=torch.long), torch.tensor([1, 0] * 4)
    peaks = [estimate_memory(Masked(), {"x": torch.randn(8, 256), "mask": m}, batch_size=4096).peak_bytes
             for m in (full, holes)]  # fmt: skip

    assert peaks[0] < peaks[1]


def test_a_loss_that_is_a_module_counts() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(64))

    estimate = estimate_memory(mlp(), rows(), loss=loss)

    assert estimate.parameters == 657_664 + 64 * 4
    assert estimate.buffers == 64 * 4
    assert type(loss.weight) is Tensor


def test_parameters_that_only_the_loss_knows_count() -> None:
    other = nn.Linear(64, 1)

    estimate = estimate_memory(mlp(), rows(), loss=lambda out, _: other(out).sum())

    assert estimate.parameters == 657_664 + 65 * 4
    assert estimate.model == "Sequential"
    assert other.weight.grad is None


def test_a_model_takes_what_the_step_around_it_takes() -> None:
    model, batch = mlp(), rows()
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()

    by_step = estimate_memory(step=step, batch=batch)
    by_model = estimate_memory(model, batch, optimizer, loss=F.cross_entropy)
    assert (by_model.by_category, by_model.peak_op) == (by_step.by_category, by_step.peak_op)


def test_what_a_checkpoint_makes_again_is_activations() -> None:
    block, x = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)), torch.ones(512, 64)

    def step(again: bool) -> None:
        out = checkpoint(block, x, use_reentrant=False) if again else block(x)
        out.square().mean().backward()

    plain, again = (estimate_memory(step=partial(step, how)) for how in (False, True))
    hidden, rest = 512 * 256 * 4, 512 * 64 * 4 + 4 + 4  # the loss and its gradient
    assert (plain.activations, again.activations) == (hidden + rest, 2 * hidden + rest)  # before the activation too


def test_a_squared_error_keeps_the_memory_of_its_squares() -> None:
    x, y = torch.ones(24), torch.zeros(24)
    assert estimate_memory(step=lambda: F.mse_loss(x, y)).peak_bytes == (2 + 1 + 1) * 96


def test_cuda_is_estimated_without_one() -> None:
    cpu, cuda = (estimate_memory(mlp(), rows(), "adam", loss=F.cross_entropy, device=d) for d in ("cpu", "cuda"))

    assert cuda.device == "cuda"
    assert cuda.optimizer_state == 1_315_328 + 2 * 256 + 4 * 512  # each counter and the smaller bias take whole blocks
    # All parameters are updated at once, by one list of temporaries; on the CPU one after the other.
    assert (cuda.peak_phase, cuda.by_category["temporaries"]) == ("optimizer", 657_664 + 256)
    assert cpu.by_category["temporaries"] < 2 * 256 * 512 * 4 + 1024


@pytest.mark.parametrize(
    ("options", "error"),
    [({"optimizer": "adm"}, ValueError), ({"optimizer": 3}, TypeError), ({"batch_size": 0}, ValueError),
     ({"device": "mps"}, CaptureError), ({"optimizer": "lbfgs"}, CaptureError)],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        estimate_memory(mlp(), rows(), **options)


def test_an_estimate_shows_itself() -> None:
    estimate = estimate_memory(mlp(), rows(8), "adam", loss=F.cross_entropy)

    assert repr(estimate) == (
        "<perfnb.MemoryEstimate: Sequential: peak 3.52 MiB in optimizer, training with a batch of 8 and Adam>"
    )
    assert isinstance(estimate, MemoryEstimate)
    for more, state, title in ((0, "good", "What would take less memory?"), (-1, "bad", "What would make it fit?")):
        shown = estimate_document(estimate, estimate.peak_bytes + more, None)
        assert (shown.verdict.state, shown.sections[-1].title) == (state, f"{title} (each option on its own)")


@pytest.mark.parametrize(
    ("capacity", "state", "says"),
    [
        (2**23, "good", "Fits: the step needs 3.52 MiB at its peak, 44 % of the 8.00 MiB of this machine's CPU"),
        (2**21, "bad", "Does not fit: the step needs 3.52 MiB at its peak, 1.52 MiB more than the 2.00 MiB of"),
        (None, "none", "The step needs 3.52 MiB at its peak; the memory of this machine's CPU is unknown"),
    ],
)
def test_an_estimate_says_whether_it_fits(
    capacity: int | None, state: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.step.device.capacity_bytes", lambda _: capacity)
    monkeypatch.setattr("perfnb.memory.estimate.estimate._PATIENT_S", float("inf"))
    estimate = estimate_memory(mlp(), rows(8), "adam", loss=F.cross_entropy)

    shown = estimate._document()

    assert shown.verdict.state == state
    assert shown.verdict.sentence.startswith(says)
    if capacity == 2**23:
        assert shown.verdict.sentence.endswith(f"has {estimate.largest_batch(capacity):,} samples")
    if capacity == 2**21:
        assert shown.verdict.sentence.endswith("not even one sample fits")


def test_an_estimate_that_takes_long_is_not_repeated_to_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.memory.estimate.estimate._PATIENT_S", -1.0)
    monkeypatch.setattr("perfnb.step.device.capacity_bytes", lambda _: 2**23)

    verdict = estimate_memory(mlp(), rows(8), "adam", loss=F.cross_entropy)._document().verdict

    assert "largest batch" not in verdict.sentence
    assert verdict.code == "estimate.largest_batch()"


def test_an_estimate_offers_what_needs_less() -> None:
    estimate = estimate_memory(mlp(), rows(8), "adam", loss=F.cross_entropy, autocast=torch.bfloat16)
    frees = estimate.options.set_index("option")["frees_bytes"].to_dict()

    assert "half precision for activations" not in frees  # it has that already
    assert frees["an optimizer without state"] == estimate.by_category["optimizer_state"]
    moving = sum(estimate.by_category[name] for name in ("activations", "inputs"))  # not the optimizer's temporaries
    assert (estimate.peak_phase, frees["half the batch"]) == ("optimizer", moving // 2)


@pytest.mark.usefixtures("two_threads")
def test_memory_beyond_the_result_of_a_convolution_counts() -> None:
    model, x = nn.Conv2d(32, 64, 3, padding=1), torch.randn(32, 32, 16, 16)

    estimate = estimate_memory(model, x, training=False)

    with torch.no_grad():
        measured = measured_peak(lambda: model(x), [*model.parameters(), x])
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.02)


#: Convolutions of 32 channels by what oneDNN chooses its layouts from.
CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "point": lambda: nn.Conv2d(32, 32, 1),
    "wide kernel": lambda: nn.Conv2d(32, 32, 7, padding=3),
    "strided point": lambda: nn.Conv2d(32, 32, 1, stride=2),
    "strided": lambda: nn.Conv2d(32, 64, 3, stride=2, padding=1),
    "strided to few": lambda: nn.Conv2d(32, 4, 5, stride=2, padding=2),
    "stride of 3": lambda: nn.Conv2d(32, 48, 4, stride=3),
    "strided groups": lambda: nn.Conv2d(32, 64, 3, stride=2, padding=1, groups=2),
    "narrow groups": lambda: nn.Conv2d(32, 64, 3, stride=2, padding=1, groups=8),
    "depthwise": lambda: nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32),
    "depth multiplied": lambda: nn.Conv2d(32, 64, 3, padding=1, groups=32),
    "dilated": lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2),
    "strided dilated": lambda: nn.Conv2d(32, 32, 3, stride=2, padding=2, dilation=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["float32", "channels last", "bfloat16"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.usefixtures("two_threads")
def test_the_peak_of_a_convolution_is_the_measured_one(kind: str, how: str) -> None:
    if (kind, how) == ("narrow groups", "bfloat16") and has_tiles(torch.bfloat16):
        pytest.skip("on CPUs with AMX, oneDNN was seen to choose either of two kernels, 20 % apart")
    model, x = (
        nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), CONVOLUTIONS[kind]()),
        torch.randn(32, 3, 32, 32),
    )
    if how == "channels last":
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)

    def step(x: Tensor) -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "bfloat16"):
            loss = model(x).square().mean()
        loss.backward()

    estimate = estimate_memory(step=step, batch=x)

    step(x)
    measured = measured_peak(lambda: step(x), [*model.parameters(), x])
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(("branches", "gradients"), [(1, 0), (2, 2), (3, 2), (5, 2)])
def test_gradients_that_meet_are_added_in_place(branches: int, gradients: int) -> None:
    class Fan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000))

        def forward(self, x: Tensor) -> Tensor:
            return sum(((self.weight * number).sum() for number in range(branches)), x.sum())

    estimate = estimate_memory(Fan(), torch.ones(10), "sgd")

    assert (estimate.parameters, estimate.inputs) == (4000, 40)
    if gradients:  # of two branches at once, next to the loss and its gradient
        assert (estimate.peak_phase, estimate.peak_bytes) == ("backward", 4040 + gradients * 4000 + 8)
    else:
        assert (estimate.peak_phase, estimate.peak_bytes) == ("forward", 4040 + 4000 + 8)


@pytest.mark.parametrize("phase", ["forward", "loss", "backward", "other"])
def test_the_peak_is_in_the_phase_that_makes_it(phase: str) -> None:
    def large() -> Tensor:
        return torch.ones(1024, 1024) * 2  # 8 MiB for a moment

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if phase == "forward":
                large()
            return super().forward(x)

    class Large(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient + (large().mean() if phase == "backward" else 0)

    model, x = Net(4, 4), torch.ones(8, 4)

    def step() -> None:
        output = Large.apply(model(x))
        loss = output.sum() + (large().mean() if phase == "loss" else 0)
        loss.backward()
        if phase == "other":
            large()

    assert estimate_memory(step=step).peak_phase == phase


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2, 5)])
def test_only_tensors_with_one_row_per_sample_are_resized(shape: tuple[int, ...]) -> None:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    rows = torch.zeros(shape, dtype=torch.int32).to(memory_format=layout)
    made = tensor_resized(rows, 4, 9)
    assert (made.shape, made.dtype, made.device.type) == ((9, *shape[1:]), rows.dtype, "meta")
    assert made.stride() == torch.empty((9, *shape[1:])).to(memory_format=layout).stride()
    for other in (torch.tensor(4), torch.zeros(5, 4), torch.zeros(1, 4)):
        assert tensor_resized(other, 4, 9) is other
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1"):
            tensor_resized(rows, 4, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 8, 9, 128, 1763, 142_842, 2**40 - 1, 2**40])
def test_the_largest_batch_is_found_in_a_few_tries_where_need_is_linear(largest: int) -> None:
    tried: list[int] = []

    def need(size: int) -> float:
        tried.append(size)
        return 1000 + 70 * size

    for start in (1, 8):
        found = _largest_fitting(need, 1000 + 70 * largest, start)
        assert found == (None if largest == 2**40 else largest)
        assert largest > 2**20 or len(tried) == len(set(tried)) <= 6
        tried.clear()
        assert _largest_fitting(lambda size: math.inf if size > largest else 1, 5, start) == found


@pytest.mark.parametrize(
    ("known", "limit", "too_large", "size"),
    [
        ({8: 80}, 999, 2**41, 16),  # one point is no line
        ({8: 80, 16: 160}, 999, 2**41, 99),
        ({8: 80, 16: 160}, 165, 2**41, 17),  # the line meets the limit at a size that is known
        ({8: 80, 16: 160}, 999, 99, 57),
        ({8: 80, 16: 160}, 989, 99, 98),
        ({8: 80, 16: 80}, 999, 2**41, 32),
        ({8: 80, 16: 160}, math.inf, 2**41, 32),
        ({4: 9, 8: 80, 16: 160}, 999, 2**41, 32),  # each third size, whatever the line says
        ({4: 9, 8: 80, 16: 160, 64: math.inf}, 305, 64, 30),
        ({8: 80, 16: 80}, 999, 2**40, 8 + 2**39),
    ],
)
def test_the_next_batch_size_is_where_the_last_two_sizes_point(
    known: dict[int, float], limit: float, too_large: int, size: int
) -> None:
    assert _next_size(known, limit, 16 if 16 in known else 8, too_large) == size


@pytest.mark.parametrize("training", [True, False])
def test_modes_and_running_means_are_put_back_also_after_an_error(training: bool) -> None:
    def models() -> list[nn.Module]:
        first, second = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()), nn.BatchNorm1d(4)
        first[1].eval()
        return [first, second]

    def modes() -> list[bool]:
        return [module.training for model in held for module in model.modules()]

    def used() -> None:
        with left_as_they_were(held, training=training):
            assert modes() == ([True, True, False, True] if training else [False] * 4)
            for model in held:
                model.train()(torch.randn(8, 4))
            raise OSError("full")

    held = models()
    before = [buffer.clone() for model in held for buffer in model.buffers()]
    with pytest.raises(OSError, match="full"):
        used()
    assert modes() == [True, True, False, True]
    assert all(map(torch.equal, (buffer for model in held for buffer in model.buffers()), before))


class Returning(nn.Module):
    """Returns a value that the test chooses, next to a parameter, and records its arguments."""

    def __init__(self, output: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.output = nn.Parameter(torch.tensor([2.0, 3.0])), output
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.called: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.called = args or kwargs
        return self.output(self.weight)


class WithLoss(NamedTuple):
    loss: Any
    other: Tensor


@pytest.mark.parametrize(
    ("output", "loss", "batch", "called", "gradient"),
    [
        (lambda w: w, lambda out: (5 * out).sum(), 1, (1,), 5.0),
        (lambda w: w, lambda out, target: (target * out).sum(), (1, 2, 7), (1, 2), 7.0),
        (lambda w: w, lambda out, target: (target * out).sum(), [7], (7,), 7.0),
        (lambda w: w, lambda out, batch: (batch["y"] * out).sum(), {"y": 6}, {"y": 6}, 6.0),
        (lambda w: WithLoss((4 * w).sum(), w), None, 1, (1,), 4.0),
        (lambda w: WithLoss("none", w), None, 1, (1,), 1.0),
        (lambda w: {"a": w, "b": 2 * w, "c": w.detach(), "d": "words"}, None, 1, (1,), 3.0),
        (lambda w: (w, [2 * w, w.detach()], 3), None, 1, (1,), 3.0),
    ],
)
def test_a_step_calls_model_and_loss_as_a_training_loop_does(
    output: Any, loss: Any, batch: Any, called: Any, gradient: float
) -> None:
    model = Returning(output)
    model.weight.grad = torch.full((2,), 100.0)
    step = ModelStep(model, loss, optimizer=partial(torch.optim.SGD, lr=0.5))
    for _ in range(2):
        step(batch)
    assert model.called == called
    assert model.weight.grad.tolist() == [gradient] * 2
    assert model.weight.tolist() == [2 - gradient, 3 - gradient]
    keeps = loss is None and isinstance(output(model.weight), WithLoss) and output(model.weight).loss != "none"
    assert (step.output is not None) is keeps

    alone = Returning(lambda w: w.sum() if torch.is_grad_enabled() else "no gradient")
    ModelStep(alone, loss, training=False)(batch)
    assert (alone.called, alone.weight.grad) == (called, None)
    run = model_step(model, 1, None if keeps else lambda out: model.weight.sum())
    run()
    assert model.weight.grad.tolist() == [gradient if keeps else 1.0] * 2
    assert model.weight.tolist() == [2 - gradient, 3 - gradient]


@pytest.mark.parametrize(
    ("output", "options", "error", "says"),
    [
        (lambda w: w, {"loss": lambda out: out}, CaptureError, "must be a tensor with one element"),
        (lambda w: w, {"loss": lambda out: 3.0}, CaptureError, "must be a tensor with one element"),
        (lambda w: w, {"loss": lambda out: out.detach().sum()}, CaptureError, "Nothing in this step requires a grad"),
        (lambda w: w.detach(), {}, CaptureError, "The model's output does not require a gradient"),
        (lambda w: w, {"optimizer": lambda ws: 3}, TypeError, "(from parameters, not int|torch optimizer, not int)"),
        (lambda w: w, {"optimizer": len}, TypeError, "not int"),
        (lambda w: w, {"optimizer": lambda ws: print}, TypeError, "must return a torch optimizer, not builtin"),
        (lambda w: w, {"optimizer": torch.optim.LBFGS}, CaptureError, "LBFGS evaluates the loss"),
    ],
)
def test_a_step_that_cannot_train_says_why(
    output: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ModelStep(Returning(output), **options)(torch.ones(1))


@pytest.mark.parametrize(
    ("training", "size", "optimizer", "words"),
    [
        (True, 1200, "AdamW", "training with a batch of 1,200 and AdamW"),
        (True, None, "", "training"),
        (False, 4, "AdamW", "inference with a batch of 4"),
        (False, None, "", "inference"),
    ],
)
def test_a_step_in_words(training: bool, size: int | None, optimizer: str, words: str) -> None:
    estimate: Any = SimpleNamespace(training=training, batch_size=size, optimizer=optimizer)
    assert step_words(estimate) == words


@pytest.mark.parametrize(
    ("size", "error", "need"),
    [
        (3, ValueError("more than one value per channel"), math.inf),  # a smaller batch, as for batch norm
        (5, ValueError("wrong"), None),
        (4, ValueError("wrong"), None),
        (3, CaptureError("wrong"), None),
        (5, OverflowError(), math.inf),
    ],
)
def test_what_a_batch_of_another_size_needs_may_be_too_much_or_an_error(
    size: int, error: Exception, need: float | None
) -> None:
    estimate: Any = SimpleNamespace(with_batch_size=Mock(side_effect=error), batch_size=4)
    if need is None:
        with pytest.raises(type(error), match="wrong"):
            MemoryEstimate._need(estimate, size)
    else:
        assert MemoryEstimate._need(estimate, size) == need
    estimate.with_batch_size = lambda size: SimpleNamespace(peak_bytes=10 * size)
    assert MemoryEstimate._need(estimate, size) == 10 * size


def test_a_batch_keeps_its_containers_and_objects() -> None:
    class Batch:
        def __init__(self) -> None:
            self.rows, self.more, self.word = torch.ones(1), [torch.ones(1)], "word"

    class Frozen(Mapping[str, Any]):
        def __init__(self, values: dict[str, Any]) -> None:
            self.__getitem__, self._values = values.__getitem__, values  # type: ignore[method-assign]

        def __getitem__(self, key: str) -> Any:
            return self._values[key]

        def __iter__(self) -> Iterator[str]:
            return iter(self._values)

        def __len__(self) -> int:
            return len(self._values)

    own, plain, shared = Batch(), SimpleNamespace(word="word"), torch.ones(1)
    value = [WithLoss(shared, shared), own, plain, Frozen({"x": shared}), (own, Batch), {3: [[shared]]}, "word"]
    found = with_tensors(value, lambda tensor: tensor + 1)
    pair, batch, words, mapping, (again, kind), nested, word = found

    assert type(pair) is WithLoss
    assert pair.loss is pair.other is mapping["x"] is nested[3][0][0]
    assert (shared.item(), pair.loss.item()) == (1, 2)
    assert type(batch) is Batch
    assert again is batch is not own
    assert (batch.rows.item(), batch.more[0].item(), batch.word) == (2, 2, "word")
    assert (own.rows.item(), own.more[0].item()) == (1, 1)
    assert (words, type(mapping), kind, word) == (plain, dict, Batch, "word")
    assert with_tensors({3: [[shared]]}, lambda tensor: tensor + 1, depth=2)[3][0][0] is shared
    inner = [shared]
    held = [own, WithLoss(inner, shared), (inner,), {"x": inner}, Frozen({"x": inner})]
    own.more = inner
    for depth, changed in ((2, False), (3, True)):
        batch, pair, row, table, frozen = with_tensors(held, lambda tensor: tensor + 1, depth=depth)
        assert pair.other.item() == batch.rows.item() == 2
        for found in (batch.more, pair.loss, row[0], table["x"], frozen["x"]):
            assert (found is inner, found[0].item()) == ((False, 2) if changed else (True, 1))
    known: Any = {}
    assert with_tensors([own, [shared]], lambda tensor: tensor + 1, known=known)[0] is own


def test_nothing_is_changed() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = cnn()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.last = torch.dropout(self.inside(x), 0.5, True)
            self.seen.append(self.last)
            return self.last

    model = Remembering().eval()
    model.inside[0].train()
    flags = [m.training for m in model.modules()]
    state = copy.deepcopy(model.state_dict())
    parameters = {name: id(p) for name, p in model.named_parameters()}
    grad = model.inside[0].weight.grad = torch.ones_like(model.inside[0].weight)
    rng = torch.get_rng_state()

    estimate_memory(model, digits_on_meta(), "adam", loss=F.cross_entropy)

    assert torch.equal(torch.get_rng_state(), rng)
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["inside.0.weight"]
    assert model.inside[0].weight.grad is grad
    assert model.seen == []
    assert not hasattr(model, "last")


def test_a_model_is_as_it_was_after_a_failure() -> None:
    model = mlp()
    weight = model[0].weight

    with pytest.raises(RuntimeError, match="reduction dim"):
        estimate_memory(model, torch.randn(4, 3), "adam")

    assert model[0].weight is weight
    assert model(torch.randn(2, 256)).shape == (2, 64)
