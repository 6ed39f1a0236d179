"""Record telemetry in the kernel: start the sampler, receive its readings, and make sure that it ends."""

from __future__ import annotations

import atexit
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import IO, Any

import msgspec

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.telemetry.history import History
from perfnb.telemetry.sampler import MODULE

_START_S = 20.0
#: torch's allocator is read when a reading arrives. It is not read if the reading is older than this, because the two
#: values would not be from the same time.
_SIMULTANEOUS_NS = 100_000_000
#: A shorter interval would cost more without providing more data, because NVML and the kernel's counters are no faster.
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 3600.0

#: A reading that is passed on: the device, ``t_s``, ``window_s``, and the values by metric.
Row = tuple[str, float, float | None, dict[str, float | None]]


class Watcher:
    """A sampler and its readings. The sampler ends when it is stopped, or when nothing refers to the watcher any more.

    Parameters
    ----------
    interval_s : float
        The number of seconds between readings.
    pid : int, optional
        The process to watch, including its descendants. The default is this process.

    Attributes
    ----------
    history : History
        The readings. The devices are ``host``, ``process``, ``cgroup``, and the GPUs, which are identified by UUID.
    notes : list of str
        Caveats for the user.
    zero_ns : int
        The time of the first reading (from `time.perf_counter_ns`), at which ``t_s`` is 0.
    renamed : int
        The number of times that the GPUs' names have changed.
    on_rows : callable or None
        A function that the watcher's thread calls with the rows of each tick, and without rows if the sampler ends
        unexpectedly.

    Raises
    ------
    TypeError, ValueError
        If the interval is not a number, or is out of range.
    CaptureError
        If the sampler cannot be started.
    """

    def __init__(self, interval_s: float, pid: int | None = None) -> None:
        given: Any = interval_s
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeError(f"interval_s must be a number of seconds, not {shown(interval_s)}.")
        if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
            raise ValueError(
                f"interval_s must be between {LEAST_INTERVAL_S:g} and {MOST_INTERVAL_S:g} seconds, "
                f"not {shown(interval_s)}."
            )
        self.interval_s, self.zero_ns, self.renamed = float(interval_s), 0, 0
        self.history = History(1)
        self.notes: list[str] = []
        self.on_rows: Callable[[list[Row]], None] | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._by_torch = False
        self._ticks, self._missed, self._unsent, self._cpu_ns, self._ended_ns = 0, 0, 0, 0, 0
        self._last_ns: dict[str, int] = {}
        self._ready, self._stopping = threading.Event(), threading.Lock()
        self._process: SamplerProcess | None = None
        self._pid = os.getpid() if pid is None else pid
        try:
            with InterruptGate() as gate:  # an interrupt would leave an orphan
                self._start(gate)
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> bool:
        """Whether the sampler is still reading."""
        process = self._process
        return process is not None and not process.ended

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata about the run that can be written as JSON."""
        end = self._ended_ns or time.perf_counter_ns()
        return {
            "running": self.running,
            "interval_s": self.interval_s,
            "devices": {self._names.get(key, key): facts for key, facts in self._facts.items()},
            "absent": dict(self._absent),
            "notes": list(self.notes),
            "ticks": self._ticks,
            "missed": self._missed,
            "unsent": self._unsent,
            "sampler_cpu_s": self._cpu_ns / 1e9,
            "sampler_lived_s": (end - self.zero_ns) / 1e9,
            "exact": {self._names.get(key, key): figures for key, figures in self.history.exact().items()},
        }

    def columns(self) -> dict[str, Any]:
        """Return the readings by device and column, with the current names of the devices."""
        return {self._names.get(key, key): columns for key, columns in self.history.columns().items()}

    def now_s(self) -> float:
        """Return the current time in seconds since the first reading, like `t_s`."""
        return (time.perf_counter_ns() - self.zero_ns) / 1e9

    def stop(self) -> None:
        """Take a final reading and stop the sampler. If it has already ended, do nothing."""
        with InterruptGate(), self._stopping:
            process, self._process = self._process, None
            if process is not None:
                process.end()
                self._ended_ns = self._ended_ns or time.perf_counter_ns()
                _alive.discard(self)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start(self, gate: InterruptGate) -> None:
        process = self._process = SamplerProcess(self.interval_s, weakref.WeakMethod(self._take), self._pid)
        _alive.add(self)
        with gate.opened():
            ready = self._ready.wait(_START_S)
        if not ready or not self._facts:
            process.end()
            with gate.opened():  # an interrupt that has arrived takes precedence over the error
                raise CaptureError(
                    f"The sampler's process sent no reading: {process.last_words() or 'it printed nothing'}."
                )

    def _take(self, message: dict[str, Any] | None) -> None:
        """Receive a message from the sampler, or ``None`` when it has ended."""
        if message is None:
            self._ended_ns = time.perf_counter_ns()
            process = self._process
            if process is not None and not process.asked_to_end and self._facts:
                why = f": {said}" if (said := process.last_words()) else ""
                self.notes.append(f"The sampler ended by itself after {self._ticks} readings{why}.")
                self._hand_on([])
            self._ready.set()
        elif "rows" in message:
            self._take_rows(message)
        elif "hello" in message:
            hello = message["hello"]
            self._facts, self._absent, self.zero_ns = hello["devices"], hello["absent"], hello["zero_ns"]
            self.history = History(len(self._facts))
            gpus = [key for key in self._facts if key.startswith(("GPU", "MIG"))]
            self._names = {key: f"gpu{place}" for place, key in enumerate(gpus)}
        else:
            self.notes.append(message["note"])

    def _take_rows(self, message: dict[str, Any]) -> None:
        if not self._by_torch and (names := _torch_names(list(self._names))):
            self.renamed += names != self._names
            self._names, self._by_torch = names, True
        self._ticks += 1
        self._missed += message["missed"]
        self._unsent += message.get("unsent", 0)
        self._cpu_ns = message["cpu"]
        started = message["rows"][0][1] if message["rows"] else message["due"]
        late_ms = max(0.0, (started - message["due"]) / 1e6)
        rows: list[Row] = []
        for key, before, after, values in message["rows"]:
            if key in self._names:
                simultaneous = time.perf_counter_ns() - after < _SIMULTANEOUS_NS
                values |= _torch_memory(self._names[key], ask=self._by_torch and simultaneous)
            last = self._last_ns.get(key)
            window = None if last is None else (before - last) / 1e9
            self._last_ns[key] = before
            own = {
                "t_s": (before - self.zero_ns) / 1e9,
                "window_s": float("nan") if window is None else window,
                "read_ms": (after - before) / 1e6,
                "late_ms": late_ms,
                "missed_ticks": float(message["missed"]),
            }
            self.history.append(key, own, values)
            rows.append((self._names.get(key, key), own["t_s"], window, values))
        self._ready.set()
        self._hand_on(rows)

    def _hand_on(self, rows: list[Row]) -> None:
        if self.on_rows is None:
            return
        try:
            self.on_rows(rows)
        except Exception as error:  # a failing view must not end the watch
            self.on_rows = None
            self.notes.append(f"The live view stopped: {type(error).__name__}: {error}")

    def forget_in_child(self) -> None:
        """Close the pipes in a forked process, so that the sampler notices when the original process closes them."""
        process, self._process = self._process, None
        if process is not None:
            process.forget_in_child()
        self._stopping = threading.Lock()  # a thread that does not exist here may hold the old lock
        self.history.unlock_in_child()


_alive: weakref.WeakSet[Watcher] = weakref.WeakSet()


def running() -> int:
    """Return the number of watchers that are currently running in this process."""
    return sum(watcher.running for watcher in list(_alive))


@atexit.register
def _stop_all() -> None:
    for watcher in list(_alive):
        watcher.stop()


def _forget_all_in_child() -> None:
    for watcher in list(_alive):
        watcher.forget_in_child()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_in_child)


#: The code that the sampler's process runs. It imports modules from this process's folders, and not from the folder of
#: the notebook or script.
_BOOT = (
    "import sys, json, warnings; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    f"warnings.simplefilter('ignore'); from {MODULE} import main; main(config)"
)
_STOP_S = 5.0

#: A weak reference to the function that is called with each message, and with ``None`` at the end.
Taker = Callable[[], Callable[[dict[str, Any] | None], None] | None]


class SamplerProcess:
    """A running sampler.

    Parameters
    ----------
    interval_s : float
        The number of seconds between readings.
    taker : callable
        A function that returns the function to call with each message, or ``None`` if it no longer exists.
    pid : int
        The process to watch.

    Raises
    ------
    CaptureError
        If the process cannot be started.
    """

    def __init__(self, interval_s: float, taker: Taker, pid: int) -> None:
        self.asked_to_end = False
        self._words: list[str] = []
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread
        config = {
            "path": _path(),
            "interval_s": interval_s,
            "parent": os.getpid(),
            "watched": pid,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "hip_visible": os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")),
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
        """Request a final reading and wait for the sampler to end. If it does not end, kill it."""
        self.asked_to_end = True
        until = time.monotonic() + _STOP_S
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # the sampler has already ended
            self.process.stdin.write(b"stop\n")
        self._finalizer()
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.thread.is_alive():
            self.process.kill()
            self.thread.join(_STOP_S)

    def last_words(self) -> str:
        """Return the last line that the sampler printed to stderr, if any. This is only known after it has ended."""
        return "".join(self._words)

    def forget_in_child(self) -> None:
        """Release the sampler in a forked process, which is not the sampler's parent."""
        self._finalizer.detach()
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Make processes that are started in this context ignore interrupts.

    This is needed because a terminal sends interrupts to all of its processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(process: subprocess.Popen[bytes], errors: IO[bytes], words: list[str], taker: Taker) -> None:
    """Pass on messages until the sampler ends. The thread has no reference that would keep the watch alive."""
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
    if (take := taker()) is not None:
        take(message)


