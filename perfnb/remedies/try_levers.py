"""`try_levers`: apply each remedy to an unmodified step, measure it, check its results, and put everything back."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.bench.quality import DIFFERENCE, limits_of, require_quality
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress, ProgressLine
from perfnb.draw.step_output import StepOutput
from perfnb.failures import keeps_nothing
from perfnb.interrupts import InterruptGate
from perfnb.profile.timing import Timing
from perfnb.remedies.verdicts import LeverFigures, LeverTrial, worth_trying
from perfnb.remedies.view import trial_answer, trials_document

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from perfnb.draw.document import Document

GOALS = ("time", "memory")
#: The share of the budget for the short profile that finds what to try, and the fewest steps that the profile takes.
_PROFILE_SHARE, _PROFILE_STEPS = 0.15, 8
#: The seconds for *Try it*, one compilation not counted, because somebody is waiting.
TRY_IT_S = 30.0
_COLUMNS = (
    *("lever", "verdict", "ratio", "ratio_low", "ratio_high", "saves_ms", "memory", "peak_bytes", "peak_change_bytes"),
    *("values", "error", "setup_s", "pays_after_steps", "bound_ms", "why_not", "notes", "code"),
)
_NO_REASON = "no finding gives reason to try it; name it in levers="
_NO_PROFILE = "no time within the budget for the profile that could give reason to try it; name it in levers="


@dataclass
class LeverRequest:
    """The levers to try and the way to judge them, checked before anything runs.

    Attributes
    ----------
    listed : list of str
        The levers that the user named; empty for ``"auto"``.
    accepted : dict of str to float
        The largest accepted values by name.
    words : callable, optional
        Gives the lines that keep a lever, from its name and the `Subject`; ``None`` for the lever's own lines.
    budget_word : str
        The option that the user raises for more time.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    """

    levers: Any = "auto"
    goal: str = "time"
    budget_s: float = 120.0
    quality: Callable[[], Any] | None = None
    limits: Mapping[str, float] | None = None
    confirm: bool = True
    words: Callable[[str, Any], list[str] | None] = lambda *_: None
    budget_word: str = "budget_s"

    def __post_init__(self) -> None:
        require_seconds("budget_s", self.budget_s)
        self.budget_s = float(self.budget_s)
        self.listed = _listed(self.levers)
        if self.goal not in GOALS:
            raise ValueError(f'goal must be "time" or "memory", not {shown(self.goal)}.')
        require_quality(self.quality)
        self.accepted = limits_of(self.limits, judged=self.quality is not None, profiled=True)
        if self.quality is None and DIFFERENCE in self.accepted:
            raise ValueError(f"the limit of {DIFFERENCE!r} does not apply here: results are compared with float64.")


def _listed(wanted: Any) -> list[str]:
    if isinstance(wanted, str) and wanted == "auto":
        return []
    from perfnb.remedies.levers import by_name

    known = list(by_name())
    names = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Iterable) else []
    if names and all(name in known for name in names):
        return names
    unknown = [name for name in names if isinstance(name, str) and name not in known]
    near = [close for name in unknown for close in difflib.get_close_matches(name, known, n=1)]
    meant = f" Did you mean {', '.join(near)}?" if near else ""
    raise ValueError(f'levers must be "auto" or a list of these: {", ".join(known)}; not {shown(wanted)}.{meant}')


class LeverTrials(Documented):
    """The effect of each lever on a step's time and results. A notebook displays it."""

    def __init__(self, figures: LeverFigures) -> None:
        self.figures = figures

    @property
    def table(self) -> pd.DataFrame:
        """A row per lever.

        ``verdict``, ``ratio`` to the unmodified step, its simultaneous 95 % interval ``ratio_low`` to ``ratio_high``,
        ``saves_ms`` of the unmodified step's time, ``memory`` (less, more, same), ``peak_bytes`` of a step and
        ``peak_change_bytes`` against the unmodified step, ``values`` (exact, within noise, reduced precision,
        different, not checked), ``error`` (largest distance from float64, relative), ``setup_s``, ``pays_after_steps``,
        ``bound_ms`` (the upper bound in the finding that it answers), ``why_not`` (why it was not tried, or should not
        be kept), ``notes`` (graph breaks and recompiles, quality, what it cannot be combined with) and ``code``. The
        first lever that is kept has its ratio and interval from the fresh pairs that confirmed it.
        """
        table = pd.DataFrame([_row_of(trial, self.figures.own_peak) for trial in self.figures.trials])
        numbers = ["ratio", "ratio_low", "ratio_high", "saves_ms", "error", "setup_s", "bound_ms"]
        whole = ["peak_bytes", "peak_change_bytes", "pays_after_steps"]
        return table.set_index("lever").astype(dict.fromkeys(numbers, "Float64") | dict.fromkeys(whole, "Int64"))

    @property
    def best(self) -> tuple[str, ...]:
        """The levers to keep, confirmed together on fresh pairs; empty if none was confirmed.

        With ``confirm=False``, those that helped, each by itself.
        """
        return self.figures.best

    @property
    def code(self) -> str:
        """The lines that keep them."""
        return "\n".join(line for trial in self.figures.trials if trial.lever in self.best for line in trial.code)

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """Yield what `Journal.add` writes: step times with each lever on, its name, and whether it is kept.

        A combination that is kept comes last, and is accepted instead of each of its levers.
        """
        confirmed = self.figures.confirmed
        combined = confirmed is not None and len(self.best) > 1 and bool(confirmed.times_ms)
        for trial in self.figures.trials:
            if trial.times_ms:
                kept = trial.lever in self.best and not combined
                yield Timing(trial.times_ms, None), f"lever {trial.lever}", kept
        if confirmed is not None and combined:
            yield Timing(confirmed.times_ms, None), f"levers {confirmed.lever}", True

    def _document(self) -> Document:
        return trials_document(self)


