"""Whatever goes wrong in a step reaches the caller, leaves nothing behind, and does not spoil the next profile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import perfnb
from perfnb.errors import CaptureError, NestedProfilerError
from perfnb.step.tracer import Tracer
from tests.step.models import EVERY_PASS, three_linears

pytestmark = pytest.mark.usefixtures("nothing_left")


class PlannedError(Exception):
    pass


class Fails:
    """Raises when called for the n-th time; the passes take one step each, so n determines the pass."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise PlannedError


def in_forward(fail: Fails) -> Callable[[Tensor], None]:
    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            fail()
            return x

    return training(three_linears(Middle()))


def in_backward(fail: Fails) -> Callable[[Tensor], None]:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            fail()
            return grad

    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Function.apply(x)

    return training(three_linears(Middle()))


def in_the_optimizer(fail: Fails) -> Callable[[Tensor], None]:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            fail()

    return training(three_linears(), Failing)


def in_the_loader(fail: Fails) -> Callable[[Tensor], None]:
    return training(three_linears())


def training(model: nn.Module, optimizer: type[torch.optim.SGD] = torch.optim.SGD) -> Callable[[Tensor], None]:
    optimizing = optimizer(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        optimizing.zero_grad()
        model(x).square().mean().backward()
        optimizing.step()

    return step


def batches(fail: Callable[[], None] = lambda: None) -> Iterator[Tensor]:
    while True:
        fail()
        yield torch.ones(4, 8)


def profile_of(step: Callable[..., Any], feed: Any) -> perfnb.Profile:
    """Profile steps 1 to 5: warm-up, timed, lead-in, and two traced ones."""
    return perfnb.profile_step(step, feed, warmup=1, steps=1, traced=2, stacks=False)


def assert_next_profile_is_whole() -> None:
    p = profile_of(training(three_linears()), batches())

    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers.index.tolist() == ["model", "model.0", "model.1", "model.2"]
    assert layers["calls"].tolist() == [1, 1, 1, 1]
    assert layers["depth"].tolist() == [0, 1, 1, 1]
    assert (layers[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert p.steps["pass"].tolist() == EVERY_PASS


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", [in_forward, in_backward, in_the_optimizer, in_the_loader])
def test_an_exception_reaches_the_caller_and_leaves_nothing(
    place: Callable[[Fails], Callable[[Tensor], None]], at: int
) -> None:
    fail = Fails(at)
    step = place(fail)

    with pytest.raises(PlannedError) as caught:
        profile_of(step, batches(fail if place is in_the_loader else lambda: None))

    assert caught.value.__cause__ is None
    assert fail.left == 0
    if at > 3:
        assert_next_profile_is_whole()


@pytest.mark.parametrize("at", [1, 4])
def test_a_stop_iteration_reaches_the_caller_too(at: int) -> None:
    """No generator can raise it, and the passes are generators."""
    steps = iter(range(at - 1))

    with pytest.raises(StopIteration) as caught:
        perfnb.profile_step(lambda: next(steps), warmup=1, steps=1, traced=2)

    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_the_users_own_hooks_stay_and_see_the_same_calls() -> None:
    model = three_linears()
    seen: list[nn.Module] = []
    handle = model[1].register_forward_hook(lambda module, *_: seen.append(module))
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))

    profile_of(training(model), batches())

    handle.remove()
    everywhere.remove()
    assert len(seen) == 5 * len(EVERY_PASS)


@pytest.mark.slow
def test_a_profile_inside_a_profiled_step_is_refused() -> None:
    def step() -> None:
        perfnb.profile_step(lambda: None, warmup=0, steps=1, traced=1)

    with pytest.raises(NestedProfilerError, match=r"profilers do not nest: remove the inner .* profile_step\(\)\.$"):
        perfnb.profile_step(step, warmup=0, steps=1, traced=1)
    assert_next_profile_is_whole()


def test_a_profile_inside_torchs_profiler_is_refused_and_the_outer_one_keeps_its_events() -> None:
    with torch.profiler.profile() as outer:
        torch.ones(3) + 1
        with pytest.raises(
            NestedProfilerError, match=r"^A torch profiler is already running.* stop it before profiling a step\.$"
        ):
            perfnb.profile_step(lambda: None, warmup=0, steps=1, traced=1)
        torch.ones(3) * 2

    assert {"aten::add", "aten::mul"} <= {event.name for event in outer.events()}


@pytest.mark.slow
def test_a_step_that_starts_torchs_profiler_is_refused_in_one_sentence() -> None:
    calls = iter(range(100))

    def step() -> None:
        with torch.profiler.profile() if next(calls) >= 3 else nullcontext():
            torch.ones(4, 8)

    with pytest.raises(CaptureError, match=r"profilers do not nest: remove it from the step\.$"):
        perfnb.profile_step(step, warmup=1, steps=1, traced=2)


@pytest.mark.slow
def test_a_capture_in_a_thread_leaves_nothing_and_sees_the_layers() -> None:
    profiles: list[perfnb.Profile] = []
    thread = threading.Thread(target=lambda: profiles.append(profile_of(training(three_linears()), batches())))
    thread.start()
    thread.join()

    assert profiles[0].layers["calls"].dropna().tolist() == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("feeders_end")
def test_a_loader_whose_workers_fail_raises_their_error_and_keeps_none(
    workers: Callable[[], list[psutil.Process]],
) -> None:
    class Broken(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> Tensor:
            if index > 12:
                raise PlannedError(f"no sample {index}")
            return torch.ones(8)

    with pytest.raises(PlannedError, match="no sample 13") as caught:
        profile_of(training(three_linears()), DataLoader(Broken(), batch_size=4, num_workers=2))

    assert caught.value.__traceback__ is not None  # it holds the loader's iterator
    assert workers() == []
    assert_next_profile_is_whole()


def test_the_allocator_says_nothing_about_blocks_from_before_a_session(capfd: pytest.CaptureFixture[str]) -> None:
    with Tracer(memory=True):
        known = [torch.UntypedStorage(4) for _ in range(300)]  # whose addresses the allocator still knows afterwards
    del known
    for _ in range(3):
        before = [torch.UntypedStorage(4) for _ in range(500)]
        with Tracer(memory=True):
            before.clear()

    assert "before the profiling started" not in capfd.readouterr().err
