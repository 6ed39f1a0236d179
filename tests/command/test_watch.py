"""``perfnb watch``: the command runs as it would without, and its telemetry is saved."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb as package
from perfnb.command import watch
from perfnb.errors import PerfnbError
from tests.command.processes import called, command, environment, perfnb


@pytest.mark.slow
def test_the_command_is_unchanged_and_its_telemetry_is_saved(tmp_path: Path) -> None:
    code = "import sys, time; print('out', sys.argv[1:]); print('err', file=sys.stderr); time.sleep(0.2); sys.exit(5)"
    done = perfnb("watch", "--save", "w.perfnb", "--", sys.executable, "-c", code, "--save", "-m", "a b", cwd=tmp_path)

    assert done.returncode == 5
    assert done.stdout == "out ['--save', '-m', 'a b']\n"
    assert done.stderr.startswith("err\n\nperfnb · watch · the machine")
    assert "Saved to w.perfnb" in done.stderr
    assert "has ended" not in done.stderr
    found = package.load(tmp_path / "w.perfnb")
    assert isinstance(found, package.Watch)
    assert {"host", "process"} <= set(found.samples["device"])


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("nosuchcommand", 127, "there is no such command"), ("/dev/null", 126, "it cannot be run")],
)
def test_a_command_that_cannot_be_started(name: str, code: int, said: str, tmp_path: Path) -> None:
    done = called("watch", name, cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"perfnb watch: {name}: {said}.\n")
    assert not [*tmp_path.iterdir()]


class Watched:
    """A watch of a program, which reads no sensors."""

    made: list[Any]

    def __init__(self, watcher: Any) -> None:
        self.made.append(self)
        self._watcher, self.state = watcher, list[str]()

    def __enter__(self) -> None:
        self.state.append("began after the command" if Path("ran").exists() else "began")

    def __exit__(self, *_: object) -> None:
        self.state.append(f"ended with notes {self._watcher.notes}")

    def __str__(self) -> str:
        return "the watch"

    def save(self, target: Path) -> Path:
        if target.name == "full":
            raise PerfnbError("The disk is full.")
        return target


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def watcher(interval_s: float, pid: int) -> Any:
        if interval_s > 1:
            raise ValueError("interval_s is too long")
        found = SimpleNamespace(notes=[f"process {pid} has ended", "note"], pid=pid, interval_s=interval_s)
        found.stop = lambda: found.notes.append("stopped")
        return found

    monkeypatch.setattr(Watched, "made", [], raising=False)
    monkeypatch.setattr("perfnb.telemetry.watcher.Watcher", watcher)
    monkeypatch.setattr("perfnb.watching.watch.Watch", Watched)
    monkeypatch.setattr(watch, "end_by", lambda signum: 1000 + signum)
    return Watched.made


@pytest.mark.parametrize(("code", "ended"), [("exit 0", 0), ("exit 5", 5), ("kill -TERM $$", 1015)])
@pytest.mark.parametrize("target", ["w", "full"])
def test_a_watch_ends_like_its_command_even_if_it_cannot_be_saved(
    code: str, ended: int, target: str, watched: list[Any], tmp_path: Path
) -> None:
    done = called("watch", "--save", target, "--", "sh", "-c", f"echo $$ > ran; {code}", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (ended, "")
    saved = f"Saved to {target}. To show it again, use perfnb show {target}."
    assert done.stderr == f"\nthe watch\n{'perfnb watch: The disk is full.' if target == 'full' else saved}\n"
    assert (tmp_path / "ran").read_text() == f"{watched[0]._watcher.pid}\n"
    assert watched[0]._watcher.interval_s == 0.5
    assert watched[0].state == ["began", "ended with notes ['note', 'stopped']"]


def test_only_a_saved_watch_is_replaced(watched: list[Any], tmp_path: Path) -> None:
    assert re.search(r"Saved to watch_\d{8}_\d{6}\.perfnb\.", called("watch", "true", cwd=tmp_path).stderr)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "watch.json").write_text("{}")
    assert "Saved to w." in called("watch", "--save", "w", "true", cwd=tmp_path).stderr
    (tmp_path / "thesis").write_text("long")
    done = called("watch", "--save", "thesis", "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 2
    assert "thesis exists and is not a saved watch" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"thesis", "w"}


def test_a_command_that_cannot_be_watched_does_not_run(
    watched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, spawn = list[int](), os.posix_spawn
    monkeypatch.setattr(watch.os, "posix_spawn", lambda *given, **more: pids.append(spawn(*given, **more)) or pids[-1])
    done = called("watch", "--interval", "2", "--", "touch", "ran", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "perfnb watch: --interval is too long\n")
    assert (watched, [*tmp_path.iterdir()]) == ([], [])
    with pytest.raises(ChildProcessError):  # it has been ended and waited for
        os.waitpid(pids[0], os.WNOHANG)


@pytest.mark.parametrize(
    ("in_front", "sent"),
    [(True, [signal.SIGTERM]), (False, [signal.SIGINT, signal.SIGTERM])],
)
def test_signals_are_passed_on_unless_the_terminal_has_sent_them(
    in_front: bool, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def kill(pid: int, signum: int) -> None:
        told.append((pid, signum))
        raise ProcessLookupError

    monkeypatch.setattr(watch, "_in_front", lambda: in_front)
    monkeypatch.setattr(watch.os, "kill", kill)
    signals = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in signals}
    for signum in signals[:3]:  # which a shell ignores in its background
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with watch._passed_on_to(77):
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.raise_signal(signum)
            assert signal.getsignal(signal.SIGQUIT) is signal.getsignal(signal.SIGINT)
        after = [signal.getsignal(signum) for signum in signals]
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert told == [(77, signum) for signum in sent]
    assert after == [*[signal.SIG_DFL] * 3, signal.SIG_IGN]


@pytest.mark.parametrize(("group", "front"), [(None, False), (0, True), (1, False)])
def test_a_command_in_front_has_the_terminal(
    group: int | None, front: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opened(path: str, *_: Any, **__: Any) -> Any:
        assert path == "/dev/tty"
        if group is None:
            raise OSError
        return (tmp_path / "terminal").open("wb", buffering=0)

    monkeypatch.setattr(watch, "open", opened, raising=False)
    monkeypatch.setattr(watch.os, "tcgetpgrp", lambda _: os.getpgrp() + (group or 0))
    assert watch._in_front() is front


@pytest.mark.slow
def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    program = "print('ready', flush=True); import time; time.sleep(60)"
    words = command("watch", "--save", "w", "--", sys.executable, "-c", program)
    with subprocess.Popen(
        words, stdout=-1, stderr=-1, text=True, cwd=tmp_path, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (-signal.SIGTERM, "")
    assert "Saved to w" in err
    assert err.strip().startswith("perfnb · watch")  # no traceback of perfnb's


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    # A second interrupt would end the handler's own sleep.
    program = """
import signal, sys, time
count = 0
def handle(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, handle)
print("ready", flush=True)
until = time.monotonic() + 60
while not count and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(0.5)
print("interrupts", count, flush=True)
sys.exit(4)
"""
    words = command("watch", "--save", "w", "--", sys.executable, "-c", program)
    leader = (
        "import fcntl, os, sys, termios\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    terminal, inside = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", leader, *words], stdin=inside, stdout=inside, stderr=inside, cwd=tmp_path,
            env=environment(),
        )  # fmt: skip
        os.close(inside)
        said = b""
        while b"ready" not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        try:
            while chunk := os.read(terminal, 4096):
                said += chunk
        except OSError:  # Linux reports the end of a terminal so
            pass
        assert process.wait(120) == 4, said
    finally:
        os.close(terminal)
    assert b"interrupts 1" in said
