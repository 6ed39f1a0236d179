"""Lab 8, ranks, machines and the verdict: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.labs.exercise import Facts
from perfnb.labs.ledger import exercise_of, judged
from tests.labs import traces_at_hand
from tests.labs.judging import hint, said_of
from tests.labs.lab_08_answers import WORK, late, right_or_told, union

IDLE: Facts = {
    "call": "hipFree",
    "per_iteration": 272,
    "share": 0.9861,
    "calls": {"hipFree": 1360, "hipMalloc": 1460, "hipLaunchKernel": 850},
    "ms": {"hipFree": 3346.15, "hipMalloc": 11.9, "hipLaunchKernel": 3.0},
    "iterations": 5,
    "step_ms": 3393.19,
    "idle_ms": 3032.41,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"call": "hipMalloc"}, "called most often"),
        ({"call": "hipLaunchKernel"}, "more time in another one"),
        ({"call": "aten::convolution_backward"}, "no event"),
        ({"per_iteration": 1360}, "whole trace"),
        ({"per_iteration": 544}, "twice"),
        ({"per_iteration": 292}, "not so often"),
        ({"share": 98.61}, "percent"),
        ({"share": 3346.15}, "that is its time"),
        ({"share": 3.346}, "that is its time"),
        ({"share": 1.1035}, "idle time"),
        ({"share": 0.8942}, "does not follow"),
    ],
)
def test_idle_again(change: dict[str, Any], says: str) -> None:
    right_or_told(said_of("8.5", IDLE | change), says)


STRAGGLER: Facts = {
    "said": {"rank": 1, "waits_ms": 15.93},
    "straggler": 1,
    "waiting_ms": {"0": [8.245, 23.62], "1": [0.0, 0.0]},
    "communication_ms": {"0": 198.1, "1": 189.53},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"waits_ms": 15.51}, ""),  # from the kernels' begins, without the clocks
        ({"rank": 0}, "waits inside it"),
        ({"rank": 2}, "no rank 2"),
        ({"rank": 0.5}, "no rank 0.5"),
        ({"waits_ms": 31.865}, "all steps together"),
        ({"waits_ms": 23.62}, "one step"),
        ({"waits_ms": 8.57}, "not waiting"),
        ({"waits_ms": 198.1}, "how much of it"),
        ({"waits_ms": 7.966}, "half"),
        ({"waits_ms": 15930.0}, "units"),
        ({"waits_ms": 0.0}, "not what the other rank waits"),
    ],
)
def test_the_straggler(change: dict[str, float], says: str) -> None:
    right_or_told(said_of("8.6", STRAGGLER | {"said": STRAGGLER["said"] | change}), says)


MACHINES: Facts = {
    "op": "aten::scaled_dot_product_attention",
    "op_ratio": 3.05,
    "busy_ratio": 1.4007,
    "gpu_ms": {
        "aten::scaled_dot_product_attention": [0.122848, 0.374687],
        "aten::linear": [0.735, 0.9423],
        "aten::conv2d": [0.1296, 0.0531],
    },
    "busy_ms": [1.2253, 1.7163],
    "wall_ms": [7.894, 7.453],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"op": "aten::linear"}, "grew less"),
        ({"op": "aten::conv2d"}, "shrank"),
        ({"op": "attn_fwd"}, "no op"),
        ({"op_ratio": 0.3279}, "inverse"),
        ({"op_ratio": 0.2518}, "difference"),
        ({"op_ratio": 305.0}, "percent"),
        ({"op_ratio": 2.05}, "does not follow"),
        ({"busy_ratio": 0.944}, "steps' lengths"),
        ({"busy_ratio": 0.714}, "inverse"),
        ({"busy_ratio": 0.491}, "difference"),
    ],
)
def test_two_machines(change: dict[str, Any], says: str) -> None:
    right_or_told(said_of("8.7", MACHINES | change), says)


SAID = {
    "h100_vit": ["fewer launches", 6.33],
    "mi300_ddp_resnet18": ["no allocation", 3010.0],
    "sampled_rank_0": ["hidden communication", 168.5],
}


VERDICT: Facts = {
    "right": {name: lever for name, (lever, _) in SAID.items()},
    "bounds": {"h100_vit": [6.326, 6.669], "mi300_ddp_resnet18": [3032.3, 3034.2], "sampled_rank_0": [168.49, 168.49]},
    "wall_ms": {"h100_vit": 7.894, "mi300_ddp_resnet18": 3393.19, "sampled_rank_0": 615.12},
    "communication_ms": 198.1,
    "steps": 2,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"h100_vit": ["fewer launches", 6.66]}, ""),
        ({"h100_vit": ["faster kernels", 1.2]}, "What does the GPU do"),
        ({"h100_vit": ["fewer launches", 0.84]}, "bound is not"),
        ({"h100_vit": ["fewer launches", 7.894]}, "What would be left"),
        ({"h100_vit": ["fewer launches", 3.25]}, "half"),
        ({"mi300_ddp_resnet18": ["fewer launches", 3032.0]}, "In which call"),
        ({"mi300_ddp_resnet18": ["no allocation", 3346.0]}, "that work remains"),
        ({"mi300_ddp_resnet18": ["no allocation", 3.0323]}, "thousand times too small"),
        ({"sampled_rank_0": ["faster kernels", 105.0]}, "busy longest"),
        ({"sampled_rank_0": ["hidden communication", 198.1]}, "already hides"),
        ({"sampled_rank_0": ["hidden communication", 336.98]}, "per step"),
    ],
)
def test_a_verdict(change: dict[str, Any], says: str) -> None:
    right_or_told(said_of("8.8", VERDICT | {"said": SAID | change}), says)


@pytest.mark.parametrize(
    ("number", "answer", "says"),
    [
        ("8.1", 5, "dictionary"),
        ("8.4", {"share": 0.6, "saves_ms": 0}, "dictionary with op"),
        ("8.5", ("hipFree", 272, 0.99), "dictionary with call"),
        ("8.7", {"op": ...}, "no answer yet"),
        ("8.8", {"h100_vit": ("fewer launches", 6.3)}, "dictionary with h100_vit, mi300_ddp_resnet18"),
        ("8.8", dict.fromkeys(SAID, 6.3), "give two things"),
        ("8.8", dict.fromkeys(SAID, ("a faster GPU", 6.3)), "no lever"),
        ("8.8", dict.fromkeys(SAID, ("fewer launches", "much")), "must be a number"),
    ],
)
def test_an_answer_misformed(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer)


class Public:
    """The lab's own traces."""

    def __init__(self, folder: Path) -> None:
        self.h, self.m, self.training = (
            perfnb.load(folder / f"{name}.json.gz") for name in ("h100_vit", "mi300_vit", "mi300_ddp_resnet18")
        )
        self.ranks = perfnb.load([folder / f"sampled_rank_{rank}.json.gz" for rank in (0, 1)])


