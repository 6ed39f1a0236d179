"""Readings of GPUs: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

import pynvml
import pytest

from perfnb.telemetry.history import throttle_words
from tests.telemetry.nvml_stand_in import (
    CODES,
    FIRST,
    LOST,
    NAME,
    SECOND,
    USUAL,
    Gpus,
    Raised,
    absent,
    stand_in,
)

#: What each metric is read with, the newest first, and what it is called in notes.
FUNCTIONS = {
    "busy_percent": (["nvmlDeviceGetUtilizationRates"], "busy time"),
    "memory_bytes": (["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"], "memory"),
    "power_w": (["nvmlDeviceGetPowerUsage"], "power"),
    "energy_j": (["nvmlDeviceGetTotalEnergyConsumption"], "energy"),
    "temperature_c": (["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"], "temperature"),
    "sm_clock_mhz": (["nvmlDeviceGetClockInfo:1"], "SM clock"),
    "memory_clock_mhz": (["nvmlDeviceGetClockInfo:2"], "memory clock"),
    "throttle_reasons": (
        ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
        "throttle reasons",
    ),
    "pcie_receive_bytes_per_s": (["nvmlDeviceGetPcieThroughput:1"], "PCIe to the GPU"),
    "pcie_send_bytes_per_s": (["nvmlDeviceGetPcieThroughput:0"], "PCIe from the GPU"),
}
NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def test_values_and_facts(gpus: Gpus) -> None:
    settings: dict[str, int | str | bytes] = {
        "0.busy": 87, "0.used": 5 * 2**30, "0.reserved": 2**28, "0.total": 2**34, "0.power": 250_500,
        "0.power_limit": 700_000, "0.energy": 2**40, "0.temperature": 61, "0.sm_clock": 1980, "0.memory_clock": 2619,
        "0.throttle": 4,
    }  # fmt: skip
    gpus.set_up(settings)
    gpus.open()
    assert gpus.devices() == [FIRST, SECOND]
    assert gpus.read(FIRST) == {
        "busy_percent": 87,
        "memory_bytes": 5 * 2**30,
        "power_w": pytest.approx(250.5),
        "energy_j": pytest.approx(2**40 / 1e3),
        "temperature_c": 61,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "throttle_reasons": 4,
        "pcie_receive_bytes_per_s": 3e6,
        "pcie_send_bytes_per_s": 2e6,
    }
    assert gpus.read(SECOND, 1) == USUAL
    assert gpus.facts(FIRST) == {
        "name": "NVIDIA Stand-in",
        "uuid": FIRST,
        "index": 0,
        "memory_bytes": 2**34,
        "power_limit_w": 700.0,
        "mig": False,
    }
    assert gpus.notes() == []


def test_an_unknown_fact_is_absent(gpus: Gpus) -> None:
    errors = {"nvmlDeviceGetName": 3, "nvmlDeviceGetEnforcedPowerLimit": 3, "nvmlDeviceGetMemoryInfo_v2": 999}
    gpus.set_up({f"1.{function}": code for function, code in errors.items()} | {"0.power_limit": 2**32 - 1})
    gpus.open()
    assert gpus.facts(SECOND) == {"uuid": SECOND, "index": 1, "mig": False}
    assert "power_limit_w" not in gpus.facts(FIRST)


@pytest.mark.parametrize("metric", FUNCTIONS)
def test_every_error_of_a_field(gpus: Gpus, metric: str) -> None:
    functions, words = FUNCTIONS[metric]
    for code in CODES:
        broken: dict[str, int | str | bytes] = {f"0.{function}": code for function in functions}
        gpus.set_up({"log": 1, **broken})
        gpus.open()
        if code in LOST:
            with pytest.raises(Raised) as raised:
                gpus.read(FIRST)
            assert (raised.value.kind, raised.value.words) == ("Lost", f"{NAME}: {LOST[code]}")
            assert gpus.read(SECOND, 1) == USUAL
            continue
        assert gpus.read(FIRST) == {**USUAL, metric: None}, code
        assert gpus.read(SECOND, 1) == USUAL, code
        [note] = gpus.notes()
        assert note.startswith(f"{NAME}: {words} cannot be read: "), code
        assert note.endswith(".")
        assert not note.endswith("..")

        gpus.calls()
        assert gpus.read(FIRST, 4) == {**USUAL, metric: None}, code
        assert gpus.notes() == [], code
        asked = {call for call in gpus.calls() if call.split()[0] in functions}
        assert bool(asked) == (code not in NEVER), code

        gpus.set_up({})
        assert gpus.read(FIRST, 8) == {**USUAL, metric: None if code in NEVER else USUAL[metric]}, code


def test_the_words_of_a_note(gpus: Gpus) -> None:
    gpus.set_up({"1.name": "NVIDIA H100", "1.nvmlDeviceGetPowerUsage": 3, "1.nvmlDeviceGetMemoryInfo_v2": 17})
    gpus.open()
    gpus.read(SECOND)
    assert gpus.notes() == [
        "GPU 1 (NVIDIA H100): memory cannot be read: The operating system has blocked the request.",
        "GPU 1 (NVIDIA H100): power cannot be read: Not Supported.",
    ]


def test_an_older_function_does_not_replace_one_that_fails(gpus: Gpus) -> None:
    function = "nvmlDeviceGetCurrentClocksEventReasons"
    gpus.set_up({f"0.{function}": 999, f"1.{function}": 13})
    gpus.open()
    assert gpus.read(FIRST)["throttle_reasons"] is None
    assert gpus.read(SECOND)["throttle_reasons"] == 0  # the driver does not have the newer function
    assert gpus.notes() == [f"{NAME}: throttle reasons cannot be read: Unknown Error."]


@pytest.mark.parametrize(
    ("metric", "setting", "nothing"),
    [
        ("busy_percent", "busy", 2**32 - 1),
        ("memory_bytes", "used", 2**64 - 1),
        ("power_w", "power", 2**32 - 1),
        ("energy_j", "energy", 2**64 - 1),
        ("temperature_c", "temperature", 2**32 - 1),
        ("sm_clock_mhz", "sm_clock", 2**32 - 1),
        ("memory_clock_mhz", "memory_clock", 2**32 - 1),
        ("throttle_reasons", "throttle", 2**64 - 1),
        ("pcie_receive_bytes_per_s", "receive_kb", 2**32 - 1),
        ("pcie_send_bytes_per_s", "send_kb", 2**32 - 1),
    ],
)
def test_nothing_in_place_of_a_value(gpus: Gpus, metric: str, setting: str, nothing: int) -> None:
    gpus.set_up({f"0.{setting}": nothing})
    gpus.open()
    assert gpus.read(FIRST) == {**USUAL, metric: None}
    assert gpus.read(FIRST, 3) == {**USUAL, metric: None}
    assert gpus.notes() == [f"{NAME}: {FUNCTIONS[metric][1]} cannot be read: the driver reports no value."]
    gpus.set_up({})
    assert gpus.read(FIRST, 6) == USUAL


def test_a_32_bit_sentinel_is_a_value_of_64_bits(gpus: Gpus) -> None:
    gpus.set_up({"0.energy": 2**32 - 1, "0.used": 2**32 - 1})
    gpus.open()
    values = gpus.read(FIRST)
    assert (values["memory_bytes"], values["energy_j"]) == (2**32 - 1, pytest.approx((2**32 - 1) / 1e3))


@pytest.mark.parametrize("code", LOST)
def test_a_gpu_lost_in_mid_run(gpus: Gpus, code: int) -> None:
    gpus.open()
    assert gpus.read(FIRST)["power_w"] == 100
    gpus.set_up({"0.error": code})
    for second in (1, 2):
        with pytest.raises(Raised, match="Lost"):
            gpus.read(FIRST, second)
        assert gpus.read(SECOND, 10 * second) == USUAL
    assert gpus.notes() == []
    assert gpus.facts(FIRST)["name"] == "NVIDIA Stand-in"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "the NVIDIA driver and its library have different versions: restart the machine or reload the driver",
        ),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission to use the NVIDIA driver"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML does not start: Unknown Error"),
        (pynvml.NVML_ERROR_MEMORY, "NVML does not start: Insufficient Memory"),
        (777, "NVML does not start: NVML Error with code 777"),
    ],
)
def test_nvml_does_not_start(gpus: Gpus, code: int, words: str) -> None:
    gpus.set_up({"log": 1, "init": code})
    assert absent(gpus) in (words, words.replace("NVML Error with code", "Error number"))
    assert gpus.calls() == ["nvmlInit -"]


@pytest.mark.parametrize("settings", [{"count": 0}, {"nvmlDeviceGetCount": 999}, {"count": 1, "0.error": 999}, {}])
def test_what_is_started_is_shut_down(gpus: Gpus, settings: dict[str, int | str | bytes]) -> None:
    gpus.set_up({"log": 1, **settings})
    if settings:
        absent(gpus)
    else:
        gpus.open()
        gpus.close()
        gpus.close()
    ends = [call.split()[0] for call in gpus.calls() if call.endswith(" -")]
    assert ends == ["nvmlInit", "nvmlShutdown"]


@pytest.mark.slow
def test_no_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("empty")
    environment = stand_in(folder)
    (folder / "libnvidia-ml.so.1").write_text("no library, in the way of one that this machine may have")
    process = Gpus(folder, environment)
    assert absent(process) == "no NVIDIA driver on this machine"
    assert process.end() == 0


def test_a_name_that_is_not_text(gpus: Gpus) -> None:
    gpus.set_up({"0.name": b"NVIDIA \xff\xfe <b>", "0.nvmlDeviceGetPowerUsage": 3, "1.uuid": b"GPU-\xe9"})
    gpus.open()
    assert gpus.devices() == [FIRST, "GPU-\ufffd"]
    assert gpus.facts(FIRST)["name"] == "NVIDIA \ufffd\ufffd <b>"
    gpus.read(FIRST)
    assert gpus.notes() == ["GPU 0 (NVIDIA \ufffd\ufffd <b>): power cannot be read: Not Supported."]


@pytest.mark.slow
def test_an_older_driver_and_slow_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("old")
    process = Gpus(folder, stand_in(folder, old_driver=True))
    process.set_up({"0.reserved": 5, "0.nvmlDeviceGetPowerUsage.delay_ms": 30})
    process.open()
    assert process.read(FIRST) == {**USUAL, "memory_bytes": 2**30 + 5}  # which counts what the driver keeps
    assert process.notes() == []
    process.close()
    assert process.end() == 0


@pytest.mark.slow
def test_throttle_words_are_those_of_nvml() -> None:
    prefix, harmless = "nvmlClocksThrottleReason", {"None", "All", "GpuIdle", "ApplicationsClocksSetting"}
    known = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    for word in known.keys() - harmless - {"UserDefinedClocks"}:  # the last is an older name for a chosen clock
        assert throttle_words(known[word]) == [word]
