"""Odd traces load and are shown; anything but a trace, path or limit raises an error of one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError
from tests.profile.test_load_trace import TABLES, loaded
from tests.written_traces import Written, training


def only_gpu() -> Written:
    return Written().event("gemm", 10, 30, "kernel", 7, 0, device=0, stream=7)


def huge_names() -> Written:
    trace = training(1)
    for event in trace.events:
        event["name"] += "<script>alert(1)</script>" + "x" * 5000
    return trace.module("<img src=x onerror=alert(1)>_0.a.b", 900, 910).op("", 905, 906).module("", 950, 960)


ODD: dict[str, Callable[[], Written]] = {
    "only a GPU": only_gpu,
    "one operator": lambda: Written().op("aten::mm", 5, 10),
    "nothing takes time": lambda: Written().step(1, 5, 5).op("aten::mm", 5, 5).module("A_0", 5, 5),
    "no device": lambda: Written(deviceProperties=[]).op("aten::mm", 5, 10).kernel("k", 6, 20, 30, device=None),
    "odd devices": lambda: Written(deviceProperties=[{"id": "a"}, {"name": 3, "id": [1]}]).kernel("k", 6, 20, 30),
    "no name of the device": lambda: Written(deviceProperties=[{"id": 0, "name": ""}]).kernel("k", 6, 20, 30),
    "a step without anything": lambda: Written().step(3, 0, 100),
    "steps and all outside": lambda: Written().step(3, 0, 100).op("aten::mm", 200, 300).kernel("k", 210, 220, 230),
    "huge names": huge_names,
    "only modules": lambda: Written().module("A_0", 0, 10).module("B_0", 2, 4),
    "an annotation called as the stand-in is": lambda: (
        Written().event("whole trace", 0, 5, "whole trace").op("aten::mm", 1, 2)
    ),
    "a huge number": lambda: Written().event("ProfilerStep#99999999999999999999", 0, 5).event("pf#9" + "9" * 30, 1, 2),
    "negative times": lambda: Written().step(1, -500, -100).op("aten::mm", -400, -300),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_traces_load_and_are_shown(make: Callable[[], Written], tmp_path: Path) -> None:
    trace = make()

    profile = loaded(trace, tmp_path)

    assert len(profile.events) == len(trace.events)
    for table in TABLES:
        getattr(profile, table)
    assert profile.phases["ms"].sum() == pytest.approx(profile.steps["wall_ms"].mean())
    assert len(profile.gpu_time) == any(event["cat"] == "kernel" for event in trace.events)
    assert str(profile)
    assert repr(profile)
    page = profile.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    again = perfnb.load(profile.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(again.events, profile.events)
    assert str(again) == str(profile)


def test_a_trace_without_events_is_empty(tmp_path: Path) -> None:
    profile = loaded(Written(), tmp_path)

    assert all(getattr(profile, table).empty for table in TABLES)
    assert "no events" in str(profile)


def test_a_folder_without_traces_is_refused_and_one_with_a_trace_is_one_rank(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"contains neither a saved profile \(no profile\.json\) nor traces; "):
        perfnb.load(tmp_path)
    trace = training(1).write(tmp_path / "trace.json")
    for given in (tmp_path, [trace]):
        ranks = perfnb.load(given)
        assert isinstance(ranks, perfnb.results.Ranks)
        assert len(ranks) == 1
    with pytest.raises(RecordingError, match=r"nowhere\.json does not exist\.$"):
        perfnb.load([trace, tmp_path / "nowhere.json"])


def test_events_that_end_before_they_begin_take_no_time(tmp_path: Path) -> None:
    trace = Written().step(0, 0, 100).op("aten::mm", 10, 20).op("aten::add", 50, 45).op("aten::mul", 60, 52)

    assert loaded(trace, tmp_path).ops["total_cpu_ms"].to_dict() == {"aten::mm": 0.01, "aten::add": 0, "aten::mul": 0}
