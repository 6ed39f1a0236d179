"""Nothing is found where nothing is wrong: no wait for data, copy, synchronisation or wrong threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import perfnb
from tests.accuracy.judging import Figures
from tests.healthy_steps import inference, models, training

FALSE = {
    "input pipeline",
    "host-device copies",
    "synchronisation",
    "threads and cores",
    "optimizer",
    "attention unfused",
}
MODELS = {name: (model, batch) for name, model, batch in models()}


@pytest.mark.parametrize("kind", [inference, training])
@pytest.mark.parametrize("name", MODELS)
def test_a_healthy_step_gives_no_alarm(name: str, kind: object, figure: Figures) -> None:
    model, batch = MODELS[name]
    step = (inference if kind is inference else training)(model)

    p = perfnb.profile_step(step, [batch] * 4, warmup=3, steps=15, memory=False, flops=False)

    what = "inference" if kind is inference else "training"
    false = FALSE & set(p.findings["bottleneck"])
    print(p.findings["evidence"].tolist())
    figure(f"healthy {what}, {name}: false findings", len(false), at_most=0)


def test_a_healthy_step_says_what_it_is_bound_by(figure: Figures) -> None:
    model, batch = nn.Linear(1024, 1024), torch.randn(512, 1024)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(batch)

    p = perfnb.profile_step(step, warmup=3, steps=15, memory=False, flops=False)

    found = p._summary.findings
    assert found is not None
    largest = 0.0 if found.table.empty else float(found.table["bound_share"].max())
    figure("a large matmul: largest bound of a finding", largest, at_most=0.1, unit="%")
    bound = found.verdict.verdict == "Nothing stands out. The step is bound by the forward pass."
    figure("a large matmul: bound by the forward pass (1 = yes)", bound, at_least=1)


def test_a_sure_bound_of_lower_precision_is_what_autocast_saves(figure: Figures) -> None:
    model, batch = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), torch.randn(256, 256)
    plain = training(model)

    def reduced(x: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain(x)

    table = perfnb.profile_step(plain, [batch] * 4, warmup=3, steps=15, memory=False, model=model).findings
    found = table[table["bottleneck"] == "low precision unused"]
    compared = perfnb.ab_test(plain, reduced, batches=[batch] * 4, budget_s=10)
    saved = 1 - compared.ratio_ci[0]
    bound = float(found["bound_share"].iloc[0]) if len(found) else 0.0
    sure = bool(len(found)) and found["confidence"].iloc[0] != "low"
    print(f"bound {bound:.2f}, autocast saves at most {saved:.2f}, {found['confidence'].tolist()}")
    figure(
        "healthy MLP: sure bound of lower precision beyond 1.5 x saving + 2 %",
        sure * max(bound - 1.5 * saved - 0.02, 0.0),
        at_most=0,
        unit="%",
    )
