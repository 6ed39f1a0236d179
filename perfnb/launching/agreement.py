"""Ensure that all ranks of a job run the same number of steps in each pass.

Otherwise, a rank with an additional step would wait for the others forever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from perfnb.launching.job_folder import Meeting
from perfnb.step.budget import Plan


class AgreedPlan(Plan):
    """A plan whose decisions are made by rank 0.

    The ranks agree on the numbers of timed and traced steps before each pass, so that they only wait for each other
    within a step. If they agreed between steps, waits for a slow rank would not be part of any step.
    """

    def __init__(self, plan: Plan, rank: int, meeting: Meeting) -> None:
        super().__init__(**{name: getattr(plan, name) for name in Plan.__dataclass_fields__})
        vars(self).update(_own=plan, _rank=rank, _meeting=meeting, _asked=0, _timed=None)  # a frozen class otherwise

    def _agree(self, decide: Callable[[], Any]) -> Any:
        here = vars(self)
        key = str(here["_asked"])
        here["_asked"] += 1
        if here["_rank"] == 0:
            here["_meeting"].set(key, json.dumps(decide(), default=lambda number: number.item()))
        return json.loads(here["_meeting"].get(key))

    def goes_on_timing(self, done: int, wanted: int, spent_s: float, step_s: float) -> bool:
        here = vars(self)

        def count() -> int:
            number = done
            while here["_own"].goes_on_timing(number, wanted, spent_s + (number - done) * step_s, step_s):
                number += 1
            return number

        if here["_timed"] is None:
            here["_timed"] = self._agree(count)
        return bool(done < here["_timed"])

    def steps_to_try(self, spent_s: float, step_s: float) -> int:
        return 0  # the threads of ranks are chosen so that they do not fight


def _agreed(name: str) -> Callable[..., Any]:
    """Return a method that returns rank 0's decision."""

    def decision(self: AgreedPlan, *args: Any) -> Any:
        return self._agree(lambda: getattr(vars(self)["_own"], name)(*args))

    return decision


for _name in ("goes_on_warming", "steps_are_long", "timed_steps", "traced_steps", "sampled_steps", "affords_lead_in"):
    setattr(AgreedPlan, _name, _agreed(_name))
