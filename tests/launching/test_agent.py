"""The launcher that starts and ends the ranks of a job, with fake processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perfnb.launching import agent, child, job
from perfnb.launching.job import Job
from perfnb.launching.order import Order


class Process:
    """A rank that ends with a code after it was looked at a few times."""

    started: list[Process]

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: Any, stderr: int) -> None:
        assert command == [sys.executable, "-c", agent._RANK]
        assert stderr == subprocess.STDOUT
        rank = len(self.started)
        self.env, self.output, self.pid, self.returncode = env, Path(stdout.name), 100 + rank, 7 - rank
        self._left = 3 * rank
        self.started.append(self)

    def poll(self) -> int | None:
        self._left -= 1
        return None if self._left >= 0 else self.returncode


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Start fake ranks, and return the requests to the system."""
    done: list[Any] = []
    monkeypatch.setattr(Process, "started", [], raising=False)
    monkeypatch.setattr(agent.subprocess, "Popen", Process)
    monkeypatch.setattr(agent, "time", SimpleNamespace(sleep=lambda s: done.append("wait")))
    monkeypatch.setattr(agent, "set_process_option", lambda *given: done.append(given))
    monkeypatch.setattr(agent, "_end_all", lambda: done.append("end"))
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "29")
    return done


def started(folder: Path, ranks: int, parent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["agent", str(folder), str(ranks), str(parent)])
    try:
        agent.main()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_rank_is_started_and_tells_how_it_ended(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started(tmp_path, 2, os.getppid(), monkeypatch)

    assert ended == [(36, 1), *["wait"] * 4, "end"]
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    told = {"pid_0": "100", "pid_1": "101", "exit_0": "7", "exit_1": "6"}
    assert files == {**told, "output_0": "", "output_1": ""}
    for rank, process in enumerate(Process.started):
        assert process.output == tmp_path / f"output_{rank}"
        assert {name: process.env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
            **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2"),
        }
        assert (process.env["MASTER_ADDR"], process.env["MASTER_PORT"]) == ("127.0.0.1", "29")  # as given
        assert process.env[child.FOLDER] == str(tmp_path)
        assert process.env[child.STARTED_BY] == str(os.getpid())
    assert 0 < int(agent._free_port()) < 2**16


def test_ranks_are_ended_if_this_is_asked_for(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(agent.time, "sleep", lambda s: signal.raise_signal(signal.SIGTERM))
    started(tmp_path, 2, os.getppid(), monkeypatch)
    assert ended == [(36, 1), "end"]
    assert {path.name for path in tmp_path.glob("exit_*")} == {"exit_0"}


def test_ranks_and_their_folder_are_gone_with_the_process_that_asked_for_them(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    started(folder, 1, os.getppid() + 1, monkeypatch)
    assert ended == [(36, 1), "end"]
    assert not folder.exists()


def test_descendants_are_interrupted_and_then_killed_until_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    alive = [["a", "gone", "b"], ["b", "new"], ["new"], []]

    class Descendants:
        def __init__(self, name: str = "this") -> None:
            self.name = name

        def children(self, recursive: bool) -> list[Any]:
            assert (self.name, recursive) == ("this", True)
            return [Descendants(name) for name in alive.pop(0)]

        def send_signal(self, signum: int) -> None:
            if self.name == "gone":
                raise psutil.NoSuchProcess(1)
            done.append((self.name, signum))

        def kill(self) -> None:
            done.append((self.name, "killed"))

    wait = lambda left, timeout: done.append(([one.name for one in left], timeout))  # noqa: E731
    monkeypatch.setattr(agent, "psutil", SimpleNamespace(Process=Descendants, Error=psutil.Error, wait_procs=wait))
    agent._end_all()

    first, second = [("a", signal.SIGINT), ("b", signal.SIGINT)], [("b", "killed"), ("new", "killed")]
    assert [one for one in done if not isinstance(one[0], list)] == [*first, *second, ("new", "killed")]
    assert [one[0] for one in done if isinstance(one[0], list)] == [["a", "gone", "b"], ["b", "new"], ["new"]]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make the end of this process an exception, and return the options that it sets on Linux."""
    options: list[Any] = []

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(child.os, "_exit", end)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=lambda *given: options.append(given)))
    return options


@pytest.mark.parametrize(("system", "set_options"), [("linux", [(1, 9)]), ("darwin", [])])
def test_a_rank_ends_with_the_process_that_started_it(
    system: str, set_options: list[Any], ends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Callable[[], None]] = []
    parents = iter([5, 5, 5, 1])
    monkeypatch.setattr(child, "sys", SimpleNamespace(platform=system))
    monkeypatch.setattr(child.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(child, "time", SimpleNamespace(sleep=lambda s: None))

    def thread(target: Callable[[int], None], args: tuple[int], daemon: bool) -> Any:
        assert daemon
        return SimpleNamespace(start=lambda: started.append(lambda: target(*args)))

    monkeypatch.setattr(child.threading, "Thread", thread)
    child._end_with(5)
    assert ends == set_options
    assert len(started) == (system != "linux")
    with pytest.raises(SystemExit) as ended:
        started[0]() if started else child._end_with(6)
    assert ended.value.code == 1
    assert list(parents) == ([5, 1] if system == "linux" else [])


class Launcher:
    """A launcher that ends when it is asked to, or must be killed."""

    def __init__(self, obeys: bool) -> None:
        self.obeys, self.asked = obeys, list[Any]()

    def poll(self) -> int | None:
        return None if len(self.asked) < 2 else 0

    def terminate(self) -> None:
        self.asked.append("terminate")

    def kill(self) -> None:
        self.asked.append("kill")

    def wait(self, timeout: float | None = None) -> None:
        self.asked.append("wait" if timeout is None else "wait for some time")
        if timeout is not None and not self.obeys:
            raise subprocess.TimeoutExpired("launcher", timeout)


@pytest.mark.parametrize("obeys", [True, False])
def test_a_job_starts_its_launcher_and_ends_it(obeys: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []
    launcher = Launcher(obeys)
    monkeypatch.setattr(job.subprocess, "Popen", lambda *words, **options: given.append((words, options)) or launcher)

    one = Job(tmp_path, Order("script", threads=3), 2, {"COLOUR": "blue"}, "note")
    assert not one._have_ended()
    one.end()

    ((words, options),) = given
    command = [sys.executable, "-m", "perfnb.launching.agent", str(tmp_path), "2", str(os.getpid())]
    assert words == (command,)
    assert (options["env"]["OMP_NUM_THREADS"], options["env"]["COLOUR"]) == ("3", "blue")
    assert options["stdout"].name == str(tmp_path / "launcher")
    assert options["start_new_session"]
    assert (options["stdin"], options["stderr"]) == (subprocess.DEVNULL, subprocess.STDOUT)
    assert launcher.asked == ["terminate", "wait for some time", *([] if obeys else ["kill", "wait"])]
    assert one._have_ended()
