"""A profile of a step without backward says that it is inference, and where to look for latency."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import perfnb
from perfnb.profile.report import notes_of

SAID = "This is inference: nothing ran backward."
BRIEF: dict[str, Any] = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


def test_only_a_step_without_backward_and_optimizer_is_inference() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def infer() -> None:
        with torch.inference_mode():
            model(x)

    def train() -> None:
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()

    served, trained = (perfnb.profile_step(step, model=model, **BRIEF) for step in (infer, train))

    assert SAID in str(served)
    assert any(note.startswith(SAID) for note in notes_of(served._summary))
    assert not any(note.startswith(SAID) for note in notes_of(trained._summary))
