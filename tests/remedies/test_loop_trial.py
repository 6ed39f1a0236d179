"""Levers tried on the steps of a running loop: they are on in blocks, never at the end, and no error of theirs is the
loop's."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from perfnb.remedies import loop_trial
from perfnb.remedies.levers import by_name, loading, optimizers
from perfnb.remedies.levers.loading import RestOfData, loader_with_workers
from perfnb.remedies.loop_trial import LoopTrial, begin_trial
from perfnb.remedies.subject import Subject
from tests.fake_clock import FakeClock
from tests.loop.loops import Training

pytestmark = [pytest.mark.usefixtures("nothing_left", "clock")]

Cost = Callable[[Training], float]


def loop(trial: LoopTrial, training: Training, cost: Cost, steps: int = 300, first: int = 0) -> int:
    """Train as a loop does that calls the trial, each step for as long as `cost` says; the steps that it took."""
    for step in range(first, first + steps):
        trial.begin()
        begin = time.perf_counter_ns()
        training(training.batches[step % len(training.batches)])
        time.sleep(cost(training) / 1e3)
        trial.end((time.perf_counter_ns() - begin) / 1e6)
        if trial.finished:
            return step - first + 1
    return steps


def started(training: Training, *levers: str, loader: Any = None) -> LoopTrial:
    names = training.namespace | {"loader": loader}
    return LoopTrial(levers, {}, ["model"], (10.0, 0.0), lambda: names, loader)


def facts(trial: LoopTrial) -> list[dict[str, Any]]:
    return trial.found()[0]


def rest_of(loader: DataLoader[Any], workers: int, failed: Callable[[Exception], object]) -> RestOfData:
    subject = Subject(print, loader, {}, {}, ("loader", loader), chosen={"workers": workers})
    return RestOfData(subject, failed)


def fails(error: Exception) -> None:
    raise AssertionError(str(error))


def slow_unless_fused(training: Training) -> float:
    return 6.0 if training.optimizer.param_groups[0]["fused"] else 10.0


def plain(training: Training, steps: int) -> list[Tensor]:
    """Return the weights after as many steps without any lever."""
    torch.manual_seed(1)
    for step in range(steps):
        training(training.batches[step % len(training.batches)])
    return training.weights()


@pytest.mark.slow
def test_a_lever_that_helps_is_distinguished_from_one_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()
    trial = started(training, "fused_optimizer", "gc_freeze")
    steps = loop(trial, training, slow_unless_fused)
    assert trial.finished
    assert steps == 1 + 2 * 12 * 2 * (2 + 3)
    assert capsys.readouterr().err == (
        "perfnb: in the next 240 steps, levers are switched on and off at random: fused_optimizer, gc_freeze. Each "
        "step runs once. The run remains valid but not bit-identical, and your own settings are restored afterwards.\n"
    )
    fused, frozen = facts(trial)
    assert (fused["lever"], fused["verdict"], fused["kept"]) == ("fused_optimizer", "faster", True)
    assert fused["interval"][0] < 0.6 < fused["interval"][1]
    assert fused["saves_ms"] == pytest.approx(4.0, rel=0.02)
    assert fused["values"] == "not checked"
    assert (frozen["verdict"], frozen["kept"]) == ("same", False)
    assert trial.found()[1].startswith("fused_optimizer is faster by 40 % [")


@pytest.mark.usefixtures("two_cores")
def test_levers_are_on_in_half_of_the_steps_and_off_at_the_end() -> None:
    training, seen = Training(), []
    trial = started(training, "threads", "gc_freeze", "fused_optimizer", "channels_last")
    before = torch.get_num_threads(), gc.isenabled(), training.optimizer.state_dict()["param_groups"]
    loop(trial, training, lambda _: seen.append((torch.get_num_threads() == 2, not gc.isenabled())) or 1.0)
    for number in (0, 1):
        assert 0 < sum(one[number] for one in seen) < len(seen)
    while not trial.finished:
        loop(trial, training, lambda _: 1.0)
    assert (torch.get_num_threads(), gc.isenabled(), training.optimizer.state_dict()["param_groups"]) == before
    assert "forward" not in vars(training.model)
    assert facts(trial)[-1]["why_not"] == "the model has no 2-D convolutions"


def test_on_an_accelerator_a_block_is_waited_for(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's step takes no time there, and the device's work ends only where somebody waits for it."""
    behind = [0.0]

    def wait() -> None:
        clock.pass_exactly(behind[0])
        behind[0] = 0.0

    def submit(training: Training) -> float:
        behind[0] += slow_unless_fused(training)
        return 0.001

    monkeypatch.setattr(loop_trial, "accelerator_in_use", lambda: True)
    monkeypatch.setattr(loop_trial, "synchronize", wait)
    training = Training()
    trial = started(training, "fused_optimizer")
    loop(trial, training, submit)
    [tried] = facts(trial)
    assert (tried["verdict"], tried["ratio"]) == ("faster", pytest.approx(0.6, rel=2e-4))
    assert tried["saves_ms"] == pytest.approx(4.0, rel=2e-4)  # of the counted steps alone


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.threads.usable_cpus", lambda: 2)


