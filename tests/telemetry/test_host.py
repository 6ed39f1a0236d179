"""The machine's figures: exact from files that are known, and each field may fail alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfnb.telemetry.sampler import host as host_sensors
from perfnb.telemetry.sampler.host import HostSource

pytestmark = pytest.mark.usefixtures("nothing_left")

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's files")

S = 10**9
TICK = os.sysconf("SC_CLK_TCK")

#: A system without Linux's files: psutil is asked.
NOTHING = "/nothing"

RATES = (
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "network_receive_bytes_per_s",
    "network_send_bytes_per_s",
)


@pytest.fixture
def every_disk_is_whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    host_sensors._is_whole_disk.cache_clear()
    monkeypatch.setattr(host_sensors, "_BLOCK", "/nowhere")
    yield
    host_sensors._is_whole_disk.cache_clear()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a folder in place of ``/proc``."""
    (tmp_path / "net").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\n")
    say(tmp_path)
    return tmp_path


def say(
    proc: Path, busy: int = 0, idle: int = 0, disks: tuple[str, ...] = (), interfaces: tuple[str, ...] = ()
) -> None:
    # user (with guest), nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    some = busy // 6
    rest = busy - 5 * some
    busy_fields = f"{rest} {some} {some} {idle} {idle} {some} {some} {some} {rest} {some}"
    (proc / "stat").write_text(f"cpu  {busy_fields}\ncpu0 9 9 9 9 9 9 9 9 9 9\n")
    disks = disks or ("vda 0 0 0 0 0 0 0 0",)
    (proc / "diskstats").write_text("".join(f" 254   0 {disk} 0 0 0 0 0 0 0 0 0\n" for disk in disks))
    rows = interfaces or ("eth0: 0 0 0 0 0 0 0 0 0",)
    (proc / "net" / "dev").write_text("Inter-|\n face |\n" + "".join(f"  {row} 0 0 0 0 0 0 0\n" for row in rows))


@linux
@pytest.mark.usefixtures("every_disk_is_whole")
def test_the_figures_follow_from_the_files(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.25, 9.0, 9.0))
    source = HostSource(str(proc))
    first = source.read("host", S)
    assert first["memory_bytes"] == 600 * 1024
    assert first["load"] == 1.25
    assert [first[name] for name in ("cpu_percent", *RATES)] == [None] * 5

    disks = ("vda 1 1 20 1 1 1 40 1", "loop0 1 1 999 1 1 1 999 1", "dm-0 1 1 999 1 1 1 999 1", "zram0 1 1 9 1 1 1 9 1")
    say(proc, 3 * TICK, 50 * TICK, disks, ("lo: 9 0 0 0 0 0 0 0 9", " eth0:700 0 0 0 0 0 0 0 80"))
    second = source.read("host", 3 * S)
    assert second["cpu_percent"] == 150
    assert [second[name] for name in RATES] == [20 * 512 / 2, 40 * 512 / 2, 350, 40]
    assert source.notes == []
    source.close()


@linux
@pytest.mark.usefixtures("every_disk_is_whole")
def test_parts_that_come_go_or_start_anew_do_not_count(proc: Path) -> None:
    source = HostSource(str(proc))
    source.read("host", S)
    say(proc, TICK, interfaces=("eth0: 100 0 0 0 0 0 0 0 1", "docker0: 10000 0 0 0 0 0 0 0 10000"))
    assert source.read("host", 2 * S)["network_receive_bytes_per_s"] == 100
    say(proc, 0, interfaces=("eth0: 50 0 0 0 0 0 0 0 4", "docker0: 10005 0 0 0 0 0 0 0 10000"))
    third = source.read("host", 3 * S)
    assert (third["network_receive_bytes_per_s"], third["network_send_bytes_per_s"]) == (5, 3)
    assert third["cpu_percent"] is None
    say(proc, TICK, interfaces=("eth0: 60 0 0 0 0 0 0 0 4",))
    fourth = source.read("host", 4 * S)
    assert (fourth["network_receive_bytes_per_s"], fourth["cpu_percent"]) == (10, pytest.approx(100))
    source.close()


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("every_disk_is_whole")
@pytest.mark.parametrize("name", ["stat", "meminfo", "diskstats", "net/dev"])
@pytest.mark.parametrize("text", ["", "x", "cpu\n\n\n\n", "a b\nc d\ne: f\ng: h i\n", "\0" * 50])
def test_a_file_that_says_anything_else_costs_one_field(proc: Path, name: str, text: str) -> None:
    source = HostSource(str(proc))
    for second in (1, 2):
        say(proc)
        source.read("host", second * S)
    (proc / name).write_text(text)
    broken = [source.read("host", second * S) for second in (3, 4)][-1]
    field = {"stat": "cpu_percent", "meminfo": "memory_bytes", "diskstats": RATES[0], "net/dev": RATES[2]}[name]
    assert broken[field] is None
    assert len(source.notes) == 1
    assert source.notes[0].startswith("The host's ")
    assert sum(value is None for value in broken.values()) == (2 if field in RATES else 1)
    source.close()

    if name != "meminfo":  # at the start it is psutil that is asked instead
        (proc / "meminfo").write_text("")
        assert HostSource(str(proc)).read("host", S)["memory_bytes"] > 2**20


