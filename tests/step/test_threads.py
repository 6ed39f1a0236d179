"""Modules that other threads call: at worst they are not seen, and whatever they do, the profile is right and ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

import perfnb
from perfnb.step import layers
from perfnb.step.layers import Calls, LayerSpans, computes_loss
from perfnb.step.tracer import Tracer
from tests.step.models import three_linears, training_step

pytestmark = pytest.mark.usefixtures("nothing_left")
X = torch.randn(4, 8)


def short(step: Callable[..., object], **options: Any) -> perfnb.Profile:
    return perfnb.profile_step(step, warmup=1, steps=1, traced=2, **{"flops": False, "memory": False} | options)


class Held(nn.Linear):
    """Stays in its forward until it is let go."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.inside, self.let_go = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.inside.set()
        assert self.let_go.wait(120)
        return super().forward(x)


@contextmanager
def inside(held: Held) -> Iterator[None]:
    """A thread is in the module's forward when the block begins, and leaves it after its end."""
    thread = threading.Thread(target=held, args=(X,))
    thread.start()
    try:
        assert held.inside.wait(120)
        yield
    finally:
        held.let_go.set()
        thread.join(120)


@contextmanager
def called_all_the_time(module: nn.Module) -> Iterator[None]:
    """Another thread calls the module again and again."""
    end = threading.Event()

    def call() -> None:
        while not end.wait(0.0005):
            module(X)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(120)


def rows(p: perfnb.Profile) -> list[str]:
    return [name for name in p.layers.index if not name.startswith("(")]


def assert_adds_up(p: perfnb.Profile) -> None:
    traced = p.steps.wall_ms[p.steps["pass"] == "traced"].mean()
    assert p.phases.ms.sum() == pytest.approx(traced, rel=0.05)
    assert p.layers.self_ms.sum() == pytest.approx(p.phases.ms["forward"] + p.phases.ms["backward"], rel=0.01)


def test_spans_end_while_another_thread_is_in_a_module() -> None:
    held = Held()
    tracer = Tracer()

    with tracer:
        with LayerSpans() as spans, inside(held):
            nn.Identity()(X)
            spans.__exit__(None, None, None)
        with LayerSpans():  # the thread's first call was begun under other spans, or under none
            held(X)

    assert [type(module) for _, module, _ in spans.calls.records] == [nn.Identity]
    assert spans.calls.unseen() == [held]


