"""`estimate_memory` of steps that users write, against the counted pass of a profile, and what it must leave alone."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import perfnb
from perfnb.errors import CaptureError
from perfnb.memory.estimate import batches, step_simulation
from perfnb.memory.estimate.allocator import Allocation
from perfnb.memory.estimate.estimate import estimate_memory
from tests.step.allocated import measured_peak, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")

Step = Callable[[Any], Any]


class Output(dict[str, Any]):
    """An output as transformers' models give it: a dict with attributes."""

    __getattr__ = dict.__getitem__


class TinyLM(nn.Module):
    """A language model that computes its own loss; its embedding is its output layer too."""

    def __init__(self, words: int = 2000, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.middle = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.middle(self.embedding(input_ids)))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(loss=loss, logits=logits)


def words(samples: int = 8, length: int = 32) -> dict[str, Tensor]:
    ids = torch.randint(2000, (samples, length))
    return {"input_ids": ids, "labels": ids}


def counted_peak(step: Step, batch: Any) -> int:
    """Return bytes at the peak of the step that a profile counts, without what else the process holds."""
    gc.collect()
    profile = perfnb.profile_step(step, [batch], warmup=1, steps=1, traced=1, flops=False)
    frame = profile.memory
    return int((frame["total"] - frame["other"].fillna(0)).max())


