"""Compiled code: the layers inside where its graphs tell them, else one layer with the reason."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import perfnb
from perfnb.errors import CaptureError
from perfnb.recording.compiled_layers import CompiledCode
from perfnb.step import compiler
from perfnb.step.budget import Plan
from perfnb.step.memory import storages
from perfnb.step.session import Session
from tests.step.models import three_linears, training_step
from tests.step.timed import traced_ms

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    # torch.compile itself asks for the grad of what it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

#: Why the layers inside code of another backend than Inductor are not known.
_LACKED = compiler.missing_names()
_WHY_HIDDEN = f"this version of torch has no {_LACKED[0]}" if _LACKED else "only the default backend, Inductor"


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 2000))  # as Inductor does where its cache does not know a graph
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    sys.setrecursionlimit(limit)


def profile_of(step: Callable[[], object]) -> perfnb.Profile:
    return perfnb.profile_step(step, warmup=2, steps=1, traced=2)


def profile_without_recompiling(step: Callable[[], object]) -> perfnb.Profile:
    """Return the profile of a step that runs before and after it; no graph may be compiled meanwhile."""
    step()
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    p = profile_of(step)
    step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled
    return p


@pytest.mark.slow
def test_a_compiled_model_is_one_layer_whose_layers_are_unknown() -> None:
    model = nn.Sequential(nn.Linear(8, 8), torch.compile(three_linears(), backend="aot_eager"))

    p = profile_of(training_step(model, torch.randn(4, 8)))

    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers.index.tolist() == ["model", "model.0", "model.1", "model.1.0", "model.1.1", "model.1.2"]
    assert layers["calls"].dropna().to_dict() == {"model": 1, "model.0": 1, "model.1": 1}
    assert layers.loc["model.1", "module"] == "Sequential"
    assert (layers.loc["model.1", ["forward_ms", "backward_ms"]] > 0).all()
    inner = layers.loc[["model.1.0", "model.1.1", "model.1.2"]]
    assert inner[["calls", "forward_ms", "backward_ms", "total_ms", "self_ms", "share", "ops"]].isna().all(axis=None)
    assert inner["parameters"].tolist() == [72, 0, 72]
    assert f"torch.compile hides the layers inside model.1: {_WHY_HIDDEN}" in _text(p)
    total = p.phases.loc[["forward", "backward"], "ms"].sum()
    assert p.layers["self_ms"].sum() == pytest.approx(total, rel=1e-4)


def test_no_address_is_asked_of_a_fake_tensor() -> None:
    with FakeTensorMode() as mode:
        fakes = [torch.ones(3), mode.from_tensor(nn.Parameter(torch.ones(2)))]

    assert [list(storages(fake)) for fake in fakes] == [[], []]  # a warning of torch's would be an error here
    ((address, size, device),) = storages(torch.ones(3))
    assert (address > 0, size, device) == (True, 12, "cpu")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + inner


LAYERS = ("0", "0.norm", "0.up", "0.act", "0.down", "1", "1.norm", "1.up", "1.act", "1.down", "2")


def network() -> nn.Sequential:
    return nn.Sequential(Residual(), Residual(), nn.Linear(16, 4))


def check_layers(p: perfnb.Profile, root: str) -> None:
    """Every layer has its time, forward and backward, and the rows add up."""
    layers = p.layers
    inside = layers.loc[[f"{root}.{name}" for name in LAYERS]]
    assert (inside["calls"] == 1).all()
    assert (inside[["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert inside["share"].between(0, 1).all()
    assert (inside["fused_ms"] <= inside["total_ms"]).all()
    own = layers["self_ms"].sum()
    assert own == pytest.approx(p.phases.loc[["forward", "backward"], "ms"].sum(), rel=1e-4)
    assert layers.loc[f"{root}.0.up", "forward_flops"] == 2 * 8 * 16 * 32
    overhead = f"{root}.(compiled region overhead)"
    assert layers.loc[overhead, "total_ms"] == layers.loc[overhead, "self_ms"]
    kernels = p.compiled
    assert kernels["layers"].notna().all()
    # In the trace, generated kernels have a number before their name, and products are operators of torch.
    traced = p.events[p.events["step"] == 0]
    generated = traced.loc[traced["name"].astype(str).str.contains("_cpp_fused_"), "duration_ns"].sum() / 1e6
    steps = kernels["calls"].max()
    assert steps == 1
    assert (kernels["ms"] > 0).all()
    assert generated > 0
    assert kernels["kernel"].str.startswith(("cpp_fused_", "extern_kernels.")).all()
    assert {"forward", "backward"} == set(kernels["direction"])


@pytest.mark.slow
def test_what_runs_uncompiled_inside_a_model_compiled_in_place_is_seen_and_nothing_is_compiled_again() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.between, self.last = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(self.uncompiled(self.first(x)))
            return result

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def uncompiled(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.between(x)
            return result

    model = Breaks()
    model.compile(backend="aot_eager")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    step = training_step(model, torch.randn(4, 8))
    p = profile_without_recompiling(step)

    assert p.layers.loc[["model.between", "model.between.0"], "calls"].tolist() == [1, 1]
    assert p.layers.loc["model.between.0", ["forward_ms", "backward_ms"]].gt(0).all()
    assert p.layers.loc[["model.first", "model.last"], "calls"].isna().all()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


@pytest.fixture
def compiled_for_profiling() -> Iterator[None]:
    """Whatever is compiled tells its layers; afterwards torch's settings are restored."""
    from torch._inductor import config
    from torch._inductor.output_code import CompiledFxGraph

    if compiler.missing_names():
        pytest.skip("this torch cannot tell the layers")
    kept = CompiledFxGraph.__init__
    perfnb.compile_for_profiling()
    assert config.cpp.enable_kernel_profile
    with config.patch(compile_threads=1):  # no threads that outlive the test
        yield
    assert CompiledFxGraph.__init__ is kept
    assert not config.cpp.enable_kernel_profile
    assert config.trace.provenance_tracking_level == 0
    assert config.post_grad_custom_post_pass is None


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_for_profiling")
def test_the_layers_of_a_compiled_model_its_blocks_and_a_function_are_seen() -> None:
    model = network()
    p = profile_of(training_step(torch.compile(model), torch.randn(8, 16)))
    check_layers(p, "model")
    regions = p.compiled_regions
    assert len(regions) == 1
    assert regions["guards"].gt(0).all()
    assert regions["compile_s"].gt(0).all()
    assert regions[["broke", "recompiled"]].isna().all(axis=None)
    assert regions["ms"].iloc[0] == pytest.approx(regions[["kernel_ms", "overhead_ms"]].iloc[0].sum())


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_for_profiling")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_every_break_of_one_function_is_found_with_its_own_line_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x)
            print("a break")
            x = self.layers[1](x)
            if x.sum() > 1e9:
                x = x * 2
            x = self.layers[2](x)
            time.sleep(0.001)
            return x.relu()

    compiled, x = torch.compile(Breaks()), torch.randn(8, 16)

    p = profile_of(lambda: compiled(x).sum().backward())

    assert "a break" in capsys.readouterr().out
    line = Breaks.forward.__code__.co_firstlineno
    regions = p.compiled_regions.dropna(subset="broke").sort_values("line")
    assert regions["broke_at"].str.rpartition(":")[2].astype(int).tolist() == [line + 2, line + 4, line + 7]
    assert [text.rpartition(": ")[2] for text in regions["broke"]][::2] == ['print("a break")', "time.sleep(0.001)"]
    assert regions["broke"].iloc[1] == "Data-dependent branching: if x.sum() > 1e9"
    found = p.findings[p.findings["bottleneck"] == "graph breaks"].iloc[0]
    assert found["bound_ms"] > 1  # the sleep alone
    assert f"Graphs break at test_compiled.py:{line + 7} (" in found["evidence"]
    for number, cure in ((2, "print or log outside"), (4, "torch.where"), (7, "torch.library.custom_op")):
        assert f"test_compiled.py:{line + number}: " in found["advice"]
        assert cure in found["advice"]


