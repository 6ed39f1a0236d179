"""Checks for lab 10, *More than one process*.

The checks judge bytes, counts and made-up times. They do not read a clock.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from perfnb import quantities as fmt
from perfnb.labs.answers import as_fields, as_function, as_numbers, evidence, outcome, result_of, tried
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Lists, Number, Numbers, all_there, close, hint_if
from perfnb.labs.made_job import CountedModel
from perfnb.results import Ranks


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, speedup=float, transfers=float, overlap=float)


def judge_prediction(facts: Facts) -> None:
    speedup, transfers, overlap = (facts[name] for name in ("speedup", "transfers", "overlap"))
    hint_if(not 0 < speedup <= 20, "speedup is a factor: 2.0 means twice as fast, and 1.0 means no difference.")
    if transfers != int(transfers) or not 1 <= transfers <= 1e6:
        raise Hint("transfers: how often in one step do the two processes exchange gradients? Give a whole number.")
    hint_if(overlap < 0, "overlap: nothing becomes slower because it runs at the same time; 0 means no gain.")
    hint_if(overlap >= 1, "overlap is a share of the step, from 0 to 1; a step that is 1 shorter takes no time.")


#: The step times of one rank and of several ranks (median and interval), the number of ranks, and the mode.
SCALED: tuple[tuple[tuple[float, float, float], tuple[float, float, float], int, str], ...] = (
    ((120.0, 118.0, 124.0), (80.0, 76.0, 84.0), 2, "strong"),
    ((120.0, 118.0, 124.0), (150.0, 147.0, 160.0), 2, "weak"),
    ((900.0, 880.0, 915.0), (150.0, 140.0, 165.0), 8, "strong"),
    ((40.0, 39.0, 42.0), (44.0, 43.0, 47.0), 4, "weak"),
)


def measure_efficiency(answer: Any) -> Facts:
    function = as_function(answer, "efficiency(one, several, ranks, mode)")
    cases = []
    for one, several, ranks, mode in SCALED:
        said = as_numbers(outcome(function, one, several, ranks, mode), 3, "numbers (value, low, high)")
        cases.append({"one": list(one), "several": list(several), "ranks": ranks, "mode": mode, "said": said})
    return {"cases": cases}


def _divisor(case: Facts) -> float:
    return 1.0 if case["mode"] == "weak" else float(case["ranks"])


def _of_steps(
    case: Facts, divisor: float, low: tuple[int, int] = (1, 2), high: tuple[int, int] = (2, 1)
) -> list[float]:
    """Return a value and its interval, dividing a step time of one rank by a step time of several ranks.

    `low` and `high` determine which ends of the two intervals are combined.
    """
    one, several = case["one"], case["several"]
    return [one[a] / several[b] / divisor for a, b in ((0, 0), low, high)]


def judge_efficiency(facts: Facts) -> None:
    cases = facts["cases"]
    every = Lists(cases, len(SCALED), lambda case: _of_steps(case, _divisor(case)), 1e-4)
    every.slip(
        lambda case: _of_steps(case, _divisor(case) / case["ranks"]),
        "That is the speed-up: work per second compared with one rank. The efficiency is the speed-up per rank.",
    )
    every.slip(
        lambda case: _of_steps(case, _divisor(case), (1, 1), (2, 2)),
        "The values are right, but the intervals are not. They divide low by low and high by high, as if both steps "
        "were long at the same time. Which step of one rank and which of several make the efficiency lowest?",
    )
    every.slip(
        lambda case: _of_steps(case, _divisor(case), (2, 1), (1, 2)),
        "The value is right, but the two ends of the interval are swapped: low comes first.",
    )
    every.slip(
        lambda case: [100 * number for number in _of_steps(case, _divisor(case))],
        "It looks like percent; give numbers where 1 means perfect.",
    )
    every.slip(
        lambda case: [
            case["several"][a] / case["one"][b] * case["ranks"] ** (case["mode"] == "strong")
            for a, b in ((0, 0), (1, 2), (2, 1))
        ],
        "It looks like the inverse: a longer step of several ranks must give a lower efficiency.",
    )
    if every.right:
        return

    def values(divisor: Callable[[Facts], float]) -> bool:
        """Check whether the values are speed-ups divided by this divisor. The intervals do not matter."""
        return all(close(case["said"][0], _of_steps(case, divisor(case))[0], 1e-4) for case in cases)

    if values(_divisor):
        raise Hint(
            "The values are right, but the intervals are not. Which of the possible steps of one rank, and which of "
            "those of several, make the efficiency lowest?"
        )
    if values(lambda case: case["ranks"] / _divisor(case)):
        raise Hint("You have swapped the two modes. Which one gives each rank as much work as one rank alone?")
    hint_if(
        values(lambda case: case["ranks"]),
        "Your values are right for strong scaling only. In weak scaling, each rank does as much work as one rank "
        "alone.",
    )
    hint_if(
        values(lambda case: 1.0),
        "Your values are right for weak scaling only. In strong scaling, the ranks together do the work of one.",
    )
    for power in (-1, 0, 1):
        hint_if(
            values(lambda case, power=power: _upside_down(case) * _divisor(case) ** power),  # type: ignore[misc]
            "Your ratio is upside down: a longer step of several ranks must give a lower efficiency.",
        )
    every.wrong(
        "How much work does the job do per second, compared with one rank? Divide that by the number of ranks. Try it "
        "on paper: one rank takes 100 ms, and two take 50 ms for the same batch, or 100 ms for a batch each."
    )


def _upside_down(case: Facts) -> float:
    """Return the number that turns the ratio of the two steps into its inverse when the ratio is divided by it."""
    return float((case["one"][0] / case["several"][0]) ** 2)


#: Numbers of parameters, of ranks, and of exchanges of gradients per step.
SENT: tuple[tuple[int, int, int], ...] = ((604_426, 2, 4), (604_426, 2, 1), (1_000_000, 8, 1), (5_000, 1, 4),
                                          (70_000, 64, 3))  # fmt: skip


def measure_sent(answer: Any) -> Facts:
    function = as_function(answer, "sent_bytes(parameters, ranks, times)")
    return {"cases": tried(function, SENT, lambda count, ranks, times: 8 * count * (ranks - 1) / ranks * times)}


def judge_sent(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(SENT), 1e-6)
    every.slip(
        lambda case: case["wanted"] / 2,
        "That is one round of the ring, after which each rank knows one piece of the sum. How do the others get it?",
    )
    every.slip(lambda case: case["wanted"] / 4, "Those are numbers. How many bytes does a float32 have?")
    every.slip(lambda case: 2 * case["wanted"], "A float32 has four bytes, not eight.")
    every.slip(lambda case: 8 * case["wanted"], "It looks like bits.")
    every.slip(lambda case: case["wanted"] / case["sizes"][2], "That is for one exchange. How many are in a step?")
    every.slip(lambda case: case["wanted"] * case["sizes"][1], "That is what all ranks send together.")
    every.slip(
        lambda case: 4 * case["sizes"][0] * case["sizes"][2],
        "That is the size of the gradients, and it is the same for any number of ranks. What does one rank alone send?",
    )
    every.slip(
        lambda case: 8 * case["sizes"][0] * case["sizes"][2],
        "In a round of the ring, a rank passes on all pieces but one. How large are they together?",
    )
    every.slip(
        lambda case: 4 * case["sizes"][0] * (case["sizes"][1] - 1) * case["sizes"][2],
        "That is everybody sending everything to everybody. In the ring, a rank only sends pieces to its neighbour.",
    )
    for case in facts["cases"]:
        count, ranks, times = case["sizes"]
        where = (
            f"For {count:,} parameters, {fmt.counted(ranks, 'rank')} and {fmt.counted(times, 'exchange')} per step, "
            f"your result is {case['said']:,.6g}."
        )
        Number(case["said"], case["wanted"], 1e-6, where).wrong(
            "", "Into how many pieces is the gradient cut, and how many of them does a rank pass on in each round?"
        )


def _sizes_of_reader() -> list[int]:
    """Return the gradient sizes of the lab's Reader in bytes, in the order of its parameters."""
    block = [128, 128, 3 * 128 * 128, 3 * 128, 128 * 128, 128, 128, 128, 4 * 128 * 128, 4 * 128, 4 * 128 * 128, 128]
    return [4 * count for count in (64 * 128, 128, *block, *block, *block, 10 * 128, 10)]


