"""`try_levers`: apply each remedy to an unmodified step, measure it, check its results, and put everything back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.draw.progress import Line, Progress
from perfnb.draw.shown import Page, Shown
from perfnb.draw.step_output import StepOutput
from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.profile.timing import Timing
from perfnb.remedies.ladder import (
    Values,
    compare_levers,
    in_order,
    keepable,
    pays_after,
    steps_to_confirm,
    steps_to_try,
)
from perfnb.remedies.view import trials_html, trials_line, trials_page, trials_text

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

#: Shares of the budget for the short profile that finds what to try, and for confirming.
_PROFILE_SHARE, _CONFIRM_SHARE = 0.15, 0.2
_NO_REASON = "no finding gives reason to try it; name it in levers="


@dataclass
class Trial:
    """One lever that was tried, or why it was not."""

    lever: str
    verdict: str  # of its time: faster, slower, same, inconclusive; or "not tried"
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    saves_ms: float | None = None
    values: Values = field(default_factory=lambda: Values("not checked"))
    setup_s: float | None = None
    why_not: str = ""
    code: list[str] = field(default_factory=list)
    bound_ms: float | None = None  # the most that the finding it answers said it could save
    times_ms: tuple[float, ...] = ()  # of the step with the lever on, a value per round


@dataclass
class Confirmed:
    """The levers to keep, all on at once, measured again on fresh pairs."""

    levers: tuple[str, ...]
    verdict: str
    ratio: float
    ratio_ci: tuple[float, float] | None
    saves_ms: float


class LeverTrials(Page, Shown):
    """What each lever does to a step's time and results. Shows itself in a notebook."""

    def __init__(
        self, trials: Sequence[Trial], confirmed: Confirmed | None, step_ms: float, name: str, rounds: int
    ) -> None:
        self._trials, self._confirmed, self._name = list(trials), confirmed, name
        self._step_ms, self._rounds = step_ms, rounds

    @property
    def table(self) -> pd.DataFrame:
        """A row per lever.

        ``verdict``, ``ratio`` to the step as it is, its simultaneous 95 % interval ``ratio_low`` to ``ratio_high``,
        ``saves_ms``, ``values`` (exact, within noise, reduced precision, different, not checked), ``error`` (largest
        distance from float64, relative), ``setup_s``, ``pays_after_steps``, ``bound_ms`` (what the finding that it
        answers said at most), ``why_not`` (why it was not tried, or should not be kept) and ``code``.
        """
        rows = [
            {
                "lever": one.lever,
                "verdict": one.verdict,
                "ratio": one.ratio,
                "ratio_low": one.ratio_ci[0] if one.ratio_ci else None,
                "ratio_high": one.ratio_ci[1] if one.ratio_ci else None,
                "saves_ms": one.saves_ms,
                "values": one.values.verdict,
                "error": one.values.error,
                "setup_s": one.setup_s,
                "pays_after_steps": pays_after(one.setup_s, one.saves_ms if one.verdict == "faster" else None),
                "bound_ms": one.bound_ms,
                "why_not": one.why_not,
                "code": "\n".join(one.code),
            }
            for one in self._trials
        ]
        numbers = ["ratio", "ratio_low", "ratio_high", "saves_ms", "error", "setup_s", "bound_ms"]
        table = pd.DataFrame(rows).set_index("lever")
        return table.astype(dict.fromkeys(numbers, "Float64") | {"pays_after_steps": "Int64"})

    @property
    def best(self) -> tuple[str, ...]:
        """The levers to keep, confirmed together on fresh pairs; empty if nothing helped."""
        return () if self._confirmed is None else self._confirmed.levers

    @property
    def code(self) -> str:
        """The lines that keep them."""
        return "\n".join(line for one in self._trials if one.lever in self.best for line in one.code)

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """What `Journal.add` writes: step times with each lever on, its name, and whether it is kept."""
        for one in self._trials:
            if one.times_ms:
                yield Timing(one.times_ms, None), f"lever {one.lever}", one.lever in self.best

    def _line(self) -> str:
        return trials_line(self)

    def _text(self) -> str:
        return trials_text(self)

    def _html(self) -> str:
        return trials_html(self)

    def _page(self) -> str:
        return trials_page(self)


