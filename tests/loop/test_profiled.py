"""`profiled`: one changed line in a loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb.profile.profile import Profile
from tests.loop.loops import Training

pytestmark = pytest.mark.usefixtures("nothing_left")
SMALL: dict[str, Any] = {"steps": 2, "memory": False, "flops": False}


def test_names_are_those_of_the_loops_variables() -> None:
    training = Training()
    net, optimizer = training.model, training.optimizer
    loader = DataLoader(TensorDataset(torch.randn(128, 8), torch.randint(4, (128,))), batch_size=4)
    loop = perfnb.profiled(loader, at=4, **SMALL)
    for x, y in loop:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    parts, phases = loop.profiles[0].meta["parts"], loop.profiles[0].phases.index
    assert {"data", "forward", "loss", "backward", "optimizer"} <= set(phases)
    assert loop.profiles[0].layers.index[0] == "net"
    assert [one["name"] for one in parts["optimizers"]] == ["optimizer"]
    assert (parts["loader"]["name"], parts["loader"]["class"]) == ("loader", "DataLoader")
    assert parts["loader"]["batch_size"] == 4


def test_it_stands_for_its_loader() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=2)
    loop = perfnb.profiled(loader)
    assert len(loop) == 5
    assert loop.batch_size == 2
    assert loop.dataset is loader.dataset
    assert repr(loop) == "<perfnb.ProfiledLoop after 0 steps: <no profiles yet>>"
    for name in ("no_such", "__array__"):
        with pytest.raises(AttributeError, match=name):
            getattr(loop, name)
    with pytest.raises(TypeError, match="len"):
        len(perfnb.profiled(iter([])))


def test_the_count_goes_on_in_the_next_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(batches=30)
    loop = perfnb.profiled(training.batches, at=35, **SMALL)
    for _ in range(2):
        for batch in loop:
            training(batch)
    assert loop.profiles.at == [35]
    assert capsys.readouterr().out == (
        "perfnb: no step has been profiled yet: the loop had 30 steps, and the window of 6 opens only after 35. "
        "Choose a smaller at= or steps=, or make one profiled object before the epochs and iterate over it in each of "
        "them.\n"
    )


def test_a_window_that_meets_the_end_of_an_epoch_starts_over() -> None:
    """What runs between epochs, such as a validation, must not be recorded."""
    training = Training(batches=20)
    loop = perfnb.profiled(iter_again(training.batches), at=18, **SMALL)
    for _ in range(2):
        for batch in loop:
            training(batch)
    assert loop.profiles.at == [20]


def test_a_window_is_shortened_to_fit_the_epoch() -> None:
    training = Training(batches=20)
    loop = perfnb.profiled(training.batches, at=12, steps=10, memory=False, flops=False)
    for batch in loop:
        training(batch)
    assert loop.profiles.at == [12]
    assert (loop.profiles[0].steps["pass"] == "timed").sum() == 4


class iter_again:
    """Batches of unknown number that can be iterated over again."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_an_abandoned_iteration_does_not_close_the_next_one_s_window() -> None:
    training = Training()
    loop = perfnb.profiled(training.batches, at=3, **SMALL)
    abandoned = iter(loop)
    for batch in islice(abandoned, 5):
        training(batch)
    assert loop._profiler.is_open

    for batch in loop:
        training(batch)
        if loop._profiler.is_open and abandoned is not None:
            abandoned = None  # type: ignore[assignment]  # collected during the window
            assert loop._profiler.is_open
    assert abandoned is None
    assert len(loop.profiles) == 1


def test_break_and_exceptions_remove_everything() -> None:
    training, inside = Training(), 6
    loop = perfnb.profiled(training.batches, at=3, **SMALL)
    for place, batch in enumerate(loop):
        training(batch)
        if place == inside:
            break
    assert not loop._profiler.is_open

    def fails() -> None:
        for place, batch in enumerate(loop):
            training(batch)
            if place == inside:
                raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fails()
    assert not loop._profiler.is_open
    held = iter(loop)
    for batch in islice(held, inside):
        training(batch)
    loop.close()
    assert not loop._profiler.is_open
    del held
    for batch in loop:
        training(batch)
    assert len(loop.profiles) == 1


@pytest.mark.parametrize("inside", [3, 6, 8])
def test_an_interrupt_reaches_the_loop(inside: int) -> None:
    training = Training()
    loop = perfnb.profiled(training.batches, at=3, **SMALL)
    handler = signal.getsignal(signal.SIGINT)

    def train() -> None:
        for place, batch in enumerate(loop):
            training(batch)
            if place == inside:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert not loop._profiler.is_open
    assert signal.getsignal(signal.SIGINT) == handler


