"""Checks for lab 7, *The optimisation loop*."""

from __future__ import annotations

import copy
import io
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn

from perfnb.labs.answers import as_fields, as_function, as_number, outcome
from perfnb.labs.exercise import Exercise, Facts, Hint, is_false
from perfnb.labs.judging import Number, Numbers, all_there, close, hint_if
from perfnb.labs.scored import judge_effects, same_state, scored, state
from perfnb.labs.workloads import interleaved, one_thread
from perfnb.quantities import share
from perfnb.results import ABTest

#: The factors that are compared between two trainings, and the number of rounds in a trial.
FACTORS = ("fused", "foreach", "autocast", "compiled", "weights", "optimizer", "rate", "other settings")
ROUNDS = 12
#: Number of losses that are compared.
KEPT = 4
#: The quality loss in every report of lab 7.
LOSS = "added wrong share"
#: The script's method for each factor, and a statement that is true as long as the method is unchanged.
METHODS = {
    "fused": ("make_optimizer", "the optimizer's setting fused is still False"),
    "autocast": ("predict", "its first linear layer still computes in float32"),
    "compiled": ("make_model", "it returns the plain net, not a compiled one"),
}
#: Relative tolerance between two losses.
APART = 2e-3
#: Factor by which a report may differ from a short trial. If it differs by more, it is a report on something else.
ELSE = 1.6


def compared(answer: Any, script: Any, batches: Any) -> Facts:
    """Compare two trainings, including their losses and times on the same batches."""
    before, after = training_of(script), training_of(answer)
    factors = [_factors(training, batches[0]) for training in (before, after)]
    kept = state(_net(after))
    losses: list[list[float]] = [[], []]

    def step(training: Any, series: list[float], batch: Any) -> None:
        series.append(as_number(outcome(training.step, batch), "The result of step"))

    inputs = [(batches[index % len(batches)],) for index in range(ROUNDS + 3)]
    steps = (partial(step, before, losses[0]), partial(step, after, losses[1]))
    with one_thread():  # one thread never waits, so its process time excludes other programs
        own, new = (statistics.median(times[2:]) for times in interleaved(*steps, inputs, clock=time.process_time))
    return {
        "factors": {name: [factors[0][name], factors[1][name]] for name in FACTORS},
        "written": _written(type(before), type(after)),
        "losses": [series[:KEPT] for series in losses],
        "moved": not same_state(kept, state(_net(after))),
        "trial": new / max(own, 1e-6),
    }


def training_of(answer: Any) -> Any:
    """Return an instance of the class that was given as the answer.

    Raises
    ------
    Hint
        If one of its methods should create a part of the training but returns nothing.
    """
    if not callable(answer) and hasattr(answer, "step"):
        name = type(answer).__name__
        raise Hint(f"Pass the class {name} itself, not {name}(): the check makes its own instances.")
    training = outcome(as_function(answer, "the class()"))
    for name, made in (("model", "make_model"), ("optimizer", "make_optimizer")):
        hint_if(getattr(training, name, ...) is None, f"{made} returned None; is `return` missing?")
    return training


def _net(training: Any) -> Any:
    if not all(hasattr(training, name) for name in ("model", "optimizer", "predict", "step")):
        raise Hint("A training needs model, optimizer, predict and step; derive yours from Script.")
    net = getattr(training.model, "_orig_mod", training.model)
    hint_if(not isinstance(net, nn.Module), f"make_model must return a model, not a {type(net).__name__}.")
    if not hasattr(training.optimizer, "param_groups"):
        raise Hint(f"make_optimizer must return an optimizer, not a {type(training.optimizer).__name__}.")
    return net


def _written(script: type, kind: type) -> dict[str, list[str]]:
    """Return the methods that a training defines itself, separated into overridden and new methods."""

    def methods(kinds: Iterable[type]) -> set[str]:
        return {name for kind in kinds for name, value in vars(kind).items() if callable(value)}

    theirs = methods(script.__mro__[:-1])
    own = {name for name in methods(set(kind.__mro__) - set(script.__mro__)) if not name.startswith("__")}
    return {"anew": sorted(own & theirs), "others": sorted(own - theirs), "script": sorted(theirs - {"__init__"})}


