"""What NVML tells of a GPU: one reader for each metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from perfnb.telemetry.nvml_devices import OTHER_WAY, read_memory

#: What NVML puts where it has no value, in 32 and in 64 bits.
NONE_32, NONE_64 = 2**32 - 1, 2**64 - 1


class Field(NamedTuple):
    """How a metric is read."""

    words: str
    read: Callable[[Any], int]
    unit: float = 1
    none: int = NONE_32


def _newest(handle: Any, *calls: tuple[str, *tuple[int, ...]]) -> int:
    """What the first call says that binding and driver both know; each is a name and arguments after the handle."""
    for name, *arguments in calls[:-1]:
        try:
            if function := getattr(pynvml, name, None):
                return int(function(handle, *arguments))
        except pynvml.NVMLError as error:
            if error.value not in OTHER_WAY:
                raise
    name, *arguments = calls[-1]
    return int(getattr(pynvml, name)(handle, *arguments))


def _temperature(handle: Any) -> int:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    degrees = _newest(handle, ("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor))
    return degrees % 2**32 if degrees == -1 else degrees  # the newer call is signed, what it gives for nothing is not


def _throttle_reasons(handle: Any) -> int:
    return _newest(handle, ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))


FIELDS: dict[str, Field] = {
    "busy_percent": Field("utilisation", lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_bytes": Field("memory", lambda handle: read_memory(handle).used, none=NONE_64),
    "power_w": Field("power", pynvml.nvmlDeviceGetPowerUsage, 1e-3),
    "energy_j": Field("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3, NONE_64),
    "temperature_c": Field("temperature", _temperature),
    "sm_clock_mhz": Field("SM clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": Field(
        "memory clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    ),
    "throttle_reasons": Field("throttle reasons", _throttle_reasons, none=NONE_64),
}

#: What is read of a slice: the rest NVML gives of the whole GPU only, or not at all.
SLICE_FIELDS = ("memory_bytes",)


def _throughput(direction: int) -> Callable[[Any], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetPcieThroughput(handle, direction))


#: The mean over the 20 ms that each of these calls takes; receive and send as the GPU sees them.
PCIE_THROUGHPUT: dict[str, Field] = {
    "pcie_receive_bytes_per_s": Field("PCIe receive", _throughput(pynvml.NVML_PCIE_UTIL_RX_BYTES), 1e3),
    "pcie_send_bytes_per_s": Field("PCIe send", _throughput(pynvml.NVML_PCIE_UTIL_TX_BYTES), 1e3),
}