def test_an_interrupt_that_the_body_handles_goes_no_further() -> None:
    training = Training()
    loop = perfnb.profiled(training.batches, at=3, **SMALL)
    for batch in loop:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        training(batch)
    assert len(loop.profiles) == 1


def test_an_error_of_the_loader_is_the_users() -> None:
    def batches() -> Iterator[Any]:
        yield from Training(batches=5).batches
        raise LookupError("no more")

    training = Training()
    loop = perfnb.profiled(batches(), at=3, **SMALL)

    def train() -> None:
        for batch in loop:
            training(batch)

    with pytest.raises(LookupError, match="no more"):
        train()
    assert not loop._profiler.is_open


def test_steps_by_an_optimizer() -> None:
    training = Training(batches=58)
    model, optimizer = training.model, training.optimizer
    loop = perfnb.profiled(training.batches, at=3, steps_by=optimizer, steps=2, flops=False)
    for place, (x, y) in enumerate(loop, start=1):
        nn.functional.cross_entropy(model(x), y).backward()
        if place % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert not optimizer._optimizer_step_post_hooks
    (profile,) = loop.profiles
    assert loop._profiler.done == 14
    assert profile.layers.loc["model", "calls"] == 4
    assert (profile.steps["samples"] == 4 * 32).all()
    data = profile.events[profile.events["phase"] == "data"]
    assert len(data) > 0


def test_the_trace_is_kept_on_request() -> None:
    training = Training()
    loop = perfnb.profiled(training.batches, at=[3, 20], keep_trace=True, **SMALL)
    for batch in loop:
        training(batch)
    assert all(len(profile.events) > 0 for profile in loop.profiles)


def test_the_last_profile_shows_itself_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Profile] = []
    monkeypatch.setattr("perfnb.loop.profiled.in_notebook", lambda: True)
    monkeypatch.setattr(Profile, "_ipython_display_", lambda profile: shown.append(profile))
    training = Training(batches=30)
    at: list[int] = []
    for batch in perfnb.profiled(training.batches, at=3, **SMALL):
        training(batch)
        at += [len(shown)]
    assert at[8] == 0
    assert at[9] == 1  # at once: the loop continues
    assert len(shown) == 1
    shown.clear()
    loop = perfnb.profiled(training.batches, at=3, every=20, **SMALL)
    for batch in loop:
        training(batch)
    assert len(loop.profiles) == 2
    assert [one.meta["loop"]["step"] for one in shown] == [23]


def test_a_loop_that_is_left_shows_its_run_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, updated = list[object](), list[dict[str, str]]()
    monkeypatch.setattr("perfnb.loop.profiled.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.DisplayHandle.update", lambda _, data, raw: updated.append(data))
    monkeypatch.setattr(Profile, "_ipython_display_", lambda profile: shown.append(profile.meta["loop"]["step"]))
    monkeypatch.setattr("IPython.display.DisplayHandle.display", lambda _, data, raw: shown.append(data))
    training = Training()
    loop = perfnb.profiled(training.batches, at=3, every=1000, **SMALL)

    def train() -> None:
        for place, batch in enumerate(loop):
            training(batch)
            if place == 30:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert shown[0] == 3
    (run,) = shown[1:]
    assert isinstance(run, dict)
    assert "30 steps in" in run["text/plain"]
    assert loop.profiles.at == [3]
    for batch in loop:
        training(batch)
    assert ["90 steps in" in one["text/plain"] for one in updated] == [True]
    assert len(shown) == 2


def test_batches_live_no_longer_than_in_a_plain_loop() -> None:
    class Batch:
        alive = 0

        def __init__(self) -> None:
            Batch.alive += 1

        def __del__(self) -> None:
            Batch.alive -= 1

    most = 0
    for batch in perfnb.profiled((Batch() for _ in range(30)), at=3, **SMALL):
        del batch
        most = max(most, Batch.alive)
    assert most == 0


@pytest.mark.parametrize(("loader", "words"), [(3, "loader must be"), (None, "loader must be")])
def test_objects_that_are_not_loaders_are_refused(loader: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        perfnb.profiled(loader)
    with pytest.raises(TypeError, match="steps_by must be"):
        perfnb.profiled([], steps_by=3)


def test_a_loader_whose_length_fails_trains_as_without() -> None:
    class Unknown(iter_again):
        def __len__(self) -> int:
            raise RuntimeError("no length")

    training, plain = Training(), Training()
    torch.manual_seed(11)
    for batch in plain.batches:
        plain(batch)
    torch.manual_seed(11)
    loop = perfnb.profiled(Unknown(training.batches), at=5, **SMALL)
    for batch in loop:
        training(batch)
    assert len(loop.profiles) == 1
    assert all(torch.equal(a, b) for a, b in zip(plain.weights(), training.weights(), strict=True))