#: Sizes of the gradients in the order of the model's layers, and the size at which a bucket is full, in bytes.
FILLED: tuple[tuple[list[int], int], ...] = (
    ([4, 3, 2, 6, 1], 5),
    (_sizes_of_reader(), 2**19),
    ([100, 50, 300, 20, 80, 10, 60], 130),
    ([5, 5], 1000),
)


#: The facts contain this instead of an empty list of buckets if the first case had a bucket.
NO_BUCKET = [0.0]


def measure_buckets(answer: Any) -> Facts:
    function = as_function(answer, "buckets(sizes, full)")
    cases: list[Facts] = []
    for sizes, full in FILLED:
        returned = outcome(function, list(sizes), full)
        if isinstance(returned, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in returned):
            raise Hint("Return one number for each bucket, its size in bytes, rather than a list of its gradients.")
        if cases and isinstance(returned, (list, tuple)) and not returned:
            returned = NO_BUCKET
        cases.append({"sizes": sizes, "full": full, "said": as_numbers(returned, None, "the bytes of the buckets")})
    return {"cases": cases}


def filled(sizes: Sequence[float], full: Callable[[float, float], bool], *, rest: bool = True) -> list[float]:
    """Return the sizes of buckets in bytes.

    ``full(bytes, next)`` decides whether a bucket is sent before the next gradient is added.
    """
    found, held = [], 0.0
    for place, size in enumerate(sizes):
        held += size
        following = sizes[place + 1] if place + 1 < len(sizes) else 0
        if full(held, following):
            found.append(held)
            held = 0.0
    return [*found, held] if held and rest else found


