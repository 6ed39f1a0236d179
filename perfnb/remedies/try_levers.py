"""`try_levers`: apply each remedy to an unmodified step, measure it, check its results, and put everything back."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.bench.quality import DIFFERENCE, limits_of, require_quality
from perfnb.draw.progress import Line, Progress
from perfnb.draw.shown import Page, Shown
from perfnb.draw.step_output import StepOutput
from perfnb.failures import keeps_nothing
from perfnb.interrupts import InterruptGate
from perfnb.profile.timing import Timing
from perfnb.remedies.verdicts import Confirmed, Trial, in_order, pays_after, plan_for
from perfnb.remedies.view import trials_html, trials_line, trials_page, trials_text

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

#: Share of the budget for the short profile that finds what to try, and the fewest steps that it takes.
_PROFILE_SHARE, _PROFILE_STEPS = 0.15, 8
GOALS = ("time", "memory")
_NO_REASON = "no finding gives reason to try it; name it in levers="
_NO_PROFILE = "no time within the budget for the profile that could give reason to try it; name it in levers="


class LeverTrials(Page, Shown):
    """What each lever does to a step's time and results. Shows itself in a notebook."""

    def __init__(
        self,
        trials: Sequence[Trial],
        confirmed: Confirmed | None,
        step_ms: float,
        name: str,
        rounds: int,
        *,
        goal: str = "time",
        own_peak: int | None = None,
        said: str = "",
        confirms: bool = True,
        fed_ms: float | None = None,
        load: tuple[float, float] | None = None,
        need_s: int | None = None,
    ) -> None:
        self._trials, self._confirmed, self._name = list(trials), confirmed, name
        self._step_ms, self._rounds = step_ms, rounds
        self._goal, self._own_peak = goal, own_peak
        self._confirms = confirms
        self._fed_ms = fed_ms  # the step with its batch, where a lever on the loader was timed
        self._load = load  # of the machine, before, and its CPUs
        self._need_s = need_s  # the budget that would do, where time was too short for some that were ready
        self._said = said  # how values were checked, if not against float64

    @property
    def table(self) -> pd.DataFrame:
        """A row per lever.

        ``verdict``, ``ratio`` to the step as it is, its simultaneous 95 % interval ``ratio_low`` to ``ratio_high``,
        ``saves_ms``, ``memory`` (less, more, same), ``peak_bytes`` of a step and ``peak_change_bytes`` against the step
        as it is, ``values`` (exact, within noise, reduced precision, different, not checked), ``error`` (largest
        distance from float64, relative), ``setup_s``, ``pays_after_steps``, ``bound_ms`` (what the finding that it
        answers said at most), ``why_not`` (why it was not tried, or should not be kept), ``notes`` (graph breaks and
        recompiles, quality, what it does not go together with) and ``code``.
        """
        rows = [
            {
                "lever": one.lever,
                "verdict": one.verdict,
                "ratio": one.ratio,
                "ratio_low": one.ratio_ci[0] if one.ratio_ci else None,
                "ratio_high": one.ratio_ci[1] if one.ratio_ci else None,
                "saves_ms": one.saves_ms,
                "memory": one.memory or None,
                "peak_bytes": one.peak_bytes,
                "peak_change_bytes": None
                if one.peak_bytes is None or self._own_peak is None
                else one.peak_bytes - self._own_peak,
                "values": one.values.verdict,
                "error": one.values.error,
                "setup_s": one.setup_s,
                "pays_after_steps": pays_after(one.setup_s, one.saves_ms if one.verdict == "faster" else None),
                "bound_ms": one.bound_ms,
                "why_not": one.why_not,
                "notes": "; ".join(one.notes),
                "code": "\n".join(one.code),
            }
            for one in self._trials
        ]
        numbers = ["ratio", "ratio_low", "ratio_high", "saves_ms", "error", "setup_s", "bound_ms"]
        whole = ["peak_bytes", "peak_change_bytes", "pays_after_steps"]
        table = pd.DataFrame(rows).set_index("lever")
        return table.astype(dict.fromkeys(numbers, "Float64") | dict.fromkeys(whole, "Int64"))

    @property
    def best(self) -> tuple[str, ...]:
        """The levers to keep, confirmed together on fresh pairs; empty if none was confirmed.

        With ``confirm=False``, those that helped, each by itself.
        """
        if not self._confirms:
            return tuple(one.lever for one in self._trials if one.unconfirmed)
        return () if self._confirmed is None else self._confirmed.levers

    @property
    def code(self) -> str:
        """The lines that keep them."""
        lines: list[str] = []
        said = ""  # the last line that says where names exist
        for line in (line for one in self._trials if one.lever in self.best for line in one.code):
            if not (line.startswith("# ") and line.endswith(":") and line == said):
                lines.append(line)
            said = line if line.startswith("# ") and line.endswith(":") else said
        return "\n".join(lines)

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """What `Journal.add` writes: step times with each lever on, its name, and whether it is kept.

        A combination that is kept comes last, and is accepted instead of each of its levers.
        """
        together = self._confirmed if self._confirmed is not None and len(self._confirmed.levers) > 1 else None
        combined = together is not None and bool(together.times_ms)
        for one in self._trials:
            if one.times_ms:
                yield Timing(one.times_ms, None), f"lever {one.lever}", one.lever in self.best and not combined
        if together is not None and combined:
            yield Timing(together.times_ms, None), f"levers {' and '.join(together.levers)}", True

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


