"""The table ``events``: what each event keeps, and to which layer, phase and step it belongs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pandas as pd
import pytest

from perfnb.attribution.events import all_events
from tests.attribution.test_marks_inside_spans import profile_of
from tests.written_traces import BACKWARD, Written


def rows(table: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(None if pd.isna(value) else value for value in row) for row in table[[*columns]].to_numpy(object)]


def test_a_python_call_is_in_the_layer_phase_and_step_in_which_it_starts() -> None:
    trace = Written().step(5, 0, 100).step(6, 100, 200)
    trace.module("Net_0", 20, 60).module("Linear_0", 30, 50).op("aten::mm", 31, 34, 1)
    trace.node("MmBackward0", 110, 130, 1)
    for begin in (10, 25, 35, 55, 65, 150, 250):
        trace.event(f"at {begin}", begin, begin + 2, "python_function")
    for begin in (90, 115, 140):
        trace.event(f"at {begin} in backward", begin, begin + 2, "python_function", BACKWARD)

    events = profile_of(trace).events

    linear = "Net_0.Linear_0"
    calls = events[events["name"].astype(str).str.startswith("at ")]
    assert rows(calls, "name", "layer", "phase", "step") == [
        *[("at 10", None, "other", 5), ("at 25", "Net_0", "forward", 5), ("at 35", linear, "forward", 5)],
        *[("at 55", "Net_0", "forward", 5), ("at 65", None, "other", 5), ("at 90 in backward", None, None, 5)],
        *[("at 115 in backward", linear, "backward", 6), ("at 140 in backward", None, None, 6)],
        *[("at 150", None, "other", 6), ("at 250", None, None, None)],
    ]
    assert events["layer"].cat.categories.tolist() == ["Net_0", linear]  # but not the engine, which has no event


def test_events_inside_and_outside_steps_keep_their_numbers_in_order_of_time() -> None:
    trace = Written().event("late", 130, 140, "kernel", 7, 0, device=1, stream=8, correlation=4)
    trace.event("early", 20, 30, "kernel", 7, 0, device=0, stream=7, correlation=3)
    trace.event("aten::mm", 15, 25, **{"Input Dims": [[2, 3]]}).step(5, 10, 110)

    events = profile_of(trace).events

    assert events.index.tolist() == [0, 1, 2, 3]
    assert rows(events, "name", "start_ns", "duration_ns", "step", "device", "stream", "correlation", "process") == [
        ("ProfilerStep#5", 0, 100_000, 5, None, None, None, 100),
        ("aten::mm", 5_000, 10_000, 5, None, None, None, 100),
        ("early", 10_000, 10_000, 5, 0, 7, 3, 0),
        ("late", 120_000, 10_000, None, 1, 8, 4, 0),
    ]
    assert rows(events, "shapes", "phase") == [(None, "other"), ("[[2, 3]]", "other"), (None, None), (None, None)]
    assert events["layer"].isna().all()


@pytest.mark.parametrize("columns", [None, {"start_ns", "name"}])
def test_all_events_of_a_trace_are_those_in_its_file(columns: Collection[str] | None) -> None:
    whole = profile_of(Written().op("a", 10, 20).op("b", 30, 40))._recording
    # Layers of compiled code are put before the event that stands for the whole trace.
    moved = replace(whole, events=whole.events.iloc[[1, 0, 2]], meta={**whole.meta, "rank": 3})
    marked = profile_of(Written().op("outside", 10, 20).step(5, 30, 40).op("inside", 32, 35))._recording
    for recording, names in ((whole, "a b"), (moved, "a b"), (marked, "ProfilerStep#5 inside outside")):
        found = all_events(recording, columns)
        assert found["name"].tolist() == names.split()
        assert (found.index.tolist(), set(found["rank"])) == ([*range(len(found))], {recording.rank})
        kept = [name for name in recording.events if columns is None or name in columns]
        assert found.columns.tolist() == [*kept, "rank"]
