"""Ranks whose clocks and machines differ run the same passes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.launching.agreement import AgreedPlan
from perfnb.step.budget import Plan


class Store:
    """A store in this process, whose `get` waits."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, timeout=60)
            return self.values[key].encode()


def passes(plan: Plan, step_ns: int, gpu: bool) -> list[Any]:
    """What a rank whose steps take so long runs, decided as a session does."""
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
    plan, store = Plan(warmup=warmup, steps=steps, budget_s=budget_s), Store()
    plans = [AgreedPlan(plan, rank, store) for rank in range(len(steps_ns))]

    with ThreadPoolExecutor(len(plans)) as pool:
        found = list(pool.map(passes, plans, steps_ns, [rank % 2 == 1 for rank in range(len(plans))]))

    assert all(one == found[0] for one in found)
    assert found[0][1] >= 1


def test_the_number_of_timed_steps_is_agreed_once() -> None:
    store = Store()
    plan = AgreedPlan(Plan(steps=5, budget_s=1e6), 0, store)

    asked = [plan.goes_on_timing(done, 5, 0.0, 0.001) for done in range(6)]

    assert asked == [True] * 5 + [False]
    assert len(store.values) == 1


def test_steps_take_what_the_budget_leaves() -> None:
    plan = AgreedPlan(Plan(budget_s=1.0), 0, Store())

    count = 0
    while plan.goes_on_timing(count, 200, 0.0, 0.05):
        count += 1

    alone, spent = 0, 0.0
    while Plan(budget_s=1.0).goes_on_timing(alone, 200, spent, 0.05):
        alone, spent = alone + 1, spent + 0.05
    assert count == alone


def test_every_decision_of_a_plan_is_agreed() -> None:
    decisions = {name for name, value in vars(Plan).items() if callable(value) and not name.startswith("_")}

    assert decisions - set(vars(AgreedPlan)) == {"why_longer"}  # which only tells the user something
