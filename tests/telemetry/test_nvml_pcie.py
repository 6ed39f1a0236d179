"""PCIe traffic of GPUs: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

import pytest

from tests.telemetry.nvml_stand_in import (
    CODES,
    FIRST,
    LOST,
    SECOND,
    USUAL,
    Gpus,
    Raised,
)


def pcie(values: dict[str, float | None]) -> tuple[float | None, float | None]:
    return values["pcie_receive_bytes_per_s"], values["pcie_send_bytes_per_s"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [1, 3])
def test_pcie_rates_from_counters(gpus: Gpus, kind: int) -> None:
    counters: dict[str, int | str | bytes] = {"log": 1, "0.counter_type": kind, "0.link_generation": 3}
    received, sent = 2**31, 10**6
    gpus.set_up({**counters, "0.received": received, "0.sent": sent})
    gpus.open()
    assert pcie(gpus.read(FIRST)) == (None, None)
    gpus.set_up({**counters, "0.received": received + 500, "0.sent": sent + 10**9})
    assert pcie(gpus.read(FIRST, 0.1)) == (pytest.approx(5000), pytest.approx(1e10))
    gpus.set_up({**counters, "0.received": 7, "0.sent": sent + 10**9})  # one has gone round
    assert pcie(gpus.read(FIRST, 0.2)) == (None, 0)
    gpus.set_up({**counters, "0.received": 57, "0.sent": sent + 10**9})
    assert pcie(gpus.read(FIRST, 0.3)) == (pytest.approx(500), 0)
    assert not [call for call in gpus.calls() if "Throughput" in call]
    assert gpus.notes() == []


def test_counters_that_may_have_gone_round_say_nothing(gpus: Gpus) -> None:
    counters: dict[str, int | str | bytes] = {"log": 1, "0.sent": 0, "0.link_generation": 4, "0.link_width": 16}
    gpus.set_up({**counters, "0.received": 100})
    gpus.open()
    gpus.read(FIRST)
    gpus.set_up({**counters, "0.received": 300})
    assert pcie(gpus.read(FIRST, 0.5)) == (None, None)  # 31.5 GB/s for 0.5 s: the counter has room for a quarter
    gpus.set_up({**counters, "0.received": 400})
    assert pcie(gpus.read(FIRST, 0.6)) == (pytest.approx(1000), 0)
    gpus.calls()
    assert [pcie(gpus.read(FIRST, second)) for second in (1.6, 2.6)] == [(None, None)] * 2
    assert not [call for call in gpus.calls() if "Throughput" in call]
    assert pcie(gpus.read(FIRST, 3.6)) == (3e6, 2e6)  # measured instead, from now on
    assert pcie(gpus.read(FIRST, 3.7)) == (None, None)
    gpus.calls()
    assert pcie(gpus.read(FIRST, 5.6)) == (3e6, 2e6)
    assert not [call for call in gpus.calls() if "FieldValues" in call]


def test_wide_counters_do_not_go_round(gpus: Gpus) -> None:
    gpus.set_up({"0.received": 2**32, "0.sent": 5})
    gpus.open()
    gpus.read(FIRST)
    gpus.set_up({"0.received": 2**32 + 10**10, "0.sent": 5})
    assert pcie(gpus.read(FIRST, 10)) == (pytest.approx(1e9), 0)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "nvmlDeviceGetFieldValues:198"])
def test_errors_of_counters(gpus: Gpus, function: str) -> None:
    counting: dict[str, int | str | bytes] = {"log": 1, "0.received": 1, "0.sent": 1}
    for code in CODES:
        gpus.set_up({**counting, f"0.{function}": code})
        gpus.open()
        if code in LOST:
            with pytest.raises(Raised, match="Lost"):
                gpus.read(FIRST)
            continue
        assert gpus.read(FIRST) == USUAL, code  # never worked: the throughput is measured instead
        assert gpus.notes() == []

        gpus.set_up(counting)
        gpus.open()
        gpus.read(FIRST)
        gpus.set_up({**counting, f"0.{function}": code})
        for second in (0.05, 0.1):  # worked before: nothing is known until it works again
            assert pcie(gpus.read(FIRST, second)) == (None, None), code
        notes = gpus.notes()
        assert [note.split(": ")[1] for note in notes] == [f"PCIe {way} cannot be read" for way in ("receive", "send")]


@pytest.mark.parametrize("nothing", [(1, 2**32 - 1), (3, 2**64 - 1)])
def test_nothing_in_place_of_a_counter(gpus: Gpus, nothing: tuple[int, int]) -> None:
    gpus.set_up({"0.counter_type": nothing[0], "0.received": nothing[1], "0.sent": 1})
    gpus.open()
    assert gpus.read(FIRST) == USUAL
    assert gpus.notes() == []


@pytest.mark.slow
def test_throughput_is_measured_seldom(gpus: Gpus) -> None:
    gpus.open()
    for tick in range(60):  # 6 s, ten times a second; two readings that are measured are never in one tick
        gpus.read(FIRST, tick / 10)
        gpus.read(SECOND, tick / 10 + 0.04)
    asked = [call for call in gpus.calls() if "Throughput" in call]
    assert sorted(asked) == sorted(
        f"nvmlDeviceGetPcieThroughput:{way} {gpu}" for way in (0, 1) for gpu in (0, 1) for _ in range(3)
    )
    assert pcie(gpus.read(FIRST, 6.0)) == (3e6, 2e6)
    assert pcie(gpus.read(SECOND, 6.04)) == (None, None)
    assert pcie(gpus.read(SECOND, 6.14)) == (3e6, 2e6)
    assert pcie(gpus.read(FIRST, 7.9)) == (None, None)
