"""What makes a step's figures doubtful: a machine that did something else meanwhile."""

from __future__ import annotations

import pandas as pd

from perfnb.findings.facts import Facts
from perfnb.recording.recording import Recording
from perfnb.stats.step_times import times_in_words

#: How many times as long as traced steps timed ones may take, or the other way round. Tracing only adds, and what it
#: adds is taken off before.
_APART = 1.5
#: From here on the timed steps say nothing of the step.
_HELD_UP = 2.5
#: Ratio of the longest to the shortest traced step above which they disagree.
_DISAGREE = 1.5
#: Batches that are there already: nothing makes them beside the step.
_AT_HAND = ("list", "tuple", "range", "dict", "Tensor", "ndarray")
#: How many times less than all else traced steps wait where batches lay ready, and how much of a timed step is a wait.
_LESS, _WAITS = 2.0, 0.05


def held_up(facts: Facts) -> bool:
    """Whether timed steps took far longer than traced ones, which do the same and more: something held them up.

    Where batches are made beside the step, that may be what held it up.
    """
    return _measured_on_host(facts) and facts.scale > _HELD_UP and not _works_ahead(facts)


def too_few_steps(facts: Facts) -> str:
    """Why no figure of the step is sure, in a sentence; empty where there are enough timed steps for an interval."""
    timing = facts.figures.timing
    if not facts.live or timing.ci_ms is not None:
        return ""
    steps = "1 timed step is" if timing.steps == 1 else f"{timing.steps} timed steps are"
    return f"Low confidence: {steps} too few for a 95 % interval."


def doubt_of(facts: Facts) -> str:
    """Why bounds may be far off, and what to do, in sentences; empty where nothing is known against them."""
    if not _measured_on_host(facts):
        return ""
    reasons = []
    # What is judged leaves out waits and the cost of tracing; what is said is the ratio that the report shows.
    ratio = facts.figures.slowdown or 0.0
    if facts.scale > _APART and not _works_ahead(facts):
        reasons.append(
            f"timed steps took {_times(1 / ratio)} as long as traced ones, which do more"
            if 0 < ratio < 1
            else "timed steps took longer than traced ones less what tracing costs"
        )
    elif 0 < facts.scale < 1 / _APART and not facts.meta.get("stacks"):
        reasons.append(
            f"traced steps took {_times(ratio)} as long as timed ones, more than tracing costs"
            if ratio > 1
            else "traced steps took longer than timed ones, by more than tracing costs"
        )
    traced = traced_ms(facts.recording)
    if disagree(traced):
        reasons.append(f"the traced steps disagree ({times_in_words(traced)})")
    if facts.busy:
        reasons.append("other programs had the cores, too")
    if not reasons:
        return ""
    said = f" Doubtful, for {' and '.join(reasons)}: bounds can be off by half or more."
    if (facts.busy or facts.scale > _APART) and (facts.environment.get("threads") or 1) > 1:
        said += " Threads wait for the one that has no core: try torch.set_num_threads(1)."
    return said


def _measured_on_host(facts: Facts) -> bool:
    return facts.live and facts.gpu is None and len(facts.timed_ms) > 0


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.3g} times"


def _works_ahead(facts: Facts) -> bool:
    """Whether batches are made beside the step, by workers or a thread.

    They take cores from the timed steps, while the traced ones find batches that lie ready. Nothing tells what an
    iterable of another kind does; then it is told by traced steps that waited far less than their other work explains.
    """
    kind, workers = facts.loader.get("class"), facts.loader.get("num_workers")
    if isinstance(workers, int) and (workers > 0 or kind == "DataLoader"):
        return workers > 0
    if kind in _AT_HAND:
        return False
    waited = float(facts.waits_ms.mean()) if len(facts.waits_ms) else 0.0
    in_traced = float(facts.cells_ns[(facts.attribution.cells["phase"] == "data").to_numpy()].sum())
    explained = _LESS * facts.per_step(in_traced)
    return waited > explained and facts.share(waited) >= _WAITS


def disagree(traced: pd.Series) -> bool:
    """Whether the longest traced step took so much longer than the shortest that their mean says little."""
    return bool(traced.max() > _DISAGREE * traced.min())


def traced_ms(recording: Recording) -> pd.Series:
    """Wall time of each traced step."""
    steps: pd.DataFrame = recording.steps
    return steps.loc[steps["pass"] == "traced", "wall_ms"]
