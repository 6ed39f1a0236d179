"""The exercise that CONTRIBUTING.md and the page for teachers add in ten lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perfnb import Profile, profile_step
from perfnb.labs import answers, exercise, judging
from perfnb.labs.exercise import Exercise
from perfnb.labs.ledger import judged

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def profile() -> Profile:
    net, x = nn.Linear(64, 64), torch.randn(32, 64)
    return profile_step(lambda: net(x).sum().backward(), model=net, steps=2, warmup=1)


@pytest.fixture(scope="module")
def documented() -> Exercise:
    block = re.search(r"^```python\n(def measure_pass.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    assert len(list(filter(None, block[1].splitlines()))) < 10  # and the line in EXERCISES
    assert block[1] in (PAGE.parent / "docs" / "labs_for_teachers.md").read_text("utf-8")
    names: dict[str, Any] = {"Any": Any, **vars(answers), **vars(exercise), **vars(judging)}
    exec(block[1], names)
    return Exercise("9.1", "The slower pass", names["measure_pass"], names["judge_pass"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda slower, slow, fast: {}, ""),
        (lambda slower, slow, fast: {"slower": "optimizer"}, "compare the two rows"),
        (lambda slower, slow, fast: {"ratio": slow - fast}, "that is the difference"),
        (lambda slower, slow, fast: {"ratio": fast / slow}, "inverse"),
        (lambda slower, slow, fast: {"ratio": 100 * slow / fast}, "ratio: it does not match"),
        (lambda slower, slow, fast: {"slower": 1}, "text in quotes"),
    ],
)
def test_an_exercise_of_ten_lines(documented: Exercise, profile: Profile, change: Any, words: str) -> None:
    (fast, _), (slow, slower) = sorted((profile.phases["ms"][name], name) for name in ("forward", "backward"))
    answer = {"slower": slower, "ratio": slow / fast} | change(slower, slow, fast)
    _, hint = judged(documented, answer, {"profile": profile})

    assert words in hint
    assert bool(words) == bool(hint)
