"""Checks for lab 12, *Capstone*.

The checks count work, compare values and read the journal. They do not depend on a clock.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from perfnb import Profile
from perfnb.errors import PerfnbError
from perfnb.labs.answers import as_fields, as_function, as_number, outcome
from perfnb.labs.exercise import Exercise, Facts, Hint, is_false, quoted
from perfnb.labs.judging import Number, all_there, close, hint_if
from perfnb.labs.made_night import BOXES, Archive, run_counted
from perfnb.results import ABTest, Journal

#: Number of cards in one of the script's batches and in the lab's archive.
BATCH, ARCHIVE = 2, 400
#: The script's methods that may be named for each planted fault, and the factors by which they do too much work.
FAULTS: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "reads": (("brightness", "cards"), ((ARCHIVE + BATCH) / BATCH, ARCHIVE / BATCH)),
    "float64": (("new_reader", "cards", "brightness"), (2.0,)),
    "passes": (("right", "loss", "step"), (2.0, 4 / 3)),  # in forward passes, or in FLOPs including the backward pass
    "boxes": (("padded",), (2.0, 16 / 7)),  # in boxes, or in FLOPs including attention
}
#: The finding that names each fault. No finding names the boxes.
NAMED = {"reads": "host code", "float64": "float64", "passes": "repeated forward"}


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, model=float, waste=float, faster=float)


def judge_prediction(facts: Facts) -> None:
    hint_if(not 0 <= facts["model"] <= 1, "model is a share of the step, from 0 to 1.")
    hint_if(facts["waste"] < 1, "waste is a factor: 1 means no waste, and 3 means three times as much work as needed.")
    hint_if(facts["faster"] < 1, "faster is a factor: 2 means twice as fast. Would a cure make it slower?")
    hint_if(facts["faster"] > 1e4, f"faster: {facts['faster']:.3g} is too much. Give a factor.")


def _journal(given: Any) -> Journal:
    if not isinstance(given, Journal):
        raise Hint("Pass the journal, the result of perfnb.journal.")
    return given


def _words(text: Any) -> int:
    return len(re.findall(r"\w+", text)) if isinstance(text, str) else 0


def _profiles(journal: Journal) -> Iterator[tuple[Any, Profile]]:
    """Yield the row of each profile that was added, together with the profile."""
    for row in journal.history.itertuples():
        if row.kind == "profile":
            try:
                loaded = journal.load(str(row.Index))
            except (PerfnbError, ValueError):
                continue
            if isinstance(loaded, Profile):
                yield row, loaded


def _described(row: Any, profile: Profile) -> Facts:
    layers, findings = profile.layers, profile.findings
    top = layers.loc[layers.index[:1]]
    calls, total = (None if top.empty else float(top[name].iloc[0]) for name in ("calls", "total_ms"))
    bounds = findings.set_index("bottleneck")["bound_ms"].dropna()
    return {
        "words": _words(row.hypothesis),
        "named": bool(row.name),
        "steps": int(row.steps),
        "step_ms": float(row.median_ms),
        "calls": calls,
        "reader_ms": total,
        "backward": bool(profile.phases["ms"].get("backward", 0.0) > 0),
        "findings": {str(name): float(bound) for name, bound in bounds.items()},
    }


def measure_record(answer: Any) -> Facts:
    return {"profiles": [_described(*found) for found in _profiles(_journal(answer))]}


def judge_record(facts: Facts) -> None:
    profiles = facts["profiles"]
    hint_if(profiles == [], "The journal has no profile yet. Profile the step, and add the result to the journal.")
    all_there(profiles, 1, or_more=True)
    hints = [_record_hint(profile) for profile in profiles]
    if all(hints):
        raise Hint(hints[-1])


def _record_hint(profile: Facts) -> str:
    """Return a hint about what is missing in a profile of the script. It is empty if nothing is missing."""
    if profile["calls"] is None:
        return "The profile has no layers. Pass the Reader of the script that you profile: model=night.reader."
    if not profile["backward"]:
        return "Nothing runs backward in the profile. Profile the whole step of the script, not a part of it."
    if not close(profile["calls"], 2, 0.1):
        return "This is not a profile of the script as Maya left it. Record where you start before you change anything."
    if profile["steps"] < 3:
        return f"It has {profile['steps']} timed steps, too few for an interval. Give the profile a larger budget."
    if profile["words"] < 4:
        return (
            "The profile has no hypothesis. What do you expect to find, and why? Before you read the report, write it "
            "down in a sentence and pass it to journal.add as hypothesis."
        )
    if not profile["named"]:
        return "Give the entry a name, so that the journal can tell your steps apart."
    return ""


def _method(key: Any) -> str:
    """Return the name of a method that is given by its name or as the method itself."""
    return str(getattr(key, "__name__", key))


def measure_diagnosis(answer: Any, script: Any = None) -> Facts:
    hint_if(not isinstance(answer, Mapping), "The answer must be a dictionary: the method, and its factor.")
    hint_if(not answer, "The dictionary is empty: name the methods that waste work, each with its factor.")
    methods = [name for name, _ in inspect.getmembers(as_function(script, "the script"), inspect.isfunction)]
    said: dict[str, float] = {}
    for name, factor in answer.items():
        if (method := _method(name)) not in methods:
            raise Hint(f"The script has no method {quoted(method)}. Its methods are {', '.join(sorted(methods))}.")
        said[method] = as_number(factor, method)
    return {"said": said}


def judge_diagnosis(facts: Facts) -> None:
    found: dict[str, str] = {}
    for method, factor in facts["said"].items():
        fault = next((name for name in FAULTS if _is(name, method, factor)), None)
        if fault is None:
            raise Hint(_not_a_fault(method, factor))
        if fault in found:
            raise Hint(f"{method} and {found[fault]} name the same waste. Keep the one where you would cure it.")
        found[fault] = method
    hint_if(not found, "The facts are incomplete.")
    missing = [name for name in FAULTS if name not in found]
    if any(name in NAMED for name in missing):
        raise Hint(
            f"{_so_far(len(found))} The findings of your profile name another fault: which of them is about work that "
            "the task does not need, and which method causes it?"
        )
    if missing:
        raise Hint(
            f"{_so_far(len(found))} There is one more, and no finding names it, because a profiler does not know what "
            "the task needs. Compute by hand the FLOPs that one batch needs, and compare them with p.layers."
        )


def _so_far(count: int) -> str:
    return f"{count} are right, and none are wrong." if count > 1 else "This one is right."


def _is(fault: str, method: str, factor: float) -> bool:
    methods, factors = FAULTS[fault]
    return method in methods and any(close(factor, right, 0.01) for right in factors)


def _not_a_fault(method: str, factor: float) -> str:
    faults = [name for name, (methods, _) in FAULTS.items() if method in methods]
    if not faults:
        return f"{method}: the task needs everything that it does once per step. What would be missing without it?"
    if factor <= 1:
        return f"{method}: {factor:.3g} would be no waste. Give the work done divided by the work needed."
    if faults[0] == "reads":
        return (
            f"{method}: count the cards that it makes the archive read in one step (archive.reads counts them), and "
            "divide by the number that a step needs."
        )
    return {
        "float64": f"{method}: compare the bytes of one number with those of a number that is precise enough.",
        "passes": f"{method}: how many passes of the Reader does a step take, and how many does it need?",
        "boxes": f"{method}: how many boxes per card does the Reader get, and how many does a card have?",
    }[faults[0]]


def measure_bound(answer: Any, waste: Any = None, journal: Any = None) -> Facts:
    if not isinstance(waste, Mapping) or not waste:
        raise Hint("Solve the previous exercise first: the bounds are about the methods in your answer to it.")
    names = {_method(name): float(factor) for name, factor in waste.items()}
    said = {_method(name): ms for name, ms in answer.items()} if isinstance(answer, Mapping) else answer
    profiles = [_described(*found) for found in _profiles(_journal(journal))]
    right = [profile for profile in profiles if not _record_hint(profile)]
    hint_if(not right, "The journal does not have a profile of the script with a hypothesis yet. Solve 12.2 first.")
    return {"said": as_fields(said, **dict.fromkeys(names, float)), "waste": names, "profiles": right}


def judge_bound(facts: Facts) -> None:
    said, profiles = facts["said"], all_there(facts["profiles"], 1, or_more=True)
    faults = {name: method for method, factor in facts["waste"].items() for name in FAULTS if _is(name, method, factor)}
    hint_if(len(faults) < len(FAULTS), "Find all of the waste in the previous exercise first.")
    hints = [_bound_hint(said, faults, profile) for profile in profiles]
    if all(hints):
        raise Hint(hints[-1])


def _bound_hint(said: Mapping[str, float], faults: Mapping[str, str], profile: Facts) -> str:
    """Return a hint about what is wrong with the bounds, based on one profile."""
    step_ms, reader_ms = profile["step_ms"], profile["reader_ms"]
    for fault, method in faults.items():
        value = said[method]
        if value <= 0:
            return f"{method}: {value:.3g} ms is no saving."
        if value > step_ms:
            return f"{method}: {value:.3g} ms is more than the whole step takes. Give ms per step."
        bound = profile["findings"].get(NAMED.get(fault, ""))
        if bound is not None and not close(value, bound, 0.02, 0.06):
            if close(value, bound / step_ms, 0.02):
                return f"{method}: that is the share of the step. Give ms per step."
            if close(value, step_ms - bound, 0.02):
                return f"{method}: that is what remains of the step. How much could the cure save?"
            return f"{method}: that is not the bound of the finding that names this waste, bound_ms in p.findings."
        if fault == "boxes" and not 0.4 * reader_ms <= value <= 0.76 * reader_ms:
            if value > 0.76 * reader_ms:
                return f"{method}: the passes spend less than that on boxes that are not on the card. How much is it?"
            return (
                f"{method}: p.layers has the time of all passes of the Reader. Which fraction of the boxes in them is "
                "not on the card? That fraction of the time could be saved."
            )
    return ""


#: Number of steps that the check runs, and the seed and number of cards of an archive that the reader has not seen.
STEPS, SEED, CARDS = 3, 11, 12
#: Maximum relative differences due to rounding between float32 and float64, for a loss and for the change of the
#: weights. A loss in bfloat16 differs by more than that, but by less than a loss for other inputs.
ROUNDING, MOVED, FEWER_DIGITS = 1e-5, 1e-3, 5e-4


def measure_cure(answer: Any, script: Any = None) -> Facts:
    hint_if(answer is script, "Cured is still Maya's script. Assign your own class to it.")
    sides: Facts = {}
    weights = [_weights(outcome(as_function(script, "the class with an archive and a seed"), Archive(1), SEED))]
    for name, make in (("before", script), ("after", answer)):
        archive = Archive(CARDS, SEED)
        made, work = run_counted(as_function(make, "the class with an archive and a seed"), archive, STEPS, SEED)
        sides[name] = vars(work) | {"log": _log(made)}
        weights.append(_weights(made))
    return sides | {"apart": _apart(*weights)}


def _weights(script: Any) -> list[torch.Tensor]:
    return [part.detach().double().clone() for part in script.reader.parameters()]


def _log(script: Any) -> list[list[float]]:
    log = getattr(script, "log", None)
    hint_if(not isinstance(log, list), "The script has no log: keep a list of (loss, right) in self.log, as before.")
    rows = [row if isinstance(row, (list, tuple)) else [row] for row in log or []]
    return [[as_number(value, "A number in the log") for value in row] for row in rows]


def _apart(start: list[torch.Tensor], before: list[torch.Tensor], after: list[torch.Tensor]) -> float | None:
    """Return the distance between two lists of weights relative to how far training moved them.

    The result is ``None`` if the shapes differ.
    """
    if [part.shape for part in before] != [part.shape for part in after]:
        return None
    first, one, other = (torch.cat([part.flatten() for part in parts]) for parts in (start, before, after))
    apart = float((other - one).norm() / (one - first).norm())
    return apart if math.isfinite(apart) else None


def judge_cure(facts: Facts) -> None:
    before, after = facts["before"], facts["after"]
    all_there(before["log"], STEPS)
    if (before["passes"], before["longest"]) != (2 * STEPS, 2 * BOXES) or is_false(before["float64"]):
        raise Hint("Nightly itself has changed. Run its cell again, and put your cures into Cured.")
    _same_values(before["log"], after["log"])
    apart = facts["apart"]
    if apart is None or apart > MOVED:
        raise Hint(
            "The losses are right, but after some steps the weights differ from those of Maya's script. Does each step "
            "still train with clipped gradients?"
        )
    steps, needed = after["steps"], BATCH * BOXES
    reads = after["reads"]
    if reads > 2 * CARDS + BATCH * steps:  # at most all of them twice
        raise Hint(
            f"The values are the same, but {steps} steps read {reads} cards of an archive of {CARDS}. Which cards do "
            "you read again although they have not changed?"
        )
    if after["float64"]:
        raise Hint("The values are the same, but the Reader's inputs or weights still use 8 bytes per number.")
    if after["longest"] > BOXES:
        raise Hint(f"The values are the same, but the Reader still computes {after['longest']} boxes per card.")
    if after["boxes"] > needed * steps:
        raise Hint(
            f"The values are the same, but the Reader computes {after['boxes'] // steps} boxes per step, and a batch "
            f"has {needed}. Which result do you have already?"
        )
    hint_if(after["boxes"] < needed * steps, "The Reader computed fewer boxes than the batches have.")


def _same_values(before: list[list[float]], after: list[list[float]]) -> None:
    """Raise a `Hint` unless two logs have the same losses and, except for near ties, the same counts."""
    if len(after) != len(before):
        raise Hint(f"After {len(before)} steps, your log has {len(after)} rows. Log each step, as Maya's script does.")
    if any(len(row) != 2 for row in after):
        raise Hint("A row of the log is (loss, right): both are part of the task.")
    losses = [(loss, new) for (loss, _), (new, _) in zip(before, after, strict=True)]
    hint_if(not all(close(new, loss, ROUNDING) for loss, new in losses), _other_losses(losses))
    for (_, right), (_, counted) in zip(before, after, strict=True):
        if abs(counted - right) > 2:
            raise Hint(
                f"The losses are the same, but {counted:.0f} boxes were read right in a step where Maya's script "
                f"counts {right:.0f}. Her log needs that number, so find a cheaper way to count it."
            )


def _other_losses(losses: list[tuple[float, float]]) -> str:
    """Return a hint about what may be wrong with a cure's losses, which are paired with the original script's."""
    first, new = losses[0]
    if all(close(new, loss, FEWER_DIGITS) for loss, new in losses):
        return (
            "The losses are close to those of Maya's script, but the difference is larger than rounding in float32. "
            "Something is computed with fewer digits."
        )
    if close(first, new, ROUNDING):
        return (
            "The first loss is that of Maya's script, but the later losses are not: your cure changes how it trains. "
            "Does each step draw the same cards, and update the same weights in the same way?"
        )
    return (
        f"The first loss is {new:.4f} instead of {first:.4f}: your cure computes something else. Do the cards, their "
        "brightness, the random draws and the boxes that count in the loss stay the same?"
    )


#: Minimum number of changes that the journal must test, which is one for each planted fault.
TESTS = len(FAULTS)


def measure_journal(answer: Any) -> Facts:
    return {"tests": list(_tests(_journal(answer)))}


def _tests(journal: Journal) -> Iterator[Facts]:
    """Yield the facts of a journal's A/B tests in chronological order."""
    for row in journal.history.itertuples():
        if row.kind != "report":
            continue
        try:
            test = journal.load(str(row.Index))
        except (PerfnbError, ValueError):
            continue
        if isinstance(test, ABTest):
            yield {
                "change": " ".join(str(row.change).split()) if isinstance(row.change, str) else "",
                "hypothesis": str(row.hypothesis) if isinstance(row.hypothesis, str) else "",
                "decision": test.decision,
                "accepted": bool(row.accepted),
                "check": test.check,
                "ratio": None if test.ratio_ci is None else float(test.ratio),
                "ratio_ci": None if test.ratio_ci is None else [float(end) for end in test.ratio_ci],
            }


