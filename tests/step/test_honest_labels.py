"""What cannot be seen, or is not asked for, is labelled as such and moves no time to where it does not belong."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.errors import NestedProfilerError
from perfnb.step.layers import Calls
from perfnb.step.pass_order import spans_of
from perfnb.step.tracer import exclusive
from tests.step.timed import traced_ms

pytestmark = pytest.mark.usefixtures("nothing_left")
X = torch.randn(4, 8)
#: So long that nothing else in a step can come near.
SLEEP_MS = 100


class Sleepy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(SLEEP_MS / 1e3)
        return super().forward(x)


def short(step: Any, batches: Any = None, **options: Any) -> perfnb.Profile:
    passes: dict[str, Any] = {"warmup": 1, "steps": 1, "traced": 2, "memory": False, "flops": False}
    return perfnb.profile_step(step, batches, **passes, **options)


@pytest.mark.slow
def test_forward_stays_forward_when_only_some_models_are_chosen() -> None:
    encoder, decoder = nn.Linear(8, 8), Sleepy(8, 8)

    p = short(lambda: decoder(encoder(X)).sum().backward(), model=encoder)

    assert p.phases.ms["forward"] >= SLEEP_MS
    assert p.phases.ms.idxmax() == "forward"
    assert [name for name in p.layers.index if not name.startswith("(")] == ["encoder"]
    assert p.layers.forward_ms["(unattributed)"] >= SLEEP_MS


def test_layers_called_only_on_other_threads_have_spans_that_the_trace_lacks() -> None:
    model, calls = nn.Linear(8, 8), Calls()
    calls.elsewhere[id(model)] = weakref.ref(model)

    assert spans_of(calls, {id(model): 3}) == [(0, 3, False)]
    assert spans_of(calls, {}) == []  # not one of the chosen models


@pytest.mark.slow
def test_layers_inside_torchscript_are_unknown() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), X)

    p = short(lambda: script(X))

    assert p.layers.calls["script"] == 1
    assert p.layers.loc[["script.0", "script.1"], "total_ms"].isna().all()
    assert "TorchScript" in str(p)


@pytest.mark.slow
def test_an_optimizer_that_a_hook_runs_in_the_backward_pass_is_the_optimizer() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def update(parameter: Tensor) -> None:
        optimizer.step()
        parameter.grad = None

    handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
    p = short(lambda: model(X).sum().backward())
    for handle in handles:
        handle.remove()

    assert p.phases.ms["optimizer"] > 0
    assert p.phases.ms.sum() == pytest.approx(traced_ms(p))
    assert p.layers.self_ms.sum() == pytest.approx(p.phases.ms["forward"] + p.phases.ms["backward"], rel=0.01)


@pytest.mark.slow
def test_a_profiler_that_warms_up_or_runs_in_another_thread_is_refused() -> None:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=schedule) as outer:
        with pytest.raises(NestedProfilerError, match="already running"), exclusive():
            pytest.fail("a capture began")
        outer.step()
        torch.ones(3) + 1
        outer.step()
    assert "aten::add" in {event.name for event in outer.events()}

    running, done = threading.Event(), threading.Event()

    def other() -> None:
        with torch.profiler.profile():
            running.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    running.wait(20)
    with pytest.raises(NestedProfilerError, match="already running"), exclusive():
        pytest.fail("a capture began")
    done.set()
    thread.join()


class Odd:
    """A batch that nothing can be learned about."""

    def values(self, key: str) -> None:
        raise AssertionError(key)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("unbound proxy")


ODD = Odd()


@pytest.mark.slow
def test_an_odd_batch_or_variable_costs_no_profile() -> None:
    model = nn.Linear(8, 8)

    def batches() -> Iterator[Any]:
        while True:
            yield ODD

    p = short(lambda batch: (model(X), ODD), batches())

    assert p.timing.batch_size is None
    assert "model" in p.layers.index
    assert str(p)


@pytest.mark.parametrize("step", [3, None])
def test_what_cannot_be_a_step_is_refused_at_once(step: Any) -> None:
    with pytest.raises(TypeError, match=r"pass step, not step\(\)\.$"):
        short(step)


def test_a_step_that_would_not_run_is_refused() -> None:
    async def step() -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        short(step)


@pytest.mark.slow
def test_a_range_named_like_perfnbs_own_is_only_a_range() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        with torch.profiler.record_function("pf_step#0"), torch.profiler.record_function("pf#0"):
            out = model(X)
        with torch.profiler.record_function("pf_data"):
            time.sleep(0.002)
        with torch.profiler.record_function("autograd::engine::evaluate_function: Fake"):
            out.sum().backward()

    p = short(step)

    assert p.layers.calls["model"] == 1
    assert p.phases.ms["data"] == 0
    assert p.phases.ms.sum() == pytest.approx(traced_ms(p))
    assert {"pf_step#0", "pf_data"} <= set(p.events.name)
