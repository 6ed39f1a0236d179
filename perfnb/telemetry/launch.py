"""Starting, listening to and ending the sampler's process."""

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

#: What it runs. Modules come from where this process has its own, never from the folder of a notebook or script.
_BOOT = (
    "import sys, json, warnings; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    f"warnings.simplefilter('ignore'); from {MODULE} import main; main(config)"
)
_STOP_S = 5.0

#: A weak reference, followed each time, to what is called with each message and with ``None`` at the end.
Taker = Callable[[], Callable[[dict[str, Any] | None], None] | None]


class SamplerProcess:
    """A running sampler.

    Parameters
    ----------
    interval_s : float
        Seconds between readings.
    taker : callable
        Returns what a thread calls with each message, or ``None`` when nobody listens any more.

    Raises
    ------
    CaptureError
        If it cannot be started.
    """

    def __init__(self, interval_s: float, taker: Taker) -> None:
        self.asked_to_end = False
        self._words: list[str] = []
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread
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
                    stderr=errors,
                    bufsize=0,
                )
        except OSError as error:
            errors.close()
            raise CaptureError(f"The sampler's process cannot be started: {error}.") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        _enlarge(self.process.stdout)
        self._finalizer = weakref.finalize(self, _close, self.process.stdin)
        self._finalizer.atexit = False
        self.thread = threading.Thread(
            target=_receive, args=(self.process, errors, self._words, taker), name="perfnb-watch", daemon=True
        )
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return not self.thread.is_alive()

    def end(self) -> None:
        """Ask for a last reading and wait for the end; kill it if it does not end."""
        self.asked_to_end = True
        until = time.monotonic() + _STOP_S
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it ended by itself
            self.process.stdin.write(b"stop\n")
        self._finalizer()
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.thread.is_alive():
            self.process.kill()
            self.thread.join(_STOP_S)

    def last_words(self, nothing: str = "it printed nothing") -> str:
        """The last line it printed to stderr; known after its end."""
        return self._words[0] if self._words else nothing

    def forget_in_child(self) -> None:
        """Release it in a forked process, which is not its parent."""
        self._finalizer.detach()
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in here ignore interrupts, which a terminal sends to all of its processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(process: subprocess.Popen[bytes], errors: IO[bytes], words: list[str], taker: Taker) -> None:
    """Hand on messages until the sampler ends; the thread holds nothing that could keep a watch alive."""
    assert process.stdout is not None
    pipe, rest = process.stdout.fileno(), b""
    while chunk := os.read(pipe, 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _hand(taker, msgspec.json.decode(line))
    errors.seek(0)
    words += errors.read().decode(errors="replace").strip().splitlines()[-1:]
    errors.close()
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


def _close(pipe: IO[bytes]) -> None:
    with suppress(OSError):
        pipe.close()


def _path() -> list[str]:
    """Where modules come from: Python's own and those that the sampler needs, before any of the user's."""
    own = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    here = str(Path(__file__).resolve().parents[2])
    found = [find_spec(name) for name in ("psutil", "msgspec")]
    homes = [str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin]
    given = [str(entry) for entry in sys.path if entry]
    dynamic = [entry for entry in given if entry.endswith("lib-dynload")]
    return list(dict.fromkeys([*own, *dynamic, *homes, here, *given]))


def _enlarge(pipe: Any) -> None:
    """Make room for readings that arrive while this process holds the interpreter lock."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
    except (ImportError, AttributeError, OSError):
        pass  # the sampler keeps what does not fit
