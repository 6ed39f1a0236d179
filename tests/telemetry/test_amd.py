"""Readings of AMD GPUs: a stand-in for AMD's package, in the units and with the gaps of its versions."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb
from perfnb.telemetry.sampler.amd import AmdSource, _plausible, is_likely
from perfnb.telemetry.sampler.nvml import FIELDS, PCIE_THROUGHPUT
from perfnb.telemetry.sampler.source import Absent, Lost
from perfnb.telemetry.watcher import _torch_names

FIRST, SECOND = "GPU-35b2a1f0c4d5e6f7", "GPU-9a8b7c6d5e4f3a2b"
TOTAL = 192 * 2**30

USUAL: dict[str, Any] = {
    "gpu_enumeration_info": {"hip_id": 0, "hip_uuid": FIRST},
    "gpu_device_bdf": "0000:03:00.0",
    "gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
    "gpu_activity": {"gfx_activity": 87, "umc_activity": 12, "mm_activity": "N/A"},
    "gpu_vram_usage": {"vram_total": TOTAL // 2**20, "vram_used": 1024},
    "power_info": {"current_socket_power": 501, "average_socket_power": "N/A", "power_limit": 750},
    "energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 5},
    "temp_metric_HOTSPOT": 61,
    "temp_metric_EDGE": {"error": "AMDSMI_STATUS_NOT_SUPPORTED"},
    "clock_info_GFX": {"clk": 2100},
    "clock_info_MEM": {"clk": 1300},
}

FACTS = {
    **{"name": "AMD Instinct MI300X", "uuid": FIRST, "pci": "0000:03:00.0", "index": 0},
    **{"memory_bytes": TOTAL, "power_limit_w": 750, "mig": False},
}
ERROR = {"error": "AMDSMI_STATUS_BUSY"}

Machine = Callable[..., AmdSource]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make a machine with GPUs, each the usual one with some results changed, and open it."""
    shutil.copy(Path(__file__).with_name("amdsmi_stand_in.py"), tmp_path / "amdsmi.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AMDSMI_STAND_IN", str(tmp_path / "gpus.json"))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    importlib.invalidate_caches()

    def make(*changes: dict[str, Any], visible: str | None = None, gpus: Any = None) -> AmdSource:
        described = [USUAL | change for change in changes or ({},)] if gpus is None else gpus
        (tmp_path / "gpus.json").write_text(json.dumps(described))
        return AmdSource(visible)

    return make


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    sys.modules.pop("amdsmi", None)


def test_values_and_facts(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    source = machine()
    assert source.devices() == [FIRST]
    assert source.facts(FIRST) == FACTS
    assert source.read(FIRST, 1) == {
        "busy_percent": 87,
        "memory_bytes": 2**30,
        "power_w": 501,
        "energy_j": pytest.approx(30.6),
        "temperature_c": 61,
        "sm_clock_mhz": 2100,
        "memory_clock_mhz": 1300,
        "throttle_reasons": None,
        "pcie_receive_bytes_per_s": None,
        "pcie_send_bytes_per_s": None,
    }
    assert source.notes == []
    assert capfd.readouterr().out == "", "the sampler's output is a pipe of JSON"
    source.close()
    source.close()
    assert sys.modules["amdsmi"].ended == [True]


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"gpu_enumeration_info": {"hip_id": "N/A", "hip_uuid": "ab"}}, {"uuid": "GPU-ab"}),
        ({"gpu_enumeration_info": ERROR, "gpu_device_uuid": "cd"}, {"uuid": "GPU-cd"}),
        ({"gpu_enumeration_info": ERROR}, {"uuid": None}),
        ({"gpu_asic_info": {"market_name": "N/A"}, "gpu_device_bdf": ""}, {"name": None, "pci": None}),
        ({"gpu_asic_info": ERROR, "gpu_device_bdf": 3}, {"name": None, "pci": None}),
        (
            {"gpu_vram_usage": {"vram_total": 2**20}, "power_info": {"power_limit": 2500}},
            {"memory_bytes": 2**40, "power_limit_w": 2500},
        ),
        (
            {"gpu_vram_usage": {"vram_total": 2**20 + 1}, "power_info": {"power_limit": 2501}},
            {"memory_bytes": None, "power_limit_w": None},
        ),
        (
            {"gpu_vram_usage": {"vram_total": 0}, "power_info": {"power_limit": 0}},
            {"memory_bytes": None, "power_limit_w": None},
        ),
    ],
)
def test_facts_that_are_not_known_are_left_out(machine: Machine, change: dict[str, Any], facts: dict[str, Any]) -> None:
    source = machine(change, visible="0")
    expected = {name: value for name, value in (FACTS | facts).items() if value is not None}
    (device,) = source.devices()
    assert device == expected.get("uuid", "GPU 0")
    assert source.facts(device) == expected


