"""The units of what is read from a machine."""

from __future__ import annotations

from perfnb.telemetry.metrics import document_unit, unit_of


def test_the_end_of_a_name_is_its_unit() -> None:
    columns = ["cpu_percent", "memory_bytes", "disk_read_bytes_per_s", "power_w", "energy_j", "temperature_c"]
    units = ["percent", "bytes", "bytes_per_s", "watts", "joules", "celsius", "megahertz", "", ""]
    columns += ["sm_clock_mhz", "load", "throttle_reasons"]
    assert [unit_of(column) for column in columns] == units
    others = {"percent": ("share", 0.01), "bytes_per_s": ("bytes/s", 1.0), "": ("count", 1.0)}
    assert [document_unit(column) for column in columns] == [others.get(unit, (unit, 1.0)) for unit in units]