def judge_journal(facts: Facts) -> None:
    tests = facts["tests"]
    hint_if(tests == [], "The journal has no A/B test yet. Add the result of perfnb.ab_test for each change.")
    for place, test in enumerate(all_there(tests, 1, or_more=True), start=1):
        where = f"Test {place} ({quoted(test['change'])}):" if test["change"] else f"Test {place}:"
        hint_if(not test["change"], f"{where} what did you change? Pass it to ab_test or to journal.add as change.")
        if _words(test["hypothesis"]) < 4:
            raise Hint(
                f"{where} it has no hypothesis. Which saving did you expect, and why? You learn from a sentence that "
                "you wrote before the test."
            )
        if test["check"] is None:
            raise Hint(f"{where} it did not compare the results, so the change may be wrong. Pass check to ab_test.")
        if test["accepted"] != (test["decision"] == "accept"):
            done = "accepted" if test["accepted"] else "not accepted"
            raise Hint(f"{where} its decision is {test['decision']}, but the entry is {done}. Let the test decide.")
    changes = {test["change"].casefold() for test in tests}
    if len(changes) < TESTS:
        raise Hint(
            f"The journal has tests of {len(changes)} change(s), but you found {TESTS} faults. Test one change at a "
            "time, because a test of two changes is no evidence for either."
        )
    hint_if(len({test["hypothesis"].casefold() for test in tests}) < TESTS, "Each change needs its own hypothesis.")
    right = {test["change"].casefold() for test in tests if test["decision"] != "reject"}
    if len(right) < TESTS:
        raise Hint(
            f"Only {len(right)} of the changes were not rejected. Read the reason of each test: a change that is "
            "slower, or whose results differ, cures nothing."
        )


