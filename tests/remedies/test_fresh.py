"""Levers that need a new process: whether the step is found there, and what they say where it is not."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import perfnb
from perfnb.bench.values import UNCHECKED
from perfnb.errors import CaptureError
from perfnb.remedies import fresh, fresh_child
from perfnb.remedies.fresh import Setting, order_for, time_fresh
from perfnb.remedies.levers import by_name
from perfnb.remedies.levers.process import PROCESS
from perfnb.remedies.subject import Subject
from perfnb.remedies.trial import prepared

MODULE = """
import os, torch
seen = []
batches = [torch.ones(2)] * 4

def step(x):
    seen.append(x)
    if os.environ.get("BREAKS"):
        raise RuntimeError("it breaks here")

net = torch.nn.Linear(1, 1)

def modelled():
    net(torch.ones(1))

def alone():
    seen.append(torch.get_num_interop_threads())
"""
SCRIPT = """
import perfnb

def make():
    def inner(): ...
    return inner

def step(): ...

if __name__ == "__main__":
    perfnb.try_levers(step)
    raise AssertionError("the script went on")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "users_steps.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("users_steps")
    del sys.modules["users_steps"]


def subject_of(step: Any, batches: Any = None) -> Subject:
    return Subject(step, batches, {}, {}, None)


def test_a_step_of_a_module_is_found_with_its_batches(module: ModuleType) -> None:
    order = order_for(subject_of(module.step, module.batches))
    assert order is not None
    assert (order["module"], order["step"], order["batches"]) == ("users_steps", "step", "batches")
    assert order_for(subject_of(module.step, [torch.ones(2)])) is None  # in no variable


def test_a_step_that_cannot_be_imported_gets_the_command_to_try_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.process.usable_cpus", lambda: 4.0)
    monkeypatch.setattr("perfnb.remedies.levers.process._library", lambda kind: f"/lib/lib{kind}.so.4")
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 4)
    said = {lever.name: lever.refuses(subject_of(lambda: None)) for lever in PROCESS}
    assert "OMP_PROC_BIND=close OMP_PLACES=cores" in said["omp_affinity"]
    assert "LD_PRELOAD=/lib/libtcmalloc.so.4" in said["tcmalloc"]
    assert "torch.set_num_interop_threads(1)" in said["interop_threads"]
    assert "CUDA" in said["expandable_segments"]
    on_cuda = subject_of(lambda: None)
    on_cuda.kinds = {"cuda"}
    assert "expandable_segments:True" in by_name()["expandable_segments"].refuses(on_cuda)


def test_what_is_there_already_or_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("LD_PRELOAD", "/lib/libjemalloc.so.2")
    monkeypatch.setattr("perfnb.remedies.levers.process._FOLDERS", ())
    levers, subject = by_name(), subject_of(lambda: None)
    assert "already" in levers["omp_affinity"].refuses(subject)
    assert "preloaded already" in levers["jemalloc"].refuses(subject)
    assert "apt install" in levers["tcmalloc"].refuses(subject)


def test_an_installed_allocator_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "x-linux-gnu"
    folder.mkdir()
    for name in ("libtcmalloc_minimal_debug.so.4", "libtcmalloc_minimal.so.4"):
        (folder / name).touch()
    monkeypatch.setattr("perfnb.remedies.levers.process._FOLDERS", (f"{tmp_path}/*-linux-gnu",))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert by_name()["tcmalloc"].code(subject_of(print)) == [
        f"# start Python with LD_PRELOAD={folder / 'libtcmalloc_minimal.so.4'}"
    ]


def test_in_the_new_process_the_step_is_timed_with_its_batches(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_child, "_SECONDS", 0.0)
    order = order_for(subject_of(module.step, module.batches))
    assert order is not None
    with pytest.raises(SystemExit):
        fresh_child.main({**order, "interop": 0, "path": list(sys.path)}, tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) > 0
    assert len(module.seen) == fresh_child._WARM + 1
    assert all(torch.equal(x, torch.ones(2)) for x in module.seen)


def test_settings_take_turns_in_random_order(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def milliseconds(setting: Setting, *_: Any) -> float:
        ran.append(setting.env.get("NAME", ""))
        return 2.0 if setting.env else 1.0

    monkeypatch.setattr(fresh, "_milliseconds", milliseconds)
    times = time_fresh(Setting({"NAME": "on"}), subject_of(module.alone), None, 60.0, lambda *_: None, "trial")
    assert times.tolist() == [[1.0] * 20, [2.0] * 20]
    rounds = [tuple(ran[place : place + 2]) for place in range(0, len(ran), 2)]
    assert {tuple(sorted(each)) for each in rounds} == {("", "on")}
    assert len(set(rounds)) == 2


def test_a_budget_too_short_for_new_processes_is_said(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    def milliseconds(*_: Any) -> float:
        time.sleep(5.0)
        return 1.0

    monkeypatch.setattr(fresh, "_milliseconds", milliseconds)
    with pytest.raises(CaptureError, match="6 pairs of new processes take about 60 s"):
        time_fresh(Setting(), subject_of(module.alone), None, 49.0, lambda *_: None, "trial")


def test_a_process_that_takes_too_long_to_get_to_the_step_is_given_up(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def milliseconds(setting: Setting, order: Any, subject: Any, patience_s: float) -> float:
        given.append(patience_s)
        raise subprocess.TimeoutExpired("python", patience_s)

    monkeypatch.setattr(fresh, "_milliseconds", milliseconds)
    with pytest.raises(CaptureError, match="raise budget_s, or try it yourself: start Python with NAME=on"):
        time_fresh(Setting({"NAME": "on"}), subject_of(module.alone), None, 6.0, lambda *_: None, "trial")
    assert given == [pytest.approx(0.6)]


def test_a_lever_whose_new_processes_fail_has_a_reason(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise CaptureError("The step does not run in a new process: no.")

    monkeypatch.setattr("perfnb.remedies.levers.process.time_fresh", fails)
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 4)
    found = perfnb.try_levers(module.modelled, levers=["interop_threads", "gc_freeze"], budget_s=1)
    assert found.table.loc["interop_threads", "why_not"] == "The step does not run in a new process: no."
    assert found.table.loc["gc_freeze", "verdict"] != "not tried"


def test_values_of_other_processes_are_not_checked(module: ModuleType) -> None:
    subject = subject_of(module.alone)
    lever = by_name()["interop_threads"]
    assert lever.timed_alone
    with prepared(lever, subject, 0.0) as one:
        assert lever.check is not None
        assert lever.check(subject, one.switch).verdict == UNCHECKED


@pytest.mark.slow
def test_a_script_runs_again_until_it_calls_try_levers(tmp_path: Path) -> None:
    script, result = tmp_path / "script.py", tmp_path / "result.json"
    script.write_text(SCRIPT, encoding="utf-8")
    order = {
        "step": "step", "module": "__main__", "script": str(script), "batches": "", "path": sys.path,
        "argv": [str(script)], "interop": 1,
    }  # fmt: skip
    words = [sys.executable, "-m", "perfnb.remedies.fresh_child", json.dumps(order), str(result)]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(result.read_text()) > 0


@pytest.mark.slow
def test_a_step_that_breaks_in_a_new_process_says_how(module: ModuleType) -> None:
    subject = subject_of(module.step, module.batches)
    with pytest.raises(CaptureError, match="RuntimeError: it breaks here"):
        time_fresh(Setting({"BREAKS": "1"}), subject, None, 10_000.0, lambda *_: None, "trial")