@pytest.mark.slow
def test_a_break_in_a_loop_is_found_although_torch_leaves_the_function_uncompiled() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Residual() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)
                torch._dynamo.graph_break()
            return x

    compiled, x = torch.compile(Breaks(), backend="aot_eager"), torch.randn(8, 16)
    line = Breaks.forward.__code__.co_firstlineno

    p = profile_of(lambda: compiled(x).sum().backward())

    left = p.compiled_regions[p.compiled_regions["calls"].isna()].iloc[0]
    assert (left["function"], left["line"].rpartition(":")[2]) == ("forward", str(line))
    found = p.findings[p.findings["bottleneck"] == "graph breaks"].iloc[0]
    assert (
        f"forward (test_compiled.py:{line}), because its graph breaks at test_compiled.py:{line + 3}"
        in (found["evidence"])
    )
    assert found["advice"] == f"At test_compiled.py:{line + 3}: remove this call."


def metrics(region: str, name: str | None, **facts: Any) -> SimpleNamespace:
    """Return what torch reports of a compilation."""
    known: dict[str, Any] = {"co_filename": "model.py", "co_firstlineno": 7, "guard_count": 3, "fail_type": None}
    known |= {"entire_frame_compile_time_s": 2.0, "fail_user_frame_filename": "model.py", "fail_user_frame_lineno": 9}
    return SimpleNamespace(compile_id=region, co_name=name, **{**known, **facts})


