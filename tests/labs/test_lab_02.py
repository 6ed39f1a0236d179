"""Lab 2: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from perfnb import Profile, profile_step
from perfnb.labs import lab_02
from perfnb.labs.exercise import Facts, Hint
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect, expect_of, hint, said_of
from tests.labs.lab_02_answers import Rescale, all_inside_off, children_off


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


def profiled(*frozen: str, batch: int = 16, learns: bool = True) -> Profile:
    model, x = Reader(), torch.randn(batch, 64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))

    def step() -> None:
        with torch.set_grad_enabled(learns):
            loss = model(x).square().mean()
        if learns:
            loss.backward()

    return profile_step(step, model={"model": model}, warmup=1, steps=1, traced=1, memory=False)


@pytest.fixture(scope="module")
def profile() -> Iterator[Profile]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield profiled()
    torch.set_num_threads(threads)


SHARES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "rest": 0.1}


def test_a_prediction_may_be_wrong_but_not_misformed() -> None:
    assert hint("2.1", SHARES) == ""
    assert hint("2.1", {"forward": 1, "backward": 0, "optimizer": 0, "rest": 0}) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({name: 100 * share for name, share in SHARES.items()}, "percent"),
        (SHARES | {"forward": 0.6}, "add up to 1.3"),
        (SHARES | {"forward": -0.3, "rest": 0.7}, "negative time"),
        ({"forward": 0.5, "backward": 0.5}, "missing optimizer, rest"),
        (SHARES | {"rest": "some"}, "must be a number"),
        ([0.3, 0.5, 0.1, 0.1], "dictionary"),
    ],
)
def test_a_prediction_misformed(answer: Any, says: str) -> None:
    assert says in hint("2.1", answer)


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (1.7, ""),
        (1.72, ""),
        (1 / 1.7, "inverse"),
        (3.4, "twice"),
        (0.85, "half"),
        (170.0, "percent"),
        (1.7e-3, "units"),
        (17.0, "one direction"),
        (10.0, "one direction"),
        (1.3, "layer times"),
        (1.6, "ratio of the shares"),
        (2.0, "what the question asks"),
    ],
)
def test_backward_by_forward(ratio: float, says: str) -> None:
    facts = {"forward_ms": 10.0, "backward_ms": 17.0, "of_layers": [1.3, 1.68], "of_shares": [1.6]}
    expect_of("2.2", says, {"ratio": ratio} | facts)


@pytest.mark.slow
def test_times_of_layers_are_not_those_of_phases(profile: Profile) -> None:
    forward, backward = profile.phases["ms"][["forward", "backward"]]
    whole = profile.layers.loc["model"]

    assert hint("2.2", backward / forward, profile=profile) == ""
    assert hint("2.2", 2 * backward / forward, profile=profile)
    assert hint("2.2", backward / profile.phases["ms"].sum(), profile=profile)
    facts = exercise_of("2.2").measure(backward / forward, profile=profile)
    assert facts["of_layers"][0] == pytest.approx(whole["backward_ms"] / whole["forward_ms"])
    assert facts["of_layers"][1] == pytest.approx(
        profile.layers["backward_ms"].sum() / profile.layers["forward_ms"].sum()
    )


def loosely_matched(layers: pd.DataFrame) -> dict[str, float]:
    totals = layers["total_ms"]
    own = {}
    for name, ms in totals.items():
        inside = [n for n in totals.index if n.startswith(str(name)) and n.count(".") == str(name).count(".") + 1]
        own[name] = ms - totals[inside].sum()
    return own


def forward_only(layers: pd.DataFrame) -> dict[str, float]:
    return children_off(layers.assign(total_ms=layers["forward_ms"].fillna(0)))


def roots_in_themselves(layers: pd.DataFrame) -> dict[str, float]:
    own: dict[str, float] = layers["total_ms"].to_dict()
    for name, ms in layers["total_ms"].items():
        own[str(name).rsplit(".", 1)[0]] -= ms
    return own


def leaves_only(layers: pd.DataFrame) -> dict[str, float]:
    return {name: ms for name, ms in layers["total_ms"].items() if not any(layers.index.str.startswith(f"{name}."))}


@pytest.mark.slow
def test_self_times(profile: Profile) -> None:
    assert hint("2.3", children_off, profile=profile) == ""
    assert hint("2.3", lambda layers: pd.Series(children_off(layers)), profile=profile) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda layers: layers["total_ms"].to_dict(), "still includes"),
        (all_inside_off, "direct"),
        (loosely_matched, "direct"),
        (forward_only, "too much"),
        (leaves_only, "missing"),
        (roots_in_themselves, "without a dot"),
        (lambda layers: {name: ms / 2 for name, ms in children_off(layers).items()}, "too much"),
        (lambda layers: {name: ms / 1e3 for name, ms in children_off(layers).items()}, "too much"),
        (lambda layers: layers["self_ms"].to_dict(), "KeyError"),
        (lambda layers: None, "Return a dictionary"),
    ],
)
def test_other_times_are_not(profile: Profile, answer: Callable[..., Any], says: str) -> None:
    assert says in hint("2.3", answer, profile=profile)


@pytest.mark.slow
def test_a_profile_remembered_does_not_pass(profile: Profile) -> None:
    known = profile.layers["self_ms"].to_dict()

    assert "In a second tree that you have not seen, the row net is missing" in hint(
        "2.3", lambda layers: known, profile=profile
    )


@pytest.mark.slow
def test_the_tree_is_named_where_a_time_is_wrong(profile: Profile) -> None:
    """Nothing in the profile begins as another name does, so that this goes wrong in the other tree only."""
    assert hint("2.3", loosely_matched, profile=profile).startswith("In a second tree")
    assert hint("2.3", forward_only, profile=profile).startswith("In your profile")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stem", "up", "says"),
    [
        (1, 2, ""),
        (np.int64(1), 2.0, ""),
        (torch.tensor(1.0), np.float64(2.0), ""),
        (2, 2, "does this layer not need"),
        (1, 1, "up: "),
        (2, 1, "swapped"),
        (1, 0.5, "inverse"),
        (1, 4, "twice"),
        (1, ..., "no value"),
    ],
)
def test_arithmetic_of_backward(profile: Profile, stem: Any, up: Any, says: str) -> None:
    expect("2.4", says, {"stem": stem, "up": up}, profile=profile)


@pytest.mark.parametrize(
    ("said", "counted", "words"),
    [
        ((1.0, 2.0), (1, 2), ""),
        ((2.0, 1.0), (1, 2), "swapped"),
        ((1.0, 1.0), (1, 2), "up: "),
        ((2.0, 2.0), (1, 2), "does this layer not need"),
        ((2.0, 2.0), (2, 2), ""),
        ((2.0, 1.0), (2, 2), "up: "),
    ],
)
def test_ratios_are_judged_by_their_counts(said: tuple[float, float], counted: tuple[int, int], words: str) -> None:
    names = ("stem", "up")
    facts = {
        "said": dict(zip(names, said, strict=True)),
        "flops": {name: [100, 100 * ratio] for name, ratio in zip(names, counted, strict=True)},
    }
    with pytest.raises(Hint, match=words) if words else nullcontext():
        lab_02.judge_arithmetic(facts)


def test_ratios_of_another_model() -> None:
    other = nn.Linear(4, 4)
    profile = profile_step(
        lambda: other(torch.ones(2, 4)).sum().backward(),
        model={"other": other},
        warmup=1,
        steps=1,
        traced=1,
        memory=False,
    )

    assert "no model.stem and model.blocks.0.up" in hint("2.4", {"stem": 1, "up": 2}, profile=profile)


@pytest.mark.slow
def test_backward_of_frozen_blocks(profile: Profile) -> None:
    assert hint("2.5", profiled("stem", "blocks"), profile=profile) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "stem still"),
        ({"frozen": ["stem"]}, "blocks still"),
        ({"frozen": ["blocks"]}, "stem still"),
        ({"frozen": ["stem", "blocks.0"]}, "blocks still"),
        (
            {"frozen": ["stem.weight", "blocks"]},
            "blocks still has a backward pass: which parameter in it or before it",
        ),
        ({"frozen": ["stem", "head"]}, "blocks still"),
        ({"frozen": ["stem", "blocks"], "batch": 8}, "same batch"),
        ({"frozen": ["stem", "blocks", "head.bias"]}, "its bias"),
        ({"frozen": ["stem", "blocks", "head.weight"]}, "The weights of the head have no backward pass"),
        ({"learns": False}, "Nothing is trained"),
    ],
)
def test_what_is_not_frozen_right(profile: Profile, options: dict[str, Any], says: str) -> None:
    frozen = options.pop("frozen", ())

    assert says in hint("2.5", profiled(*frozen, **options), profile=profile)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({"stem": [10, 0], "blocks": [20, 0], "head": [4, 4]}, ""),
        ({"stem": [10, 10], "blocks": [20, 0], "head": [4, 4]}, "stem still"),
        ({"stem": [10, 0], "blocks": [20, 0], "head": [4, 8]}, "as much as before"),
        ({"stem": [10, 0], "blocks": [30, 0], "head": [4, 4]}, "The forward pass of blocks differs"),
    ],
)
def test_frozen_blocks_by_their_counts(after: dict[str, list[int]], says: str) -> None:
    before = {"stem": [10, 10], "blocks": [20, 40], "head": [4, 8]}

    expect_of("2.5", says, {"before": before, "after": after, "learned": 2})
    assert "incomplete" in said_of("2.5", {"before": {"head": [4, 8]}, "after": after, "learned": 2})


def test_a_profile_is_needed() -> None:
    assert "Pass a profile" in hint("2.5", 3.0, profile="p")
    assert "no profile yet" in hint("2.2", 1.7, profile=None)


SUSPECT: Facts = {
    "names": ["model", "model.rescale", "model.pool", "model.head"],
    "self_ms": {"model.rescale": 9.0, "model.pool": 2.0},
    "shares": {"model.rescale": 0.4, "model.pool": 0.1},
    "steps_ms": [20.0, 18.0, 6.0],
}


@pytest.mark.parametrize(
    ("layer", "at_most", "says"),
    [
        ("model.rescale", 1.67, ""),
        ("model.rescale", 0.4, "the layer's share"),
        ("model.rescale", 0.6, "what would be left"),
        ("model.rescale", 1.4, "1 plus the share"),
        ("model.rescale", 166.7, "percent"),
        ("model.rescale", 3.33, "twice"),
        ("model.rescale", 2.5, "1 / share"),
        ("model.rescale", 20 / 11, "milliseconds"),
        ("model.rescale", 2.0, "milliseconds"),
        ("model.rescale", 1.72, "what the question asks"),
        ("model.rescale", 1.65, ""),
        ("model.pool", 1.11, "not the suspect"),
        ("model.head", 1.67, "not a called layer without parameters"),
        ("rescale", 1.67, "no row"),
    ],
)
def test_the_suspect(layer: str, at_most: float, says: str) -> None:
    facts = SUSPECT | {"layer": layer, "at_most": at_most}

    expect_of("2.6", says, facts)
    assert "1.6" not in said_of("2.6", facts)


def test_a_small_share_is_no_slip() -> None:
    """For 5 %, adding and dividing come to nearly the same."""
    small = {"shares": {"model.rescale": 0.05, "model.pool": 0.01}, "layer": "model.rescale", "at_most": 1 / 0.95}

    assert said_of("2.6", SUSPECT | small) == ""


@pytest.mark.parametrize(
    ("share", "at_most", "says"),
    [
        (0.507, 1 / 0.507, "1 / share"),
        (0.507, 1 / 0.493, ""),
        (0.507, 2.0, ""),
        (0.5, 2.0, ""),
        (0.493, 1 / 0.493, "1 / share"),
    ],
)
def test_one_by_the_share_is_not_the_bound(share: float, at_most: float, says: str) -> None:
    """Near one half the two are near, too, but what was computed exactly tells which it is."""
    shares = {"shares": {"model.rescale": share, "model.pool": 0.01}, "layer": "model.rescale", "at_most": at_most}
    expect_of("2.6", says, SUSPECT | shares)


@pytest.mark.slow
def test_the_suspect_of_a_profile(profile: Profile) -> None:
    share = profile.layers.loc["model.rescale", "share"]

    assert hint("2.6", {"layer": "model.rescale", "at_most": 1 / (1 - share)}, profile=profile) == ""
    assert hint("2.6", {"layer": "model.rescale", "at_most": 2 / (1 - share)}, profile=profile)
    assert hint("2.6", {"layer": "model.rescale", "at_most": 1 - share}, profile=profile)
    assert "not a called layer without parameters" in hint(
        "2.6", {"layer": "model.head", "at_most": 1 / (1 - share)}, profile=profile
    )


@pytest.mark.parametrize(("up", "says"), [(2.0, ""), (1.9, "up: this is not the counted")])
def test_ratios_of_counts_are_exact(up: float, says: str) -> None:
    facts = {"flops": {"stem": [100, 100], "up": [100, 200]}, "said": {"stem": 1.0, "up": up}}

    expect_of("2.4", says, facts)
