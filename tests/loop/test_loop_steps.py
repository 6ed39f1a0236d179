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
