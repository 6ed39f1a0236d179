"""Define the common base of both callbacks: their options, their results, and the start and end of training."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.arguments import require_seconds, shown
from perfnb.draw import escape
from perfnb.integrations.trainer_levers import TrainerStep, say, tried_facts, try_on
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.kept_run import KeptRun
from perfnb.loop.loop_steps import LoopSteps
from perfnb.loop.run import RunSummary, summarise
from perfnb.profile.trackers import log_at_once, open_runs, require_log
from perfnb.remedies.try_levers import LeverRequest

if TYPE_CHECKING:
    from perfnb.profile.profile import Profile
    from perfnb.remedies.try_levers import LeverTrials


#: Number of steps whose batches are kept for trying levers.
_SEEN = 4


class TrainerProfiler:
    """Profile a few steps in the middle of training.

    Subclasses report the trainer's actions to their `LoopSteps`. A step ends when the next step starts, which means
    that logging is part of its phase *other*. If a validation or a checkpoint comes first, it also ends the step.
    """

    def __init__(
        self,
        at: int | Iterable[int] = 100,
        every: int | None = None,
        save: str | Path | None = None,
        on_done: Callable[[Profile], Any] | None = None,
        try_levers: bool | str | Iterable[str] = False,
        levers_budget_s: float = 50.0,
        log: Any = False,
        **options: Any,
    ) -> None:
        """Plan the windows, and the trial after the first window.

        Parameters
        ----------
        at : int or list of int
            Number of steps before each window.
        every : int, optional
            Profile again after this many steps.
        save : str or Path, optional
            Folder for the profiles. If there are several ranks, each of them saves its own profile, and `perfnb.load`
            returns the `Ranks` of a window.
        on_done : callable, optional
            A function that is called with each `Profile`.
        try_levers : bool, str or list of str
            Whether to try levers on the trainer's own step after the first window, or which ones. With ``True``, perfnb
            tries the levers that the profile suggests. Everything is then restored, and training continues as if
            nothing had happened. See `perfnb.try_levers`.
        levers_budget_s : float
            The time limit for trying levers in seconds, which is kept to within 20 %.
        log : bool or object
            Log each profile and the whole run to all open tracker runs (``True``), or to the given tracker run; see
            `perfnb.Profile.log_to`.
        **options
            As in `perfnb.profiled`.
        """
        super().__init__()
        require_log(log)
        if unknown := sorted(options.keys() - signature(LoopProfiler).parameters.keys()):
            raise TypeError(
                f"ProfileCallback has no option {shown(unknown[0])}; it accepts the options of perfnb.profiled, and "
                "try_levers, levers_budget_s and log."
            )
        at = at if isinstance(at, int) else tuple(at)
        self._options: dict[str, Any] = {"at": at, "every": every, "save": save, "on_done": on_done, **options}
        #: The levers to try, or ``False`` for none, and the time limit in seconds.
        self._levers = _levers(try_levers), levers_budget_s
        require_seconds("levers_budget_s", levers_budget_s)
        #: The tracker run to log to, ``True`` for all open runs, or ``False`` for none.
        self._log = log
        self._installed = ExitStack()
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for strategies that start processes."""
        levers, budget_s = self._levers
        return {**self._options, "try_levers": levers, "levers_budget_s": budget_s, "log": self._log}

    def __setstate__(self, options: dict[str, Any]) -> None:
        self.__init__(**options)  # type: ignore[misc]

    @property
    def profiles(self) -> Sequence[Profile]:
        """The profiles from the last training run, in the order of their steps."""
        return self._steps.driver.profiles

    @property
    def run(self) -> RunSummary | None:
        """The whole last training run with all its steps, profiled or not; ``None`` before the first step has ended."""
        return summarise(self._steps.driver.recorder)

    @property
    def levers(self) -> LeverTrials | None:
        """The levers that were tried after the first window of the last training run; ``None`` if none were."""
        return self._tried

    def _prepare(self, *, optimizers_end_steps: bool = True, **own: Any) -> None:
        """Prepare for training; `own` contains the trainer's options, which the user may override."""
        self._tried: LeverTrials | None = None
        self._to_try = self._levers[0] is not False
        self._seen: deque[list[Any]] = deque(maxlen=_SEEN)
        logs = {} if self._log is False else {"on_done": self._profiled}
        driver = LoopProfiler(**{"name": "training", **own, **self._options, **logs})
        self._steps = LoopSteps(driver, optimizers_end_steps=optimizers_end_steps)
        # The trainer's own output is enough, unless there is something to find.
        self._kept_run = KeptRun(driver, asked=True)

    def _ask(self) -> None:
        """Record that the trainer requests a batch."""
        if not self._kept_run.begun:
            self._kept_run.begin()
        if self._to_try:
            self._steps.end_if_over()
            if self._steps.driver.profiles:
                self._try()
        self._steps.ask()

    def _has(self, batches: list[Any]) -> None:
        """Record the batches of a trainer's step. The last batches of a window are kept for trying levers."""
        if self._to_try and self._steps.driver.is_open:
            self._seen.append(batches)

    def _profiled(self, profile: Profile) -> None:
        """Record that a window has ended."""
        self._log_result(profile, profile.meta["loop"]["step"])
        if self._options["on_done"] is not None:
            self._options["on_done"](profile)

    def _log_result(self, result: Profile | RunSummary | None, step: int | None = None) -> None:
        """Log a result if requested, and report the parts that could not be logged."""
        if self._log is not False and result is not None:
            for note in log_at_once([(result, step)], open_runs() if self._log is True else [self._log]):
                print(f"perfnb: {note}", file=sys.stderr)

    def _refuse_levers(self, reason: str) -> None:
        """If levers were requested, warn that they cannot be tried on this training run."""
        if self._to_try:
            self._to_try = False
            warnings.warn(f"perfnb: no levers will be tried: {reason}.", RuntimeWarning, stacklevel=3)

    def _step(self) -> TrainerStep:
        """Return the trainer's step for trying levers."""
        raise NotImplementedError

    def _try(self) -> None:
        """Try levers between two steps."""
        self._to_try, driver, step = False, self._steps.driver, self._step()
        try:
            tried = try_on(step, driver.profiles[0], *self._levers, driver.recorder.name)
        finally:
            self._seen.clear()
            driver.recorder.paused()
        if isinstance(tried, str):
            words = f"perfnb: no levers were tried: {escape.plain(tried, 300)}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
            return
        self._tried, driver.recorder.tried = tried, tried_facts(tried, step.left)
        say(escape.plain(f"perfnb: {tried._document().verdict.sentence}", 500))

    def _finish(self) -> None:
        """Record that training has ended as planned, and warn if this was too early for a profile."""
        self._steps.pause()
        driver = self._steps.driver
        driver.close()
        self._log_result(self.run)
        if not driver.profiles and driver.planned_at is not None:
            warnings.warn(
                f"perfnb: no profile was made: the training {driver.why_no_profile('a validation or its end')}. Fewer "
                "steps are needed with smaller at=, steps= and traced=, and without memory= and flops=.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _remove(self) -> None:
        """Remove everything after training, however it ended."""
        try:
            self._steps.driver.close()
            if self._kept_run.begun:
                self._kept_run.end(for_good=True)
        finally:
            self._installed.close()


def _levers(wanted: Any) -> Any:
    """Return the levers to try: ``"auto"``, a list of names, or ``False`` for none.

    Raises
    ------
    TypeError, ValueError
        For an unknown lever.
    """
    if wanted is False:
        return False
    if not isinstance(wanted, Iterable) and wanted is not True:
        raise TypeError(f"try_levers must be True, False or a list of levers, not {shown(wanted)}.")
    levers = "auto" if wanted is True else wanted if isinstance(wanted, str) else list(wanted)
    LeverRequest(levers)
    return levers