@pytest.fixture(scope="module")
def public() -> Public:
    folder = traces_at_hand.folder()
    if folder is None:
        pytest.skip(traces_at_hand.MISSING)
    return Public(folder)


# Numbers as other tools and the plain JSON give them: TraceLens' own report of the trace has 59.99 % for aten::addmm.
FIRST = {"iterations": 5, "batch": 512, "ranks": 128}


Given = Callable[[Public], dict[str, Any]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer", "given"),
    [
        ("8.1", FIRST, lambda p: {"profile": p.training, "ranks": p.ranks}),
        ("8.2", union, lambda p: {"ranks": p.ranks}),
        ("8.3", late, lambda p: {"profile": p.h, "other": p.m}),
        ("8.4", {"op": "aten::addmm", "share": 0.5999, "saves_ms": 0}, lambda p: {"profile": p.h}),
        ("8.5", {"call": "hipFree", "per_iteration": 272, "share": 0.98614}, lambda p: {"profile": p.training}),
        ("8.6", {"rank": 1, "waits_ms": 15.93}, lambda p: {"ranks": p.ranks}),
        (
            "8.7",
            {"op": "aten::scaled_dot_product_attention", "op_ratio": 3.05, "busy_ratio": 1.7163 / 1.2253},
            lambda p: {"profile": p.h, "other": p.m},
        ),
        ("8.8", SAID, lambda p: {"profile": p.h, "training": p.training, "ranks": p.ranks}),
    ],
)
def test_right_answers_from_the_traces(public: Public, number: str, answer: Any, given: Given) -> None:
    facts, found = judged(exercise_of(number), answer, given(public))

    assert found == ""
    exercise_of(number).judge(json.loads(json.dumps(facts)))  # as a teacher can from the exported file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer", "given", "says"),
    [
        ("8.1", FIRST | {"iterations": 1}, lambda p: {"profile": p.training, "ranks": p.ranks}, "whole trace"),
        ("8.1", FIRST, lambda p: {"profile": p.h, "ranks": p.ranks}, "profile of mi300_ddp_resnet18 is needed"),
        ("8.2", lambda work: 547.656, lambda p: {"ranks": p.ranks}, "made up"),
        ("8.3", lambda e: late(e, calls=["cuda_runtime"]), lambda p: {"profile": p.h, "other": p.m}, "left out"),
        ("8.4", {"op": "aten::addmm", "share": 0.327, "saves_ms": 0}, lambda p: {"profile": p.h}, "one kernel"),
        ("8.4", {"op": "aten::addmm", "share": 0.6, "saves_ms": 0.3675}, lambda p: {"profile": p.h}, "wait for"),
        ("8.4", {"op": "aten::addmm", "share": 0.6, "saves_ms": 1.9037}, lambda p: {"profile": p.h}, "host's time"),
        ("8.6", {"rank": 0, "waits_ms": 15.93}, lambda p: {"ranks": p.ranks}, "waits inside it"),
        (
            "8.7",
            {"op": "aten::linear", "op_ratio": 1.28, "busy_ratio": 1.4},
            lambda p: {"profile": p.h, "other": p.m},
            "grew less",
        ),
        (
            "8.8",
            SAID | {"mi300_ddp_resnet18": ("no allocation", 3346.15)},
            lambda p: {"profile": p.h, "training": p.training, "ranks": p.ranks},
            "that work remains",
        ),
    ],
)
def test_wrong_answers_from_the_traces(public: Public, number: str, answer: Any, given: Given, says: str) -> None:
    assert says in hint(number, answer, **given(public))