@keeps_nothing
def try_levers(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    loader: DataLoader[Any] | None = None,
    levers: str | Sequence[str] = "auto",
    goal: str = "time",
    budget_s: float = 120.0,
    quality: Callable[[], Mapping[str, Any]] | None = None,
    limits: Mapping[str, float] | None = None,
    confirm: bool = True,
) -> LeverTrials:
    """Try what could make a step faster or smaller, one lever after the other, and say which are worth keeping.

    Each lever is switched on and off between single steps, in random order, so that both run under the same conditions.
    Its results (outputs, gradients, parameters after the step) are compared with the same step in float64: a lever may
    be at most three times as far from it as your own step. Nothing stays changed: parameters, buffers, gradients,
    optimizer state, random numbers, global switches and the position of a loader that knows it are put back, and
    checked.

    Parameters
    ----------
    step, batches
        As for `profile_step`. The step should do the same work each time.
    model, optimizer, loader : optional
        What the levers act on. By default what the step uses, found through its variables.
    levers : str or list of str
        ``"auto"`` tries those that a short profile gives reason for, the largest bound first, then what costs little to
        try; a list tries just those (``%try_levers --list`` lists all).
    goal : str
        ``"time"``, or ``"memory"`` for a model that is too big: levers are then judged by the peak of memory in a step.
        Both are measured in either case.
    budget_s : float
        Seconds that all trials together may take, to within 20 %. One compilation, which cannot be interrupted, is not
        counted. Long steps get fewer levers; if nothing can be tried, the result says how many seconds would do.
    quality : callable, optional
        As for `ab_test`: called without arguments, returns losses by name, where smaller is better. Called once for the
        step as it is and once with each lever on, each time after a few steps from the same start.
    limits : mapping of str to float, optional
        As for `ab_test`: largest accepted value of each loss by name, by default that of the step as it is plus 0.1 %;
        also of ``peak_memory_bytes``, ``median_ms`` and ``p95_ms``.
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
        Whatever the step or `quality` raises without any lever, after everything has been put back.
    """
    from perfnb.step.checks import require_steps
    from perfnb.step.namespace import chosen_models, namespace_of

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"step": step}, batches, "try_levers(step, loader)")
    chosen, names = chosen_models(model)
    return run_trials(
        step,
        batches,
        namespace={**namespace_of(step), **names},
        models=chosen,
        optimizer=optimizer,
        loader=loader,
        wanted=levers,
        goal=goal,
        budget_s=float(budget_s),
        quality=quality,
        limits=limits,
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
    wanted: Any = "auto",
    goal: str = "time",
    budget_s: float = 120.0,
    quality: Callable[[], Any] | None = None,
    limits: Mapping[str, float] | None = None,
    confirm: bool = True,
    name: str = "step",
    quiet: bool = False,
    line: Line | None = None,
) -> LeverTrials:
    """`try_levers` for a step whose variables are known; what its magic and *Try it* call; `line` shows progress."""
    from torch.utils.data import DataLoader

    from perfnb.remedies.levers import by_name
    from perfnb.remedies.running import Run, try_each
    from perfnb.remedies.state import kept_positions, untouched
    from perfnb.remedies.subject import find_subject, require_models
    from perfnb.remedies.trial import step_seconds
    from perfnb.step.namespace import named_values

    __tracebackhide__ = True
    known = by_name()
    wanted = [wanted] if isinstance(wanted, str) and wanted in known else wanted
    listed = list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else []
    if wanted != "auto" and (not listed or any(each not in list(known) for each in listed)):
        raise ValueError(
            f'levers must be "auto" or a list of these: {", ".join(known)}; not {shown(wanted)}.{near(wanted, known)}'
        )
    if goal not in GOALS:
        raise ValueError(f'goal must be "time" or "memory", not {shown(goal)}.')
    require_quality(quality)
    accepted = limits_of(limits, judged=quality is not None, profiled=True)
    if quality is None and DIFFERENCE in accepted:
        raise ValueError(f"the limit of {DIFFERENCE!r} does not apply here: results are compared with float64.")
    if isinstance(batches, Iterator):
        raise TypeError(
            f"batches is a {type(batches).__name__}, which gives its batches once: pass the loader, a list, or a "
            "function that returns a new one."
        )
    load = machine_load()
    until = time.perf_counter() + budget_s
    loaders = [loader, batches, *(value for _, value in named_values(namespace, DataLoader))]
    positions = kept_positions({id(each): each for each in loaders if isinstance(each, DataLoader)}.values())
    with StepOutput(), Progress(not quiet, line=line) as progress, InterruptGate() as gate, positions:
        subject = find_subject(step, batches, namespace, models=models, optimizer=optimizer, loader=loader, gate=gate)
        require_models(subject)
        with untouched(subject) as prove:
            step_s = step_seconds(subject, 0.02 * budget_s)
            profiled = not listed and _PROFILE_STEPS * step_s < _PROFILE_SHARE * budget_s
            bounds = _bounds(subject, namespace, goal, _PROFILE_SHARE * budget_s) if profiled else {}
            plan = plan_for(goal, step_s, until - time.perf_counter())
            run = Run(subject, step_s, until, progress, prove, goal, listed, quality, accepted, plan=plan)
            run.budget_s = budget_s
            names = listed or _auto(known, bounds, goal)
            found = try_each(run, [known[each] for each in names], bounds, confirm)
            why_not = _NO_REASON if profiled else _NO_PROFILE
            others = [
                Trial(name, "not tried", why_not=lever.refuses(subject) or why_not)
                for name, lever in known.items()
                if name not in names and not listed
            ]
    said = "" if found.yardstick is None else found.yardstick.why_not
    said = said and f"results compared with the step on another number of threads: {said}"
    if found.yardstick is not None and not found.yardstick.repeats:
        said = "results not checked: the step does not repeat itself from the same state"
    return LeverTrials(
        [*found.trials, *others],
        found.confirmed,
        run.own_ms or run.fed_ms or step_s * 1e3,
        name,
        found.rounds,
        goal=goal,
        own_peak=found.own_peak,
        confirms=confirm,
        fed_ms=run.fed_ms,
        load=load,
        need_s=run.need_s,
        said=said,
    )


