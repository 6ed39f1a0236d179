"""`system_check` and what it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfnb.arguments import shown
from perfnb.draw.shown import Shown
from perfnb.recording.text import TEXT
from perfnb.system.check import Facts, judged
from perfnb.system.gpus import CHECKS as OF_GPUS
from perfnb.system.host import CHECKS as OF_THE_HOST
from perfnb.system.view import system_html, system_line, system_text

#: The columns of the table.
COLUMNS = ("check", "found", "expected", "verdict", "why", "how")

CHECKS = (*OF_THE_HOST, *OF_GPUS)


class SystemCheck(Shown):
    """Checks of the machine. Displays itself in a notebook, problems first."""

    def __init__(self, checks: pd.DataFrame) -> None:
        self._checks = checks

    @property
    def checks(self) -> pd.DataFrame:
        """One row per check, all text: ``check``, ``found``, ``expected``, ``verdict``, ``why``, ``how``.

        ``verdict`` is "ok", "attention" (may cost speed or make timings unsteady), "info" (neither good nor bad by
        itself) or "unknown" (could not be read; ``found`` says why).
        """
        return self._checks.copy()

    def _text(self, width: int = 100) -> str:
        return system_text(self._checks, width)

    def _line(self) -> str:
        return system_line(self._checks)

    def _html(self) -> str:
        return system_html(self._checks)


def check_table(facts: Mapping[str, Any]) -> pd.DataFrame:
    """One row per check, always in the same order, as `SystemCheck.checks` describes it."""
    rows = []
    for check in CHECKS:
        finding = judged(check.judge, Facts(facts))
        how = finding.how or check.how
        rows.append((check.name, finding.found, check.expected, finding.verdict, check.why, how))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(TEXT)


def system_check(data: str | os.PathLike[str] = ".") -> SystemCheck:
    """Check the machine for what slows steps down or makes timings unsteady. Changes nothing.

    Covers CPU governor, frequency and heat; NUMA; torch's threads compared with cores and the cgroup's limit; memory,
    swap, huge pages and shared memory; the disk of the data; the builds of Python and torch; and for NVIDIA GPUs
    driver, persistence, power cap, throttling, ECC and PCIe link.

    What is expected follows rules of thumb, each with its reason. What cannot be read is reported, not guessed. On
    macOS much of this cannot be read; Windows is not supported.

    Parameters
    ----------
    data : path
        The file or folder that the loader reads. At most 32 MiB of the files in it are read, for at most a second. If
        they are too small or in the page cache, 8 MiB are written there to a temporary file, read and deleted.

    Returns
    -------
    SystemCheck

    Raises
    ------
    FileNotFoundError
        If `data` does not exist.
    """
    from perfnb.system.read import read_system

    path = os.fsdecode(data)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no {shown(path)}: pass the file or folder that the loader reads.")
    return SystemCheck(check_table(read_system(path)))
