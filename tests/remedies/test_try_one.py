"""What *Try it* answers for one lever."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from perfnb.bench.values import Values
from perfnb.profile.kept_step import kept_call
from perfnb.remedies.try_levers import LeverTrials, bounds_of, try_one
from perfnb.remedies.verdicts import LeverFigures, LeverTrial
from perfnb.remedies.view import trial_answer

CODE = ["for group in opt.param_groups: group['fused'] = True"]


def answered(trial: LeverTrial, **figures: Any) -> dict[str, Any]:
    trials = LeverTrials(LeverFigures("step", trials=[trial], step_ms=10.0, rounds=40, **figures))
    answer = trial_answer(trials, trial.lever)
    json.dumps(answer, allow_nan=False)
    return answer


def test_the_largest_bound_of_each_bottleneck_decides_the_order() -> None:
    findings = pd.DataFrame(
        {"bottleneck": ["memory bandwidth", "waiting", "memory bandwidth"], "bound_ms": [4.0, None, 1.0]}
    ).astype({"bound_ms": "Float64"})

    assert bounds_of(findings) == {"memory bandwidth": 4.0, "waiting": 0.0}


def test_a_lever_that_helps_is_to_be_kept() -> None:
    values = Values("within noise", 2e-7)
    answer = answered(LeverTrial("fused_optimizer", "faster", 0.86, (0.83, 0.89), 1.4, values, 21.5, "", CODE))

    assert answer["said"] == "With fused_optimizer: faster, and its results pass the check."
    assert (answer["effect"]["words"], answer["effect"]["verdict"]) == ("0.860 × [0.830, 0.890]", "saves 1.40 ms")
    assert answer["code"] == CODE[0]
    assert answer["facts"] == [
        ("Results", "as close to float64 as without it (error 2e-07)"),
        ("Set-up", "21.5 s, pays after 15,358 steps"),
    ]


def test_a_faster_lever_with_other_results_is_not() -> None:
    values = Values("different", 0.5)
    answer = answered(LeverTrial("compile", "faster", 0.5, (0.4, 0.6), 5.0, values, 0.0, "its results differ", CODE))

    assert answer["said"] == "With compile: faster on this machine, but do not keep it yet."
    assert (answer["code"], answer["keep"]) == ("", False)
    assert answer["facts"][-1] == ("Caveat", "its results differ")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("slower", "slower on this machine"),
        ("same", "no faster: the difference is too small to matter"),
        ("inconclusive", "no clear difference within the time limit"),
    ],
)
def test_a_lever_that_does_not_help_saves_nothing(verdict: str, words: str) -> None:
    answer = answered(LeverTrial("compile", verdict, 1.02, None, -0.2, Values("exact", 0.0), 0.0, "", CODE))

    assert answer["said"] == f"With compile: {words}."
    assert (answer["effect"]["verdict"], answer["effect"]["interval"], answer["code"]) == (verdict, None, "")


@pytest.mark.parametrize(
    ("peak", "memory", "words", "keep"),
    [
        (2**20, "less", "less memory, and its results pass the check", True),
        (3 * 2**20, "more", "no less memory", False),
    ],
)
def test_a_lever_for_memory_is_judged_by_it(peak: int, memory: str, words: str, keep: bool) -> None:
    trial = LeverTrial("checkpointing", "slower", 1.3, (1.2, 1.4), -3.0, Values("exact", 0.0), 0.0, "", CODE)
    trial.peak_bytes, trial.memory = peak, memory
    answer = answered(trial, goal="memory", own_peak=2 * 2**20)

    assert answer["said"] == f"With checkpointing: {words}."
    assert (answer["keep"], bool(answer["code"])) == (keep, keep)
    head, said = answer["facts"][0]
    assert head == "Peak memory"
    assert said.startswith("2.00 MiB → ")


@pytest.mark.parametrize(
    ("setup_s", "pays", "said"),
    [(0.099, 1.0, None), (0.1, 1.0, "100 ms, pays after 100 steps"), (0.1, -1.0, "100 ms"), (None, 1.0, None)],
)
def test_a_preparation_that_is_felt_is_told(setup_s: float | None, pays: float, said: str | None) -> None:
    verdict = "faster" if pays > 0 else "slower"
    answer = answered(LeverTrial("compile", verdict, 0.9, None, pays, Values("exact", 0.0), setup_s))
    assert dict(answer["facts"]).get("Set-up") == said
    assert dict(answer["facts"])["Results"] == "the same, bit for bit"


def test_a_lever_that_was_not_timed_is_judged_by_memory_if_that_is_known() -> None:
    trial = LeverTrial("checkpointing", "not timed", why_not="no time")
    assert answered(trial)["error"] == "It could not be measured: no time"
    trial.memory, trial.peak_bytes = "less", 2**20
    known = answered(trial, goal="memory", own_peak=2**21)
    assert known["said"] == "With checkpointing: less memory on this machine, but do not keep it yet."
    assert known["facts"][0] == ("Peak memory", "2.00 MiB → 1.00 MiB (−50.0 %)")
    assert answered(trial, goal="time")["said"] == "With checkpointing: not timed."


def test_a_lever_that_does_not_apply_is_one_sentence() -> None:
    answer = answered(LeverTrial("attention", "not tried", why_not="no attention \x1b[31min it"))

    assert answer["error"].startswith("It could not be tried: no attention ")
    assert "\x1b" not in answer["error"]


class Line:
    """Notes the passes that are reported to it."""

    def __init__(self) -> None:
        self.passes: list[str] = []

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        self.passes.append(pass_name)

    def close(self) -> None:
        self.passes.append("closed")


def test_a_real_step_is_tried_and_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = kept_call(step, None, None, {}).find()
    assert found is not None
    line = Line()
    answer = try_one(found, "fused_optimizer", line)

    assert all(map(torch.equal, before, model.parameters()))
    assert answer["said"].startswith("With fused_optimizer: ")
    assert {"prepare fused_optimizer", "try fused_optimizer"} <= set(line.passes)
    assert line.passes[-1] == "closed"
