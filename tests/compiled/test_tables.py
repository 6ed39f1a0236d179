"""The tables of compiled code, of two steps whose times are known to the microsecond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.compiled.runs import region_runs
from perfnb.compiled.tab import _happened, _lines, compiled_document, compiled_verdict
from perfnb.compiled.tables import CompiledSummary, compiled_kernel_table, compiled_summary, fused_ms, region_table
from perfnb.recording.compiled_layers import CompiledCode, with_compiled_regions
from perfnb.recording.raw_frames import frame_of_rows
from perfnb.recording.recording import Recording
from tests.recording.test_compiled_layers import BACK, SHARED, backward, net, region
from tests.recordings import ByHand
from tests.samples import texts
from tests.samples.compiled import DOCUMENTS


@cache
def two_steps(broke: str = "Call to print", work_us: tuple[tuple[float, float, float], ...] = ()) -> Recording:
    """Return steps of two regions, 20 µs apart, and of their backward passes, 10 µs apart.

    `work_us` are the launch, the begin and the end of each kernel on a GPU.
    """
    hand = ByHand()
    net(hand)
    for number in range(2):
        t = 1000 * number
        hand.step(t, t + 500)
        region(hand, t + 10, 10 * number + 5, "0/0")
        region(hand, t + 130, 10 * number + 6, "1/0")
        backward(hand, t + 250, 10 * number + 6)
        backward(hand, t + 320, 10 * number + 5)
    for launch, begin, end in work_us:
        hand.kernel("gemm", launch, begin, end)
    code = [
        CompiledCode("0/0", "f", "/home/model.py:3", broke=broke, broke_at="/home/model.py:9" if broke else ""),
        CompiledCode("1/0", "g", "/home/model.py:10"),
    ]
    return with_compiled_regions(hand.recording(), [SHARED, BACK], code)


def test_times_around_the_forward_and_the_backward_pass_of_each_region() -> None:
    recording = two_steps()
    assert recording.compiled is not None
    found = region_runs(recording, recording.compiled)
    assert found["region"].tolist() == ["0/0", "1/0"] * 2
    assert found["step"].tolist() == [0, 0, 1, 1]
    assert found["group"].tolist() == [0, 1, 2, 3]
    assert found["has_graph"].all()
    us = found.drop(columns=["region", "step", "group", "has_graph", "start"]) / 1000
    own = {"own": 98, "lookup": 2, "enter": 10, "kernel": 60, "head": 20, "tail": 10, "rest": 6}
    back = {"back_kernel": 40, "back_head": 40, "back_tail": 40, "back_enter": 11}  # there is no library kernel
    for name, expected in (own | back).items():
        assert (name, us[f"{name}_ns"].tolist()) == (name, [expected] * 4)
    # Its graph ends 6 µs before the region, and the next one begins 22 µs after it, of which 2 are the lookup.
    for name, between in {"gap": 28, "apart": 20, "back_gap": 10}.items():
        assert us[f"{name}_ns"].tolist() == pytest.approx([between, np.nan] * 2, nan_ok=True)


def test_a_nested_region_has_its_own_time_and_accumulation_is_not_a_gap() -> None:
    hand = ByHand().step(0, 500)
    root, *_ = net(hand)
    hand.call(root, 5, 120)
    region(hand, 10, 5)
    hand.op("TorchDynamo Cache Lookup", 104.5, 105).op("Torch-Compiled Region: 1/0", 106, 109)
    region(hand, 130, 6, "2/0")
    backward(hand, 250, 6)
    hand.node("torch::autograd::AccumulateGrad", 311, 318, -1)
    backward(hand, 320, 5)
    recording = with_compiled_regions(hand.recording(), [SHARED, BACK], [CompiledCode(f"{n}/0") for n in range(3)])
    assert recording.compiled is not None

    found = region_runs(recording, recording.compiled)

    assert found["group"].tolist() == [0, 0, 2]
    assert found["has_graph"].tolist() == [True, False, True]
    us = found.select_dtypes("number") / 1000
    assert us["own_ns"].tolist() == [98 - 3, 3, 98]
    assert us["lookup_ns"].tolist() == [2, 0.5, 2]
    assert us["kernel_ns"].tolist() == [60, 0, 60]
    assert us["gap_ns"].tolist() == pytest.approx([106 - 104, 132 - 106, np.nan], nan_ok=True)
    assert us["rest_ns"].tolist() == [2, 110 - 106, 230 - 224]
    assert us["back_gap_ns"].tolist() == pytest.approx([10 - 7, np.nan, np.nan], nan_ok=True)
    (left, inside, last) = region_table(recording)["ms"].loc[["0/0", "1/0", "2/0"]]
    assert (left, inside, last) == pytest.approx((0.095, 0.003, 0.098))


def test_kernels_whose_results_leave_the_graph_belong_to_its_tail_in_the_forward_pass() -> None:
    recording = two_steps()
    record = recording.compiled
    assert record is not None
    kernels = record.kernels

    def tails_us(kernels: pd.DataFrame) -> list[list[float]]:
        found = region_runs(recording, replace(record, kernels=kernels))
        return [(found[name] / 1000).unique().tolist() for name in ("tail_ns", "back_tail_ns")]

    assert tails_us(kernels) == tails_us(kernels.drop(columns="leaves")) == [[10], [40]]
    assert tails_us(kernels.assign(leaves=[True, False, False, True, False])) == [[30], [40]]
    # The last kernel of the backward pass is now a library's.
    names = pd.Series([*kernels["kernel"][:4], "extern_kernels.mm"], dtype=kernels["kernel"].dtype)
    assert tails_us(kernels.assign(kernel=names, leaves=True)) == [[30], [0]]


def test_a_region_that_begins_the_trace_has_neither_a_lookup_nor_a_backward_pass() -> None:
    hand = ByHand().step(0, 500)
    net(hand)
    hand.op("Torch-Compiled Region: 0/0", 10, 20).op("TorchDynamo Cache Lookup: a", 30, 40)
    recording = with_compiled_regions(hand.recording(), [SHARED], [CompiledCode("0/0")])
    assert recording.compiled is not None
    (run,) = region_runs(recording, recording.compiled).to_dict("records")
    assert (run["region"], run["has_graph"], run["own_ns"], run["lookup_ns"]) == ("0/0", False, 10_000, 0)
    assert (run["kernel_ns"], run["rest_ns"]) == (0, 10_000)
    assert np.isnan([run[name] for name in ("enter_ns", "gap_ns", "apart_ns", "back_kernel_ns", "back_gap_ns")]).all()


def test_regions_have_their_times_per_step() -> None:
    table = region_table(two_steps())
    assert table.index.tolist() == ["0/0", "1/0"]
    assert table["calls"].tolist() == [1.0, 1.0]
    columns = {"ms": 98, "kernel_ms": 60, "overhead_ms": 38, "lookup_ms": 2}
    for name, us in columns.items():
        assert (1000 * table[name].astype(float)).tolist() == pytest.approx([us, us])
    assert 1000 * table.loc["0/0", "gap_ms"] == pytest.approx(28)
    assert table["gap_ms"].isna().tolist() == [False, True]
    assert table["broke"].isna().tolist() == [False, True]
    assert region_table(two_steps(broke=""))["gap_ms"].isna().all()
    recording = two_steps()
    record = recording.compiled
    assert record is not None
    uncalled = pd.concat([record.code, frame_of_rows("compiled_code", [CompiledCode("3/0", "run")])], ignore_index=True)
    table = region_table(replace(recording, compiled=replace(record, code=uncalled)))
    assert table.loc["3/0", ["calls", "ms", "gap_ms"]].isna().all()


def test_kernels_have_their_times_layers_and_rates() -> None:
    summary = compiled_summary(two_steps())
    assert summary is not None
    kernels = summary.kernels
    assert (1000 * kernels["ms"].astype(float)).tolist() == pytest.approx([60, 40, 40, 40, 20])
    assert kernels["calls"].tolist() == [2.0] * 5
    assert kernels["direction"].tolist() == ["forward", "forward", "backward", "backward", "forward"]
    assert kernels["graph"].tolist() == [0, 0, 1, 1, 0]
    rates = kernels["bytes"] * kernels["calls"] / kernels["ms"] * 1e3
    assert kernels["bytes_per_s"].tolist() == pytest.approx(rates.tolist())
    assert not summary.on_gpu
    shares = summary.shares
    # No layer computes the last one.
    assert shares.groupby("kernel")["share"].sum().to_dict() == pytest.approx(dict.fromkeys(range(4), 1.0))
    assert (1000 * shares.groupby("kernel")["ms"].sum()).tolist() == pytest.approx([60, 40, 40, 40])
    first = shares[shares["kernel"] == 1]
    assert (first["layer"].tolist(), first["share"].tolist()) == (["net.block", "net.block.inner"], [0.5, 0.5])
    assert kernels["layers"].tolist()[:2] == ["net.block.inner", "net.block, net.block.inner"]


def test_calls_that_only_launch_work_have_the_time_of_that_work() -> None:
    inside = ((25, 400, 401), (47, 410, 413), (76.9, 420, 424), (1050, 1420, 1425))
    outside = ((12, 430, 431), (46.9, 440, 441), (77, 450, 451))
    summary = compiled_summary(two_steps(work_us=inside + outside))
    assert summary is not None
    assert summary.on_gpu
    found = summary.kernels.loc[summary.kernels["kernel"] == "extern_kernels.mm", ["ms", "bytes_per_s"]]
    assert found.to_numpy().tolist() == [[pytest.approx(0.006), pytest.approx(300 * 2 / 6e-6)]]  # 12 µs in two steps
    others = summary.kernels.loc[summary.kernels["kernel"] != "extern_kernels.mm", "ms"]
    assert (1000 * others.astype(float)).tolist() == pytest.approx([40, 40, 40, 20])  # C++ runs on the host
    assert not compiled_summary(two_steps(work_us=outside)).on_gpu  # type: ignore[union-attr]


def test_rates_are_missing_for_kernels_of_unknown_size_and_for_those_that_did_not_run() -> None:
    recording = two_steps()
    record = recording.compiled
    assert record is not None
    kernels, calls = record.kernels.assign(bytes=[400, 0, 200, 200, 300], flops=7), record.calls
    table = compiled_kernel_table(
        replace(recording, compiled=replace(record, kernels=kernels, calls=calls[calls["kernel"] != 4]))
    )
    assert table["kernel"].tolist()[::4] == ["extern_kernels.mm", "cpp_fused_add_1"]
    assert (table["ms"].iloc[-1], table["calls"].iloc[-1]) == (0, 0)
    assert table["bytes"].isna().tolist() == table["flops"].isna().tolist() == [True, *[False] * 4]
    assert table["bytes_per_s"].isna().tolist() == [True, *[False] * 3, True]


def test_a_layer_shares_the_kernels_that_others_have_a_part_of() -> None:
    # The inner layer has half of the first kernel, 40 µs per step, of which the whole is in the block.
    assert (1000 * fused_ms(two_steps())).tolist() == pytest.approx([0, 0, 20, 0])
    unknown = replace(two_steps(), compiled=None)
    assert np.isnan(fused_ms(unknown)).tolist() == [True] * 4
    assert compiled_summary(unknown) is None
    assert region_table(unknown).empty
    assert compiled_kernel_table(unknown).empty
    assert compiled_kernel_table(two_steps()).equals(compiled_summary(two_steps()).kernels)  # type: ignore[union-attr]


def regions(*rows: tuple[Any, ...]) -> pd.DataFrame:
    names = ["broke", "broke_at", "calls", "guards", "gap_ms", "ms", "overhead_ms"]
    frame = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[2:], "Float64"))
    return frame.astype(dict.fromkeys(names[:2], "object"))


def verdict(*rows: tuple[Any, ...], on_gpu: bool = False) -> tuple[str, str, str]:
    kernels, shares = pd.DataFrame({"ms": [1.5, 0.5]}), pd.DataFrame()
    found = compiled_verdict(CompiledSummary(kernels, regions(*rows), shares, on_gpu))
    return found.state, found.sentence, found.why


@pytest.mark.parametrize(
    ("overhead", "state", "start"),
    [(3.0, "good", "No graph breaks: 30 % of the forward"), (3.1, "bad", "31 % of the forward regions' time")],
)
def test_much_time_outside_kernels_is_reported(overhead: float, state: str, start: str) -> None:
    found = verdict((None, None, 1, 3, None, 6.0, overhead), (None, None, 1, 3, None, 4.0, None))
    assert found[0] == state
    assert found[1].startswith(start)
    on_gpu = verdict((None, None, 1, 3, None, 6.0, overhead), on_gpu=True)
    assert on_gpu[:2] == ("none", "No graph breaks: kernels take 2.00 ms.")


def test_without_known_kernels_there_is_no_verdict_on_them() -> None:
    unknown = ("none", "The trace does not record which kernels compute which layers.", "")
    assert verdict((None, None, 1, 3, None, 6.0, None)) == unknown
    assert verdict((None, None, 1, 3, None, 0.0, 0.0)) == unknown
    assert verdict() == unknown


def test_breaks_are_counted_by_their_places() -> None:
    first, again = ("print", "/a/b.py:3", 1, 3, 0.5, 6.0, 1.0), ("print", "/a/b.py:3", 2, 3, 0.25, 6.0, 1.0)
    other = ("item", "/a/b.py:7", None, None, None, 6.0, 1.0)
    unused = ("item", "/a/b.py:8", None, 4, None, 6.0, 1.0)
    where = "print, at b.py:3."
    between = "code between regions runs uncompiled for {} per step."
    assert verdict(first, again) == ("bad", f"Graphs break once: {between.format('0.750 ms')}", where)
    assert verdict(first, other) == ("bad", f"Graphs break in 2 places: {between.format('0.500 ms')}", where)
    assert verdict(other) == ("bad", "Graphs break once: functions stay uncompiled.", "item, at b.py:7.")
    assert verdict(unused)[0] == "good"


@pytest.mark.parametrize(
    ("broke", "recompiled", "said"),
    [
        ("print", "x == 3", "Graph break at b.py:3: print. Recompiled because a guard failed: x == 3"),
        ("print", None, "Graph break at b.py:3: print"),
        (None, "x == 3", "Recompiled because a guard failed: x == 3"),
        (None, None, ""),
    ],
)
def test_what_happened_to_a_region(broke: str | None, recompiled: str | None, said: str) -> None:
    assert _happened(SimpleNamespace(broke=broke, broke_at="/a/b.py:3", recompiled=recompiled)) == said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/a/b.py:3: x * 2", "b.py:3: x * 2"),
        ("/a/b.py:3: x * 2\n/a/b.py:4: y", "b.py:3: x * 2, and 1 more"),
        ("/a/b.py:3: {1: 2}\nb\nc", "b.py:3: {1: 2}, and 2 more"),
    ],
)
def test_the_first_line_of_a_kernel_stands_for_all(source: str, said: str) -> None:
    assert _lines(source) == said


def test_the_documents_of_the_room(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


def test_regions_come_first_if_one_broke_or_was_compiled_again() -> None:
    def keys(recording: Recording, recompiled: str = "") -> list[str]:
        assert recording.compiled is not None
        code = recording.compiled.code.assign(recompiled=recompiled)
        summary = compiled_summary(replace(recording, compiled=replace(recording.compiled, code=code)))
        assert summary is not None
        return [section.key for section in compiled_document(summary).sections]

    assert keys(two_steps()) == ["regions", "compiled_kernels"]
    assert keys(two_steps(broke="")) == ["compiled_kernels", "regions"]
    assert keys(two_steps(broke=""), "x == 3") == ["regions", "compiled_kernels"]


def test_the_figures_are_sums_over_regions_and_kernels() -> None:
    made = regions((None, None, 1, 3, None, 6.0, 1.0), (None, None, 1, 3, None, 4.0, 1.0))
    made = made.assign(lookup_ms=[0.5, 0.25], compile_s=[2.0, 1.5], recompiled=None, function="f", line="a.py:1")
    kernels = compiled_summary(two_steps()).kernels  # type: ignore[union-attr]
    shares = pd.DataFrame({"kernel": pd.Series(dtype="int64"), "layer": [], "share": pd.Series(dtype="float64")})

    def figures(on_gpu: bool, count: int) -> list[tuple[str, float | None, str]]:
        summary = CompiledSummary(kernels.iloc[:count], made.rename_axis("region"), shares, on_gpu)
        return [(each.label, each.value, each.basis) for each in compiled_document(summary).figures]

    per_step = "per traced step"
    rest = [("checking guards", 0.75, per_step), ("compiling", 3500.0, "once")]
    own = [("forward regions", 10.0, f"{per_step}, on the host")]
    assert figures(False, 0) == own + rest
    both = ("kernels", pytest.approx(0.1), f"{per_step}, forward and backward")
    assert figures(False, 2) == [*own, both, *rest]
    assert figures(True, 2)[1][2] == f"{per_step}, forward and backward, on the GPU"
