"""Each backend: its results, its size, what it refuses, and that the model stays unchanged."""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import nn

from perfnb.bench.values import NOISE, REDUCED, SAME
from perfnb.errors import CaptureError
from perfnb.inference import backend_trials, backends
from perfnb.inference.backend_figures import BackendTrial
from perfnb.inference.backends import Backend, ModelCall, ReadyBackend, RefusedError, by_name, call_of
from tests.fake_clock import FakeClock
from tests.inference.models import small_bert, small_cnn

PACKAGES = {"onnxruntime": ("onnx", "onnxscript", "onnxruntime"), "int8": ("torchao",), "openvino": ("openvino",)}
VERDICTS = {"bf16": REDUCED, "int8": REDUCED}
SLOW = ("compile", "int8", "onnxruntime")


def tried(name: str, model: nn.Module, example: Any) -> BackendTrial:
    """Return one backend, made and checked."""
    for package in PACKAGES.get(name, ()):
        pytest.importorskip(package)
    call, backend, base = call_of(example), by_name()[name], copy.deepcopy(model).eval()
    with backend_trials._quiet():
        own = backends._served(base)
        return backend_trials._tried(backend, base, call, backend_trials._Yardstick(base, call, own))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.deep] if name == "compile" else [])
        for name in by_name()
        if name != "eager"
    ],
)
def test_a_cnn_is_served_as_well_as_before(name: str) -> None:
    model, example = small_cnn()

    trial = tried(name, model, example)

    assert trial.why_not == ""
    assert trial.values.verdict in ((VERDICTS[name],) if name in VERDICTS else (SAME, NOISE))
    assert trial.error is not None
    assert trial.max_distance is not None
    assert trial.size_bytes
    assert (trial.peak_bytes is None) == (name in ("onnxruntime", "openvino"))  # torch does not see their memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "onnxruntime", "openvino"])
def test_keyword_arguments_reach_a_transformer_whatever_their_order(name: str) -> None:
    model, example = small_bert()

    trial = tried(name, model, example)

    assert trial.why_not == ""
    assert trial.values.verdict in (REDUCED, SAME, NOISE)
    assert trial.run is not None
    result = trial.run(**example)
    assert type(result) is type(model(**example))
    assert result.last_hidden_state.dtype == torch.float32


def test_lower_precision_takes_less_disk_and_folding_less_than_nothing_folded() -> None:
    model, example = small_cnn()
    sizes = {name: tried(name, model, example).size_bytes or 0 for name in ("eager", "bf16", "folded")}

    assert sizes["bf16"] < 0.6 * sizes["eager"]
    assert sizes["folded"] < sizes["eager"]


def test_what_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    real = importlib.util.find_spec
    absent = ("openvino", "onnxscript")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else real(name))

    assert tried("channels_last", linear, x).why_not == "the model has no two-dimensional convolution"
    assert tried("folded", linear, x).why_not == "the model has no batch normalisation"
    assert tried("bf16", linear.double(), x.double()).why_not == "the model has no parameters in float32"
    assert by_name()["int8"].refuses(nn.ReLU(), call_of(x)).startswith("the model has no linear layer")
    assert by_name()["openvino"].refuses(linear, call_of(x)) == "not installed: pip install openvino"
    assert by_name()["onnxruntime"].refuses(linear, call_of(x)).startswith("not installed: pip install onnx")
    alone = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    assert "follows a convolution" in tried("folded", alone, torch.randn(2, 3, 4, 4)).why_not
    meta = nn.Linear(4, 4, device="meta")
    assert (
        backends._only_on_cpu(meta, call_of(x)) == "the model is on meta, and perfnb runs this backend only on the CPU"
    )


def test_a_model_that_torch_cannot_trace_is_refused_by_folding_alone() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(x)) if x.sum() > 0 else x  # type: ignore[no-any-return]

    assert "it fails: TraceError" in tried("folded", Branching(), torch.ones(1, 3, 2, 2)).why_not
    assert tried("bf16", Branching(), torch.ones(1, 3, 2, 2)).why_not == ""


def test_what_a_model_is_called_with() -> None:
    x = torch.ones(2)

    assert call_of({"x": x}).kwargs["x"] is x
    assert call_of((x, 3)) == ModelCall((x, 3), {})
    assert call_of(x).args[0] is x


def test_inputs_of_an_engine_go_by_name_and_never_by_chance() -> None:
    x, y = torch.zeros(1), torch.ones(1)

    assert list(backends._fed(["b", "a"], (), {"a": x, "b": y})["a"]) == [0.0]
    assert list(backends._fed(["one", "two"], (x, y), {})["two"]) == [1.0]
    with pytest.raises(RefusedError, match="differ from the model's keyword arguments"):
        backends._fed(["one", "two"], (), {"a": x, "b": y})
    with pytest.raises(RefusedError, match="it accepts 1 tensors, but the model is called with 2"):
        backends._fed(["one"], (x, y), {})


