"""*Frames and their columns* lists every column of every frame, with the unit that its name has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from perfnb.recording.schema import INDEX, PASSES, PHASES, SCHEMA
from perfnb.roofline.levels import POINTS
from tests.docs.pages import DOCS

PAGE = (DOCS / "frames.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!##).*\n?)*)", PAGE, re.MULTILINE))

#: The frames that a section describes, where its heading is not the name of one.
OF_SECTION = {
    "ops": ("ops", "layer_ops"),
    "kernels and kernel ops": ("kernels", "kernel_ops"),
    "compiled and compiled regions": ("compiled", "compiled_regions"),
    "GPU time and GPU steps": ("gpu_time", "gpu_steps"),
    "GPU idle": ("gpu_idle",),
    "launches and queue": ("launches", "queue"),
    "critical path and path savings": ("critical_path", "path_savings"),
    "samples": ("samples", "marks"),
    "ops, by_op and kernels": ("diff_ops", "diff_by_op", "diff_kernels"),
    "gpu_time of a comparison": ("diff_gpu_time",),
    "functions and stacks": ("functions", "stacks"),
    "functions of a comparison": ("diff_functions",),
}
COLUMNS = {name: set(columns) for name, columns in SCHEMA.items()} | {"roofline": set(POINTS)}

#: How the unit of a column with this ending begins; the first that fits decides.
UNITS = {
    "bytes_per_s": "bytes/s",
    "flops_per_s": "FLOP/s",
    **{"ms": "ms", "us": "µs", "ns": "ns", "s": "s", "bytes": "bytes", "flops": "FLOPs"},
    **{"share": "0 to 1", "efficiency": "0 to 1", "pct": "%", "percent": "%"},
    **{"w": "W", "j": "J", "c": "°C", "mhz": "MHz", "intensity": "FLOP per byte"},
}
#: Bytes without a unit in their names: the categories of memory.
BYTES = {*SCHEMA["memory"]} - {"t_ms", "device"}


def unit_of(column: str, frame: str) -> str:
    """Return the unit that a column has by its name; empty if it has none."""
    name = re.sub("_[ab]$", "", column)
    if frame == "memory" and name in BYTES:
        return "bytes"
    return next((unit for end, unit in UNITS.items() if name == end or name.endswith(f"_{end}")), "")


def rows(section: str) -> Iterator[tuple[list[str], str]]:
    """Yield the columns and the unit of each row of a section's table."""
    for line in SECTIONS[section].splitlines():
        if line.startswith("| `"):
            _, names, unit, _ = line.split("|", 3)
            yield re.findall(r"`(\w+)`", names), unit.strip()


def frames_of(section: str) -> tuple[str, ...]:
    return OF_SECTION.get(section, (section,))


def test_every_frame_has_one_section() -> None:
    described = [frame for section in SECTIONS for frame in frames_of(section)]

    assert sorted(described) == sorted(COLUMNS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_every_column_of_its_frames(section: str) -> None:
    listed = [name for names, _ in rows(section) for name in names]
    columns = set().union(*(COLUMNS[frame] for frame in frames_of(section)))
    indexed = {INDEX[frame] for frame in frames_of(section) if frame in INDEX}
    text = SECTIONS[section]

    assert len(listed) == len(set(listed))
    assert columns - {column for column in columns if f"`{column}`" in text} == set()
    assert set(listed) - columns - indexed == set()
    assert {name for name in indexed if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("section", SECTIONS)
def test_the_unit_of_a_column_is_that_of_its_name(section: str) -> None:
    for names, unit in rows(section):
        for name in names:
            expected = {unit_of(name, frame) for frame in frames_of(section) if name in COLUMNS[frame]}
            begins = {word for word in expected if word and unit.startswith(word)}
            assert begins == expected - {""}, f"{name}: {unit or 'no unit'} instead of {expected}"
            assert unit == "" or expected != {""}, f"{name} has no unit, but the page says {unit}"


def test_passes_and_phases_are_all_named() -> None:
    assert {name for name in PASSES if f"`{name}`" not in SECTIONS["steps"]} == set()
    assert {name for name in PHASES if f"`{name}`" not in SECTIONS["phases"]} == set()