class Wrong(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *_grads: Tensor) -> Tensor:
        raise RuntimeError("no kernel")


def fails_in_forward(_: Any) -> Callable[..., Any]:
    def run(*_args: Any, **_kwargs: Any) -> Any:
        torch.rand(3)  # a lever may have drawn random numbers before it failed
        raise RuntimeError("no kernel")

    return run


def fails_in_backward(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: Wrong.apply(forward(*args))


@pytest.mark.parametrize("broken", [fails_in_forward, fails_in_backward])
def test_a_lever_that_fails_in_the_step_is_a_row_and_the_step_goes_on(
    broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **_: broken(forward))
    monkeypatch.setattr("perfnb.remedies.levers.compiling._compiler", lambda: True)
    training = Training()
    trial = started(training, "compile", "gc_freeze")
    torch.manual_seed(1)
    steps = loop(trial, training, lambda _: 5.0 if not gc.isenabled() else 10.0)
    failed, frozen = facts(trial)
    assert failed["why_not"] == "the step fails with it: RuntimeError: no kernel"
    assert (failed["ratio"], failed["kept"]) == (None, False)
    assert frozen["verdict"] == "faster"
    assert all(map(torch.equal, training.weights(), plain(Training(), steps)))


def test_an_update_that_fails_is_a_row_and_changes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(params: list[Tensor], *_: Any, **__: Any) -> None:
        params[0].zero_()
        raise RuntimeError("no kernel")

    for name in ("adam._fused_adam", "adamw._fused_adamw"):  # by the version of torch
        module, _, function = name.partition(".")
        monkeypatch.setattr(sys.modules[f"torch.optim.{module}"], function, fails, raising=False)
    training = Training()
    trial = started(training, "fused_optimizer")
    torch.manual_seed(1)
    steps = loop(trial, training, lambda _: 1.0)
    assert [one["why_not"] for one in facts(trial)] == ["the step fails with it: RuntimeError: no kernel"]
    monkeypatch.undo()
    assert all(map(torch.equal, training.weights(), plain(Training(), steps)))


def test_a_lever_that_cannot_be_switched_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_trial, "RestOfData", lambda *_: (_ for _ in ()).throw(OSError("no more processes")))
    training, loader = Training(), DataLoader(Numbers(8))
    trial = started(training, "loader_workers", "gc_freeze", loader=loader)
    loop(trial, training, lambda _: 1.0)
    assert trial.finished
    assert [one["why_not"] for one in facts(trial)] == ["the step fails with it: OSError: no more processes", ""]


def test_an_error_of_the_users_own_reaches_them() -> None:
    training = Training()
    trial = started(training, "compile", "gc_freeze")
    training.model.forward = fails_in_forward(None)  # type: ignore[method-assign]
    trial.begin()
    with pytest.raises(RuntimeError, match="no kernel"):
        training(training.batches[0])
    trial.pause()
    trial.close()