def judge_buckets(facts: Facts) -> None:
    def backwards(case: Facts) -> list[float]:
        return list(reversed(case["sizes"]))

    def right(case: Facts) -> list[float]:
        return filled(backwards(case), lambda held, _: held >= case["full"])

    cases = all_there(facts["cases"], len(FILLED))
    every = Lists(cases, len(FILLED), right)
    every.slip(
        lambda case: filled(case["sizes"], lambda held, _: held >= case["full"]),
        "You start with the first layer of the model. Whose gradient does the backward pass compute first?",
    )
    every.slip(
        lambda case: list(reversed(right(case))),
        "The buckets are right, but in the wrong order: the bucket that is sent first comes first.",
    )
    every.slip(
        lambda case: filled(backwards(case), lambda held, following: held + following > case["full"]),
        "You send a bucket before it would exceed its size. DDP sends a bucket as soon as it has reached its size.",
    )
    every.slip(
        lambda case: filled(backwards(case), lambda held, _: held > case["full"]),
        "A bucket that has exactly this size is full, too.",
    )
    every.slip(
        lambda case: filled(backwards(case), lambda held, _: held >= case["full"], rest=False) or NO_BUCKET,
        "What is left over at the end of the backward pass is sent, too, although that bucket is not full.",
    )
    every.slip(
        lambda case: [float(sum(case["sizes"]))], "That is one bucket with everything; send each one when it is full."
    )
    every.slip(backwards, "Those are the gradients one by one. Collect them until a bucket is full.")
    every.slip(
        lambda case: right(case) + [0.0] * (right(case)[-1] >= case["full"]),
        "When the last gradient fills a bucket, nothing is left over, and you send an empty bucket of 0 bytes.",
    )
    every.slip(
        lambda case: (
            [float(case["full"])] * (sum(case["sizes"]) // case["full"])
            + [float(rest) for rest in [sum(case["sizes"]) % case["full"]] if rest]
        ),
        "You cut gradients so that all buckets except the last are exactly full. A gradient is never cut: what does "
        "that mean for the size of a bucket?",
    )
    if any(sum(case["said"]) != sum(case["sizes"]) for case in cases):
        raise Hint("Your buckets do not add up to the bytes of the gradients. Each gradient is sent exactly once.")
    for case in sorted(cases, key=lambda case: len(case["sizes"])):
        if not Lists([case], 1, right).right:
            said = ", ".join(f"{size:g}" for size in case["said"][:8])
            raise Hint(
                f"For the gradients {case['sizes'][:8]} and buckets that are full at {case['full']} bytes, yours are "
                f"[{said}]. Which gradient fills the first bucket, and which one begins the next?"
            )


#: Number of parts in a step and of cards in a part.
ACCUMULATED = ((4, 2), (3, 1), (1, 2))
#: Number of consecutive steps. Gradients of the first step must not reach the second.
STEPS = 2


def measure_step(answer: Any) -> Facts:
    function = as_function(answer, "night_step(model, optimizer, parts)")
    return {"cases": [_followed(function, parts, cards) for parts, cards in ACCUMULATED]}


def _followed(function: Callable[..., Any], parts: int, cards: int) -> Facts:
    """Run two steps, and return what they sent and how their results differ from those of one batch with all parts."""
    generator = torch.Generator().manual_seed(10)
    with torch.random.fork_rng(devices=[]):  # does not change the reader's own random numbers
        torch.manual_seed(0)
        start = nn.Linear(64, 10)
    model, alike = CountedModel(copy.deepcopy(start)), copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(len(model.synced)))
    own = torch.optim.SGD(alike.parameters(), lr=0.5)
    scales: list[float] = []
    for _ in range(STEPS):
        images = torch.rand(parts, cards, 12, 64, generator=generator)
        digits = torch.randint(10, (parts, cards, 12), generator=generator)
        outcome(function, model, optimizer, list(zip(images, digits, strict=True)))
        own.zero_grad()
        nn.functional.cross_entropy(alike(images).flatten(0, 2), digits.flatten()).backward()
        own.step()
        moved, wanted = _moved(start, model.module), _moved(start, alike)
        scales.append(float(moved @ wanted / (wanted @ wanted)))
    return {
        "parts": parts,
        "forwards": model.forwards,
        "synced": [int(is_sent) for is_sent in model.synced],
        "stepped": stepped,
        "scale": scales[0],
        "apart": float((moved - wanted).norm() / wanted.norm()),
    }


