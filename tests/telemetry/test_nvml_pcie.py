"""PCIe traffic of GPUs: the real binding, with a stand-in for the driver's library."""

from __future__ import annotations

from tests.telemetry.nvml_stand_in import FIRST, SECOND, Gpus


def pcie(values: dict[str, float | None]) -> tuple[float | None, float | None]:
    return values["pcie_receive_bytes_per_s"], values["pcie_send_bytes_per_s"]


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