def undecided(facts: Facts) -> str:
    """Explain which changes no test has decided on, as can happen on a busy machine.

    The result is empty if all changes are decided.
    """
    tests = facts["tests"]
    accepted = {test["change"].casefold() for test in tests if test["decision"] == "accept"}
    last = {test["change"].casefold(): test["change"] for test in tests if test["decision"] == "inconclusive"}
    left = [quoted(change) for folded, change in last.items() if folded not in accepted]
    if not left:
        return ""
    return f"these times do not decide on {', '.join(left)}. Test again, with a larger budget_s or on an idle machine"


#: Maximum ratio of the whole that is plausible if all faults are cured. Without noise, the ratio is about 0.12.
MOST_RATIO = 0.6
#: Minimum number of words in the text of a report.
LEAST_WORDS = 25


def measure_report(answer: Any, whole: Any = None, journal: Any = None) -> Facts:
    fields = as_fields(answer, ratio=float, low=float, high=float, unnamed=str, text=str)
    if not isinstance(whole, ABTest):
        raise Hint("Pass the test of the whole as well: whole=whole, the result of perfnb.ab_test.")
    hint_if(whole.ratio_ci is None, "The test of the whole ran too few pairs; give it a larger budget_s.")
    found = [test for test in _tests(_journal(journal)) if test["ratio"] == whole.ratio]
    return {"said": fields, "tests": found, "numbers": _numbers(fields["text"]), "words": _words(fields["text"])}


