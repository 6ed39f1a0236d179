"""Passes that are not part of every profile: steps watched for leaks, failures, and steps that look like loops."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from perfnb.step.budget import Plan
from perfnb.step.capture import Capture
from perfnb.step.pass_order import capture_step, watch_steps
from perfnb.step.session import MOST_STEPS, FirstStep
from perfnb.step.to_recording import recording_of

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("grows", [True, False])
def test_watched_steps_run_twice_and_a_third_time_if_the_process_grew(grows: bool) -> None:
    model, born, seen = nn.Linear(2, 2), weakref.WeakSet[nn.Module](), list[tuple[int, int]]()

    def step() -> None:
        made = nn.Tanh()
        born.add(made)
        made(model(torch.ones(1, 2)))

    def judged(process_bytes: list[int]) -> bool:
        gc.collect()
        seen.append((len(process_bytes), len(born)))
        return grows

    capture, process_bytes, recorded, later = watch_steps(
        step, steps=3, warmup=2, grows=judged, namespace={"model": model}
    )
    expected = ["warmup"] * 2 + ["process"] * 3 + ["counted"] * 3 + ["process"] * 3 * grows
    assert [executed.pass_name for executed in capture.steps] == expected
    assert (len(process_bytes), recorded, len(later)) == (3, 3, 3 * grows)
    assert min(process_bytes) > 2**20
    assert seen == [(3, 0)]  # the steps' own modules are not kept
    assert [(layer.name, layer.module) for layer in capture.layers] == [("model", "Linear"), ("Tanh", "Tanh")]
    capture.close()


def failing(at: set[int], said: list[str]) -> Any:
    """Return a step that runs out of memory at these calls."""
    model, calls = nn.Linear(2, 2), 0

    def step() -> None:
        nonlocal calls
        calls += 1
        said.append(f"call {calls}")
        model(torch.ones(1, 2))
        if calls in at:
            raise torch.OutOfMemoryError(f"at call {calls}\nwith details")

    return step


def captured(at: set[int], **options: Any) -> tuple[Capture, list[str]]:
    said: list[str] = []
    return capture_step(failing(at, said), plan=Plan(warmup=1, steps=1, traced=1, flops=False, **options)), said


def test_a_step_that_runs_out_of_memory_is_run_again_to_see_whose_memory_it_is() -> None:
    capture, said = captured({2, 3})
    assert said == ["call 1", "call 2", "call 3"]
    assert capture.meta["failed_in"] == "timed"
    assert capture.meta["failure"] == "OutOfMemoryError: at call 3"
    assert capture.memory is not None
    capture.close()


def test_a_failure_that_does_not_come_again_is_reported_with_its_first_error() -> None:
    capture, said = captured({2})
    assert said == ["call 1", "call 2", "call 3"]
    assert capture.meta["failure"] == "OutOfMemoryError: at call 2"
    assert capture.failure is not None
    (note,) = capture.failure.__notes__
    assert note.startswith("The step was run again and did not run out of memory. The first error:\nTraceback")
    capture.close()


def test_without_the_memory_pass_the_error_is_the_callers() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="at call 2"):
        captured({2}, memory=False)


@pytest.mark.parametrize(("times", "looped"), [(MOST_STEPS, False), (MOST_STEPS + 1, True), (MOST_STEPS + 3, True)])
def test_a_step_that_calls_an_optimizer_often_looks_like_a_loop(times: int, looped: bool) -> None:
    sgd, once = (torch.optim.SGD([nn.Parameter(torch.ones(1))]) for _ in range(2))
    told: list[str] = []
    with FirstStep(told.append, {"x" * 61: sgd, "sgd": sgd, "once": once}) as first:
        once.step()
        for _ in range(times):
            sgd.step()
    sgd.step()  # outside
    assert first.looped == ({"optimizer": "sgd", "times": times} if looped else None)
    message = "your step has called sgd.step() 9 times already: profile one iteration, not the whole loop"
    assert told == [message] * looped
    with FirstStep(told.append, {"x" * 61: sgd}) as unnamed:
        for _ in range(times):
            sgd.step()
    assert looped == (unnamed.looped is not None and unnamed.looped["optimizer"] == "SGD")


@pytest.mark.parametrize("job", [None, {"rank": 3, "world_size": 4}])
def test_a_recording_has_its_rank_and_its_job(job: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.step.to_recording.place_in_job", lambda: job)
    plan = Plan(warmup=0, steps=1, traced=1, memory=False, flops=False)
    meta = recording_of(capture_step(lambda: torch.ones(2).sum(), plan=plan, namespace={}), "step").meta
    assert (meta["rank"], meta.get("job")) == (3 if job else 0, job)