def test_only_a_number_within_its_bounds_is_plausible() -> None:
    values = (-0.5, 0, 0.5, 100, 100.5, True, "5", None)
    assert [_plausible(value, 100) for value in values] == [None, 0, 0.5, 100, None, None, None, None]


def test_only_what_a_gpu_does_not_have_is_never_asked_for_again(machine: Machine) -> None:
    source = machine({"gpu_activity": {"error": "AMDSMI_STATUS_NOT_SUPPORTED"}, "power_info": ERROR})
    assert source.read(FIRST, 1)["power_w"] is None
    machine()  # from now on all can be read
    values = source.read(FIRST, 2)
    assert (values["busy_percent"], values["power_w"]) == (None, 501)
    assert len(source.notes) == 2


@pytest.mark.parametrize(
    ("change", "metric", "value"),
    [
        ({"power_info": {"current_socket_power": 65535, "average_socket_power": 140}}, "power_w", 140),
        ({"power_info": {"current_socket_power": "N/A", "average_socket_power": 140}}, "power_w", 140),
        (
            {"temp_metric_HOTSPOT": {"error": "AMDSMI_STATUS_NOT_SUPPORTED"}, "temp_metric_EDGE": 44},
            "temperature_c",
            44,
        ),
    ],
)
def test_where_a_meter_lacks_a_value_another_has_it(
    machine: Machine, change: dict[str, Any], metric: str, value: float
) -> None:
    source = machine(change)
    assert source.read(FIRST, 1)[metric] == pytest.approx(value)
    assert source.notes == []


@pytest.mark.parametrize(
    ("function", "field", "most", "metric", "value"),
    [
        ("gpu_activity", "gfx_activity", 100, "busy_percent", 100),
        ("gpu_vram_usage", "vram_used", 2**20, "memory_bytes", 2**40),
        ("power_info", "current_socket_power", 2_500, "power_w", 2_500),
        ("energy_count", "energy_accumulator", 2**63, "energy_j", 2**63 * 15.3 / 1e6),
        ("temp_metric_HOTSPOT", "", 150, "temperature_c", 150),
        ("clock_info_GFX", "clk", 10_000, "sm_clock_mhz", 10_000),
        ("clock_info_MEM", "clk", 10_000, "memory_clock_mhz", 10_000),
    ],
)
def test_a_value_is_read_up_to_the_largest_that_is_plausible(
    machine: Machine, function: str, field: str, most: int, metric: str, value: float
) -> None:
    for given, expected in ((most, value), (most + 1, None)):
        described = {**USUAL[function], field: given} if field else given
        assert machine({function: described}).read(FIRST, 1)[metric] == expected


@pytest.mark.parametrize(
    ("change", "metric", "words"),
    [
        ({"gpu_activity": {"gfx_activity": "N/A"}}, "busy_percent", "busy time"),
        ({"gpu_activity": {"gfx_activity": 65535}}, "busy_percent", "busy time"),
        ({"gpu_activity": {"gfx_activity": True}}, "busy_percent", "busy time"),
        ({"gpu_activity": {}}, "busy_percent", "busy time"),
        ({"gpu_vram_usage": {"vram_total": 5, "vram_used": 2**32 - 1}}, "memory_bytes", "memory"),
        ({"power_info": {"current_socket_power": 65535}}, "power_w", "power"),
        ({"energy_count": {"energy_accumulator": 2**64 - 1, "counter_resolution": 15.3}}, "energy_j", "energy"),
        ({"temp_metric_HOTSPOT": {"error": "no"}}, "temperature_c", "temperature"),
        ({"clock_info_MEM": {"error": "AMDSMI_STATUS_NOT_SUPPORTED"}}, "memory_clock_mhz", "memory clock"),
    ],
)
def test_what_is_missing_or_absurd_is_missing_and_said_once(
    machine: Machine, change: dict[str, Any], metric: str, words: str
) -> None:
    source = machine(change)
    for now in (1, 2):
        values = source.read(FIRST, now)
        assert values[metric] is None
        assert values.keys() == {*FIELDS, *PCIE_THROUGHPUT}
    [note] = source.notes
    assert note.startswith(f"GPU 0 (AMD Instinct MI300X): {words} cannot be read: ")
    assert "\n" not in note


