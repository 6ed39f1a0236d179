"""Marks the cells of a notebook in a watch, by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.shell import running_shell


class CellMarks:
    """Calls back when a cell begins and when it has ended; does nothing outside IPython.

    Parameters
    ----------
    begins : callable
        Given what a cell is called (``cell 5``), returns something to end it by.
    ends : callable
        Given that.
    """

    def __init__(self, begins: Callable[[str], Any], ends: Callable[[Any], None]) -> None:
        self._begins, self._ends = begins, ends
        self._shell: Any = None
        self._open: list[Any] = []  # cells may run cells
        self._ahead = 0

    def start(self) -> None:
        """Mark the cell that runs now, and those after it."""
        self._shell = running_shell()
        if self._shell is None:
            return
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        running = self._shell.displayhook.exec_result
        if running is not None:  # a cell runs
            # Newer versions of IPython count a cell before it runs, older ones after.
            self._ahead = self._shell.execution_count - (running.execution_count or self._shell.execution_count)
            self._before()

    def stop(self) -> None:
        """Mark no more cells."""
        shell, self._shell = self._shell, None
        if shell is not None:
            for event, callback in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
                if callback in shell.events.callbacks[event]:
                    shell.events.unregister(event, callback)

    def _before(self, info: Any = None) -> None:
        self._open.append(self._begins(f"cell {self._shell.execution_count - self._ahead}"))

    def _after(self, result: Any = None) -> None:
        if self._open:
            self._ends(self._open.pop())
