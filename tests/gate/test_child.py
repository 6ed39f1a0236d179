"""The script that runs a step in another process: its turns, and which modules count as code of the other revision."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import perfnb.gate.child
from perfnb.gate.child import Served, _accelerator, _endless, _turn, main

TEST = """\
done = []

def test_step(perf):
    perf.step(lambda: 1 / 0, name="other")
    perf.step(lambda batch: done.append(batch), [1, 2], name="mine")
    raise AssertionError("no code runs after the step")

def test_later():
    raise AssertionError("no other test runs")
"""


class Channel(io.StringIO):
    """A channel with requests, which keeps the answers once they have been sent."""

    def __init__(self, *requests: dict[str, int]) -> None:
        super().__init__("".join(json.dumps(request) + "\n" for request in requests))
        self.answers: list[Any] = []
        self._written = ""

    def write(self, text: str) -> int:
        self._written += text
        return len(text)

    def flush(self) -> None:
        self.answers += map(json.loads, self._written.splitlines())
        self._written = ""


@pytest.mark.parametrize("name", ["package", "child"])
def test_the_gate_itself_is_not_code_of_the_other_revision(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The gate's script comes from the working tree if that is perfnb's own repository, whatever its module's name."""
    file = tmp_path / "working" / f"{name}.py"
    same = tmp_path / "revision" / f"{name}.py"
    same.parent.mkdir()
    same.touch()
    monkeypatch.setenv("PERFNB_TREE", str(same.parent))
    monkeypatch.setattr(perfnb.gate.child, "__file__", str(tmp_path / "working" / "child.py"))
    built_in, elsewhere = SimpleNamespace(__file__=None), SimpleNamespace(__file__=str(tmp_path / "working_2" / "a.py"))
    new = SimpleNamespace(__file__=str(tmp_path / "working" / "new.py"))  # which the revision does not have
    module = SimpleNamespace(__file__=str(file))
    modules = {"sys": built_in, "a": elsewhere, "new": new, "__main__": module, "__mp_main__": module}
    monkeypatch.setattr(perfnb.gate.child, "sys", SimpleNamespace(modules=modules))
    for working, foreign in ((str(file.parent), None if name == "child" else "__main__"), ("", None)):
        channel = Channel()
        with pytest.raises(pytest.exit.Exception):  # no turns are requested
            Served("", channel, working).step(lambda: None)
        assert channel.answers == [{"ready": True, "foreign": foreign}]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clock of turns by milliseconds."""
    now = [0]

    def passes(ms: float) -> None:
        now[0] += int(ms * 1e6)

    monkeypatch.setattr(perfnb.gate.child, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    return passes


def test_a_turn_runs_its_step_with_one_batch_and_answers_with_the_median(clock: Callable[[float], None]) -> None:
    ran: list[Any] = []
    channel = Channel({"lead": 2, "steps": 3}, {"lead": 0, "steps": 1}, {"lead": 0, "steps": 2})
    batches = [(1.0, 50.0, 4.0, 2.0, 9.0), (8.0,), (1.0, 2.0)]
    times = [ms for each in batches for ms in each]

    def step(batch: str) -> None:
        clock(times[len(ran)])
        ran.append(batch)

    served = Served("mine", channel, "")
    served.step(step, ["x"], name="other")
    assert (served.served, ran, channel.answers) == (False, [], [])
    with pytest.raises(pytest.exit.Exception) as ended:
        served.step(step, lambda: iter("ab"), name="mine")

    assert served.served
    assert ended.value.returncode == 0
    assert ran == ["a"] * 5 + ["b"] + ["a"] * 2
    assert channel.answers == [{"ready": True, "foreign": None}, {"ms": 4.0}, {"ms": 8.0}, {"ms": 1.5}]


def test_random_numbers_of_a_step_are_the_same_on_both_sides() -> None:
    drawn = []
    for _ in range(2):
        with pytest.raises(pytest.exit.Exception):
            Served("", Channel(), "").step(lambda: None)
        drawn.append((random.random(), np.random.random(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]


def test_a_turn_on_an_accelerator_waits_for_its_work_and_answers_with_the_mean(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    queued: list[float] = []

    def synchronize() -> None:
        clock(sum(queued))
        queued.clear()

    monkeypatch.setattr(perfnb.gate.child, "_accelerator", lambda: SimpleNamespace(synchronize=synchronize))

    def step() -> None:
        clock(0.5)
        queued.append(3.0)

    assert _turn(step, (), 2, 4) == 3.5


@pytest.mark.parametrize("there", [True, False])
def test_an_accelerator_is_used_if_torch_is_loaded_and_has_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = SimpleNamespace(is_available=lambda: there)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(accelerator=accelerator))
    assert _accelerator() is (accelerator if there else None)
    monkeypatch.delitem(sys.modules, "torch")
    assert _accelerator() is None


def test_batches_start_again_unless_there_are_none() -> None:
    for batches in ([1, 2], lambda: iter([1, 2])):
        endless = _endless(batches)
        assert [next(endless) for _ in range(5)] == [1, 2, 1, 2, 1]
    once = _endless(iter([1]))
    assert next(once) == 1
    with pytest.raises(ValueError, match="the batches ran out and cannot be restarted"):
        next(once)


def test_the_test_of_an_order_runs_up_to_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TEST)
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", ["before"])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    channel = Channel({"lead": 1, "steps": 2})
    sockets = {7: SimpleNamespace(makefile=lambda mode, encoding: channel)}
    monkeypatch.setattr(perfnb.gate.child, "socket", SimpleNamespace(socket=lambda fileno: sockets[fileno]))
    left_out = ("cacheprovider", "faulthandler", "unraisableexception", "threadexception")
    options = ["-q", "-c", os.devnull, f"--rootdir={tmp_path}", *(f"-pno:{name}" for name in left_out)]

    main({"name": "mine", "channel": 7, "elsewhere": "", "path": path, "arguments": [*options, str(file)]})

    assert channel.answers[0] == {"ready": True, "foreign": None}
    assert list(channel.answers[1]) == ["ms"]
    assert channel.answers[2:] == [{"ended": 0}]
    assert set(path) <= set(sys.path) - {"before"}
    assert sys.modules.pop("test_it").done == [1] * 3
