"""Real models compared: costs by hand, shares that add up, ratios with intervals, models left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.models import architectures
from perfnb.models.architecture_tables import (
    COLUMNS,
    KINDS,
    _shares,
    architecture_tables,
    kind_of_op,
    kinds_of_layers,
    time_by_kind,
)
from perfnb.models.architectures import _batch_words, _with_batches
from perfnb.recording.schema import SPECIAL_ROWS, conform
from tests import summaries
from tests.models.idle_bench import IdleBench

pytestmark = pytest.mark.usefixtures("nothing_left")

X, Y = torch.randn(16, 1, 8, 8), torch.randint(10, (16,))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


class Small(nn.Module):
    """A transformer's layer over rows of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x.squeeze(1)).mean(1))
        return out


@pytest.mark.slow
def test_three_models_on_one_batch(tmp_path: Path) -> None:
    models = {"mlp": mlp(), "cnn": cnn(), "transformer": Small()}

    comparison = perfnb.compare_architectures(models, (X, Y), loss=nn.functional.cross_entropy, budget_s=4)

    table = comparison.table
    assert table.index.tolist() == list(models)
    assert table.columns.tolist() == list(COLUMNS)
    assert table["parameters"].tolist() == [sum(p.numel() for p in model.parameters()) for model in models.values()]
    first, second = 2 * 16 * 64 * 32, 2 * 16 * 32 * 10
    assert table.loc["mlp", ["forward_flops", "backward_flops"]].tolist() == [first + second, first + 2 * second]
    assert (table["peak_bytes"] > table["parameter_bytes"]).all()
    shares = comparison.shares
    kinds = shares[shares["by"] == "kind"].set_index(["name", "part"])["share"]
    assert set(kinds.index.get_level_values("part")) == set(KINDS)
    assert kinds["cnn", "convolution"] > 0 == kinds["mlp", "convolution"]
    assert kinds["transformer", "attention"] > 0 == kinds["cnn", "attention"]
    ratios = comparison.ratios
    assert ratios[["a", "b"]].to_numpy().tolist() == [["mlp", "cnn"], ["mlp", "transformer"], ["cnn", "transformer"]]
    assert set(comparison.profiles) == set(models)
    assert "transformer" in str(comparison)
    assert "transformer" in comparison.to_html(tmp_path / "models.html").read_text("utf-8")


class Clock:
    """A clock that shows these seconds, one after the other."""

    def __init__(self, *shown: float) -> None:
        self.shown = list(shown)

    def perf_counter(self) -> float:
        return self.shown.pop(0)