def levers() -> pd.DataFrame:
    """All levers that `try_levers` knows: what each does, and the bottleneck that it answers."""
    from perfnb.remedies.levers import LEVERS

    rows = [(lever.name, lever.words, ", ".join(lever.answers)) for lever in LEVERS]
    return pd.DataFrame(rows, columns=["lever", "what it does", "answers"]).set_index("lever")


def try_levers(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    loader: DataLoader[Any] | None = None,
    levers: str | Sequence[str] = "auto",
    budget_s: float = 120.0,
    quality: Callable[[], Any] | None = None,
    limits: Callable[[Any], bool] | None = None,
    confirm: bool = True,
) -> LeverTrials:
    """Try what could make a step faster, one lever after the other, and say which are worth keeping.

    Each lever is switched on and off between single steps, in random order, so that both run under the same conditions.
    Its results (outputs, gradients, parameters after the step) are compared with the same step in float64: a lever may
    be at most three times as far from it as your own step. Nothing stays changed: parameters, buffers, gradients,
    optimizer state, random numbers and global switches are put back, and checked.

    Parameters
    ----------
    step, batches
        As for `profile_step`. The step should do the same work each time.
    model, optimizer, loader : optional
        What the levers act on. By default what the step uses, found through its variables.
    levers : str or list of str
        ``"auto"`` tries those that a short profile gives reason for, the largest bound first, then what costs little to
        try; a list tries just those (`perfnb.levers` lists all).
    budget_s : float
        Seconds that all steps together may take, compiling not counted.
    quality : callable, optional
        Measures what must not suffer, with a lever on: ``quality()``.
    limits : callable, optional
        Says whether that value is still good enough; needed with `quality`.
    confirm : bool
        Measure the levers to keep again, all at once, on fresh pairs.

    Returns
    -------
    LeverTrials

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    CaptureError
        If the step uses nothing that a lever acts on, or if something could not be put back.
    Exception
        Whatever the step raises without any lever, after everything has been put back.
    """
    from perfnb.step.given import require_steps
    from perfnb.step.namespace import chosen_models, namespace_of

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"step": step}, batches, "try_levers(step, loader)")
    chosen, names = chosen_models(model)
    if limits is not None and quality is None:
        raise TypeError("limits needs quality: limits says whether the value of quality() is good enough.")
    if quality is not None and limits is None:
        raise TypeError("quality needs limits, which says whether the value of quality() is good enough.")
    return run_trials(
        step,
        batches,
        namespace={**namespace_of(step), **names},
        models=chosen,
        optimizer=optimizer,
        loader=loader,
        wanted=levers,
        budget_s=float(budget_s),
        quality=None if quality is None or limits is None else (lambda: bool(limits(quality()))),
        confirm=confirm,
        name=str(getattr(step, "__name__", "step")),
    )


