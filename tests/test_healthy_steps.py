"""Nothing is found where nothing is wrong: no wait for data, copy, synchronisation or wrong threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import perfnb
from tests.healthy_steps import inference, models, training

pytestmark = pytest.mark.alone

FALSE = {
    "input pipeline",
    "host-device copies",
    "synchronisation",
    "threads and cores",
    "optimizer",
    "attention unfused",
}
MODELS = {name: (model, batch) for name, model, batch in models()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of two cores that others use too wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", [inference, training])
@pytest.mark.parametrize("name", MODELS)
def test_a_healthy_step_gives_no_alarm(name: str, kind: object) -> None:
    model, batch = MODELS[name]
    step = (inference if kind is inference else training)(model)

    p = perfnb.profile_step(step, [batch] * 4, warmup=3, steps=15, memory=False, flops=False)

    assert FALSE.isdisjoint(p.findings["bottleneck"]), p.findings["evidence"].tolist()


def test_a_healthy_step_says_what_it_is_bound_by() -> None:
    model, batch = nn.Linear(1024, 1024), torch.randn(512, 1024)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(batch)

    p = perfnb.profile_step(step, warmup=3, steps=15, memory=False, flops=False)

    found = p._summary.findings
    assert found is not None
    assert found.table.empty or found.table["bound_share"].max() < 0.1
    assert found.verdict.verdict == "Nothing stands out. The step is bound by the forward pass."
    assert "% of the step" in found.verdict.why
