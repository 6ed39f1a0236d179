"""The units of what is read from a machine."""

from __future__ import annotations

import pytest

from perfnb.telemetry.metrics import document_unit, unit_of


@pytest.mark.parametrize(
    ("columns", "unit", "in_documents"),
    [
        (["cpu_percent", "dram_active_percent"], "percent", ("share", 0.01)),
        (["memory_bytes", "torch_reserved_bytes"], "bytes", ("bytes", 1.0)),
        (["disk_read_bytes_per_s"], "bytes_per_s", ("bytes/s", 1.0)),
        (["power_w"], "watts", ("watts", 1.0)),
        (["energy_j"], "joules", ("joules", 1.0)),
        (["temperature_c"], "celsius", ("celsius", 1.0)),
        (["sm_clock_mhz"], "megahertz", ("megahertz", 1.0)),
        (["load", "processes", "throttle_reasons"], "", ("count", 1.0)),
    ],
)
def test_the_end_of_a_name_is_its_unit(columns: list[str], unit: str, in_documents: tuple[str, float]) -> None:
    assert {unit_of(column) for column in columns} == {unit}
    assert {document_unit(column) for column in columns} == {in_documents}
