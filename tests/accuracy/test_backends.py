"""The table of backends for two models, and that pairs tell which is faster from a run of each alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perfnb
from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME
from tests.accuracy.judging import Figures

BACKENDS = ("eager", "onnxruntime", "bf16", "int8", "compile")
COLUMNS = [
    *("verdict", "median_ms", "ci_low_ms", "ci_high_ms", "ratio", "ratio_low", "ratio_high", "values", "error"),
    *("max_distance", "size_bytes", "peak_memory_bytes", "setup_s", "decision"),
]
#: Largest distance from float64, relative to the outputs' size.
LIMITS = {"eager": 1e-5, "compile": 1e-4, "onnxruntime": 1e-4, "bf16": 0.05, "int8": 0.1}


def cnn() -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = []
    for width, wider in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(128 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 100)]
    return nn.Sequential(*layers, *head), torch.randn(8, 3, 64, 64)


def bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertModel

    options = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertModel(BertConfig(vocab_size=1000, **options))
    return model, {"input_ids": torch.randint(0, 1000, (4, 64)), "attention_mask": torch.ones(4, 64, dtype=torch.long)}


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {"CNN": cnn, "BertModel": bert}


@pytest.fixture(autouse=True)
def _every_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MODELS)
def test_backends_compute_the_same_and_pairs_agree_with_each_alone(name: str, figure: Figures) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime", "torchao"):
        pytest.importorskip(package)
    torch.manual_seed(0)
    model, example = MODELS[name]()

    found = perfnb.compare_inference(model, example, backends=BACKENDS, budget_s=60)

    print(f"\n{found}\n")
    table = found.table
    print(table[COLUMNS].to_string(float_format="{:.3g}".format))
    assert set(table["verdict"]) <= {"baseline", "faster", "slower", "same", "inconclusive"}, table["reason"].to_dict()
    for backend, limit in LIMITS.items():
        figure(f"backends: {name}, {backend}: distance from float64", float(table.loc[backend, "error"]), at_most=limit)
        assert table.loc[backend, "values"] in ((REDUCED,) if backend in ("bf16", "int8") else (SAME, NOISE))
    # The model itself, back to back and without perfnb, to which other backends are a disturbance.
    copied = model.eval()
    args, kwargs = ((), example) if isinstance(example, dict) else ((example,), {})
    alone = []
    with torch.inference_mode():
        for turn in range(220):
            begin = time.perf_counter()
            copied(*args, **kwargs)
            if turn >= 20:
                alone.append(1e3 * (time.perf_counter() - begin))
    ratio = float(table.loc["eager", "median_ms"]) / float(np.median(alone))
    figure(f"backends: {name}: eager between others / back to back", ratio, within=(0.8, 1.5))


def test_a_wrong_backend_is_rejected(figure: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfnb.inference import backends

    def planted(model: nn.Module, call: Any, folder: Any) -> backends.ReadyBackend:
        # Half of the work, so faster, and plausible numbers.
        return backends.ReadyBackend(lambda x: model(x[:4]).repeat(2, 1), 1)

    wrong = backends.Backend("wrong", lambda model, call: "", planted)
    monkeypatch.setattr(backends, "BACKENDS", (*backends.BACKENDS, wrong))
    torch.manual_seed(0)
    model, example = cnn()

    row = perfnb.compare_inference(model, example, backends=["wrong"], budget_s=10).table.loc["wrong"]

    print(row.to_string())
    assert row["values"] == DIFFERENT
    figure("backends: a planted wrong one, faster, rejected (1 = yes)", row["decision"] == "reject", at_least=1)