def _moved(start: nn.Module, model: nn.Module) -> torch.Tensor:
    """Return the difference between the weights of a model and its weights at the start."""
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return torch.cat([(new.detach() - old.detach()).flatten() for new, old in pairs])


def judge_step(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(ACCUMULATED)):
        parts, synced = case["parts"], case["synced"]
        where = f"For a step of {fmt.counted(parts, 'part')}:"
        hint_if(not case["forwards"], "Your function does not call the model yet.")
        hint_if(not synced, "Your function computes no gradients: call backward on the loss of each part.")
        if len(synced) < STEPS * parts:
            each = f"{len(synced) / STEPS:g}"
            raise Hint(
                f"{where} it runs the backward pass {each} times. Run it once for each part, so that memory only holds "
                "the activations of one part at a time."
            )
        hint_if(len(synced) > STEPS * parts, f"{where} it runs the backward pass more than once for each part.")
        if not case["stepped"]:
            raise Hint(f"{where} the optimizer never makes a step.")
        if len(case["stepped"]) > STEPS:
            raise Hint(
                f"{where} the optimizer makes {len(case['stepped']) / STEPS:g} steps. One is enough, at the end."
            )
        if case["stepped"] != [parts, 2 * parts]:
            raise Hint(f"{where} the optimizer steps before the last backward pass.")
        first = synced[:parts]
        if not any(first):
            raise Hint(
                f"{where} gradients are never sent. Each rank trains a model of its own then, and they drift apart."
            )
        if all(first) and parts > 1:
            raise Hint(
                f"{where} gradients are sent {parts} times. If your step calls model.no_sync(), what is inside? The "
                "*forward* pass decides whether the backward pass after it sends."
            )
        if first[:-1] != [0] * (parts - 1) or synced[parts:] != first:
            sent = ", ".join(str(place) for place, is_sent in enumerate(first, 1) if is_sent)
            raise Hint(
                f"{where} gradients are sent after part {sent}. Only the last part must send, because only then is the "
                "sum of all parts complete."
            )
        if case["apart"] > 1e-3:
            scale = Number(case["scale"], 1.0, 1e-3, where)
            scale.slip(
                parts, "the update is as many times too large as there are parts: divide each loss by their number."
            )
            if scale.right:
                raise Hint(
                    f"{where} the first update is right, but the second is not. Do the gradients of one step reach "
                    "the next step?"
                )
            raise Hint(
                f"{where} the transfers are right, but the result is not. The weights differ from those of a step that "
                "gets all parts as one batch. What is each loss divided by?"
            )


#: Spans of computation and of communication.
SPANS: tuple[tuple[list[tuple[float, float]], list[tuple[float, float]]], ...] = (
    ([(0, 4), (6, 9)], [(3, 5), (8, 12)]),
    ([(0, 10)], [(2, 3), (5, 7.5)]),
    ([(0, 2), (3, 5), (9, 10)], [(1, 9.5)]),
    ([(0, 3)], [(3, 4), (6, 8)]),
)


def _overlap(case: Facts) -> float:
    return math.fsum(
        max(0.0, min(end, until) - max(start, since))
        for start, end in case["computing"]
        for since, until in case["sending"]
    )


def _length(spans: Sequence[Sequence[float]]) -> float:
    return sum(end - start for start, end in spans)


