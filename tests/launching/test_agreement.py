"""Ranks whose clocks and machines differ run the same passes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.errors import CaptureError
from perfnb.launching.agreement import AgreedPlan
from perfnb.launching.job_folder import Meeting
from perfnb.step.budget import Plan


def passes(plan: Plan, step_ns: int, gpu: bool) -> list[Any]:
    """Return what a rank whose steps take so long runs, decided as a session does."""
    spent, warm = 0.0, []
    while plan.goes_on_warming(warm, spent, gpu):
        warm.append(step_ns)
        spent += step_ns / 1e9
    long = len(warm) == 2 and plan.steps_are_long(warm, spent)
    wanted, done = plan.timed_steps(warm), int(long)
    while plan.goes_on_timing(done, wanted, spent, step_ns / 1e9):
        done += 1
        spent += step_ns / 1e9
    traced = plan.traced_steps(spent, step_ns / 1e9)
    return [len(warm), done, traced, plan.affords_lead_in(spent, step_ns / 1e9), plan.steps_to_try(spent, 1e-9)]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(10**5, 10**10), min_size=2, max_size=4),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(1, 30)),
    st.floats(0.1, 20.0),
)
def test_all_ranks_run_the_same(steps_ns: list[int], warmup: int | None, steps: int | None, budget_s: float) -> None:
    plan = Plan(warmup=warmup, steps=steps, budget_s=budget_s)

    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(steps_ns)) as pool:
        plans = [AgreedPlan(plan, rank, Meeting(Path(folder))) for rank in range(len(steps_ns))]
        found = list(pool.map(passes, plans, steps_ns, [rank % 2 == 1 for rank in range(len(plans))]))

    assert all(one == found[0] for one in found)
    assert found[0][1] >= 1


def test_the_number_of_timed_steps_is_agreed_once(tmp_path: Path) -> None:
    plan = AgreedPlan(Plan(steps=5, budget_s=1e6), 0, Meeting(tmp_path))

    asked = [plan.goes_on_timing(done, 5, 0.0, 0.001) for done in range(6)]

    assert asked == [True] * 5 + [False]
    assert len(list(tmp_path.iterdir())) == 1


def test_steps_take_what_the_budget_leaves(tmp_path: Path) -> None:
    plan = AgreedPlan(Plan(budget_s=1.0), 0, Meeting(tmp_path))

    count = 0
    while plan.goes_on_timing(count, 200, 0.0, 0.05):
        count += 1

    alone, spent = 0, 0.0
    while Plan(budget_s=1.0).goes_on_timing(alone, 200, spent, 0.05):
        alone, spent = alone + 1, spent + 0.05
    assert count == alone


def test_every_decision_of_a_plan_is_agreed() -> None:
    decisions = {name for name, value in vars(Plan).items() if callable(value) and not name.startswith("_")}

    assert decisions - set(vars(AgreedPlan)) == {"why_longer", "briefly_sampled_steps"}
    # The first only tells the user something, and a rank of a job samples no stacks unless it is asked to.


def test_ranks_tell_each_other_until_the_job_stops(tmp_path: Path) -> None:
    stopping = threading.Event()
    one, other = Meeting(tmp_path, stopping), Meeting(tmp_path, stopping)
    one.set("steps", "7")
    assert other.get("steps") == "7"

    threading.Timer(0.05, stopping.set).start()
    with pytest.raises(CaptureError, match="The job was stopped"):
        other.get("more")  # perfnb defers interrupts while it asks
