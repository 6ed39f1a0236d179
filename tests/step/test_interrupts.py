"""An interrupt ends a profile at once, reaches the caller, and leaves nothing behind, whenever it comes."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.errors import NestedProfilerError
from perfnb.interrupts import InterruptGate, loses_exceptions
from perfnb.step.layers import LayerSpans, profiler_active
from perfnb.step.tracer import exclusive
from tests.step.models import EVERY_PASS, three_linears, training_step

pytestmark = pytest.mark.usefixtures("nothing_left")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):  # Python runs the handler between two of these
        pass


def layers_of(step: Callable[..., object], batches: object = None) -> list[str]:
    p = perfnb.profile_step(step, batches, warmup=1, steps=1, traced=2, stacks=False)  # type: ignore[arg-type]
    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers["calls"].tolist() == [1] * len(layers)
    assert p.steps["pass"].tolist() == EVERY_PASS
    return layers.index.tolist()


def assert_next_profile_is_whole() -> None:
    names = layers_of(training_step(three_linears(), torch.ones(4, 8)))
    assert names == ["model", "model.0", "model.1", "model.2"]


def test_gradients_are_as_before_where_an_interrupt_leaves_them_off() -> None:
    def step() -> None:
        torch.set_grad_enabled(False)  # as torch.no_grad() and optimizers do, just before their block begins
        interrupt()

    try:
        with pytest.raises(KeyboardInterrupt):
            perfnb.profile_step(step)
        assert torch.is_grad_enabled()
        with torch.no_grad(), pytest.raises(KeyboardInterrupt):
            perfnb.profile_step(step)
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_an_interrupt_in_forward_ends_the_profile_there(at: int) -> None:
    calls = 0

    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == at:
                interrupt()
            return x

    with pytest.raises(KeyboardInterrupt):
        layers_of(training_step(three_linears(Middle()), torch.ones(4, 8)))

    assert calls == at
    assert_next_profile_is_whole()


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.simulation)])
def test_interrupts_at_random_instants_leave_nothing_and_the_next_profile_is_whole(count: int) -> None:
    step = training_step(nn.Sequential(*(three_linears() for _ in range(5))), torch.ones(4, 8))
    assert_next_profile_is_whole()
    begin = time.perf_counter()
    perfnb.profile_step(step, warmup=10, steps=10, traced=10)
    usual_s = time.perf_counter() - begin
    rng = random.Random(20)

    for _ in range(count):
        timer = threading.Timer(rng.uniform(0, 1.1 * usual_s), os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come anywhere in here
            timer.start()
            perfnb.profile_step(step, warmup=10, steps=10, traced=10)
            timer.join()  # where the profile was faster
            time.sleep(1)
        timer.join()

        assert not profiler_active()
        assert gc.isenabled()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert not torch.nn.modules.module._global_forward_hooks
    assert_next_profile_is_whole()


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    ["mkdtemp", "_rmtree", "start_trace", "stop_trace", "export_chrome_trace", "register_module_forward_hook"],
)
def test_an_interrupt_while_something_is_installed_or_removed_leaves_nothing(function: str) -> None:
    step = training_step(three_linears(), torch.ones(4, 8))
    reached = False

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal reached
        if event == "return" and frame.f_code.co_name == function and not reached:
            reached = True
            os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(watch)
    try:
        with pytest.raises(KeyboardInterrupt):
            perfnb.profile_step(step, warmup=1, steps=1, traced=2)
    finally:
        sys.setprofile(None)

    assert reached
    assert_next_profile_is_whole()


def test_spans_that_an_interrupt_left_open_end_with_the_layer_spans() -> None:
    class Interrupts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(Interrupts())
    with torch.profiler.profile() as profiler:
        with pytest.raises(KeyboardInterrupt), LayerSpans() as spans:
            model(torch.ones(1))
        torch.ones(1)

    events = {event.name: event.time_range for event in profiler.events()}
    assert events["pf#1"].end <= events["pf#0"].end <= events["aten::ones"].start
    assert len(spans.calls.records) == 2


def test_the_users_own_handler_is_called_and_stays_and_an_ignored_interrupt_is_ignored() -> None:
    heard: list[int] = []

    def handler(signum: int, frame: FrameType | None) -> None:
        heard.append(signum)

    before = signal.getsignal(signal.SIGINT)
    try:
        for own in (handler, signal.SIG_IGN):
            signal.signal(signal.SIGINT, own)
            perfnb.time_step(interrupt, steps=3)
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)

    assert heard
    assert set(heard) == {signal.SIGINT}


def test_the_gate_holds_an_interrupt_back_until_it_is_opened_or_left() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), InterruptGate() as gate:  # noqa: PT012 - the order is what is tested
        interrupt()
        reached.append("behind the gate")
        with gate.opened():
            reached.append("in the open gate")
    with pytest.raises(KeyboardInterrupt), InterruptGate():  # noqa: PT012
        interrupt()
        reached.append("to the end")

    assert reached == ["behind the gate", "to the end"]


def test_an_interrupt_in_a_callback_that_would_lose_it_waits() -> None:
    reached: list[str] = []

    @loses_exceptions
    def callback() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass
        reached.append("after the callback")

    with pytest.raises(KeyboardInterrupt), InterruptGate() as gate, gate.opened():
        callback()

    assert reached == ["after the callback"]


class Finalized:
    """An object that is interrupted while it dies."""

    def __del__(self) -> None:
        interrupt()


def test_an_interrupt_that_python_drops_in_a_finalizer_waits() -> None:
    hook, reached = sys.unraisablehook, []
    with pytest.raises(KeyboardInterrupt), InterruptGate() as gate:  # noqa: PT012 - the order is what is tested
        with gate.opened():
            del [Finalized()][0]
            reached.append("after the finalizer")
        reached.append("installed things are removed")
        with gate.opened():
            reached.append("in the open gate")

    assert reached == ["after the finalizer", "installed things are removed"]
    assert sys.unraisablehook is hook


def test_a_profile_ends_where_an_interrupt_was_dropped_and_a_second_one_ends_it_at_once() -> None:
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        Finalized()

    with pytest.raises(KeyboardInterrupt):
        perfnb.profile_step(step)
    assert calls == 1

    def twice() -> None:
        Finalized()
        interrupt()
        pytest.fail("the second interrupt came too late")

    with pytest.raises(KeyboardInterrupt):
        perfnb.profile_step(twice)


def test_other_unraisable_exceptions_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ValueError

    with InterruptGate() as gate, gate.opened():
        Fails()

    assert told == [ValueError]


def test_a_second_interrupt_cannot_cut_the_removal_short() -> None:
    removed = False
    with pytest.raises(KeyboardInterrupt), InterruptGate() as gate:  # noqa: PT012 - the order is what is tested
        try:
            with gate.opened():
                interrupt()
        finally:
            interrupt()
            removed = True

    assert removed


def test_an_error_is_not_hidden_by_an_interrupt_that_came_while_it_was_handled() -> None:
    with pytest.raises(ZeroDivisionError), InterruptGate():  # noqa: PT012
        interrupt()
        _ = 1 / 0


def test_only_one_capture_runs_at_a_time_and_the_next_may_follow() -> None:
    with exclusive():
        with pytest.raises(NestedProfilerError), exclusive():
            pytest.fail("two captures at once")
        with pytest.raises(NestedProfilerError), exclusive():
            pytest.fail("the refused one must not have taken the lock away")
    with exclusive():
        pass
