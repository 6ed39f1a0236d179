"""All rules. Add new rules to the module for their subject."""

from __future__ import annotations

from perfnb.findings.finding import Rule
from perfnb.findings.rules import (
    bound,
    communication,
    compiled,
    double,
    fusion,
    host,
    memory,
    optimizer,
    repeated,
    synchronisation,
    timed,
    transfers,
)

_SUBJECTS = (
    *(timed, transfers, synchronisation, host, bound, fusion, double, memory, optimizer, repeated, communication),
    compiled,
)
RULES: tuple[Rule, ...] = tuple(
    value for subject in _SUBJECTS for value in vars(subject).values() if isinstance(value, Rule)
)
#: Rules of one name differ only in how they search, in their threshold, and in the lever.
BY_NAME = {rule.name: rule for rule in RULES}