@pytest.mark.usefixtures("every_disk_is_whole")
def test_psutil_tells_where_there_are_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = 0

    def traffic(**_: bool) -> dict[str, SimpleNamespace]:
        each = SimpleNamespace(read_bytes=grown, write_bytes=2 * grown, bytes_recv=3 * grown, bytes_sent=4 * grown)
        return {"disk0": each, "en0": each, "lo0": each}

    class Times(SimpleNamespace):
        _fields = ("user", "nice", "system", "idle")

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(user=grown / 100, nice=0.0, system=1.0, idle=7.0 * grown))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1000, available=400))
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: {"disk0": traffic()["disk0"]})
    monkeypatch.setattr(psutil, "net_io_counters", traffic)
    source = HostSource(NOTHING)
    assert source.facts("host") == {"cpus": os.cpu_count(), "memory_bytes": 1000}
    source.read("host", S)
    grown = 100
    values = source.read("host", 2 * S)
    assert values["cpu_percent"] == pytest.approx(100)
    assert values["memory_bytes"] == 600
    assert [values[name] for name in RATES] == [100, 200, 600, 800]
    assert source.notes == []


@pytest.mark.parametrize("fails", [None, OSError("gone"), NotImplementedError(), RuntimeError("odd"), KeyError("x")])
def test_each_field_may_fail_alone_with_one_note(monkeypatch: pytest.MonkeyPatch, fails: Exception | None) -> None:
    def reader(*_: object, **__: object) -> None:
        if fails:
            raise fails

    broken = {"cpu_times": "CPU time", "virtual_memory": "memory", "disk_io_counters": "disk", "net_io_counters": "net"}
    for count, name in enumerate(broken, 1):
        monkeypatch.setattr(psutil, name, reader)
        source = HostSource(NOTHING)
        values = [source.read("host", second * S) for second in (1, 2)][-1]
        assert len(source.notes) == count
        assert all(note.startswith("The host's ") and note.endswith(".") for note in source.notes)
        assert values["load"] is not None
        assert (values["memory_bytes"] is None) == (count > 1)
        assert source.facts("host")["cpus"] == os.cpu_count()
    monkeypatch.setattr(os, "getloadavg", reader)
    assert set(HostSource(NOTHING).read("host", S).values()) == {None}


@pytest.mark.usefixtures("every_disk_is_whole")
def test_partitions_and_stacked_disks_are_no_disks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_sensors, "_BLOCK", str(tmp_path))
    for name in ("sda", "nvme0n1", "dm-0", "md127", "loop3", "cciss!c0d0"):
        (tmp_path / name).mkdir()
    names = ("sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0", "md127", "loop3", "cciss/c0d0")
    whole = [name for name in names if host_sensors._is_whole_disk(name)]
    assert whole == ["sda", "nvme0n1", "cciss/c0d0"]


def test_psutil_is_asked_for_the_same_of_this_machine() -> None:
    source = HostSource()
    assert source.read("host", S)["memory_bytes"] > 0
    assert source.facts("host")["memory_bytes"] == psutil.virtual_memory().total
    for name in ("disks", "interfaces"):
        ours, theirs = getattr(source, name), getattr(HostSource(NOTHING), name)
        try:
            assert ours().keys() == theirs().keys()
        except LookupError:
            pytest.skip(f"no {name}")
    source.close()
