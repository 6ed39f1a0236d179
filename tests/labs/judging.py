"""How the tests put an answer to a check."""

from __future__ import annotations

from typing import Any

from perfnb.labs.ledger import exercise_of, judged


def hint(number: str, answer: Any, **evidence: Any) -> str:
    """What the check says is wrong; empty where it accepts."""
    return judged(exercise_of(number), answer, evidence)[1]