class Named(nn.Module):
    """Returns the difference by name, next to something that is no tensor."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"difference": x - y, "words": "none", "sum": [x + y]}


def test_an_engines_outputs_take_the_places_of_the_models_tensors() -> None:
    rebuilt = backends._like(Named(), call_of({"x": torch.ones(2), "y": torch.ones(2)}))
    found = rebuilt([np.array([1.0]), np.array([2.0])])
    assert list(found) == ["difference", "words", "sum"]
    assert (found["difference"].tolist(), found["words"], found["sum"][0].tolist()) == ([1.0], "none", [2.0])
    with pytest.raises(RefusedError, match="it returns 1 tensors, but the model returns 2"):
        rebuilt([np.array([1.0])])


@pytest.fixture
def onnxruntime(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine that subtracts and adds its inputs, whose second input is `y`."""

    class Session:
        def __init__(self, path: str, options: Any, providers: list[str]) -> None:
            assert Path(path).read_bytes() == b"12345"
            assert (options.intra_op_num_threads, options.inter_op_num_threads) == (torch.get_num_threads(), 1)
            options.add_session_config_entry.assert_called_with("session.force_spinning_stop", "1")

        def get_providers(self) -> list[str]:
            return list(engine.providers)

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="y"), SimpleNamespace(name="x")]

        def run(self, names: None, fed: dict[str, Any]) -> list[Any]:
            return [fed["x"] - fed["y"], fed["x"] + fed["y"]]

    def export(model: Any, args: Any, path: Path, **kwargs: Any) -> None:
        path.write_bytes(b"12345")

    engine: Any = ModuleType("onnxruntime")
    engine.InferenceSession, engine.SessionOptions, engine.GraphOptimizationLevel = Session, MagicMock, MagicMock()
    engine.providers = ["CPUExecutionProvider"]
    monkeypatch.setitem(sys.modules, "onnxruntime", engine)
    monkeypatch.setattr(torch.onnx, "export", export)
    return engine


def test_onnxruntime_gets_its_inputs_by_name_and_is_checked_for_its_provider(onnxruntime: Any, tmp_path: Path) -> None:
    call = call_of({"x": torch.full((2,), 5.0), "y": torch.ones(2)})
    ready = backends._onnxruntime(Named(), call, tmp_path)
    assert (ready.size_bytes, ready.by_torch) == (5, False)
    found = ready.run(**call.kwargs)
    assert (found["difference"].tolist(), found["sum"][0].tolist()) == ([4, 4], [6, 6])
    onnxruntime.providers = ["AzureExecutionProvider"]
    with pytest.raises(RefusedError, match="it runs on AzureExecutionProvider instead of CPUExecutionProvider"):
        backends._onnxruntime(Named(), call, tmp_path)