def _factors(training: Any, batch: Any) -> Facts:
    net, optimizer = _net(training), training.optimizer
    group = dict(optimizer.param_groups[0])
    dtypes: list[str] = []
    layer = next((part for part in net.modules() if isinstance(part, nn.Linear)), net)
    handle = layer.register_forward_hook(lambda *given: dtypes.append(str(getattr(given[-1], "dtype", "unknown"))))
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            scores = outcome(training.predict, batch[0])
    finally:
        handle.remove()
    hint_if(scores is None, "predict returned None; is `return` missing?")
    first = next(iter(net.parameters()))
    settings = {name: value for name, value in group.items() if name not in ("params", "fused", "foreach", "lr")}
    return {
        "fused": bool(group.get("fused")),
        "foreach": bool(group.get("foreach")),
        "autocast": dtypes[0].removeprefix("torch.") if dtypes else "unknown",
        "compiled": hasattr(training.model, "_orig_mod") or net._compiled_call_impl is not None,
        "weights": f"{sum(part.numel() for part in net.parameters())} of {str(first.dtype).removeprefix('torch.')}",
        "optimizer": type(optimizer).__name__,
        "rate": float(group["lr"]),
        "other settings": str(sorted(settings.items(), key=lambda item: item[0])),
    }


def same_code(first: Any, second: Any) -> bool:
    """Check whether two functions or classes have the same code, for example because a cell was run again.

    For classes, inherited methods are compared as well.
    """
    return bool(_code(first) == _code(second))


def _code(thing: Any) -> Any:
    """Return the part of an object's code that can be compared, without its location and docstring."""
    if isinstance(thing, type):
        return [
            (name, _code(value))
            for kind in thing.__mro__[:-1]
            for name, value in sorted(vars(kind).items())
            if not (name.startswith("__") and name != "__init__")
        ]
    code = getattr(getattr(thing, "__func__", thing), "__code__", thing)
    if isinstance(code, CodeType):
        return (code.co_code, code.co_names, code.co_varnames, [_code(constant) for constant in code.co_consts])
    return repr(thing) if isinstance(thing, (str, int, float, tuple)) else type(thing).__name__


def report_facts(reports: Any, name: str, made_of: Any = None, answer: Any = None) -> Facts | None:
    """Return the facts of a report, or ``None`` if there is no report.

    `made_of` maps the report's name to the class or function that it tested. The facts include whether that is the
    `answer`.
    """
    report = reports.get(name) if isinstance(reports, Mapping) else None
    if report is None:
        return None
    if not isinstance(report, ABTest):
        raise Hint(f"reports[{name!r}] must be the result of perfnb.ab_test, not a {type(report).__name__}.")
    tried = made_of.get(name) if isinstance(made_of, Mapping) else None
    return {
        "of_this": None if tried is None or answer is None else same_code(tried, answer),
        "ratio": float(report.ratio),
        "ratio_ci": None if report.ratio_ci is None else [float(end) for end in report.ratio_ci],
        "decision": str(report.decision),
        "quality": LOSS in report.table.index,
    }


def earlier_decisions(journal: Any, name: str) -> list[str]:
    """Return the decisions of earlier reports with the same name."""
    if journal is None or not len(history := journal.history):
        return []
    decisions: list[str] = history.loc[history["change"] == name, "decision"].map(str).tolist()
    return decisions[:-1]


def judge_report(report: Facts | None, name: str, trial: float | None = None) -> Facts:
    if report is None:
        raise Hint(f"There is no report on {name!r} yet: run the cell that makes it (tried, or tried_training).")
    if is_false(report.get("of_this")):
        raise Hint(f"The report on {name!r} tested code that differs from this answer; rerun the report's cell.")
    hint_if(not report["quality"], f"The report on {name!r} did not check quality: a faster step may be a worse one.")
    if report["ratio_ci"] is None:
        raise Hint(f"The report on {name!r} has too few pairs for a result; give it a larger budget_s.")
    low, high = report["ratio_ci"]
    if trial is not None and not low / ELSE <= trial <= high * ELSE:
        raise Hint(
            f"In a trial just now it took {trial:.2f} of the script's time; your report says {report['ratio']:.2f}. "
            "Does it compare these two, with the script first, and was it made after your last change?"
        )
    return report