def measure_exposed(answer: Any) -> Facts:
    function = as_function(answer, "exposed_ms(computing, sending)")
    cases = []
    for computing, sending in SPANS:
        said = result_of(function, list(computing), list(sending))
        case: Facts = {"computing": [list(each) for each in computing], "sending": [list(each) for each in sending]}
        cases.append({**case, "said": said, "wanted": _length(sending) - _overlap(case)})
    return {"cases": cases}


def judge_exposed(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(SPANS), 1e-6, 1e-6)
    every.slip(lambda case: _length(case["sending"]), "That is all sending. During part of it, something is computed.")
    every.slip(_overlap, "That is the hidden part. How much of the sending is left?")
    every.slip(
        lambda case: max(0.0, case["sending"][-1][1] - case["computing"][-1][1]),
        "That is only the time after the last computing. There can be gaps earlier in the step.",
    )
    every.slip(
        lambda case: max(end for _, end in (*case["computing"], *case["sending"])) - _length(case["computing"]),
        "That is all time when nothing is computed. During part of it, nothing is sent either.",
    )
    every.slip(
        lambda case: max(0.0, _length(case["sending"]) - _length(case["computing"])),
        "You subtract all computing, but only the part that runs during a transfer hides anything.",
    )
    every.slip(
        lambda case: _length(case["sending"]) - sum(
            max((max(0.0, min(end, until) - max(start, since)) for start, end in case["computing"]), default=0.0)
            for since, until in case["sending"]
        ),
        "One transfer can run at the same time as several pieces of computing; subtract all of them.",
    )  # fmt: skip
    for case in facts["cases"]:
        where = (
            f"With computing {_shown(case['computing'])} and sending {_shown(case['sending'])}, your result is "
            f"{case['said']:.6g}."
        )
        hint_if(case["said"] < 0, f"{where} A time is not negative: is something subtracted that hides nothing?")
        Number(case["said"], case["wanted"], 1e-6, where, 1e-6).wrong(
            "", "For each transfer, how long does it run, and how much of that is at the same time as computing?"
        )


def _shown(spans: Sequence[Sequence[float]]) -> str:
    return ", ".join(f"{start:g}–{end:g}" for start, end in spans)


def measure_straggler(answer: Any, ranks: Any = None) -> Facts:
    times = evidence(ranks, Ranks).times
    said = as_fields(answer, rank=float, waits_ms=float)
    columns = {name: times[name].astype(float).fillna(0.0) for name in ("waiting_ms", "communication_ms")}
    mean = times.assign(**columns).groupby("rank")[[*columns]].mean()
    steps = times.assign(**columns).pivot(index="step", columns="rank", values="waiting_ms")
    worst = steps.iloc[int(steps.max(axis=1).to_numpy().argmax())]
    return {
        "said": said,
        "waits": {str(rank): float(ms) for rank, ms in mean["waiting_ms"].items()},
        "communicates": {str(rank): float(ms) for rank, ms in mean["communication_ms"].items()},
        "worst_step": {str(rank): float(ms) for rank, ms in worst.items()},
        "steps": len(steps),
    }


def judge_straggler(facts: Facts) -> None:
    waits = all_there(facts["waits"], 3, or_more=True)
    late = min(waits, key=waits.__getitem__)
    rank, said = facts["said"]["rank"], facts["said"]["waits_ms"]
    if rank != int(late):
        longest = max(facts["communicates"], key=facts["communicates"].__getitem__)
        if rank in (int(longest), int(max(waits, key=waits.__getitem__))):
            raise Hint(f"rank: rank {rank:.0f} is in collectives for the longest time, because it waits there.")
        if rank == int(min(facts["worst_step"], key=facts["worst_step"].__getitem__)):
            raise Hint(
                f"rank: rank {rank:.0f} holds up the others only in the step with the longest waits. Which rank holds "
                "them up in all the other steps?"
            )
        raise Hint("rank: whoever comes last has nobody to wait for. Whose waiting_ms is the smallest, step for step?")
    others = [ms for name, ms in waits.items() if name != late]
    number = Number(said, statistics.fmean(others), 0.01, "waits_ms:")
    number.slip(waits[late], "that is how long the straggler itself waits; the others wait for it.")
    number.slip(statistics.fmean(waits.values()), "that includes the straggler, which does not wait for itself.")
    number.slip(sum(others), "that is the total of the others; give their mean.")
    number.slip(statistics.fmean(others) * facts["steps"], "that is the total of all steps; give it per step.")
    number.slip(max(others), "that is the rank that waits longest; give the mean of the others.")
    number.slip(
        [ms for name, ms in facts["communicates"].items() if name != late]
        + [statistics.fmean(ms for name, ms in facts["communicates"].items() if name != late)],
        "that is all communication. The column waiting_ms has the part that is spent on waiting.",
    )
    number.slip(
        statistics.fmean(others) - waits[late], "that is how much longer the others wait than the straggler does."
    )
    once = statistics.fmean(ms for name, ms in facts["worst_step"].items() if name != late)
    number.slip(
        (statistics.fmean(others) * facts["steps"] - once) / max(1, facts["steps"] - 1),
        "that leaves out the step where another rank was late. The others wait in that step, too.",
    )
    number.wrong(
        "it is not the time that the other seven wait per step.", "Which ranks and which steps belong to the mean?"
    )


