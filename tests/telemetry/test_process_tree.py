"""Which processes count, and since when: trees of processes that are known to the last byte."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfnb.telemetry.sampler import process
from perfnb.telemetry.sampler.process import SAMPLER, Portable, ProcessSource, ProcFiles, Seen
from perfnb.telemetry.sampler.source import Absent, Lost

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's files")

TICK = os.sysconf("SC_CLK_TCK")


class Files:
    """A folder that looks like ``/proc``; a process that vanishes leaves empty files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: dict[int, list[int]] = {}

    def put(self, pid: int, parent: int, ticks: int = 0, **had: int | str) -> None:
        place = self.folder / str(pid) / "task" / str(pid)
        place.mkdir(parents=True, exist_ok=True)
        stat = ["0"] * 40
        stat[0], stat[1], stat[19] = str(had.get("state", "S")), str(parent), str(had.get("begun", 7))
        reaped = int(had.get("reaped", 0))
        stat[11:15] = map(str, (ticks - ticks // 3, ticks // 3, reaped // 4, reaped - reaped // 4))
        (place.parents[1] / "statm").write_text(f"9 {had.get('pages', 1)} 0 0 0 0 0\n")
        (place.parents[1] / "stat").write_text(f"{pid} (a) b (c) {' '.join(stat)}\n")
        (place.parents[1] / "io").write_text(f"rchar: 1\nread_bytes: {had.get('read', 0)}\nwrite_bytes: 5\n")
        children = self.children.setdefault(parent, [])
        children += [pid] if pid not in children else []
        self._list(parent)
        self._list(pid)

    def vanish(self, pid: int) -> None:
        for name in ("stat", "statm", "io"):
            (self.folder / str(pid) / name).write_text("")
        for parent, children in self.children.items():
            if pid in children:
                children.remove(pid)
                self._list(parent)

    def _list(self, pid: int) -> None:
        if (place := self.folder / str(pid) / "task" / str(pid)).exists():
            (place / "children").write_text("".join(f"{child} " for child in self.children.get(pid, ())))


class Told:
    """A source over such a folder, read once a second: CPU seconds since, processes, bytes read since."""

    def __init__(self, files: Files, without: int = 0) -> None:
        self.source = ProcessSource(1, without, str(files.folder))
        self.now = 10**9

    def __call__(self) -> tuple[float | None, float | None, float | None]:
        self.now += 10**9
        self.source._search_took_ns = 0  # however slow the machine is, it may search
        values = self.source.read("process", self.now)
        cpu = values["cpu_percent"]
        return None if cpu is None else round(cpu / 100, 9), values["processes"], values["disk_read_bytes_per_s"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr("perfnb.telemetry.sampler.process._CORES", 4)
    files = Files(tmp_path)
    files.put(1, 0)
    return files


def test_the_tree_is_summed_without_the_sampler(files: Files) -> None:
    files.put(2, 1, pages=2)
    files.put(3, 2, pages=4)
    files.put(4, 1, pages=8)
    files.put(5, 4, pages=16)
    told = Told(files, without=4)
    assert told() == (None, 3, None)
    for pid, parent in ((2, 1), (3, 2), (4, 1), (5, 4)):
        files.put(pid, parent, TICK, read=1000)
    assert told() == (2.0, 3, 2000.0)
    assert told.source.read("process", told.now + 1)["memory_bytes"] == 3 * os.sysconf("SC_PAGE_SIZE")


def test_another_process_with_the_number_of_an_ended_one_is_not_counted(files: Files) -> None:
    files.put(2, 1, TICK)
    files.put(3, 1, TICK)
    told = Told(files)
    told()
    files.put(1, 0, reaped=2 * TICK)
    for pid in (2, 3):
        files.vanish(pid)
    files.put(2, 99, 50 * TICK, begun=8)  # elsewhere
    files.put(3, 99, 50 * TICK)  # by its times the same, but no longer below
    assert told() == (0.0, 1, 0.0)
    files.put(2, 1, TICK, begun=8)  # below, but new: what it used before the last reading does not count
    told()
    assert told() == (0.0, 2, 0.0)

    files.put(1, 0, begun=8)
    with pytest.raises(Lost):
        told()


def test_a_sum_that_falls_is_unknown_once_and_what_rounding_takes_is_none(files: Files) -> None:
    files.put(2, 1, 10 * TICK, read=500)
    files.put(3, 1, 10 * TICK)
    told = Told(files)
    told()
    files.vanish(2)
    files.put(1, 0, reaped=10 * TICK - 2, read=500)
    assert told() == (0.0, 2, 0.0)
    files.vanish(3)  # its parent does not wait for it: what it had is lost
    files.put(1, 0, reaped=10 * TICK - 2, read=300)
    assert told() == (None, 1, None)
    files.put(1, 0, reaped=11 * TICK - 2, read=400)
    assert told() == (1.0, 1, 100.0)


def test_a_worker_that_ends_between_two_looks_counts_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put(2, 1, 10 * TICK, read=500)
    told = Told(files)
    told()
    see = ProcFiles.see

    def see_and_end(self: ProcFiles, pid: int) -> Seen | None:
        seen = see(self, pid)
        if pid == 1 and files.children[1]:  # the parent has been read, and takes the worker's figures over now
            files.vanish(2)
            files.put(1, 0, TICK, reaped=10 * TICK, read=500)
        return seen

    monkeypatch.setattr(ProcFiles, "see", see_and_end)
    assert told() == (1.0, 1, 0.0)


def test_an_ended_worker_whose_disk_traffic_is_hidden_keeps_what_was_known(files: Files) -> None:
    files.put(2, 1, read=500)
    told = Told(files)
    told()
    files.put(2, 1, read=700, state="Z")
    (files.folder / "2" / "io").write_text("")
    assert told() == (0.0, 1, 0.0)
    files.vanish(2)
    files.put(1, 0, read=700)
    assert told() == (0.0, 1, 200.0)
    assert told.source.notes == []


def test_a_reading_tells_no_more_than_the_cores_can_do(files: Files) -> None:
    told = Told(files)
    told()
    files.put(2, 1, 10 * TICK, begun=round(time.clock_gettime(time.CLOCK_BOOTTIME) * TICK))
    assert [told()[0] for _ in range(4)] == [4, 4, 2, 0]


def test_a_tree_is_searched_rarely_where_that_takes_long(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ProcessSource(1, 0, str(files.folder))
    searches: list[int] = []
    monkeypatch.setattr(source._table, "below", lambda *_: searches.append(1) or [])
    now = 10**12

    def searched(after_s: float, last_pid: bytes | None, took_ns: int = 0) -> int:
        nonlocal now
        now += round(after_s * 1e9)
        source._search_took_ns = took_ns
        monkeypatch.setattr(source._table, "last_pid", lambda: last_pid)
        searches.clear()
        source.read("process", now)
        return len(searches)

    assert searched(1, b"7") == 1
    assert searched(0.1, b"7") == 0
    assert searched(0.1, b"8") == 1  # something has started
    assert searched(0.1, b"9", took_ns=10**6) == 0
    assert searched(0.4, b"9", took_ns=10**6) == 1  # 500 times as long after the last search
    assert searched(0.1, None) == 0
    assert searched(0.5, None) == 1


def test_the_sampler_of_another_watch_is_followed_and_not_counted(files: Files) -> None:
    files.put(2, 1, 3 * TICK, read=30)
    files.put(3, 1, TICK)
    (files.folder / "2" / "cmdline").write_bytes(b"python\0-c\0" + SAMPLER + b"\0")
    told = Told(files)
    assert told() == (None, 2, None)
    files.put(2, 1, 7 * TICK, read=70)
    assert told() == (0.0, 2, 0.0)
    files.vanish(2)
    files.put(1, 0, TICK, reaped=7 * TICK, read=170)  # which includes all that the sampler had
    assert told() == (1.0, 2, 100.0)
    files.put(2, 1, begun=8)
    (files.folder / "2" / "cmdline").write_bytes(b"python\0")
    assert told() == (0.0, 3, 0.0)  # its number may belong to a worker later


def test_a_process_that_leaves_its_usage_to_nobody_keeps_counting(files: Files) -> None:
    files.put(2, 1, 5 * TICK, read=500)
    (files.folder / "3").mkdir()
    told = Told(files)
    told.source._table.inherits = False
    told()
    files.vanish(2)
    files.put(1, 0, TICK)
    assert told() == (1.0, 1, 0.0)
    assert told() == (0.0, 1, 0.0)
    files.put(4, 1, 2 * TICK, begun=9)
    (files.folder / "4" / "cmdline").write_bytes(SAMPLER)
    told()
    files.vanish(4)
    assert told() == (0.0, 1, 0.0)  # a sampler's usage was never part of it


def test_files_of_processes_stay_open_until_they_end(files: Files) -> None:
    files.put(2, 1)
    files.put(3, 1)
    (files.folder / "3" / "cmdline").write_bytes(SAMPLER)  # of another watch
    told = Told(files)
    told()
    told()
    held = told.source._table._kept._open  # type: ignore[attr-defined]
    assert sorted({path.split("/")[-2] for path in held}) == ["1", "2", "3"]
    files.vanish(2)
    files.vanish(3)
    told()
    assert {path.split("/")[-2] for path in held} == {"1"}
    told.source.close()
    assert held == {}


@pytest.mark.parametrize(
    ("hidden", "whose"), [((2,), "some of the watched processes"), ((1, 2), "the watched process")]
)
def test_disk_traffic_that_is_hidden_is_noted_once(files: Files, hidden: tuple[int, ...], whose: str) -> None:
    files.put(2, 1)
    told = Told(files)
    for pid in hidden:
        (files.folder / str(pid) / "io").write_text("")
    assert [told()[2], told()[2]] == ([None, 0.0] if hidden == (2,) else [None, None])
    assert told.source.notes == [f"The disk I/O of {whose} cannot be read."]


def of_psutil(pid: int, parent: int, **more: Any) -> SimpleNamespace:
    """Return a process as psutil shows it, with 3 s of its own and 12 s of children it has waited for."""
    times = SimpleNamespace(user=1.0, system=2.0, children_user=4.0, children_system=8.0)
    shown = {
        **{"pid": pid, "oneshot": nullcontext, "cpu_times": lambda: times, "create_time": lambda: 7.5},
        **{"ppid": lambda: parent, "status": lambda: "sleeping", "name": lambda: f"name {pid}"},
        **{"memory_info": lambda: SimpleNamespace(rss=4096), "cmdline": lambda: ["python", "-c", "é"]},
        "io_counters": lambda: SimpleNamespace(read_bytes=5, write_bytes=6),
    }
    return SimpleNamespace(**shown | more)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[int, SimpleNamespace]:
    """Return the processes that psutil sees."""
    processes: dict[int, SimpleNamespace] = {}

    def look(pid: int) -> SimpleNamespace:
        if pid not in processes:
            raise process.psutil.NoSuchProcess(pid)
        return processes[pid]

    monkeypatch.setattr(process.psutil, "Process", look)
    return processes


def denied() -> Any:
    raise process.psutil.AccessDenied


@pytest.mark.parametrize(
    ("shown", "inherits", "seen"),
    [
        ({}, True, Seen(7.5, 1, False, 15e9, 4096, (5, 6))),
        ({}, False, Seen(7.5, 1, False, 3e9, 4096, (5, 6))),
        ({"status": lambda: "zombie"}, True, Seen(7.5, 1, True, 15e9, 4096, (5, 6))),
        ({"io_counters": denied}, True, Seen(7.5, 1, False, 15e9, 4096, None)),
        ({"io_counters": None}, True, Seen(7.5, 1, False, 15e9, 4096, None)),
        ({"cpu_times": denied}, True, None),
    ],
)
def test_psutil_shows_what_the_files_do(
    known: dict[int, SimpleNamespace], shown: dict[str, Any], inherits: bool, seen: Seen | None
) -> None:
    table = Portable()
    table.inherits = inherits
    known[2] = of_psutil(2, 1, **shown)
    if known[2].io_counters is None:  # as on macOS
        del known[2].io_counters
    assert table.see(2) == seen
    assert table.see(3) is None
    assert table.command(2) == "python\0-c\0é".encode()
    assert table.command(3) == b""
    assert table.last_pid() is None


def test_psutil_finds_the_tree_without_the_sampler(known: dict[int, SimpleNamespace], tmp_path: Path) -> None:
    below = [of_psutil(pid, parent) for pid, parent in ((2, 1), (3, 2), (4, 1), (5, 4), (6, 5), (8, 1))]
    below.insert(0, of_psutil(7, 1, ppid=denied))
    known[1] = of_psutil(1, 0, children=lambda recursive: below if recursive else below[:1])
    assert Portable().below(1, 4) == [2, 3, 8]
    assert Portable().below(1, 0) == [2, 3, 4, 5, 6, 8]
    assert Portable().below(9, 0) == []
    assert ProcFiles(1, str(tmp_path)).below(1, 4) == [2, 3, 8]  # a kernel without lists of children


def test_a_process_whose_files_cannot_be_read_is_asked_for_through_psutil(
    known: dict[int, SimpleNamespace], tmp_path: Path
) -> None:
    with pytest.raises(Absent, match=r"^process 1 does not exist or is not visible to this user$"):
        ProcessSource(1, 0, str(tmp_path))
    known[1] = of_psutil(1, 0, children=lambda recursive: [])
    source = ProcessSource(1, 0, str(tmp_path))
    assert source.facts("process") == {"pid": 1, "name": "name 1"}
    assert source.read("process", 10**9)["memory_bytes"] == 4096
    known.clear()
    assert source.facts("process") == {"pid": 1, "name": None}


def test_a_child_without_files_and_a_clock_that_is_gone_are_no_processes(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(2, 9)
    files.put(2, 1)
    table = ProcFiles(1, str(files.folder))
    (files.folder / "1" / "task" / "1" / "children").write_text("8 2 ")
    assert table.below(1, 0) == [8, 2]
    assert table.below(1, 8) == [2]
    assert (table.command(2), table.last_pid()) == (b"", None)
    (files.folder / "loadavg").write_text("0.1 0.2 0.3 1/99 4321\n")
    assert table.last_pid() == b"4321"

    def clock(pid: int) -> int:
        if pid == 2:
            raise ProcessLookupError
        return 1234

    monkeypatch.setattr(process, "_exact_cpu_ns", clock)
    table._exact = True
    files.put(1, 0, 99 * TICK, reaped=2 * TICK)
    seen = table.see(1)
    assert seen is not None
    assert seen.cpu_ns == 1234 + 2e9
    assert table.see(2) is None


@pytest.mark.parametrize("text", ["", "1", "1 (x) S", "1 (x) " + "x " * 40, "\0" * 100, "1 (x " + "1 " * 40])
def test_files_that_say_anything_else_are_no_processes(files: Files, text: str) -> None:
    files.put(2, 1, TICK)
    told = Told(files)
    told()
    (files.folder / "2" / "stat").write_text(text)
    assert told()[1] == 1
    (files.folder / "1" / "io").write_text(text)
    assert told() == (0.0, 1, None)
    assert told.source.notes == ["The disk I/O of the watched process cannot be read."]
    (files.folder / "1" / "task" / "1" / "children").write_text(text)
    told()
    (files.folder / "1" / "stat").write_text(text)
    with pytest.raises(Lost):
        told()


@pytest.mark.parametrize(
    ("user", "system", "agrees"),
    [
        (6.0, 4.0, True),
        (6.0, 3.85, True),
        (6.15, 4.0, True),
        (6.0, 3.75, False),
        (6.25, 4.0, False),
        (4.0, 14.0, False),
    ],
)
def test_the_clock_of_a_process_is_used_only_if_it_agrees_with_its_ticks(
    user: float, system: float, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock says 10 s, and ticks of 10 ms and the time between both readings are no disagreement."""
    monkeypatch.setattr(process, "_exact_cpu_ns", lambda pid: 10 * 10**9)
    times = SimpleNamespace(user=user, system=system)
    monkeypatch.setattr(process.psutil, "Process", lambda pid: SimpleNamespace(cpu_times=lambda: times))

    assert ProcFiles._clock_agrees(None, 7) == agrees  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [OSError(), OverflowError(), AttributeError()])
def test_a_clock_that_cannot_be_read_is_not_used(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pid: int) -> int:
        raise error

    monkeypatch.setattr(process, "_exact_cpu_ns", fails)

    assert not ProcFiles._clock_agrees(None, os.getpid())  # type: ignore[arg-type]