def run_trials(
    step: Callable[..., Any],
    batches: Any,
    *,
    namespace: Mapping[str, Any],
    models: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    wanted: str | Sequence[str] = "auto",
    budget_s: float = 120.0,
    quality: Callable[[], bool] | None = None,
    confirm: bool = True,
    name: str = "step",
    quiet: bool = False,
    line: Line | None = None,
) -> LeverTrials:
    """`try_levers` for a step whose variables are known; what its magic and *Try it* call; `line` shows progress."""
    from perfnb.remedies.levers import by_name
    from perfnb.remedies.state import untouched
    from perfnb.remedies.subject import find_subject, require_models
    from perfnb.remedies.trial import step_seconds

    __tracebackhide__ = True
    known = by_name()
    listed = [] if isinstance(wanted, str) else list(wanted)
    if wanted != "auto" and (not listed or any(each not in known for each in listed)):
        raise ValueError(f'levers must be "auto" or a list of these: {", ".join(known)}; not {shown(wanted)}.')
    begin = time.perf_counter()
    with StepOutput(), Progress(not quiet, line=line) as progress, InterruptGate() as gate:
        subject = find_subject(step, batches, namespace, models=models, optimizer=optimizer, loader=loader, gate=gate)
        require_models(subject)
        with untouched(subject):
            step_s = step_seconds(subject)
            bounds = {} if listed else _bounds(subject, namespace, _PROFILE_SHARE * budget_s)
            runner = _Runner(subject, step_s, budget_s - (time.perf_counter() - begin), progress, quality, listed)
            names = listed or _auto(known, bounds)
            trials, confirmed, rounds = runner.run(names, bounds, confirm)
            for each in [] if listed else [each for each in known if each not in names]:
                trials.append(Trial(each, "not tried", why_not=known[each].refuses(subject) or _NO_REASON))
    return LeverTrials(trials, confirmed, step_s * 1e3, name, rounds)


def _bounds(subject: Any, namespace: Mapping[str, Any], budget_s: float) -> dict[str, float]:
    """The most that removing each bottleneck could save, in milliseconds, by a short profile."""
    from perfnb.profile.profiling import run_profile
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened():
        plan = Plan(budget_s=max(2.0, budget_s), memory=False)
        profile = run_profile(subject.step, subject.batches, plan=plan, models=None, namespace=namespace, quiet=True)
    found = profile.findings
    return dict(zip(found["bottleneck"], found["bound_ms"].fillna(0.0).astype(float), strict=True))


def _auto(known: Iterable[str], bounds: Mapping[str, float]) -> list[str]:
    from perfnb.remedies.levers import by_name

    levers = by_name()
    answers = {name: lever.answers for name, lever in levers.items()}
    names = [name for name in known if not levers[name].costly or any(each in bounds for each in answers[name])]
    return in_order(names, answers, bounds)


