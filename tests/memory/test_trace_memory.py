"""Memory of a loaded trace: totals as the file has them, at their own times, and nothing that it does not tell."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.recording.schema import CATEGORIES
from perfnb.timeline.median_step import step_timeline
from perfnb.timeline.tab import step_html
from perfnb.timeline.timeline import Timeline, coarser
from tests.traces_by_hand import FOLDER, public
from tests.written_traces import Written, training

CUDA, HIP = 1, 6


def loaded(path: Path) -> perfnb.Profile:
    profile = perfnb.load(path)
    assert isinstance(profile, perfnb.Profile)
    return profile


def line_of(profile: perfnb.Profile) -> Timeline:
    line = profile._timeline()
    assert line is not None
    return line


def curves(profile: perfnb.Profile) -> dict[str, list[tuple[float, int]]]:
    """Time in µs from the first step on, and bytes, by device."""
    return {
        curve.device: list(zip((curve.times_ns / 1e3).tolist(), curve.bytes.tolist(), strict=True))
        for curve in line_of(profile).memory
    }


def with_memory() -> Written:
    """Return two steps from 0 to 1000 and 2000 to 3000 µs; the trace begins before, at -20 µs."""
    trace = training().event("aten::before", -20, -10)
    trace.memory(90, 512, 10_512, CUDA, 0, reserved=20_000).memory(80.125, 100, 100).memory(285.5, -100, 0)
    trace.memory(1500, -512, 10_000, CUDA, 0, reserved=20_000)  # between the steps
    return trace.memory(2090, 4000, 14_000, CUDA, 0, reserved=30_000)


def test_totals_stand_at_their_own_times_and_before_the_first_what_was_there(tmp_path: Path) -> None:
    profile = loaded(with_memory().write(tmp_path / "trace.json"))

    assert curves(profile) == {
        "cpu": [(-20, 0), (80.125, 100), (285.5, 0)],
        "cuda:0": [(-20, 10_000), (90, 10_512), (1500, 10_000), (2090, 14_000)],
    }
    assert {curve.note for curve in line_of(profile).memory} == {"from the trace"}


def test_the_table_has_totals_and_no_categories(tmp_path: Path) -> None:
    memory = loaded(with_memory().write(tmp_path / "trace.json")).memory

    assert list(memory.columns) == ["t_ms", "device", *CATEGORIES, "total", "reserved", "process"]
    assert memory["t_ms"].tolist() == [-0.02, 0.080125, 0.2855, -0.02, 0.09, 1.5, 2.09]
    assert memory["device"].tolist() == ["cpu"] * 3 + ["cuda:0"] * 4
    assert memory["total"].tolist() == [0, 100, 0, 10_000, 10_512, 10_000, 14_000]
    assert memory[[*CATEGORIES, "process"]].isna().all(axis=None)
    assert memory["reserved"].isna().tolist() == [True] * 4 + [False] * 3
    assert memory["reserved"].dropna().tolist() == [20_000, 20_000, 30_000]


@pytest.mark.slow
def test_views_show_the_curve_and_claim_no_categories(tmp_path: Path) -> None:
    profile = loaded(with_memory().write(tmp_path / "trace.json"))

    assert profile._summary.memory is None
    assert "memory" not in [tab.kind for tab in profile._document().tabs]
    (note,) = [note for note in profile._summary.notes if "memory" in note]
    assert "but not for what purpose" in note
    assert "exclude memory that was allocated before the trace" in note
    assert "The memory curve is from the trace" in " ".join(str(profile).split())
    assert profile.allocations.empty
    assert profile.layers["peak_bytes"].isna().all()
    assert "The memory curve is from the trace" in profile._repr_mimebundle_()["text/html"]
    step = step_timeline(line_of(profile))
    assert step is not None
    words = [
        word for word in re.findall(r"<text [^>]*>([^<]*)</text>", step_html(step)) if re.search("Memory|most", word)
    ]
    assert words == ["Memory, cuda:0", "10.3 KiB at most", "Memory, CPU", "100 B at most"]


def test_a_device_without_totals_has_none_and_another_is_named_by_its_kind(tmp_path: Path) -> None:
    trace = training().memory(90, 512, None, CUDA, 0).memory(95, 8, 8, HIP, 1).memory(96, 8, 8, 77, 0)
    trace.memory(99, 4, 2).memory(98, 1, -5).memory(100, 1, 3, 0, 0)
    profile = loaded(trace.write(tmp_path / "trace.json"))

    assert len(line_of(profile).memory) == 3
    assert curves(profile) == {
        "cpu": [(99, 2), (100, 3)],  # less than what was allocated: what was before is not known
        "hip:1": [(0, 0), (95, 8)],
        "device of type 77:0": [(0, 0), (96, 8)],
    }
    assert len(profile.memory) == 6


@pytest.mark.slow
def test_a_trace_without_totals_has_no_table(tmp_path: Path) -> None:
    profile = loaded(training().memory(90, 512, None).write(tmp_path / "a.json"))
    assert profile.memory.empty
    assert line_of(profile).memory == ()
    assert not [note for note in profile._summary.notes if "memory" in note]


@pytest.mark.slow
def test_a_step_before_the_first_total_shows_no_curve(tmp_path: Path) -> None:
    trace = training(1).event("aten::late", 5000, 5001).memory(4000, 100, 50)
    line = line_of(loaded(trace.write(tmp_path / "trace.json")))
    (curve,), step = line.memory, step_timeline(line)

    assert curve.times_ns.tolist() == [4_000_000]
    assert step is not None
    assert [len(one.bytes) for one in step.timeline.memory] == [0]


def test_a_trace_of_memory_alone_counts_from_its_first_total(tmp_path: Path) -> None:
    profile = loaded(Written().memory(500, 8, 8).memory(1500, 8, 16).write(tmp_path / "trace.json"))

    assert profile.memory[["t_ms", "total"]].values.tolist() == [[0, 8], [1, 16]]
    assert str(profile)


def test_totals_and_times_of_any_size_are_borne(tmp_path: Path) -> None:
    trace = training(1)
    for place in range(5000):
        trace.memory(9e14 / 5000 * place + 10, 2**62, 2**62 + place)
    trace.memory(50, 2**70, 2**70).memory(60, -(2**62), 2**63 - 1)
    line = line_of(loaded(trace.write(tmp_path / "trace.json")))

    (thin,) = coarser(line, 2).memory

    (curve,) = line.memory
    assert curve.bytes.max() == thin.bytes.max() == 2**63 - 1
    assert 3000 < len(thin.bytes) <= 4000
    assert (np.diff(thin.times_ns) >= 0).all()


@pytest.mark.slow
def test_a_saved_profile_keeps_it_and_an_older_one_without_it_loads(tmp_path: Path) -> None:
    profile = loaded(with_memory().write(tmp_path / "trace.json"))
    saved = profile.save(tmp_path / "saved")

    again = loaded(saved)

    pd.testing.assert_frame_equal(again.memory, profile.memory)
    assert curves(again) == curves(profile)
    (saved / "trace_memory.parquet").unlink()
    old = loaded(saved)
    assert old.memory.empty
    assert line_of(old).memory == ()


def raw_totals(path: Path, kind: int = 0) -> list[tuple[float, int]]:
    """Return the times and totals of a kind of device, as the JSON has them."""
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    told = [one for one in events if one["name"] == "[memory]" and one["args"]["Device Type"] == kind]
    told.sort(key=lambda one: one["ts"])
    return [(one["ts"], one["args"]["Total Allocated"]) for one in told]


def assert_as_told(profile: perfnb.Profile, device: str, told: list[tuple[float, int]]) -> None:
    line = line_of(profile)
    (curve,) = [curve for curve in line.memory if curve.device == device]
    assert curve.bytes[-len(told) :].tolist() == [total for _, total in told]
    assert len(curve.bytes) - len(told) in (0, 1)  # what was there before
    assert curve.bytes[-1] == told[-1][1]
    assert curve.bytes.max() == max(total for _, total in told)
    times = (curve.times_ns + line.zero_ns)[-len(told) :] / 1e3
    assert times == pytest.approx([time for time, _ in told], abs=0.002)
    table = profile.memory[profile.memory["device"] == device]
    assert table["total"].tolist() == curve.bytes.tolist()
    assert table["t_ms"].to_numpy(dtype=float) == pytest.approx(curve.times_ns / 1e6)


def test_a_trace_of_torch_shows_what_its_json_says(tmp_path: Path) -> None:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer, x = torch.optim.Adam(net.parameters()), torch.randn(32, 64)
    path = tmp_path / "trace.json"

    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
        profile_memory=True,
    ) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            profiler.step()

    told = raw_totals(path)
    assert max(total for _, total in told) >= 32 * 128 * 4
    assert_as_told(loaded(path), "cpu", told)


@pytest.mark.slow
@public
@pytest.mark.parametrize(
    ("name", "device", "kind"),
    [
        ("h100_bert_small.json.gz", "cuda:0", CUDA),
        ("mi300_vit.json.gz", "hip:0", HIP),
    ],
)
def test_public_traces_show_what_their_json_says(name: str, device: str, kind: int) -> None:
    path = FOLDER / "kineto" / name
    assert_as_told(loaded(path), device, raw_totals(path, kind))
