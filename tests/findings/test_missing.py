"""No rule minds what is missing: each column of each table is taken away in turn, wholly and in one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.findings.finding import Rule
from perfnb.findings.rules import RULES, compiled
from perfnb.profile.summary import summarize
from perfnb.recording.recording import Recording
from tests.findings.findings_recordings import compiled_cpu, live_cpu, live_gpu, loaded, obeys_the_laws
from tests.written_traces import Written, training

#: Columns that every recording has, whole: without them there is no event, step, layer or span.
ALWAYS = {
    "events": ("name", "category", "start_ns", "duration_ns", "thread"),
    "steps": ("pass", "wall_ms"),
    "modules": ("name", "parent", "depth", "compiled"),
    "spans": ("layer", "loss"),
    "changes": ("event", "time_ns", "address", "bytes", "device"),
    "known": ("time_ns", "address", "bytes", "device", "category"),
    "resident": ("time_ns", "bytes"),
    "calls": ("op",),
    "compiled_kernels": ("graph", "kernel", "direction"),
    "compiled_shares": ("kernel", "layer", "share"),
    "compiled_calls": ("kernel", "start_ns", "duration_ns"),
    "compiled_code": ("region",),
}
#: Columns that some recordings lack.
OPTIONAL = {
    "events": ("process", "external_id", "wait_stream", "wait_correlation", "bytes", "shapes", "collective", "group"),
    "steps": ("start_s", "step"),
    "spans": ("derived",),
    "compiled_kernels": ("leaves",),
}


def without(frame: pd.DataFrame, column: str, rows: Any) -> pd.DataFrame:
    """Return the frame with nothing known in some rows of a column: -1 where it holds numbers of events, else
    missing.
    """
    values = frame[column]
    if not pd.api.types.is_numeric_dtype(values):
        changed = values.copy()
        changed.iloc[rows] = None
    elif values.dtype == np.int64 and column not in ("parameters", "parameter_bytes", "flops", "samples"):
        changed = values.copy()
        changed.iloc[rows] = -1
    else:
        changed = values.astype("Float64" if str(values.dtype).lower().startswith("float") else "Int64")
        changed.iloc[rows] = pd.NA
        if str(values.dtype) == "float64":
            changed = changed.astype("float64")
    return frame.assign(**{column: changed})


def frames(recording: Recording) -> Iterator[tuple[str, pd.DataFrame, Any]]:
    """Yield each frame with its name and what puts another in its place."""
    for name in ("events", "steps", "modules", "spans"):
        yield name, getattr(recording, name), lambda frame, name=name: replace(recording, **{name: frame})
    for part in ("memory", "arithmetic", "compiled"):
        record = getattr(recording, part)
        for field in fields(record) if record is not None else ():
            yield (
                f"compiled_{field.name}" if part == "compiled" else field.name,
                getattr(record, field.name),
                lambda frame, part=part, record=record, name=field.name: replace(
                    recording, **{part: replace(record, **{name: frame})}
                ),
            )


def variants(recording: Recording) -> Iterator[tuple[str, Recording]]:
    """Yield the recording with each column missing in turn, in all rows, in one, and altogether where that may be."""
    for name, frame, put in frames(recording):
        for column in frame.columns:
            if column in ALWAYS[name]:
                continue
            if column in OPTIONAL.get(name, ()) and frame[column].dtype == bool:
                yield f"{name}.{column}: absent", put(frame.drop(columns=column))
                continue
            yield f"{name}.{column}: all", put(without(frame, column, slice(None)))
            if len(frame):
                yield f"{name}.{column}: one", put(without(frame, column, slice(0, 1)))
            if column in OPTIONAL.get(name, ()):
                yield f"{name}.{column}: absent", put(frame.drop(columns=column))
        if name in ("spans", "known", "resident", "calls", "compiled_calls", "compiled_code"):
            yield f"{name}: empty", put(frame.iloc[:0])
    nothing = {"memory": None, "compiled": None}  # both name layers
    yield "no layers", replace(recording, modules=recording.modules[:0], spans=recording.spans[:0], **nothing)
    yield "no memory", replace(recording, memory=None)
    yield "no arithmetic", replace(recording, arithmetic=None)
    yield "no compiled code", replace(recording, compiled=None)
    for key in recording.meta.keys() - {"name", "environment", "options", "trace"}:
        yield f"meta: no {key}", replace(recording, meta={k: v for k, v in recording.meta.items() if k != key})
    for part in ("environment", "parts", "noise", "cost", "bare_cost", "ceilings"):
        inside = recording.meta.get(part) or {}
        for key in inside:
            for word, rest in (
                ("no", {k: v for k, v in inside.items() if k != key}),
                ("None in", {**inside, key: None}),
            ):
                if part in ("noise", "cost", "bare_cost", "environment") and word != "no":
                    continue  # these are written whole or not at all
                if (part, key) in (("ceilings", "on"), ("environment", "threads")):
                    continue
                yield f"meta.{part}: {word} {key}", replace(recording, meta={**recording.meta, part: rest})
    for place, key in (("optimizers", key) for key in ("class", "tensors", "at_once", "arguments", "untold", "groups")):
        parts = recording.meta.get("parts")
        if parts:
            (known,) = parts[place]
            changed = {**parts, place: [{k: v for k, v in known.items() if k != key}]}
            yield f"meta.parts.{place}: no {key}", replace(recording, meta={**recording.meta, "parts": changed})


def recordings(folder: Path) -> dict[str, Recording]:
    return {
        **{"live_cpu": live_cpu(), "live_gpu": live_gpu(), "loaded": loaded(folder, training(2))},
        "compiled": compiled_cpu(),
    }


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)], ids=["all", "one"])
@pytest.mark.parametrize(
    ("make", "frame_names", "rules"),
    [
        (live_cpu, "modules", RULES),
        (compiled_cpu, "compiled", [compiled.graph_breaks, compiled.recompilation, compiled.small_regions]),
    ],
    ids=["layers", "compiled"],
)
def test_rules_tolerate_layers_and_compiled_code_with_unknown_values(
    make: Callable[[], Recording], frame_names: str, rules: list[Rule], rows: slice
) -> None:
    asked = 0
    for name, frame, put in frames(make()):
        if name.startswith(frame_names):
            for column in frame.columns.difference(ALWAYS[name]):
                obeys_the_laws(put(without(frame, column, rows)), rules)
                asked += 1
    assert asked >= 3


@pytest.mark.deep
@pytest.mark.parametrize("name", ["live_cpu", "live_gpu", "loaded", "compiled"])
def test_every_rule_stands_missing_values(name: str, tmp_path: Path) -> None:
    recording, failed = recordings(tmp_path)[name], {}
    assert obeys_the_laws(recording)
    for what, variant in variants(recording):
        try:
            obeys_the_laws(variant)
            summarize(variant)
        except Exception as error:
            failed[what] = f"{type(error).__name__}: {error}"

    assert not failed, "\n".join(f"{what}: {error}" for what, error in failed.items())


def test_a_trace_of_python_calls_alone_has_no_verdict(tmp_path: Path) -> None:
    trace = Written()
    for number in range(20):
        trace.event(f"train.py({number}): f{number}", 10 * number, 10 * number + 9, "python_function")

    found = perfnb.load(trace.write(tmp_path / "trace.json"))._summary.findings

    assert found is not None
    assert found.table.empty
    assert found.verdict.verdict == "No verdict: the trace contains no operators."
    assert "smaller model" not in found.verdict.next
    assert "ProfilerActivity.CPU" in found.verdict.next
    with_an_op = perfnb.load(trace.op("aten::add", 3, 5).write(tmp_path / "trace.json"))._summary.findings
    assert with_an_op is not None
    assert with_an_op.verdict.verdict.startswith("Nothing stands out.")
