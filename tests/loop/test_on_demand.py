"""A running loop opens a window when somebody asks for one, by a signal or a file."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.loop import on_demand
from perfnb.loop.on_demand import FILE, OnDemand

pytestmark = pytest.mark.usefixtures("nothing_left")


def looped(folder: Path | None, ask: Callable[[int], None], steps: int = 40, at: Any = 10**6) -> list[int]:
    """Return steps before each profile of a loop whose own window, by default, never opens."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = perfnb.profiled([torch.ones(2, 4)] * steps, at=at, save=folder, steps=2, traced=1, memory=False, flops=False)
    for number, x in enumerate(loop):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        ask(number)
    return [profile.meta["loop"]["step"] for profile in loop.profiles]


def test_a_signal_opens_a_window_at_the_next_step_each_time() -> None:
    def ask(step: int) -> None:
        if step in (12, 13, 25):  # the second one comes while the window is open
            os.kill(os.getpid(), signal.SIGUSR1)

    assert looped(None, ask) == [13, 18, 26]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_file_opens_a_window_when_it_appears_and_when_it_is_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(on_demand, "_BETWEEN_NS", 0)
    file = tmp_path / FILE
    file.touch()  # from an earlier run
    os.utime(file, ns=(10**9, 10**9))

    def ask(step: int) -> None:
        if step in (12, 25):
            later = file.stat().st_mtime_ns + 10**18 * (2 if step == 12 else 1)
            os.utime(file, ns=(later, later))

    assert looped(tmp_path, ask) == [13, 26]


def test_the_file_is_looked_for_twice_a_second(tmp_path: Path) -> None:
    asks = OnDemand(tmp_path)
    assert not asks.asked(10**9)
    (tmp_path / FILE).touch()
    os.utime(tmp_path / FILE, ns=(2**62, 2**62))
    assert not asks.asked(10**9 + 499_999_999)
    assert asks.asked(10**9 + 500_000_000)
    assert not asks.asked(10**10)


def test_the_folder_for_the_file_is_there_from_the_start(tmp_path: Path) -> None:
    asks = OnDemand(tmp_path / "runs" / "first")
    asks.begin()
    (tmp_path / "runs" / "first" / FILE).touch()
    asks.end()
    unwritable = OnDemand(tmp_path / "runs" / "first" / FILE / "below")
    unwritable.begin()
    unwritable.end()


def test_a_handler_of_the_users_stays() -> None:
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        assert looped(None, lambda step: os.kill(os.getpid(), signal.SIGUSR1) if step == 12 else None) == []
        assert heard == [1]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_two_loops_listen_and_the_last_one_puts_the_handler_back() -> None:
    first, second = OnDemand(None), OnDemand(None)
    first.begin()
    second.begin()
    first.end()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (first.asked(0), second.asked(0), second.asked(0)) == (False, True, False)
    second.end()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_loop_in_another_thread_does_not_listen() -> None:
    listens = []

    def other() -> None:
        asks = OnDemand(None)
        asks.begin()
        listens.append(asks._listens)
        asks.end()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert listens == [False]


def test_planned_windows_open_all_the_same() -> None:
    def ask(step: int) -> None:
        if step in (7, 16):
            os.kill(os.getpid(), signal.SIGUSR1)

    assert looped(None, ask, steps=32, at=[17, 25]) == [8, 17, 25]


def test_a_loop_hears_the_signal_after_one_that_ended_in_another_thread() -> None:
    loop = iter(perfnb.profiled(range(3), at=10**6))
    next(loop)
    thread = threading.Thread(target=lambda: list(loop))
    thread.start()
    thread.join()
    assert looped(None, lambda step: os.kill(os.getpid(), signal.SIGUSR1) if step == 12 else None) == [13]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
