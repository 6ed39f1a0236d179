"""A change to a training script: which factors differ, what is learned, and what its report says."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from perfnb import PerformanceReport
from perfnb.labs.answers import as_function, as_number, close, outcome
from perfnb.labs.exercise import Facts, Hint, all_there, is_false
from perfnb.labs.workloads import one_thread

#: The factors of a training that are compared, and rounds of a trial.
FACTORS = ("fused", "foreach", "autocast", "compiled", "weights", "optimizer", "rate", "other settings")
ROUNDS = 12
#: Number of losses compared.
KEPT = 4
#: The quality loss in every report of lab 7.
LOSS = "added wrong share"
#: The script's method for each factor, and what is true while it is unchanged.
METHODS = {
    "fused": ("make_optimizer", "the optimizer's setting fused is still False"),
    "autocast": ("predict", "its layers still compute in float32"),
    "compiled": ("make_model", "it returns the plain net, not a compiled one"),
}
#: Relative tolerance between two losses.
APART = 2e-3
#: Factor by which a report may differ from a short trial; beyond it, the report is of something else.
ELSE = 1.6


def compared(answer: Any, script: Any, batches: Any) -> Facts:
    """How two trainings differ, with their losses and times on the same batches."""
    before, after = training_of(script), training_of(answer)
    factors = [_factors(each, batches[0]) for each in (before, after)]
    kept = state(_net(after))
    losses: list[list[float]] = [[], []]
    times: list[list[float]] = [[], []]
    with one_thread():
        for index in range(ROUNDS + 3):
            batch = batches[index % len(batches)]
            for which in (0, 1) if index % 2 else (1, 0):
                began = time.process_time()  # one thread that never waits, so other programs do not count
                loss = outcome((before, after)[which].step, batch)
                times[which].append(time.process_time() - began)
                losses[which].append(as_number(loss, "The result of step"))
    return {
        "factors": {name: [factors[0][name], factors[1][name]] for name in FACTORS},
        "written": _written(type(before), type(after)),
        "losses": [series[:KEPT] for series in losses],
        "moved": not same_state(kept, state(_net(after))),
        "trial": statistics.median(times[1][3:]) / max(statistics.median(times[0][3:]), 1e-9),
    }


def training_of(answer: Any) -> Any:
    """An instance of the reader's training class; raises `Hint` if a method that makes a part returns nothing."""
    if not callable(answer) and hasattr(answer, "step"):
        name = type(answer).__name__
        raise Hint(f"Pass the class {name} itself, not {name}(): the check makes its own instances.")
    training = outcome(as_function(answer, "the class()"))
    for name, made in (("model", "make_model"), ("optimizer", "make_optimizer")):
        if getattr(training, name, ...) is None:
            raise Hint(f"{made} returned None; is `return` missing?")
    return training


def _net(training: Any) -> Any:
    from torch import nn

    if not all(hasattr(training, name) for name in ("model", "optimizer", "predict", "step")):
        raise Hint("A training needs model, optimizer, predict and step; derive yours from Script.")
    net = getattr(training.model, "_orig_mod", training.model)
    if not isinstance(net, nn.Module):
        raise Hint(f"make_model must return a model, not a {type(net).__name__}.")
    if not hasattr(training.optimizer, "param_groups"):
        raise Hint(f"make_optimizer must return an optimizer, not a {type(training.optimizer).__name__}.")
    return net


def _written(script: type, kind: type) -> dict[str, list[str]]:
    """A training's own methods: those it overrides, and others."""
    theirs = {name for each in script.__mro__[:-1] for name, value in vars(each).items() if callable(value)}
    own = {
        name
        for each in kind.__mro__[:-1]
        if each not in script.__mro__
        for name, value in vars(each).items()
        if callable(value) and not name.startswith("__")
    }
    return {"anew": sorted(own & theirs), "others": sorted(own - theirs), "script": sorted(theirs - {"__init__"})}


def _factors(training: Any, batch: Any) -> Facts:
    import torch

    net, optimizer = _net(training), training.optimizer
    group = dict(optimizer.param_groups[0])
    seen: list[str] = []
    layer = next((each for each in net.modules() if isinstance(each, torch.nn.Linear)), net)
    handle = layer.register_forward_hook(
        lambda _module, _inputs, output: seen.append(str(getattr(output, "dtype", "unknown")))
    )
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            scores = outcome(training.predict, batch[0])
    finally:
        handle.remove()
    if scores is None:
        raise Hint("predict returned None; is `return` missing?")
    first = next(iter(net.parameters()))
    settings = {name: value for name, value in group.items() if name not in ("params", "fused", "foreach", "lr")}
    return {
        "fused": bool(group.get("fused")),
        "foreach": bool(group.get("foreach")),
        "autocast": seen[0].removeprefix("torch.") if seen else "unknown",
        "compiled": hasattr(training.model, "_orig_mod") or net._compiled_call_impl is not None,
        "weights": f"{sum(each.numel() for each in net.parameters())} of {str(first.dtype).removeprefix('torch.')}",
        "optimizer": type(optimizer).__name__,
        "rate": float(group["lr"]),
        "other settings": str(sorted(settings.items(), key=lambda item: item[0])),
    }


def state(model: Any) -> list[Any]:
    import torch

    return [each.detach().clone() for each in model.state_dict().values() if isinstance(each, torch.Tensor)]


def same_state(first: Sequence[Any], second: Sequence[Any]) -> bool:
    import torch

    return len(first) == len(second) and all(map(torch.equal, first, second))


