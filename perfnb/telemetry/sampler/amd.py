"""Read AMD GPUs through amdsmi, AMD's Python package for its driver.

The names and units are those of ROCm 6.2 and later. For missing values, amdsmi returns the text ``N/A`` or the largest
number of the type. This module treats these values, as well as implausible values, as missing.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from perfnb.telemetry.sampler.nvml import FIELDS, PCIE_THROUGHPUT
from perfnb.telemetry.sampler.source import Absent, DeviceFacts, Lost, Source, Values

#: The driver's module. If neither this module nor amdsmi is present, AMD GPUs are not mentioned.
_DRIVER = "/sys/module/amdgpu"
_MIB = 2**20
#: The largest plausible values, in percent, MHz, W, °C, MiB and steps of an energy counter.
_PERCENT, _MHZ, _WATTS, _DEGREES, _MOST_MIB, _STEPS = 100, 10_000, 2_500, 150, 2**20, 2**63
_GONE = ("AMDSMI_STATUS_NOT_FOUND", "AMDSMI_STATUS_NOT_INIT", "AMDSMI_STATUS_DRIVER_NOT_LOADED")
_UNSUPPORTED = ("AMDSMI_STATUS_NOT_SUPPORTED", "AMDSMI_STATUS_NOT_YET_IMPLEMENTED")


def is_likely() -> bool:
    """Check whether AMD's driver or amdsmi is installed on this machine."""
    return os.path.exists(_DRIVER) or importlib.util.find_spec("amdsmi") is not None


class AmdSource(Source):
    """AMD GPUs as reported by amdsmi. If a GPU is partitioned, its partitions are reported instead.

    ``busy_percent`` is the activity of the graphics and compute engines, and memory is the memory used by all
    processes. PCIe traffic and throttle reasons are not read, because amdsmi takes at least a tenth of a second to read
    each of them.

    `visible` is the value of HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, or ``None`` if they are unset. It contains
    HIP's numbers or UUIDs.

    Raises
    ------
    Absent
        If there is no GPU to read.
    """

    name = "AMD GPU"

    def __init__(self, visible: str | None) -> None:
        super().__init__()
        self._open = False
        self._smi = _binding()
        try:
            self._smi.amdsmi_init(self._smi.AmdSmiInitFlags.INIT_AMD_GPUS)
            self._open = True
            handles = list(self._smi.amdsmi_get_processor_handles())
        except Exception as error:
            self.close()
            raise Absent(f"amdsmi does not start: {_words(error)}") from error
        gpus = [_Gpu(self._smi, handle, index) for index, handle in enumerate(handles)]
        named = Counter(gpu.key for gpu in gpus)
        for gpu in gpus:
            if named[gpu.key] > 1:  # partitions may have the same UUID as their GPU
                gpu.key = f"GPU {gpu.index}"
        self._gpus = {gpu.key: gpu for gpu in _let_through(gpus, visible)}
        if not self._gpus:
            self.close()
            hidden = f": HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides all {len(gpus)}" if gpus else ""
            raise Absent(f"no GPU is visible{hidden}")

    def devices(self) -> list[str]:
        """Return the devices' UUIDs, in HIP's order."""
        return list(self._gpus)

    def facts(self, device: str) -> DeviceFacts:
        """Return the name, UUID, PCI address, amdsmi index, memory size and power limit of a GPU."""
        return dict(self._gpus[device].facts)

    def read(self, device: str, now_ns: int) -> Values:
        """Read a GPU, as described in `perfnb.telemetry.sampler.source.Source`."""
        gpu = self._gpus[device]
        values: Values = dict.fromkeys([*FIELDS, *PCIE_THROUGHPUT])
        for metric, read in _METRICS.items():
            if metric not in gpu.mute:
                values[metric] = self._read(gpu, metric, read)
        return values

    def close(self) -> None:
        """Shut down amdsmi once."""
        if self._open:
            self._open = False
            with suppress(Exception):
                self._smi.amdsmi_shut_down()

    def _read(self, gpu: _Gpu, metric: str, read: Callable[[_Gpu], float | None]) -> float | None:
        try:
            value = read(gpu)
        except Exception as error:  # the errors of amdsmi, of missing functions and of old versions have no common base
            why = _words(error)
            if any(gone in why for gone in _GONE):
                raise Lost(f"{gpu.words}: {why}") from error
            self.note_unreadable(gpu.words, metric, why)
            if any(word in why for word in (*_UNSUPPORTED, "AttributeError")):
                gpu.mute.add(metric)
            return None
        if value is None:
            self.note_unreadable(gpu.words, metric, "the driver reports no plausible value")
        return value


