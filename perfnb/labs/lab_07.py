"""Checks of lab 7, *The optimisation loop*."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfnb.labs.answers import as_function, as_number, as_numbers, close, outcome, slip
from perfnb.labs.changes import (
    APART,
    FACTORS,
    compared,
    earlier_reports,
    judge_change,
    judge_report,
    losses_of,
    of_earlier,
    report_facts,
    same_state,
    state,
    training_of,
)
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there, is_false
from perfnb.labs.quantising import judge_int8, measure_int8

#: Relative tolerance between losses computed with three digits.
APART_BF16 = 0.06
CHANGES = ("fused", "bf16", "larger batches", "compile", "int8")


def measure_prediction(answer: Any) -> Facts:
    return as_numbers(answer, CHANGES)


def judge_prediction(facts: Facts) -> None:
    for name in CHANGES:
        if facts[name] <= 0:
            raise Hint(f"{name}: a factor is above 0; give 0.5 for half as fast, and 1.0 for no difference.")
        if facts[name] >= 20:
            raise Hint(f"{name}: is {facts[name]:g} percent? Give a factor; 1.2 takes a sixth off the time.")


#: Images for made-up models, how often their answers are wrong, and whether they arrive in training mode.
IMAGES = 60
MISTAKEN = ((3, True), (4, False), (IMAGES, True))


def measure_quality(answer: Any) -> Facts:
    import torch

    wrong = as_function(answer, "wrong(model, x, y)")
    generator = torch.Generator().manual_seed(7)
    cases = []
    for every, training in MISTAKEN:
        x = torch.eye(10)[torch.randint(0, 10, (IMAGES,), generator=generator)]
        y = x.argmax(1)
        y[::every] = (y[::every] + 1) % 10
        model = _forgetful().train(training)
        kept = state(model)
        graded: list[bool] = []
        modes: list[bool] = []

        def seen(net: Any, *_: Any, graded: list[bool] = graded, modes: list[bool] = modes) -> None:
            graded.append(torch.is_grad_enabled())
            modes.append(any(part.training for part in net.modules()))

        handle = model.register_forward_hook(seen)
        said = as_number(outcome(wrong, model, x, y), "The result of your function")
        handle.remove()
        cases.append(
            {
                "said": said,
                "wanted": len(range(0, IMAGES, every)) / IMAGES,
                "one_for_all": float((x.argmax() != y).float().mean()),
                "graded": any(graded),
                "asked_in_training": any(modes),
                "same_mode": model.training == training,
                "unchanged": same_state(kept, state(model)),
                "gradients": any(each.grad is not None for each in model.parameters()),
            }
        )
    return {"cases": cases, "images": IMAGES}


def _forgetful() -> Any:
    """A model that recognises every digit, except in training mode, which drops most of what it knows."""
    import torch
    from torch import nn

    know = nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        know.weight.copy_(torch.eye(10))
    return nn.Sequential(know, nn.BatchNorm1d(10), nn.Dropout(0.9))


def judge_quality(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(MISTAKEN)):
        said, wanted = case["said"], case["wanted"]
        if not close(said, wanted, 1e-5):
            if close(said, 1 - wanted, 1e-5):
                raise Hint("It is the share of right answers; a loss is smaller for a better model.")
            if close(said, wanted * facts["images"], 1e-5):
                raise Hint("It is the number of wrong digits; give their fraction, 0 to 1.")
            if close(said, case["one_for_all"], 1e-5):
                raise Hint("argmax() without a dimension gives one index for all images; each image needs its own.")
            if case["asked_in_training"]:
                raise Hint("This is not the share of wrong digits: a model with dropout answers in training mode here.")
            if said > 0 and wanted > 0:
                count = round(wanted * facts["images"] / said)
                if count not in (0, facts["images"]) and close(said * count, wanted * facts["images"], 1e-5):
                    raise Hint(
                        f"The wrong digits are counted correctly, then divided by {count}. How many images are there?"
                    )
            raise Hint(
                "The model is in evaluation mode, but this is not the share of wrong digits. "
                + slip(said, wanted, 1e-5, "Is each answer compared with its own label, and is every image counted?")
            )
        if not case["same_mode"]:
            raise Hint("The share is right, but the model's mode is not restored; it is still training.")
        if not case["unchanged"] or case["gradients"]:
            raise Hint("The share is right, but your function leaves statistics or gradients in the model.")
        if case["graded"]:
            raise Hint("The share is right, but gradients are recorded: where is no_grad?")


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
        raise Hint("It is fused, but make_optimizer is still the script's; override it, because 7.8 reuses it.")
    judge_report(facts["report"], "fused", facts["trial"])


def judge_bf16(facts: Facts) -> None:
    precision = facts["factors"]["autocast"][1]
    if precision == "float16":
        raise Hint("The layers compute in float16, whose largest number is 65504; use bfloat16.")
    judge_change(facts, "autocast", APART_BF16)
    if facts["super"]:
        raise Hint("predict calls super(), so 7.8 cannot reuse it in another class: call self.model(x).")
    judge_report(facts["report"], "bf16", facts["trial"])


#: Samples and batch sizes that `learn` is tested on.
PORTIONS = ((256, 32), (256, 256), (100, 32), (7, 7))


def measure_larger(answer: Any, reports: Any = None, made_of: Any = None) -> Facts:
    import torch

    learn = as_function(answer, "learn(training, samples, size)")
    cases = []
    for count, size in PORTIONS:
        x, y = torch.arange(float(count)).unsqueeze(1).repeat(1, 2), torch.arange(count)
        steps = _Steps()
        outcome(learn, steps, (x, y), size)
        cases.append({"count": count, "size": size, "steps": steps.seen})
    return {"cases": cases, "report": report_facts(reports, "larger batches", made_of, answer)}


class _Steps:
    """A training that learns nothing and records the samples it was given."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def step(self, batch: Any) -> Any:
        x, y = batch
        self.seen.append([[int(each) for each in x[:, 0]], [int(each) for each in y]])
        return x.sum() * 0.0