def _close(pipe: IO[bytes]) -> None:
    with suppress(OSError):
        pipe.close()


def _path() -> list[str]:
    """Return the sampler's import path, which starts with the folders of Python and of the modules that it needs."""
    own = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    here = str(Path(__file__).resolve().parents[2])
    found = [find_spec(name) for name in ("psutil", "msgspec")]
    homes = [str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin]
    given = [str(entry) for entry in sys.path if entry]
    dynamic = [entry for entry in given if entry.endswith("lib-dynload")]
    return list(dict.fromkeys([*own, *dynamic, *homes, here, *given]))


def _enlarge(pipe: Any) -> None:
    """Enlarge a pipe, to make room for readings that arrive while this process holds the interpreter lock."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
    except (ImportError, AttributeError, OSError):
        pass  # the sampler stores data that does not fit


#: The metrics of torch's allocator, and their keys in the allocator's statistics.
_ALLOCATOR = {"torch_allocated_bytes": "allocated_bytes", "torch_reserved_bytes": "reserved_bytes"}


def _torch_names(uuids: Sequence[str]) -> dict[str, str] | None:
    """Name GPUs ``gpu0`` and so on, in torch's order. GPUs that are unknown to torch come last.

    The names are returned by UUID. The result is ``None`` while torch does not use CUDA, or if it does not report
    UUIDs. `uuids` are in NVML's format, such as ``GPU-8f...``.
    """
    cuda = _cuda() if uuids else None
    if cuda is None:
        return None
    try:
        own = [_bare(str(cuda.get_device_properties(index).uuid).lower()) for index in range(cuda.device_count())]
    except Exception:  # with an old version of torch or the driver, the environment variable's order applies
        return None
    places = {uuid: place for place, uuid in enumerate(own)}
    known = {uuid: places[bare] for uuid in uuids if (bare := _bare(uuid.lower().partition("-")[2])) in places}
    if not known:
        return None
    free = iter(range(len(own), len(own) + len(uuids)))
    return {uuid: f"gpu{known[uuid] if uuid in known else next(free)}" for uuid in uuids}


def _bare(uuid: str) -> str:
    """Return the hexadecimal digits of a UUID. torch for ROCm writes the character code of each digit instead."""
    digits = uuid.replace("-", "")
    with suppress(ValueError):
        characters = bytes.fromhex(digits).decode()
        int(characters, 16)
        return characters
    return digits


def _torch_memory(device: str, *, ask: bool) -> dict[str, float | None]:
    """Return the number of bytes that torch's allocator has allocated and reserved on a device (``gpu0``).

    The values are ``None`` if `ask` is false or if torch cannot report them.
    """
    cuda = _cuda() if ask else None
    values: dict[str, float | None] = dict.fromkeys(_ALLOCATOR)
    if cuda is None:
        return values
    try:
        statistics = cuda.memory_stats_as_nested_dict(int(device.removeprefix("gpu")))
        return {metric: float(statistics[name]["all"]["current"]) for metric, name in _ALLOCATOR.items()}
    except Exception:  # a device that torch does not see, or another allocator
        return values


def _cuda() -> Any:
    """Return torch's CUDA module, or ``None`` if torch is not loaded or has not initialised CUDA.

    Calling this function does not load or initialise anything.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        # is_available() would initialise the driver, and processes forked after that could not use the GPU.
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # torch may be half loaded
        return None
