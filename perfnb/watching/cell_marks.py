"""Marks the cells of a notebook in a watch, by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.shell import running_shell


class CellMarks:
    """Calls `starts` with the name of a cell (``cell 5``), and `ends` with what that returned; only in IPython."""

    def __init__(self, starts: Callable[[str], Any], ends: Callable[[Any], None]) -> None:
        self._starts, self._ends = starts, ends
        self._shell: Any = None
        self._open: list[Any] = []  # cells may run cells
        self._ahead = 0

    def start(self) -> None:
        """Mark the cell that is running, and those after it."""
        self._shell = running_shell()
        if self._shell is None:
            return
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        running = self._shell.displayhook.exec_result
        if running is not None:  # a cell is running
            # Newer versions of IPython count a cell before it runs, older ones afterwards.
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
        self._open.append(self._starts(f"cell {self._shell.execution_count - self._ahead}"))

    def _after(self, result: Any = None) -> None:
        if self._open:
            self._ends(self._open.pop())