def judge_larger(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(PORTIONS)):
        count, size, steps = case["count"], case["size"], case["steps"]
        where = f"{count} samples in batches of {size}"
        if not steps:
            raise Hint("Your function takes no step yet: call training.step((x, y)) for each batch.")
        if any(x != y for x, y in steps):
            raise Hint(f"{where}: images and labels of a batch do not match.")
        given = [each for x, _ in steps for each in x]
        if len(set(given)) < len(given):
            raise Hint(f"{where}: {len(given) - len(set(given))} samples were repeated; use each once.")
        if len(given) < count:
            raise Hint(f"{where}: only {len(given)} were used. Skipped work looks like a speed-up.")
        if given != sorted(given):
            raise Hint(f"{where}: all were used, but not in the given order.")
        largest = max(len(x) for x, _ in steps)
        if largest != size or len(steps) != math.ceil(count / size):
            raise Hint(f"{where}: there were {len(steps)} steps, the largest with {largest} samples.")
    judge_report(facts["report"], "larger batches")


#: Shortest first compilation in seconds: Python, C++ compiler and all.
COMPILING_S = 0.5
#: Seconds of a first step, milliseconds of an uncompiled step, a report's ratio and its verdict.
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
            training_of(training)  # a missing return fails here too
        return facts | {"can": can}
    facts |= {"first_s": as_number(first["seconds"], "The time of the first step")}
    return facts | {"report": report_facts(reports, "compile", made_of, training)} | compared(training, script, batches)


def _compiles() -> bool:
    """Whether torch.compile works on this machine, by trying it."""
    import torch

    try:
        x = torch.linspace(0.0, 1.0, 64)
        return bool(torch.allclose(torch.compile(lambda each: each.sin() + 2.0)(x), x.sin() + 2.0))
    except Exception:  # whatever the reason, it is not available
        return False


