"""Levers that compute something else, that fail or that leave something on; and steps that are hard to put back."""

from __future__ import annotations

import gc
import multiprocessing
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.bench.values import DIFFERENT
from perfnb.errors import CaptureError
from perfnb.remedies.state import fingerprint, untouched
from perfnb.remedies.subject import Subject
from perfnb.remedies.switches import SWITCHES
from tests.fake_clock import FakeClock
from tests.remedies import hard_steps
from tests.remedies.hard_steps import HARD, Hard, Switch, forward, lever, plant, switched

IN_PLACE = [
    *("threads", "autocast", "channels_last", "fused_optimizer", "foreach_optimizer", "gc_freeze", "checkpointing"),
    "loader_workers",
]


@pytest.fixture(autouse=True)
def _each_step_takes_20_ms(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake clock, so that how many rounds there are does not depend on the machine."""
    monkeypatch.setattr(hard_steps, "pause", lambda: clock.pass_exactly(20))


def tried(hard: Hard, *names: str, budget_s: float = 5.0, **options: Any) -> Any:
    """Return the table of some levers tried on a step."""
    return perfnb.try_levers(hard.step, hard.loader, levers=names, budget_s=budget_s, **options).table


def seeded(make: Callable[[], Hard]) -> Hard:
    """Return the same step each time, a few steps into its training."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    hard = make()
    hard.train(3)
    return hard


# What is left behind


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_training_goes_on_as_if_nothing_had_been_tried(name: str, nothing_left: None) -> None:
    alone = seeded(HARD[name]).train(20)
    hard = seeded(HARD[name])
    before = fingerprint(hard.subject())
    table = tried(hard, *IN_PLACE)
    after = fingerprint(hard.subject())

    assert before == after
    assert hard.train(20) == alone
    assert len(table) == len(IN_PLACE)
    assert (table["verdict"] != "not tried").any()


@pytest.mark.deep
@pytest.mark.parametrize("name", HARD)
def test_training_goes_on_as_if_nothing_had_been_compiled(name: str) -> None:
    alone = seeded(HARD[name]).train(50)
    hard = seeded(HARD[name])
    before = fingerprint(hard.subject())
    table = tried(hard, "compile")

    assert fingerprint(hard.subject()) == before
    assert hard.train(50) == alone
    assert table.loc["compile", "verdict"] != "not tried", table.loc["compile", "why_not"]


# Real levers that fit no better


def test_a_loss_that_overflows_under_autocast_is_different() -> None:
    found = perfnb.try_levers(*_of(hard_steps.overflow()), levers=["autocast"], budget_s=1)
    row = found.table.loc["autocast"]
    assert row["values"] == DIFFERENT
    assert "infinite or NaN" in row["why_not"]
    assert found.best == ()


def test_an_optimizer_that_forgets_its_state_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is right: there is no momentum yet."""
    model = nn.Linear(8, 1)
    opt, x = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.randn(4, 8)

    @contextmanager
    def forgets(_: Subject) -> Iterator[None]:
        handle = opt.register_step_pre_hook(lambda *_: opt.state.clear())
        try:
            yield
        finally:
            handle.remove()

    def step() -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    plant(monkeypatch, switched("forgets", forgets))
    row = perfnb.try_levers(step, levers=["forgets"], budget_s=1).table.loc["forgets"]
    assert row["values"] == DIFFERENT
    assert "after 3 steps is off by" in row["why_not"]


def test_a_dataset_that_cannot_be_pickled_says_so_and_the_others_are_tried(nothing_left: None) -> None:
    method = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        table = tried(hard_steps.not_pickled(), "loader_workers", "gc_freeze", budget_s=30)
    finally:
        multiprocessing.set_start_method(method, force=True)
    assert table.loc["loader_workers", "verdict"] == "not tried"
    assert "pickle" in table.loc["loader_workers", "why_not"].lower()
    assert table.loc["gc_freeze", "verdict"] != "not tried"


def _of(hard: Hard) -> tuple[Any, Any]:
    return hard.step, hard.loader


# Wrong values


class Branches(nn.Module):
    """Two branches, whose outputs are added."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.two(x)


def branches() -> Hard:
    model = Branches()
    return hard_steps._trained(
        model, hard_steps._vectors(), torch.optim.AdamW(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    )


def compiled(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Callable[..., Any]]:
    """Return a compile backend that runs the graph unchanged and alters its result."""

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        return lambda *args: tuple(change(out) for out in graph.forward(*args))

    return lambda model: torch.compile(model.forward, backend=backend)


def detached(model: nn.Module) -> Callable[..., Any]:
    """Of one branch, only the values come through."""
    return lambda x: model.one(x).detach() + model.two(x)  # type: ignore[operator]


def poisoned(model: nn.Module, bad: float) -> Callable[..., Any]:
    """Replace the first value of the output."""
    own = model.forward

    def run(x: Tensor) -> Tensor:
        out = own(x)
        mask = torch.zeros_like(out)
        mask[0, 0] = bad
        return out + mask

    return run


WRONG: dict[str, tuple[Callable[[nn.Module], Callable[..., Any]], str]] = {
    "a compile backend with slightly wrong values": (compiled(lambda out: out * 1.001), "is off by"),
    "a compile backend that changes one value in the ninth bit": (compiled(lambda out: out + 2.0**-9), "is off by"),
    "a detached branch": (detached, r"model\.one\.\w+ .*zero or missing"),
    "an infinite value": (lambda model: poisoned(model, float("inf")), "infinite or NaN"),
    "a value that is not a number": (lambda model: poisoned(model, float("nan")), "infinite or NaN"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_lever_with_wrong_values_is_called_different_and_never_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = WRONG[kind]
    plant(monkeypatch, forward("wrong", change))
    found = perfnb.try_levers(*_of(branches()), levers=["wrong"], budget_s=1)
    row = found.table.loc["wrong"]
    assert row["values"] == DIFFERENT
    assert re.search(words, row["why_not"]), row["why_not"]
    assert found.best == ()
    assert found.code == ""


def test_a_wrong_lever_that_is_much_faster_is_not_kept(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = branches()
    [model] = hard.models
    monkeypatch.setattr(hard_steps, "pause", lambda: clock.pass_exactly(1.0 if "forward" in vars(model) else 10.0))
    plant(monkeypatch, forward("wrong", detached))
    found = perfnb.try_levers(*_of(hard), levers=["wrong"], budget_s=2)
    assert found.table.loc["wrong", "verdict"] in ("faster", "not tried")
    assert found.best == ()


# Levers that break


class Broken(Exception):
    """What a planted lever raises."""


def raising(at: str) -> Any:
    """Return a lever that raises at one place."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        if at == "prepare":
            raise Broken(at)

        @contextmanager
        def on() -> Iterator[None]:
            if at == "on":
                raise Broken(at)
            before = torch.get_num_threads()
            torch.set_num_threads(2)
            try:
                yield
            finally:
                torch.set_num_threads(before)
                if at == "off":
                    raise Broken(at)

        yield on
        if at == "undo":
            raise Broken(at)

    return lever("broken", prepared)


@pytest.mark.parametrize("at", ["prepare", "on", pytest.param("off", marks=pytest.mark.deep)])
def test_a_lever_that_raises_is_not_tried_and_the_others_are(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = hard_steps.batch_norm()
    before = fingerprint(hard.subject())
    plant(monkeypatch, raising(at))
    table = tried(hard, "broken", "gc_freeze")
    assert table.loc["broken", "verdict"] == "not tried"
    assert f"Broken: {at}" in table.loc["broken", "why_not"]
    assert table.loc["gc_freeze", "verdict"] != "not tried"
    assert fingerprint(hard.subject()) == before


@pytest.mark.deep
def test_a_lever_that_cannot_be_taken_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = hard_steps.batch_norm()
    before = fingerprint(hard.subject())
    plant(monkeypatch, raising("undo"))
    with pytest.raises((CaptureError, Broken), match="undo"):
        tried(hard, "broken", "gc_freeze")
    assert fingerprint(hard.subject()) == before


def leak_threads(subject: Subject) -> None:
    torch.set_num_threads(2)


def leak_weights(subject: Subject) -> None:
    model = next(iter(subject.models.values()))
    parameter = next(model.parameters())
    parameter.data = parameter.data.clone()


def leak_attribute(subject: Subject) -> None:
    model = next(iter(subject.models.values()))
    vars(model)["forward"] = model.forward


def leak_hook(subject: Subject) -> None:
    next(iter(subject.models.values())).register_forward_hook(lambda *_: None)


LEAKS: dict[str, tuple[Callable[[Subject], Any], str]] = {
    "threads": (leak_threads, "number of threads"),
    "precision": (lambda _: torch.set_float32_matmul_precision("medium"), "float32 precision"),
    "gradients": (lambda _: torch.set_grad_enabled(False), "gradient mode"),
    "default dtype": (lambda _: torch.set_default_dtype(torch.float64), "default dtype"),
    "determinism": (lambda _: torch.use_deterministic_algorithms(True), "determinis"),
    "anomalies": (lambda _: torch.autograd.set_detect_anomaly(True), "anomal"),
    "mkldnn": (lambda _: setattr(torch.backends.mkldnn, "enabled", False), "(mkldnn|oneDNN)"),
    "garbage collection": (lambda _: gc.disable(), "garbage collection"),
    "memory of a weight": (leak_weights, r"model"),
    "a replaced forward": (leak_attribute, r"model"),
    "a hook": (leak_hook, r"model"),
    "a frozen weight": (lambda s: next(iter(s.parameters)).requires_grad_(False), r"model"),
    "evaluation mode": (lambda s: next(iter(s.models.values())).eval(), r"model"),
    "the learning rate": (lambda s: next(iter(s.optimizers.values())).param_groups[0].update(lr=1.0), r"opt"),
    "a new group": (
        lambda s: next(iter(s.optimizers.values())).add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        r"opt",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_what_is_left_changed_is_an_error_that_says_what(name: str) -> None:
    leak, words = LEAKS[name]
    subject = hard_steps.view().subject()
    before = fingerprint(subject)

    with (
        pytest.raises(CaptureError, match=rf"After trying levers, .*{words}.* has changed: ") as raised,
        untouched(subject),
    ):
        leak(subject)

    assert (fingerprint(subject) != before) == ("restart from a checkpoint" in str(raised.value))


@pytest.mark.parametrize(("when", "doing"), [("each time", "trying"), ("at the end", "undoing")])
def test_a_lever_that_leaves_something_changed_is_named(when: str, doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        @contextmanager
        def on() -> Iterator[None]:
            yield
            if when == "each time":
                leak_threads(subject)

        yield on
        leak_threads(subject)

    plant(monkeypatch, lever("leaks", prepared))
    with pytest.raises(CaptureError, match=rf"^After {doing} leaks, .*number of threads"):
        tried(hard_steps.view(), "leaks", "gc_freeze", budget_s=2)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("the choice of attention", lambda before: [not on for on in before]),
        ("autocast", lambda before: [(not on, torch.float16) for on, _ in before]),
    ],
)
def test_a_switch_is_put_back_also_after_an_error(name: str, other: Any) -> None:
    read, write = SWITCHES[name]
    before, subject = read(), hard_steps.view().subject()

    def fails() -> None:
        with untouched(subject):
            write(other(before))
            assert read() == other(before)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full") as raised:
        fails()
    assert raised.value.__notes__ == [f"After trying levers, {name} has changed: perfnb has restored it."]
    assert read() == before