def test_an_interrupted_block_starts_over() -> None:
    training = Training()
    trial = started(training, "gc_freeze")
    took = 0
    for length in (3, 1, 7, 2, 30, 12, 500):  # epochs
        took += loop(trial, training, lambda _: 1.0, length)
        trial.pause()
        assert gc.isenabled()
    assert trial.finished
    assert len(trial.trials[0].on_ms) == 12
    assert took > 1 + 2 * 12 * 5


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 12, 70])
def test_a_loop_that_ends_early_has_no_verdict(steps: int) -> None:
    training = Training()
    trial = started(training, "fused_optimizer", "gc_freeze")
    loop(trial, training, slow_unless_fused, steps)
    trial.pause()
    trial.close()
    assert all(one["verdict"] == "not timed" and "too few pairs" in one["why_not"] for one in facts(trial))
    assert gc.isenabled()
    assert training.optimizer.param_groups[0]["fused"] is None


def on(trial: LoopTrial, training: Training, is_on: Callable[[], bool]) -> None:
    """Run the loop until a lever is on, inside a step."""
    for batch in training.batches:
        trial.begin()
        if is_on():
            return
        training(batch)
        trial.end(10.0)


def test_what_is_saved_or_copied_meanwhile_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **_: lambda *args: forward(*args))
    monkeypatch.setattr("perfnb.remedies.levers.compiling._compiler", lambda: True)
    training = Training()
    model, optimizer = training.model, training.optimizer
    own = optimizer.state_dict()["param_groups"]
    trial = started(training, "fused_optimizer")
    on(trial, training, lambda: bool(optimizer.param_groups[0]["fused"]))
    assert optimizer.state_dict()["param_groups"] == own
    trial.close()

    trial = started(training, "compile")
    signature = inspect.signature(model.forward)
    on(trial, training, lambda: "forward" in vars(model))
    assert "forward" in vars(model)
    assert inspect.signature(model.forward) == signature
    x = training.batches[0][0]
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.zero_()
        assert copied(x).abs().max() == 0
        assert copied.forward.__self__ is copied
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"perfnb" not in saved.getvalue()
    trial.close()
    assert "forward" not in vars(model)


