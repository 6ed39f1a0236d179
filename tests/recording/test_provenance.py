"""Layers of compiled code and of CUDA graphs in loaded traces, whose figures are planted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfnb
from perfnb.errors import TraceError
from perfnb.recording.compiled_layers import OVERHEAD, Graph
from perfnb.recording.provenance import graphs_of_files, written
from perfnb.recording.reading import read_file
from perfnb.trace.trace_file import Limits
from tests.recording.test_compiled_layers import BACK, BACKWARD, FORWARD, SHARED, graph, operation
from tests.written_traces import Written

#: Of `plain_trace`, in µs.
LAYERS = {
    "model": 10,
    "model.block": 10,
    "model.block.inner": 10 + 30,
    f"model.{OVERHEAD}": 100 - 60,
}


class Chrome(Written):
    """A step of 300 µs, whose work on a device is given with the number of its launch."""

    def __init__(self) -> None:
        super().__init__(schemaVersion=1, deviceProperties=[], baseTimeNanoseconds=0)
        self.step(1, 0, 300)

    def work(self, name: str, begin: float, end: float, number: int, cat: str = "kernel", **args: Any) -> None:
        self.event(name, begin, end, cat, 7, 0, device=0, stream=7, correlation=number, **args)


def compiled(trace: Written, begin: float = 10) -> Written:
    """Return a region of 98 µs after a lookup of 2, as `tests.recording.test_compiled_layers.region` has it.

    torch 2.13 gives the graph's call the category of a user's range.
    """
    trace.event("TorchDynamo Cache Lookup", begin, begin + 2)
    trace.event("Torch-Compiled Region: 0/0", begin + 2, begin + 100)
    trace.event("CompiledFunction", begin + 5, begin + 95, **{"Sequence number": 5, "Fwd thread id": 0})
    trace.event(f"## Call CompiledFxGraph {FORWARD} ##", begin + 6, begin + 94, "user_annotation")
    trace.event("graph_0_cpp_fused_mul_0", begin + 12, begin + 32)
    trace.event("aten::mm", begin + 37, begin + 67)
    return trace.event("graph_0_cpp_fused_sum_1", begin + 72, begin + 82)


def with_backward(trace: Written, begin: float = 200) -> Written:
    number = {"Sequence number": 5, "Fwd thread id": 1}
    node = "CompiledFunctionBackward"
    trace.event(f"autograd::engine::evaluate_function: {node}", begin, begin + 60, **number)
    trace.event(node, begin + 1, begin + 59, **number)
    trace.event(f"## Call CompiledFxGraph {BACKWARD} ##", begin + 5, begin + 55, "user_annotation")
    trace.event("graph_0_cpp_fused_mul_0", begin + 6, begin + 26)
    return trace.event("graph_0_cpp_fused_add_1", begin + 30, begin + 50)


def stored(path: Path, content: object) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def us(p: perfnb.Profile, column: str = "self_ms") -> dict[str, float]:
    values = p.layers[column].dropna() * 1000
    return {str(name): round(float(value), 2) for name, value in values.items() if not str(name).startswith("(")}


def load(tmp_path: Path, trace: Written, *files: object) -> perfnb.Profile:
    """Return a loaded trace, with provenance files of these contents."""
    paths = [stored(tmp_path / f"{place}.json", content) for place, content in enumerate(files)]
    p = perfnb.load(trace.write(tmp_path / "trace.json"), provenance=paths or None)
    assert isinstance(p, perfnb.Profile)
    return p


def test_a_trace_has_the_layers_that_a_live_profile_of_the_same_events_has(tmp_path: Path) -> None:
    p = load(tmp_path, with_backward(compiled(Chrome())), written([SHARED, BACK]))

    assert us(p, "self_forward_ms") == LAYERS
    back = {"model": 0, "model.block": 20, "model.block.inner": 20, f"model.{OVERHEAD}": 20}
    assert us(p, "self_backward_ms") == back
    assert p.phases.loc["forward", "ms"] == pytest.approx(0.1)
    inner = p.layers.loc["model.block.inner"]
    assert (inner["module"], inner["calls"]) == ("Net.Block.Inner", 1)
    first = p.compiled.set_index(["kernel", "direction"]).loc[("cpp_fused_mul_0", "forward")]
    assert first["layers"] == "model.block, model.block.inner"
    assert (first["ops"], first["source"], first["bytes"]) == ("aten::mul", "model.py:7: x * 2", 400)
    assert p.compiled_regions.loc["0/0", "overhead_ms"] == pytest.approx(0.038)


def test_layers_are_below_the_module_whose_call_the_trace_recorded(tmp_path: Path) -> None:
    trace = compiled(Chrome())
    trace.event("nn.Module: Net_0", 8, 112, "python_function", **{"Python id": 1})

    p = load(tmp_path, trace, written([SHARED]))

    named = {f"Net_0{name.removeprefix('model')}": value for name, value in LAYERS.items()}
    assert us(p) == named | {"Net_0": 4 + 10}
    assert p.layers.loc["Net_0", "total_ms"] == pytest.approx(0.104)


def test_each_step_and_each_graph_of_a_model_has_the_same_layers(tmp_path: Path) -> None:
    trace = compiled(compiled(Chrome()), 120)
    head = graph("other", {"cpp_fused_relu_0": [operation("r", (("L['self'].head", "Linear"),), ("x",))]})
    trace.event("## Call CompiledFxGraph other ##", 230, 250, "user_annotation")
    trace.event("cpp_fused_relu_0", 235, 245)

    p = load(tmp_path, trace, written([SHARED, head]))

    twice = {name: 2 * value for name, value in LAYERS.items()}
    assert us(p) == twice | {"model.head": 10, f"model.{OVERHEAD}": 2 * 40 + 10}


def test_the_layers_of_a_loaded_trace_survive_saving_and_another_trace(tmp_path: Path) -> None:
    trace = with_backward(compiled(Chrome()))
    trace.event("nn.Module: Net_0", 8, 112, "python_function", **{"Python id": 1})
    p = load(tmp_path, trace, written([SHARED, BACK]))
    p.save(tmp_path / "saved")
    p.save_trace(tmp_path / "again.json.gz")

    for path in (tmp_path / "saved", tmp_path / "again.json.gz"):
        again = perfnb.load(path)
        assert isinstance(again, perfnb.Profile)
        assert us(again) == us(p)
    with pytest.raises(TraceError, match="already has the layers of its compiled code"):
        perfnb.load(tmp_path / "again.json.gz", provenance=tmp_path / "0.json")


@pytest.mark.parametrize(
    "content",
    [
        written([graph("another key", {"cpp_fused_mul_0": [operation("a")]})]),
        written([]),
    ],
)
def test_a_file_that_is_not_of_the_trace_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(TraceError, match=r"0\.json does not belong to .*trace\.json: ") as error:
        load(tmp_path, compiled(Chrome()), content)
    assert str(error.value).count(". ") == 0


_GOOD = json.loads(written([SHARED]))


def _altered(**changed: Any) -> Any:
    whole = json.loads(json.dumps(_GOOD))
    whole["perfnb_provenance"]["graphs"][0] |= changed
    return whole


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[1, 2]",
        {"version": 2.0},
        {},
        {"preToPost": {}, "postToPre": {}, "cppCodeToPost": {"cpp_fused_mul_0:1": ["mul_3"]}, "version": 2.0},
        {"perfnb_provenance": {"version": 2, "graphs": []}},
        _altered(operations=7),
        _altered(operations=[["a", "op", [], [], -1, 0, None]]),
        _altered(operations=[["a", "op", [], [], 2**60, 0, None]]),
        _altered(operations=[["a", "op", [["L['self']", "Net"]] * 1000, [], 1, 0, None]]),
        _altered(operations=[[f"a{n}", "op", [[f"L['m{n}'].x", "X"]], [], 1, 0, None] for n in range(101)]),
        _altered(kernels=[["x" * 20_000, False, []]]),
    ],
)
def test_anything_else_is_refused_in_one_sentence(tmp_path: Path, content: object) -> None:
    with pytest.raises(TraceError, match=r"0\.json is not a provenance file that perfnb can read; "):
        load(tmp_path, compiled(Chrome()), content)


def test_only_a_regular_file_of_some_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = compiled(Chrome()).write(tmp_path / "trace.json")
    with pytest.raises(TraceError, match=r"nowhere\.json cannot be read: "):
        perfnb.load(trace, provenance=tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match="cannot be read: it is a pipe or a device"):
        perfnb.load(trace, provenance="/dev/zero")
    monkeypatch.setattr("perfnb.recording.provenance._MOST_BYTES", 100)
    with pytest.raises(TraceError, match="cannot be read: it is larger than 100 bytes"):
        perfnb.load(trace, provenance=stored(tmp_path / "large.json", written([SHARED])))


def test_names_with_more_letters_than_perfnb_shows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.trace.trace_steps.MOST_LETTERS", 20)
    with pytest.raises(TraceError, match=r"trace\.json was not read: it has .* characters in the names of its layers"):
        load(tmp_path, compiled(Chrome()), written([SHARED]))


def test_provenance_is_of_one_trace(tmp_path: Path) -> None:
    path = stored(tmp_path / "p.json", written([SHARED]))
    trace = compiled(Chrome()).write(tmp_path / "trace.json")
    with pytest.raises(TraceError, match="A provenance file belongs to a single trace"):
        perfnb.load([trace], provenance=path)
    perfnb.load(trace).save(tmp_path / "saved")
    with pytest.raises(TraceError, match=r"A provenance file belongs to a trace, and .*saved is not a trace"):
        perfnb.load(tmp_path / "saved", provenance=path)
    with pytest.raises(TypeError, match="provenance must be a path or a list of paths, not 7"):
        perfnb.load(trace, provenance=7)  # type: ignore[arg-type]


_NAMES = st.text(max_size=8) | st.sampled_from(["cpp_fused_mul_0", "extern_kernels.mm", "a", "b", "c", FORWARD])
_PATHS = st.sampled_from(["L['self']", "L['self'].block", "G['m'][0]", "", ".", "L['self']['']"]) | st.text(max_size=8)
_OPERATIONS = st.lists(
    st.tuples(
        _NAMES,
        _NAMES,
        st.lists(st.tuples(_PATHS, _NAMES), max_size=3),
        st.lists(_NAMES, max_size=3),
        st.integers(0, 2**53 - 1),
        st.integers(0, 2**53 - 1),
        st.none() | st.tuples(_NAMES, st.integers(0, 9), _NAMES),
    ),
    max_size=6,
)
_KERNELS = st.lists(st.tuples(_NAMES, st.booleans(), st.lists(_NAMES, max_size=4)), max_size=5)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(kernels=_KERNELS, operations=_OPERATIONS)
def test_whatever_a_file_tells_the_layers_add_up_to_the_region(
    tmp_path_factory: pytest.TempPathFactory, kernels: object, operations: object
) -> None:
    content = {"perfnb_provenance": {"version": 1, "graphs": [{"key": FORWARD, "kernels": kernels}]}}
    content["perfnb_provenance"]["graphs"][0]["operations"] = operations  # type: ignore[index]

    p = load(tmp_path_factory.mktemp("any"), compiled(Chrome()), content)

    inside = sum(us(p).values())
    assert inside == pytest.approx(100, abs=0.1) or inside == 0  # no layer is known
    assert p.compiled["ms"].sum() <= 0.06 + 1e-9
    assert (p.layers["self_ms"].dropna() >= 0).all()


@pytest.mark.slow
def test_any_other_content_is_refused(tmp_path: Path) -> None:
    (recording,) = read_file(compiled(Chrome()).write(tmp_path / "trace.json"), Limits())

    @settings(max_examples=40, deadline=None)
    @given(_PLAIN)
    def refused(content: object) -> None:
        for held in (content, {"perfnb_provenance": content}):
            with pytest.raises(TraceError):
                graphs_of_files([stored(tmp_path / "0.json", held)], recording, "trace.json")

    refused()


def replay(trace: Chrome, begin: float, number: int, *annotations: Mapping[str, Any] | None) -> Chrome:
    """Return a launch of 10 µs of a CUDA graph, whose kernels take 10, 20, 30 µs, and so on, with these arguments.

    This is how torch writes them (torch/profiler/_cupti_monitor_trace.py, and `annotate_trace` in
    torch/cuda/_annotate_cuda_graph_trace.py); no such trace of a real GPU has been seen.
    """
    trace.event("cudaGraphLaunch", begin, begin + 10, "cuda_runtime", correlation=number, cbid=311)
    start = begin + 20
    for place, args in enumerate(annotations):
        node = {"graph id": 3, "graph node id": 100 + place, **(args or {})}
        trace.work(f"triton_{place}", start, start + 10 * (place + 1), number, **node)
        start += 10 * (place + 1)
    return trace


ATTENTION = {"module_fqn": "layers.0.attention"}


NORMS = [
    {"module_fqn": "norm"},
    {"annotation": "norm"},
    {"str": "norm"},
    {"annotation": json.dumps([{"str": "outer"}, {"module_fqn": "norm", "stream": 60}])},
]


def test_annotated_kernels_of_a_cuda_graph_belong_to_their_layers(tmp_path: Path) -> None:
    p = load(tmp_path, replay(Chrome(), 50, 1, ATTENTION, *NORMS, ATTENTION, None))

    assert us(p, "self_gpu_ms") == {
        "model.layers.0.attention": pytest.approx(10 + 60, abs=0.05),
        "model.norm": pytest.approx(20 + 30 + 40 + 50, abs=0.05),
        "model": pytest.approx(70, abs=0.05),
        "model.layers": 0,
        "model.layers.0": 0,
    }
    assert p.layers.loc["model.layers", "gpu_ms"] == pytest.approx(0.07, abs=1e-4)
    assert p.layers["self_gpu_ms"].sum() == pytest.approx(0.28)
    assert p.layers["self_ms"].sum() == pytest.approx(0.01, abs=1e-5)  # the launch on the host
    assert "are not annotated in the trace" not in " ".join(str(p).split())
    assert p.launches["launched"].tolist() == [7]


def test_a_cuda_graph_without_annotations_is_one_row_and_a_note_gives_the_reason(tmp_path: Path) -> None:
    trace = replay(Chrome(), 50, 1, None, None)
    trace.event("nn.Module: Net_0", 40, 80, "python_function", **{"Python id": 1})

    p = load(tmp_path, trace)

    assert us(p, "self_gpu_ms") == {"Net_0": 30}
    assert "The GPU time of a CUDA graph is attributed to the layer that launches it" in " ".join(str(p).split())


def test_words_that_are_no_path_are_one_layer(tmp_path: Path) -> None:
    p = load(tmp_path, replay(Chrome(), 50, 1, {"str": "phase A. <b>'x'</b>"}, {"module_fqn": ".".join("a" * 200)}))

    assert us(p, "self_gpu_ms")["model.phase A. <b>'x'</b>"] == pytest.approx(10, abs=0.05)
    assert p.layers.index.str.startswith("model.a").sum() == 1


def test_a_graph_of_a_backward_pass_counts_there(tmp_path: Path) -> None:
    trace = Chrome()
    trace.event("Graphed", 40, 70, **{"Sequence number": 9, "Fwd thread id": 0})
    replay(trace, 50, 1, ATTENTION, {"module_fqn": "norm"})
    number = {"Sequence number": 9, "Fwd thread id": 1}
    trace.event("autograd::engine::evaluate_function: GraphedBackward", 150, 190, **number)
    trace.event("GraphedBackward", 151, 189, **number)
    replay(trace, 160, 2, ATTENTION, {"module_fqn": "norm"})

    p = load(tmp_path, trace)

    assert us(p, "self_gpu_ms") == {
        "model": 0,
        "model.layers": 0,
        "model.layers.0": 0,
        "model.layers.0.attention": pytest.approx(20, abs=0.1),
        "model.norm": pytest.approx(40, abs=0.1),
    }
    assert p.layers.loc["model.norm", "self_backward_ms"] == pytest.approx(0.01 * 2 / 3, abs=1e-4)
    assert p.compiled["bytes"].isna().all()


def triton(number: int) -> Graph:
    """Return a kernel of the block and of the inner layer, in equal parts, and one of the inner layer."""
    block, inner = (each.modules for each in (SHARED.operations["a"], SHARED.operations["b"]))
    shared = [operation("p", block, ("x", "y")), operation("q", inner, ("p", "w"))]
    own = [operation("r", inner, ("q", "v"))]
    return graph(FORWARD, {f"triton_poi_fused_{number}": shared, "triton_poi_fused_9": own}, *map(operation, "xywv"))


@pytest.mark.parametrize("launch", [21, 29, 39])
def test_the_gpu_time_of_a_triton_kernel_is_divided_as_its_weights_say(tmp_path: Path, launch: float) -> None:
    """Whichever piece of the host's time its launch lies in."""
    trace = Chrome()
    trace.event("Torch-Compiled Region: 0/0", 10, 110)
    trace.event(f"## Call CompiledFxGraph {FORWARD} ##", 15, 105, "user_annotation")
    trace.event("triton_poi_fused_0", 20, 40, kernel_backend="triton")
    trace.event("cuLaunchKernel", launch, launch + 0.5, "cuda_driver", correlation=1)
    trace.work("triton_poi_fused_0", 60, 140, 1)
    trace.event("triton_poi_fused_9", 50, 60).event("cuLaunchKernel", 52, 55, "cuda_driver", correlation=2)
    trace.work("triton_poi_fused_9", 140, 150, 2)
    trace.event("cudaMemcpyAsync", 70, 75, "cuda_runtime", correlation=3)
    trace.work("Memcpy HtoD", 150, 155, 3, "gpu_memcpy")

    p = load(tmp_path, trace, written([triton(0)]))

    assert us(p, "self_gpu_ms") == {
        "model": 0,
        "model.block": pytest.approx(40, abs=0.01),
        "model.block.inner": pytest.approx(40 + 10, abs=0.01),
        f"model.{OVERHEAD}": 5,
    }
    assert p.layers.loc["model", "gpu_ms"] == pytest.approx(0.095)
    assert us(p, "self_ms")["model.block"] == 10
