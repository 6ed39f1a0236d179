"""Tables of the GPU for public traces of NVIDIA's and AMD's GPUs, whose figures other code summed from the raw JSON."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.device_work import device_work, step_windows
from perfnb.attribution.interval_sets import union
from perfnb.gpu.critical_path import path_in, prepare
from perfnb.gpu.device_time import REASONS, gpu_time, idle_gaps, idle_time
from perfnb.gpu.launches import kernels_by_op, launches, launches_by_op, queue_lengths
from perfnb.gpu.path_savings import Retiming
from tests.gpu.paths import critical_path, window_in
from tests.traces_by_hand import FOLDER, expected, public, public_trace

pytestmark = public


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(expected()))
def test_a_trace_has_its_known_times(name: str) -> None:
    fact, events = expected()[name]["gpu"], public_trace(name)

    (row,) = gpu_time(events).to_dict("records")

    # The known figures were computed with times as 64-bit floats; ours are exact. Each border of a merged interval may
    # have been off by half of what such a float can tell apart, which is nothing for times in whole microseconds.
    work, first = device_work(events), float(_first_microsecond(name))
    resolution = 0.0 if first.is_integer() else float(np.spacing(first)) * len(union(work.start, work.end).start)
    for part in ("busy", "computation", "communication"):
        assert row[f"{part}_ms"] * 1e3 == pytest.approx(fact[f"{part}_us"], abs=1e-3 + resolution, rel=0), part
    assert row["total_ms"] * 1e3 == pytest.approx(fact["total_us"], abs=1.1e-3, rel=0)
    assert row["idle_pct"] == pytest.approx(fact["idle_pct"], abs=1e-3)
    assert row["kernels"] == fact["kernels"]
    assert row["kernel_ms"] * 1e3 == pytest.approx(fact["kernel_sum_us"], abs=1.1e-3, rel=0)
    assert row["busy_ms"] + row["idle_ms"] == pytest.approx(row["total_ms"], rel=1e-12)


def _first_microsecond(name: str) -> str:
    """Return the first time in the file, unchanged."""
    data = (FOLDER / "kineto" / name).read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    found = re.search(rb'"ts"\s*:\s*([0-9.eE+]+)', data[data.find(b'"X"') :])
    assert found is not None
    return found[1].decode()


def test_the_hosts_part_of_the_gaps() -> None:
    """Milliseconds of all gaps until the call began, in it, and after it returned."""
    (row,) = idle_time(public_trace("mi300_vit.json.gz")).to_dict("records")

    assert row["host_ms"] - row["call_ms"] - row["latency_ms"] == pytest.approx(2.57, rel=0.01)
    assert row["call_ms"] == pytest.approx(0.52, rel=0.03)
    assert row["latency_ms"] + row["dependency_ms"] + row["other_ms"] == pytest.approx(2.06, rel=0.03)


def test_a_launch_does_not_take_what_nothing_explains() -> None:
    path = critical_path(public_trace("mi300_sglang_decode.json.gz"))

    sums = path.groupby("kind", observed=False)["duration_ns"].sum() / 1e6

    # The second kernel is launched at 0.123 ms in 0.005 and begins at 463.380.
    assert sums["launch"] < 0.05
    assert sums["unknown"] == pytest.approx(463.25, rel=0.01)


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(expected()))
def test_tables_add_up(name: str) -> None:
    fact, events = expected()[name]["gpu"], public_trace(name)

    sums = idle_time(events)
    assert sums["idle_ms"].sum() == pytest.approx(gpu_time(events)["idle_ms"].sum(), rel=1e-12)
    parts = sums[[f"{reason}_ms" for reason in REASONS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(sums["idle_ms"].tolist(), rel=1e-12)
    assert (idle_gaps(events)["duration_ns"] > 0).all()

    rows = launches(events)
    kernels = kernels_by_op(rows, ["op", "shapes", "name"])
    for table in (kernels, kernels_by_op(rows)):
        assert table["calls"].sum() == len(rows)
        assert table["total_ms"].sum() == pytest.approx(rows["duration_ns"].sum() / 1e6, rel=1e-9)
    own = kernels.reset_index()["name"].astype(str)
    assert (
        own[own.isin(events.loc[events["category"] == "kernel", "name"].astype(str))].nunique()
        == (fact["distinct_kernels"])
    )
    assert (queue_lengths(events)["length"] >= 0).all()
    assert launches_by_op(rows)["launched"].sum() == len(rows)


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(expected()))
def test_paths_have_no_gap_and_no_part_saves_more_than_it_takes(name: str) -> None:
    run = prepare(public_trace(name))
    steps = step_windows(run.events)
    for number in (*steps["number"].tolist()[:2], None):
        for tail in (False, True):
            window = window_in(run, number, tail=tail)
            path = path_in(run, window)
            begin, duration = path["start_ns"].to_numpy(), path["duration_ns"].to_numpy()
            assert (duration > 0).all()
            assert (begin[:-1] + duration[:-1] == begin[1:]).all()
            if number is not None and not tail:
                (step,) = steps[steps["number"] == number].to_dict("records")
                assert (begin[0], duration.sum()) == (step["start"], step["end"] - step["start"])
            for by in ("kind", "op", "name"):
                takes: pd.Series = path.groupby(by, observed=True)["duration_ns"].sum()
                parts = takes.nlargest(12).index.tolist()
                saved = Retiming(run, window, by, parts).saved() if parts else np.array([])  # before it is cut
                assert ((saved >= 0) & (saved <= takes.loc[parts].to_numpy())).all()