@pytest.mark.parametrize("by_name", [True, False])
def test_openvino_gets_its_inputs_and_its_outputs_are_copied(
    by_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = np.zeros(1, dtype=np.float32)

    def compiled(fed: dict[str, Any]) -> dict[int, Any]:
        x, y = (fed["x"], fed["y"]) if by_name else (fed["one"], fed["two"])
        kept[:] = x - y
        return {0: kept, 1: x + y}

    names = [({"y", "two"}, "two"), ({"one", "x"}, "one")] if by_name else [({"one"}, "one"), ({"two"}, "two")]
    engine: Any = ModuleType("openvino")
    engine.convert_model = lambda model, example_input: example_input
    engine.save_model = lambda model, path, compress_to_fp16: path.write_bytes(b"x" * (3 + compress_to_fp16))
    network = MagicMock(side_effect=compiled, outputs=[0, 1])
    network.inputs = [SimpleNamespace(names=known, any_name=first) for known, first in names]
    engine.Core = lambda: SimpleNamespace(compile_model=lambda model, kind, options: asked.append(model) or network)
    asked = list[Any]()
    monkeypatch.setitem(sys.modules, "openvino", engine)
    x, y = torch.tensor([5.0]), torch.tensor([1.0])
    call = call_of({"x": x, "y": y} if by_name else (x, y))

    ready = backends._openvino(Named(), call, tmp_path)
    first, second = ready.run(*call.args, **call.kwargs), ready.run(*(() if by_name else (y, x)), **call.kwargs)

    assert (ready.size_bytes, ready.by_torch) == (3, False)
    assert asked == [call.kwargs or (x, y)]
    assert (first["difference"].tolist(), first["sum"][0].tolist()) == ([4.0], [6.0])
    assert second["difference"].tolist() == ([4.0] if by_name else [-4.0])
    if not by_name:
        assert backends._openvino(nn.Identity(), call_of(x), tmp_path)
        assert asked[1] is x


def test_images_and_weights_have_their_channels_last(tmp_path: Path) -> None:
    seen = list[bool]()

    class Model(nn.Conv2d):
        def forward(self, *inputs: Any) -> Any:
            seen.extend(one.is_contiguous(memory_format=torch.channels_last) for one in (*inputs[:1], self.weight))
            return inputs

    model, x, row = Model(3, 8, 3), torch.randn(2, 3, 5, 5), torch.ones(2, 3, 4)
    found = backends._channels_last(model, call_of(x), tmp_path).run(x, row, "word")
    assert seen == [True, True]
    assert not model.weight.is_contiguous(memory_format=torch.channels_last)
    assert found[1:] == (row, "word")


def test_only_floating_point_inputs_and_outputs_are_converted_for_bfloat16(tmp_path: Path) -> None:
    class Model(nn.Linear):
        def forward(self, *inputs: Any) -> Any:
            seen.extend(getattr(one, "dtype", one) for one in (*inputs, self.weight))
            return super().forward(inputs[0]), *inputs[1:]

    seen, rows = list[Any](), torch.tensor([70_001])
    out, *others = backends._bf16(Model(2, 2), call_of(rows), tmp_path).run(torch.ones(1, 2), rows, "word")
    assert seen == [torch.bfloat16, torch.int64, "word", torch.bfloat16]
    assert (out.dtype, others) == (torch.float32, [rows, "word"])


def test_outputs_that_cannot_be_checked_say_so() -> None:
    class Classes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x).argmax(1)  # type: ignore[no-any-return]

    class Noisy(Classes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x) + torch.randn(4)  # type: ignore[no-any-return]

    x = torch.randn(2, 4)

    assert tried("bf16", Classes(), x).values.why == "the model returns no floating-point numbers"
    assert tried("bf16", Noisy(), x).values.why == "the model uses random numbers even in evaluation mode"


@pytest.mark.parametrize(("threads", "others"), [(1, 2), (2, 1), (3, 1)])
def test_without_float64_the_model_with_other_threads_is_the_yardstick(threads: int, others: int) -> None:
    seen = list[Any]()

    class Only32(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            assert input.dtype != torch.float64
            seen.append((torch.get_num_threads(), torch.get_default_dtype()))
            return super().forward(input)

    default = torch.get_default_dtype()
    torch.set_num_threads(threads)

    assert tried("bf16", Only32(4, 4), torch.randn(2, 4)).values.verdict == REDUCED
    assert list(dict.fromkeys(seen)) == [(threads, default), (others, default)]
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, default)


def test_tensors_that_the_model_creates_are_also_float64_in_the_yardstick() -> None:
    seen = list[torch.dtype]()

    class Makes(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            made = torch.ones(4) / 3
            seen.append(made.dtype)
            return super().forward(input) + made

    tried("bf16", Makes(4, 4), torch.randn(2, 4))
    assert torch.float64 in seen
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("error", "why_not"),
    [
        (ValueError(f"\n \n{'x' * 300}\nmore"), f"it fails: ValueError: {'x' * 200}"),
        (KeyError(), "it fails: KeyError: "),
        (RefusedError("too old"), "too old"),
    ],
)
def test_a_backend_that_fails_says_why_in_a_line(error: Exception, why_not: str) -> None:
    backend = Backend("b", lambda model, call: "", MagicMock(side_effect=error))
    assert backend_trials._tried(backend, nn.Identity(), call_of(1), MagicMock()).why_not == why_not


def test_a_backend_is_built_and_run_once_before_its_memory_is_measured(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list[str]()

    def made(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
        clock.pass_exactly(100)
        return ReadyBackend(lambda given: events.append("run") or clock.pass_exactly(30) or torch.empty(given), 7)

    monkeypatch.setattr(backend_trials, "synchronize", lambda: events.append("synchronize") or clock.pass_exactly(5))
    trial = backend_trials._prepared(Backend("b", lambda model, call: "", made), nn.Identity(), call_of(1000))

    assert events == ["run", "synchronize", "run"]
    assert trial.setup_s == pytest.approx(0.135, rel=0.01)
    assert trial.peak_bytes == 7 + 4000


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.lock = (each for each in ())  # type: ignore[assignment]

    with pytest.raises(CaptureError, match="cannot be copied"):
        backend_trials._copied(model)


def test_notes_and_warnings_of_exporters_are_silent_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    with backend_trials._quiet():
        warnings.warn("deprecated", FutureWarning, stacklevel=1)
        logging.getLogger("torch").warning("skipped")
    assert not caplog.records
    logging.getLogger("perfnb-test").warning("heard")
    assert [record.message for record in caplog.records] == ["heard"]
