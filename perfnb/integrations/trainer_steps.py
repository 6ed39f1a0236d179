"""The steps of a trainer: from where it asks for a step's first batch to where it asks for the next step's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.arguments import shown
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.kept_run import KeptRun
from perfnb.loop.record import RunRecorder
from perfnb.loop.run import RunSummary, summarise

if TYPE_CHECKING:
    from perfnb.profile.profile import Profile


class TrainerSteps:
    """Tells a `LoopProfiler` the steps of a trainer, of which each may take several batches.

    A step ends where the next one starts, so that logging is in its phase *other*; validation and checkpoints, which
    come before that, end it too.

    Parameters
    ----------
    at, every, save, on_done, options
        As `LoopProfiler` takes them.
    """

    def __init__(
        self,
        at: int | Iterable[int],
        every: int | None,
        save: str | Path | None,
        on_done: Callable[[Profile], Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        if unknown := sorted(options.keys() - signature(LoopProfiler).parameters.keys()):
            raise TypeError(f"ProfileCallback has no option {shown(unknown[0])}; it takes those of perfnb.profiled.")
        self._recorder = RunRecorder(str(options.get("name", "training")))
        self.driver = LoopProfiler(at, every, save, on_done, **options, recorder=self._recorder)
        self._kept_run = KeptRun(self._recorder, self.driver.profiles, save)
        self._kept_run.asked = True  # a trainer's own output is enough, unless there is something to find
        self._first = at if isinstance(at, int) else min(at)
        #: Of the open step: whether it has begun, has trained on a batch, and its optimizer has stepped.
        self._begun = self._batches = self._stepped = False
        #: Whether it is known that optimizers end steps.
        self._accumulates = False
        #: Whether a step was given up of which more batches are to come.
        self._given_up = False

    @property
    def run(self) -> RunSummary | None:
        """All steps so far; ``None`` before the first has ended."""
        return summarise(self._recorder)

    def fetches(self) -> None:
        """The trainer asks for a batch."""
        if not self._kept_run.begun:
            self._kept_run.begin()
        if self._stepped:
            self._end()
        if not self._given_up:
            self.driver.wait()

    def fetched(self) -> None:
        """The trainer has its batch, or there is none left."""
        if not self._given_up:
            self.driver.begin()
            self._begun = True

    def takes(self, batch: Any) -> None:
        """The open step trains on a batch."""
        self._batches = True
        if not self._given_up:
            self.driver.begin(batch)

    def stepped(self) -> None:
        """The optimizer has stepped: the next batch is that of the next step."""
        self._stepped, self._accumulates, self.driver.by_batch = True, True, False

    def used_a_batch(self) -> None:
        """Nobody knows whether an optimizer has stepped: a step has ended, unless optimizers are known to end steps."""
        if not self._accumulates:
            self._stepped, self.driver.by_batch = True, True

    def pauses(self) -> None:
        """Something that is no step comes before the next batch: a checkpoint, or the end of an epoch."""
        if self._stepped:
            self._end()
        elif self._begun and not self._batches:
            self.driver.skip()
            self._begun = False

    def validates(self) -> None:
        """The trainer runs its model for something else than training."""
        self.pauses()
        self.driver.close()
        self._given_up = self._begun

    def finish(self) -> None:
        """The training has ended as planned: say so if that was too early for a profile."""
        self.pauses()
        driver = self.driver
        driver.close()
        if not driver.profiles:
            done, first, length = driver.done, self._first, driver.length
            if done < first + length:
                why = f"the training had {done:,} steps, and a window of {length} steps at step {first:,} needs more"
            else:
                why = f"no window of {length} steps fits before a validation or the end of the training"
            warnings.warn(
                f"perfnb: no profile was made, because {why}. Fewer are needed with smaller steps= and traced=, and "
                "without memory= and flops=.",
                RuntimeWarning,
                stacklevel=3,
            )

    def close(self) -> None:
        """The training is over, however it ended."""
        self.driver.close()
        if self._kept_run.begun:
            self._kept_run.end(for_good=True)

    def _end(self) -> None:
        if not self._given_up:
            self.driver.end()
        self._begun = self._batches = self._stepped = self._given_up = False