@pytest.mark.parametrize("instant", range(1, 13))
def test_an_interrupt_leaves_nothing_on(instant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any call of what is switched, and in the step itself."""
    training, calls = Training(), 0
    own = training.optimizer.state_dict()["param_groups"]

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls == instant:
            signal.raise_signal(signal.SIGINT)

    original = optimizers._update

    def interrupted(*args: Any) -> None:
        interrupt()
        original(*args)
        interrupt()

    monkeypatch.setattr(optimizers, "_update", interrupted)
    trial = started(training, "fused_optimizer")
    with pytest.raises(KeyboardInterrupt):
        loop(trial, training, lambda _: interrupt() or 1.0)
    trial.pause()
    trial.close()
    assert training.optimizer.state_dict()["param_groups"] == own


def test_an_interrupt_while_the_trial_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopTrial, "_chosen", lambda *_: signal.raise_signal(signal.SIGINT) or [])
    training = Training()
    trial = started(training, "gc_freeze")
    with pytest.raises(KeyboardInterrupt):
        loop(trial, training, lambda _: 1.0)
    assert trial.finished


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_inside_a_lever_reaches_the_user(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is first tried without effect, and in the steps after that."""
    calls = 0

    def compiled(forward: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                signal.raise_signal(signal.SIGINT)
            return forward(*args)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("perfnb.remedies.levers.compiling._compiler", lambda: True)
    training = Training()
    trial = started(training, "compile")
    with pytest.raises(KeyboardInterrupt):
        loop(trial, training, lambda _: 1.0)
    trial.pause()
    assert "forward" not in vars(training.model)
    assert not trial.finished
    loop(trial, training, lambda _: 1.0)
    assert facts(trial)[0]["ratio"] is not None


@pytest.mark.parametrize(
    ("wanted", "bounds", "rows", "ready"),
    [
        (["channels_last", "gc_freeze"], {}, {"channels_last", "gc_freeze"}, {"gc_freeze"}),
        ([], {}, {"gc_freeze"}, {"gc_freeze"}),  # nobody asked for the others
        ([], {"bound": 1.0}, {"gc_freeze", "channels_last"}, {"gc_freeze"}),  # a finding did
    ],
)
def test_levers_that_are_refused_have_a_row_only_if_somebody_asked_for_them(
    wanted: list[str], bounds: dict[str, float], rows: set[str], ready: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: replace(by_name()[name], answers=("bound",)) for name in ("channels_last", "gc_freeze")}
    monkeypatch.setattr(loop_trial, "by_name", lambda: known)
    monkeypatch.setattr(loop_trial, "IN_LOOPS", tuple(known))
    trial = LoopTrial(wanted, bounds, ["model"], (10.0, 0.0), dict, None)
    subject = Subject(print, None, {"model": torch.nn.Linear(2, 2)}, {}, None, chosen={"workers": 1, "threads": 1})

    assert {lever.name for lever, _ in trial._chosen(subject)} == ready
    assert {one.lever for one in trial.trials} == rows


@pytest.mark.parametrize(
    ("name", "found", "place", "asked", "lines"),
    [
        ("fused_optimizer", "o = ...", "", ("SGD", "o", {"fused": True, "foreach": None}), ["o = ..."]),
        ("foreach_optimizer", "o = ...", "a.py:3", ("SGD", "o", {"foreach": True}), ["o = ..."]),
        ("loader_workers", "l = ...", "", ("DataLoader", "l", {"num_workers": 2}), ["l = ..."]),
        (
            "fused_optimizer",
            "",
            "a.py:3",
            ("SGD", "o", {"fused": True, "foreach": None}),
            "  # before the loop: a.py:3",
        ),
        ("foreach_optimizer", "", "", ("SGD", "o", {"foreach": True}), "  # the place is unknown"),
        ("gc_freeze", "x", "", None, "  # the place is unknown"),
    ],
)
def test_lines_are_rewritten_where_they_belong_or_say_where_to_put_them(
    name: str, found: str, place: str, asked: Any, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewritten(files: object, kind: str, called: str, **changed: Any) -> str:
        seen.append((kind, called, changed))
        return found

    seen: list[Any] = []
    monkeypatch.setattr(loop_trial.places, "rewritten", rewritten)
    optimizer, loader = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), DataLoader(Numbers(4))
    subject = Subject(print, loader, {}, {"o": optimizer}, ("l", loader), chosen={"workers": 2})
    trial = LoopTrial([], {}, [], (10.0, 0.0), dict, loader)
    trial._files, trial._place = {}, place
    lever = by_name()[name]

    assert trial._lines(lever, subject) == (
        lines if isinstance(lines, list) else [line + lines for line in lever.code(subject)]
    )
    assert seen == ([] if asked is None else [asked])


def test_a_pause_stops_the_second_loader() -> None:
    trial, stopped = started(Training(), "gc_freeze"), Mock()
    trial._rest = stopped
    trial.pause()
    stopped.stop.assert_called_once_with()


def test_a_second_loader_s_workers_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = SimpleNamespace(_iterator=None)
    loading._end_workers(loader)
    iterator = loader._iterator = Mock()
    loading._end_workers(loader)
    iterator._shutdown_workers.assert_called_once_with()
    assert loader._iterator is None

    ended, own = list[Any](), DataLoader(Numbers(4))
    monkeypatch.setattr(loading, "_end_workers", ended.append)
    rest = rest_of(own, 1, fails)
    rest.stop()
    with loading._workers(Subject(print, own, {}, {}, ("own", own), chosen={"workers": 1})) as ahead:
        assert (ended, ahead.num_workers) == ([rest._second], 1)
    assert ended == [rest._second, ahead]


# A second loader on the rest of the data


class Numbers(Dataset[int]):
    """Whole numbers; some cannot be read."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()) -> None:
        self._count, self._broken = count, broken

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> int:
        if place in self._broken:
            raise ValueError(f"sample {place}")
        return place


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Numbers(50), batch_size=4),
    "shuffled": lambda: DataLoader(Numbers(50), batch_size=4, shuffle=True, drop_last=True),
    "one by one": lambda: DataLoader(Numbers(20), batch_size=None),
    "own order": lambda: DataLoader(Numbers(50), batch_sampler=[[place, place + 1] for place in range(0, 48, 2)]),
}


def given(loader: DataLoader[Any]) -> list[list[int]]:
    return [torch.as_tensor(batch).flatten().tolist() for batch in loader]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second loader loads in this process, one batch at a time."""

    def loaded_here(loader: DataLoader[Any], _workers: int, _pinned: bool, **changed: Any) -> DataLoader[Any]:
        return loader_with_workers(loader, 0, False, persistent_workers=False, **changed)

    monkeypatch.setattr(loading, "loader_with_workers", loaded_here)


@pytest.mark.parametrize(
    ("kind", "processes"),
    [*((kind, False) for kind in LOADERS), pytest.param("shuffled", True, marks=pytest.mark.slow)],
)
def test_each_sample_comes_once_and_in_order(kind: str, processes: bool, request: pytest.FixtureRequest) -> None:
    if not processes:
        request.getfixturevalue("no_processes")
    torch.manual_seed(5)
    expected = [given(LOADERS[kind]()) for _ in range(2)]
    after = torch.get_rng_state()
    torch.manual_seed(5)
    loader = LOADERS[kind]()
    rest = rest_of(loader, 2, fails)
    for epoch in range(2):
        batches, found = iter(loader), []
        with suppress(StopIteration):
            while True:
                with rest.on():
                    found += [next_of(rest, batches) for _ in range(3)]
                found += [next_of(rest, batches) for _ in range(2)]
                if len(found) > 12:
                    rest.stop()
        assert [torch.as_tensor(batch).flatten().tolist() for batch in found] == expected[epoch][: len(found)]
        # What a list expression had when the data ran out is lost to this test, and to no one else.
        assert len(expected[epoch]) - len(found) < 3
    assert torch.equal(torch.get_rng_state(), after)
    rest.stop()


def next_of(rest: RestOfData, batches: Iterator[Any]) -> Any:
    return rest.next(batches)


@pytest.mark.usefixtures("no_processes")
def test_the_data_runs_out_in_both_loaders() -> None:
    loader = DataLoader(Numbers(10), batch_size=4)
    rest = rest_of(loader, 1, fails)
    batches, found = iter(loader), []
    with rest.on():
        for _ in range(3):
            found += rest.next(batches).tolist()
        with pytest.raises(StopIteration):
            rest.next(batches)
    assert found == list(range(10))
    rest.stop()


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sample_that_fails_is_asked_for_again_without_workers(
    processes: bool, request: pytest.FixtureRequest
) -> None:
    if not processes:
        request.getfixturevalue("no_processes")
    failed: list[Exception] = []
    loader = DataLoader(Numbers(12, broken=(5,)), batch_size=2)
    rest = rest_of(loader, 2, failed.append)
    batches, found = iter(loader), []
    with rest.on():
        found += [rest.next(batches).tolist() for _ in range(2)]
        with pytest.raises(ValueError, match=r"^sample 5$"):  # the user's own, not as a worker tells it
            rest.next(batches)
        assert [type(error) for error in failed] == [ValueError]
    found += [rest.next(batches).tolist() for _ in range(3)]
    assert found == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    rest.stop()


@pytest.mark.usefixtures("no_processes")
def test_batches_of_another_loader_are_left_alone_and_a_new_epoch_starts_anew() -> None:
    loader, other = DataLoader(Numbers(6), batch_size=2), iter(DataLoader(Numbers(4)))
    rest = rest_of(loader, 2, fails)
    first, second = iter(loader), iter(loader)
    with rest.on():
        assert rest.next(other).tolist() == rest.next(iter([torch.tensor([0])])).tolist() == [0]
        assert [rest.next(batches).tolist() for batches in (first, second, second)] == [[0, 1], [0, 1], [2, 3]]
        assert rest.next(first).tolist() == [2, 3]
    assert [next(first).tolist(), next(second).tolist()] == [[4, 5]] * 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Stream()), "a stream does not report which samples remain; to try it yourself: loader ="),
        (DataLoader(Numbers(4), num_workers=2), "the loader already has workers; to try it yourself:"),
        ([1, 2], "no DataLoader feeds the step"),
    ],
)
def test_a_loader_that_cannot_be_rebuilt_is_answered_by_the_line(loader: Any, said: str) -> None:
    training = Training()
    trial = started(training, "loader_workers", loader=loader)
    loop(trial, training, lambda _: 1.0, 3)
    assert trial.finished
    assert facts(trial)[0]["why_not"].startswith(said)


