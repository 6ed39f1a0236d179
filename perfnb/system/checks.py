"""The table of checks: what was read of the machine, judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfnb.recording.text import TEXT
from perfnb.system.builds import CHECKS as OF_BUILDS
from perfnb.system.check import Check, Facts, Finding, NotRead
from perfnb.system.disk import CHECKS as OF_THE_DISK
from perfnb.system.gpus import CHECKS as OF_GPUS
from perfnb.system.host import CHECKS as OF_THE_HOST

#: The columns of the table.
COLUMNS = ("check", "found", "expected", "verdict", "why", "how")

CHECKS: tuple[Check, ...] = (*OF_THE_HOST, *OF_THE_DISK, *OF_BUILDS, *OF_GPUS)


def check_table(facts: Mapping[str, Any]) -> pd.DataFrame:
    """One row per check, always in the same order, as `SystemCheck.checks` describes it."""
    asked = Facts(facts)
    rows = []
    for check in CHECKS:
        found = _judged(check, asked)
        rows.append((check.name, found.found, check.expected, found.verdict, check.why, found.how or check.how))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(TEXT)


def _judged(check: Check, facts: Facts) -> Finding:
    try:
        return check.judge(facts)
    except NotRead as error:
        return Finding(f"could not be read: {error}", "unknown")