def _row_of(trial: LeverTrial, own_peak: int | None) -> dict[str, Any]:
    low, high = trial.ratio_ci or (None, None)
    peak = trial.peak_bytes
    return {name: getattr(trial, name, None) for name in _COLUMNS} | {
        **{"ratio_low": low, "ratio_high": high, "memory": trial.memory or None},
        "peak_change_bytes": None if peak is None or own_peak is None else peak - own_peak,
        **{"values": trial.values.verdict, "error": trial.values.error},
        **{"notes": "; ".join(trial.notes), "code": "\n".join(trial.code)},
    }


def levers() -> pd.DataFrame:
    """Return all levers that `try_levers` knows: the effect of each, and the bottleneck that it answers."""
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
    """Try what could make a step faster or smaller, one lever after the other, and report which are worth keeping.

    Each lever is switched on and off between single steps, in random order, so that both run under the same conditions.
    Its results (outputs, gradients, parameters after the step) are compared with the same step in float64: a lever may
    be at most three times as far from it as your own step. Nothing stays changed: parameters, buffers, gradients,
    optimizer state, random numbers, global switches and the position of a loader that knows it are put back and
    checked.

    Parameters
    ----------
    step, batches
        As for `profile_step`. The step should do the same work each time.
    model, optimizer, loader : optional
        What the levers act on. By default, those that the step uses, found through its variables.
    levers : str or list of str
        ``"auto"`` tries those that a short profile gives reason for, the largest bound first, then those that cost
        little to try; a list tries just those (``%try_levers --list`` lists all).
    goal : str
        ``"time"``, or ``"memory"`` for a model that is too big: levers are then judged by the peak of memory in a step.
        Both are measured in either case.
    budget_s : float
        Seconds that all trials together may take, to within 20 %. One compilation, which cannot be interrupted, is not
        counted. Long steps get fewer levers; if nothing can be tried, the result names the number of seconds that would
        be enough.
    quality : callable, optional
        As for `ab_test`: called without arguments, returns losses by name, where smaller is better. Called once for the
        unmodified step and once with each lever on, each time after a few steps from the same start.
    limits : mapping of str to float, optional
        As for `ab_test`: largest accepted value of each loss by name, by default that of the unmodified step plus
        0.1 %; also of ``peak_memory_bytes``, ``median_ms`` and ``p95_ms``.
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
    request = LeverRequest(levers, goal, budget_s, quality, limits, confirm)
    require_steps({"step": step}, batches, "try_levers(step, loader)")
    models, names = chosen_models(model)
    space = {**namespace_of(step), **names}
    name = str(getattr(step, "__name__", "step"))
    return run_trials(
        step, batches, request, namespace=space, models=models, optimizer=optimizer, loader=loader, name=name
    )


def run_trials(
    step: Callable[..., Any],
    batches: Any,
    request: LeverRequest,
    *,
    namespace: Mapping[str, Any],
    models: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    name: str = "step",
    bounds: Mapping[str, float] | None = None,
    quiet: bool = False,
    line: ProgressLine | None = None,
) -> LeverTrials:
    """Run `try_levers` for a step whose variables are known; its magic and *Try it* call this.

    `bounds` are those of a profile's findings, where there is one; `line` shows progress.
    """
    from torch.utils.data import DataLoader

    from perfnb.bench.restored import kept_positions
    from perfnb.remedies.budget import TrialBudget
    from perfnb.remedies.levers import by_name
    from perfnb.remedies.loop import LeverLoop
    from perfnb.remedies.measuring import step_seconds
    from perfnb.remedies.state import untouched
    from perfnb.remedies.subject import find_subject
    from perfnb.step.environment import Conditions
    from perfnb.step.namespace import named_values

    __tracebackhide__ = True
    if isinstance(batches, Iterator):
        raise TypeError(
            f"batches is a {type(batches).__name__}, which gives its batches once: pass the loader, a list, or a "
            "function that returns a new one."
        )
    budget = TrialBudget(request.budget_s, request.goal)
    figures = LeverFigures(name, request.goal, confirms=request.confirm, budget_word=request.budget_word)
    loaders = [loader, batches, *(value for _, value in named_values(namespace, DataLoader))]
    positions = kept_positions({id(one): one for one in loaders if isinstance(one, DataLoader)}.values())
    conditions, output = Conditions(), StepOutput()
    with conditions, output, Progress(not quiet, line=line) as progress, InterruptGate() as gate, positions:
        subject = find_subject(step, batches, namespace, models=models, optimizer=optimizer, loader=loader, gate=gate)
        with untouched(subject) as prove:
            step_s = step_seconds(subject, 0.02 * budget.seconds)
            figures.step_ms = step_s * 1e3
            affordable = _PROFILE_STEPS * step_s < _PROFILE_SHARE * budget.seconds
            known, profiled = by_name(), bounds is not None or (affordable and not request.listed)
            if bounds is None:
                most_s = _PROFILE_SHARE * budget.seconds
                bounds = _bounds(subject, namespace, request.goal, most_s) if profiled else {}
            budget.divide(step_s)
            chosen = [known[name] for name in request.listed] or worth_trying(known.values(), bounds, request.goal)
            LeverLoop(subject, request, budget, figures, progress, prove).try_each(chosen, bounds)
            for lever in [] if request.listed else [lever for lever in known.values() if lever not in chosen]:
                why_not = lever.refuses(subject) or (_NO_REASON if profiled else _NO_PROFILE)
                figures.trials.append(LeverTrial(lever.name, "not tried", why_not=why_not))
    figures.noise = conditions.facts
    return LeverTrials(figures)


def try_one(parts: Mapping[str, Any], lever: str, line: ProgressLine) -> dict[str, Any]:
    """Answer *Try it*: try a lever on a step, and return the answer of `perfnb.remedies.view.trial_answer`.

    Parameters
    ----------
    parts : mapping of str to object
        ``step``, ``batches``, ``namespace`` and ``models``, as `run_trials` takes them.
    lever : str
    line : ProgressLine
        Shows progress.

    Raises
    ------
    Exception
        Whatever the step raises without the lever, after everything has been put back.
    """
    from perfnb.remedies.levers import by_name

    __tracebackhide__ = True
    # A single lever, chosen before measuring, has no advantage from chance: there is nothing to confirm.
    goal = "memory" if by_name()[lever].for_memory else "time"
    request = LeverRequest([lever], goal, TRY_IT_S, confirm=False)
    return trial_answer(run_trials(**parts, request=request, quiet=True, line=line), lever)


def _bounds(subject: Any, namespace: Mapping[str, Any], goal: str, budget_s: float) -> dict[str, float]:
    """Return the most that removing each bottleneck could save, in milliseconds, according to a short profile."""
    from perfnb.profile.profiling import run_profile
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened():
        plan = Plan(budget_s=budget_s, memory=goal == "memory")
        profile = run_profile(subject.step, subject.batches, plan=plan, models=None, namespace=namespace, quiet=True)
    return bounds_of(profile.findings)


def bounds_of(findings: pd.DataFrame) -> dict[str, float]:
    """Return the largest bound of each bottleneck, which may have several findings; 0 if none is known."""
    bounds = findings.groupby("bottleneck")["bound_ms"].max().astype(float).fillna(0.0)
    return {str(name): float(bound) for name, bound in bounds.items()}
