"""Traces compared with each other: figures known by hand, and those of public traces by plain means."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import perfnb
from perfnb.draw.document import Table
from perfnb.recording.schema import SCHEMA
from tests.public_profiles import events_of
from tests.public_profiles import profile_of as public_trace
from tests.trace.test_public_traces import pytestmark as public
from tests.written_traces import Written

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def loaded(trace: Written, tmp_path: Path, name: str = "trace.json") -> perfnb.Profile:
    profile = perfnb.load(trace.write(tmp_path / name))
    assert isinstance(profile, perfnb.Profile)
    return profile


def table_of(compared: perfnb.results.ProfileComparison, key: str) -> Table:
    (table,) = (each for each in compared._document().sections if isinstance(each, Table) and each.key == key)
    return table


def with_library(steps: int, library: str, kernels: dict[str, float], module: str = "Conv2d_0") -> Written:
    trace = Written(deviceProperties=[{"id": 0, "name": "Small GPU"}])
    for number in range(steps):
        t = 1000.0 * number
        trace.step(number, t, t + 900).module("Net_0", t + 1, t + 500).module(module, t + 5, t + 300)
        shapes = {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3]]}
        for depth, name in enumerate(("aten::conv2d", "aten::convolution", "aten::_convolution", library)):
            trace.event(name, t + 10 + depth, t + 290 - depth, **shapes)
        begin = t + 300
        for place, (name, us) in enumerate(kernels.items()):
            trace.kernel(name, t + 20 + 5 * place, begin, begin + us)
            begin += us
    return trace


CUDNN = with_library(3, "aten::cudnn_convolution", {"void cudnn::winograd<float, 4>(float*)": 60})
MIOPEN = with_library(1, "aten::miopen_convolution", {"batched_transpose": 20, "igemm_fwd_gtcx3": 70})


@pytest.fixture(scope="module")
def cudnn(tmp_path_factory: pytest.TempPathFactory) -> perfnb.Profile:
    return loaded(CUDNN, tmp_path_factory.mktemp("cudnn"))


@pytest.fixture(scope="module")
def miopen(tmp_path_factory: pytest.TempPathFactory) -> perfnb.Profile:
    return loaded(MIOPEN, tmp_path_factory.mktemp("miopen"))


@pytest.mark.slow
def test_two_makers_meet_at_the_convolution_with_the_kernels_of_both(
    cudnn: perfnb.Profile, miopen: perfnb.Profile
) -> None:
    compared = cudnn.compare(miopen)

    conv = compared.ops.set_index("op").loc["aten::conv2d"]
    assert (conv["matched"], conv["layer"], conv["phase"]) == ("layer", "Net_0.Conv2d_0", "forward")
    assert conv["shapes"] == "[[2, 3, 8, 8], [4, 3, 3, 3]]"
    (kernels,) = compared.kernels.to_dict("records")
    assert kernels["kernels_b"] == ["igemm_fwd_gtcx3", "batched_transpose"]
    assert compared.gpu_time.loc["busy"].tolist() == pytest.approx([0.06, 0.09, 0.03])
    (row,) = table_of(compared, "ops").rows
    assert row == ("aten::conv2d 2 × 3 × 8 × 8, 4 × 3 × 3 × 3", *map(pytest.approx, (0.06, 0.09, 0.03, 1.5, 0)))
    text = " ".join(str(compared).split())
    assert "1 call in 1 layer · winograd → igemm_fwd_gtcx3, batched_transpose" in text
    assert "3 traced steps of the baseline and 1 of the candidate" in text
    assert "do not seem" not in text


def test_what_has_no_trace_has_empty_tables(cudnn: perfnb.Profile, tmp_path: Path) -> None:
    empty = loaded(Written(), tmp_path)

    compared = empty.compare(cudnn)

    assert compared.ops.empty
    assert compared.kernels.empty
    assert compared.gpu_time.empty
    assert str(compared)


def test_a_trace_without_marked_steps_counts_as_one_step_and_gpus_are_averaged(
    cudnn: perfnb.Profile, tmp_path: Path
) -> None:
    trace = Written(deviceProperties=[{"id": number, "name": "Small GPU"} for number in range(2)])
    trace.event("aten::conv2d", 10.0, 290.0)
    for place, (begin, end, device) in enumerate(((300.0, 350.0, 0), (400.0, 450.0, 0), (300.0, 320.0, 1))):
        trace.kernel("gemm", 20.0 + 5 * place, begin, end, device=device)

    compared = cudnn.compare(loaded(trace, tmp_path))

    assert {name: compared.gpu_time.loc[name].tolist() for name in ("total", "busy", "idle")} == {
        "total": pytest.approx([0.06, (0.15 + 0.02) / 2, 0.025]),
        "busy": pytest.approx([0.06, (0.1 + 0.02) / 2, 0.0]),
        "idle": pytest.approx([0.0, 0.025, 0.025]),
    }
    assert "The candidate has no marked steps" in " ".join(str(compared).split())


def launched_in(name: str, op: str) -> tuple[list[float], Counter[str]]:
    """Find the GPU work of each call to an operator, and its kernels, by comparing every launch with every call."""
    events = events_of(f"kineto/{name}.json.gz")
    calls = [e for e in events if e["name"] == op and e["cat"] == "cpu_op"]
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    times, names = [0.0] * len(calls), Counter[str]()
    for work in events:
        launch = launches.get(work.get("args", {}).get("correlation")) if work["cat"] in DEVICE else None
        for place, call in enumerate(calls):
            inside = launch and launch["tid"] == call["tid"] and 0 <= launch["ts"] - call["ts"] <= call["dur"]
            if inside:
                times[place] += work["dur"] / 1e3
                names[work["name"]] += 1
    return times, names


@pytest.mark.slow
@public
def test_a_vision_transformer_on_two_makers_gpus() -> None:
    op = "aten::scaled_dot_product_attention"
    compared = public_trace("h100_vit").compare(public_trace("mi300_vit"))

    ops, sides = compared.ops, {"a": "h100_vit", "b": "mi300_vit"}
    rows = ops[(ops["op"] == op) & (ops["depth"] == 0)]
    assert (ops["matched"] == "layer").all()
    for side, name in sides.items():
        times, names = launched_in(name, op)
        assert rows[f"calls_{side}"].sum() == len(times) > 0
        assert sorted(rows[f"gpu_ms_{side}"]) == pytest.approx(sorted(times), abs=1e-6)
        kernels = compared.kernels[compared.kernels["inside"] == op]
        assert set(kernels[f"kernels_{side}"].explode().dropna()) == set(names)
        assert kernels[f"calls_{side}"].sum() == sum(names.values())
    # The only operators of the makers' own lie below the same one.
    assert not ops["op"].str.contains("cudnn|miopen").any()


@public
def test_the_table_by_op_adds_up_and_so_do_own_times() -> None:
    compared = public_trace("h100_vit").compare(public_trace("mi300_vit"))

    ops, by_op = compared.ops, compared.by_op
    whole = compared.gpu_time.loc["busy", "grew_ms"]  # no two kernels overlap in these
    assert by_op["grew_ms"].sum() == pytest.approx(whole, abs=1e-3) == pytest.approx(0.491, abs=1e-3)
    assert (ops["self_gpu_ms_b"].fillna(0) - ops["self_gpu_ms_a"].fillna(0)).sum() == pytest.approx(whole, abs=1e-3)
    assert ops["grew_ms"].sum() > 1  # a change counts in each op around it
    heaviest = by_op.iloc[0]
    assert (heaviest["op"], heaviest["layers"]) == ("aten::scaled_dot_product_attention", 12)
    assert heaviest["kernels_a"] != heaviest["kernels_b"]
    assert list(by_op.columns) == list(SCHEMA["diff_by_op"])
    assert by_op.loc[by_op["gpu_ms_a"] == 0, "grew_ms"].isna().all()


@public
def test_layers_of_a_gpu_are_ranked_by_its_time() -> None:
    """By hand: the convolution took longer on the host and less on the GPU."""
    first, second = public_trace("h100_vit"), public_trace("mi300_vit")

    compared = first.compare(second)

    conv = compared.layers[compared.layers["module"] == "Conv2d"].iloc[0]
    assert conv["grew_ms"] == pytest.approx(0.173, abs=1e-3)
    assert conv["grew_gpu_ms"] == pytest.approx(-0.0765, abs=1e-4)
    for side, profile in (("a", first), ("b", second)):
        assert compared.layers[f"self_gpu_ms_{side}"].sum() == pytest.approx(profile.kernels["total_ms"].sum())
    names = {row[0]: row[1:] for row in table_of(compared, "layers").rows}
    assert names["Conv2d_0"][4:6] == (pytest.approx(-0.0765, abs=1e-4), pytest.approx(0.173, abs=1e-3))
