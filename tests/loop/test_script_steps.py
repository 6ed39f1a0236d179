"""Which steps of a script are seen: the calls to its loaders and optimizers, and those that reach the driver."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perfnb.loop.script_steps import ScriptSteps, _AfterImport, script_variables


class Told:
    """A driver that keeps its calls: w(ait), b(egin), e(nd), s(kip)."""

    trial = None

    def __init__(self) -> None:
        self.words = ""
        self.loader: Any = None
        self.recorder = SimpleNamespace(by_batch=False)

    def wait(self) -> None:
        self.words += "w"

    def begin(self, batch: Any = None) -> None:
        self.words += "b"

    def end(self) -> None:
        self.words += "e "

    def skip(self) -> None:
        self.words += "s "


class Thing:
    """A loader or an optimizer."""


def asked(steps: ScriptSteps, loader: Thing, *, empty: bool) -> None:
    """Ask a loader for a batch, of which it may have no more."""

    def fetch() -> int:
        if empty:
            raise StopIteration
        return 1

    with suppress(StopIteration):
        steps.take(loader, fetch)


def told(script: str, by: str = "first") -> str:
    """Return the driver's calls for a script: a capital asks the loader of that name, which has a batch for it, or with
    ``!`` none; a digit is a step of the optimizer of that name."""
    driver, things = Told(), {name: Thing() for name in "ABV123"}
    steps = ScriptSteps(lambda loader: driver, by)  # type: ignore[arg-type, return-value]
    for word in script.split():
        if word[0].isdigit():
            steps.step(things[word])
        else:
            asked(steps, things[word[0]], empty=word.endswith("!"))
    return driver.words.strip()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A 1 A 1 A 1", "wbe wbe wbe"),
        ("A A A 1 A A A 1", "wbwbwbe wbwbwbe"),  # gradient accumulation
        ("A 1 A 1 A! V V V! A 1", "wbe wbe ws wbe"),  # validation after an epoch
        ("V V V! A 1 A 1", "wbwbwbs wbe wbe"),  # and before the first
        ("A 1 A A! V V! A 1", "wbe wbwbwbwbs wbe"),  # an epoch that ends in the middle of accumulating
        ("A 1 A A! 1 A 1", "wbe wbwbe wbe"),  # or with a step of fewer batches
        ("1 1 1", "be be b"),  # no loader
        ("V V! 1 1", "wbwbs be b"),
        ("1 V V! 1 1", "bwbwbe be b"),
        ("A 1 A 1 A! B 1 B 1 B 1", "wbe wbe ws wbe wbe"),  # another loader from then on
        ("A 1 2 A 1 2", "wbe wbe"),  # two optimizers: a step ends with the first
        ("1 2 1 2", "be b"),
        ("A B 1 A B 1 A B 1 A B 1", "wbs wbe wbe wbwbe wbwbe"),  # two loaders: the first one's batches are the steps'
        ("A 1 V A 1 V A 1", "wbe wbe wbe"),  # between steps, only what every step asks for is theirs
        ("1 A 1 A 1 A 1", "bwbe bwbe wbe"),
    ],
)
def test_steps_end_with_the_first_optimizer(script: str, words: str) -> None:
    assert told(script) == words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A 1 2 A 1 2 A 1 2", "wbe wbe wbe"),
        ("A 1 A 1 A 1 2 A 1 A 1 A 1 2", "wbe wbe wbe wbwbwbe"),  # the second steps once for three steps of the first
        ("A 1 A 1", "wbe wbe"),
        ("1 2 1 2 1 2", "be be be b"),
    ],
)
def test_steps_end_with_the_optimizer_that_came_last(script: str, words: str) -> None:
    assert told(script, "last") == words


@pytest.mark.parametrize(
    ("script", "words"), [("A A A!", "wbe wbe ws"), ("A 1 V V! A 1 A! A A", "wbwbwbe wbe ws wbe wb"), ("1 1", "")]
)
def test_steps_end_with_the_next_batch(script: str, words: str) -> None:
    assert told(script, "batch") == words


def test_during_a_trial_the_batches_of_steps_come_from_it() -> None:
    driver, loader, other, optimizer = Told(), Thing(), Thing(), Thing()
    steps = ScriptSteps(lambda loader: driver)  # type: ignore[arg-type, return-value]
    driver.trial = SimpleNamespace(next=lambda *given: ("of the trial", *given))  # type: ignore[assignment]
    fetch: Any = functools.partial(lambda given: "its own", "given")
    assert steps.take(loader, fetch) == ("of the trial", "given")
    steps.step(optimizer)
    assert steps.take(other, fetch) == "its own"  # for no step
    assert steps.take(loader, fetch) == ("of the trial", "given")
    assert steps.take(other, fetch) == "its own"  # another loader of this step
    driver.trial = None
    assert steps.take(loader, fetch) == "its own"


def test_the_steps_of_torch_are_seen_and_then_no_longer() -> None:
    class Own(torch.optim.SGD):  # a class that was not used before
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    driver, model = Told(), nn.Linear(2, 2)
    steps = ScriptSteps(lambda loader: driver)  # type: ignore[arg-type, return-value]
    following = DataLoader([1.0]).__iter__().__class__.__next__

    def loop(optimizer: torch.optim.Optimizer) -> None:
        for batch in DataLoader(torch.ones(3, 2), batch_size=1):
            model(batch).sum().backward()
            optimizer.step()

    with steps.installed():
        optimizer = Own(model.parameters(), lr=0.1)
        loop(optimizer)
        thread = threading.Thread(target=loop, args=(Own(model.parameters(), lr=0.1),))
        thread.start()
        thread.join()
    loop(optimizer)

    assert driver.words == "wbe wbe wbe ws "
    assert DataLoader([1.0]).__iter__().__class__.__next__ is following
    assert not any(isinstance(finder, _AfterImport) for finder in sys.meta_path)


def test_variables_are_those_of_the_running_functions() -> None:
    inner, hidden = object(), []

    def train(model: object) -> dict[str, Any]:
        value = inner
        found = script_variables()
        assert found["value"] is value
        return found

    found = train(hidden)
    assert found["model"] is hidden
    assert found["inner"] is inner  # of this function
    assert found["Told"] is Told  # of this module


def test_looking_for_variables_keeps_no_object_alive() -> None:
    def train() -> bool:
        model = Thing()
        seen = weakref.ref(model)
        assert script_variables()["model"] is model
        del model
        return seen() is None

    tracer = sys.gettrace()
    sys.settrace(None)  # a tracer keeps the variables alive
    try:
        assert train()
    finally:
        sys.settrace(tracer)


def test_a_module_that_is_imported_later_is_reported_when_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("later_one", "later_two"):
        (tmp_path / f"{name}.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[tuple[str, int]] = []

    def note(module: Any) -> None:
        seen.append((module.__name__, module.value))

    finder = _AfterImport(dict.fromkeys(("later_one", "no_such_module"), note))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in ("later_two", "later_one", "later_one"):
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
    assert seen == [("later_one", 3)] * 2
    assert finder.find_spec("later_two") is None
    assert finder.find_spec("no_such_module") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
