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
from perfnb.files import usable
from perfnb.loop.kept import KeptProfiles
from perfnb.loop.record import RunRecorder
from perfnb.loop.run import RUN_FOLDER, RunSummary, summarise
from perfnb.recording.job import place_of_rank, tell_of_ranks
from perfnb.shell import in_notebook

#: What saving takes at most while the process goes on, as a share of the time since it was last done; seconds that it
#: is expected to take.
_SHARE, _EXPECTED_S = 0.005, 0.1


class KeptRun:
    """The run of a loop: saved where its profiles are, and told of at the end of the process.

    Of several loops only the last one is told of, and the ones that have not ended.

    Parameters
    ----------
    recorder : RunRecorder
    profiles : KeptProfiles
    save : str or Path, optional
        As for `profiled`.
    """

    def __init__(self, recorder: RunRecorder, profiles: KeptProfiles, save: str | Path | None) -> None:
        self._recorder, self._profiles = recorder, profiles
        self._given = save
        self._folder = None if save is None else usable(save).absolute()
        self._process, self._cost_s, self._saved_s = os.getpid(), _EXPECTED_S, time.monotonic()
        #: Whether the loop is going on, and whether it has ended, perhaps for a while.
        self.begun = self._ended = False
        #: Whether somebody has asked for the run or its profiles: then they need not be told of it.
        self.asked = False

    def begin(self) -> None:
        """The loop starts, or goes on with the next epoch: the end of the process will find it."""
        atexit.unregister(_tell_all)
        atexit.register(_tell_all)
        for other in [one for one in _to_tell if one._ended and one is not self]:
            _to_tell.remove(other)
            if other._folder != self._folder:
                with suppress(Exception):
                    other._saved()
        if self not in _to_tell:
            _to_tell.append(self)
        self.begun, self._ended = True, False

    def end(self, *, for_good: bool = False) -> None:
        """The loop has ended, perhaps until the next epoch: then it is only saved if that is worth the time."""
        self.begun, self._ended = False, True
        begin = time.monotonic()
        due = for_good or in_notebook() or self._cost_s <= _SHARE * (begin - self._saved_s)
        if self._folder is None or not due:
            return
        with suppress(Exception):  # the end of the process tries again, and says why it failed
            self._saved()
        self._saved_s = time.monotonic()
        self._cost_s = self._saved_s - begin

    def _saved(self) -> RunSummary | None:
        run = summarise(self._recorder)
        if run is not None and self._folder is not None and os.getpid() == self._process:
            keep_run(run, self._folder)
        return run

    def _tell(self) -> None:
        if os.getpid() != self._process:
            return  # forked from it
        try:
            run = self._saved()
            if run is None or in_notebook() or run._figures.rank:
                return
            if self._folder is None and (self.asked or not self._profiles):
                return
            if self._folder is None:  # it is gone with the process
                text = f"{run._text()}\n\nperfnb: {self._where()}"
            else:
                text = f"perfnb: {escape.plain(f'{run._line()}. {self._where()}', 500)}"
        except Exception as error:
            text = f"perfnb: {escape.plain(f'the run was not saved: {type(error).__name__}: {error}', 500)}"
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
            print(text, file=sys.stderr, flush=True)

    def _where(self) -> str:
        number = len(self._profiles)
        what = "The run" + (f" and {number:,} profile{'s' * (number != 1)}" if number else "")
        if self._folder is None:
            return f"{what} {'were' if number else 'was'} not saved; save= would."
        return f"{what}: perfnb show {shlex.quote(str(self._given))}"


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
    rank, ranks = run._figures.rank, run._figures.ranks
    meta = {} if rank is None else {"job": {"rank": rank, "world_size": ranks}}
    path = run.save(place_of_rank(folder / RUN_FOLDER, meta))
    tell_of_ranks(folder / RUN_FOLDER, meta)
    return path