def same_code(first: Any, second: Any) -> bool:
    """Whether two functions, or two classes with all they inherit, do the same, as when a cell ran again."""
    return bool(_code(first) == _code(second))


def _code(thing: Any) -> Any:
    """The comparable part of code, without its location and docstring."""
    if isinstance(thing, type):
        return [
            (name, _code(value))
            for kind in thing.__mro__[:-1]
            for name, value in sorted(vars(kind).items())
            if not (name.startswith("__") and name != "__init__")
        ]
    code = getattr(getattr(thing, "__func__", thing), "__code__", thing)
    if isinstance(code, CodeType):
        return (code.co_code, code.co_names, code.co_varnames, [_code(each) for each in code.co_consts])
    return repr(thing) if isinstance(thing, (str, int, float, tuple)) else type(thing).__name__


def report_facts(reports: Any, name: str, made_of: Any = None, answer: Any = None) -> Facts | None:
    """A report as facts; ``None`` if there is none.

    `made_of` maps the report's name to the class or function it tested; whether that is the `answer` is a fact too.
    """
    report = reports.get(name) if isinstance(reports, Mapping) else None
    if report is None:
        return None
    if not isinstance(report, PerformanceReport):
        raise Hint(f"reports[{name!r}] must be the result of perfnb.report, not a {type(report).__name__}.")
    ab = report.ab
    tried = made_of.get(name) if isinstance(made_of, Mapping) else None
    return {
        "of_this": None if tried is None or answer is None else same_code(tried, answer),
        "ratio": float(ab.ratio),
        "ratio_ci": None if ab.ratio_ci is None else [float(end) for end in ab.ratio_ci],
        "verdict": str(ab.verdict),
        "decision": str(report.decision),
        "baseline_ms": float(report.baseline.median_ms),
        "candidate_ms": float(report.candidate.median_ms),
        "quality": LOSS in report.table.index,
    }


def earlier_reports(journal: Any, name: str) -> list[list[Any]]:
    """Ratio and decision of earlier reports with that name."""
    if journal is None:
        return []
    history = journal.history
    rows = history[history["change"] == name] if len(history) else history
    return [[float(row["candidate_ratio"]), str(row["decision"])] for row in rows.to_dict("records")[:-1]]


def of_earlier(facts: Facts, said: float, names: Sequence[str]) -> bool:
    """Whether a speed-up matches a set of reports that includes at least one superseded one."""
    found = [
        [(1.0, False), (facts["reports"][name]["ratio"], False)]
        + [(ratio, True) for ratio, _ in facts["earlier"][name]]
        for name in names
    ]
    return any(
        close(said, 1 / math.prod(ratio for ratio, _ in each), 1e-6) and any(old for _, old in each)
        for each in itertools.product(*found)
    )


def judge_report(report: Facts | None, name: str, trial: float | None = None) -> Facts:
    if report is None:
        raise Hint(f"There is no report on {name!r} yet: run the cell that makes it (tried, or tried_training).")
    if is_false(report.get("of_this")):
        raise Hint(f"The report on {name!r} tested different code from this answer; rerun the report's cell.")
    if not report["quality"]:
        raise Hint(f"The report on {name!r} did not check quality: a faster step may be a worse one.")
    if report["ratio_ci"] is None:
        raise Hint(f"The report on {name!r} has too few pairs for a result; give it a larger budget_s.")
    low, high = report["ratio_ci"]
    if trial is not None and not low / ELSE <= trial <= high * ELSE:
        raise Hint(
            f"In a trial just now it took {trial:.2f} of the script's time; your report says "
            f"{report['ratio']:.2f}. Does it compare these two, script first, after the last change?"
        )
    return report


def judge_change(facts: Facts, wanted: str, apart: float = APART) -> None:
    factors = all_there(facts["factors"], len(FACTORS))
    changed = [name for name, (before, after) in factors.items() if before != after]
    if not changed and facts["written"]["anew"] and METHODS[wanted][0] not in facts["written"]["anew"]:
        raise Hint(_why(facts["written"], wanted))
    if not changed:
        raise Hint(f"This training does the same as the script: nothing was changed. {_why(facts['written'], wanted)}")
    if wanted not in changed:
        raise Hint(f"You changed {', '.join(changed)}; change {wanted}.")
    if len(changed) > 1:
        raise Hint(f"More than one thing was changed ({', '.join(changed)}), so no report can tell which one helped.")
    if not facts["moved"]:
        raise Hint("The weights do not change: the step returns a loss but learns nothing.")
    for before, after in zip(*losses_of(facts), strict=True):
        if not close(after, before, apart):
            raise Hint(
                f"On the same batches the script's losses are {_words(facts['losses'][0])}, yours "
                f"{_words(facts['losses'][1])}. It trains differently, or ignores the batch it is given."
            )


def losses_of(facts: Facts) -> list[list[float]]:
    """First losses of the script and of the change; raises `Hint` if some are missing."""
    return [all_there(series, KEPT) for series in all_there(facts["losses"], 2)]


def _words(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.3f}" for loss in losses)


def _why(written: Mapping[str, list[str]], wanted: str) -> str:
    """Why nothing differs, judging by the methods that were written."""
    method, still = METHODS[wanted]
    if method in written["anew"]:
        return f"{method} is overridden, but {still}."
    if written["anew"]:
        return f"You overrode {', '.join(written['anew'])}; override {method}."
    if written["others"]:
        return (
            f"Script has no method {', '.join(written['others'])}, so nothing calls it; its methods are "
            f"{', '.join(written['script'])}."
        )
    return "No method of Script is overridden yet."