class _Gpu:
    """A GPU, or one of its partitions."""

    def __init__(self, smi: Any, handle: Any, index: int) -> None:
        self.smi, self.handle, self.index = smi, handle, index
        self.mute: set[str] = set()
        numbered = _known(smi, "amdsmi_get_gpu_enumeration_info", handle) or {}
        #: HIP's number without any environment variable or, if it is unknown, the index in amdsmi's list.
        self.hip = hip if isinstance(hip := numbered.get("hip_id"), int) else index
        bare = str(numbered.get("hip_uuid") or _known(smi, "amdsmi_get_gpu_device_uuid", handle) or "")
        self.uuid = bare if bare.startswith("GPU-") or not bare else f"GPU-{bare}"
        self.pci = _known(smi, "amdsmi_get_gpu_device_bdf", handle)
        self.key = self.uuid or f"GPU {index}"
        name = (_known(smi, "amdsmi_get_gpu_asic_info", handle) or {}).get("market_name")
        self.words = f"GPU {index} ({name})" if _is_text(name) else f"GPU {index}"
        total = _plausible((_known(smi, "amdsmi_get_gpu_vram_usage", handle) or {}).get("vram_total"), _MOST_MIB)
        limit = _plausible((_known(smi, "amdsmi_get_power_info", handle) or {}).get("power_limit"), _WATTS)
        facts: DeviceFacts = {
            "name": name if _is_text(name) else None,
            "uuid": self.uuid or None,
            "pci": self.pci if _is_text(self.pci) else None,
            "index": index,
            "memory_bytes": None if not total else int(total * _MIB),
            "power_limit_w": limit or None,
            "mig": False,
        }
        self.facts: DeviceFacts = {fact: value for fact, value in facts.items() if value is not None}

    def used_bytes(self) -> float | None:
        """Return the number of bytes that all processes use."""
        used = _plausible(self.smi.amdsmi_get_gpu_vram_usage(self.handle)["vram_used"], _MOST_MIB)
        return None if used is None else used * _MIB

    def power_w(self) -> float | None:
        """Return the current power, or the average power on GPUs that only report the average."""
        power = self.smi.amdsmi_get_power_info(self.handle)
        names = ("current_socket_power", "average_socket_power")
        return next((watts for name in names if (watts := _plausible(power.get(name), _WATTS))), None)

    def energy_j(self) -> float | None:
        """Return the energy from the accumulator, which has a resolution of a few microjoules."""
        counted = self.smi.amdsmi_get_energy_count(self.handle)
        steps = _plausible(counted["energy_accumulator"], _STEPS)
        return None if steps is None else steps * float(counted["counter_resolution"]) / 1e6

    def temperature_c(self) -> float | None:
        """Return the temperature of the hottest spot, or on GPUs without this sensor, of the edge."""
        kinds, now = self.smi.AmdSmiTemperatureType, self.smi.AmdSmiTemperatureMetric.CURRENT
        hottest = _plausible(_known(self.smi, "amdsmi_get_temp_metric", self.handle, kinds.HOTSPOT, now), _DEGREES)
        if hottest is not None:
            return hottest
        return _plausible(self.smi.amdsmi_get_temp_metric(self.handle, kinds.EDGE, now), _DEGREES)

    def clock_mhz(self, kind: str) -> float | None:
        """Return a clock's mean over the last second."""
        clock = self.smi.amdsmi_get_clock_info(self.handle, getattr(self.smi.AmdSmiClkType, kind))
        return _plausible(clock["clk"], _MHZ)

    def busy_percent(self) -> float | None:
        """Return the activity of the graphics and compute engines."""
        return _plausible(self.smi.amdsmi_get_gpu_activity(self.handle)["gfx_activity"], _PERCENT)


_METRICS: dict[str, Callable[[_Gpu], float | None]] = {
    "busy_percent": _Gpu.busy_percent,
    "memory_bytes": _Gpu.used_bytes,
    "power_w": _Gpu.power_w,
    "energy_j": _Gpu.energy_j,
    "temperature_c": _Gpu.temperature_c,
    "sm_clock_mhz": lambda gpu: gpu.clock_mhz("GFX"),
    "memory_clock_mhz": lambda gpu: gpu.clock_mhz("MEM"),
}


def _binding() -> Any:
    try:
        with redirect_stdout(io.StringIO()):  # it prints if its library is missing, but stdout is the sampler's pipe
            import amdsmi  # type: ignore[import-not-found]
    except ImportError as error:
        raise Absent("amdsmi is not installed (it comes with ROCm: pip install /opt/rocm/share/amd_smi)") from error
    except Exception as error:  # it fails in different ways if its library is missing
        raise Absent(f"amdsmi cannot be loaded: {_words(error)}") from error
    return amdsmi


def _let_through(gpus: Sequence[_Gpu], visible: str | None) -> list[_Gpu]:
    """Return the GPUs that an environment variable makes visible, in the variable's order.

    `visible` is the variable's value, or ``None`` if it is unset. The list ends at the first unknown entry.
    """
    if visible is None:
        return sorted(gpus, key=lambda gpu: gpu.hip)
    chosen: list[_Gpu] = []
    for entry in visible.split(","):
        fitting = [gpu for gpu in gpus if entry.strip() in (str(gpu.hip), gpu.uuid)]
        if not fitting or fitting[0] in chosen:
            break
        chosen.append(fitting[0])
    return chosen


def _known(smi: Any, function: str, *arguments: Any) -> Any:
    """Return the result of an amdsmi function, or ``None`` if it fails or does not exist in this version."""
    try:
        return getattr(smi, function)(*arguments)
    except Exception:
        return None


def _plausible(value: Any, most: float) -> float | None:
    """Return a value if it is a number up to `most`, and otherwise ``None``."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and 0 <= value <= most else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", "N/A")


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
