"""How GPUs are set up: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from perfnb.system.read import gpus as read
from perfnb.system.read.reading import Unread, Unreadable
from perfnb.telemetry.sampler.nvml import NONE_32, NONE_64, Gpu, NvmlDevice
from tests.telemetry.nvml_stand_in import Gpus, recent_driver, two_gpus

USUAL = {
    "name": "NVIDIA Stand-in",
    "persistent": True,
    "power_limit_mw": 300000,
    "power_default_mw": 300000,
    "throttled": [],
    "ecc": {"on": True, "after_restart": True},
    "uncorrected": 0,
    "pcie_generation": 4,
    "pcie_width": 16,
    "pcie_most_generation": 4,
    "pcie_most_width": 16,
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the values that NVML's functions return here. Errors are raised, and functions get the GPU's number."""
    told: dict[str, Any] = {
        **{"nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": "550.54.15"},
        **{"nvmlSystemGetCudaDriverVersion_v2": 12040, "nvmlDeviceGetHandleByIndex": lambda place: place},
        **{"nvmlDeviceGetName": lambda place: f"GPU {place}", "nvmlDeviceGetPersistenceMode": lambda place: place},
        **{"nvmlDeviceGetCurrentClocksEventReasons": lambda place: [0x24, 0x1][place]},
        **{"nvmlDeviceGetEccMode": lambda place: [(1, 0), (0, 1)][place], "nvmlDeviceGetTotalEccErrors": 3},
    }
    called: list[str] = []

    def answer(name: str) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            called.append(name)
            value = told[name]
            if isinstance(value, Exception):
                raise value
            return value(arguments[0]) if callable(value) else value

        return ask

    for name in list(told):
        monkeypatch.setattr(pynvml, name, answer(name))
    direct = [name for name in read._READERS if name.startswith(("power", "pcie"))]
    for number, name in enumerate(direct):
        told[name] = 10 * number
        monkeypatch.setitem(read._READERS, name, answer(name))
    monkeypatch.setattr(read, "find_gpus", answer("find_gpus"))
    told["find_gpus"] = [Gpu(f"GPU-{name}", [NvmlDevice(f"GPU-{name}", f"GPU {name}")]) for name in "ab"]
    told["called"] = called
    return told


OF_FIRST = {
    **{"name": "GPU 0", "persistent": False, "throttled": ["SwPowerCap", "SwThermalSlowdown"]},
    **{"ecc": {"on": True, "after_restart": False}, "uncorrected": 3, "power_limit_mw": 0, "power_default_mw": 10},
    **{"pcie_generation": 20, "pcie_width": 30, "pcie_most_generation": 40, "pcie_most_width": 50},
}
OF_SECOND = OF_FIRST | {
    **{"name": "GPU 1", "persistent": True, "throttled": [], "ecc": {"on": False, "after_restart": True}}
}


def test_each_gpu_is_read_and_nvml_is_shut_down(answers: dict[str, Any]) -> None:
    devices = {"GPU 0": OF_FIRST, "GPU 1": OF_SECOND}
    assert read.read_gpus(None) == {"driver": "550.54.15", "driver_cuda": (12, 4), "devices": devices}
    assert read.read_gpus("GPU-b,0")["devices"] == devices  # in NVML's order
    assert read.read_gpus("1")["devices"] == {"GPU 1": OF_SECOND}
    assert answers["called"].count("nvmlInit") == answers["called"].count("nvmlShutdown") == 3
    answers["nvmlShutdown"] = pynvml.NVMLError(999)
    assert read.read_gpus(None)["driver"] == "550.54.15"


def test_readings_that_a_gpu_lacks_are_reported_and_the_others_read(answers: dict[str, Any]) -> None:
    broken, absent = pynvml.NVMLError(3), Unread("the driver reports no value")
    answers |= {"nvmlSystemGetDriverVersion": broken, "nvmlSystemGetCudaDriverVersion_v2": broken}
    answers |= {"nvmlDeviceGetEccMode": broken, "nvmlDeviceGetTotalEccErrors": NONE_64, "pcie_width": NONE_32}
    answers["nvmlDeviceGetCurrentClocksEventReasons"] = NONE_64
    found = read.read_gpus("0")
    unread = Unread("Not Supported")
    assert (found["driver"], found["driver_cuda"]) == (unread, unread)
    expected = OF_FIRST | {"ecc": unread, "uncorrected": absent, "pcie_width": absent, "throttled": absent}
    assert found["devices"] == {"GPU 0": expected}
    answers["nvmlDeviceGetHandleByIndex"] = pynvml.NVMLError(15)
    assert read.read_gpus("0")["devices"] == {"GPU 0": Unread("GPU is lost")}


@pytest.mark.parametrize(
    ("changed", "visible", "why", "shut"),
    [
        ({"nvmlInit": pynvml.NVMLError(9)}, None, "the NVIDIA driver is not loaded", 0),
        ({"find_gpus": pynvml.NVMLError(999)}, None, "NVML does not start: Unknown Error", 1),
        ({"find_gpus": []}, None, "no GPU is visible", 1),
        ({}, "", "no GPU is visible: CUDA_VISIBLE_DEVICES hides all 2", 1),
    ],
)
def test_without_a_readable_gpu_the_reason_is_given(
    answers: dict[str, Any], changed: dict[str, Any], visible: str | None, why: str, shut: int
) -> None:
    answers |= changed
    with pytest.raises(Unreadable) as raised:
        read.read_gpus(visible)
    assert str(raised.value) == why
    assert answers["called"].count("nvmlShutdown") == shut


@pytest.fixture(scope="module")
def nvml_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    yield from recent_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(nvml_process: Gpus) -> Iterator[Gpus]:
    yield from two_gpus(nvml_process)


@pytest.mark.deep
@pytest.mark.slow
def test_all_is_read_and_nvml_is_shut_down(gpus: Gpus) -> None:
    assert gpus.set_ups() == {
        "driver": "550.54.15",
        "driver_cuda": [12, 4],
        "devices": {"GPU 0": USUAL, "GPU 1": USUAL},
    }
    called = gpus.calls()
    assert called.count("nvmlInit -") == called.count("nvmlShutdown -") == 1
    assert [call for call in called if "Set" in call] == []  # nothing is changed
