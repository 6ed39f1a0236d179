"""Layers inside compiled regions, next to the raw trace, the eager model, and what was planted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import perfnb
from perfnb.compiled.tables import compiled_summary
from tests.accuracy.judging import Figures
from tests.step.models import Block, SmallGPT, SmallResNet

#: torch does this itself while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

OVERHEAD = "(compiled region overhead)"
#: The largest models, whose regions have kernels long enough for a limit on what is around them.
LARGE = ("BertModel", "LlamaForCausalLM")


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class MLP(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()
        self.down, self.head = nn.Linear(4 * width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x + self.down(self.act(self.up(self.norm(x)))))
        return result


def mlp() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    x = torch.randn(256, 256)
    return MLP(), lambda model: model(x).square().mean()


def gpt() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    tokens = torch.randint(0, 500, (8, 64))
    return SmallGPT(), lambda model: cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def resnet() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return SmallResNet(), lambda model: cross_entropy(model(images), labels)


def bert() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    tokens = torch.randint(0, 1000, (8, 64))
    model = transformers.BertModel(transformers.BertConfig(vocab_size=1000, **small))
    return model, lambda model: model(input_ids=tokens).last_hidden_state.square().mean()


def llama() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = torch.randint(0, 1000, (8, 64))
    config = transformers.LlamaConfig(vocab_size=1000, intermediate_size=344, **small)
    model = transformers.LlamaForCausalLM(config)
    return model, lambda model: model(input_ids=tokens, labels=tokens, use_cache=False).loss


MODELS = {"MLP": mlp, "GPT": gpt, "ResNet": resnet, "BertModel": bert, "LlamaForCausalLM": llama}


def profile_of(model: Any, loss: Callable[[Any], Tensor]) -> perfnb.Profile:
    def step() -> None:
        model.zero_grad()
        loss(model).backward()

    return perfnb.profile_step(step, warmup=3, steps=1, traced=5, memory=False, stacks=False)


def by_path(p: perfnb.Profile) -> pd.DataFrame:
    """Return the layers by their paths inside the model."""
    layers = p.layers[p.layers["module"].notna()]
    return layers.set_axis([name.partition(".")[2] for name in layers.index])


@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_those_of_the_trace_and_layers_those_of_the_model(name: str, figure: Figures) -> None:
    model, loss = MODELS[name]()
    eager = by_path(profile_of(model, loss))
    with perfnb.compile_for_profiling():
        compiled = torch.compile(model)
        loss(compiled).backward()
    p = profile_of(compiled, loss)
    layers, kernels, summary = p.layers, p.compiled, compiled_summary(p._recording)
    assert summary is not None

    events = p.events[p.events["name"].astype(str).str.contains("_cpp_fused_")]
    traced = events["duration_ns"].sum() / 1e6 / 5
    generated = float(kernels.loc[kernels["kernel"].str.startswith("cpp_"), "ms"].sum())
    figure(f"{name} compiled: generated kernels / their events in the trace", generated / traced, within=(0.99, 1.01))
    mapped = float(summary.shares["ms"].sum() / kernels["ms"].sum())
    figure(f"{name} compiled: share of the kernels' time in layers", mapped, at_least=0.9, unit="%")
    root = layers.iloc[0]
    overhead = float(layers.loc[layers.index.str.endswith(OVERHEAD), "total_ms"].sum() / root["total_ms"])
    if name in LARGE:
        figure(f"{name} compiled: overhead / region", overhead, at_most=0.15, unit="%")
    inside = by_path(p)
    with_parameters = {path for path, row in eager.iterrows() if row["parameters"] > 0 and row["calls"] > 0}
    known = {path for path, row in inside.iterrows() if row["parameters"] > 0 and row["calls"] > 0}
    figure(
        f"{name} compiled: layers with parameters that differ from the eager ones",
        len(with_parameters ^ known),
        at_most=0,
    )
    products = eager["forward_flops"].fillna(0)
    off = (inside["forward_flops"].reindex(products.index).fillna(0) != products).sum()
    figure(f"{name} compiled: layers with other forward FLOPs than eager", float(off), at_most=0)


class Stages(nn.Module):
    """A stage of five blocks among four of one."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(*(Block(128, 4) for _ in range(count))) for count in (1, 1, 5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def test_a_stage_of_five_blocks_takes_five_ninths(figure: Figures) -> None:
    model, x = Stages(), torch.randn(8, 64, 128)
    with perfnb.compile_for_profiling():
        compiled = torch.compile(model)
        compiled(x).sum().backward()
    p = profile_of(compiled, lambda model: model(x).square().mean())

    stages = by_path(p)["total_ms"].filter(regex=r"^stages\.\d$").astype(float)
    share = float(stages["stages.2"] / stages.sum())
    figure("share of a stage of five blocks among nine, compiled", share, within=(5 / 9 - 0.1, 5 / 9 + 0.1), unit="%")


@torch.library.custom_op("perfnb_checks::sleep", mutates_args=())
def sleep(x: Tensor) -> Tensor:
    time.sleep(0.02)
    return x.clone()


@sleep.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


sleep.register_autograd(lambda context, gradient: gradient)


class Sleeps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.perfnb_checks.sleep(x)
        return result


def test_a_sleep_inside_a_compiled_layer_is_found_there_and_nowhere_else(figure: Figures) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), Sleeps(), nn.ReLU()), nn.Linear(64, 8))
    x = torch.randn(32, 64)
    with perfnb.compile_for_profiling():
        compiled = torch.compile(model)
        compiled(x).sum().backward()
    p = profile_of(compiled, lambda model: model(x).square().mean())

    own = by_path(p)["self_ms"].astype(float).fillna(0.0)
    figure("20 ms planted in a compiled layer: found there", float(own["1.1"]), within=(20, 22), unit="ms")
    figure("20 ms planted in a compiled layer: most in another", float(own.drop("1.1").max()), at_most=2, unit="ms")
