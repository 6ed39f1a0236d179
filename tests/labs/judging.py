"""How the tests put an answer to a check, and tests of two steps that came out as wanted."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfnb.bench.paired_times import BlockPlan, paired_times
from perfnb.experiments.compared_figures import NOT_COMPARED, Quality
from perfnb.labs.exercise import Facts, Hint, flagged
from perfnb.labs.ledger import exercise_of, judged
from perfnb.results import ABTest


def hint(number: str, answer: Any, **evidence: Any) -> str:
    """What the check says is wrong; empty where it accepts."""
    return judged(exercise_of(number), answer, evidence)[1]


def said_of(number: str, facts: Facts) -> str:
    """What the judge says of facts, as a file of results has them; empty where it accepts."""
    try:
        exercise_of(number).judge(flagged(json.loads(json.dumps(facts))))
    except Hint as found:
        return str(found)
    return ""


def expect(number: str, words: str, answer: Any, **evidence: Any) -> None:
    """The hint has these words; without words there is no hint."""
    found = hint(number, answer, **evidence)

    assert words in found
    assert bool(words) == bool(found)


def expect_of(number: str, words: str, facts: Facts) -> None:
    """What the judge says of these facts has these words; without words it accepts them."""
    found = said_of(number, facts)

    assert words in found
    assert bool(words) == bool(found)


def changed(facts: Facts, changes: Mapping[str, Any]) -> Facts:
    """Return facts with other values at these places: ``said/time`` or, in a list, ``cases/0/said``."""
    facts = copy.deepcopy(facts)
    for place, value in changes.items():
        *path, last = place.split("/")
        inner: Any = facts
        for key in path:
            inner = inner[int(key) if isinstance(inner, list) else key]
        inner[int(last) if isinstance(inner, list) else last] = value
    return facts


def an_ab_test(
    *,
    a_ms: Sequence[float] = (4.0, 9.0),
    b_ms: Sequence[float] = (2.0, 9.0),
    check: str | None = "",
    turns: int = 1,
    **comparison: Any,
) -> ABTest:
    """Return what `perfnb.ab_test` makes of these pairs, with some figures replaced: ``ratio=0.5``."""
    times = paired_times(
        a_ms,
        b_ms,
        equal_within=0.02,
        a_name="a",
        b_name="b",
        planned=len(a_ms),
        needed=len(a_ms),
        blocks=BlockPlan("worker processes", turns, turns, None) if turns > 1 else None,
    )
    times = replace(times, comparison=replace(times.comparison, **comparison))
    return ABTest(**vars(times), quality=NOT_COMPARED if check is None else Quality((), "check", check))