def near(wanted: Any, known: Iterable[str]) -> str:
    """Which lever an unknown name may mean."""
    names = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Iterable) else []
    found = [
        close
        for name in names
        if isinstance(name, str)
        for close in difflib.get_close_matches(name, list(known), n=1)
        if name not in known
    ]
    return f" Did you mean {', '.join(found)}?" if found else ""


def machine_load() -> tuple[float, float] | None:
    """How many threads wanted a CPU in the last minute, and how many CPUs there are; ``None`` if unknown."""
    try:
        return os.getloadavg()[0], float(os.cpu_count() or 1)
    except (OSError, AttributeError):
        return None


def _bounds(subject: Any, namespace: Mapping[str, Any], goal: str, budget_s: float) -> dict[str, float]:
    """The most that removing each bottleneck could save, in milliseconds, by a short profile."""
    from perfnb.profile.profiling import run_profile
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened():
        plan = Plan(budget_s=budget_s, memory=goal == "memory")
        profile = run_profile(subject.step, subject.batches, plan=plan, models=None, namespace=namespace, quiet=True)
    found = profile.findings
    return dict(zip(found["bottleneck"], found["bound_ms"].fillna(0.0).astype(float), strict=True))


def _auto(known: Mapping[str, Any], bounds: Mapping[str, float], goal: str) -> list[str]:
    """Levers that answer a finding or cost little to try, the largest bound first; for memory, those for it."""
    answers = {name: lever.answers for name, lever in known.items()}
    names = [
        name
        for name, lever in known.items()
        if not lever.costly or (goal == "memory" and lever.for_memory) or any(each in bounds for each in lever.answers)
    ]
    found = in_order(names, answers, bounds)
    return sorted(found, key=lambda name: not known[name].for_memory) if goal == "memory" else found
