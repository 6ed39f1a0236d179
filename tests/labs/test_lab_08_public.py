"""Lab 8 on its own traces, where they are at hand: right and wrong answers, and what the text says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.labs.ledger import exercise_of, judged
from tests.labs import traces_at_hand
from tests.labs.judging import hint
from tests.labs.lab_08_answers import SAID, WORK, bounds, late, union


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
CALLED = {"call": "hipFree", "per_iteration": 272, "share": 0.98614}
MACHINE = {"op": "aten::scaled_dot_product_attention", "op_ratio": 3.05, "busy_ratio": 1.7163 / 1.2253}


Given = Callable[[Public], dict[str, Any]]


def of_training(public: Public) -> dict[str, Any]:
    return {"profile": public.training}


def of_both(public: Public) -> dict[str, Any]:
    return {"profile": public.h, "other": public.m}


def of_all(public: Public) -> dict[str, Any]:
    return {"profile": public.h, "training": public.training, "ranks": public.ranks}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer", "given"),
    [
        ("8.1", FIRST, lambda p: {"profile": p.training, "ranks": p.ranks}),
        ("8.2", union, lambda p: {"ranks": p.ranks}),
        ("8.3", late, lambda p: {"profile": p.h, "other": p.m}),
        ("8.4", {"op": "aten::addmm", "share": 0.5999, "saves_ms": 0}, lambda p: {"profile": p.h}),
        ("8.5", CALLED, of_training),
        ("8.6", {"rank": 1, "waits_ms": 15.93}, lambda p: {"ranks": p.ranks}),
        ("8.7", MACHINE, of_both),
        ("8.8", SAID, of_all),
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
        ("8.5", CALLED | {"per_iteration": 1360}, of_training, "whole trace"),
        ("8.5", CALLED | {"call": "hipMalloc", "per_iteration": 292}, of_training, "more time in another one"),
        ("8.5", CALLED | {"call": "hipExtModuleLaunchKernel"}, of_training, "called most often"),
        ("8.5", CALLED | {"share": 1.1035}, of_training, "idle time"),
        ("8.5", CALLED | {"share": 98.614}, of_training, "percent"),
        ("8.5", CALLED, lambda p: {"profile": p.h}, "profile of mi300_ddp_resnet18 is needed"),
        ("8.6", {"rank": 0, "waits_ms": 15.93}, lambda p: {"ranks": p.ranks}, "waits inside it"),
        ("8.6", {"rank": 1, "waits_ms": 31.865}, lambda p: {"ranks": p.ranks}, "all steps together"),
        ("8.6", {"rank": 1, "waits_ms": 8.57}, lambda p: {"ranks": p.ranks}, "is not waiting"),
        ("8.6", {"rank": 1, "waits_ms": 198.1}, lambda p: {"ranks": p.ranks}, "how much of it"),
        ("8.7", MACHINE | {"op": "aten::linear", "op_ratio": 1.28}, of_both, "grew less"),
        ("8.7", MACHINE | {"op_ratio": 1 / 3.05}, of_both, "op_ratio: not the second trace's time by the first's. It"),
        ("8.7", MACHINE | {"busy_ratio": 0.944}, of_both, "steps' lengths"),
        ("8.8", SAID | {"h100_vit": ("faster kernels", 1.22)}, of_all, "What does the GPU do"),
        ("8.8", SAID | {"h100_vit": ("fewer launches", 7.894)}, of_all, "What would be left"),
        ("8.8", SAID | {"mi300_ddp_resnet18": ("fewer launches", 3032.3)}, of_all, "In which call"),
        ("8.8", SAID | {"mi300_ddp_resnet18": ("no allocation", 3346.15)}, of_all, "that work remains"),
        ("8.8", SAID | {"sampled_rank_0": ("fewer launches", 141.6)}, of_all, "busy longest"),
        ("8.8", SAID | {"sampled_rank_0": ("hidden communication", 198.1)}, of_all, "already hides"),
        ("8.8", SAID | {"sampled_rank_0": ("hidden communication", 336.98)}, of_all, "per step"),
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


@pytest.mark.slow
def test_the_levers_bounds_in_the_traces(public: Public) -> None:
    """By other tables than those of the check: the findings', and the ranks'."""
    found = exercise_of("8.8").measure(SAID, **of_all(public))["bounds"]

    assert found["h100_vit"] == pytest.approx(bounds(0.0, 6.33, 0.0, 0.0), abs=0.005)
    assert found["mi300_ddp_resnet18"] == pytest.approx(bounds(0.0, 0.0, 3032.3, 0.0), abs=0.05)
    assert found["sampled_rank_0"] == pytest.approx(bounds(0.67, 141.6, 0.0, 168.5), abs=0.05)
    exposed = public.ranks.times["exposed_ms"][:2].mean()
    assert found["sampled_rank_0"]["hidden communication"] == pytest.approx(exposed)
    idle = public.training.findings.set_index("bottleneck")["bound_ms"]["allocator"]
    assert found["mi300_ddp_resnet18"]["no allocation"] == pytest.approx(idle, rel=0.01)
