"""The sampler keeps its ticks whatever the kernel does, and ends with it however that ends."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from perfnb.errors import CaptureError
from perfnb.telemetry import watcher as watcher_module
from perfnb.telemetry.sampler import loop
from perfnb.telemetry.sampler.process import SAMPLER
from perfnb.telemetry.sampler.source import Absent, DeviceFacts, Lost, Source, Values
from perfnb.telemetry.watcher import SamplerProcess, Watcher, _receive, running
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]


def hold_the_interpreter(seconds: int) -> None:
    """Sleep in C without letting other threads of this process run."""
    ctypes.PyDLL(None).sleep(seconds)


def own(watcher: Watcher, column: str, device: str = "process") -> np.ndarray:
    return watcher.columns()[device][column]


@pytest.mark.slow
def test_readings_come_on_one_clock_with_this_process() -> None:
    begin = time.perf_counter_ns()
    with Watcher(0.05) as watcher:
        time.sleep(0.5)
    end = time.perf_counter_ns()

    times = own(watcher, "t_s") * 1e9 + watcher.zero_ns
    assert begin < times[0]
    assert times[-1] < end
    assert (np.diff(times) > 0).all()
    assert np.isnan(own(watcher, "window_s")[0])
    np.testing.assert_allclose(own(watcher, "window_s")[1:], np.diff(own(watcher, "t_s")), rtol=1e-9)
    assert (own(watcher, "read_ms") > 0).all()
    assert not watcher.running


def test_what_does_not_fit_into_the_pipe_is_kept_and_sent_later() -> None:
    reader, writer = os.pipe()
    outbox = loop.Outbox(writer)
    for tick in range(3_000):
        assert outbox.send({"rows": [["host", tick, tick, {"cpu_percent": 1.0}]]})
    assert outbox.waiting

    received = b""
    while outbox.waiting or not received.endswith(b"]}\n"):
        received += os.read(reader, 1 << 20)
        outbox.push()
        if received.count(b"\n") == 3_000:
            break
    assert [json.loads(line)["rows"][0][1] for line in received.splitlines()] == list(range(3_000))
    os.close(reader)
    os.close(writer)


def test_too_much_that_waits_is_refused_and_lost_readings_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    outbox = loop.Outbox(writer)
    outbox.waiting = bytearray(b" " * 101)
    monkeypatch.setattr(loop, "MOST_WAITING_BYTES", 100)
    assert not outbox.send({"rows": []})
    outbox.lost = 2
    outbox.waiting = bytearray(b" " * 99 + b"\n")
    assert outbox.send({"note": "words"})
    assert outbox.send({"rows": []})
    assert outbox.send({"rows": []})
    lines = os.read(reader, 1000).splitlines()
    assert [json.loads(line) for line in lines[1:]] == [{"note": "words"}, {"rows": [], "unsent": 2}, {"rows": []}]
    assert outbox.lost == 0
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("writable", [[], [5]])
def test_all_that_waits_is_sent_in_the_end_unless_that_takes_too_long(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, writable: list[int]
) -> None:
    reader, writer = os.pipe()
    outbox = loop.Outbox(writer)
    outbox.waiting = bytearray(b"x" * 1000)
    asked: list[float] = []

    def select(_: list[int], pipes: list[int], __: list[int], rest: float) -> tuple[list[int], ...]:
        assert pipes == [writer]
        asked.append(round(rest, 3))
        clock.now_ns += 3 * 10**8
        return [], writable if len(asked) > 1 else [], []

    monkeypatch.setattr(loop.select, "select", select)
    outbox.flush(1.0)

    assert asked == ([1.0, 0.7] if writable else [1.0, 0.7, 0.4, 0.1])
    assert len(outbox.waiting) == (0 if writable else 1000)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("stops", "parent", "until_s", "goes_on", "waited"),
    [
        (None, 7, 2.5, True, [1.0, 1.0, 0.5, 0.0]),
        (None, 7, -1.0, True, [0.0]),
        (1, 7, 2.5, False, [1.0, 1.0]),  # it has to stop
        (None, 8, 2.5, False, []),  # its parent has ended
    ],
)
def test_the_sampler_waits_for_the_next_tick_unless_it_must_stop(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    stops: int | None, parent: int, until_s: float, goes_on: bool, waited: list[float],
) -> None:  # fmt: skip
    box, told, pushed = _Sent([], 0), list[float](), list[int]()
    monkeypatch.setattr(os, "getppid", lambda: 7)
    monkeypatch.setattr(box, "push", lambda: pushed.append(len(told)))
    box.waiting = bytearray(b"x")

    def select(
        inputs: list[int], pipes: list[int], _: list[int], rest: float
    ) -> tuple[list[int], list[int], list[int]]:
        assert (inputs, pipes) == ([0], [-1] if len(told) < 2 else [])
        told.append(round(rest, 3))
        clock.now_ns += round(rest * 1e9)
        if len(told) == 2:
            box.waiting.clear()
        return [0] if stops is not None and len(told) > stops else [], pipes if len(told) == 1 else [], []

    monkeypatch.setattr(loop.select, "select", select)
    sampler = loop.Sampler([], {}, box, 0.5, parent)
    assert sampler._wait(clock.now_ns + round(until_s * 1e9)) == goes_on
    assert told == waited
    assert pushed == [1] * bool(waited)


class _Source(Source):
    """A source with one device that records whether it was closed."""

    name = "GPU"
    closed = False

    def facts(self, device: str) -> DeviceFacts:
        return {}

    def read(self, device: str, now_ns: int) -> Values:
        return {}

    def close(self) -> None:
        self.closed = True


def test_a_source_that_fails_leaves_the_others_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> Any:
        raise Absent("no driver \udcff")

    def fails(*_: Any) -> Any:
        raise KeyError("odd")

    given: list[Any] = []
    host, gpu = _Source(), type("AmdSource", (_Source,), {"__init__": lambda self, visible: given.append(visible)})
    of = "perfnb.telemetry.sampler"
    monkeypatch.setattr(f"{of}.nvml.NvmlSource", absent)
    monkeypatch.setattr(f"{of}.process.ProcessSource", lambda pid, own: (given.extend((pid, own)), fails())[1])
    monkeypatch.setattr(f"{of}.cgroup.CgroupSource", absent)
    monkeypatch.setattr(f"{of}.host.HostSource", lambda: host)
    monkeypatch.setattr(f"{of}.amd.AmdSource", gpu)
    config = {"visible": "0", "hip_visible": "1", "watched": 5}
    reasons = {"process": "process: cannot be read: KeyError: 'odd'", "cgroup": "cgroup: no driver ?"}

    monkeypatch.setattr(f"{of}.amd.is_likely", lambda: False)
    assert loop.open_sources(config) == ([host], {"GPU": "GPU: no driver ?", **reasons})
    monkeypatch.setattr(f"{of}.amd.is_likely", lambda: True)
    sources, why = loop.open_sources(config)
    assert ([type(source) for source in sources], why) == ([gpu, _Source], reasons)  # nobody misses another driver
    assert given == [5, os.getpid(), "1", 5, os.getpid()]
    monkeypatch.setattr(f"{of}.amd.AmdSource", type("Broken", (), {"__new__": fails}))
    assert loop.open_sources(config) == (
        [host],
        {"AMD GPU": "AMD GPU: cannot be read: KeyError: 'odd'", "GPU": "GPU: no driver ?", **reasons},
    )


@pytest.mark.parametrize("error", [None, BrokenPipeError(), ZeroDivisionError()])
def test_sources_are_closed_however_the_sampler_ends(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, made, ignored = [_Source(), _Source()], list[Any](), list[Any]()

    class Sampler:
        def __init__(self, *given: Any) -> None:
            made.extend(given)

        def run(self) -> None:
            if error is not None:
                raise error

    monkeypatch.setattr(loop, "Sampler", Sampler)
    monkeypatch.setattr(loop, "Outbox", lambda pipe: f"outbox {pipe}")
    monkeypatch.setattr(loop, "open_sources", lambda config: (sources, {"x": "no x"}))
    monkeypatch.setattr(loop.signal, "signal", lambda *given: ignored.extend(given))
    with pytest.raises(type(error)) if isinstance(error, ZeroDivisionError) else nullcontext():
        loop.main({"interval_s": 0.5, "parent": 7})
    assert made == [sources, {"x": "no x"}, "outbox 1", 0.5, 7]
    assert ignored == [signal.SIGINT, signal.SIG_IGN]
    assert [source.closed for source in sources] == [True, True]


def test_a_reading_that_takes_long_misses_ticks_and_says_so(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        name, notes = "slow", list[str]()

        def read(self, device: str, now_ns: int) -> Values:
            time.sleep(0.13 if len(sent) == 2 else 0.0)
            return {"load": 1.0}

        def devices(self) -> list[str]:
            return ["host"]

        def facts(self, device: str) -> dict[str, float]:
            return {}

        def close(self) -> None:
            pass

    sent: list[dict] = []
    box = _Sent(sent, until=5)
    _stopped_by(box, monkeypatch)
    loop.Sampler([Slow()], {}, box, 0.05, os.getppid()).run()  # type: ignore[arg-type]

    rows = [message for message in sent if "rows" in message]
    assert [row["missed"] for row in rows][:4] == [0, 0, 2, 0]
    zero = sent[0]["hello"]["zero_ns"]
    assert [row["due"] - zero for row in rows][:4] == [0, 50_000_000, 200_000_000, 250_000_000]
    assert box.lost == sum(sent.index(row) % 2 == 0 for row in rows) > 0


@pytest.mark.parametrize(("gap_ns", "readings"), [(49_999_999, 1), (50_000_000, 2)])
def test_a_last_reading_is_taken_unless_the_one_before_is_too_recent(
    gap_ns: int, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, flushed, now, goes_on = list[dict[str, Any]](), list[float](), 10**9, iter([True, False])
    box = _Sent(sent, until=9)

    def wait(sampler: loop.Sampler, until: int) -> bool:
        nonlocal now
        going = next(goes_on)
        now += 0 if going else gap_ns
        return going

    monkeypatch.setattr(box, "flush", flushed.append)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now)
    monkeypatch.setattr(loop.Sampler, "_wait", wait)
    loop.Sampler([_Source()], {}, box, 0.5, os.getppid()).run()
    due = [message["due"] - sent[0]["hello"]["zero_ns"] for message in sent if "rows" in message]
    assert (due, flushed) == ([0, gap_ns][:readings], [2.0])


def test_a_device_that_is_lost_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        name, notes = "two", ["one note"]

        def read(self, device: str, now_ns: int) -> Values:
            if device == "gone" and len(sent) > 3:
                raise Lost("it fell off the bus")
            if device == "broken" and len(sent) > 3:
                raise ZeroDivisionError("a fault")
            return {"load": 1.0}

        def devices(self) -> list[str]:
            return ["gone", "broken", "there"]

        def facts(self, device: str) -> dict[str, float]:
            return {}

        def close(self) -> None:
            pass

    sent: list[dict] = []
    box = _Sent(sent, until=9)
    _stopped_by(box, monkeypatch)
    loop.Sampler([Two()], {}, box, 0.02, os.getppid()).run()  # type: ignore[arg-type]

    assert {"note": "one note"} in sent
    assert {"lost": "gone", "note": "it fell off the bus"} in sent
    assert {"lost": "broken", "note": "broken can no longer be read: ZeroDivisionError: a fault"} in sent
    assert [row[0] for row in sent[-1]["rows"]] == ["there"]


class _Sent(loop.Outbox):
    """Keeps what is sent, of which every other message is refused, and has the sampler stop after some messages."""

    def __init__(self, messages: list[dict], until: int) -> None:
        self.messages, self.until = messages, until
        self.pipe, self.waiting, self.lost = -1, bytearray(), 0

    def send(self, message: dict) -> bool:
        self.messages.append(message)
        return len(self.messages) % 2 == 0

    def flush(self, most_s: float) -> None:
        pass


def _stopped_by(box: _Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(until: int) -> bool:
        time.sleep(max(0.0, (until - time.perf_counter_ns()) / 1e9))
        return len(box.messages) < box.until

    monkeypatch.setattr(loop.Sampler, "_wait", lambda self, until: wait(until))


def test_a_sampler_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.telemetry.watcher._BOOT", "raise ImportError('no module named psutil')")
    with pytest.raises(CaptureError, match="sent no reading: ImportError: no module named psutil"):
        Watcher(0.5)


@pytest.mark.parametrize("interval", [True, "1", None, 0.0, -1.0, 0.0199, 3600.1, float("nan")])
def test_an_interval_that_is_not_a_number_or_out_of_bounds_is_refused(interval: Any) -> None:
    error, must = (ValueError, "between 0.02 and 3600") if isinstance(interval, float) else (TypeError, "a number of")
    with pytest.raises(error, match=f"interval_s must be {must} seconds"):
        Watcher(interval)


def test_the_sampler_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "pandas", "matplotlib", "IPython")
    config = {"parent": os.getpid(), "watched": os.getpid(), "visible": None, "hip_visible": None}
    code = f"import sys, perfnb.telemetry.sampler.loop as loop; loop.open_sources({config})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print([name for name in {heavy!r} if name in sys.modules])"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_nothing_odd_of_the_users_process_gets_into_the_sampler(tmp_path: Path) -> None:
    """A module next to the notebook, odd entries of the path, a process name that is no text, a folder that is gone."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "psutil.py").write_text("raise RuntimeError('not the real one')")
    code = (
        f"import os, pathlib, sys; sys.path[:] = ['', pathlib.Path('/nowhere'), *sys.path[1:], {str(ROOT)!r}]\n"
        "open('/proc/self/comm', 'wb').write(b'abc\\xff\\xc3')\n"
        "import perfnb.telemetry.watcher as w\n"
        "with w.Watcher(0.5) as watcher: print(*watcher.columns())\n"
        "try: import psutil\n"
        "except RuntimeError as error: print(error)\n"
        "import shutil; shutil.rmtree(os.getcwd())\n"
        "with w.Watcher(0.5) as watcher: print(*watcher.columns())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    first, shadowed, second = done.stdout.splitlines() or (done.stderr, "", "")
    assert shadowed == "not the real one"
    assert {"host", "process"} <= set(first.split()) & set(second.split()), done.stderr


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.usefixtures("feeders_end")
def test_forked_workers_under_watch_do_not_hang() -> None:
    with Watcher(0.02) as watcher:
        for _ in range(50):
            loader = DataLoader(torch.arange(8.0), batch_size=2, num_workers=2)
            assert len(list(loader)) == 4
    assert watcher.meta["ticks"] > 1


def test_a_forked_process_has_no_part_in_the_watch(workers: Callable[[], list[psutil.Process]]) -> None:
    with Watcher(0.05) as watcher:
        context = multiprocessing.get_context("fork")
        with context.Pool(1) as pool:
            assert pool.apply(_state_in_child, (id(watcher),)) is True
            pool.close()
            pool.join()
        assert watcher.running


def _state_in_child(_: int) -> bool:
    watchers = [thing for thing in gc.get_objects() if type(thing) is Watcher]
    for watcher in watchers:
        watcher.stop()  # ends nothing
        watcher.history.columns()
    return all(watcher._process is None for watcher in watchers)


#: For tests/accuracy: the most processes that one of two watches sees, the CPU time that it reads, and the time used.
TWO_WATCHES = """
import time
import numpy as np
from perfnb.telemetry.watcher import SamplerProcess, Watcher, _receive, running
with Watcher(0.05) as outer:
    begun = time.process_time()
    time.sleep(0.3)
    with Watcher(0.02):
        time.sleep(0.6)
    time.sleep(0.4)
    own_s = time.process_time() - begun
columns = outer.columns()["process"]
print(max(columns["processes"]), np.nansum(columns["cpu_percent"] * columns["window_s"]) / 100, own_s)
"""


def test_the_word_by_which_samplers_are_known_stands_in_their_command() -> None:
    with Watcher(0.5) as watcher:
        assert watcher._process is not None
        assert SAMPLER.decode() in " ".join(psutil.Process(watcher._process.process.pid).cmdline())


FIRST, SECOND = "GPU-11", "GPU-aa"
HELLO = {"hello": {"devices": {"host": {"cores": 2}, FIRST: {}, SECOND: {}}, "absent": {"x": "no x"}, "zero_ns": 10**9}}
MS = 10**6


def reading(at_ms: float, missed: int = 0, late_ms: float = 0.0, **values: dict[str, float]) -> dict[str, Any]:
    """Return what the sampler sends for a tick: each device is read for 2 ms."""
    before = round(10**9 + at_ms * MS)
    rows = [[key, before, before + 2 * MS, dict(row)] for key, row in values.items()]
    return {"rows": rows, "due": before - round(late_ms * MS), "missed": missed, "cpu": 3 * MS, "unsent": 1}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a sampler sends that is no process: `Watcher` takes this in when it starts."""
    messages: list[Any] = [HELLO, reading(0, host={"cpu_percent": 10.0})]

    class Sampler:
        def __init__(self, interval_s: float, taker: Any, pid: int) -> None:
            self.ended, self.asked_to_end, self._taker = False, False, taker
            for message in messages:
                taker()(message)

        def end(self) -> None:
            self.asked_to_end = True
            if not self.ended:
                self._taker()(None)
            self.ended = True

        def last_words(self) -> str:
            return "a last word"

    monkeypatch.setattr("perfnb.telemetry.watcher.SamplerProcess", Sampler)
    return messages


def test_readings_become_columns_on_the_time_of_the_first(sent: list[Any]) -> None:
    with Watcher(0.5) as watcher:
        taken: list[Any] = []
        watcher.on_rows = taken.append
        take = watcher._take
        take(reading(500, 0, 4.0, host={"cpu_percent": 30.0}, **{SECOND: {"busy_percent": 50.0}}))
        take({"note": "a note"})
        take(reading(1250, 2, host={"cpu_percent": 20.0}, **{SECOND: {"busy_percent": 70.0}}))
        assert watcher.running
        assert running() == 1
        columns, meta = watcher.columns(), watcher.meta
    assert list(columns) == ["host", "gpu1"]  # nothing came of the other
    host = columns["host"]
    assert host["t_s"].tolist() == [0.0, 0.5, 1.25]
    assert host["window_s"].tolist()[1:] == [0.5, 0.75]
    assert np.isnan(host["window_s"][0])
    assert host["read_ms"].tolist() == [2.0] * 3
    assert host["late_ms"].tolist() == [0.0, 4.0, 0.0]
    assert host["missed_ticks"].tolist() == [0.0, 0.0, 2.0]
    assert host["cpu_percent"].tolist() == [10.0, 30.0, 20.0]
    assert columns["gpu1"]["busy_percent"].tolist() == [50.0, 70.0]
    assert [[row[:3] for row in rows] for rows in taken] == [
        [("host", 0.5, 0.5), ("gpu1", 0.5, None)],
        [("host", 1.25, 0.75), ("gpu1", 1.25, 0.75)],
    ]
    assert taken[0][1][3] == {"busy_percent": 50.0, "torch_allocated_bytes": None, "torch_reserved_bytes": None}
    assert (meta["ticks"], meta["missed"], meta["unsent"], meta["sampler_cpu_s"]) == (3, 2, 3, 0.003)
    assert (meta["devices"], meta["absent"]) == ({"host": {"cores": 2}, "gpu0": {}, "gpu1": {}}, {"x": "no x"})
    assert (meta["notes"], meta["running"], meta["interval_s"]) == (["a note"], True, 0.5)
    assert not watcher.running
    assert running() == 0
    assert watcher.notes == ["a note"]  # it was asked to end
    watcher._ended_ns = 4 * 10**9
    assert watcher.meta["sampler_lived_s"] == 3.0


def test_the_time_since_the_first_reading_is_that_of_the_readings(sent: list[Any], clock: FakeClock) -> None:
    with Watcher(0.5) as watcher:
        watcher.zero_ns = clock.now_ns - 10**18  # long ago
        assert 10**9 <= watcher.now_s() < 10**9 + 0.5


def test_a_view_that_fails_ends_alone(sent: list[Any]) -> None:
    with Watcher(0.5) as watcher:
        calls: list[int] = []

        def view(rows: Any) -> None:
            calls.append(len(rows))
            raise ValueError("no panel")

        watcher.on_rows = view
        watcher._take(reading(500, host={}))
        watcher._take(reading(1000, host={}))
    assert calls == [1]
    assert watcher.notes == ["The live view stopped: ValueError: no panel"]
    assert watcher.meta["ticks"] == 3


def test_a_sampler_that_ends_by_itself_is_noted_and_the_view_learns_of_it(sent: list[Any]) -> None:
    with Watcher(0.5) as watcher:
        taken: list[Any] = []
        watcher.on_rows = taken.append
        watcher._take(None)
        assert watcher.notes == ["The sampler ended by itself after 1 readings: a last word."]
        assert taken == [[]]


def test_a_forked_process_lets_go_of_the_sampler_and_has_locks_of_its_own(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, told = Watcher(0.5), list[str]()
    monkeypatch.setattr(watcher._process, "forget_in_child", lambda: told.append("forgotten"), raising=False)
    assert watcher._stopping.acquire(blocking=False)  # as by a thread that does not exist in the other process
    assert watcher.history._lock.acquire(blocking=False)

    watcher_module._forget_all_in_child()

    assert (told, watcher.running, running()) == (["forgotten"], False, 0)
    assert not watcher._stopping.locked()
    assert not watcher.history._lock.locked()
    watcher.forget_in_child()  # nothing is left to forget


def test_a_forked_process_closes_its_ends_of_the_pipes_and_does_not_wait_for_the_sampler() -> None:
    process: Any = object.__new__(SamplerProcess)
    process.process, process._finalizer = Mock(), Mock()
    process.forget_in_child()
    assert process.process.returncode == 0
    for called in (process._finalizer.detach, process.process.stdin.close, process.process.stdout.close):
        called.assert_called_once_with()


@pytest.mark.parametrize("messages", [[None], [HELLO | {"hello": HELLO["hello"] | {"devices": {}}}, None]])
def test_a_sampler_without_a_reading_is_an_error(messages: list[Any], sent: list[Any]) -> None:
    sent[:] = messages
    with pytest.raises(CaptureError, match=r"^The sampler's process sent no reading: a last word\.$"):
        Watcher(0.5)


@pytest.mark.parametrize(
    ("uuids", "names", "renamed"),
    [
        (["GPU-AA", "GPU-11"], {SECOND: "gpu0", FIRST: "gpu1"}, 1),
        (["GPU-11", "GPU-aa"], {FIRST: "gpu0", SECOND: "gpu1"}, 0),
        (["GPU-22", "GPU-aa", "GPU-33"], {SECOND: "gpu1", FIRST: "gpu3"}, 1),
        (["GPU-22"], {FIRST: "gpu0", SECOND: "gpu1"}, 0),
        (["GPU-61-61"], {FIRST: "gpu1", SECOND: "gpu0"}, 1),  # ROCm writes the codes of the characters: aa
    ],
)
def test_gpus_are_named_and_measured_as_torch_does(
    uuids: list[str], names: dict[str, str], renamed: int, sent: list[Any], monkeypatch: pytest.MonkeyPatch,
    clock: FakeClock,
) -> None:  # fmt: skip
    held = {"allocated_bytes": {"all": {"current": 5}}, "reserved_bytes": {"all": {"current": 9}}}
    properties = [SimpleNamespace(uuid=uuid.removeprefix("GPU-")) for uuid in uuids]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda place: held)
    with Watcher(0.5) as watcher:
        taken: list[Any] = []
        watcher.on_rows = taken.append
        asked_ms = (clock.now_ns - 10**9) / MS
        watcher._take(reading(asked_ms - 90, **{FIRST: {}, SECOND: {}}))
        watcher._take(reading(asked_ms - 110, **{FIRST: {}}))  # waited for too long
    torch_knows = names if len(uuids) > 1 or renamed else None
    assert {row[0] for row in taken[0]} == set(names.values())
    assert taken[1][0][0] == names[FIRST]
    assert watcher.renamed == renamed
    expected = {"torch_allocated_bytes": 5.0, "torch_reserved_bytes": 9.0}
    unknown = dict.fromkeys(expected)
    assert taken[0][0][3] == (expected if torch_knows else unknown)
    assert taken[1][0][3] == unknown


def test_a_sampler_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(CaptureError, match=r"process cannot be started: \[Errno 12\] Cannot allocate memory\.$"):
        Watcher(0.5)


def test_the_sampler_gets_its_targets_and_starts_without_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    told: list[Any] = []

    def start(command: list[str], **_: Any) -> Any:
        told.append(json.loads(command[-1]))
        told.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        return SimpleNamespace(stdin=io.BytesIO(), stdout=os.fdopen(reader, "rb", 0), wait=lambda seconds: None)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    process = SamplerProcess(0.25, lambda: told.append, 7)
    config, blocked = told
    path = config.pop("path")
    gpus = {"visible": "1", "hip_visible": "1"}
    assert config == {"interval_s": 0.25, "parent": os.getpid(), "watched": 7} | gpus
    assert (path[0], len(path)) == (sysconfig.get_paths()["stdlib"], len(set(path) - {""}))
    assert (blocked, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])) == (True, False)
    if sys.platform.startswith("linux"):
        assert fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) > 2**16  # the usual size
    os.close(writer)
    process.thread.join(60)
    assert (process.ended, told[2:]) == (True, [None])


@pytest.mark.parametrize(("alive", "killed"), [([False], False), ([True, False], True)])
def test_a_sampler_that_does_not_end_is_killed(
    alive: list[bool], killed: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(time, "monotonic", clock.perf_counter)
    process = object.__new__(SamplerProcess)
    process.process = SimpleNamespace(stdin=io.BytesIO(), kill=lambda: told.append("killed"))  # type: ignore[assignment]
    process.process.stdin.close()  # it has ended already, perhaps
    process._finalizer = lambda: told.append("closed")  # type: ignore[assignment, return-value, misc]
    process.thread = SimpleNamespace(  # type: ignore[assignment]
        join=lambda seconds: told.append(round(seconds, 3)), is_alive=lambda: alive[0]
    )
    assert process.ended is not alive[0]
    process.end()
    assert process.asked_to_end
    assert told == ["closed", 5.0, *["killed", 5.0] * killed]


@pytest.mark.parametrize("ends", [True, False])
def test_messages_are_taken_until_the_pipe_ends(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"a":1}\n{"b":"' + "é".encode() * 9 + b'"}\nrest')
    os.close(writer)
    read, told, words, errors = os.read, list[Any](), list[str](), tempfile.TemporaryFile()  # noqa: SIM115
    monkeypatch.setattr(os, "read", lambda file, _: read(file, 5))
    errors.write(b"first\nlast \xff\n\n")

    def wait(seconds: float | None = None) -> None:
        told.append("wait")
        if not ends and seconds is not None:
            raise subprocess.TimeoutExpired("sampler", seconds)

    process: Any = SimpleNamespace(stdin=io.BytesIO(), stdout=os.fdopen(reader, "rb"), wait=wait)
    process.kill = lambda: told.append("kill")
    _receive(process, errors, words, lambda: told.append)

    assert told == [{"a": 1}, {"b": "é" * 9}, "wait", *["kill", "wait"] * (not ends), None]
    assert words == ["last \ufffd"]
    assert errors.closed
    assert process.stdin.closed
    assert process.stdout.closed
