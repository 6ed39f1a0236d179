"""Define the names and units of all metrics that are read from a machine."""

from __future__ import annotations

#: The name of each metric, in the order of the columns of ``samples``.
METRIC_WORDS = {
    "cpu_percent": "CPU",
    "throttled_percent": "CPU throttled",
    "load": "load (1 min)",
    "processes": "processes",
    "memory_bytes": "memory",
    "disk_read_bytes_per_s": "disk read",
    "disk_write_bytes_per_s": "disk written",
    "network_receive_bytes_per_s": "network received",
    "network_send_bytes_per_s": "network sent",
    "busy_percent": "busy time",
    "torch_allocated_bytes": "torch allocated",
    "torch_reserved_bytes": "torch reserved",
    "power_w": "power",
    "energy_j": "energy",
    "temperature_c": "temperature",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "pcie_receive_bytes_per_s": "PCIe to the GPU",
    "pcie_send_bytes_per_s": "PCIe from the GPU",
    "sm_active_percent": "multiprocessors active",
    "tensor_active_percent": "Tensor Cores active",
    "dram_active_percent": "memory bandwidth in use",
}
_UNITS = {
    **{"_percent": "percent", "_bytes": "bytes", "_bytes_per_s": "bytes_per_s"},
    **{"_w": "watts", "_j": "joules", "_c": "celsius", "_mhz": "megahertz"},
}
#: The units that differ in documents, and the factors for converting readings to them.
_IN_DOCUMENTS = {"percent": ("share", 0.01), "bytes_per_s": ("bytes/s", 1.0), "": ("count", 1.0)}


def unit_of(column: str) -> str:
    """Return a column's unit, in the notation of `perfnb.quantities.reading`."""
    return next((unit for end, unit in _UNITS.items() if column.endswith(end)), "")


def document_unit(column: str) -> tuple[str, float]:
    """Return a column's unit in a document, and the factor that converts a reading to this unit."""
    return _IN_DOCUMENTS.get(unit := unit_of(column), (unit, 1.0))
