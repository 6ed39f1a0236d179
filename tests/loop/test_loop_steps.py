"""Where the steps of a loop end, by the calls to its driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfnb.loop.loop_steps import LoopSteps


class Driver:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.calls, self.recorder = list[str](), SimpleNamespace(by_batch=False)

    def wait(self) -> None:
        self.calls.append("wait")

    def begin(self, batch: object) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append("end")

    def skip(self) -> None:
        self.calls.append("skip")

    def close(self) -> None:
        self.calls.append("close")

    def join_first(self) -> int:
        self.calls.append("join_first")
        return 7


@pytest.mark.parametrize(("stepped", "then"), [(True, ["end", "skip"]), (False, [])])
def test_a_pause_ends_a_step_that_is_over_before_the_next_batch(stepped: bool, then: list[str]) -> None:
    driver: Any = Driver()
    steps = LoopSteps(driver, optimizers_end_steps=True)
    steps.ask()
    steps.get(1)
    steps.use()
    if stepped:
        steps.step()
    steps.pause()

    assert driver.calls == ["wait", "begin", *then]


@pytest.mark.parametrize(
    ("use", "step", "then"),
    [
        (False, False, ["close"]),  # the rest of the step is not counted
        (True, False, ["close"]),
        (True, True, ["end", "skip", "close", "wait", "begin"]),
    ],
)
def test_a_step_with_a_validation_inside_is_abandoned(use: bool, step: bool, then: list[str]) -> None:
    driver: Any = Driver()
    steps = LoopSteps(driver, optimizers_end_steps=True)
    steps.ask()
    steps.get(1)
    if use:
        steps.use()
    if step:
        steps.step()
    steps.validate()
    steps.ask()
    steps.get(2)
    assert driver.calls == ["wait", "begin", *then]

    driver.calls.clear()
    steps.step()
    steps.ask()
    assert driver.calls == (["end", "wait"] if step else ["wait"])


def test_batches_are_steps_until_an_optimizer_steps_and_then_all_are_one() -> None:
    driver: Any = Driver()
    steps = LoopSteps(driver, optimizers_end_steps=False)
    for batch in (1, 2):
        steps.ask()
        steps.get(batch)
        steps.use()
        steps.end_if_over()
        assert (steps.batches, driver.recorder.by_batch) == (1, True)
    assert driver.calls == ["wait", "begin", "end"] * 2
    steps.ask()
    steps.get(3)
    steps.use()
    steps.step()
    steps.end_if_over()
    assert (steps.batches, driver.recorder.by_batch) == (7, False)
    assert driver.calls[6:] == ["wait", "begin", "end", "join_first"]

    driver.calls.clear()
    for batch in (4, 5):
        steps.ask()
        steps.get(batch)
        steps.use()
    steps.step()
    steps.end_if_over()
    steps.end_if_over()
    assert steps.batches == 2
    assert driver.calls == ["wait", "begin"] * 2 + ["end"]
