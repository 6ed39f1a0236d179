"""Save a run next to its profiles and report it in one line when the process ends, or show unsaved runs in full."""

from __future__ import annotations

import atexit
import os
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from perfnb.draw import escape
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.run import RUN_FOLDER, RunSummary, summarise
from perfnb.quantities import counted
from perfnb.recording.job import place_of_rank, tell_of_ranks
from perfnb.shell import in_notebook

#: Seconds between two saves of the run while the process continues. A save takes about a tenth of a second.
_BETWEEN_S = 30.0


class KeptRun:
    """A loop's run, which is saved next to its profiles and reported at the end of the process.

    If there are several loops, only the last one and those that have not ended are reported.

    Parameters
    ----------
    driver : LoopProfiler
        The object that profiles the loop and records its run.
    asked : bool
        Whether the run or its profiles have been accessed. If so, no report is needed.
    """

    def __init__(self, driver: LoopProfiler, *, asked: bool) -> None:
        self._driver, self.asked = driver, asked
        self._folder = driver.profiles.folder
        self._process, self._saved_s = os.getpid(), time.monotonic()
        #: Whether the loop has begun and not yet ended. It may be idle for a while.
        self.begun = False

    def begin(self) -> None:
        """Record that the loop starts, or continues with the next epoch.

        From then on, the loop is reported at the end of the process.
        """
        atexit.unregister(_tell_all)
        atexit.register(_tell_all)
        for other in [kept for kept in _to_tell if not kept.begun and kept is not self]:
            _to_tell.remove(other)
            if other._folder != self._folder:
                with suppress(Exception):
                    other._saved()
        if self not in _to_tell:
            _to_tell.append(self)
        self.begun = True
        self._driver.on_demand.begin()

    def end(self, *, for_good: bool = False) -> None:
        """Record that the loop has ended, perhaps only until the next epoch, and save the run from time to time."""
        self.begun = False
        self._driver.on_demand.end()
        self._driver.recorder.recorded()  # reads the memory in use now rather than when the run is accessed
        due = for_good or in_notebook() or time.monotonic() > self._saved_s + _BETWEEN_S
        if due and self._folder is not None:
            self._saved_s = time.monotonic()
            with suppress(Exception):  # the end of the process tries again, and reports the reason if that fails
                self._saved()

    def _saved(self) -> RunSummary | None:
        run = summarise(self._driver.recorder)
        if run is not None and self._folder is not None and os.getpid() == self._process:
            keep_run(run, self._folder)
        return run

    def _tell(self) -> None:
        if os.getpid() != self._process:
            return  # this process was forked from the one with the loop
        number = len(self._driver.profiles)
        try:
            run = self._saved()
            if run is None or in_notebook() or run.rank:
                return
            what = f"The run and {counted(number, 'profile')}" if number else "The run"
            if self._folder is not None:
                where = f"{what}: perfnb show {shlex.quote(str(self._driver.profiles.given))}"
                text = f"perfnb: {escape.plain(f'{run._line()}. {where}', 500)}"
            elif number and not self.asked:  # it disappears with the process
                text = f"{run._text()}\n\nperfnb: {what} were not saved; save= would."
            else:
                return
        except Exception as error:
            text = f"perfnb: {escape.plain(f'the run was not saved: {type(error).__name__}: {error}', 500)}"
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
            print(text, file=sys.stderr, flush=True)


#: The loops to report at the end.
_to_tell: list[KeptRun] = []


def _tell_all() -> None:
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for kept in _to_tell:
        kept._tell()
    if interrupted and not (sys.flags.interactive or hasattr(sys, "ps1") or in_notebook()):
        # Python ends with SIGINT, as shells expect, unless code compiled from text has run in the meantime. Importing a
        # dataclass runs such code.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def keep_run(run: RunSummary, folder: Path) -> Path:
    """Save a run next to its profiles; in a job with several ranks, each rank has its own folder.

    Raises
    ------
    RecordingError
        If the run cannot be written.
    """
    rank, ranks = run.rank, run.ranks
    meta = {} if rank is None else {"job": {"rank": rank, "world_size": ranks}}
    path = run.save(place_of_rank(folder / RUN_FOLDER, meta))
    tell_of_ranks(folder / RUN_FOLDER, meta)
    return path