#: One rank's step in milliseconds: total, computing, sending, both at once, and waiting for another rank.
OVERLAPPED: tuple[tuple[float, float, float, float, float], ...] = (
    (40.0, 20.0, 22.0, 6.0, 3.0),
    (38.0, 16.0, 28.0, 7.0, 4.0),
    (50.0, 40.0, 12.0, 6.0, 1.0),
    (30.0, 24.0, 8.0, 8.0, 0.0),
    (60.0, 10.0, 45.0, 5.0, 10.0),
)


def overlapped(step: float, computing: float, sending: float, both: float, waiting: float) -> float:
    """Return a rank's step time if it hides as much of its transfers as its computing can hide."""
    return step - min(sending - both - waiting, computing - both)


def measure_overlap(answer: Any) -> Facts:
    function = as_function(answer, "best_ms(step, computing, sending, both, waiting)")
    return {"cases": tried(function, OVERLAPPED, overlapped)}


def judge_overlap(facts: Facts) -> None:
    def slip(which: Callable[..., float], words: str) -> None:
        every.slip(lambda case: which(*case["sizes"]), words)

    every = Numbers(facts["cases"], len(OVERLAPPED), 1e-6)
    slip(
        lambda step, computing, sending, both, waiting: step - (sending - both - waiting),
        "That hides everything that is exposed. In some cases, there is not enough computing left to hide it behind.",
    )
    slip(
        lambda step, computing, sending, both, waiting: step - min(sending - both, computing - both),
        "That hides the waiting, too. No overlap makes the last rank come earlier.",
    )
    slip(
        lambda step, computing, sending, both, waiting: step - (sending - both),
        "That hides everything that is exposed, including the waiting for another rank. Computing cannot do that.",
    )
    slip(
        lambda step, computing, sending, both, waiting: step - sending,
        "That subtracts the part that is hidden already.",
    )
    slip(
        lambda step, computing, sending, both, waiting: max(computing, sending),
        "That forgets everything that is neither computing nor sending, such as copies. And waiting does not go away.",
    )
    slip(
        lambda step, computing, sending, both, waiting: step - min(sending - both - waiting, computing),
        "Part of the computing already hides something, so it cannot hide anything else.",
    )
    slip(
        lambda step, computing, sending, both, waiting: min(sending - both - waiting, computing - both),
        "That is how much shorter the step becomes. How long does it take then?",
    )
    slip(
        lambda step, computing, sending, both, waiting: step - min(sending - waiting, computing - both),
        "Part of the sending is hidden already, so it cannot be saved a second time.",
    )
    for case in facts["cases"]:
        step, computing, sending, both, waiting = case["sizes"]
        where = (
            f"For a step of {step:g} ms, computing {computing:g}, sending {sending:g}, both at once {both:g}, waiting "
            f"{waiting:g}, your result is {case['said']:.6g}."
        )
        Number(case["said"], case["wanted"], 1e-6, where).wrong(
            "", "How much transfer is still exposed, and how much computing is still free to hide it?"
        )


EXERCISES = (
    Exercise("10.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("10.2", "Efficiency and its interval", measure_efficiency, judge_efficiency),
    Exercise("10.3", "Around the ring", measure_sent, judge_sent),
    Exercise("10.4", "Buckets", measure_buckets, judge_buckets),
    Exercise("10.5", "Once per step", measure_step, judge_step),
    Exercise("10.6", "Exposed", measure_exposed, judge_exposed),
    Exercise("10.7", "The straggler", measure_straggler, judge_straggler),
    Exercise("10.8", "Perfect overlap", measure_overlap, judge_overlap),
)