def test_every_version_of_a_function_is_reported_with_the_time_of_its_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unsupported = {"fail_type": "Unsupported", "fail_reason": "Call to print\nand why", "guard_count": None}
    known = [
        *(metrics("0/0", "stale"), metrics("1/0", "stale")),
        *(metrics("0/0", "forward"), metrics("0/0", None, duration_us=500_000), metrics("0/1", "forward")),
        metrics("2/0", "elsewhere", co_firstlineno=20),
        metrics("3/0", "run", co_firstlineno=30, **unsupported),
        metrics("4/0", "other", co_firstlineno=40, **unsupported),
    ]
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: known)
    called = compile("def run(): pass", "model.py", "exec").co_consts[0].replace(co_firstlineno=30)

    code = compiler.compiled_code(["0/0"], [called])

    assert [(each.region, each.function, each.compile_s) for each in code] == [
        *(("0/0", "forward", 2.5), ("0/1", "forward", 2.0), ("3/0", "run", None))
    ]
    assert (code[2].broke, code[2].broke_at, code[2].guards) == ("Call to print", "model.py:9", None)


class Compiled(list[Any]):
    """Stands for torch's class of compiled graphs."""

    def __init__(self, key: Any, *kernels: str) -> None:
        super().__init__()
        self._fx_graph_cache_key = key
        known = ([(name, False, ("add",)) for name in kernels], [("add", "aten::add", (), (), 8, 2)])
        setattr(self, compiler._ATTRIBUTE, known)


@pytest.mark.skipif(compiler.missing_names() != [], reason="this torch does not report the layers")
def test_graphs_are_found_by_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compiled_graphs", SimpleNamespace(Compiled=Compiled))  # type: ignore[arg-type]
    monkeypatch.setattr(compiler, "_OUTPUT", "compiled_graphs")
    monkeypatch.setattr(compiler, "_GRAPH", "Compiled")
    alive = [
        Compiled("a", "k"),
        Compiled("b", "k", "l"),
        Compiled("b", "k", "l"),
        Compiled("none"),
        Compiled(None, "k"),
    ]

    def found(keys: list[str] | None) -> dict[str, list[str]]:
        return {each.key: [kernel.name for kernel in each.kernels] for each in compiler.compiled_graphs(keys)}

    assert found(None) == {"a": ["k"], "b": ["k", "l"]}
    assert found(["b", "none", "gone"]) == {"b": ["k", "l"]}
    assert found([]) == {}
    (graph,) = compiler.compiled_graphs(["a"])
    assert (graph.operations["add"].op, graph.operations["add"].bytes) == ("aten::add", 8)
    assert len(compiler.compiled_graphs(["b"])) == 1
    del alive


def test_a_compilation_belongs_to_the_step_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 1_000_000)  # the clocks differ by 4 ms
    begins_us = {"0/0": 3_999, "1/0": 4_000, "2/0": 4_009, "3/0": 4_010, "4/0": 4_015, "5/0": 4_020, "6/0": None}
    known = [
        metrics(region, f"f{region[0]}", start_time_us=begin, duration_us=2500) for region, begin in begins_us.items()
    ]
    known.append(metrics("7/0", "f7", start_time_us=4_005, duration_us=None))
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: known)

    found = compiler.compilations([(0, 10_000), (12_000, 20_000)])

    assert [(step, function, ms) for step, function, _, _, ms in found] == [
        (0, "f1", 2.5),
        (0, "f2", 2.5),
        (1, "f4", 2.5),
    ]
    assert found[0][2] == "model.py:7"


def test_the_function_of_torch_around_its_own_modules_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, ``inner``, is nothing that the user wrote."""
    file = torch._dynamo.external_utils.__file__
    monkeypatch.setattr(
        torch._dynamo.utils, "get_compilation_metrics", lambda: [metrics("0/0", "inner", co_filename=file)]
    )

    (code,) = compiler.compiled_code(["0/0"])

    assert (code.function, code.line, code.compile_s) == ("", "", 2.0)


def test_a_break_belongs_to_the_function_around_it_and_to_the_region_that_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two functions in the file have the same name, and torch left a third one uncompiled because of the break."""
    known = [
        metrics("0/0", "forward"),
        metrics("1/0", "forward", co_firstlineno=20),
        metrics("2/0", "torch_dynamo_resume_in_forward_at_22", co_firstlineno=22),
        metrics("3/0", "around", co_firstlineno=30, fail_type="Unsupported", fail_reason="", fail_user_frame_lineno=22),
    ]
    first = traceback.FrameSummary("model.py", 22, "forward", line="print(x)")
    second = traceback.FrameSummary("model.py", 24, "torch_dynamo_resume_in_forward_at_22", line="if x.sum() > 0:")
    breaks = [
        SimpleNamespace(graph_break=True, user_stack=[first], reason="Call to print"),
        SimpleNamespace(graph_break=True, user_stack=[second], reason="generic_jump"),
    ]
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: known)
    monkeypatch.setattr(torch._dynamo.utils, "graph_break_reasons", breaks)
    around = compile("def around(): pass", "model.py", "exec").co_consts[0].replace(co_firstlineno=30)

    code = compiler.compiled_code(["0/0", "1/0", "2/0"], [around])

    assert [(each.region, each.broke, each.broke_at) for each in code] == [
        ("0/0", "", ""),
        ("1/0", "Call to print: print(x)", "model.py:22"),
        ("2/0", "Data-dependent branching: if x.sum() > 0", "model.py:24"),
    ]