def test_spans_begin_while_another_thread_is_in_a_module() -> None:
    held = Held()
    outer = nn.Sequential(held, nn.ReLU())
    tracer = Tracer()
    thread = threading.Thread(target=outer, args=(X,))

    with tracer:
        thread.start()
        assert held.inside.wait(120)
        with LayerSpans() as spans:
            held.let_go.set()
            thread.join(120)
            nn.Identity()(X)

    assert [type(module) for _, module, _ in spans.calls.records] == [nn.Identity]
    assert spans.calls.unseen() == [outer[1]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The spans that begin and end."""
    found: list[str] = []

    class Span:
        def __init__(self, label: str) -> None:
            self.label = label

        def __enter__(self) -> None:
            found.append(self.label)

        def __exit__(self, *exc_info: object) -> None:
            found.append(f"end {self.label}")

    monkeypatch.setattr(layers, "function_span", Span)
    return found


def test_the_outermost_call_and_the_wanted_modules_have_spans(log: list[str]) -> None:
    model, other = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Tanh())), nn.ReLU()
    earlier, seen = Calls([(number, other, None) for number in range(3)]), list[Any]()
    with LayerSpans([model[1]], earlier, seen.append) as spans:
        model(X)
        other(X)
    model(X)

    assert spans.calls is earlier
    assert earlier.records[3:] == [(3, model, None), (4, model[1], 3), (5, model[1][0], 4), (6, other, None)]
    assert log == ["pf#3", "pf#4", "pf#5", "end pf#5", "end pf#4", "end pf#3", "pf#6", "end pf#6"]
    assert len(seen) == 2
    assert all(args[0] is X for args in seen)
    assert earlier.called_whole == {id(model): True, id(other): True}


def test_spans_end_with_the_call_around_them_and_with_the_context(log: list[str]) -> None:
    outer, inner, unknown = nn.ReLU(), nn.Tanh(), nn.GELU()
    with LayerSpans() as spans:
        spans._close(outer, (), None)  # it was called before the hooks were there
        for module in (outer, outer, inner):
            spans._open(module, ())
        spans._close(unknown, (), None)
        assert log == ["pf#0", "pf#1", "pf#2"]
        spans._close(outer, (), None)
        assert log[3:] == ["end pf#2", "end pf#1"]
        spans._close(outer, (), torch.ones(()))
        assert log[5:] == ["end pf#0"]
        spans._open(inner, ())
        spans._close(inner, (), X)
        spans._open(outer, ())
    assert log[6:] == ["pf#3", "end pf#3", "pf#4", "end pf#4"]
    assert spans.calls.loss == {0}


def test_nothing_is_recorded_while_torch_compiles(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Tanh()
    with LayerSpans() as spans:
        spans._open(model, ())
        with monkeypatch.context() as compiling:
            compiling.setattr(layers, "is_compiling", lambda: True)
            spans._open(model, ())
            spans._close(model, (), None)
            assert log == ["pf#0"]
        spans._close(model, (), None)
    assert log == ["pf#0", "end pf#0"]


def test_only_torchs_warning_of_hooks_around_compiled_models_is_left_out() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with LayerSpans():
            for words in ("Using `torch.compile(module)` when there are global hooks on modules", "another"):
                warnings.warn(words, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["another"]


def test_a_module_is_called_in_a_span_without_its_hooks(log: list[str]) -> None:
    model = nn.Tanh()
    model.register_forward_hook(lambda *_: pytest.fail("a hook ran"))
    with LayerSpans() as spans:
        assert torch.equal(spans.call(model, X), X.tanh())
        assert log == ["pf#0", "end pf#0"]


def test_a_method_of_a_module_calls_its_parts_but_a_function_calls_the_model() -> None:
    class Generates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.whole = nn.Tanh(), nn.ReLU()

        def generate(self) -> None:
            self.part(X)

    def function(model: Any) -> None:
        model.whole(X)

    model = Generates()
    with LayerSpans() as spans:
        model.generate()
        function(model)
        model.part(X)  # the first call counts
    assert spans.calls.called_whole == {id(model.part): False, id(model.whole): True}


def test_a_loss_is_a_class_of_torchs_or_a_scalar_without_parameters() -> None:
    scalar, row = torch.ones(()), torch.ones(1)
    assert [computes_loss(module, scalar) for module in (nn.MSELoss(), nn.Tanh(), nn.Linear(1, 1))] == [1, 1, 0]
    assert [computes_loss(module, row) for module in (nn.MSELoss(), nn.Tanh())] == [True, False]
    assert not computes_loss(nn.Tanh(), 1.0)


def test_modules_that_copy_themselves_are_recognised() -> None:
    class Copies(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any: ...

    class Pickles(nn.Linear):
        def __getstate__(self) -> Any: ...

    modules = (nn.Linear(1, 1), Copies(1, 1), Pickles(1, 1), torch.jit.ScriptModule())
    assert [layers._copies_itself(module) for module in modules] == [False, True, True, False]


def test_a_model_compiled_in_place_has_a_span_and_runs_without_the_hooks(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped: list[Any] = []
    compiler = SimpleNamespace(eval_frame=SimpleNamespace(skip_code=skipped.append))
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)  # type: ignore[arg-type]

    class Pickles(nn.Linear):
        def __getstate__(self) -> Any: ...

    model, pickles = nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), Pickles(8, 8)
    model.append(nn.Sequential(pickles))
    hooks: list[int] = []

    def compiled(x: Any) -> Any:
        hooks.append(len(_global_forward_hooks) + len(_global_forward_pre_hooks))
        if x is None:
            raise ValueError("no input")
        return model[0](x)

    model._compiled_call_impl = compiled
    before = [dict(vars(module)) for module in model.modules()]
    with LayerSpans() as spans:
        assert "_compiled_call_impl" not in vars(pickles)  # a copy of it would keep the span
        own = [vars(module)["_compiled_call_impl"] for module in model.modules() if module is not pickles]
        assert own[0]._torchdynamo_inline is compiled
        assert {LayerSpans._open.__code__, LayerSpans._close.__code__, own[0].__code__} <= set(skipped)
        assert torch.equal(model(X), X.tanh())
        with pytest.raises(ValueError, match="no input"):
            model(None)
        assert len(_global_forward_hooks) == len(_global_forward_pre_hooks) == 1
        model[1]._compiled_call_impl = replaced = model[1].forward  # compiled in the meantime
    assert hooks == [0, 0]
    assert spans.calls.records == [(0, model, None), (1, model[0], 0), (2, model, None)]
    assert log == ["pf#0", "pf#1", "end pf#1", "end pf#0", "pf#2", "end pf#2"]
    assert vars(model[1]).pop("_compiled_call_impl") == replaced
    assert [dict(vars(module)) for module in model.modules()] == before


def test_a_function_without_a_module_hides_the_hooks_while_it_runs() -> None:
    hooks: list[int] = []
    own: dict[str, Any] = {"forward": lambda: hooks.append(len(_global_forward_hooks)), "other": None}
    plain = own["forward"]
    with LayerSpans() as spans, ExitStack() as stack:
        spans._span_around(None, own, "forward", stack)
        own["forward"]()
        assert spans.calls.records == []
        hooks.append(len(_global_forward_hooks))
        with stack.pop_all():
            assert own["forward"] is not plain
        assert own["forward"] is plain
        with ExitStack() as removed:
            removed.enter_context(spans._without_hooks())
            spans._hooks.clear()  # as if the context had ended on another thread
        assert not _global_forward_hooks
    assert hooks == [0, 1]


@pytest.mark.parametrize("uncompiled", [False, True])
def test_a_compiled_model_whose_call_is_recompiled_for_hooks_has_a_span_instead(
    uncompiled: bool, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, wrapper, hooks = nn.Tanh(), nn.ReLU(), list[int]()
    vars(wrapper)["forward"] = lambda x: hooks.append(len(_global_forward_hooks))
    monkeypatch.setattr(layers, "compiled_modules", lambda: [wrapper])
    monkeypatch.setattr(layers, "recompiled_for_hooks", lambda compiled: [(each, original) for each in compiled])
    with LayerSpans(uncompiled=uncompiled) as spans:
        wrapper(X)
    assert hooks == [uncompiled]
    assert spans.calls.records == [(0, wrapper, None)] + [(1, original, 0)] * (not uncompiled)
    assert log == (["pf#0", "end pf#0"] if uncompiled else ["pf#0", "pf#1", "end pf#1", "end pf#0"])


@pytest.mark.slow
def test_layers_that_a_pool_of_the_step_calls_are_not_available_and_named() -> None:
    here, aside = nn.Linear(8, 8), three_linears()

    def step() -> None:
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(aside, X) for _ in range(4)]
            (here(X).sum() + sum(result.result().sum() for result in results)).backward()

    p = short(step, memory=True)

    assert rows(p) == ["here", "aside", "aside.0", "aside.1", "aside.2"]
    assert p.layers.calls["here"] == 1
    assert p.layers.loc["aside":"aside.2", ["calls", "forward_ms", "backward_ms", "total_ms"]].isna().all(axis=None)
    assert "aside" in " ".join(p._summary.notes)
    assert_adds_up(p)


@pytest.mark.slow
def test_a_thread_that_outlives_the_profile_may_call_modules_all_the_time() -> None:
    here, aside = nn.Linear(8, 8), nn.Linear(8, 8)

    with called_all_the_time(aside):
        p = short(training_step(here, X), memory=True)
        assert_adds_up(p)
        assert p.layers.calls["model"] == 1

    assert_adds_up(short(training_step(here, X)))


@pytest.mark.deep
@pytest.mark.parametrize(("use", "runs"), [("profile_step", 12), ("find_leaks", 4)])
def test_whatever_other_threads_do_meanwhile_every_run_ends_well(use: str, runs: int) -> None:
    """A pool of the step, threads that outlive it, and modules that are made and dropped elsewhere."""
    here, aside, apart = three_linears(), three_linears(), three_linears()
    train, train_apart = training_step(here, X), training_step(apart, X)

    def made_anew() -> None:
        nn.Sequential(nn.Linear(8, 8), nn.Tanh())(X).sum().backward()

    with ThreadPoolExecutor(3) as pool, called_all_the_time(aside), called_all_the_time(three_linears()):

        def step() -> None:
            train()
            results = [pool.submit(aside, X), pool.submit(made_anew), pool.submit(train_apart)]
            results[0].result().sum().backward()
            results[2].result()
            pool.submit(made_anew)

        for _ in range(runs):
            if use == "find_leaks":
                perfnb.find_leaks(step, steps=15, warmup=1)
                continue
            p = short(step, memory=True, flops=True)
            assert_adds_up(p)
            assert p.layers.calls["model"] == 1


def in_a_fresh_thread(function: Callable[[], Any]) -> Any:
    """Call the function where autograd's sequence numbers begin at 0."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


@pytest.mark.slow
def test_backward_of_what_ran_in_another_thread_is_not_booked_on_a_layer_here() -> None:
    """Sequence numbers count the ops of one thread: the other thread's have the same ones here."""
    here, aside = nn.Linear(8, 8), nn.Linear(8, 8)

    def profile(uses: bool) -> perfnb.Profile:
        pool = ThreadPoolExecutor(1)

        def elsewhere() -> Tensor:
            return aside(X).relu().relu().sum()  # as many numbers as a step takes here

        def step() -> None:
            loss = here(X).relu().sum()
            if uses:
                loss = loss + pool.submit(elsewhere).result()
            loss.backward()

        with pool:
            return short(step)

    alone, both = (in_a_fresh_thread(lambda uses=uses: profile(uses)) for uses in (False, True))

    assert both.layers.ops["here"] == alone.layers.ops["here"]
    assert both.layers.backward_ms["(unattributed)"] > 0
    assert_adds_up(both)


@pytest.mark.slow
def test_an_exception_in_a_pool_of_the_step_reaches_the_caller_unchanged() -> None:
    error = LookupError("the user's own")

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    model = nn.Sequential(nn.Linear(8, 8), Fails())

    calls = iter(range(100))

    def fails_when_traced() -> None:
        with ThreadPoolExecutor(2) as pool:
            for result in [pool.submit(model, X) for _ in range(3) if next(calls) >= 6]:
                result.result()

    with pytest.raises(LookupError) as caught:
        short(fails_when_traced)
    assert caught.value is error
    assert next(calls) > 6
    assert_adds_up(short(training_step(nn.Linear(8, 8), X)))


@pytest.mark.slow
@pytest.mark.parametrize("at", ["warmup", "timed", "traced", "counted"])
def test_an_interrupt_reaches_the_caller_while_a_worker_is_in_a_module(at: str) -> None:
    held, steps = Held(), ["warmup", "timed", "traced", "traced", "counted"]
    thread = threading.Thread(target=held, args=(X,))
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        if steps[calls - 1 if calls < 3 else calls - 2] == at:
            thread.start()
            assert held.inside.wait(120)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the interrupt came too late")

    try:
        with pytest.raises(KeyboardInterrupt):
            short(step, memory=True)
        assert not torch.autograd._profiler_enabled()
        assert not torch.nn.modules.module._global_forward_hooks
    finally:
        held.let_go.set()
        thread.join(120)