def judge_compiled(facts: Facts) -> None:
    for first_s, before_ms, ratio, verdict, said in all_there(facts["cases"], len(REPORTED)):
        where = f"For a first step of {first_s:g} s, {before_ms:g} ms before, ratio {ratio:g} and {verdict!r}: "
        if verdict != "faster":
            if said is not None:
                raise Hint(f"{where}no gain was shown, so the compilation never pays off (math.inf).")
            continue
        if said is None:
            raise Hint(f"{where}each step saves something, so it pays off eventually.")
        first_ms = 1e3 * first_s
        wanted = first_ms / (before_ms * (1 - ratio))
        if close(said, wanted, 0.02) or abs(said - wanted) <= 1.0:
            continue
        if any(close(said, first_ms / each, 0.02) for each in (before_ms, before_ms * ratio)):
            raise Hint(f"{where}that is how many steps fit into the first one. How much does each later step *save*?")
        if said < 0:
            raise Hint(f"{where}a negative number of steps. A compiled step takes ratio times as long: what is saved?")
        raise Hint(f"{where}not the first step's time divided by what one step saves. {slip(said, wanted, 0.02)}")
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
            f"A first step of {facts['first_s']:.2g} s compiled nothing: this kernel had already compiled it. "
            "Restart the kernel to measure it again."
        )


#: What `Best` may combine: the factor and the name of its report.
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
    said = as_numbers(answer, ("product", "speedup"))
    found = {name: report_facts(reports, name) for name in PARTS.values()}
    found["best"] = report_facts(reports, "best", made_of, training)
    earlier = {name: earlier_reports(journal, name) for name in found}
    return said | {"reports": found, "earlier": earlier} | compared(training, script, batches)


def judge_best(facts: Facts) -> None:
    reports = {name: judge_report(facts["reports"][name], name) for name in PARTS.values()}
    changed = {name for name, (before, after) in all_there(facts["factors"], len(FACTORS)).items() if before != after}
    product = 1.0
    for factor, name in PARTS.items():
        decision = reports[name]["decision"]
        accepted = decision == "accept"
        others = {said for _, said in facts["earlier"][name]} - {decision}
        flipped = f" An earlier report said {sorted(others)[0]!r}; the last one counts." if others else ""
        if accepted and factor not in changed:
            raise Hint(f"Best lacks {name}, which its report recommends accepting.{flipped}")
        if factor in changed and not accepted:
            raise Hint(f"Best includes {name}, but its report says {decision!r}, not 'accept'.{flipped}")
        product /= reports[name]["ratio"] if accepted else 1.0
    if extra := sorted(changed - set(PARTS)):
        raise Hint(f"Best changes something that was not tested on its own: {', '.join(extra)}.")
    apart = APART_BF16 if "autocast" in changed else APART
    if not facts["moved"] or not all(
        close(after, before, apart) for before, after in zip(*losses_of(facts), strict=True)
    ):
        raise Hint("Best trains differently from the script: same weights, same batches, different losses.")
    best = judge_report(facts["reports"]["best"], "best", facts["trial"])
    for name, wanted, parts, what in (
        ("product", product, tuple(PARTS.values()), "the product of Best's speed-ups, each 1 / its report's ratio"),
        ("speedup", 1 / best["ratio"], ("best",), "the speed-up in the report on Best"),
    ):  # fmt: skip
        if close(facts[name], wanted, 0.02):
            continue
        if of_earlier(facts, facts[name], parts):
            raise Hint(f"A report changed after {name} was computed; rerun the answer's cell.")
        if close(facts[name] * wanted, 1.0, 0.02):
            raise Hint(f"{name} is the inverse of {what}.")
        raise Hint(f"{name} is not {what}. {slip(facts[name], wanted, 0.02)}")


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
