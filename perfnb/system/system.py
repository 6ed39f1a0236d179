"""`system_check` and its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.recording.text import TEXT
from perfnb.system.check import SystemFacts, judged
from perfnb.system.gpus import CHECKS as OF_GPUS
from perfnb.system.host import CHECKS as OF_THE_HOST
from perfnb.system.resolution import Resolution, find_resolution
from perfnb.system.view import system_document

#: The columns of the table.
COLUMNS = ("check", "found", "expected", "verdict", "why", "how")

CHECKS = (*OF_THE_HOST, *OF_GPUS)


class SystemCheck(Documented):
    """The checks of the machine. A notebook displays them, with problems first."""

    def __init__(self, checks: pd.DataFrame, resolution: Resolution | None = None) -> None:
        self._checks, self._resolution = checks, resolution

    @property
    def checks(self) -> pd.DataFrame:
        """One row per check. All columns are text: ``check``, ``found``, ``expected``, ``verdict``, ``why``, ``how``.

        ``verdict`` is "ok", "attention" (may reduce speed or make timings unsteady), "info" (in itself neither good nor
        bad) or "unknown" (could not be read; ``found`` contains the reason).
        """
        return self._checks.copy()

    @property
    def resolution(self) -> Resolution | None:
        """How small a difference the machine can detect, or ``None`` if this was not requested."""
        return self._resolution

    def _document(self) -> Document:
        return system_document(self._checks, self._resolution)


def check_table(facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per check, always in the same order, as described in `SystemCheck.checks`."""
    rows = []
    for check in CHECKS:
        finding = judged(check.judge, SystemFacts(facts))
        how = finding.how or check.how
        rows.append((check.name, finding.found, check.expected, finding.verdict, check.why, how))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(TEXT)


def system_check(
    data: str | os.PathLike[str] = ".",
    *,
    resolution: bool | Callable[[], Any] = False,
    budget_s: float = 10.0,
) -> SystemCheck:
    """Check the machine for problems that slow down steps or make timings unsteady, without changing anything.

    The checks cover the CPU governor, frequency and heat; NUMA; how the number of torch's threads compares with the
    cores and the cgroup's limit; memory, swap, huge pages and shared memory; the disk that holds the data; the builds
    of Python and torch; and for NVIDIA GPUs, the driver, persistence, power cap, throttling, ECC and PCIe link.

    The expectations are rules of thumb, and each of them is displayed with its reason. If a fact cannot be read, perfnb
    reports this rather than guessing. On macOS, many of these facts cannot be read. Windows is not supported.

    Parameters
    ----------
    data : path
        The file or folder that the loader reads. At most 32 MiB of its files are read, for at most a second. If the
        files are too small or in the page cache, 8 MiB are written to a temporary file in the same place, read and
        deleted.
    resolution : bool or callable
        If ``True``, perfnb also compares a training step with itself, to find out how small a difference can be
        detected on this machine. The step trains a small model and takes a few milliseconds. To use a different step,
        pass it instead of ``True``.
    budget_s : float
        How many seconds this comparison may take.

    Returns
    -------
    SystemCheck

    Raises
    ------
    FileNotFoundError
        If `data` does not exist.
    TypeError, ValueError
        If `resolution` is neither a flag nor a step, or if the budget is invalid.
    """
    from perfnb.step.checks import require_steps
    from perfnb.system.read import read_system

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    given: Any = resolution
    if callable(given):
        require_steps({"resolution": given}, None, "")
    elif not isinstance(given, bool):
        raise TypeError(f"resolution must be True, False or a step, not {shown(resolution)}.")
    path = os.fsdecode(data)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no {shown(path)}: pass the file or folder that the loader reads.")
    checks = check_table(read_system(path))
    if resolution is False:
        return SystemCheck(checks)
    return SystemCheck(checks, find_resolution(given if callable(given) else None, budget_s))
