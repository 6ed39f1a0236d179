"""Traces compared with each other: figures known by hand, and those of public traces by plain means."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import perfnb
from perfnb.draw.document import Table
from perfnb.recording.schema import SCHEMA
from tests.public_profiles import events_of
from tests.public_profiles import profile_of as public_trace
from tests.trace.test_public_traces import pytestmark as public
from tests.written_traces import Written, training

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

    ops = compared.ops.set_index("op")
    assert ops.index.tolist() == ["aten::conv2d", "aten::convolution", "aten::_convolution"]
    conv = ops.loc["aten::conv2d"]
    assert (conv["matched"], conv["layer"], conv["phase"]) == ("layer", "Net_0.Conv2d_0", "forward")
    assert conv["shapes"] == "[[2, 3, 8, 8], [4, 3, 3, 3]]"
    assert [conv[f"{name}_{side}"] for name in ("calls", "host_ms", "gpu_ms") for side in ("a", "b")] == pytest.approx(
        [1, 1, 0.28, 0.28, 0.06, 0.09]
    )
    assert (conv["grew_ms"], conv["ratio"]) == (pytest.approx(0.03), pytest.approx(1.5))
    (kernels,) = compared.kernels.to_dict("records")
    assert kernels["kernels_a"] == ["void cudnn::winograd<float, 4>(float*)"]
    assert kernels["kernels_b"] == ["igemm_fwd_gtcx3", "batched_transpose"]
    assert compared.ops["op"][kernels["row"]] == "aten::_convolution"
    assert compared.gpu_time.loc["busy"].tolist() == pytest.approx([0.06, 0.09, 0.03])
    (row,) = table_of(compared, "ops").rows
    assert row == ("aten::conv2d 2 × 3 × 8 × 8, 4 × 3 × 3 × 3", *map(pytest.approx, (0.06, 0.09, 0.03, 1.5, 0)))
    text = " ".join(str(compared).split())
    assert "1 call in 1 layer · winograd → igemm_fwd_gtcx3, batched_transpose" in text
    assert "3 traced steps of the baseline and 1 of the candidate" in text
    assert "do not seem" not in text


@pytest.mark.slow
def test_what_a_trace_lacks_is_told(cudnn: perfnb.Profile, tmp_path: Path) -> None:
    bare = Written().op("aten::conv2d", 10, 300)
    bare.kernel("k", 20, 30, 60)

    text = " ".join(str(cudnn.compare(loaded(bare, tmp_path))).split())

    assert "The candidate has no input shapes: ops are matched by name, layer and order" in text
    assert "The candidate has no layers" in text
    assert "The candidate has no marked steps" in text


@pytest.mark.slow
def test_a_live_profile_of_a_cpu_is_compared_by_time_on_the_host(tmp_path: Path) -> None:
    import torch

    from tests.step.models import three_linears, training_step

    live = perfnb.profile_step(
        training_step(three_linears(), torch.ones(4, 8)), warmup=1, steps=2, traced=2, memory=False, flops=False
    )

    compared = live.compare(loaded(training(), tmp_path))

    assert compared.gpu_time.empty
    assert "Op times are host times, because only one of the two traces" in " ".join(str(compared).split())
    ops = compared.ops
    assert {"aten::linear", "aten::mm"} <= set(ops["op"])
    assert ops["gpu_ms_a"].isna().all()
    assert ops["gpu_ms_b"].sum() > 0
    own = ops["self_host_ms_a"].sum()
    assert 0 < own <= live.phases["ms"].sum() * 1.5
    same = live.compare(live)
    assert (same.ops["grew_ms"] == 0).all()
    assert not same.ops["matched"].isin(["only a", "only b"]).any()
    assert same.ops["layer"].notna().any()


def test_what_has_no_trace_has_empty_tables(cudnn: perfnb.Profile, tmp_path: Path) -> None:
    empty = loaded(Written(), tmp_path)

    compared = empty.compare(cudnn)

    assert compared.ops.empty
    assert compared.kernels.empty
    assert compared.gpu_time.empty
    assert str(compared)


@pytest.mark.slow
def test_several_ranks_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for rank in range(2):
        CUDNN.write(tmp_path / f"rank{rank}.json")
    ranks = perfnb.load([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert isinstance(ranks, perfnb.results.Ranks)

    with pytest.raises(TypeError, match=re.escape("Compare individual ranks instead: a[0].compare(b[0]).")):
        ranks.compare(ranks)
    with pytest.raises(TypeError, match=re.escape("not Ranks. Compare individual ranks: a[0].compare(b[0]).")):
        ranks[0].compare(ranks)  # type: ignore[arg-type]
    assert (ranks[0].compare(ranks[1]).ops["grew_ms"] == 0).all()


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
@pytest.mark.parametrize("op", ["aten::linear", "aten::conv2d", "aten::scaled_dot_product_attention"])
def test_a_vision_transformer_on_two_makers_gpus(op: str) -> None:
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


@pytest.mark.slow
@public
def test_two_captures_of_one_recommender() -> None:
    """By hand: b has three operators that a has not, and no kernel's launch is in an operator."""
    compared = public_trace("compare_base").compare(public_trace("compare_test"))

    ops = compared.ops.set_index("op")
    alone = ops[ops["matched"] == "only b"]
    assert alone["host_ms_b"].to_dict() == pytest.approx(
        {"All2All_Pooled_Req": 0.311 / 2, "CatBackward0": 0.011 / 2, "AddmmBackward0": 0.207 / 2}
    )
    assert alone["grew_host_ms"].to_dict() == pytest.approx(alone["host_ms_b"].to_dict())
    assert alone["grew_ms"].isna().all()  # the measure is the GPU's time, of which they have none
    table = table_of(compared, "ops")
    listed = {row[0].split()[0]: (row[-1], detail) for row, detail in zip(table.rows, table.details or (), strict=True)}
    assert listed["All2All_Pooled_Req"] == (pytest.approx(0.1555), "0.5 calls")
    assert listed["nccl:all_reduce"] == (pytest.approx(-0.0335), "1 → 0.5 calls")
    assert ops.loc["aten::empty", ["calls_a", "calls_b", "host_ms_a", "host_ms_b"]].tolist() == [1, 1, 0.001, 0.001]
    assert ops.loc["(no known op)", "gpu_ms_a"] == pytest.approx(0.843)
    changed = compared.kernels[compared.kernels["grew_ms"].abs() > 1e-9]
    (kernel,) = changed.to_dict("records")
    assert kernel["kernels_a"] == kernel["kernels_b"]
    assert (kernel["calls_a"], kernel["calls_b"], kernel["grew_ms"]) == (1.5, 1, pytest.approx(-0.002))