def judge_change(facts: Facts, wanted: str, apart: float = APART) -> None:
    factors = all_there(facts["factors"], len(FACTORS))
    changed = [name for name, (before, after) in factors.items() if before != after]
    if not changed:
        why = _why(facts["written"], wanted)
        raise Hint(f"Nothing that the check compares with the script was changed. {why}")
    hint_if(wanted not in changed, f"You changed {', '.join(changed)}; change {wanted}.")
    if len(changed) > 1:
        raise Hint(f"More than one thing was changed ({', '.join(changed)}), so no report can tell which one helped.")
    _judge_learning(facts, apart)


def _judge_learning(facts: Facts, apart: float) -> None:
    hint_if(not facts["moved"], "The weights do not change: the step returns a loss but learns nothing.")
    before, after = (all_there(series, KEPT) for series in all_there(facts["losses"], 2))
    if not all(close(new, old, apart) for old, new in zip(before, after, strict=True)):
        script, own = (", ".join(f"{loss:.3f}" for loss in series) for series in (before, after))
        raise Hint(
            f"On the same batches the script's losses are {script}, yours {own}. It trains differently, or ignores "
            "the batch it is given."
        )


def _why(written: Mapping[str, list[str]], wanted: str) -> str:
    """Explain why nothing differs, based on the methods that were written."""
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


#: Relative tolerance between losses computed with three digits.
APART_BF16 = 0.06
CHANGES = ("fused", "bf16", "larger batches", "compile", "int8")


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, **dict.fromkeys(CHANGES, float))


def judge_prediction(facts: Facts) -> None:
    for name in CHANGES:
        hint_if(facts[name] <= 0, f"{name}: a factor is above 0; give 0.5 for half as fast, and 1.0 for no difference.")
        if facts[name] >= 20:
            raise Hint(f"{name}: is {facts[name]:g} percent? Give a factor; 1.2 takes a sixth off the time.")


#: Number of images for made-up models, how often their answers are wrong, and whether they arrive in training mode.
IMAGES = 60
MISTAKEN = ((3, True), (4, False), (IMAGES, True))


def measure_quality(answer: Any) -> Facts:
    wrong = as_function(answer, "wrong(model, x, y)")
    generator = torch.Generator().manual_seed(7)
    cases = []
    for every, training in MISTAKEN:
        x = torch.eye(10)[torch.randint(0, 10, (IMAGES,), generator=generator)]
        y = x.argmax(1)
        y[::every] = (y[::every] + 1) % 10
        cases.append(
            scored(wrong, _forgetful(), x, y, training)
            | {
                "wanted": len(range(0, IMAGES, every)) / IMAGES,
                "one_for_all": float((x.argmax() != y).float().mean()),
            }
        )
    return {"cases": cases}


def _forgetful() -> Any:
    """Return a model that recognises every digit, except in training mode, where dropout removes most scores."""
    know = nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        know.weight.copy_(torch.eye(10))
    return nn.Sequential(know, nn.BatchNorm1d(10), nn.Dropout(0.9))


def judge_quality(facts: Facts) -> None:
    every, cases = Numbers(facts["cases"], len(MISTAKEN), 1e-5), facts["cases"]
    if not every.right:
        if not all(case["calls"] for case in cases):
            raise Hint("This is not the share of wrong digits, and your function did not call model(x).")
        right = "It is the share of right answers; a loss is smaller for a better model."
        every.slip(lambda case: 1 - case["wanted"], right)
        number = "It is the number of wrong digits; give their fraction, 0 to 1."
        every.slip(lambda case: case["wanted"] * IMAGES, number)
        for_all = "It is the share if all images get the same answer, as from argmax() without a dimension. Each image"
        every.slip(lambda case: case["one_for_all"], f"{for_all} needs its own.")
        if any(case["called_in_training"] for case in cases):
            raise Hint("This is not the share of wrong digits: a model with dropout answers in training mode here.")
        first = cases[0]
        count = round(first["wanted"] * IMAGES / first["said"]) if first["said"] > 0 else 0
        if count:
            divided = f"The wrong digits are counted correctly, then divided by {count}. How many images are there?"
            every.slip(lambda case: case["wanted"] * IMAGES / count, divided)
    for case in cases:
        Number(case["said"], case["wanted"], 1e-5).wrong(
            "The model was in evaluation mode, but this is not the share of wrong digits.",
            "Is each answer compared with its own label, and is every image counted?",
        )
        judge_effects(case)
        hint_if(case["graded"], "The result is right, but gradients are recorded: where is no_grad?")