def graph_by_hand() -> torch.fx.GraphModule:
    """Return the graph of ``relu(bias + x @ w)`` for two rows, with its transposed view and a part of a pair."""
    graph, aten = torch.fx.Graph(), torch.ops.aten

    def sized(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    x, w, bias = (graph.placeholder(name) for name in ("x", "w", "bias"))
    x.meta["val"], w.meta["val"], bias.meta["val"] = sized(2, 3), sized(3, 5), sized(5)
    product = graph.call_function(aten.addmm.default, (bias, x, w))
    product.meta |= {"val": sized(2, 5), "nn_module_stack": {"a": ("m", nn.Sequential), "b": ("m.up", "nn.Linear")}}
    product.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    x = self.up(x)\n'
    relu = graph.call_function(aten.relu.default, (product,))
    relu.meta |= {"val": sized(2, 5), "fwd_nn_module_stack": {"a": ("m", nn.Sequential)}}
    view = graph.call_function(aten.t.default, (relu,))
    view.meta["val"] = sized(5, 2)
    pair = graph.call_function(min, (w, bias))
    pair.meta["val"] = (sized(4), sized(1))
    part = graph.call_function(operator.getitem, (pair, 0))
    part.meta["val"] = sized(4)
    graph.output((view, part))
    return torch.fx.GraphModule(nn.Module(), graph)


def test_the_operations_of_a_graph_have_their_modules_inputs_sizes_flops_and_lines() -> None:
    own, around = (("m", "Sequential"), ("m.up", "Linear")), (("m", "Sequential"),)
    place = ("model.py", 7, "x = self.up(x)")
    assert [tuple(each) for each in compiler._operations(graph_by_hand())] == [
        ("x", "", (), (), 4 * 6, 0, None, False, False),
        ("w", "", (), (), 4 * 15, 0, None, False, False),
        ("bias", "", (), (), 4 * 5, 0, None, False, False),
        ("addmm_default", "aten::addmm", own, ("bias", "x", "w"), 4 * 10, 2 * 2 * 3 * 5, place, False, False),
        ("relu_default", "aten::relu", around, ("addmm_default",), 4 * 10, 10, None, False, False),  # one per element
        ("t_default", "aten::t", (), ("relu_default",), 4 * 10, 0, None, True, True),
        ("min_1", "min", (), ("w", "bias"), 4 * 5, 15, None, False, False),  # the input is larger
        ("getitem", "getitem", (), ("min_1",), 4 * 4, 0, None, True, True),
    ]


def test_sizes_that_vary_are_those_that_the_compiler_saw() -> None:
    sizes = {name: MagicMock(spec=torch.SymInt, node=SimpleNamespace(hint=hint)) for name, hint in SEEN.items()}
    assert [compiler._number(size) for size in (7, sizes["batch"], sizes["unknown"])] == [7, 64, 1]
    assert compiler._elements(SimpleNamespace(shape=(3, sizes["batch"], 2))) == 384  # type: ignore[arg-type]
    replaced = compiler._with_numbers([torch.ones(2, 3, dtype=torch.float64), (sizes["batch"], "same", 1.5)])
    assert replaced[1:] == ((64, "same", 1.5),)
    assert (replaced[0].shape, replaced[0].dtype, replaced[0].device.type) == ((2, 3), torch.float64, "meta")


SEEN = {"batch": 64, "unknown": None}


def test_kernels_come_in_the_order_of_the_generated_code() -> None:
    fused = {"b:10": ["add", "mul"], "extern_kernels.mm:9": ["mm"], "a:b:2": [], "aten.sort:11": ["sort"]}
    assert [tuple(each) for each in compiler._kernels_in_order(fused | {"unnumbered": ["x"], "c:": ["y"]})] == [
        ("a:b", False, ()),
        ("extern_kernels.mm", True, ("mm",)),
        ("b", False, ("add", "mul")),
        ("aten.sort", True, ("sort",)),
    ]


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What Inductor has recorded about its kernels."""
    if compiler.missing_names():
        pytest.skip("this torch does not report the layers")
    found: dict[str, list[str]] = {}
    monkeypatch.setattr(f"torch._inductor.debug.{compiler._FUSED}", found)
    return found


def test_a_compiled_graph_describes_only_what_was_fused_since_it_was_begun(fused: dict[str, list[str]]) -> None:
    class Output:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.args = args

    before = {"gone:7": ("x",)}
    marker, describing = compiler._marker(before), compiler._describing(Output.__init__, before)
    fused |= {"old:1": ["add"], "reused:2": ["add"]}
    marker(torch.fx.Graph())
    assert before == {"old:1": ("add",), "reused:2": ("add",)}
    fused |= {"reused:2": ["mul"], "new:1": ["relu"]}
    module = graph_by_hand()

    output: Any = Output(1)
    describing(output, 2, graph=module)
    assert output.args == (2,)
    kernels, operations = getattr(output, compiler._ATTRIBUTE)
    assert kernels == [("new", False, ("relu",)), ("reused", False, ("mul",))]
    assert operations == [tuple(each) for each in compiler._operations(module)]

    next(node for node in module.graph.nodes if "relu" in node.name).target = "invoke_subgraph"
    for undescribed in ((), (SimpleNamespace(graph=module.graph),), (module,)):
        plain: Any = Output()
        describing(plain, *undescribed)
        assert not hasattr(plain, compiler._ATTRIBUTE)


def test_the_cache_key_of_a_graph_depends_on_the_modules_of_its_operations(fused: dict[str, list[str]]) -> None:
    marker = compiler._marker({})

    def key(of: Any) -> str:
        del of
        return str(marker.uuid())

    def keyed(graph: torch.fx.GraphModule) -> str:
        def inner() -> str:
            return key(None)

        named = graph
        found = inner()
        del named
        return found

    one, same, other = graph_by_hand(), graph_by_hand(), graph_by_hand()
    next(node for node in other.graph.nodes if "relu" in node.name).meta["fwd_nn_module_stack"] = {"a": ("n", nn.ReLU)}
    assert keyed(one) == keyed(same) != keyed(other)
    assert keyed(one).startswith(f"{compiler._ATTRIBUTE} ")
    assert compiler._modules_in_caller(None) == ""


def test_a_check_for_the_compiler_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(torch), "__getattr__", str.upper)
    with compiler.not_imported():
        assert vars(torch)["__getattr__"] is str.upper  # it is imported already
    monkeypatch.setitem(sys.modules, "torch._inductor", None)
    monkeypatch.delitem(sys.modules, "torch._inductor")

    def checked() -> None:
        with compiler.not_imported():
            lazily = vars(torch)["__getattr__"]
            assert lazily("other") == "OTHER"
            lazily("_inductor")

    with pytest.raises(AttributeError, match=r"^_inductor$"):
        checked()
    assert vars(torch)["__getattr__"] is str.upper
    monkeypatch.delitem(vars(torch), "__getattr__")
    with compiler.not_imported():
        assert "__getattr__" not in vars(torch)


def test_what_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"no.such.module": ("a",), "torch": ("nn.Linear", "nn.no.such"), "tests.step.test_compiled": ("Facts.x",)}
    assert compiler.missing_names(names) == ["no.such.module.a", "torch.nn.no.such"]
    monkeypatch.setattr(compiler, "PRIVATE_NAMES", {"torch": ("nn",)})
    monkeypatch.setattr(compiler, "AGAIN_NAMES", {"torch": ("fx",)})
    monkeypatch.setattr(torch, "compile", lambda model, isolate_recompiles: model)
    assert compiler.why_not_again() == ""
    monkeypatch.setattr(torch, "compile", lambda model: model)
    assert compiler.why_not_again() == f"torch {torch.__version__} has no torch.compile(isolate_recompiles=)"
    monkeypatch.setattr(compiler, "AGAIN_NAMES", {"no": ("a", "b")})
    assert compiler.why_not_again() == f"torch {torch.__version__} has no no.a"
    monkeypatch.setattr(compiler, "PRIVATE_NAMES", {"none": ("c",)})
    assert compiler.why_not_again() == f"torch {torch.__version__} has no none.c"


@pytest.mark.parametrize(
    ("name", "line", "broke_at"),
    [
        ("f", 5, "7"),
        ("f", 7, "7"),
        ("torch_dynamo_resume_in_f_at_6", 5, "7"),
        ("torch_dynamo_resume_in_f_at_7", 5, "8"),
        ("torch_dynamo_resume_in_f_at_8", 5, ""),  # the next break is in another function of the same name
        ("f", 20, "20"),
        ("f", 21, ""),
        ("g", 5, ""),
    ],
)
def test_a_region_ends_at_the_first_break_after_its_beginning(name: str, line: int, broke_at: str) -> None:
    def facts(name: str, line: int, file: str = "a.py") -> Any:
        return SimpleNamespace(co_filename=file, co_name=name, co_firstlineno=line)

    breaks = {("a.py", "f", at): ("why", str(at)) for at in (7, 8, 20)} | {("b.py", "g", 6): ("why", "b")}
    known = [facts("f", 5), facts("f", 20), facts("f", 6, "b.py"), facts("g", 7)]
    assert compiler._broke(facts(name, line), known, breaks) == (("why", broke_at) if broke_at else ("", ""))


def test_before_torchs_compiler_is_imported_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    assert compiler.compiled_modules() == []
    assert compiler.compilations([(0, 2**63)]) == []
    assert compiler.compiled_code(["1/0", "0/0", "1/0"]) == [CompiledCode("1/0"), CompiledCode("0/0")]


class Facts:
    x: int


class Equal:
    """A backend that equals every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_a_copied_backend_equals_only_itself() -> None:
    backend = Equal()
    copied = compiler._unlike(backend)
    assert [copied.__eq__(other) for other in (copied, backend, compiler._unlike(backend))] == [True, False, False]
    assert len({copied, compiler._unlike(copied)}) == 2
    assert isinstance(copied, Equal)


@pytest.mark.parametrize("function", [lambda: 0, print, None])
def test_what_torch_compile_did_not_make_is_not_compiled_again(function: Any) -> None:
    if compiler.why_not_again() == "":
        assert compiler._compiled_again(function) is None


GUARDED = "+- DICT_LENGTH: not L['self']._global_forward_hooks"


@pytest.mark.parametrize(
    ("guard", "names", "broke", "whole"),
    [
        (GUARDED, ("relu",), None, True),
        (f"{GUARDED}_always_called", (), None, False),
        (GUARDED.replace("forward_hooks", "forward_pre_hooks"), (), None, True),
        (GUARDED.replace("not ", ""), (), None, False),
        (GUARDED, ("relu", "__resume_at_30_1"), None, False),
        (GUARDED, (), ("model.py", "forward", 2), False),
        (GUARDED, (), ("model.py", "forward", 3), True),
        (GUARDED, (), ("model.py", "other", 2), True),
        (GUARDED, (), ("other.py", "forward", 2), True),
    ],
)
def test_a_model_runs_without_hooks_if_its_code_is_whole_and_guarded(
    guard: str, names: tuple[str, ...], broke: tuple[str, str, int] | None, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: dict[str, Any] = {}
    exec(compile("def forward(self, x):\n    return x", "model.py", "exec"), space)
    kind = type("Model", (nn.Module,), {"forward": space["forward"]})
    entries = [
        SimpleNamespace(guard_manager="", code=SimpleNamespace(co_names=("relu",))),
        SimpleNamespace(guard_manager=guard, code=SimpleNamespace(co_names=names)),
    ]
    asked = {space["forward"].__code__: entries}
    monkeypatch.setattr(
        torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list", lambda code: asked.get(code, []), raising=False
    )
    breaks = [] if broke is None else [broke]
    frames = [traceback.FrameSummary(file, line, name, line="") for file, name, line in breaks]
    reasons = [SimpleNamespace(graph_break=True, user_stack=[frame], reason="") for frame in frames]
    monkeypatch.setattr(torch._dynamo.utils, "graph_break_reasons", reasons)
    model, inner = kind(), nn.Linear(2, 2)
    outside, inside, plain = torch.compile(model), torch.compile(model), torch.compile(inner)
    vars(outside)["forward"] = SimpleNamespace(_torchdynamo_orig_callable=model.__call__)
    vars(inside)["forward"] = SimpleNamespace(_torchdynamo_orig_callable=model.forward)

    found = compiler.recompiled_for_hooks([inner, outside, plain, inside])

    assert found == ([(outside, model), (inside, None)] if whole else [])


@pytest.mark.parametrize(("count", "frozen"), [(10_000, False), (10_001, True)])
def test_objects_that_the_interpreter_froze_hide_nothing(
    count: int, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.gc, "get_freeze_count", lambda: count)
    assert compiler.objects_are_frozen() == frozen


@pytest.mark.slow
def test_recompilations_by_a_python_number_that_changes_are_found_with_their_guard() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(16, 16), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            result: torch.Tensor = self.linear(x) * self.calls
            return result

    compiled, x = torch.compile(Counts(), backend="aot_eager"), torch.randn(8, 16)

    p = perfnb.profile_step(lambda: compiled(x).sum().backward(), warmup=1, steps=3, traced=1, memory=False)

    line = Counts.forward.__code__.co_firstlineno
    found = p.findings[p.findings["bottleneck"] == "recompilation"].iloc[0]
    assert f"In 3 of 3 timed steps, torch.compile compiled forward (test_compiled.py:{line}) again" in found["evidence"]
    assert "self.calls == " in found["evidence"]
    assert "in a tensor" in found["advice"]
    assert 0 < found["bound_ms"] <= p.steps.loc[p.steps["pass"] == "timed", "wall_ms"].mean()


def test_the_line_of_an_operation_is_the_users_even_if_torch_was_called_through_a_mode() -> None:
    torchs = Path(torch.__file__).parent / "utils" / "_device.py"
    frames = [("model.py", 3, "x = self.up(x)"), (str(torchs), 116, "return func(*args, **kwargs)")]
    trace = "".join(f'  File "{file}", line {line}, in forward\n    {text}\n' for file, line, text in frames)
    assert compiler._source_of(trace) == frames[0]
    assert compiler._source_of(trace[trace.index("  File", 10) :]) == frames[1]
    assert compiler._source_of(None) is None


def test_code_is_compiled_for_profiling_until_a_session_ends() -> None:
    compiler.begin_for_profiling()
    (in_force,) = compiler._in_force
    with Session(Plan()):
        compiler.begin_for_profiling()
        assert compiler._in_force == [in_force]
    assert compiler._in_force == []


@pytest.mark.skipif(compiler.missing_names() != [], reason="this torch cannot tell the layers")
def test_the_settings_end_with_their_block_and_an_old_torch_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    with perfnb.compile_for_profiling():
        with perfnb.compile_for_profiling():
            assert config.cpp.enable_kernel_profile
        perfnb.profile_step(lambda: torch.ones(3).sum(), warmup=1, steps=1, traced=1, memory=False, stacks=False)
        assert config.cpp.enable_kernel_profile  # neither an inner block nor a profile ends an outer block
    assert not config.cpp.enable_kernel_profile

    monkeypatch.setattr(compiler, "PRIVATE_NAMES", {"torch._inductor.config": ("cpp.no_such_setting",)})
    with pytest.warns(RuntimeWarning, match=r"has no torch\._inductor\.config\.cpp\.no_such_setting"):
        perfnb.compile_for_profiling()
    assert not config.cpp.enable_kernel_profile
    compiler.end_for_profiling()


@pytest.mark.slow
@pytest.mark.skipif(compiler.missing_names() != [], reason="this torch does not report the layers")
def test_the_kernels_of_a_trace_of_torchs_profiler_have_the_layers_of_a_live_profile(tmp_path: Path) -> None:
    from torch._inductor import config

    provenance, trace = tmp_path / "provenance.json", tmp_path / "trace.json"
    model, x = network(), torch.randn(8, 16)
    compiled = torch.compile(model)

    def step() -> None:
        compiled(x).square().mean().backward()

    with config.patch(compile_threads=1), perfnb.compile_for_profiling(provenance):
        step()
    live = profile_of(step)
    with torch.profiler.profile(with_stack=True) as profiler:
        step()
        step()
    profiler.export_chrome_trace(str(trace))

    loaded = perfnb.load(trace, provenance=provenance)

    assert isinstance(loaded, perfnb.Profile)

    def kernels_of(p: perfnb.Profile, model: str) -> list[tuple[str, ...]]:
        layers = p.compiled["layers"].fillna("").str.replace(model, "", regex=False)
        return sorted(zip(p.compiled["kernel"], p.compiled["direction"], layers, p.compiled["ops"], strict=True))

    known = kernels_of(loaded, "OptimizedModule_0")
    assert known == kernels_of(live, "compiled")
    assert len(known) > 3
    below = loaded.layers.filter(regex=r"^OptimizedModule_0\..*[a-z0-9]$", axis="index")
    assert below["forward_ms"].gt(0).all()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="nothing is promised for older versions")
def test_the_tested_torch_has_every_private_name_that_is_needed() -> None:
    assert compiler.missing_names() == compiler.missing_names(compiler.REPORTED_NAMES) == []


@pytest.mark.skipif(compiler.missing_names() == [], reason="this torch tells the layers")
@pytest.mark.filterwarnings("ignore:torch .* does not report layers:RuntimeWarning")
def test_without_the_private_names_a_region_is_one_layer_with_the_reason() -> None:
    compiled = torch.compile(three_linears(), backend="aot_eager")
    with perfnb.compile_for_profiling():
        p = profile_of(lambda: compiled(torch.ones(2, 8)).sum().backward())

    assert p.compiled is None or p.compiled.empty
    assert p.layers.loc["compiled", "forward_ms"] > 0
    assert p.layers.loc[["compiled.0", "compiled.2"], "forward_ms"].isna().all()
    assert f"hides the layers inside compiled: {_WHY_HIDDEN}" in _text(p)


@pytest.mark.slow
@pytest.mark.skipif(compiler.why_not_again() != "", reason="this torch cannot keep the code apart")
def test_models_compiled_as_a_whole_are_compiled_once_more_for_the_traced_steps_alone() -> None:
    """One in place, and one whose graph breaks."""
    from torch._dynamo.eval_frame import _get_cache_entries_for_region as versions_of

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            torch._dynamo.graph_break()
            result: torch.Tensor = self.last(x)
            return result

    whole, in_place = torch.compile(Broken()), three_linears()
    in_place.compile()
    x = torch.randn(4, 8)

    def step() -> None:
        in_place(whole(x)).sum().backward()

    with torch._inductor.config.patch(compile_threads=1):
        step()
    own = vars(whole)["forward"], vars(in_place)["_compiled_call_impl"]
    versions = versions_of(Broken.forward, -1)

    with torch._inductor.config.patch(compile_threads=1):  # no threads that outlive the test
        p = perfnb.profile_step(step, warmup=2, steps=1, traced=2, recompile=True)

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert len(versions_of(Broken.forward, -1)) == len(versions) == 1
    assert (vars(whole)["forward"], vars(in_place)["_compiled_call_impl"]) == own
    layers = ["whole.first", "whole.last", "in_place.0", "in_place.2"]
    assert (p.layers.loc[layers, ["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert p.steps["pass"].value_counts()["recompiled"] == 2
    assert "show the layers: in_place, whole." in _text(p) or "show the layers: whole, in_place." in _text(p)


@pytest.mark.skipif(compiler.why_not_again() != "", reason="this torch cannot keep the code apart")
def test_what_compiles_again_ends_with_an_error_and_leaves_other_backends_alone() -> None:
    whole, in_place = torch.compile(three_linears()), three_linears()
    other = torch.compile(three_linears(), backend="aot_eager")
    in_place.compile()
    before = vars(whole)["forward"], vars(in_place)["_compiled_call_impl"], vars(other)["forward"]

    def interrupted() -> None:
        with compiler.CompilesAgain() as again:
            assert {id(whole), id(in_place)} <= {id(model) for model in again.models}
            assert vars(other)["forward"] is before[2]
            assert vars(whole)["forward"] is not before[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert (vars(whole)["forward"], vars(in_place)["_compiled_call_impl"], vars(other)["forward"]) == before


def test_a_torch_that_cannot_compile_again_refuses_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "AGAIN_NAMES", {"torch._dynamo": ("no_such_name",)})
    with pytest.raises(CaptureError, match=r"recompile=True requires .* has no torch\._"):
        perfnb.profile_step(lambda: pytest.fail("the step ran"), recompile=True)


def _text(p: perfnb.Profile) -> str:
    return " ".join(str(p).split())


@pytest.mark.deep
@pytest.mark.slow
def test_a_profile_of_a_step_that_compiles_nothing_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(
        "import sys, torch, perfnb\n"
        "model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)\n"
        "perfnb.profile_step(lambda: model(x), warmup=1, steps=1, traced=1)\n"
        "print('torch._inductor' in sys.modules, torch._inductor.__name__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "False torch._inductor\n"


@pytest.mark.slow
def test_the_layers_around_a_compiled_one_are_seen() -> None:
    inner = torch.compile(three_linears(), backend="aot_eager")
    model = nn.Sequential(nn.Linear(8, 8), inner)

    p = profile_of(training_step(model, torch.randn(4, 8)))

    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers["calls"].dropna().to_dict() == {"model": 1, "model.0": 1, "model.1": 1}
    assert layers.index.tolist() == ["model", "model.0", "model.1", "model.1.0", "model.1.1", "model.1.2"]
    assert f"torch.compile hides the layers inside model.1: {_WHY_HIDDEN}" in _text(p)


@pytest.mark.slow
def test_a_model_compiled_in_place_is_one_layer_too() -> None:
    model = Residual()
    model.compile(backend="aot_eager")
    compiled = model._compiled_call_impl

    p = profile_of(training_step(model, torch.randn(4, 16)))

    assert p.layers.loc["model", "calls"] == 1
    assert p.layers.loc["model", ["forward_ms", "backward_ms"]].gt(0).all()
    assert p.layers.loc["model.up", ["calls", "total_ms"]].isna().all()
    assert model._compiled_call_impl is compiled
    assert p.phases["ms"].sum() == pytest.approx(traced_ms(p))


@pytest.mark.slow
def test_a_model_runs_without_hooks_if_they_would_make_torch_compile_it_again_and_no_graph_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tested torch compiles no model again for hooks, so every guard is taken for such a one."""
    from torch.nn.modules.module import _global_forward_hooks

    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        @torch.compiler.disable
        def run(*args: Any) -> Any:
            seen.append(len(_global_forward_hooks))
            return graph.forward(*args)

        return run

    class Breaks(nn.Module):
        def __init__(self, last: bool) -> None:
            super().__init__()
            self.first, self.between, self.last = nn.Linear(8, 8), nn.Linear(8, 8), last

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.last:
                return self.uncompiled(self.first(x))
            return self.uncompiled(self.first(x)).relu()

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def uncompiled(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.between(x)
            return result

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.first(x)
            return result

    def profiled(
        model: nn.Module, profile: Callable[..., perfnb.Profile] = profile_without_recompiling
    ) -> perfnb.Profile:
        torch._dynamo.reset()
        compiled, x = torch.compile(model, backend=backend), torch.randn(4, 8)
        before = dict(vars(compiled))
        compiled(x)
        seen.clear()
        p = profile(lambda: compiled(x).sum().backward())
        assert vars(compiled) == before
        assert p.layers.loc["compiled", "calls"] == 1
        return p

    if torch.__version__ >= "2.13":
        profiled(three_linears())
        assert set(seen) == {0, 1}
    monkeypatch.setattr(compiler, "_HOOK_GUARD", re.compile("GuardManager"))
    for whole, first in ((three_linears(), "compiled.0"), (Whole(), "compiled.first")):
        p = profiled(whole)
        assert set(seen) == {0}
        assert p.layers.loc[first, "forward_flops"] > 0  # counted in a step without compiled code
    for last in (False, True):
        p = profiled(Breaks(last), profile_of)
        assert 1 in seen
        assert p.layers.loc["compiled.between", "calls"] == 1
