"""To which step an event belongs: the same in the recording, in ``events``, in the tables of GPUs and in an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.profile.profile import Profile
from perfnb.step.to_recording import _steps_of_trace
from perfnb.trace.kineto import read
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import DEVICE_WORK
from tests.written_traces import MAIN, Written

OTHER = 300
BORDERS = {0: 5, 99: 5, 100: 6, 199: 6, 200: None, 249: None, 250: 7, 349: 7, 350: None}


def two_and_one() -> Written:
    """Return steps 5 and 6 back to back, and step 7 after a pause."""
    return Written().step(5, 0, 100).step(6, 100, 200).step(7, 250, 350)


def loaded(trace: Written, tmp_path: Path) -> Profile:
    profile: Profile = perfnb.load(trace.write(tmp_path / "trace.json"))
    return profile


def steps(table: pd.DataFrame, name: str) -> list[int | None]:
    return [None if pd.isna(step) else int(step) for step in table.loc[table["name"] == name, "step"]]


def steps_of_work(p: Profile) -> list[int | None]:
    """Return what the tables of GPUs use, in order of time."""
    work = p._gpu_events().work
    return [None if step == -1 else step for step in work.step[np.argsort(work.start)].tolist()]


def exported(p: Profile, path: Path) -> dict[tuple[str, int], Any]:
    """Return the step of each piece of device work in an exported trace, by its name and correlation."""
    events = json.loads(p.save_trace(path).read_text())["traceEvents"]
    work = [event for event in events if event.get("cat") in DEVICE_WORK]
    return {(one["name"], one["args"]["correlation"]): one["args"].get("step") for one in work}


@pytest.mark.parametrize("thread", [MAIN, OTHER])
def test_an_event_belongs_to_the_step_in_which_it_starts(thread: int, tmp_path: Path) -> None:
    trace = two_and_one()
    for start in BORDERS:
        trace.op("aten::mm", start, start + 1, tid=thread)

    events = loaded(trace, tmp_path).events

    assert steps(events, "aten::mm") == list(BORDERS.values())


@pytest.mark.parametrize("thread", [MAIN, OTHER])
def test_device_work_belongs_to_the_step_of_its_launch(thread: int, tmp_path: Path) -> None:
    """Whenever it runs, and on whichever thread it was launched."""
    trace = two_and_one()
    for launch in BORDERS:
        trace.kernel("late", launch, launch + 120, launch + 121, tid=thread)

    p = loaded(trace, tmp_path)

    assert steps(p.events, "late") == list(BORDERS.values())
    assert steps_of_work(p) == list(BORDERS.values())
    in_export = exported(p, tmp_path / "export.json").values()
    assert [int(step.removeprefix("step ")) for step in in_export if step] == [5, 5, 6, 6, 7, 7]


def test_device_work_without_a_launch_is_in_the_step_in_which_it_starts(tmp_path: Path) -> None:
    trace = two_and_one().op("aten::mm", 10, 20)
    for start in BORDERS:
        trace.event("lost", start, start + 1, "kernel", 7, 0, device=0, stream=7, correlation=start + 1)

    p = loaded(trace, tmp_path)

    assert steps(p.events, "lost") == list(BORDERS.values())
    assert steps_of_work(p) == list(BORDERS.values())


def test_all_events_belong_to_the_step_that_stands_for_a_trace(tmp_path: Path) -> None:
    """Before its first op and after the last too, and on each thread."""
    trace = Written().op("aten::mm", 100, 200).op("aten::mm", 150, 160, tid=OTHER)
    for start in (0, 150, 300):
        trace.event("lost", start, start + 1, "kernel", 7, 0, device=0, stream=7, correlation=start + 1)

    events = loaded(trace, tmp_path).events

    assert events["step"].tolist() == [0] * 5
    assert (events["start_ns"] // 1000).tolist() == [-100, 0, 50, 50, 200]  # from the begin of the step


def live(trace: Written, path: Path) -> pd.DataFrame:
    """Return the events of a live profile's steps."""
    for event in trace.events:
        if event["name"].startswith("ProfilerStep#"):
            event |= {"name": event["name"].replace("ProfilerStep#", "pf_step#"), "cat": "cpu_op"}
    return _steps_of_trace(read(trace.write(path)))[0]


def test_a_live_profile_keeps_what_belongs_to_its_steps(tmp_path: Path) -> None:
    trace = two_and_one()
    for start in BORDERS:
        trace.op("aten::mm", start, start + 1)
        trace.kernel("late", start, start + 120, start + 121, tid=OTHER)
        trace.event("lost", start, start + 1, "kernel", 7, 0, device=0, stream=7, correlation=start + 1)
        trace.event("unnumbered", start, start + 1, "kernel", 7, 0, device=0, stream=7)

    events = live(trace, tmp_path / "trace.json")

    inside = [start for start, step in BORDERS.items() if step is not None]
    starts = events.groupby("name", observed=True)["start_ns"].agg(lambda times: (times // 1000).tolist())
    assert starts["aten::mm"] == starts["unnumbered"] == inside
    assert starts["late"] == [start + 120 for start in inside]
    assert "lost" not in starts  # launched before the trace began


def test_a_live_profile_keeps_work_that_calls_of_another_runtime_launched(tmp_path: Path) -> None:
    trace = two_and_one().event("urEnqueueKernelLaunch", 90, 95, "xpu_runtime", correlation=3)
    trace.event("gemm", 210, 220, "kernel", 7, 0, device=0, stream=7, correlation=3)

    assert "gemm" in live(trace, tmp_path / "trace.json")["name"].tolist()


def test_steps_are_found_in_any_order_and_none_among_none() -> None:
    starts, ends = np.array([20, 0, 10]), np.array([30, 10, 15])
    none = np.array([], dtype=np.int64)

    assert step_of(np.array([-1, 0, 9, 10, 14, 15, 19, 20, 29, 30]), starts, ends).tolist() == [
        *(-1, 1, 1, 2, 2, -1, -1, 0, 0, -1)
    ]
    assert step_of(np.array([0, 5]), none, none).tolist() == [-1, -1]
    assert step_of(none, starts, ends).tolist() == []