def measure_fused(
    answer: Any, script: Any = None, batches: Any = None, reports: Any = None, made_of: Any = None
) -> Facts:
    return compared(answer, script, batches) | {"report": report_facts(reports, "fused", made_of, answer)}


def measure_bf16(
    answer: Any, script: Any = None, batches: Any = None, reports: Any = None, made_of: Any = None
) -> Facts:
    code = getattr(getattr(answer, "predict", None), "__code__", None)
    return compared(answer, script, batches) | {
        "report": report_facts(reports, "bf16", made_of, answer),
        "super": "__class__" in getattr(code, "co_freevars", ()),
    }


def judge_fused(facts: Facts) -> None:
    judge_change(facts, "fused")
    if "make_optimizer" not in facts["written"]["anew"]:
        raise Hint("It is fused, but make_optimizer is still the script's. Override it, because 7.8 reuses it.")
    judge_report(facts["report"], "fused", facts["trial"])


def judge_bf16(facts: Facts) -> None:
    precision = facts["factors"]["autocast"][1]
    hint_if(precision == "float16", "The layers compute in float16, whose largest number is 65504; use bfloat16.")
    judge_change(facts, "autocast", APART_BF16)
    hint_if(facts["super"], "predict calls super(), so 7.8 cannot reuse it in another class: call self.model(x).")
    judge_report(facts["report"], "bf16", facts["trial"])


#: Numbers of samples and batch sizes that `learn` is tested with.
PORTIONS = ((256, 32), (256, 256), (100, 32), (7, 7))


def measure_larger(answer: Any, reports: Any = None, made_of: Any = None) -> Facts:
    learn = as_function(answer, "learn(training, samples, size)")
    cases = []
    for count, size in PORTIONS:
        x, y = torch.arange(float(count)).unsqueeze(1), torch.arange(count)
        steps = _LabSteps()
        outcome(learn, steps, (x, y), size)
        cases.append({"count": count, "size": size, "steps": steps.seen})
    return {"cases": cases, "report": report_facts(reports, "larger batches", made_of, answer)}


