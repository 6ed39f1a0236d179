"""``perfnb watch``: the command runs as it would without, and its telemetry is saved."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import perfnb as package
from tests.command.processes import command, environment, perfnb, started

pytestmark = pytest.mark.slow

INTERRUPTED = """
import signal, sys, time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(9)
"""
ENDED = "print('ready', flush=True); import time; time.sleep(60)"


def test_the_command_is_unchanged_and_its_telemetry_is_saved(tmp_path: Path) -> None:
    code = "import sys, time; print('out', sys.argv[1:]); print('err', file=sys.stderr); time.sleep(0.2); sys.exit(5)"
    done = perfnb("watch", "--save", "w.perfnb", "--", sys.executable, "-c", code, "--save", "-m", "a b", cwd=tmp_path)

    assert done.returncode == 5
    assert done.stdout == "out ['--save', '-m', 'a b']\n"
    assert done.stderr.startswith("err\n\nperfnb · watch · the machine")
    assert "Saved to w.perfnb" in done.stderr
    assert "has ended" not in done.stderr
    watch = package.load(tmp_path / "w.perfnb")
    assert isinstance(watch, package.Watch)
    assert {"host", "process"} <= set(watch.samples["device"])


def test_the_command_alone_is_watched(tmp_path: Path) -> None:
    # perfnb itself uses far more memory than a shell.
    done = perfnb("watch", "--interval", "0.05", "--save", "w", "sh", "-c", "sleep 1; :", cwd=tmp_path)

    assert done.returncode == 0
    watch = package.load(tmp_path / "w")
    assert isinstance(watch, package.Watch)
    memory = watch.samples.query("device == 'process'")["memory_bytes"].dropna()
    assert memory.iloc[-1] < 20 * 2**20


def test_the_history_has_a_name_of_its_own_if_none_is_given(tmp_path: Path) -> None:
    assert perfnb("watch", "true", cwd=tmp_path).returncode == 0

    (saved,) = tmp_path.iterdir()
    assert saved.name.startswith("watch_2")
    assert saved.suffix == ".perfnb"


@pytest.mark.parametrize(("name", "code"), [("nosuchcommand", 127), ("/dev/null", 126)])
def test_a_command_that_cannot_be_started(name: str, code: int, tmp_path: Path) -> None:
    done = perfnb("watch", name, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"perfnb watch: {name}: ")
    assert not [*tmp_path.iterdir()]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("long")
    done = perfnb("watch", "--save", "thesis", "--", "touch", "ran", cwd=tmp_path)

    assert done.returncode == 2
    assert "thesis exists and is not a saved watch" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


@pytest.mark.parametrize(
    ("signum", "program", "code", "printed"),
    [
        (signal.SIGINT, INTERRUPTED, 9, "interrupted\n"),
        (signal.SIGINT, f"import signal; signal.signal(2, signal.SIG_DFL); {ENDED}", -signal.SIGINT, ""),
        (signal.SIGTERM, ENDED, -signal.SIGTERM, ""),
    ],
)
def test_a_signal_reaches_the_command(signum: int, program: str, code: int, printed: str, tmp_path: Path) -> None:
    with started("watch", "--save", "w", "--", sys.executable, "-c", program, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (code, printed)
    assert "Saved to w" in err
    assert err.strip().startswith("perfnb · watch")  # no traceback of perfnb's


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


def test_interrupts_that_are_ignored_stay_so(tmp_path: Path) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    words = command("watch", "--save", "w", "--", sys.executable, "-c", program)
    done = subprocess.run(
        ["nohup", *words], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )

    assert done.stdout == "True\n"
