"""A compiled model is one layer, and the profile says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import perfnb
from perfnb.step.memory import storages
from tests.step.models import three_linears, training_step
from tests.step.timed import traced_ms

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    # torch.compile itself asks for the grad of what it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def profile_of(step: Callable[[], object]) -> perfnb.Profile:
    return perfnb.profile_step(step, warmup=2, steps=1, traced=2)


@pytest.mark.slow
def test_a_compiled_model_is_one_layer_whose_layers_are_unknown() -> None:
    model = three_linears()
    compiled = torch.compile(model, backend="aot_eager")

    p = profile_of(training_step(compiled, torch.randn(4, 8)))

    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers.index.tolist() == ["model", "model.0", "model.1", "model.2"]
    assert layers.loc["model", "module"] == "Sequential"
    assert layers.loc["model", "calls"] == 1
    assert layers.loc["model", "forward_ms"] > 0
    assert layers.loc["model", "backward_ms"] > 0
    inner = layers.loc[["model.0", "model.1", "model.2"]]
    assert inner[["calls", "forward_ms", "backward_ms", "total_ms", "self_ms", "share", "ops"]].isna().all(axis=None)
    assert inner["parameters"].tolist() == [72, 0, 72]
    assert "which hide the layers inside: model." in " ".join(str(p).split())
    total = p.phases.loc[["forward", "backward"], "ms"].sum()
    assert p.layers["self_ms"].sum() == pytest.approx(total, rel=1e-4)


def test_no_address_is_asked_of_a_fake_tensor() -> None:
    with FakeTensorMode() as mode:
        fakes = [torch.ones(3), mode.from_tensor(nn.Parameter(torch.ones(2)))]

    assert [list(storages(fake)) for fake in fakes] == [[], []]  # a warning of torch's would be an error here
    ((address, size, device),) = storages(torch.ones(3))
    assert (address > 0, size, device) == (True, 12, "cpu")


@pytest.mark.slow
def test_the_layers_around_a_compiled_one_are_seen() -> None:
    inner = torch.compile(three_linears(), backend="aot_eager")
    model = nn.Sequential(nn.Linear(8, 8), inner)

    p = profile_of(training_step(model, torch.randn(4, 8)))

    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers["calls"].dropna().to_dict() == {"model": 1, "model.0": 1, "model.1": 1}
    assert layers.index.tolist() == ["model", "model.0", "model.1", "model.1.0", "model.1.1", "model.1.2"]
    assert "which hide the layers inside: model.1." in " ".join(str(p).split())


@pytest.mark.slow
def test_a_model_compiled_in_place_has_no_layers_and_the_profile_says_why() -> None:
    model = three_linears()
    model.compile(backend="aot_eager")

    p = profile_of(training_step(model, torch.randn(4, 8)))

    assert p.layers.index.str.startswith("(").all()
    assert "compiled in place (model.compile())" in " ".join(str(p).split())
    assert p.phases["ms"][["backward", "optimizer"]].gt(0).all()
    assert p.phases["ms"].sum() == pytest.approx(traced_ms(p))