@pytest.mark.usefixtures("no_processes")
def test_a_loader_with_workers_is_tried_on_the_rest_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a batch takes 4 ms, and nothing in the second loader, as if workers had made it ahead."""
    monkeypatch.setattr(loop_trial, "usable_cpus", lambda: 4)
    training, loader = Training(), DataLoader(Numbers(400))
    names = training.namespace | {"loader": loader}
    trial = LoopTrial(["loader_workers"], {}, ["model"], (10.0, 6.0), lambda: names, loader)
    seen = list[int]()
    batches = iter(loader)
    while not trial.finished:
        trial.begin()
        begin = time.perf_counter_ns()
        seen.append(int(trial.next(batches)))
        training(training.batches[0])
        time.sleep(0.006 if trial._rest is not None and trial._rest._is_on else 0.010)
        trial.end((time.perf_counter_ns() - begin) / 1e6)
    [tried] = facts(trial)
    assert (tried["verdict"], tried["ratio"]) == ("faster", pytest.approx(0.6, rel=0.02))
    assert "num_workers=2" in "".join(tried["code"])  # 6 ms of waiting in 10 ms
    assert seen == list(range(len(seen)))
    assert len(seen) == 1 + 2 * 12 * (1 + 2 * 2 + 5)  # each block begins with steps on batches made ahead
    assert trial._rest is None
    assert int(next(batches)) == len(seen)


def profile_of_a_loop(parents: dict[str, int]) -> Any:
    """Return a profile of two timed steps and a traced one, with modules by name and parent."""
    modules = pd.DataFrame({"name": list(parents), "parent": list(parents.values())})
    steps = pd.DataFrame({"pass": ["timed"] * 2 + ["trace"], "wall_ms": [4.0, 8, 90], "data_ms": [1.0, None, 70]})
    finding = SimpleNamespace(bottleneck="dispatch overhead", bound_ms=3.0)
    return SimpleNamespace(_recording=SimpleNamespace(modules=modules), steps=steps, findings=[finding])


def test_a_trial_begins_with_what_the_profile_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.try_levers.bounds_of", lambda findings: {"launch overhead": len(findings)})
    profile = profile_of_a_loop({"model": -1, "model.0": 0, "other": -1})
    trial = begin_trial(["gc_freeze"], profile, dict, None)
    assert trial is not None
    assert (trial._wanted, trial._bounds, trial._roots) == (["gc_freeze"], {"launch overhead": 1}, {"model", "other"})
    assert (trial._step_ms, trial._wait_ms) == (6.0, 1.0)
    profile.steps["data_ms"] = float("nan")
    trial = begin_trial([], profile, dict, None)
    assert trial is not None
    assert (trial._step_ms, trial._wait_ms) == (6.0, 0.0)


@pytest.mark.parametrize(("place", "tried"), [(None, True), ({"world_size": 1}, True), ({"world_size": 2}, False)])
def test_ranks_of_one_job_try_no_levers(
    place: dict[str, int] | None, tried: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(loop_trial, "place_in_job", lambda: place)
    monkeypatch.setattr("perfnb.remedies.try_levers.bounds_of", lambda findings: {})
    assert (begin_trial([], profile_of_a_loop({"model": -1}), dict, None) is not None) is tried
    assert ["several ranks" in str(one.message) for one in recwarn.list] == [True] * (not tried)


def test_an_error_of_the_trial_itself_ends_it_with_a_warning_and_the_loop_goes_on() -> None:
    training = Training()
    names: Any = None
    trial = LoopTrial([], {}, ["model"], (10.0, 0.0), lambda: names["model"], None)
    with pytest.warns(RuntimeWarning, match=r"no more levers are tried: TypeError: "):
        assert loop(trial, training, lambda _: 1.0, 3) == 1
    assert trial.finished
    assert loop(trial, training, lambda _: 1.0, 3) == 1
    assert trial.found()[0] == []
