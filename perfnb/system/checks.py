"""What was read of the machine, judged: a row a check."""

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

#: The columns of a table of checks, and the verdicts from the one to be read first on.
COLUMNS = ("check", "found", "expected", "verdict", "why", "how")
VERDICTS = ("attention", "unknown", "info", "ok")

CHECKS: tuple[Check, ...] = (*OF_THE_HOST, *OF_THE_DISK, *OF_BUILDS, *OF_GPUS)


def check_table(facts: Mapping[str, Any]) -> pd.DataFrame:
    """A row a check, always the same ones in the same order.

    Parameters
    ----------
    facts : mapping
        As `perfnb.system.read.read_system` gives them.

    Returns
    -------
    DataFrame
        All text. ``verdict`` is "ok", "attention" (something may cost speed, or make timings unsteady), "info" (neither
        good nor bad by itself) or "unknown" (it could not be read).
    """
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
