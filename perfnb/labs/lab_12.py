"""Checks for lab 12, *Capstone*.

The checks count work, compare values and read the journal. They do not depend on a clock.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
    calls, total = (None if layers.empty else float(layers[name].iloc[0]) for name in ("calls", "total_ms"))
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
        return f"Only {profile['steps']} of its steps were timed, too few for an interval. Give it a larger budget_s."
    if profile["words"] < 4:
        lacks = "The hypothesis of the profile is too short" if profile["words"] else "The profile has no hypothesis"
        return (
            f"{lacks}. What do you expect to find, and why? Before you read the "
            "report, write it down in a sentence and pass it to journal.add as hypothesis."
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
    missing = [name for name in FAULTS if name not in found]
    if any(name in NAMED for name in missing):
        raise Hint(
            f"{_so_far(len(found))} The findings of your profile name another fault: which of them is about work that "
            "the task does not need, and which method causes it?"
        )
    if missing:
        raise Hint(
            f"{_so_far(len(found))} There is one more, and no finding names it, because a profiler does not know what "
            "the task needs. Compute by hand the FLOPs that one batch needs in one forward pass of the Reader, and "
            "compare them with half of its FLOPs in p.layers, which are those of both passes."
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
    if faults[0] == "boxes" and close(factor, 32 / 7, 0.02):
        return f"{method}: that is the factor of both passes together, and the second pass is waste of its own."
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
    fields = as_fields(said, **dict.fromkeys(names, float))
    if more := [quoted(name) for name in said if name not in names]:
        raise Hint(f"{', '.join(more)} is not in waste. Give a bound for each method in waste, and for no other.")
    profiles = [_described(*found) for found in _profiles(_journal(journal))]
    right = [profile for profile in profiles if not _record_hint(profile)]
    hint_if(not right, "The journal does not have a profile of the script with a hypothesis yet. Solve 12.2 first.")
    return {"said": fields, "waste": names, "profiles": right}


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
            return f"{method}: {_other_bound(value, bound, step_ms)}"
        if fault == "boxes" and not LEAST_SAVED * reader_ms <= value <= MOST_SAVED * reader_ms:
            copied = [name for name, other in profile["findings"].items() if close(value, other, 0.02)]
            return f"{method}: {_other_share(value / reader_ms, copied)}"
    return ""


def _other_bound(value: float, bound: float, step_ms: float) -> str:
    """Explain why a number is not the bound of a finding."""
    if close(value, bound / step_ms, 0.02):
        return "that is the share of the step. Give ms per step."
    if close(value, step_ms - bound, 0.02):
        return "that is what remains of the step. How much could the cure save?"
    if close(1e3 * value, bound, 0.02):
        return "that is in seconds. Give ms per step."
    return "that is not the bound of the finding that names this waste, bound_ms in p.findings."


#: The smallest and largest accepted share of the Reader's time that the empty boxes cost. They cost 9/16 of its FLOPs,
#: which is half of the linear layers and three quarters of attention. Attention may take more time than its FLOPs say.
LEAST_SAVED, MOST_SAVED = 0.54, 0.65


def _other_share(share: float, copied: Sequence[str]) -> str:
    """Explain why a number is not the time that the empty boxes cost, given its share of the Reader's time."""
    if LEAST_SAVED <= 1e3 * share <= MOST_SAVED:
        return "that is in seconds. Give ms per step."
    if close(share, 0.5, 0.04):
        return (
            "half of the boxes are empty, but the cure saves more than half. Attention compares each box with every "
            "other, so its FLOPs grow with the square of their number. Which share of all FLOPs is not needed?"
        )
    if close(share, 0.75, 0.02):
        return (
            "three quarters of attention are not needed, but only half of the linear layers. Weigh them by their FLOPs."
        )
    if copied:
        return f"that is the bound of the finding {quoted(copied[0])}, which names another fault."
    if share > MOST_SAVED:
        return "the passes spend less than that on boxes that are not on the card. How much is it?"
    return (
        "total_ms in p.layers is the time of all passes of the Reader. Which share of their FLOPs is for boxes that "
        "are not on the card? That share of the time could be saved."
    )


#: Number of steps that the check compares, and the seed and number of cards of an archive that the reader has not seen.
STEPS, SEED, CARDS = 3, 11, 12
#: Number of steps after which the check counts the cards that a cure has read.
MANY_STEPS = 20
#: Maximum relative differences due to rounding between float32 and float64, for a loss and for the change of the
#: weights. A first loss in bfloat16 differs by more than that, but by less than a first loss for other inputs.
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
        if name == "after":  # runs on, because a cure may read all cards again every few steps
            _, more = run_counted(lambda *_, made=made: made, archive, MANY_STEPS - STEPS)
            sides[name] |= {"reads": work.reads + more.reads}
    return sides | {"apart": _apart(*weights)}


