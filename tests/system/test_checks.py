"""The judgement of what was read: good, bad, missing, for each check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.system.check import SystemFacts, judged
from perfnb.system.read.reading import Unread
from perfnb.system.system import CHECKS, COLUMNS, check_table
from perfnb.system.view import RESULTS

GIB = 1 << 30
DISK = {"name": "nvme0n1", "turns": False}
READ: dict[str, Any] = {
    "files": 3,
    "temporary": False,
    "failed": 0,
    "cache_known": True,
    "disk_bytes": 32 << 20,
    "disk_s": 0.032,
    "disk_requests": 32,
    "cached_bytes": 0,
    "cached_s": 0.0,
}
PYTHON = {
    "version": "3.12.1",
    "implementation": "CPython",
    "debug": False,
    "optimized": True,
    "developer_mode": False,
    "malloc": "",
    "tracer": False,
}
TORCH = {
    "version": "2.9.0",
    "debug": False,
    "mkl": True,
    "onednn": True,
    "openmp": True,
    "blas": "mkl",
    "capability": "AVX2",
    "cuda": "12.4",
    "hip": None,
    "machine": "x86_64",
}
GPU = {
    "name": "NVIDIA H100",
    "persistent": True,
    "power_limit_mw": 700000,
    "power_default_mw": 700000,
    "throttled": [],
    "ecc": {"on": True, "after_restart": True},
    "uncorrected": 0,
    "pcie_generation": 5,
    "pcie_width": 16,
    "pcie_most_generation": 5,
    "pcie_most_width": 16,
}
#: A machine with nothing to complain of.
GOOD: dict[str, Any] = {
    "governors": {"performance": 8},
    "frequency_drivers": {"intel_pstate": 8},
    "energy_preferences": {"performance": 8},
    "frequency_limits": [(3500.0, 3500.0)],
    "boost": True,
    "heat_events": 0,
    "heat_ms": 0,
    "virtual": False,
    "cpus": 8,
    "cores": 8,
    "nodes": [(8, 8)],
    "cpu_limit": None,
    "cpu_of_others": {"percent": 30.0, "cpus": 8},
    "throttled": (0, 0.0),
    "memory": {"total": 64 * GIB, "available": 50 * GIB},
    "memory_limit": None,
    "swap": {"total": 0, "used": 0},
    "huge_pages": "always",
    "shared_memory": {"total": 32 * GIB, "free": 32 * GIB},
    "platform": "linux",
    "data": "/data",
    "mount": {"folder": "/", "kind": "ext4", "source": "/dev/nvme0n1p1", "device": "259:1"},
    "block_device": DISK,
    "read_test": READ,
    "environment": {"threads": 8},
    "thread_variables": {},
    "python": PYTHON,
    "torch": TORCH,
    "openmp_runtimes": ["/opt/libgomp.so.1"],
    "gpus": {"driver": "550.54", "driver_cuda": (12, 4), "devices": {"GPU 0": GPU, "GPU 1": GPU}},
}


def rows(**changed: Any) -> dict[str, Any]:
    return check_table(GOOD | changed).set_index("check").to_dict("index")


def gpus(**changed: Any) -> dict[str, Any]:
    return {"gpus": GOOD["gpus"] | {"devices": {"GPU 0": GPU, "GPU 1": GPU | changed}}}


def test_a_good_machine_has_nothing_that_asks_for_attention() -> None:
    table = check_table(GOOD)

    assert tuple(table.columns) == COLUMNS
    assert len(table) == len(CHECKS) == table["check"].nunique()
    assert table[table["verdict"] != "ok"].empty
    assert (table.map(len) > 0).all(axis=None)


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("CPU governor", {"governors": {"powersave": 8}, "frequency_drivers": {"acpi-cpufreq": 8}}, "attention", "power"),
    ("CPU governor", {"governors": {"powersave": 8}, "energy_preferences": {"power": 8}}, "attention", "power"),
    ("CPU governor", {"governors": {"powersave": 8}, "energy_preferences": {"performance": 8}}, "info", "powersave"),
    ("CPU governor", {"governors": {"schedutil": 8}, "frequency_drivers": Unread("x")}, "info", "schedutil"),
    ("CPU governor", {"governors": Unread("no such file")}, "unknown", "could not be read: no such file"),
    ("CPU frequency", {"frequency_limits": [(2000.0, 3500.0)]}, "attention", "limited to 2,000 of 3,500 MHz"),
    ("CPU frequency", {"boost": False}, "attention", "boost off"),
    ("CPU frequency", {"boost": False, "frequency_limits": Unread("y")}, "attention", "boost off"),
    ("CPU frequency", {"boost": Unread("x"), "frequency_limits": Unread("why")}, "unknown", "why"),
    ("CPU governor", {"governors": {"powersave": 8}, "frequency_drivers": {"amd-pstate": 8}}, "attention", "power"),
    ("CPU governor", {"governors": {"powersave": 8}, "frequency_drivers": {"amd-pstate-epp": 8}}, "info", "power"),
    ("CPU slowed by heat", {"heat_events": 7, "heat_ms": 9000}, "attention", "7 times since boot, for a total of 9"),
    ("CPU slowed by heat", {"heat_events": 7, "heat_ms": Unread("old kernel")}, "attention", "7 times"),
    ("CPU slowed by heat", {"heat_events": 1, "heat_ms": 20}, "info", "1 time since boot, for a total of 20.0 ms"),
    ("NUMA", {"nodes": [(4, 4), (4, 4)]}, "attention", "may run on 2"),
    ("torch's threads", {"environment": {"threads": 64}}, "attention", "64 threads for 8 CPUs"),
    ("torch's threads", {"cpu_limit": 1.5}, "attention", "8 threads for 2 CPUs (cgroup limit: 1.5"),
    ("torch's threads", {"cores": 4}, "info", "8 threads for 8 CPUs on 4 cores"),
    ("torch's threads", {"environment": {"threads": 1}, "cpus": 1, "cores": 1}, "ok", "1 thread for 1 CPU"),
    ("torch's threads", {"environment": Unread("no")}, "unknown", "could not be read: no"),
    ("CPU limit of the cgroup", {"cpu_limit": 4.0, "throttled": (9, 5000.0)}, "attention", "9 times, for a total of 5"),
    ("CPU used by others", {"cpu_of_others": {"percent": 201.0, "cpus": 8}}, "attention", "201 % of 800 %"),
    ("CPU used by others", {"cpu_of_others": {"percent": 199.0, "cpus": 8}}, "ok", "199 % of 800 %"),
    ("CPU limit of the cgroup", {"cpu_limit": 4.0, "throttled": Unread("x")}, "info", "could not be read"),
    ("CPU limit of the cgroup", {"cpu_limit": 4.0}, "ok", "never"),
    ("memory", {"memory_limit": (4 * GIB, None)}, "ok", "cgroup allows 4.00 GiB"),
    ("huge pages", {"huge_pages": "never"}, "attention", "never"),
    ("huge pages", {"huge_pages": "madvise"}, "info", "only on request"),
    ("shared memory (/dev/shm)", {"shared_memory": Unread("x"), "platform": "darwin"}, "info", "macOS"),
    ("disk of the data", {"block_device": DISK | {"name": "sda", "turns": True}}, "attention", "a hard disk"),
    ("disk of the data", {"block_device": DISK | {"name": "vda", "turns": True}}, "info", "virtual"),
    ("disk of the data", {"block_device": DISK | {"name": "sda", "turns": True}, "virtual": True}, "info", "virtual"),
    ("disk of the data", {"mount": GOOD["mount"] | {"kind": "nfs4"}}, "attention", "network"),
    ("disk of the data", {"mount": GOOD["mount"] | {"kind": "overlay"}}, "info", "container's layers"),
    ("disk of the data", {"mount": GOOD["mount"] | {"kind": "tmpfs"}}, "info", "in memory"),
    ("read test", {"read_test": READ | {"disk_bytes": 0, "cached_bytes": 9 << 20}}, "info", "the disk's rate"),
    ("read test", {"read_test": READ | {"failed": 2}}, "ok", "2 files could not be read"),
    (
        "read test",
        {"read_test": READ | {"cache_known": False, "disk_s": 0.0, "cached_bytes": 32 << 20, "cached_s": 0.5}},
        "info",
        "128 MiB/s, possibly from the page cache (64.0 MiB of 3 files",
    ),
    (
        "read test",
        {"read_test": READ | {"cache_known": False, "disk_s": 0.3, "cached_bytes": 8 << 20, "cached_s": 0.1}},
        "info",
        "100 MiB/s, possibly from the page cache (40.0 MiB of 3 files",
    ),
    ("read test", {"read_test": READ | {"cache_known": False, "disk_s": 0.0}}, "info", "too fast to measure, possibly"),
    ("CPU governor", {"governors": {"performance": 8}, "energy_preferences": {"power": 8}}, "ok", "preference power"),
    (
        "CPU governor",
        {"governors": {"powersave": 8}, "frequency_drivers": {"intel_pstate": 4, "acpi-cpufreq": 4}},
        "attention",
        "powersave (intel_pstate, acpi-cpufreq)",
    ),
    ("CPU governor", {"governors": {"conservative": 8}}, "attention", "conservative"),
    ("CPU governor", {"governors": {"performance": 4, "powersave": 4}}, "info", "performance, powersave"),
    ("huge pages", {"huge_pages": "within_size"}, "info", "within_size"),
    # Both sides of limits.
    ("GPU power cap", gpus(power_limit_mw=693000), "ok", "GPU 1: 693 of 700 W"),
    ("GPU power cap", gpus(power_limit_mw=692000), "attention", "GPU 1: 692 of 700 W"),
    ("GPU driver", {"torch": TORCH | {"cuda": "12.5"}}, "info", "CUDA 12.5"),
    ("GPU driver", {"torch": TORCH | {"cuda": "11.8"}}, "ok", "CUDA 11.8"),
    ("GPU driver", {"torch": TORCH | {"cuda": "12.4.1"}}, "ok", "CUDA 12.4.1"),
    ("GPU driver", {"torch": TORCH | {"cuda": "13"}}, "unknown", "CUDA 13"),
    ("GPU ECC", gpus(ecc={"on": True, "after_restart": False}), "ok", "GPU 1: on, off after a reboot"),
    ("GPU ECC", gpus(uncorrected=Unread("Not Supported")), "info", "errors could not be read (Not Supported)"),
    ("GPU persistence", gpus(), "ok", "on (all 2 GPUs)"),
    ("CPU frequency", {"frequency_limits": [(3430.0, 3500.0)]}, "ok", "up to 3,500 MHz, boost on"),
    ("CPU frequency", {"frequency_limits": [(3429.0, 3500.0)]}, "attention", "limited to 3,429 of 3,500 MHz, boost on"),
    ("CPU slowed by heat", {"heat_events": 2, "heat_ms": 1000.0}, "info", "2 times"),
    ("CPU slowed by heat", {"heat_events": 2, "heat_ms": 1001.0}, "attention", "2 times"),
    ("CPU used by others", {"cpu_of_others": {"percent": 900.0, "cpus": 8}}, "attention", "800 % of 800 %"),
    ("NUMA", {"nodes": [(4, 2), (4, 0), (4, 0)]}, "ok", "3 nodes, process bound to 1"),
    ("torch's threads", {"environment": {"threads": 4}}, "attention", "4 threads for 8 CPUs"),
    ("torch's threads", {"environment": {"threads": 5}}, "ok", "5 threads for 8 CPUs"),
    ("torch's threads", {"environment": {"threads": 2}, "cpus": 4}, "attention", "2 threads for 4 CPUs"),
    ("torch's threads", {"environment": {"threads": 1}, "cpus": 3}, "ok", "1 thread for 3 CPUs"),
    ("torch's threads", {"cpu_limit": 0.5, "environment": {"threads": 1}}, "ok", "1 thread for 1 CPU (cgroup"),
    ("torch's threads", {"thread_variables": {"A": "2", "B": "3"}}, "ok", "8 threads for 8 CPUs, A=2, B=3"),
    ("CPU limit of the cgroup", {"cpu_limit": 4.0, "throttled": (9, 1000.0)}, "info", "9 times"),
    ("CPU limit of the cgroup", {"cpu_limit": 4.0, "throttled": (9, 1001.0)}, "attention", "9 times"),
    ("memory", {"memory": {"total": 1000, "available": 100}}, "ok", "100 B of 1,000 B free"),
    ("memory", {"memory": {"total": 1000, "available": 99}}, "attention", "99 B of 1,000 B free"),
    ("memory", {"memory_limit": (1000, 900)}, "ok", "the cgroup allows 1,000 B, 900 B in use"),
    ("memory", {"memory_limit": (1000, 901)}, "attention", "the cgroup allows 1,000 B, 901 B in use"),
    ("memory", {"memory_limit": (64 * GIB, 64 * GIB)}, "ok", "50.0 GiB of 64.0 GiB free"),
    ("swap", {"memory": {"total": 1000, "available": 500}, "swap": {"total": 90, "used": 20}}, "info", "20 B of 90 B"),
    ("swap", {"memory": {"total": 1000, "available": 500}, "swap": {"total": 90, "used": 21}}, "attention", "21 B of"),
    ("swap", {"memory": Unread("x"), "swap": {"total": 90, "used": 21}}, "info", "21 B of"),
    ("swap", {"swap": {"total": 90, "used": 0}}, "ok", "0 B of 90 B in use"),
    ("shared memory (/dev/shm)", {"shared_memory": {"total": GIB, "free": GIB}}, "ok", "1.00 GiB of 1.00 GiB free"),
    ("shared memory (/dev/shm)", {"shared_memory": {"total": GIB, "free": GIB - 1}}, "attention", "free"),
    ("disk of the data", {"mount": GOOD["mount"] | {"kind": "fuse.sshfs"}}, "attention", "user-space"),
    ("disk of the data", {"block_device": Unread("x")}, "info", "ext4 at /"),
    ("read test", {"read_test": READ | {"disk_s": 0.32}}, "ok", "100 MiB/s from the disk, 10.0 ms for 1.00 MiB"),
    ("read test", {"read_test": READ | {"disk_s": 0.33}}, "attention", "from the disk, 10.3 ms for 1.00 MiB"),
    (
        "read test",
        {"read_test": READ | {"disk_bytes": 1 << 20, "disk_requests": 0}},
        "attention",
        "32.0 ms for 1.00 MiB",
    ),
    ("read test", {"read_test": READ | {"disk_bytes": (1 << 20) - 1}}, "info", "the disk's rate"),
    ("read test", {"read_test": READ | {"cached_bytes": 1 << 20}}, "ok", "of 3 files in /data, 1.00 MiB from the page"),
    ("read test", {"read_test": READ | {"temporary": True}, "data": None}, "ok", "3 files and a new temporary file)"),
    ("read test", {"read_test": READ | {"files": 0}}, "unknown", "nothing was read"),
    ("read test", {"read_test": READ | {"disk_s": 0.0}}, "ok", "too fast to measure from the disk"),
    ("Python", {"python": PYTHON | {"developer_mode": True}}, "attention", "developer mode is on"),
    ("torch", {"torch": TORCH | {"cuda": None, "hip": "6.0"}}, "ok", "2.9.0 (ROCm 6.0), with MKL, oneDNN, OpenMP, for"),
    ("torch", {"torch": TORCH | {"cuda": None, "onednn": False}}, "attention", "(CPU only), with MKL, OpenMP, for"),
    ("Python", {"python": PYTHON | {"debug": True}}, "attention", "a debug build"),
    ("Python", {"python": PYTHON | {"malloc": "pymalloc_debug"}}, "attention", "PYTHONMALLOC=pymalloc_debug"),
    ("Python", {"python": PYTHON | {"tracer": True}}, "attention", "tracer"),
    ("Python", {"python": PYTHON | {"optimized": False}}, "info", "without --enable-optimizations"),
    ("torch", {"torch": TORCH | {"debug": True}}, "attention", "a debug build"),
    ("torch", {"torch": TORCH | {"mkl": False, "blas": "generic"}}, "attention", "lacks MKL"),
    ("torch", {"torch": TORCH | {"mkl": False, "blas": None}}, "attention", "lacks MKL"),
    ("torch", {"torch": TORCH | {"mkl": False, "blas": "open"}}, "info", "with OpenBLAS, oneDNN, OpenMP"),
    ("torch", {"openmp_runtimes": ["/a/libgomp.so.1", "/b/libiomp5.so"]}, "info", "(libgomp.so.1, libiomp5.so)"),
    ("torch", {"torch": TORCH | {"capability": "DEFAULT"}}, "attention", "for DEFAULT"),
    ("torch", {"torch": TORCH | {"mkl": False, "blas": "accelerate", "machine": "arm64"}}, "ok", "oneDNN"),
    ("torch", {"torch": TORCH | {"openmp": False, "machine": "arm64"}}, "info", "lacks OpenMP"),
    ("GPU driver", {"torch": TORCH | {"cuda": "13.0"}}, "attention", "12.4 or older); torch was built with CUDA 13.0"),
    ("GPU driver", {"torch": TORCH | {"cuda": None}}, "attention", "this torch build has no CUDA"),
    ("GPU driver", {"gpus": GOOD["gpus"] | {"driver_cuda": Unread("Not Found")}}, "unknown", "Not Found"),
    ("GPU driver", {"gpus": GOOD["gpus"] | {"driver": Unread("Not Found")}}, "ok", "Not Found"),
    ("GPU persistence", gpus(persistent=False), "attention", "GPU 0: on; GPU 1: off"),
    ("GPU persistence", gpus(persistent=Unread("Not Supported")), "unknown", "GPU 1: could not be read: Not Supported"),
    ("GPU power cap", gpus(power_default_mw=Unread("Not Supported")), "info", "Not Supported"),
    ("GPU throttling", gpus(throttled=["SwPowerCap"]), "attention", "GPU 1: SwPowerCap"),
    ("GPU ECC", gpus(uncorrected=2), "attention", "2 uncorrectable errors"),
    ("GPU ECC", gpus(ecc={"on": False, "after_restart": True}), "info", "off, on after a reboot"),
    ("GPU ECC", gpus(ecc=Unread("Not Supported")), "unknown", "Not Supported"),
    ("GPU PCIe link", gpus(pcie_width=8), "attention", "generation 5 ×8 of 5 ×16"),
    ("GPU PCIe link", gpus(pcie_generation=1), "info", "idle"),
    ("GPU PCIe link", {"gpus": GOOD["gpus"] | {"devices": {"GPU 3": Unread("GPU is lost")}}}, "unknown", "GPU is lost"),
]


@pytest.mark.parametrize(("name", "changed", "verdict", "words"), BAD)
def test_a_fault_is_judged(name: str, changed: dict[str, Any], verdict: str, words: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)  # all of them take too long
    found = judged(check.judge, SystemFacts(GOOD | changed))

    assert found.verdict == verdict
    assert words in found.found


def test_each_check_can_ask_for_attention() -> None:
    alarmed = {check for check, _, verdict, _ in BAD if verdict == "attention"}

    assert {check.name for check in CHECKS} == alarmed


def test_the_advice_names_the_number_of_threads() -> None:
    assert "torch.set_num_threads(2)" in rows(cpu_limit=1.5)["torch's threads"]["how"]


def test_the_advice_fits_what_was_found() -> None:
    never, madvise = (rows(huge_pages=chosen)["huge pages"]["how"] for chosen in ("never", "madvise"))
    assert never.startswith("As root, write always")  # where they are forbidden torch asks in vain
    assert madvise.startswith("To make torch request them, set THP_MEM_ALLOC_ENABLE=1")
    assert "ATEN_CPU_CAPABILITY" in rows(torch=TORCH | {"capability": "DEFAULT"})["torch"]["how"]
    assert "ATEN_CPU_CAPABILITY" not in rows(torch=TORCH | {"onednn": False})["torch"]["how"]


def test_a_narrow_link_is_to_be_looked_at_while_a_step_runs() -> None:
    row = rows(**gpus(pcie_width=8))["GPU PCIe link"]
    assert "idle" in row["found"]
    assert row["how"].startswith("Check again while a step is running")


def test_without_a_gpu_its_checks_say_so() -> None:
    none = Unread("no NVIDIA driver on this machine")
    on_cpu = rows(gpus=none, torch=TORCH | {"cuda": None})
    for_cuda, for_rocm = rows(gpus=none), rows(gpus=none, torch=TORCH | {"cuda": None, "hip": "6.0"})
    for name in (name for name in on_cpu if name.startswith("GPU")):
        assert on_cpu[name]["verdict"] == "info"
        assert for_cuda[name]["verdict"] == for_rocm[name]["verdict"] == "unknown"
        assert "no NVIDIA driver" in for_cuda[name]["found"]
        assert "AMD" in for_rocm[name]["found"]


def test_nothing_read_at_all_is_unknown_or_not_there() -> None:
    table = check_table({})

    assert set(table["verdict"]) == {"unknown", "info"}
    assert table[table["verdict"] == "info"]["found"].str.startswith("no NVIDIA GPU").all()


@pytest.mark.slow
@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(GOOD))))
def test_whatever_is_missing_no_check_fails_and_none_is_guessed(missing: set[str]) -> None:
    table = check_table(GOOD | {name: Unread("<why>") for name in missing})

    assert set(table["verdict"]) <= set(RESULTS)
    assert set(table["verdict"]) <= {"ok", "unknown", "info"}
    assert (table["verdict"] == "unknown").any() == table["found"].str.contains("could not be read: <why>").any()
