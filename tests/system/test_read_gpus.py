"""How GPUs are set up: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.telemetry.nvml_stand_in import CODES, Gpus, Raised, recent_driver, two_gpus

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
FUNCTIONS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetPersistenceMode": "persistent",
    "nvmlDeviceGetPowerManagementLimit": "power_limit_mw",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power_default_mw",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetTotalEccErrors": "uncorrected",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_most_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_most_width",
}


@pytest.fixture(scope="module")
def nvml_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    yield from recent_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(nvml_process: Gpus) -> Iterator[Gpus]:
    yield from two_gpus(nvml_process)


def why_absent(gpus: Gpus, visible: str | None = None) -> str:
    with pytest.raises(Raised) as raised:
        gpus.set_ups(visible)
    assert raised.value.kind == "Unreadable"
    return raised.value.words


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


def test_what_is_set_up_otherwise_is_told(gpus: Gpus) -> None:
    gpus.set_up(
        {
            "driver": "470.1",
            "driver_cuda": 11040,
            "0.persistence": 0,
            "0.power_cap": 150000,
            "0.throttle": 0x24,
            "0.ecc": 0,
            "0.ecc_after": 1,
            "0.ecc_errors": 3,
            "0.link_width_now": 8,
            "0.link_generation_now": 1,
            "0.name": b"A\xff<b>",
        }
    )
    told = gpus.set_ups()
    assert (told["driver"], told["driver_cuda"]) == ("470.1", [11, 4])
    assert told["devices"]["GPU 0"] == USUAL | {
        "name": "A\ufffd<b>",
        "persistent": False,
        "power_limit_mw": 150000,
        "throttled": ["SwPowerCap", "SwThermalSlowdown"],
        "ecc": {"on": False, "after_restart": True},
        "uncorrected": 3,
        "pcie_width": 8,
        "pcie_generation": 1,
    }
    assert told["devices"]["GPU 1"] == USUAL


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_field_may_fail_alone_with_any_error(gpus: Gpus, function: str) -> None:
    for code in CODES:
        gpus.set_up({f"1.{function}": code})
        devices = gpus.set_ups()["devices"]
        assert devices["GPU 0"] == USUAL
        failed = devices["GPU 1"].pop(FUNCTIONS[function])
        assert failed["unread"]
        assert devices["GPU 1"] == {name: value for name, value in USUAL.items() if name != FUNCTIONS[function]}


def test_the_driver_and_whole_gpus_may_fail_with_any_error(gpus: Gpus) -> None:
    for code in CODES:
        gpus.set_up({"nvmlSystemGetDriverVersion": code, "nvmlSystemGetCudaDriverVersion": code, "1.error": code})
        told = gpus.set_ups()
        assert told["driver"]["unread"]
        assert told["driver_cuda"]["unread"]
        assert told["devices"]["GPU 0"] == USUAL
        assert told["devices"]["GPU 1"]["unread"]
        gpus.set_up({"init": code})
        assert why_absent(gpus)
        gpus.set_up({"nvmlDeviceGetCount": code})
        assert why_absent(gpus)


@pytest.mark.slow
def test_no_value_is_no_number(gpus: Gpus) -> None:
    gpus.set_up({"0.power_cap": 2**32 - 1, "0.ecc_errors": 2**64 - 1, "0.throttle": 2**64 - 1})
    device = gpus.set_ups()["devices"]["GPU 0"]
    for name in ("power_limit_mw", "uncorrected", "throttled"):
        assert device[name] == {"unread": "the driver reports no value"}


@pytest.mark.slow
def test_only_the_gpus_that_cuda_may_see_are_read(gpus: Gpus) -> None:
    assert list(gpus.set_ups("1")["devices"]) == ["GPU 1"]
    assert why_absent(gpus, "") == "no GPU is visible: CUDA_VISIBLE_DEVICES hides all 2"
    gpus.set_up({"count": 0})
    assert why_absent(gpus) == "no GPU is visible"
