"""What files of the system tell of CPU and memory, whatever they say: planted trees, and this machine."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfnb.system.read import host
from perfnb.system.read.host import host_readers
from perfnb.system.read.reading import SystemTree, Unread, Unreadable, numbers_of, read_all, reason
from perfnb.telemetry.sampler.source import Absent

pytestmark = pytest.mark.usefixtures("nothing_left", "three_cpus")

CPU = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage"


@pytest.fixture
def three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may use CPUs 0 to 2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, **other: str) -> Path:
    """Return two cores of two threads each on two nodes."""
    files = {
        "proc/cpuinfo": "processor : 0\nflags\t\t: fpu hypervisor sse\n",
        f"{CPU}/intel_pstate/no_turbo": "0\n",
        f"{THP}/enabled": "always [madvise] never\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
        "sys/devices/system/node/node2/cpulist": "\n",  # memory without CPUs
    }
    for cpu in range(4):
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 2},{cpu % 2 + 2}\n"
        files[f"{CPU}/cpu{cpu}/thermal_throttle/core_throttle_count"] = f"{cpu}\n"
        policy = f"{CPU}/cpufreq/policy{cpu}"
        files[f"{policy}/scaling_governor"] = "powersave\n" if cpu else "performance\n"
        files[f"{policy}/scaling_driver"] = "intel_pstate\n"
        files[f"{policy}/energy_performance_preference"] = "balance_power\n"
        files[f"{policy}/scaling_max_freq"] = "2000000\n"
        files[f"{policy}/cpuinfo_max_freq"] = "3500000\n"
    files[f"{CPU}/cpu1/thermal_throttle/core_throttle_total_time_ms"] = "1500\n"
    files[f"{CPU}/cpu4/online"] = "0\n"  # one that is off counts nothing
    (root / "dev/shm").mkdir(parents=True)
    return plant(root, files | other)


def facts(root: Path, platform: str = "linux") -> dict[str, Any]:
    return read_all(host_readers(SystemTree(str(root), platform)))


def test_all_is_read(tmp_path: Path) -> None:
    told = facts(machine(tmp_path))

    shared, memory, swap, others = (told.pop(name) for name in ("shared_memory", "memory", "swap", "cpu_of_others"))
    assert others["percent"] >= 0
    assert others["cpus"] >= 1
    assert shared["total"] >= shared["free"] > 0
    assert memory["total"] > memory["available"] > 0
    assert swap["total"] >= swap["used"] >= 0
    assert told == {
        "governors": {"performance": 1, "powersave": 3},
        "frequency_drivers": {"intel_pstate": 4},
        "energy_preferences": {"balance_power": 4},
        "frequency_limits": [(2000.0, 3500.0)],
        "boost": True,
        "heat_events": 6,
        "heat_ms": 1500,
        "virtual": True,
        "cpus": 3,
        "cores": 2,
        "nodes": [(2, 2), (2, 1)],
        "cpu_limit": None,
        "throttled": Unread("no cgroup reports it"),
        "memory_limit": None,
        "huge_pages": "madvise",
        "platform": "linux",
    }


@pytest.mark.parametrize(("flags", "virtual"), [("fpu sse", False), ("fpu hypervisor", True)])
def test_a_virtual_machine_is_known_by_its_flag(tmp_path: Path, flags: str, virtual: bool) -> None:
    told = facts(machine(tmp_path, **{"proc/cpuinfo": f"processor : 0\nflags : {flags}\n"}))
    assert told["virtual"] is virtual


def test_an_arm_machine_does_not_tell_whether_it_is_virtual(tmp_path: Path) -> None:
    told = facts(machine(tmp_path, **{"proc/cpuinfo": "processor : 0\nFeatures : fp asimd\n"}))
    assert "does not show" in told["virtual"].why


def test_a_containers_limits_are_read(tmp_path: Path) -> None:
    root = machine(tmp_path)
    plant(
        root,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500\n",
            "sys/fs/cgroup/memory.max": "1048576\n",
            "sys/fs/cgroup/memory.current": "524288\n",
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 24288\n",
        },
    )
    told = facts(root)

    assert told["cpu_limit"] == 1.5
    assert told["throttled"] == (4, 2.5)
    assert told["memory_limit"] == (1048576, 500000)


def test_the_cpu_time_of_others_is_what_is_neither_idle_nor_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = namedtuple("times", "user nice system idle iowait irq softirq steal guest guest_nice")
    before, after = times(*[50.0] * 10), times(53.0, 50.2, 51.0, 54.0, 51.0, 50.1, 50.1, 50.1, 53.0, 50.0)
    own = iter([SimpleNamespace(user=5.0, system=4.0), SimpleNamespace(user=6.0, system=4.5)])
    monkeypatch.setattr(psutil, "cpu_times", iter([before, after]).__next__)
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda self: next(own))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    clock = SimpleNamespace(perf_counter=iter([100.0, 102.0]).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr("perfnb.system.read.host.time", clock)

    # In 2 s, all processes ran for 4.5 s; the time of guests is already part of user.
    assert facts(tmp_path)["cpu_of_others"] == {"percent": pytest.approx(100 * (4.5 - 1.5) / 2), "cpus": 8}


def test_an_empty_machine_says_of_each_why(tmp_path: Path) -> None:
    (tmp_path / CPU / "cpu0").mkdir(parents=True)
    told = facts(tmp_path)

    assert {name for name, value in told.items() if not isinstance(value, Unread)} == {
        "cpus",
        "cpu_of_others",
        "cpu_limit",
        "memory",
        "memory_limit",
        "swap",
        "platform",
    }
    assert "virtual machine" in told["governors"].why
    assert "only Intel CPUs" in told["heat_events"].why
    assert told["virtual"].why == "no such file or directory: /proc/cpuinfo"
    assert str(tmp_path) not in repr(told)


def test_files_that_do_not_match_the_process_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9}, raising=False)
    node = "sys/devices/system/node/node"
    root = machine(tmp_path, **{f"{node}{place}/cpulist": "\n" for place in range(2)})
    told = facts(root)
    assert (told["cpus"], told["cores"].why) == (1, f"/{CPU} lists none of the CPUs that the process may use")
    assert told["nodes"].why == "/sys/devices/system/node lists no CPU"
    plant(root, {f"{node}1/cpulist": "0-x\n"})
    assert facts(root)["nodes"].why == "'0-x' is not a list of numbers"

    def absent(*_: str) -> None:
        raise Absent("no cgroup")

    monkeypatch.setattr(host, "memory_limit_bytes", lambda *_: 4096)
    monkeypatch.setattr(host, "CgroupSource", absent)
    assert facts(root)["memory_limit"] == (4096, None)


def test_frequency_falls_back_on_other_files(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{CPU}/cpu0/cpufreq/scaling_governor": "schedutil",
            f"{CPU}/cpu1/topology/core_id": "0",
            f"{CPU}/cpufreq/boost": "0",
        },
    )
    told = facts(tmp_path)

    assert told["governors"] == {"schedutil": 1}
    assert told["boost"] is False


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_available_readings_are_read_and_the_rest_is_reported(
    tmp_path: Path, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    count = psutil.cpu_count
    cores = 4 if platform == "darwin" else None
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: count() if logical else cores)
    told = facts(machine(tmp_path), platform)

    assert (told["cpus"], told["cores"]) == (6, cores or Unread("the system does not report its cores"))
    assert told["memory"]["total"] > told["memory"]["available"] > 0
    assert told["swap"]["total"] >= told["swap"]["used"] >= 0
    word = {"darwin": "macOS", "win32": "Windows"}[platform]
    for name in ("governors", "huge_pages", "nodes", "shared_memory", "cpu_limit"):
        assert told[name].why == f"perfnb cannot read this on {word}"


FILES = sorted(
    {
        f"{CPU}/cpufreq/policy0/{name}"
        for name in ("scaling_governor", "scaling_max_freq", "energy_performance_preference")
    }
    | {f"{CPU}/cpu0/topology/thread_siblings_list", f"{CPU}/intel_pstate/no_turbo"}
    | {"proc/cpuinfo", f"{THP}/enabled", "sys/devices/system/node/node0/cpulist"}
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    content=st.binary(max_size=60)
    | st.sampled_from([b"0-99999999999", b"-1", b"1-", b"[", b"MemTotal: x kB", b"9" * 400, b"\xd9\xa3"]),
)
def test_garbage_in_a_file_spoils_only_what_it_tells(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    root = machine(tmp_path_factory.mktemp("machine"))
    good = facts(root)
    (root / name).write_bytes(content)
    told = facts(root)

    changed = {fact for fact in good if fact not in ("shared_memory", "memory", "swap") and told[fact] != good[fact]}
    assert len(changed) <= 4
    for fact in ("governors", "energy_preferences"):
        assert isinstance(told[fact], (dict, Unread))
    for fact in ("cpus", "cores", "heat_events"):
        assert isinstance(told[fact], (int, float, Unread))


def test_a_pipe_or_a_folder_in_place_of_a_file_is_unreadable(tmp_path: Path) -> None:
    root = machine(tmp_path)
    (root / "proc/cpuinfo").unlink()
    os.mkfifo(root / "proc/cpuinfo")
    (root / f"{THP}/enabled").unlink()
    (root / f"{THP}/enabled").mkdir()

    told = facts(root)
    assert told["virtual"].why == "/proc/cpuinfo is empty"
    assert "/sys/kernel/mm/transparent_hugepage/enabled" in told["huge_pages"].why


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        *[("0-2,5", {0, 1, 2, 5}), ("", set()), ("7\n", {7}), ("4-4, 6 ,", {4, 6})],
        *[("1234567890", {1234567890}), ("1-65537", set(range(1, 65538)))],
    ],
)
def test_lists_of_numbers(text: str, numbers: set[int]) -> None:
    assert numbers_of(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-b", "-3", "1-65538", "1" * 11, "1-1234567890"])
def test_text_that_is_not_a_list_of_numbers_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable, match=r"list of numbers|too many numbers"):
        numbers_of(text)


def test_folders_with_numbers_are_in_their_order(tmp_path: Path) -> None:
    for name in ("cpu10", "cpu2", "cpufreq", "cpu", "node"):
        (tmp_path / "x" / name).mkdir(parents=True)
    tree = SystemTree(str(tmp_path), "linux")
    assert tree.folders("x", "cpu") == ["x/cpu2", "x/cpu10"]
    for folder, why in (("x", "there is no node0 in /x"), ("y", "no such file or directory: /y")):
        with pytest.raises(Unreadable, match=f"^{why}$"):
            tree.folders(folder, "node")


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("always [madvise] never", "madvise"),
        ("always", "always"),
        ("always never", None),
        ("a" * 39, "a" * 39),
        ("a" * 40, None),
        ("[madvise", None),
        ("[]", None),
    ],
)
def test_the_chosen_option_is_in_brackets_or_the_only_one(tmp_path: Path, text: str, chosen: str | None) -> None:
    (tmp_path / "option").write_text(f"{text}\n")
    tree = SystemTree(root=str(tmp_path), platform="linux")
    if chosen is not None:
        assert tree.chosen("option") == chosen
    else:
        with pytest.raises(Unreadable, match="with no option in brackets"):
            tree.chosen("option")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unreadable("a reason"), "a reason"),
        (OSError(2, "No such file", "/x"), "no such file: /x"),
        (OSError(5, "Input/output error"), "input/output error"),
        (OSError("odd"), "OSError: odd"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_reason_of_an_error(error: Exception, words: str) -> None:
    assert reason(error) == words


@pytest.mark.parametrize(
    ("text", "whole", "word"),
    [
        ("12\n", 12, "12"),
        ("9" * 19, int("9" * 19), "9" * 19),
        ("9" * 20, None, "9" * 20),
        ("-1", None, "-1"),
        ("\u0661", None, "\u0661"),  # a digit elsewhere
        ("schedutil\n", None, "schedutil"),
        ("balance_power-x", None, "balance_power-x"),
        ("a" * 60, None, "a" * 60),
        *[("a" * 61, None, None), ("two words", None, None), ("_-", None, None)],
    ],
)
def test_numbers_and_words_of_files(tmp_path: Path, text: str, whole: int | None, word: str | None) -> None:
    (tmp_path / "file").write_text(text)
    tree = SystemTree(str(tmp_path), "linux")
    for read, expected, what in ((tree.whole, whole, "number"), (tree.word, word, "word")):
        if expected is None:
            with pytest.raises(Unreadable, match=f"^/file contains '.*', which is not a {what}$"):
                read("file")
        else:
            assert read("file") == expected