def _weights(script: Any) -> list[torch.Tensor]:
    return [part.detach().double().clone() for part in script.reader.parameters()]


def _ratio(candidate_ms: float | None, baseline_ms: float | None) -> float | None:
    return None if candidate_ms is None or baseline_ms is None else candidate_ms / baseline_ms


def _log(script: Any) -> list[list[float]]:
    log = getattr(script, "log", None)
    hint_if(not isinstance(log, list), "The script has no log: keep a list of (loss, right) in self.log, as before.")
    rows = [row if isinstance(row, (list, tuple)) else [row] for row in log or []]
    return [[as_number(_detached(value), "A number in the log") for value in row] for row in rows]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


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
    if reads > 2 * CARDS + BATCH * MANY_STEPS:  # at most all of them twice
        raise Hint(
            f"The values are the same, but {MANY_STEPS} steps read {reads} cards of an archive of {CARDS}. Which cards "
            "do you read again although they have not changed?"
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
    if close(new, first, FEWER_DIGITS) and not close(new, first, ROUNDING):
        return (
            "The first loss is close to that of Maya's script, but the difference is larger than rounding in float32. "
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


#: Number of changes that must be proved, which is one for each planted fault.
TESTS = len(FAULTS)


def measure_journal(answer: Any, changes: Any = None) -> Facts:
    tests = list(_tests(_journal(answer)))
    if not isinstance(changes, Mapping):
        raise Hint("changes must be a dictionary: the change of each test, and the two classes that it compared.")
    works: dict[int, Facts] = {}
    said: Facts = {}
    for change, sides in changes.items():
        if not isinstance(sides, (tuple, list)) or len(sides) != 2:
            raise Hint(f"changes: {quoted(change)} needs two classes, the one before the change and the one after it.")
        for make in sides:
            if id(make) not in works:
                script = as_function(make, "the class with an archive and a seed")
                works[id(make)] = vars(run_counted(script, Archive(CARDS, SEED), STEPS, SEED)[1])
        said[_folded(change)] = [works[id(make)] for make in sides]
    return {"tests": tests, "changes": said}


def _folded(change: Any) -> str:
    return " ".join(str(change).split()).casefold()


def _wastes(work: Facts, read_once: int) -> set[str]:
    """Return the planted faults that a script still has. It may read `read_once` cards besides those of its batches."""
    has = {
        "reads": work["reads"] > read_once + BATCH * work["steps"],
        "float64": bool(work["float64"]),
        "passes": work["boxes"] > BATCH * work["steps"] * work["longest"],
        "boxes": work["longest"] > BOXES,
    }
    return {fault for fault, there in has.items() if there}


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
                "medians": _ratio(test.b.median_ms, test.a.median_ms),
            }


def judge_journal(facts: Facts) -> None:
    tests = facts["tests"]
    hint_if(tests == [], "The journal has no A/B test yet. Add the result of perfnb.ab_test for each change.")
    for place, test in enumerate(all_there(tests, 1, or_more=True), start=1):
        where = f"Test {place} ({quoted(test['change'])}):" if test["change"] else f"Test {place}:"
        hint_if(not test["change"], f"{where} what did you change? Pass it to ab_test or to journal.add as change.")
        if _words(test["hypothesis"]) < 4:
            lacks = "its hypothesis is too short" if _words(test["hypothesis"]) else "it has no hypothesis"
            raise Hint(
                f"{where} {lacks}. Which saving did you expect, and why? You learn from a sentence that you wrote "
                "before the test."
            )
        if test["check"] is None:
            raise Hint(f"{where} it did not compare the results, so the change may be wrong. Pass check to ab_test.")
        if test["accepted"] != (test["decision"] == "accept"):
            done = "accepted" if test["accepted"] else "not accepted"
            raise Hint(f"{where} its decision is {test['decision']}, but the entry is {done}. Let the test decide.")
    changes = facts["changes"]
    if len(changes) < TESTS:
        raise Hint(
            f"changes has {len(changes)} of the {TESTS} changes that cure the faults you found. Test one change at a "
            "time, and list each of these tests in changes."
        )
    proofs = {change: [test for test in tests if _folded(test["change"]) == change] for change in changes}
    cured = {fault for change, sides in changes.items() for fault in _cured(change, sides, proofs[change])}
    if len(cured) < TESTS:
        raise Hint(f"The changes cure {len(cured)} of the {TESTS} faults. Which fault does none of them cure?")
    said = {test["hypothesis"].casefold() for tests in proofs.values() for test in tests}
    hint_if(len(said) < TESTS, "Each change needs its own hypothesis.")
    right = [change for change, tests in proofs.items() if any(test["decision"] != "reject" for test in tests)]
    if len(right) < TESTS:
        raise Hint(
            f"Only {len(right)} of the changes were not rejected. Read the reason of each test: a change that is "
            "slower, or whose results differ, cures nothing."
        )


def _cured(change: str, sides: list[Facts], proofs: list[Facts]) -> set[str]:
    """Return the one fault that a change cures, or raise a `Hint` if it is not tested or cures none or several."""
    where = f"changes: {quoted(change)}"
    hint_if(not proofs, f"{where} is not the change of any test in the journal.")
    before, after = (_wastes(work, 2 * CARDS) for work in all_there(sides, 2))
    cured = before - after
    hint_if(after - before, f"{where}: the second class does work that the first does not. Are they swapped?")
    hint_if(not cured, f"{where}: both classes read and compute the same, so this change cures nothing.")
    if len(cured) > 1:
        raise Hint(
            f"{where} cures {len(cured)} faults. Test one change at a time, because a test of two changes is no "
            "evidence for either."
        )
    return cured


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


def measure_report(
    answer: Any, whole: Any = None, scripts: Any = None, waste: Any = None, journal: Any = None
) -> Facts:
    fields = as_fields(answer, ratio=float, low=float, high=float, unnamed=str, text=str)
    if not isinstance(whole, ABTest):
        raise Hint("Pass the test of the whole as well: whole=whole, the result of perfnb.ab_test.")
    hint_if(whole.ratio_ci is None, "The test of the whole ran too few pairs; give it a larger budget_s.")
    if not isinstance(waste, Mapping) or not waste:
        raise Hint("Solve 12.3 first: the text names the methods in waste.")
    if not isinstance(scripts, (tuple, list)) or len(scripts) != 2 or ... in scripts:
        raise Hint("Pass the two scripts of the test as well: scripts=(mayas, mine).")
    found = [test for test in _tests(_journal(journal)) if test["ratio"] == whole.ratio]
    return {
        "said": fields,
        "tests": found,
        "numbers": _numbers(fields["text"]),
        "words": _words(fields["text"]),
        "unsaid": [name for name in map(_method, waste) if not re.search(rf"\b{re.escape(name)}\b", fields["text"])],
        "pairs": len(whole.pairs),
        "scripts": [_one_step(script) for script in scripts],
    }


def _one_step(script: Any) -> Facts:
    """Return how many steps a script has logged, and the work of another step."""
    logged = len(_log(script))
    archive = getattr(script, "archive", None)
    archive = archive if isinstance(archive, Archive) else Archive(1)
    return {"logged": logged} | vars(run_counted(lambda *_: script, archive, 1)[1])


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
    _compared(facts["scripts"], facts["pairs"])
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
    ratio.slip(round(test["ratio"], 2), "give at least three digits of whole.ratio, which comes from the pairs.", 1e-9)
    ratio.slip(
        test["medians"], "that is the ratio of the two medians. Give whole.ratio, which comes from the pairs.", 0.003
    )
    ratio.wrong("it is not that of the test of the whole.")
    for name, end in (("low", low), ("high", high)):
        interval = Number(said[name], end, 0.02, f"{name}:")
        interval.slip((low, high), "the two ends of the interval are swapped.")
        interval.slip((1 / low, 1 / high), "that belongs to the inverse ratio.")
        interval.slip(round(end, 2), "give at least three digits.", 1e-9)
        interval.wrong("it is not an end of the interval of the test of the whole, ratio_ci.")
    _unnamed(said["unnamed"])
    if facts["words"] < LEAST_WORDS:
        raise Hint(
            f"text: {facts['words']} words tell Maya too little. What was slow, what did you change, how much faster "
            "is it, and what stayed the same?"
        )
    if facts["unsaid"]:
        raise Hint(f"text: it does not name {', '.join(facts['unsaid'])}. Tell Maya about each method in waste.")
    shown = (test["ratio"], 1 / test["ratio"], 100 * test["ratio"], 100 * (1 - test["ratio"]))
    if not any(close(number, value, 0.05, half) for number, half in facts["numbers"] for value in shown):
        raise Hint("text: it lacks the measured result. Give the ratio of the whole, or how many times as fast it is.")


def _compared(scripts: Any, pairs: int) -> None:
    """Raise a `Hint` unless the test of the whole compared Maya's script with one that has none of its faults."""
    before, after = all_there(scripts, 2)
    if min(before["logged"], after["logged"]) < pairs:
        raise Hint(f"The test of the whole has {pairs} pairs, but mayas and mine did not run as often. Test these two.")
    if len(_wastes(before, 0)) < TESTS:
        raise Hint("mayas is not Maya's script. The baseline of the test of the whole is Nightly, without any cure.")
    if left := len(_wastes(after, 0)):
        raise Hint(f"mine still has {left} of the {TESTS} faults. The candidate of the test of the whole is Cured.")


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