@pytest.mark.slow
def test_what_the_text_says_of_the_traces(public: Public) -> None:
    """Figures that stand in the lab's text."""
    assert public.h.steps["wall_ms"].sum() == pytest.approx(7.9, abs=0.05)
    assert public.m.steps["wall_ms"].sum() == pytest.approx(7.5, abs=0.05)
    assert public.h.gpu_time["idle_pct"].sum() == pytest.approx(84, abs=0.5)
    assert public.training.gpu_time["idle_pct"].sum() == pytest.approx(89, abs=0.5)
    assert public.h.launches["call_ms"].sum() < 1 < 6 < public.h.gpu_idle["host_ms"].sum()
    assert public.h.steps["wall_ms"].sum() / 156 == pytest.approx(0.05, abs=0.001)
    own = public.h.events[public.h.events["category"].isin(WORK)]
    assert own["duration_ns"].median() == pytest.approx(8_000, abs=300)
    calls = public.training.events.query("name in ['hipFree', 'hipMalloc']").groupby("name", observed=True)
    assert calls.size().to_dict() == {"hipFree": 1360, "hipMalloc": 1460}
    assert calls["duration_ns"].mean()["hipFree"] == pytest.approx(2.5e6, rel=0.03)
    assert public.ranks.times["wall_ms"][:2].mean() == pytest.approx(615, abs=0.5)
    assert "unexplained idle time" in set(public.ranks[0].findings["bottleneck"])
    path, calls = public.ranks[0].critical_path, public.ranks[0].events.query("category == 'cuda_runtime'")
    assert "communication" not in set(path["kind"])
    assert set(calls["name"]) == {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"}
    exposed = public.ranks.times["exposed_ms"][:2].mean()
    assert exposed > public.ranks[0].gpu_idle["host_ms"].mean()  # so that no lever has a larger bound
    assert exposed > path.loc[path["device"].notna(), "duration_ns"].sum() / 2e6
    for one in (public.h, public.training):
        on_gpu = one.critical_path["device"].notna()
        assert one.critical_path.loc[on_gpu, "duration_ns"].sum() == 0
