"""Passes that all ranks of a job run equally often: a step more on one rank would wait for the others for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfnb.errors import CaptureError
from perfnb.launching.child import tell
from perfnb.step.budget import Plan

#: Seconds between two looks at what another rank says.
_LOOK_S = 0.001


class Meeting:
    """What ranks tell each other, as files in the folder of their job, which only its user can read.

    Unlike a store of torch's it needs no port, and waiting ends with an interrupt or when `stopping` is set.
    """

    def __init__(self, folder: Path, stopping: threading.Event | None = None) -> None:
        self._folder, self._stopping = folder, stopping or threading.Event()

    def set(self, key: str, value: str) -> None:
        """Give a key a value."""
        tell(self._folder / f"told_{key}", value)

    def get(self, key: str) -> str:
        """Wait for a key's value.

        Raises
        ------
        CaptureError
            If the job is stopped meanwhile.
        """
        path = self._folder / f"told_{key}"
        while not path.exists():
            if self._stopping.wait(_LOOK_S):
                raise CaptureError("The job was stopped.")
        return path.read_text()


class AgreedPlan(Plan):
    """A plan whose decisions are those of rank 0.

    The number of timed and of traced steps is agreed on before the pass, so that ranks wait for each other nowhere but
    in the step itself; otherwise the wait for a slow rank would move out of the steps.
    """

    def __init__(self, plan: Plan, rank: int, meeting: Meeting) -> None:
        super().__init__(**{name: getattr(plan, name) for name in Plan.__dataclass_fields__})
        vars(self).update(_plan=plan, _rank=rank, _meeting=meeting, _asked=0, _timed=None)  # a frozen class otherwise

    def _agreed(self, decide: Callable[[], Any]) -> Any:
        own = vars(self)
        key = str(own["_asked"])
        own["_asked"] += 1
        if own["_rank"] != 0:
            return json.loads(own["_meeting"].get(key))
        decided = decide()
        own["_meeting"].set(key, json.dumps(decided))
        return decided

    def goes_on_warming(self, times_ns: Sequence[int], spent_s: float, gpu: bool) -> bool:
        return bool(self._agreed(lambda: bool(self._own.goes_on_warming(times_ns, spent_s, gpu))))

    def steps_are_long(self, times_ns: Sequence[int], spent_s: float) -> bool:
        return bool(self._agreed(lambda: bool(self._own.steps_are_long(times_ns, spent_s))))

    def timed_steps(self, warm_ns: Sequence[int]) -> int:
        return int(self._agreed(lambda: self._own.timed_steps(warm_ns)))

    def goes_on_timing(self, done: int, wanted: int, spent_s: float, step_s: float) -> bool:
        def count() -> int:
            number = done
            while number < wanted and self._own.goes_on_timing(
                number, wanted, spent_s + (number - done) * step_s, step_s
            ):
                number += 1
            return number

        own = vars(self)
        if own["_timed"] is None:
            own["_timed"] = self._agreed(count)
        return bool(done < own["_timed"])

    def steps_to_try(self, spent_s: float, step_s: float) -> int:
        return 0  # the threads of ranks are chosen so that they do not fight

    def traced_steps(self, spent_s: float, step_s: float) -> tuple[int, bool]:
        count, lead_in = self._agreed(lambda: self._own.traced_steps(spent_s, step_s))
        return int(count), bool(lead_in)

    def sampled_steps(self, spent_s: float, step_s: float) -> int:
        return int(self._agreed(lambda: self._own.sampled_steps(spent_s, step_s)))

    def affords_lead_in(self, spent_s: float, step_s: float) -> bool:
        return bool(self._agreed(lambda: bool(self._own.affords_lead_in(spent_s, step_s))))

    @property
    def _own(self) -> Plan:
        plan: Plan = vars(self)["_plan"]
        return plan