def own_loss(model: nn.Module, optimizer: torch.optim.Optimizer, mixed: bool = False) -> Step:
    def step(batch: dict[str, Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            out = model(**batch)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_from_logits(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    loss_fn = nn.CrossEntropyLoss()

    def step(batch: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        logits = model(batch["input_ids"])["logits"]
        loss = loss_fn(logits.float().flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(batch: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        for place in range(2):
            half = {name: tensor[place::2] for name, tensor in batch.items()}
            (model(**half).loss / 2).backward()
        optimizer.step()

    return step


STEPS = {step.__name__: step for step in (own_loss, loss_from_logits, accumulating)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_the_peak_of_a_step_is_the_counted_one(kind: str) -> None:
    model = TinyLM()
    step, batch = STEPS[kind](model, torch.optim.AdamW(model.parameters())), words()

    estimate = estimate_memory(step=step, batch=batch)

    assert estimate.peak_bytes == pytest.approx(counted_peak(step, batch), rel=0.02)
    assert sum(estimate.by_category.values()) == estimate.peak_bytes
    assert (estimate.model, estimate.optimizer, estimate.training, estimate.batch_size) == ("TinyLM", "AdamW", True, 8)


@pytest.mark.slow
def test_the_peak_of_a_model_with_its_own_loss_is_that_of_the_loop_that_holds_its_output() -> None:
    model = TinyLM()
    optimizer, batch = torch.optim.AdamW(model.parameters()), words()

    estimate = estimate_memory(model, batch, optimizer, autocast=torch.bfloat16)

    measured = counted_peak(own_loss(model, optimizer, mixed=True), batch)
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.02)


def test_a_tensor_that_a_variable_keeps_for_the_next_step_counts() -> None:
    model = nn.Linear(64, 64)
    kept: dict[str, Tensor] = {}

    def forgets(x: Tensor) -> None:
        model(x).relu().sum().backward()

    def keeps(x: Tensor) -> None:
        kept["out"] = model(x).relu()
        kept["out"].sum().backward()

    x = torch.randn(512, 64)
    more = estimate_memory(step=keeps, batch=x).peak_bytes - estimate_memory(step=forgets, batch=x).peak_bytes
    assert more == pytest.approx(x.nbytes, abs=64)
    assert not kept


@pytest.mark.slow
def test_the_largest_batch_of_a_step_is_exact() -> None:
    model = TinyLM(words=100)
    ids = torch.zeros(4, 8, dtype=torch.long)
    estimate = estimate_memory(
        step=own_loss(model, torch.optim.SGD(model.parameters())), batch={"input_ids": ids, "labels": ids}
    )

    size = estimate.largest_batch(2**20)

    assert size > 4
    assert estimate.with_batch_size(size).peak_bytes <= 2**20 < estimate.with_batch_size(size + 1).peak_bytes


def test_a_mask_that_is_reshaped_to_the_batch_size_is_still_looked_into() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            mask = mask.view(len(x), -1)
            return self.linear(x) if (mask == 1).all() else self.linear(x) * mask

    model = Masked()

    estimate = estimate_memory(model, {"x": torch.randn(8, 16), "mask": torch.ones(8, 1).long()}, batch_size=9)

    assert estimate.batch_size == 9


class Trainer:
    """A step as a method, with everything that a loop keeps next to the model."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.steps, self.losses, self.last = 0, [], None
        self.options = SimpleNamespace(seen=[])

    def step(self, batch: Any) -> None:
        x, y = batch
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.steps += 1
        self.losses.append(loss.detach())
        self.options.seen.append(loss)
        self.last = loss
        random.random(), np.random.random(), torch.rand(1)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_users_is_changed(fails: bool) -> None:
    trainer = Trainer()
    batch = torch.randn(6, 8), torch.randint(2, (6,))
    trainer.step(batch)
    trainer.model.eval()
    trainer.model[0].weight.grad = grad = torch.ones_like(trainer.model[0].weight)
    parts = trainer.model, trainer.optimizer, trainer.scheduler
    before = copy.deepcopy([part.state_dict() for part in parts])
    attributes, losses = dict(vars(trainer)), list(trainer.losses)
    parameters = [id(p) for p in trainer.model.parameters()]
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    if fails:
        with pytest.raises(ZeroDivisionError):
            estimate_memory(step=lambda b: (trainer.step(b), 1 / 0), batch=batch)
    else:
        estimate_memory(step=trainer.step, batch=batch)

    assert generators == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert not trainer.model.training
    assert [id(p) for p in trainer.model.parameters()] == parameters
    assert trainer.model[0].weight.grad is grad
    assert dict(vars(trainer)) == attributes
    assert (trainer.steps, trainer.losses, len(trainer.options.seen)) == (1, losses, 1)
    after = [part.state_dict() for part in parts]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    trainer.step(batch)  # and it continues


def test_globals_and_closures_are_put_back() -> None:
    model = nn.Linear(4, 4)
    count, seen = 0, []
    if not seen:
        first: Any

    def step(x: Tensor) -> None:
        nonlocal count, first
        global _LAST
        count, first = count + 1, x
        _LAST = model(x).sum()
        seen.append(_LAST)
        _LAST.backward()

    estimate_memory(step=step, batch=torch.randn(3, 4))

    assert (count, seen) == (0, [])
    assert "_LAST" not in globals()
    with pytest.raises(NameError, match="first"):
        print(first)
    assert model.weight.grad is None


def test_a_list_that_several_functions_share_is_one_list_in_the_step_too() -> None:
    model, pending = nn.Linear(4, 4), []

    def first(x: Tensor) -> None:
        pending.append(model(x))

    def second() -> None:
        pending.pop().sum().backward()

    holder = SimpleNamespace(pending=pending)

    def step(x: Tensor) -> None:
        first(x)
        assert len(holder.pending) == 1
        second()

    assert estimate_memory(step=step, batch=torch.randn(3, 4)).training
    assert pending == []


def test_a_step_without_a_batch() -> None:
    model, x = nn.Linear(256, 256), torch.randn(64, 256)

    def step() -> None:
        model(x).sum().backward()

    estimate = estimate_memory(step=step)

    assert (estimate.inputs, estimate.parameters) == (x.nbytes, 256 * 257 * 4)
    with pytest.raises(CaptureError, match="write a step that accepts it"):
        estimate.largest_batch(2**20)


def test_only_what_the_step_uses_counts() -> None:
    model, other = nn.Linear(8, 8, bias=False), nn.Linear(512, 512)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (model, other)]

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()

    estimate = estimate_memory(step=step, batch=torch.randn(2, 8))

    assert estimate.parameters == model.weight.nbytes
    assert estimate.optimizer_state == 2 * model.weight.nbytes + 4


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_a_model_that_has_trained_is_estimated_as_a_fresh_one(kind: Callable[..., torch.optim.Optimizer]) -> None:
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    optimizer = kind(model.parameters())

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    fresh = estimate_memory(step=step, batch=x)
    step(x)
    trained = estimate_memory(step=step, batch=x)

    assert fresh.optimizer_state >= 64 * 65 * 4
    assert (trained.by_category, trained.inputs) == (fresh.by_category, x.nbytes)


class Accumulator:
    """A training loop whose optimizer steps on every n-th call only."""

    def __init__(self, every: int, seen: int = 0) -> None:
        self.model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.every, self.seen = every, seen

    def step(self, x: Tensor) -> None:
        (self.model(x).square().mean() / self.every).backward()
        self.seen += 1
        if self.seen % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize(("every", "seen"), [(4, 3), (3, 1)])
def test_the_peak_of_gradients_that_calls_accumulate_is_the_measured_one(every: int, seen: int) -> None:
    loop, x = Accumulator(every, seen), torch.randn(16, 256)

    fresh = estimate_memory(step=loop.step, batch=x)

    assert loop.seen == seen
    for _ in range(2 * every):
        loop.step(x)
    trained = estimate_memory(step=loop.step, batch=x)
    while loop.seen % every:  # where no gradient is left over
        loop.step(x)
    resident = [*loop.model.parameters(), *state_of(loop.optimizer), x]
    measured = measured_peak(lambda: [loop.step(x) for _ in range(every)], resident)
    assert fresh.peak_bytes == pytest.approx(measured, rel=0.02)
    assert (fresh.optimizer, fresh.caveat) == ("AdamW", None)
    assert trained.by_category == fresh.by_category


def test_an_optimizer_that_does_not_step_in_any_call_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_simulation, "_MOST_CALLS", 3)
    loop, x = Accumulator(every=100), torch.randn(4, 256)
    weights = sum(p.nbytes for p in loop.model.parameters())

    without_state = estimate_memory(step=loop.step, batch=x)
    loop.seen = 99
    loop.step(x)
    with_state = estimate_memory(step=loop.step, batch=x)

    assert (without_state.optimizer_state, with_state.optimizer_state) == (0, 2 * weights + 4 * 4)
    assert with_state.inputs == x.nbytes
    for estimate in (without_state, with_state):
        assert estimate.caveat is not None
        assert estimate.caveat.startswith("AdamW did not run in any of ")
        assert estimate.caveat in estimate._document().notes
        assert "AdamW did not run in" in estimate._repr_mimebundle_()["text/html"]


def test_two_optimizers_that_take_turns_are_both_counted() -> None:
    models = [nn.Linear(64, 64) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    seen = 0

    def step(x: Tensor) -> None:
        nonlocal seen
        models[1](models[0](x)).sum().backward()
        seen += 1
        optimizers[seen % 2].step()
        optimizers[seen % 2].zero_grad()

    estimate = estimate_memory(step=step, batch=torch.randn(8, 64))

    assert estimate.optimizer_state == 2 * (2 * 64 * 65 * 4 + 2 * 4)
    assert (seen, estimate.caveat) == (0, None)


def test_a_step_of_inference() -> None:
    model = nn.Linear(8, 8)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return model(x)

    estimate = estimate_memory(step=step, batch=torch.randn(2, 8))

    assert (estimate.training, estimate.optimizer, estimate.gradients) == (False, None, 0)


def test_a_gradient_scaler_steps() -> None:
    model = nn.Linear(8, 8)
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu")

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    before = scaler.state_dict()

    assert estimate_memory(step=step, batch=torch.randn(2, 8)).optimizer_state == 2 * (64 + 8) * 4 + 2 * 4
    assert scaler.state_dict() == before


def asks_item(model: nn.Module, x: Tensor) -> None:
    model(x).sum().item()


def branches(model: nn.Module, x: Tensor) -> None:
    if model(x).sum() > 0:
        x += 1


def selects(model: nn.Module, x: Tensor) -> None:
    model(x)[x > 0]


@pytest.mark.parametrize("what", [asks_item, branches, selects])
def test_a_step_that_asks_for_numbers_is_refused_in_a_sentence_that_names_the_line(what: Callable[..., None]) -> None:
    model = nn.Linear(4, 4)
    line = what.__code__.co_firstlineno + 1

    with pytest.raises(CaptureError, match=rf"cannot be estimated: .* in line {line} of {what.__name__} depends on"):
        estimate_memory(step=lambda x: what(model, x), batch=torch.randn(3, 4))


def test_numbers_that_are_changed_in_place_are_no_longer_known() -> None:
    def step(x: Tensor, more: int = 0) -> None:
        if more:
            x.add_(more)
        torch.ones(int(x.max()))

    batch = torch.tensor([200, 300])
    assert estimate_memory(step=step, batch=batch).peak_bytes == 16 + 4 * 300
    with pytest.raises(CaptureError, match="depends on the values in a tensor"):
        estimate_memory(step=lambda x: step(x, more=1), batch=batch)


def test_the_first_batch_of_a_loader_is_taken() -> None:
    data = TensorDataset(torch.randn(20, 8), torch.randint(2, (20,)))
    loader = DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(3))
    model, batch = nn.Linear(8, 2), (torch.randn(6, 8), torch.randint(2, (6,)))
    state, numbers = loader.generator.get_state(), torch.get_rng_state()

    by_loader = estimate_memory(model, loader, "sgd", loss=F.cross_entropy)
    by_batch = estimate_memory(model, batch, "sgd", loss=F.cross_entropy)

    assert (by_loader.batch_size, by_loader.peak_bytes) == (6, by_batch.peak_bytes)
    assert torch.equal(loader.generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.parametrize("fails", [False, True])
def test_a_loader_is_closed_and_draws_as_before_also_after_an_error(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, of_sampler = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    rows: Any = range(9)
    loader: Any = DataLoader(rows, sampler=RandomSampler(rows, generator=of_sampler), generator=own)
    closed = Mock()

    class Source:
        close = closed

        def __init__(self, batches: Any) -> None:
            assert batches is loader

        def next(self) -> Any:
            for generator in (None, own, of_sampler):
                torch.rand(1, generator=generator)
            return 1 // (not fails)

    monkeypatch.setattr(batches, "BatchSource", Source)
    before = [torch.get_rng_state(), own.get_state(), of_sampler.get_state()]
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        assert batches.one_batch(loader) == 1
    closed.assert_called_once_with()
    assert all(map(torch.equal, before, [torch.get_rng_state(), own.get_state(), of_sampler.get_state()]))
    assert batches.one_batch([loader]) == [loader]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, x: estimate_memory(m, iter([x])), r"pass one batch, such as next\(iter\(loader\)\)"),
        (lambda m, x: estimate_memory(m), "The batch is missing"),
        (lambda m, x: estimate_memory(lambda b: m(b), x), "pass a step as step="),
        (lambda m, x: estimate_memory(m, x, step=lambda b: m(b)), "uses its own model"),
        (lambda m, x: estimate_memory(step=lambda: m(x), batch=x), "does not accept a batch"),
        (lambda m, x: estimate_memory(step=lambda b: m(b)), r"write estimate_memory\(step=step, batch=batch\)"),
        (lambda m, x: estimate_memory(step=3, batch=x), "step must be a function"),
    ],
)
def test_what_stands_in_the_wrong_place_is_refused(call: Callable[..., Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call(nn.Linear(4, 4), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("made", "saved", "training", "category"),
    [
        (Allocation(1, "forward", True, scratch=True), True, True, "temporaries"),
        (Allocation(1, "optimizer", True, scratch=False), True, True, "temporaries"),
        (Allocation(1, "backward", True, scratch=False), False, True, "activations"),  # recomputed
        (Allocation(1, "backward", False, scratch=False), True, True, "temporaries"),
        (Allocation(1, "forward", True, scratch=False), True, True, "activations"),
        (Allocation(1, "forward", True, scratch=False), True, False, "activations"),
        (Allocation(1, "forward", True, scratch=False), False, True, "temporaries"),
        (Allocation(1, "forward", True, scratch=False), False, False, "activations"),
    ],
)
def test_the_category_of_what_no_object_owns(made: Allocation, saved: bool, training: bool, category: str) -> None:
    assert step_simulation._kind_of(made, saved, training) == category


def test_tensors_of_a_step_are_those_of_its_models_optimizers_variables_and_batch() -> None:
    model, other, alone, batch = nn.Linear(2, 1), nn.Parameter(torch.ones(1)), torch.ones(2), torch.ones(3)
    optimizer = torch.optim.SGD([other])
    found = step_simulation._tensors([model, optimizer, alone, 3], {"x": [batch]})
    assert [id(one) for one in found] == [id(one) for one in (model.weight, model.bias, other, alone, batch)]


def test_the_state_of_an_optimizer_is_in_its_groups_and_its_entries() -> None:
    weight, rate, moment, alone = (torch.full((1,), float(number)) for number in range(4))
    optimizer = torch.optim.SGD([weight], lr=rate)
    optimizer.state[weight] = {"moment": [moment], "count": 3}
    optimizer.state["shared"] = (alone, "word")
    assert [one.item() for one in step_simulation._state(optimizer)] == [1, 2, 3]


def test_what_may_keep_tensors_is_of_the_user() -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise OSError

    class Slots:
        __slots__ = ()

    def function() -> None: ...

    held = {"its own": Trainer.__new__(Trainer), "a namespace": SimpleNamespace(), "a function": function}
    others = (copy.deepcopy, nn.Linear(1, 1), torch.ones(1), Trainer, Broken(), Slots(), random.Random(1), 3)
    assert all(step_simulation._has_variables(value) for value in held.values())
    assert [value for value in others if step_simulation._has_variables(value)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mixed"), [("gpt2", False), ("gpt2", True), ("bert", False), ("bert", True)])
def test_the_peak_of_real_language_models_is_the_counted_one(name: str, mixed: bool) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=5000, n_positions=64)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.BertConfig(
            num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=5000
        )
        model = transformers.BertForMaskedLM(config)
    model.train()
    ids = torch.randint(5000, (8, 64))
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    optimizer = torch.optim.AdamW(model.parameters())
    step = own_loss(model, optimizer, mixed=mixed)

    of_step = estimate_memory(step=step, batch=batch)
    of_model = estimate_memory(model, batch, optimizer, autocast=torch.bfloat16 if mixed else None)

    measured = counted_peak(step, batch)
    assert of_step.peak_bytes == pytest.approx(measured, rel=0.02)
    assert of_model.peak_bytes == pytest.approx(measured, rel=0.02)
    for estimate in (of_step, of_model):
        largest = estimate.largest_batch(4 * estimate.peak_bytes)
        assert estimate.with_batch_size(largest).peak_bytes <= 4 * estimate.peak_bytes
        assert estimate.with_batch_size(largest + 1).peak_bytes > 4 * estimate.peak_bytes
