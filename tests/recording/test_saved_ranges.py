"""The ranges of the numbers that a saved folder may contain: what perfnb can compute with, and no more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfnb.errors import RecordingError
from perfnb.recording import saved_facts as facts
from perfnb.recording.frame_files import FrameFile
from perfnb.recording.kernel_work import Operation
from perfnb.recording.raw_frames import RAW_FRAMES


def above(value: float) -> float:
    return value + 1 if isinstance(value, int) else math.nextafter(value, math.inf)


def below(value: float) -> float:
    return value - 1 if isinstance(value, int) else math.nextafter(value, -math.inf)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (facts.Whole, -(2**63), 2**63 - 1),
        (facts.Count, 0, 2**62),
        (facts.Number, -1e18, 1e18),
        (facts.Amount, 0.0, 1e18),
        (facts.Share, 0.0, 1.0),
        (facts.Above0, math.nextafter(0, 1), 1e18),
        (facts.Rank, 0, 2**31 - 1),
    ],
)
def test_facts_have_a_range(kind: Any, least: float, most: float) -> None:
    for value in (least, most):
        assert msgspec.convert(value, kind) == value
    for value in (below(least), above(most)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)


@pytest.mark.parametrize(
    ("kind", "known", "key", "least", "most"),
    [
        (facts.Options, {}, "budget_s", 0.0, None),
        (facts.Sum, {"max": 1, "known_s": 1, "readings": 1}, "integral", -1e30, 1e30),
        (facts.PlaceInJob, {"rank": 0}, "world_size", 1, 2**31 - 1),
        (facts.PythonFacts, {"samples": 0}, "steps", 1, 2**31),
        (Operation, {"name": "", "op": "", "modules": [], "inputs": [], "flops": 0}, "bytes", 0, 2**53 - 1),
    ],
)
def test_facts_with_a_range_of_their_own_have_it(
    kind: Any, known: dict[str, Any], key: str, least: float, most: float | None
) -> None:
    def convert(value: float) -> Any:
        whole = known | {key: value}
        return msgspec.convert([whole[name] for name in kind._fields[:6]] if kind is Operation else whole, kind)

    assert all(convert(value) for value in (least, most) if value is not None)
    for value in [below(least), *(() if most is None else (above(most),))]:
        with pytest.raises(msgspec.ValidationError):
            convert(value)


@pytest.mark.parametrize(
    ("column", "least", "most"),
    [
        ("events.duration_ns", 0, None),
        ("events.elements", -1, None),
        ("events.span", -1, None),
        ("events.marks_step", -1, None),
        ("steps.wall_ms", 0.0, 1e15),
        ("steps.data_ms", 0.0, 1e15),
        ("steps.start_s", -1e12, 1e12),
        ("steps.samples", 0, 2**62),
        ("modules.depth", 0, None),
        ("modules.parameters", 0, 2**62),
        ("spans.span", 0, None),
        ("memory_known.bytes", 0, None),
        ("arithmetic_calls.flops", 0, 2**62),
        ("arithmetic_calls.bytes", 0, 2**62),
        ("watch_samples.readings", 0, 2**62),
        ("watch_marks.depth", 0, 10**6),
        ("watch_marks.end_s", -1e12, 1e12),
        ("python_tree.line", -1, 2**31),
        ("python_tree.self_ns", 0, 2**62),
        ("compiled_kernels.flops", 0, 2**62),
        ("compiled_shares.share", 0.0, 1.0),
        ("compiled_code.compile_s", 0.0, 1e9),
    ],
)
def test_columns_have_a_range(tmp_path: Path, column: str, least: float, most: float | None) -> None:
    frame, _, name = column.partition(".")

    def read(value: float) -> None:
        pq.write_table(pa.table({name: [value]}), tmp_path / "frame.parquet")
        FrameFile(tmp_path / "frame.parquet", {name: RAW_FRAMES[frame][name]}).frame()

    for value in (least, most):
        if value is not None:
            read(value)
    for value in [below(least), *(() if most is None else (above(most),))]:
        with pytest.raises(RecordingError, match=rf"its column '{name}' contains an out-of-range value"):
            read(value)
