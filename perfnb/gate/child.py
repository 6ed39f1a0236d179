"""Run one revision's step in a separate process: run a test up to its `perf.step`, and then take turns on request.

This module runs as a script with the import path of its revision. It does not import perfnb, because the code to
measure may itself be another version of perfnb.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Served:
    """The fixture `perf` in this process. It runs the requested step and ignores all other steps.

    Parameters
    ----------
    name : str
        The requested step.
    channel : file
        A channel that carries one line of JSON for each request and one for each answer.
    elsewhere : str
        The folder of the other revision, from which no module may be imported, or an empty string if there is none.
    """

    def __init__(self, name: str, channel: Any, elsewhere: str) -> None:
        self._name, self._channel, self._elsewhere = name, channel, elsewhere
        self.served = False

    def say(self, **facts: Any) -> None:
        """Send an answer."""
        self._channel.write(json.dumps(facts) + "\n")
        self._channel.flush()

    def step(self, step: Callable[..., Any], batches: Any = None, *, name: str = "") -> None:
        """Take turns until no more turns are requested, and then end the tests in this process."""
        import pytest

        if name != self._name:
            return
        self.served = True
        random.seed(0)
        for module, function in (("numpy.random", "seed"), ("torch", "manual_seed")):
            if module in sys.modules:
                getattr(sys.modules[module], function)(0)
        source = iter(()) if batches is None else _endless(batches)
        self.say(ready=True, foreign=self._foreign())
        for line in self._channel:
            asked = json.loads(line)
            batch = () if batches is None else (next(source),)
            self.say(ms=_turn(step, batch, asked["lead"], asked["steps"]))
        pytest.exit("no more turns are requested", returncode=0)

    def _foreign(self) -> str | None:
        """Return a module that was imported from the other revision although this revision also contains it."""
        if not self._elsewhere:
            return None
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            # This script itself belongs to the working tree if that is perfnb's own repository.
            if file != __file__ and file.startswith(self._elsewhere + os.sep):
                inside = os.path.relpath(file, self._elsewhere)
                if os.path.exists(os.path.join(os.environ["PERFNB_TREE"], inside)):
                    return name
        return None


def _endless(batches: Iterable[Any] | Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        found = False
        for batch in batches() if callable(batches) else batches:
            found = True
            yield batch
        if not found:
            raise ValueError("the batches ran out and cannot be restarted")


def _turn(step: Callable[..., Any], batch: tuple[Any, ...], lead: int, steps: int) -> float:
    """Run steps back to back, after `lead` steps that do not count, and return the milliseconds per step.

    Without an accelerator, the result is the median of individual steps, which is hardly affected by interruptions from
    other processes. With an accelerator, it is the mean, because waiting for each step would keep the host from working
    ahead.
    """
    for _ in range(lead):
        step(*batch)
    accelerator = _accelerator()
    if accelerator is not None:
        accelerator.synchronize()
    ends = [time.perf_counter_ns()]
    for _ in range(steps):
        step(*batch)
        ends.append(time.perf_counter_ns())
    if accelerator is None:
        return statistics.median(end - begin for begin, end in itertools.pairwise(ends)) / 1e6
    accelerator.synchronize()
    return (time.perf_counter_ns() - ends[0]) / steps / 1e6


def _accelerator() -> Any:
    """Return torch's module for this machine's accelerator, if there is an accelerator and torch is in use."""
    torch: Any = sys.modules.get("torch")
    return torch.accelerator if torch is not None and torch.accelerator.is_available() else None


def main(order: dict[str, Any]) -> None:
    """Run the test specified by an order."""
    sys.path[:] = order["path"]
    import pytest

    channel = socket.socket(fileno=order["channel"]).makefile("rw", encoding="utf-8")
    served = Served(order["name"], channel, order["elsewhere"])

    class Plugin:
        @pytest.fixture
        def perf(self) -> Served:
            """Provide the fixture that runs a step in turns."""
            return served

    code = pytest.main(order["arguments"], plugins=[Plugin()])
    served.say(ended=int(code))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