class _Runner:
    """Tries levers within a budget."""

    def __init__(
        self,
        subject: Any,
        step_s: float,
        budget_s: float,
        progress: Any,
        quality: Callable[[], bool] | None,
        listed: Sequence[str],
    ) -> None:
        self.subject, self.step_s, self.progress = subject, step_s, progress
        self.quality, self.listed = quality, listed
        self.until = time.perf_counter() + budget_s
        self.budget_s = budget_s
        self.stack = ExitStack()

    def run(
        self, names: Sequence[str], bounds: Mapping[str, float], confirm: bool
    ) -> tuple[list[Trial], Confirmed | None, int]:
        """Prepare, check, time and confirm."""
        from perfnb.remedies.levers import by_name
        from perfnb.remedies.trial import check, prepared, sensible, time_blocks, time_switches
        from perfnb.remedies.values import measure_yardstick

        __tracebackhide__ = True
        known = by_name()
        trials: dict[str, Trial] = {}
        ready: list[Any] = []
        for name in names:
            bound = max((bounds[each] for each in known[name].answers if each in bounds), default=None)
            trials[name] = Trial(name, "not tried", why_not=known[name].refuses(self.subject), bound_ms=bound)
        possible = [name for name in names if not trials[name].why_not]
        within = sensible(possible, self.step_s, self.budget_s)
        for name in possible:
            if name not in within:
                trials[name].why_not = "no time within the budget: raise budget_s, or name fewer levers"
        rounds = 0
        with self.stack:
            yardstick = measure_yardstick(self.subject)
            for name in within:
                self.progress(f"prepare {name}", 0, None)
                try:
                    one = self.stack.enter_context(prepared(known[name], self.subject, self.step_s))
                    trials[name].values = check(one, self.subject, yardstick)
                except Exception as error:  # with this lever the step fails; without it, it runs
                    trials[name].why_not = _failed("the step fails with it", error)
                    continue
                self.until += one.setup_s  # compiling is announced, and not taken from the others
                trials[name].setup_s = one.setup_s
                trials[name].code = known[name].code(self.subject)
                passes = self._quality(one.switch)
                trials[name].why_not = keepable(trials[name].values, name in self.listed, passes)
                ready.append(one)
            groups = [[one for one in ready if not one.lever.timed_alone]]
            groups += [[one] for one in ready if one.lever.timed_alone]
            groups = [group for group in groups if group]
            left = max(0.0, self.until - time.perf_counter())
            share = (left - self._to_confirm(left, confirm)) / max(1, len(groups))
            times, tried = [], []
            for group in groups:
                first = group[0].lever
                timed = first.timed or (time_blocks if first.in_blocks else time_switches)
                try:
                    times.append(timed(self.subject, [one.switch for one in group], share, self.progress, "trial"))
                except CaptureError as error:
                    if first.timed is None:
                        raise
                    trials[first.name].why_not = str(error)
                    continue
                tried += group
                rounds = max(rounds, times[-1].shape[1])
            _note(times, [trials[one.lever.name] for one in tried])
            confirmed = self._confirm(ready, trials) if confirm else None
        return list(trials.values()), confirmed, rounds

    def _to_confirm(self, left_s: float, confirm: bool) -> float:
        """Seconds to keep for confirming; none if so few are left that not even one lever could be judged."""
        needed = steps_to_confirm() * self.step_s
        if not confirm or (steps_to_try(1) + steps_to_confirm()) * self.step_s > self.budget_s:
            return 0.0
        return min(left_s, max(_CONFIRM_SHARE * left_s, needed))

    def _quality(self, switch: Any) -> bool | None:
        if self.quality is None:
            return None
        with self.subject.restored(), switch(), self.subject.gate.opened():
            return bool(self.quality())

    def _confirm(self, ready: Sequence[Any], trials: Mapping[str, Trial]) -> Confirmed | None:
        """Put together what is proven, the largest gain first, and measure it again on fresh pairs."""
        import numpy as np

        from perfnb.bench.design import SEED
        from perfnb.remedies.trial import all_on, time_blocks, time_switches

        __tracebackhide__ = True
        good = [
            one for one in ready if trials[one.lever.name].verdict == "faster" and not trials[one.lever.name].why_not
        ]
        good.sort(key=lambda one: trials[one.lever.name].ratio or 1.0)
        kept: list[Any] = []
        last: Confirmed | None = None
        for number, one in enumerate(good):
            if one.lever.timed or (one.lever.family and one.lever.family in {each.lever.family for each in kept}):
                continue
            combination = [*kept, one]
            switches = [all_on([each.switch for each in combination])]
            if kept:
                switches.append(all_on([each.switch for each in kept]))
            left = max(0.0, self.until - time.perf_counter())
            left = max(left / (len(good) - number), min(left, steps_to_confirm() * self.step_s))
            timed = time_blocks if any(each.lever.in_blocks for each in combination) else time_switches
            try:
                times = timed(self.subject, switches, left, self.progress, "confirm", seed=SEED + 17 + number)
            except Exception:  # the two do not go together
                continue
            now = compare_levers(times)[0]
            better = not kept or compare_levers(times[[2, 1]])[0].verdict == "faster"
            if now.verdict == "faster" and better:
                kept = combination
                saves = float(np.median(times[0])) * (1 - now.ratio)
                names = tuple(each.lever.name for each in kept)
                last = Confirmed(names, now.verdict, now.ratio, now.ratio_ci, saves)
        return last


def _note(groups: Sequence[Any], trials: Sequence[Trial]) -> None:
    """Note what times say of each trial, whose rows follow that of the step as it is."""
    import numpy as np

    pairs = [(float(np.median(times[0])), row) for times in groups for row in times[1:]]
    for trial, (base, row), found in zip(trials, pairs, compare_levers(*groups), strict=True):
        trial.verdict, trial.ratio, trial.ratio_ci = found.verdict, found.ratio, found.ratio_ci
        trial.saves_ms, trial.times_ms = base * (1 - found.ratio), tuple(row.tolist())


def _failed(what: str, error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{what}: {words[:200]}"
