"""The ranges of the numbers that a saved folder may contain: what perfnb can compute with, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
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

FAR, RANK = 2**62, 2**31 - 1
SUM = {"max": 1, "known_s": 1, "readings": 1}


def assert_range(read: Callable[[float], object], error: type[Exception], least: float, most: float) -> None:
    for value, way in ((least, -1), (most, 1)):
        if abs(value) < math.inf:
            assert read(value) is not None
            with pytest.raises(error, match=r"out-of-range|Expected `(int|float)` [<>]=? "):
                read(value + way if isinstance(value, int) else math.nextafter(value, way * math.inf))


@pytest.mark.parametrize(
    ("kind", "least", "most", "known"),
    [
        *[(facts.Whole, -(2**63), 2**63 - 1, None), (facts.Count, 0, FAR, None), (facts.Rank, 0, RANK, None)],
        *[(facts.Number, -1e18, 1e18, None), (facts.Amount, 0.0, 1e18, None), (facts.Share, 0.0, 1.0, None)],
        *[(facts.Above0, math.nextafter(0, 1), 1e18, None), (facts.Options, 0.0, math.inf, {"budget_s": 0})],
        *[(facts.Sum, -1e30, 1e30, SUM | {"integral": 0}), (facts.PlaceInJob, 1, RANK, {"rank": 0, "world_size": 0})],
        *[(facts.PythonFacts, 1, 2**31, {"samples": 0, "steps": 0}), (Operation, 0, 2**53 - 1, ["", "", [], [], 0, 0])],
    ],
)
def test_facts_have_a_range(kind: Any, least: float, most: float, known: Any) -> None:
    def convert(value: float) -> Any:
        whole = [*known[:-1], value] if isinstance(known, list) else known and known | {[*known][-1]: value}
        return msgspec.convert(value if known is None else whole, kind)

    assert_range(convert, msgspec.ValidationError, least, most)


COLUMNS: dict[str, tuple[float, float]] = {
    **{f"events.{name}": (-1, math.inf) for name in ("elements", "span", "marks_step")},
    **{"events.duration_ns": (0, math.inf), "modules.depth": (0, math.inf), "spans.span": (0, math.inf)},
    **{"steps.wall_ms": (0.0, 1e15), "steps.data_ms": (0.0, 1e15), "steps.start_s": (-1e12, 1e12)},
    **{"steps.samples": (0, FAR), "arithmetic_calls.bytes": (0, FAR), "compiled_kernels.flops": (0, FAR)},
    **{"python_tree.line": (-1, 2**31), "python_tree.self_ns": (0, FAR), "watch_marks.depth": (0, 10**6)},
    **{"compiled_shares.share": (0.0, 1.0), "compiled_code.compile_s": (0.0, 1e9), "watch_samples.readings": (0, FAR)},
}


@pytest.mark.parametrize(("column", "ends"), COLUMNS.items())
def test_columns_have_a_range(tmp_path: Path, column: str, ends: tuple[float, float]) -> None:
    frame, _, name = column.partition(".")

    def read(value: float) -> Any:
        pq.write_table(pa.table({name: [value]}), tmp_path / "frame.parquet")
        return FrameFile(tmp_path / "frame.parquet", {name: RAW_FRAMES[frame][name]}).frame()

    assert_range(read, RecordingError, *ends)
