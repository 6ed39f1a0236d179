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


NOT_YET = "{} on this machine, but do not keep it yet"


@pytest.mark.parametrize(
    ("verdict", "changes", "figures", "said", "saves"),
    [
        ("faster", {}, {}, "faster, and its results pass the check", "saves 1.40 ms"),
        ("faster", {"why_not": "its results differ"}, {}, NOT_YET.format("faster"), "saves 1.40 ms"),
        ("slower", {}, {}, "slower on this machine", "slower"),
        ("same", {}, {}, "no faster: the difference is too small to matter", "same"),
        ("inconclusive", {}, {}, "no clear difference within the time limit", "inconclusive"),
        ("slower", {"memory": "less"}, {"goal": "memory"}, "less memory, and its results pass the check", "slower"),
        ("slower", {"memory": "more"}, {"goal": "memory"}, "no less memory", "slower"),
        ("faster", {"memory": "more"}, {"goal": "time"}, "faster, and its results pass the check", "saves 1.40 ms"),
        ("not timed", {"ratio": None, "memory": "less", "why_not": "no time"}, {"goal": "memory"},
         NOT_YET.format("less memory"), "not timed"),
        ("not timed", {"ratio": None, "memory": "less"}, {"goal": "time"}, "not timed", "not timed"),
    ],
)  # fmt: skip
def test_words_of_a_lever_and_whether_it_is_kept(
    verdict: str, changes: dict[str, Any], figures: dict[str, Any], said: str, saves: str
) -> None:
    given = {"ratio": 0.86, "ratio_ci": (0.83, 0.89), "saves_ms": 1.4, "values": Values("exact", 0.0), "code": CODE}

    answer = answered(LeverTrial("lever", verdict, **given | changes), **figures)

    assert (answer["said"], answer["effect"]["verdict"]) == (f"With lever: {said}.", saves)
    assert (answer["effect"]["words"] == "0.860 × [0.830, 0.890]") == ("ratio" not in changes)
    kept = said.endswith("pass the check")
    assert (answer["keep"], answer["code"]) == (kept, CODE[0] if kept else "")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, [("Results", "the same, bit for bit")]),
        ({"values": Values("within noise", 2e-7)}, [("Results", "as close to float64 as without it (error 2e-07)")]),
        ({"setup_s": 0.099}, [("Results", "the same, bit for bit")]),
        ({"setup_s": 0.1}, [("Results", "the same, bit for bit"), ("Set-up", "100 ms, pays after 100 steps")]),
        (
            {"verdict": "slower", "setup_s": 0.1, "saves_ms": -1.0, "why_not": "slow"},
            [("Results", "the same, bit for bit"), ("Set-up", "100 ms"), ("Caveat", "slow")],
        ),
        (
            {"peak_bytes": 2**20, "memory": "less"},
            [("Peak memory", "2.00 MiB → 1.00 MiB (−50.0 %)"), ("Results", "the same, bit for bit")],
        ),
        ({"peak_bytes": 2**20}, [("Results", "the same, bit for bit")]),
    ],
)
def test_what_else_is_known_of_a_lever(changes: dict[str, Any], facts: list[tuple[str, str]]) -> None:
    given: dict[str, Any] = {"verdict": "faster", "ratio": 0.9, "saves_ms": 1.0, "values": Values("exact", 0.0)}
    assert answered(LeverTrial("lever", **given | changes), own_peak=2**21)["facts"] == facts


def test_a_lever_that_was_not_tried_or_timed_is_one_sentence() -> None:
    untimed = LeverTrial("checkpointing", "not timed", why_not="no time")
    assert answered(untimed) == {"error": "It could not be measured: no time"}
    untried = answered(LeverTrial("attention", "not tried", why_not="no attention \x1b[31min it"))["error"]
    assert untried.startswith("It could not be tried: no attention ")
    assert "\x1b" not in untried


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
    assert {"the unmodified step", "prepare fused_optimizer", "try fused_optimizer"} <= set(line.passes)
    assert line.passes[-1] == "closed"
