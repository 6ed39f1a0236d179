"""Lab 2: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from perfnb import Profile, profile_step
from tests.labs.judging import hint
from tests.labs.lab_02_answers import Rescale, children_off


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(64, 16), nn.Sequential(Block(), Block())
        self.rescale, self.head = Rescale(), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rescale(self.blocks(self.stem(x))))


def profiled(*frozen: str) -> Profile:
    model, x = Reader(), torch.randn(16, 64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))

    def step() -> None:
        model(x).square().mean().backward()

    return profile_step(step, model={"model": model}, warmup=1, steps=1, traced=1, memory=False)


SHARES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1}


def test_a_profile_is_needed() -> None:
    assert "Pass a profile" in hint("2.5", 3.0, profile="p")
    assert "no profile yet" in hint("2.2", 1.7, profile=None)


@pytest.mark.slow
def test_right_answers_follow_from_a_profile(one_thread: None) -> None:
    profile = profiled()
    forward, backward = profile.phases["ms"][["forward", "backward"]]
    answers: dict[str, Any] = {
        "2.2": backward / forward,
        "2.3": children_off,
        "2.4": {"stem": 1, "up": 2},
        "2.5": profiled("stem", "blocks"),
        "2.6": {"layer": "model.rescale", "at_most": 1 / (1 - profile.layers.loc["model.rescale", "share"])},
    }

    assert {number: hint(number, answer, profile=profile) for number, answer in answers.items()} == dict.fromkeys(
        answers, ""
    )