def test_a_gpu_that_has_gone_is_lost_alone(machine: Machine) -> None:
    second = {"gpu_enumeration_info": {"hip_id": 1, "hip_uuid": SECOND}}
    source = machine({"gpu_activity": {"error": "AMDSMI_STATUS_NOT_FOUND - Device Not found"}}, second)
    with pytest.raises(Lost, match="GPU 0"):
        source.read(FIRST, 1)
    assert source.read(SECOND, 1)["busy_percent"] == 87


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [FIRST, SECOND]),
        ("0,1", [FIRST, SECOND]),
        ("1", [SECOND]),
        (f"{SECOND}, 0", [SECOND, FIRST]),
        ("1,7,0", [SECOND]),
        ("0,0", [FIRST]),
    ],
)
def test_hips_numbers_count_not_the_order_of_amdsmi(machine: Machine, visible: str | None, expected: list[str]) -> None:
    swapped = [{"gpu_enumeration_info": {"hip_id": hip, "hip_uuid": uuid}} for hip, uuid in ((1, SECOND), (0, FIRST))]
    assert machine(*swapped, visible=visible).devices() == expected


@pytest.mark.parametrize("others", [(1,), (1, 2)])
def test_partitions_that_share_a_uuid_are_all_there(machine: Machine, others: tuple[int, ...]) -> None:
    """Some meters exist for the first partition only."""
    rest = {"gpu_activity": {"gfx_activity": "N/A"}, "power_info": {"error": "AMDSMI_STATUS_NOT_SUPPORTED"}}
    source = machine({}, *(rest | {"gpu_enumeration_info": {"hip_id": hip, "hip_uuid": FIRST}} for hip in others))
    assert source.devices() == ["GPU 0", *(f"GPU {hip}" for hip in others)]
    assert [source.read(device, 1)["power_w"] for device in source.devices()] == [501, *[None] * len(others)]
    assert {source.facts(device)["uuid"] for device in source.devices()} == {FIRST}


@pytest.mark.parametrize(
    ("gpus", "visible", "why"),
    [
        ({"error": "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded"}, None, "amdsmi does not start: .*Driver not"),
        ([], None, "no GPU is visible$"),
        ([USUAL], "", "hides all 1"),
    ],
)
def test_why_there_is_none(machine: Machine, gpus: Any, visible: str | None, why: str) -> None:
    with pytest.raises(Absent, match=why):
        machine(gpus=gpus, visible=visible)
    assert sys.modules["amdsmi"].ended == [True] * isinstance(gpus, list)  # only what was started is shut down


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(Absent, match="amdsmi is not installed"):
        AmdSource(None)


def test_a_watch_reads_them(machine: Machine) -> None:
    machine().close()
    assert is_likely()
    with perfnb.watch(interval_s=0.05) as watch:
        deadline = time.monotonic() + 20
        while watch.samples.empty and time.monotonic() < deadline:
            time.sleep(0.05)
    rows = watch.samples[watch.samples["device"] == "gpu0"]
    assert rows["power_w"].iloc[0] == 501
    assert rows["memory_bytes"].iloc[0] == 2**30
    assert watch.meta["devices"]["gpu0"]["name"] == "AMD Instinct MI300X"
    assert "GPU" not in watch.meta["absent"], "NVIDIA's driver is not missed on a machine with AMD GPUs"


def test_torch_names_an_amd_gpu_by_its_uuid_in_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch for ROCm takes the characters of HIP's id for the bytes of a UUID."""
    raw = SECOND.removeprefix("GPU-").encode().hex()
    dashed = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    own = [dashed, FIRST.removeprefix("GPU-").encode().hex()]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=own[index]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert _torch_names([FIRST, SECOND]) == {FIRST: "gpu1", SECOND: "gpu0"}
