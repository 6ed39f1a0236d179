"""What both callbacks have in common: their options and results, and what begins and ends with a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.arguments import shown
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.kept_run import KeptRun
from perfnb.loop.loop_steps import LoopSteps
from perfnb.loop.run import RunSummary, summarise

if TYPE_CHECKING:
    from perfnb.profile.profile import Profile


class TrainerProfiler:
    """Has a few steps in the middle of a training profiled; a subclass tells its `LoopSteps` what the trainer does.

    A step ends where the next one starts, so that logging is in its phase *other*; validation and checkpoints, which
    come before that, end it too.
    """

    def __init__(
        self,
        at: int | Iterable[int] = 100,
        every: int | None = None,
        save: str | Path | None = None,
        on_done: Callable[[Profile], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if unknown := sorted(options.keys() - signature(LoopProfiler).parameters.keys()):
            raise TypeError(f"ProfileCallback has no option {shown(unknown[0])}; it takes those of perfnb.profiled.")
        at = at if isinstance(at, int) else tuple(at)
        self._options: dict[str, Any] = {"at": at, "every": every, "save": save, "on_done": on_done, **options}
        self._installed = ExitStack()
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return self._options  # for strategies that start processes

    def __setstate__(self, options: dict[str, Any]) -> None:
        self.__init__(**options)  # type: ignore[misc]

    @property
    def profiles(self) -> Sequence[Profile]:
        """The profiles of the last training, in the order of their steps."""
        return self._steps.driver.profiles

    @property
    def run(self) -> RunSummary | None:
        """The whole last training: all its steps, profiled or not; ``None`` before the first has ended."""
        return summarise(self._steps.driver.recorder)

    def _prepare(self, *, optimizers_end_steps: bool = True, **own: Any) -> None:
        """Be ready for a training; `own` are options that the trainer gives and the user may override."""
        driver = LoopProfiler(**{"name": "training", **own, **self._options})
        self._steps = LoopSteps(driver, optimizers_end_steps=optimizers_end_steps)
        # A trainer's own output is enough, unless there is something to find.
        self._kept_run = KeptRun(driver, asked=True)

    def _ask(self) -> None:
        """The trainer asks for a batch."""
        if not self._kept_run.begun:
            self._kept_run.begin()
        self._steps.ask()

    def _finish(self) -> None:
        """The training has ended as planned: warn if that was too early for a profile."""
        self._steps.pause()
        driver = self._steps.driver
        driver.close()
        if not driver.profiles and driver.planned_at is not None:
            warnings.warn(
                f"perfnb: no profile was made: the training {driver.why_no_profile('a validation or its end')}. Fewer "
                "steps are needed with smaller at=, steps= and traced=, and without memory= and flops=.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _remove(self) -> None:
        """The training is over, however it ended."""
        try:
            self._steps.driver.close()
            if self._kept_run.begun:
                self._kept_run.end(for_good=True)
        finally:
            self._installed.close()