class _LabSteps:
    """A training that learns nothing and records the samples that it receives."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def step(self, batch: Any) -> Any:
        x, y = batch
        self.seen.append([x[:, 0].int().tolist(), y.int().tolist()])
        return x.sum() * 0.0


def judge_larger(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(PORTIONS)):
        count, size, steps = case["count"], case["size"], case["steps"]
        where = f"{count} samples in batches of {size}"
        hint_if(not steps, "Your function makes no step yet: call training.step((x, y)) for each batch.")
        hint_if(any(x != y for x, y in steps), f"{where}: images and labels of a batch do not match.")
        given = [sample for x, _ in steps for sample in x]
        if len(set(given)) < len(given):
            raise Hint(f"{where}: {len(given) - len(set(given))} samples were repeated; use each once.")
        hint_if(len(given) < count, f"{where}: only {len(given)} were used. Skipped work looks like a speed-up.")
        hint_if(given != sorted(given), f"{where}: all were used, but not in the given order.")
        largest = max(len(x) for x, _ in steps)
        if largest != size or len(steps) != math.ceil(count / size):
            raise Hint(f"{where}: there were {len(steps)} steps, the largest with {largest} samples.")
    judge_report(facts["report"], "larger batches")


#: Minimum duration of a first compilation in seconds, including Python and the C++ compiler.
COMPILING_S = 0.5
#: Seconds that a first step takes, milliseconds that an uncompiled step takes, a report's ratio and its verdict.
REPORTED = ((30.0, 10.0, 0.8, "faster"), (12.0, 3.0, 0.5, "faster"), (30.0, 10.0, 0.97, "inconclusive"),
            (30.0, 10.0, 0.99, "same"), (30.0, 10.0, 1.3, "slower"))  # fmt: skip


def measure_compiled(
    answer: Any,
    training: Any = None,
    script: Any = None,
    batches: Any = None,
    reports: Any = None,
    first: Any = None,
    made_of: Any = None,
) -> Facts:
    function = as_function(answer, "pays_after(first_s, before_ms, ratio, verdict)")
    cases = []
    for case in REPORTED:
        said = outcome(function, *case)
        never = isinstance(said, float) and said == math.inf
        cases.append([*case, None if never else as_number(said, f"The result of pays_after{case}")])
    facts: Facts = {"cases": cases, "first_s": None}
    if not isinstance(first, Mapping):
        raise Hint("Pass the time of the first step as well: first=first, as bound by the cell above.")
    if first.get("seconds") is None:
        print("No first step was timed. Testing whether torch.compile works here; this may take a while.")
        if can := _compiles():
            training_of(training)  # a missing return also fails here
        return facts | {"can": can}
    facts |= {"first_s": as_number(first["seconds"], "The time of the first step")}
    return facts | {"report": report_facts(reports, "compile", made_of, training)} | compared(training, script, batches)


def _compiles() -> bool:
    """Check whether torch.compile works on this machine by trying it."""
    try:
        x = torch.linspace(0.0, 1.0, 64)
        return bool(torch.allclose(torch.compile(lambda y: y.sin() + 2.0)(x), x.sin() + 2.0))
    except Exception:  # it is not available, whatever the reason
        return False


def judge_compiled(facts: Facts) -> None:
    for first_s, before_ms, ratio, verdict, said in all_there(facts["cases"], len(REPORTED)):
        where = f"For a first step of {first_s:g} s, {before_ms:g} ms before, ratio {ratio:g} and {verdict!r}:"
        if verdict != "faster":
            hint_if(said is not None, f"{where} no gain was shown, so compiling never pays off (math.inf).")
            continue
        hint_if(said is None, f"{where} each step saves something, so it pays off eventually.")
        first_ms = 1e3 * first_s
        steps = Number(said, first_ms / (before_ms * (1 - ratio)), 0.02, where)
        fit = "that is how many steps fit into the first one. How much does each later step *save*?"
        steps.slip((first_ms / before_ms, first_ms / (before_ms * ratio)), fit)
        if said < 0:
            raise Hint(
                f"{where} this is a negative number of steps. A compiled step takes ratio times as long: how much does "
                "it save?"
            )
        steps.wrong("this is not the first step's time divided by the time that one step saves.")
    if facts["first_s"] is None:
        if not is_false(facts["can"]):
            raise Hint(
                "torch.compile works here: a small function was just compiled. Rerun the cell of the first step, "
                "and read the error if there is one."
            )
        return
    judge_change(facts, "compiled")
    judge_report(facts["report"], "compile", facts["trial"])
    if facts["first_s"] < COMPILING_S:
        raise Hint(
            f"A first step of {facts['first_s']:.2g} s is too short for a compilation. Had this kernel already "
            "compiled it? Restart the kernel to measure it again."
        )


#: Maximum size of int8 weights as a fraction of the original, and maximum change of the largest output.
SMALLER, MOVED = 0.4, 0.15


def measure_int8(answer: Any, net: Any = None, x: Any = None, reports: Any = None, made_of: Any = None) -> Facts:
    function = as_function(answer, "quantised(net)")
    kept, kinds = state(net), [type(part).__name__ for part in net.modules()]
    given = copy.deepcopy(net)  # the reader's model stays unchanged whatever the function does
    inputs = (x, x.flip(0)[:7] * 0.9)
    with torch.inference_mode():
        answers = [net(images) for images in inputs]
    try:
        small = outcome(function, given)
    except Hint:
        if _quantises():
            raise
        return {"can": False}
    hint_if(not callable(small), "Return the model for inference, with int8 weights.")
    moved: list[float | None] = []
    with torch.inference_mode():
        for images, wanted in zip(inputs, answers, strict=True):
            got = outcome(small, images)
            right = isinstance(got, torch.Tensor) and got.shape == wanted.shape
            moved.append(float((got - wanted).abs().max() / wanted.abs().max()) if right else None)
    return {
        "can": True,
        "bytes": [_bytes(model) for model in (net, small)],
        "moved": moved,
        "unchanged": same_state(kept, state(given)) and kinds == [type(part).__name__ for part in given.modules()],
        "report": report_facts(reports, "int8", made_of, answer),
    }


def _bytes(model: Any) -> int:
    """Return the size of a saved model in bytes, including packed weights."""
    kept = io.BytesIO()
    torch.save(model.state_dict() if hasattr(model, "state_dict") else {}, kept)
    return kept.tell()


def _quantises() -> bool:
    """Check whether torch's dynamic quantisation works on this machine by trying it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.ao.quantization import quantize_dynamic

            model = torch.nn.Sequential(torch.nn.Linear(8, 8))
            small = quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
            return bool(torch.isfinite(small(torch.ones(2, 8))).all())
    except Exception:  # it is not available, whatever the reason
        return False


