"""`try_levers`: apply each remedy to an unmodified step, measure it, check its results, and restore everything."""

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
#: The share of the budget for the short profile that determines what to try, and the minimum number of its steps.
_PROFILE_SHARE, _PROFILE_STEPS = 0.15, 8
#: The time limit of *Try it* in seconds, without the first compilation. It is short because the user is waiting.
TRY_IT_S = 30.0
_COLUMNS = (
    *("lever", "verdict", "ratio", "ratio_low", "ratio_high", "saves_ms", "memory", "peak_bytes", "peak_change_bytes"),
    *("values", "error", "setup_s", "pays_after_steps", "bound_ms", "why_not", "notes", "code"),
)
_NO_REASON = "no finding suggests it; to try it anyway, name it in levers="
_NO_PROFILE = "no time in the budget for the profile that might suggest it; to try it anyway, name it in levers="


@dataclass
class LeverRequest:
    """The levers to try and how to judge them, which are validated before anything runs.

    Attributes
    ----------
    listed : list of str
        The levers that the user specified; empty for ``"auto"``.
    accepted : dict of str to float
        The largest accepted value of each figure, by name.
    words : callable, optional
        A function that returns the lines that enable a lever permanently, given its name and the `Subject`. If the
        function returns ``None``, the lever's own lines are used.
    budget_word : str
        The option that the user can increase to allow more time.

    Raises
    ------
    TypeError, ValueError
        If the arguments are invalid.
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
            raise ValueError(
                f"the limit {DIFFERENCE!r} does not apply here, because results are compared with float64."
            )


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
    """The effect of each lever on a step's time and results, which notebooks display."""

    def __init__(self, figures: LeverFigures) -> None:
        self.figures = figures

    @property
    def table(self) -> pd.DataFrame:
        """One row per lever.

        The columns are ``verdict``; ``ratio`` to the unmodified step with its simultaneous 95 % interval from
        ``ratio_low`` to ``ratio_high``; ``saves_ms`` compared with the unmodified step; ``memory`` (less, more, same);
        a step's ``peak_bytes`` and the ``peak_change_bytes`` compared with the unmodified step; ``values`` (exact,
        within noise, reduced precision, different, not checked); ``error`` (the largest relative distance from
        float64); ``setup_s``; ``pays_after_steps``; ``bound_ms`` (the upper bound from the finding that the lever
        addresses); ``why_not`` (why the lever was not tried, or should not be kept); ``notes`` (graph breaks and
        recompiles, quality, levers that it cannot be combined with); and ``code``. For the first lever that is kept,
        the ratio and its interval come from the fresh pairs that confirmed it.
        """
        table = pd.DataFrame([_row_of(trial, self.figures.own_peak) for trial in self.figures.trials])
        numbers = ["ratio", "ratio_low", "ratio_high", "saves_ms", "error", "setup_s", "bound_ms"]
        whole = ["peak_bytes", "peak_change_bytes", "pays_after_steps"]
        return table.set_index("lever").astype(dict.fromkeys(numbers, "Float64") | dict.fromkeys(whole, "Int64"))

    @property
    def best(self) -> tuple[str, ...]:
        """The levers to keep, which were confirmed together on fresh pairs; empty if none were confirmed.

        With ``confirm=False``, these are the levers that helped individually.
        """
        return self.figures.best

    @property
    def code(self) -> str:
        """The lines of code that enable the levers to keep."""
        return "\n".join(line for trial in self.figures.trials if trial.lever in self.best for line in trial.code)

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """Yield journal entries for `Journal.add`: the step times with a lever on, its name, and whether it is kept.

        A combination that is kept comes last and is accepted instead of its individual levers.
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
    """Return all levers of `try_levers`, each with its effect and the bottleneck that it addresses."""
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
    """Try levers that could make a step faster or reduce its memory, one by one, and report which ones to keep.

    Each lever is switched on and off between individual steps, in random order, so both variants run under the same
    conditions. The results (outputs, gradients, and parameters after the step) are compared with the same step in
    float64: with a lever on, the distance from float64 may be at most three times that of your own step. All changes
    are undone: perfnb restores and checks parameters, buffers, gradients, optimizer state, random numbers, global
    switches, and the position of loaders that keep track of it.

    Parameters
    ----------
    step, batches
        As in `profile_step`. The step should do the same work each time.
    model, optimizer, loader : optional
        The objects that levers change. By default, these are the objects that the step uses, which perfnb finds through
        its variables.
    levers : str or list of str
        With ``"auto"``, perfnb first tries the levers that the findings of a short profile suggest, in the order of
        their bounds, and then those that cost little to try. With a list, it tries only these levers (``%try_levers
        --list`` lists all of them).
    goal : str
        ``"time"``, or ``"memory"`` if your model is too big: levers are then judged by a step's peak memory. Both are
        measured in either case.
    budget_s : float
        The time limit in seconds for all trials together, which is kept to within 20 %. One compilation, which cannot
        be interrupted, does not count. If steps are long, fewer levers are tried. If no lever can be tried, the result
        contains the number of seconds that would be sufficient.
    quality : callable, optional
        As in `ab_test`, a function without arguments that returns losses by name, where smaller is better. It is called
        once for the unmodified step and once with each lever on, each time after a few steps from the same starting
        point.
    limits : mapping of str to float, optional
        As in `ab_test`, the largest accepted value of each loss by name; by default, the unmodified step's loss plus
        0.1 %. You can also limit ``peak_memory_bytes``, ``median_ms`` and ``p95_ms``.
    confirm : bool
        Whether to measure the levers to keep once more, all of them together, on fresh pairs.

    Returns
    -------
    LeverTrials

    Raises
    ------
    TypeError, ValueError
        If the arguments are invalid.
    CaptureError
        If no lever applies to anything that the step uses, or if something could not be restored.
    Exception
        Any exception that the step or `quality` raises without a lever, after everything has been restored.
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
    """Run `try_levers` for a step whose variables are known. The magic and *Try it* call this function.

    `bounds` contains the bounds of a profile's findings, if there is a profile; `line` shows the progress.
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
            f"batches is a {type(batches).__name__}, which can be iterated only once: pass the loader, a list, or a "
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
    """Try a lever on a step for *Try it*, and return the answer from `perfnb.remedies.view.trial_answer`.

    Parameters
    ----------
    parts : mapping of str to object
        ``step``, ``batches``, ``namespace`` and ``models``, as in `run_trials`.
    lever : str
    line : ProgressLine
        Shows the progress.

    Raises
    ------
    Exception
        Any exception that the step raises without the lever, after everything has been restored.
    """
    from perfnb.remedies.levers import by_name

    __tracebackhide__ = True
    # A single lever that was chosen before measuring cannot benefit from chance, so there is nothing to confirm.
    goal = "memory" if by_name()[lever].for_memory else "time"
    request = LeverRequest([lever], goal, TRY_IT_S, confirm=False)
    return trial_answer(run_trials(**parts, request=request, quiet=True, line=line), lever)


def _bounds(subject: Any, namespace: Mapping[str, Any], goal: str, budget_s: float) -> dict[str, float]:
    """Run a short profile, and return how many milliseconds removing each bottleneck could save at most."""
    from perfnb.profile.profiling import run_profile
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened():
        plan = Plan(budget_s=budget_s, memory=goal == "memory")
        profile = run_profile(subject.step, subject.batches, plan=plan, models=None, namespace=namespace, quiet=True)
    return bounds_of(profile.findings)


def bounds_of(findings: pd.DataFrame) -> dict[str, float]:
    """Return the largest bound of each bottleneck, which may have several findings; 0 if the bound is unknown."""
    bounds = findings.groupby("bottleneck")["bound_ms"].max().astype(float).fillna(0.0)
    return {str(name): float(bound) for name, bound in bounds.items()}