def _numbers(text: str) -> list[list[float]]:
    """Return the numbers in a text, each with half a unit of its last digit, which is the maximum rounding error."""
    found = re.findall(r"(\d{1,9})(?:[.,](\d{1,9}))?", text)[:100]
    return [[float(f"{whole}.{digits or 0}"), 0.5 * 10.0 ** -len(digits)] for whole, digits in found]


def judge_report(facts: Facts) -> None:
    said, tests = facts["said"], facts["tests"]
    hint_if(tests == [], "The test of the whole is not in the journal. Add it, with a hypothesis.")
    test = all_there(tests, 1, or_more=True)[-1]
    hint_if(_words(test["hypothesis"]) < 4, "The test of the whole has no hypothesis. What did you expect?")
    if test["check"] is None or test["check"]:
        raise Hint(
            "The test of the whole does not show that the results are the same. Pass check and look at the verdict."
        )
    low, high = test["ratio_ci"]
    if test["ratio"] > MOST_RATIO:
        raise Hint(
            f"The candidate takes {test['ratio']:.2f} of the baseline's time. All cures together save more than that: "
            "is the baseline Nightly, and the candidate Cured?"
        )
    ratio = Number(said["ratio"], test["ratio"], 0.02, "ratio:")
    ratio.slip(
        1 / test["ratio"], "that is how many times as fast it is. Divide the candidate's time by the baseline's."
    )
    ratio.slip(1 - test["ratio"], "that is the share that was saved. Give what remains.")
    ratio.wrong("it is not that of the test of the whole.")
    for name, end in (("low", low), ("high", high)):
        interval = Number(said[name], end, 0.02, f"{name}:")
        interval.slip((low, high), "the two ends of the interval are swapped.")
        interval.slip((1 / low, 1 / high), "that belongs to the inverse ratio.")
        interval.wrong("it is not an end of the interval of the test of the whole, ratio_ci.")
    _unnamed(said["unnamed"])
    if facts["words"] < LEAST_WORDS:
        raise Hint(
            f"text: {facts['words']} words tell Maya too little. What was slow, what did you change, how much faster "
            "is it, and what stayed the same?"
        )
    shown = (test["ratio"], 1 / test["ratio"], 100 * test["ratio"], 100 * (1 - test["ratio"]))
    if not any(close(number, value, 0.05, half) for number, half in facts["numbers"] for value in shown):
        raise Hint("text: it lacks the measured result. Give the ratio of the whole, or how many times as fast it is.")


def _unnamed(method: str) -> None:
    name = method.strip().removesuffix("()")
    if name in FAULTS["boxes"][0]:
        return
    if any(name in FAULTS[fault][0] for fault in NAMED):
        raise Hint("unnamed: a finding of the profile names that one. Which waste did you find without a finding?")
    raise Hint("unnamed: give the name of the method whose waste no finding names.")


EXERCISES = (
    Exercise("12.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("12.2", "Record", measure_record, judge_record),
    Exercise("12.3", "Diagnose", measure_diagnosis, judge_diagnosis),
    Exercise("12.4", "Bound", measure_bound, judge_bound),
    Exercise("12.5", "Cure", measure_cure, judge_cure),
    Exercise("12.6", "Prove", measure_journal, judge_journal, doubts=undecided),
    Exercise("12.7", "Report", measure_report, judge_report),
)