@pytest.mark.parametrize(
    ("steady", "now", "left_s", "notes"),
    [
        (True, 5.0, 3.5, ["busy"]),
        (None, 12.0, 0.5, ["busy"]),  # a second is left at least
        (False, 5.0, 3.5, ["Not all models had reached steady state when the warm-up ended.", "busy"]),
    ],
)
def test_models_are_timed_in_turns_and_profiled_one_by_one(
    monkeypatch: pytest.MonkeyPatch, steady: bool | None, now: float, left_s: float, notes: list[str]
) -> None:
    profiled: list[Any] = []
    given: list[Any] = []

    def run_profile(step: Any, batches: None, plan: Any, models: list[Any], **options: Any) -> Any:
        profiled.append((options["name"], models, plan.warmup, plan.steps, plan.traced, plan.budget_s))
        return SimpleNamespace(_summary=f"summary of {options['name']}")

    def tables(*parts: Any) -> dict[str, Any]:
        given.extend(parts)
        return dict.fromkeys(("table", "shares", "ratios"), pd.DataFrame()) | {"layers": {}}

    samples = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    monkeypatch.setattr("perfnb.bench.rounds.Bench", IdleBench)
    monkeypatch.setattr(architectures, "time", Clock(2.0, now))
    monkeypatch.setattr(architectures, "warm_up", lambda bench, start, budget_s: steady)
    monkeypatch.setattr(architectures, "planned_rounds", lambda bench, start, budget_s, width: (None, samples))
    monkeypatch.setattr(architectures, "run_profile", run_profile)
    monkeypatch.setattr(architectures, "architecture_tables", tables)
    monkeypatch.setattr(architectures, "noise_sentences", lambda facts: ["busy"] if facts == "facts" else [])
    one, other = mlp(), mlp()

    found = architectures.compare_architectures({"a": one, "b": (other, X[:5])}, X, training=False, budget_s=10.0)

    assert profiled == [("a", [one], 1, 1, 3, left_s), ("b", [other], 1, 1, 3, left_s)]
    assert given[0] == {"a": "summary of a", "b": "summary of b"}
    assert given[1:3] == [{"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}, {"a": 16, "b": 5}]
    assert (found.rounds, found.training, found.batch) == (3, False, "16 × 1 × 8 × 8")
    assert list(found.notes) == notes
    assert list(found.profiles) == ["a", "b"]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_models_are_left_as_they_were(training: bool) -> None:
    model = cnn().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen: set[bool] = set()
    model[1].register_forward_hook(lambda module, *_: seen.add(module.training))

    perfnb.compare_architectures({"cnn": model}, X, training=training, budget_s=1)

    assert seen == {training}
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: perfnb.compare_architectures({}, X), TypeError, "non-empty dict"),
        (lambda: perfnb.compare_architectures({"a": 3}, X), TypeError, "must be a torch module, not int"),  # type: ignore[dict-item]
        (lambda: perfnb.compare_architectures({"a": mlp()}), ValueError, "has no batch"),
        (lambda: perfnb.compare_architectures({"a": mlp()}, X, loss="mse"), TypeError, "loss must be a function"),  # type: ignore[arg-type]
        (lambda: perfnb.compare_architectures({"a": mlp()}, X, budget_s=0), ValueError, "budget_s must be"),
        (
            lambda: perfnb.compare_architectures({"a": mlp()}, X, training="no"),  # type: ignore[arg-type]
            TypeError,
            "training must be True or False",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def layer_ops(*rows: tuple[str, str, float]) -> pd.DataFrame:
    """Return the frame of that name with the time of each layer's operators."""
    table = pd.DataFrame(rows, columns=["layer", "op", "self_cpu_ms"])
    return conform(table.assign(direction="forward", calls=1.0), "layer_ops")


def test_kinds_come_from_the_operators_of_the_layers() -> None:
    ops = layer_ops(
        ("m", "aten::add", 9.0),
        ("m.mha", "aten::addmm", 4.0),
        ("m.mha", "aten::_scaled_dot_product_flash_attention_for_cpu", 2.0),
        ("m.mha", "aten::copy_", 1.0),
        ("m.own", "aten::bmm", 3.0),
        ("m.own", "aten::_softmax", 1.0),
        ("m.fc", "aten::addmm", 2.0),
        ("m.fc", "aten::t", 0.5),
        ("m.rms", "aten::mul", 0.5),
        ("m.rms", "aten::rsqrt", 0.1),
        ("m.act", "aten::_softmax", 1.0),
        ("m.pool", "aten::max_pool2d_with_indices", 1.0),
    )
    names = ["m", *(f"m.{name}" for name in ("mha", "own", "own.q", "fc", "rms", "act", "pool"))]
    depth = [0, 1, 1, 2, 1, 1, 1, 1]
    layers = pd.DataFrame({"module": "Attention", "depth": depth, "calls": 1.0}, index=names)

    kinds = kinds_of_layers(layers.index, ops)

    assert kinds.dropna().to_dict() == {
        "m.mha": "attention",
        "m.own": "attention",
        "m.fc": "linear",
        "m.rms": "normalisation",
        "m.act": "activation",
    }
    assert time_by_kind(layers, ops)[lambda ms: ms > 0].to_dict() == {
        "attention": 2.0 + 1.0 + 3.0 + 1.0,
        "linear": 4.0 + 2.0 + 0.5,
        "normalisation": 0.6,
        "activation": 1.0,
        "other": 9.0 + 1.0,
    }


def test_a_row_is_what_was_planted() -> None:
    def row(times: Sequence[float] = (3.0, 4.0, 5.0), **parts: Any) -> dict[str, float]:
        made = replace(summaries.small_cnn(), **parts)
        tables = architecture_tables({"a": made}, {"a": times}, {"a": 16}, 0.02)
        found: dict[str, float] = tables["table"].loc["a"].dropna().to_dict()
        return found

    def roofline(*bytes_moved: int) -> Any:
        points = pd.DataFrame({"kind": ["op", "op", "layer"], "bytes": [*bytes_moved, 999]})
        return SimpleNamespace(flops=8 * 10**6, points=points)

    memory = SimpleNamespace(peak_bytes=1000, by_category={"parameters": 400, "other": 250})
    whole = row(memory=memory, roofline=roofline(600, 200))
    assert whole["throughput_per_s"] == pytest.approx(16 / 4e-3)
    assert whole["peak_bytes"] == 1000 - 250
    assert whole["achieved_flops_per_s"] == pytest.approx(8e6 / 4e-3)
    assert whole["intensity"] == 8 * 10**6 / 800
    assert "intensity" not in row(memory=memory, roofline=roofline(0, 0))
    nine = row([4.0, 9.0, 1.0, 3.0, 5.0, 7.0, 2.0, 6.0, 8.0])
    assert (nine["ci_low_ms"], nine["median_ms"], nine["ci_high_ms"]) == (2.0, 5.0, 8.0)  # the 2nd and the 8th of 9
    unknown = row(memory=None, roofline=None)
    assert unknown == {key: value for key, value in whole.items() if key in unknown}
    assert whole.keys() - unknown.keys() == {"peak_bytes", "achieved_flops_per_s", "intensity"}
    layers = summaries.small_cnn().layers
    roots = layers[(layers["depth"] == 0) & ~layers.index.isin(SPECIAL_ROWS)]
    assert len(roots) < len(layers)
    assert whole["parameters"] == roots["parameters"].sum()
    counted = layers.assign(ops=5.0, kernels=pd.array([None] * len(layers), dtype="Float64"))
    assert row(layers=counted)["launches_or_ops"] == 5 * len(roots)
    assert row(layers=counted.assign(kernels=3.0))["launches_or_ops"] == 3 * len(roots)


def test_kinds_of_ops() -> None:
    ops = {
        "linear": ["addmm", "mm", "bmm"],
        "convolution": ["convolution_backward"],
        "normalisation": ["native_layer_norm", "rsqrt"],
        "attention": ["_scaled_dot_product_flash_attention_for_cpu"],
        "activation": ["gelu_backward", "threshold_backward"],
        "embedding": ["embedding_dense_backward"],
        None: ["normal_", "add_", "sum"],
    }
    for kind, names in ops.items():
        assert {kind_of_op(f"aten::{name}") for name in names} == {kind}, names


def test_each_model_has_its_own_batch_or_that_of_all() -> None:
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert _with_batches({"a": one, 5: (other, "own")}, "all") == {"a": (one, "all"), "5": (other, "own")}
    with pytest.raises(ValueError, match=r"models\['b'\] has no batch"):
        _with_batches({"a": (one, 1), "b": other}, None)
    for wrong in ({"a": (one, 1, 2)}, {"a": 3}):
        with pytest.raises(TypeError, match=r"models\['a'\] must be a torch module, not (tuple|int)\."):
            _with_batches(wrong, "all")
    for none in ({}, [one]):
        with pytest.raises(TypeError, match="models must be a non-empty dict"):
            _with_batches(none, "all")


def test_shares_by_kind_and_by_phase_are_of_the_median_step() -> None:
    table = _shares("cnn", summaries.small_cnn(), 12.0)
    assert set(table["name"]) == {"cnn"}
    sums = table.groupby("by", sort=False)[["ms", "share"]].sum()
    assert sums["share"].to_dict() == {"kind": pytest.approx(1.0), "phase": pytest.approx(1.0)}
    assert sums["ms"].to_dict() == {"kind": pytest.approx(12.0), "phase": pytest.approx(12.0)}
    ops = summaries.small_cnn().layer_ops
    none = _shares("cnn", replace(summaries.small_cnn(), layer_ops=ops.assign(self_cpu_ms=0.0)), 12.0)
    assert none.groupby("by")["share"].sum().to_dict() == {"kind": 0.0, "phase": pytest.approx(1.0)}
    assert none[none["by"] == "kind"]["ms"].eq(0).all()


def test_the_time_of_kinds_is_that_on_the_gpu_if_there_is_any() -> None:
    ops = layer_ops(("m", "aten::mm", 9.0), ("m", "aten::relu", 4.0))
    layers = pd.DataFrame({"depth": [0], "calls": 1.0}, index=["m"])

    times = time_by_kind(layers, ops.assign(gpu_ms=pd.array([2.0, None], dtype="Float64")))

    assert times[lambda ms: ms > 0].to_dict() == {"linear": 2.0}


@pytest.mark.parametrize(
    ("calls", "depth", "kind"),
    [((1.0, 1.0), (0, 1), "other"), ((1.0, 0.0), (0, 1), "linear"), ((1.0, 1.0), (0, 0), "linear")],
)
def test_other_ops_have_the_kind_of_a_layer_that_calls_no_other(
    calls: tuple[float, float], depth: tuple[int, int], kind: str
) -> None:
    ops = layer_ops(("m", "aten::mm", 4.0), ("m", "aten::copy_", 1.0), ("(loss)", "aten::copy_", 0.5))
    ops = pd.concat([ops, layer_ops(("(loss)", "aten::gelu", 0.25))])
    layers = pd.DataFrame({"depth": depth, "calls": calls}, index=["m", "m.a"])

    times = time_by_kind(layers, ops)[lambda ms: ms > 0].to_dict()

    assert times == ({"linear": 5.0, "other": 0.75} if kind == "linear" else {"linear": 4.0, "other": 1.75})


def test_a_batch_is_described_by_its_shapes() -> None:
    assert _batch_words((X, Y, torch.tensor(3))) == "16 × 1 × 8 × 8, 16, 1"
    assert _batch_words(None) == _batch_words("words") == "each model's own"
