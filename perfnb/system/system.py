"""`system_check`: is this machine set up to compute fast, and to be measured?"""

from __future__ import annotations

import os

import pandas as pd

from perfnb.arguments import shown
from perfnb.draw.shown import Shown
from perfnb.system.checks import check_table
from perfnb.system.view import system_html, system_line, system_text


class SystemCheck(Shown):
    """Checks of the machine. Shows itself in a notebook, what asks for attention first."""

    def __init__(self, checks: pd.DataFrame) -> None:
        self._checks = checks

    @property
    def checks(self) -> pd.DataFrame:
        """A row a check, all text: ``check``, ``found``, ``expected``, ``verdict``, ``why``, ``how``.

        ``verdict`` is "ok", "attention" (it may cost speed, or make timings unsteady), "info" (neither good nor bad by
        itself) or "unknown" (it could not be read, and ``found`` says why).
        """
        return self._checks.copy()

    def _text(self) -> str:
        return system_text(self._checks)

    def _line(self) -> str:
        return system_line(self._checks)

    def _html(self) -> str:
        return system_html(self._checks)


def system_check(data: str | os.PathLike[str] = ".") -> SystemCheck:
    """Look at what of the machine bears on the speed of a step, and on how well it can be measured. Changes nothing.

    CPU governor, frequency and heat, hyper-threading, NUMA, torch's threads against cores and the cgroup's limit,
    memory and swap, huge pages, the disk of the data with its scheduler, shared memory, the builds of Python and torch,
    the allocator; of NVIDIA's GPUs driver, persistence, power cap, throttling, ECC and PCIe link.

    What is expected are rules of thumb, each with its reason. What cannot be read is said and not guessed. On macOS
    much of this does not exist or cannot be read; Windows is not supported.

    Parameters
    ----------
    data : path
        The file or folder that the loader reads. For at most a second, at most 32 MiB of the files that lie there are
        read. Where these are too small to tell, or lie in the system's cache, 8 MiB are written there to a temporary
        file, read, and gone.

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
        raise FileNotFoundError(f"there is no {shown(path)}: give the file or folder that the loader reads.")
    return SystemCheck(check_table(read_system(path)))
