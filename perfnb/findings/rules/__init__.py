"""All rules. Add a new rule to the module that covers its subject."""

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
#: Rules with the same name differ only in their search, their threshold and their lever.
BY_NAME = {rule.name: rule for rule in RULES}
