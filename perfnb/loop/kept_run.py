"""A run that is saved beside its profiles and told of in one line when the process ends; otherwise shown then."""

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

#: Seconds between two times that the run is saved while the process continues: saving takes a tenth of one or so.
_BETWEEN_S = 30.0


class KeptRun:
    """The run of a loop: saved where its profiles are, and told of at the end of the process.

    Of several loops only the last one is told of, and the ones that have not ended.

    Parameters
    ----------
    driver : LoopProfiler
        What profiles the loop, and records its run.
    asked : bool
        Whether somebody asks for the run or its profiles: then they need not be told of it.
    """

    def __init__(self, driver: LoopProfiler, *, asked: bool) -> None:
        self._driver, self.asked = driver, asked
        self._folder = driver.profiles.folder
        self._process, self._saved_s = os.getpid(), time.monotonic()
        #: Whether the loop is running, and has not ended, perhaps for a while.
        self.begun = False

    def begin(self) -> None:
        """The loop starts, or goes on with the next epoch: the end of the process will find it."""
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
        """The loop has ended, perhaps until the next epoch: then it is saved now and then."""
        self.begun = False
        self._driver.on_demand.end()
        self._driver.recorder.recorded()  # memory as it is now, not when somebody asks
        due = for_good or in_notebook() or time.monotonic() > self._saved_s + _BETWEEN_S
        if due and self._folder is not None:
            self._saved_s = time.monotonic()
            with suppress(Exception):  # the end of the process tries again, and says why it failed
                self._saved()

    def _saved(self) -> RunSummary | None:
        run = summarise(self._driver.recorder)
        if run is not None and self._folder is not None and os.getpid() == self._process:
            keep_run(run, self._folder)
        return run

    def _tell(self) -> None:
        if os.getpid() != self._process:
            return  # forked from it
        number = len(self._driver.profiles)
        try:
            run = self._saved()
            if run is None or in_notebook() or run.rank:
                return
            what = f"The run and {counted(number, 'profile')}" if number else "The run"
            if self._folder is not None:
                where = f"{what}: perfnb show {shlex.quote(str(self._driver.profiles.given))}"
                text = f"perfnb: {escape.plain(f'{run._line()}. {where}', 500)}"
            elif number and not self.asked:  # it is gone with the process
                text = f"{run._text()}\n\nperfnb: {what} were not saved; save= would."
            else:
                return
        except Exception as error:
            text = f"perfnb: {escape.plain(f'the run was not saved: {type(error).__name__}: {error}', 500)}"
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
            print(text, file=sys.stderr, flush=True)


#: The loops to be told of at the end.
_to_tell: list[KeptRun] = []


def _tell_all() -> None:
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for kept in _to_tell:
        kept._tell()
    if interrupted and not (sys.flags.interactive or hasattr(sys, "ps1") or in_notebook()):
        # Python ends by SIGINT, as shells expect, unless code from text ran since: importing a dataclass does that.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def keep_run(run: RunSummary, folder: Path) -> Path:
    """Save a run beside its profiles: in a folder of its own for each rank, if its job has several.

    Raises
    ------
    RecordingError
        If it cannot be written.
    """
    rank, ranks = run.rank, run.ranks
    meta = {} if rank is None else {"job": {"rank": rank, "world_size": ranks}}
    path = run.save(place_of_rank(folder / RUN_FOLDER, meta))
    tell_of_ranks(folder / RUN_FOLDER, meta)
    return path
