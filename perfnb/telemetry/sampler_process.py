"""The sampler's process: how it is started, listened to and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec

from perfnb.errors import CaptureError
from perfnb.telemetry.sampler import MODULE

#: What it runs. Its modules come from where this process has its own, never from the folder of a notebook or script.
_BOOT = (
    "import sys, json, warnings; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    f"warnings.simplefilter('ignore'); from {MODULE} import main; main(config)"
)
_STOP_S = 5.0

#: Given each message, and ``None`` at the end; a weak reference to it, which is asked anew each time.
Taker = Callable[[], Callable[[dict[str, Any] | None], None] | None]


class SamplerProcess:
    """A running sampler.

    Parameters
    ----------
    interval_s : float
        Seconds between readings.
    taker : callable
        Gives what is called with each message from a thread; when it gives ``None``, nobody listens any longer and the
        sampler is ended.

    Attributes
    ----------
    asked_to_end : bool
        Whether it was told to.

    Raises
    ------
    CaptureError
        If it cannot be started.
    """

    def __init__(self, interval_s: float, taker: Taker) -> None:
        self.asked_to_end = False
        self._words: list[str] = []
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread
        config = {
            "path": _path(),
            "interval_s": interval_s,
            "parent": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        try:
            with _interrupts_blocked():
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-s", "-S", "-c", _BOOT, json.dumps(config)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    bufsize=0,
                )
        except OSError as error:
            complaints.close()
            raise CaptureError(f"The sampler's process cannot be started: {error}.") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        _enlarge(self.process.stdout)
        self._finalizer = weakref.finalize(self, _let_go, self.process.stdin)
        self._finalizer.atexit = False
        self.thread = threading.Thread(
            target=_receive, args=(self.process, complaints, self._words, taker), name="perfnb-watch", daemon=True
        )
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether no message will come any more."""
        return not self.thread.is_alive()

    def end(self) -> None:
        """Have it take a last reading and end, or kill it where it does not."""
        self.asked_to_end = True
        until = time.monotonic() + _STOP_S
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended by itself
            self.process.stdin.write(b"stop\n")
        self._finalizer()
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.thread.is_alive():
            self.process.kill()
            self.thread.join(_STOP_S)

    def last_words(self, nothing: str = "it said nothing") -> str:
        """The last line of what it complained of; known when it has ended."""
        return self._words[0] if self._words else nothing

    def forget_in_child(self) -> None:
        """Let go of it in a forked process, of which it is no child."""
        self._finalizer.detach()
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that is started in here never hears an interrupt, which a terminal sends to all of its processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(process: subprocess.Popen[bytes], complaints: IO[bytes], words: list[str], taker: Taker) -> None:
    """What the thread does: hand on messages until the sampler ends. Holds nothing that could keep a watch alive."""
    assert process.stdout is not None
    pipe, rest = process.stdout.fileno(), b""
    while chunk := os.read(pipe, 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _hand(taker, msgspec.json.decode(line))
    complaints.seek(0)
    words += complaints.read().decode(errors="replace").strip().splitlines()[-1:]
    complaints.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for end in (process.stdin, process.stdout):
        if end is not None:
            end.close()
    _hand(taker, None)


def _hand(taker: Taker, message: dict[str, Any] | None) -> None:
    take = taker()
    if take is not None:
        take(message)


def _let_go(pipe: IO[bytes]) -> None:
    with suppress(OSError):
        pipe.close()


def _path() -> list[str]:
    """Where modules come from: Python's own and those that the sampler needs before any of the user's."""
    own = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    here = str(Path(__file__).resolve().parents[2])
    found = [find_spec(name) for name in ("psutil", "msgspec")]
    homes = [str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin]
    given = [str(entry) for entry in sys.path if entry]
    dynamic = [entry for entry in given if entry.endswith("lib-dynload")]
    return list(dict.fromkeys([*own, *dynamic, *homes, here, *given]))


def _enlarge(pipe: Any) -> None:
    """Room for readings that come while this process holds the interpreter lock."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
    except (ImportError, AttributeError, OSError):
        pass  # the sampler keeps what does not fit