@pytest.mark.slow
@public
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("v100_resnet50_2021", "mi300_ddp_resnet18"),
        ("sampled_rank_0", "sampled_rank_1"),
        ("a100_alexnet", "mi250_toy_train"),
        ("mi300_vllm_decode_graph", "mi300_sglang_decode"),
        ("h100_bert_small", "mi300_compile_triton"),
    ],
)
def test_all_work_of_a_step_is_in_the_rows(a: str, b: str) -> None:
    first, second = public_trace(a), public_trace(b)

    compared = first.compare(second)

    for side, profile in (("a", first), ("b", second)):
        whole = pytest.approx(profile.kernels["total_ms"].sum(), rel=1e-9)
        assert compared.ops[f"self_gpu_ms_{side}"].sum() == whole
        assert compared.kernels[f"gpu_ms_{side}"].sum() == whole


@pytest.mark.slow
@public
def test_backward_of_an_old_trace_meets_that_of_a_new_one() -> None:
    compared = public_trace("v100_resnet50_2021").compare(public_trace("mi300_ddp_resnet18"))

    backward = compared.ops[compared.ops["op"] == "CudnnBatchNormBackward"]
    matched = backward[backward["op_b"].notna()]
    assert set(matched["op_b"]) == {"NativeBatchNormBackward0"}
    assert matched["calls_b"].sum() == 100


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