def judge_int8(facts: Facts) -> None:
    if is_false(facts["can"]):
        return
    before, after = facts["bytes"]
    hint_if(not facts["unchanged"], "Your function changed the model that it was given, which may still be trained.")
    if after > SMALLER * before:
        raise Hint(f"The saved model has {share(after / before)} of the original bytes; int8 needs about a quarter.")
    if any(change is None or change > MOVED for change in all_there(facts["moved"], 2)):
        raise Hint("Its answers differ from the original model's, at least for some images.")
    judge_report(facts["report"], "int8")


#: The changes that `Best` may combine, as the factor and the name of its report.
PARTS = {"fused": "fused", "autocast": "bf16"}


def measure_best(
    answer: Any,
    training: Any = None,
    script: Any = None,
    batches: Any = None,
    reports: Any = None,
    made_of: Any = None,
    journal: Any = None,
) -> Facts:
    said = as_fields(answer, product=float, speedup=float)
    of_all = {name: report_facts(reports, name) for name in PARTS.values()}
    of_all["best"] = report_facts(reports, "best", made_of, training)
    earlier = {name: earlier_decisions(journal, name) for name in of_all}
    return said | {"reports": of_all, "earlier": earlier} | compared(training, script, batches)


def judge_best(facts: Facts) -> None:
    reports = {name: judge_report(facts["reports"][name], name) for name in PARTS.values()}
    changed = {name for name, (before, after) in all_there(facts["factors"], len(FACTORS)).items() if before != after}
    product = 1.0
    for factor, name in PARTS.items():
        decision = reports[name]["decision"]
        accepted = decision == "accept"
        others = set(facts["earlier"][name]) - {decision}
        flipped = f" An earlier report said {sorted(others)[0]!r}; the last one counts." if others else ""
        if accepted and factor not in changed:
            raise Hint(f"Best lacks {name}, which its report recommends accepting.{flipped}")
        if factor in changed and not accepted:
            raise Hint(f"Best includes {name}, but its report says {decision!r}, not 'accept'.{flipped}")
        product /= reports[name]["ratio"] if accepted else 1.0
    if extra := sorted(changed - set(PARTS)):
        raise Hint(f"Best changes something that was not tested on its own: {', '.join(extra)}.")
    _judge_learning(facts, APART_BF16 if "autocast" in changed else APART)
    best = judge_report(facts["reports"]["best"], "best", facts["trial"])
    for name, wanted, parts, what in (
        ("product", product, tuple(PARTS.values()), "the product of Best's speed-ups (1 / ratio of each report)"),
        ("speedup", 1 / best["ratio"], ("best",), "the speed-up in the report on Best"),
    ):  # fmt: skip
        said = Number(facts[name], wanted, 0.02, name)
        said.slip(1 / wanted, f"is the inverse of {what}.")
        rerun = f"A report was made again. If {name} was computed before that, rerun the answer's cell."
        said.wrong(f"is not {what}.", rerun if any(facts["earlier"][part] for part in parts) else "")


EXERCISES = (
    Exercise("7.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("7.2", "What would be worse?", measure_quality, judge_quality),
    Exercise("7.3", "The fused optimizer", measure_fused, judge_fused, timed=True),
    Exercise("7.4", "bfloat16", measure_bf16, judge_bf16, timed=True),
    Exercise("7.5", "Larger batches", measure_larger, judge_larger, timed=True),
    Exercise("7.6", "Compiling, and when it pays off", measure_compiled, judge_compiled, timed=True),
    Exercise("7.7", "int8 for inference", measure_int8, judge_int8, timed=True),
    Exercise("7.8", "Everything that helped", measure_best, judge_best, timed=True),
)
