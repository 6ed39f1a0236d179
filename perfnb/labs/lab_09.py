"""Checks for lab 9, *Serving*.

The checks count things or judge made-up times. They do not read a clock.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from perfnb import quantities as fmt
from perfnb.labs.answers import as_fields, as_function, as_number, as_numbers, outcome, tried
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Lists, Number, Numbers, all_there, close, hint_if
from perfnb.labs.made_service import CARDS_PER_S, PlantedService, monday, queued


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, half=float, nine_tenths=float, cached=float)


def judge_prediction(facts: Facts) -> None:
    for name in ("half", "nine_tenths", "cached"):
        hint_if(facts[name] > 1e4, f"{name}: {facts[name]:.3g} is too much. Give a number without a unit.")
    for name in ("half", "nine_tenths"):
        hint_if(facts[name] < 0, f"{name}: a wait is not negative; 0 means that no card ever waits.")
    hint_if(facts["nine_tenths"] < facts["half"], "Would a card wait for less time at a busier server?")
    hint_if(facts["cached"] <= 0, "cached is a factor: 2.0 means twice as fast, and 1.0 means no difference.")


#: Number of seconds that the log covers.
SPAN_S = 60.0 * len(CARDS_PER_S)
#: Rate in cards per second that the benchmark promises.
BENCHMARK_PER_S = 10.0


def measure_little(answer: Any) -> Facts:
    log = monday()
    latency = log["answered_s"] - log["arrived_s"]
    return {
        "said": as_fields(answer, utilization=float, inside=float),
        "per_s": len(log) / SPAN_S,
        "service_s": float(log["service_s"].mean()),
        "latency_s": float(latency.mean()),
        "median_s": float(latency.median()),
    }


def judge_little(facts: Facts) -> None:
    said, rate, service, latency = facts["said"], facts["per_s"], facts["service_s"], facts["latency_s"]
    utilization = Number(said["utilization"], rate * service, 0.01, "utilization:")
    utilization.slip(rate * latency, "that uses the time until the answer, and a waiting card keeps no server busy.")
    utilization.slip(rate * service * SPAN_S, "that is how many seconds the server was busy. Of how many?")
    utilization.slip(rate, "that is how many cards arrive per second. For how long does each keep the server busy?")
    utilization.slip(
        BENCHMARK_PER_S * service,
        "that is for ten cards per second, the rate of the benchmark. At which rate did the cards of the log arrive?",
    )
    utilization.slip(
        service, "that is how many seconds a card keeps the server busy. How many such cards arrive per second?"
    )
    utilization.wrong(
        "it is not the share of the ten minutes when the server was busy.",
        "At which rate did the cards of the log arrive, and which of its times is spent on the server?",
    )
    inside = Number(said["inside"], rate * latency, 0.01, "inside:")
    inside.slip(rate * (latency - service), "that leaves out the card that is being served.")
    inside.slip(rate * service, "that is the utilization: the card being served, without those that wait.")
    inside.slip(rate * facts["median_s"], "that uses the median. Little's law is about means.")
    inside.slip(latency, "that is the mean time. How many cards arrive in such a time?")
    inside.slip(
        BENCHMARK_PER_S * latency,
        "that is for ten cards per second, the rate of the benchmark. At which rate did the cards of the log arrive?",
    )
    inside.slip(rate * latency * SPAN_S, "that is the sum over all cards; divide it by the ten minutes.")
    inside.wrong(
        "it is not the mean number of cards that were waiting or being read.",
        "In Little's law, which two numbers belong to the office as a whole?",
    )


#: Arrivals and service times of a queue that is small enough for paper, and of a longer queue.
QUEUES = (
    ([0.0, 1.0, 2.0, 10.0], [3.0, 1.0, 1.0, 2.0]),
    (
        [8.8, 9.2, 12.5, 12.6, 13.6, 14.3, 15.0, 16.5, 17.2, 18.7, 23.6, 24.5],
        [1.4, 0.7, 0.6, 1.2, 0.3, 0.7, 1.3, 1.4, 0.5, 0.3, 1.2, 1.0],
    ),
)


def measure_queue(answer: Any) -> Facts:
    function = as_function(answer, "latencies(arrivals, services)")
    cases = []
    for arrivals, services in QUEUES:
        said = as_numbers(outcome(function, list(arrivals), list(services)), len(arrivals), "latencies")
        cases.append({"arrivals": arrivals, "services": services, "said": said})
    return {"cases": cases}


def judge_queue(facts: Facts) -> None:
    every = Lists(facts["cases"], len(QUEUES), lambda case: queued(case["arrivals"], case["services"]))
    every.slip(
        lambda case: [
            latency - service
            for latency, service in zip(queued(case["arrivals"], case["services"]), case["services"], strict=True)
        ],
        "These are the waits. A card's latency ends with its answer, so it includes its own service time.",
    )
    every.slip(lambda case: case["services"], "These are the service times: no card ever waits for another one.")
    every.slip(
        lambda case: [
            arrived + latency
            for arrived, latency in zip(case["arrivals"], queued(case["arrivals"], case["services"]), strict=True)
        ],
        "These are the times at which the cards were answered. How long before that did each card arrive?",
    )
    early = "Your server starts a card before it has arrived, as soon as the last one is done."
    every.slip(_without_idling, early)
    every.slip(lambda case: _without_idling(case, case["arrivals"][0]), early)
    every.slip(_after_one, "A card waits for the one before it, but that one may have waited, too.")
    every.wrong(
        "When does the server become free, and which is later: that, or the card's arrival? On paper, cards that "
        "arrive at 0, 1, 2 and 10 s and take 3, 1, 1 and 2 s are a good test."
    )


def _without_idling(case: Facts, first_s: float = 0.0) -> list[float]:
    """Return the latencies of a server that starts at `first_s` and then serves without a break."""
    return [float(end) for end in first_s + np.cumsum(case["services"]) - np.array(case["arrivals"])]


def _after_one(case: Facts) -> list[float]:
    arrivals, services = case["arrivals"], case["services"]
    waits = [max(0.0, arrivals[i - 1] + services[i - 1] - arrivals[i]) if i else 0.0 for i in range(len(arrivals))]
    return [wait + service for wait, service in zip(waits, services, strict=True)]


#: Seconds between the cards of a load test, and the service times of two services. One of them stalls, and the other is
#: merely uneven.
EVERY_S = 0.5
SERVICES = ([0.1] * 5 + [4.0] + [0.1] * 14, [0.2, 0.6, 0.1, 0.7, 0.3, 0.1, 0.1, 0.9, 0.1, 0.1])


def measure_load_test(answer: Any) -> Facts:
    function = as_function(answer, "load_test(service, due)")
    cases = []
    for start, services in zip((0.0, 3.0), SERVICES, strict=True):
        due = [start + EVERY_S * place for place in range(len(services))]
        service = PlantedService(services)
        said = as_numbers(outcome(function, service, list(due)), len(due), "latencies")
        cases.append({"due": due, "services": services, "said": said, "served": service.served})
    return {"cases": cases}


def judge_load_test(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(SERVICES))
    every = Lists(cases, len(SERVICES), lambda case: queued(case["due"], case["services"]))
    every.slip(
        lambda case: case["services"],
        "Every latency is just the service time, even right after a stall of 4 s. Your clock starts when a card is "
        "sent. When should it start?",
    )
    every.slip(
        lambda case: [
            latency - service
            for latency, service in zip(queued(case["due"], case["services"]), case["services"], strict=True)
        ],
        "That is how late each card was sent. The customer waits until it is answered.",
    )
    every.slip(
        lambda case: [
            latency + due for latency, due in zip(queued(case["due"], case["services"]), case["due"], strict=True)
        ],
        "These are the times at which the cards were answered. How long after it was due was each card answered?",
    )
    every.slip(
        _since_the_last_answer,
        "Your clock starts as soon as the last card has been answered. At that moment, the next one may not even have "
        "arrived: whose waiting time is that?",
    )
    hint_if(
        not every.right and all(map(_by_another_clock, cases)),
        "These times come from your computer's clock, and serve() takes no time there. The server is simulated: "
        "service.now() reads its clock.",
    )
    if any(said < 0 for case in cases for said in case["said"]):
        raise Hint("Some latencies are negative: a card was answered before it was due. Wait until then.")
    hint_if(any(case["served"] != len(case["due"]) for case in cases), "Call service.serve() once for each card.")
    every.wrong(
        "Think of a customer whose card is due in the middle of a stall. When does she begin to wait, when does she "
        "stop, and which of the two moments does your function measure differently?"
    )


def _since_the_last_answer(case: Facts) -> list[float]:
    ends = [due + latency for due, latency in zip(case["due"], queued(case["due"], case["services"]), strict=True)]
    return [end - before for before, end in zip([0.0, *ends], ends, strict=False)]


def _by_another_clock(case: Facts) -> bool:
    """Check whether the latencies come from a clock on which serving takes hardly any time."""
    moments = [said + due for said, due in zip(case["said"], case["due"], strict=True)]
    spread = max(moments, default=0.0) - min(moments, default=0.0)
    return spread < MOMENT_S or max(map(abs, case["said"])) < MOMENT_S


#: Maximum seconds that all calls to a simulated server take on a real clock. Each made-up service takes longer.
MOMENT_S = 0.05


#: Numbers of blocks, widths, positions and cards.
CACHES = ((3, 128, 128, 1), (3, 128, 152, 1), (12, 768, 1024, 8), (2, 64, 100, 3))


def measure_cache(answer: Any) -> Facts:
    function = as_function(answer, "cache_bytes(blocks, width, length, cards)")
    return {"cases": tried(function, CACHES, lambda blocks, width, length, cards: 8 * blocks * width * length * cards)}


def judge_cache(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(CACHES), 1e-9)
    every.slip(lambda case: case["wanted"] / 2, "It is half: a block keeps a key *and* a value for each position.")
    every.slip(lambda case: case["wanted"] / 4, "Those are numbers. How many bytes does a float32 have?")
    every.slip(lambda case: case["wanted"] / 8, "That is one number per position, block and channel. What is missing?")
    every.slip(lambda case: 8 * case["wanted"], "It looks like bits.")
    every.slip(lambda case: case["wanted"] / case["sizes"][0], "That is the cache of one block.")
    every.slip(lambda case: case["wanted"] / case["sizes"][3], "That is the cache of one card.")
    every.slip(lambda case: case["wanted"] / case["sizes"][1], "That is one number per position: a key has `width`.")
    every.slip(
        lambda case: 4 * case["wanted"],
        "It is four times as much. The `width` numbers of a key are those of all heads together, and a float32 has "
        "four bytes, not four numbers.",
    )
    square = "It grows with the square of the length. That is the size of attention's scores, which are not kept."
    every.slip(lambda case: case["wanted"] * case["sizes"][2], square)
    every.slip(lambda case: case["wanted"] * case["sizes"][2] / case["sizes"][1] / 2, square)
    for case in facts["cases"]:
        blocks, width, length, cards = case["sizes"]
        where = (
            f"For {blocks} blocks of width {width}, {length} positions and {fmt.counted(cards, 'card')}, your result "
            f"is {case['said']:,.6g}."
        )
        Number(case["said"], case["wanted"], 1e-9, where).wrong(
            "", "What does each block keep for a position, and how many positions are there in all?"
        )


#: Number of images on a card and of characters in its answer.
CARDS = ((12, 5), (40, 8), (1, 3))


def measure_answer(answer: Any, reader: Any = None) -> Facts:
    function = as_function(answer, "answer(reader, card, count)")
    if not isinstance(reader, nn.Module) or not isinstance(getattr(reader, "printed", None), torch.Tensor):
        raise Hint("Pass the Reader as well: reader=reader.")
    own: Any = copy.deepcopy(reader).eval()
    generator = torch.Generator().manual_seed(9)
    cases = []
    for length, count in CARDS:
        card = torch.rand(1, length, own.printed.shape[1], generator=generator)
        cases.append({"length": length, "count": count, **_followed(function, own, card, count)})
    return {"cases": cases}


def _followed(function: Callable[..., Any], reader: Any, card: torch.Tensor, count: int) -> Facts:
    """Return the characters of an answer, and a record of each pass of the Reader.

    The record contains the number of new images, the number of images in the cache, and whether gradients were on.
    """
    passes: list[list[int]] = []
    graded: list[bool] = []

    def follow(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        images, cache = (*given, named.get("images"))[0], named.get("cache", given[1] if len(given) > 1 else None)
        shape = tuple(getattr(images, "shape", ()))
        if len(shape) != 3 or shape[::2] != (1, card.shape[2]):
            raise ValueError(
                f"the Reader got images of shape {shape}. It takes three dimensions (cards, images, pixels): a single "
                f"image has the shape (1, 1, {card.shape[2]})"
            )
        cached = 0 if cache is None else int(cache[0][0].shape[2])
        if cached and images.shape[1] > 1:
            raise Hint(
                f"A pass gets {images.shape[1]} images, but its cache already has {cached}. Give it only the new one."
            )
        passes.append([int(images.shape[1]), cached])
        graded.append(torch.is_grad_enabled())

    said: list[int] = []
    after: list[int] = []
    handle = reader.register_forward_pre_hook(follow, with_kwargs=True)
    try:
        returned = outcome(function, reader, card.clone(), count)
        hint_if(returned is None, "Your function yields nothing yet.")
        hint_if(not isinstance(returned, Iterable), "Yield the characters, each one as soon as the Reader has it.")
        every = iter(returned)
        while len(said) <= count and (character := outcome(next, every, None)) is not None:
            number = as_number(character, "A character that your function yields")
            hint_if(number != int(number), "A character is a whole number, the digit with the highest score.")
            said.append(int(number))
            after.append(len(passes))
    finally:
        handle.remove()
    wanted, seen = [], card
    with torch.no_grad():
        for _ in range(count):
            wanted.append(int(reader(seen)[0][0, -1].argmax()))
            seen = torch.cat([seen, reader.printed[wanted[-1]][None, None]], 1)
    return {"said": said, "wanted": wanted, "passes": passes, "after": after, "graded": any(graded)}


def judge_answer(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(CARDS)):
        length, count, passes = case["length"], case["count"], all_there(case["passes"], 1, or_more=True)
        where = f"For a card of {length} images and {count} characters:"
        later = [(new, cached) for new, cached in passes[1:count]]
        if any(new == 1 and not cached for new, cached in later) and length > 1:
            raise Hint(f"{where} a pass gets one image and no cache, so the Reader does not know the card.")
        if any(cached == length for _, cached in later[1:]):
            raise Hint(f"{where} the cache stays at {length} places. Each pass returns a longer one: pass that on.")
        if len(case["said"]) != len(case["wanted"]):
            more = "more" if len(case["said"]) > count else f"{len(case['said'])}"
            raise Hint(f"{where} you yield {more}, not {count}.")
        if case["said"] != case["wanted"]:
            raise Hint(
                f"{where} the characters differ from those of answer_slow. Are they read from the scores of the *last* "
                "place, and does the next pass get the printed image of the character just written?"
            )
        images = [new for new, _ in passes]
        if len(passes) > 1 and not any(cached for _, cached in passes):
            shown = ", ".join(map(str, images[:3]))
            raise Hint(
                f"{where} the characters are right, but the passes compute {shown} ... images, all of them anew."
            )
        if images[0] != length:
            raise Hint(f"{where} the first pass computes only {images[0]} of them; give it the whole card in one pass.")
        if case["after"] != list(range(1, count + 1)):
            raise Hint(
                f"{where} the first character comes after {case['after'][0]} passes, although one is enough. Yield "
                "each one when you have it."
            )
        if len(passes) > count:
            raise Hint(
                f"{where} the Reader ran {len(passes)} times, including once after the last character. Who needs the "
                "scores of that pass?"
            )
        hint_if(case["graded"], "The characters are right, but gradients are recorded; keep torch.inference_mode().")


#: Milliseconds that a batch takes, by its size. Some servers become slower per card when a batch outgrows their caches.
BATCHES: tuple[tuple[dict[int, float], float], ...] = (
    ({1: 10.0, 2: 11.0, 4: 14.0, 8: 22.0, 16: 40.0, 32: 90.0}, 100.0),
    ({1: 10.0, 2: 11.0, 4: 14.0, 8: 22.0, 16: 40.0, 32: 90.0}, 50.0),
    ({1: 10.0, 2: 11.0, 4: 14.0, 8: 22.0, 16: 40.0, 32: 90.0}, 25.0),
    ({1: 4.0, 2: 5.0, 4: 7.0, 8: 20.0}, 60.0),
    ({1: 30.0, 2: 34.0}, 20.0),
)


def measure_batching(answer: Any) -> Facts:
    function = as_function(answer, "highest_rate(batch_ms, bound_ms)")
    cases = []
    for batch_ms, bound_ms in BATCHES:
        wanted = _most(batch_ms, bound_ms, 2)
        try:
            returned = outcome(function, dict(batch_ms), bound_ms)
        except Hint as raised:
            if wanted:
                raise
            raise Hint(f"{_batches(batch_ms.items(), bound_ms)} no size keeps the bound. {raised}") from raised
        said = as_number(returned, "The result of highest_rate")
        cases.append({"sizes": [list(each) for each in batch_ms.items()], "bound": bound_ms, "said": said,
                      "wanted": wanted})  # fmt: skip
    return {"cases": cases}


def _batches(sizes: Iterable[Iterable[float]], bound_ms: float) -> str:
    return f"With a bound of {bound_ms:g} ms and batches of {', '.join('{:g} in {:g} ms'.format(*s) for s in sizes)},"


def _most(batch_ms: dict[int, float], bound_ms: float, batches: int) -> float:
    """Return the highest rate in cards per second among the sizes whose time fits into the bound `batches` times."""
    return max((1e3 * size / ms for size, ms in batch_ms.items() if batches * ms <= bound_ms), default=0.0)


def judge_batching(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(BATCHES), 1e-6)
    every.slip(
        lambda case: _most(dict(map(tuple, case["sizes"])), case["bound"], 1),
        "That bounds the time of one batch. A card that arrives just after a batch has started has to wait for that "
        "one as well.",
    )
    every.slip(lambda case: _most(dict(map(tuple, case["sizes"])), case["bound"], 0), "That ignores the bound.")
    every.slip(lambda case: case["wanted"] / 1e3, "That is per millisecond; give cards per second.")
    every.slip(_best_size, "That is the size of the batch. How many cards per second does it serve?")
    every.slip(_largest, "The largest batch within the bound is not always the one that serves most per second.")
    for case in facts["cases"]:
        where = _batches(case["sizes"], case["bound"])
        if not case["wanted"] and case["said"] != 0:
            raise Hint(f"{where} no size keeps the bound, so the rate is 0.")
        Number(case["said"], case["wanted"], 1e-6, f"{where} your result is {case['said']:.6g}.").wrong(
            "", "Which sizes keep the bound, and how many cards per second does each of them serve?"
        )


def _fitting(case: Facts) -> list[list[float]]:
    return [[size, ms] for size, ms in case["sizes"] if 2 * ms <= case["bound"]]


def _best_size(case: Facts) -> float:
    return max(_fitting(case), key=lambda each: each[0] / each[1], default=[0.0])[0]


def _largest(case: Facts) -> float:
    size, ms = max(_fitting(case), default=[0.0, 1.0])
    return 1e3 * size / ms


#: The probability that a guess is right and the number of guesses, for each case.
GUESSED = ((0.8, 4), (0.5, 1), (0.95, 8), (0.0, 3), (1.0, 5), (0.6, 2))


def measure_tokens(answer: Any) -> Facts:
    function = as_function(answer, "expected_tokens(acceptance, guesses)")
    return {"cases": tried(function, GUESSED, lambda a, k: sum(a**right for right in range(k + 1)))}


def judge_tokens(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(GUESSED), 1e-6)
    own = "The Reader adds its own character in every pass, even if all guesses are wrong."
    every.slip(lambda case: case["wanted"] - 1, own)
    if_all = "the one that a pass adds if all guesses are right"
    every.slip(
        lambda case: case["wanted"] - case["sizes"][0] ** case["sizes"][1], f"You leave out a character: {if_all}."
    )
    every.slip(
        lambda case: case["wanted"] - 1 - case["sizes"][0] ** case["sizes"][1],
        f"You leave out two characters: the one that every pass gives, and {if_all}. Where does your sum begin, and "
        "where does it end?",
    )
    every.slip(
        lambda case: 1 + case["sizes"][0] * case["sizes"][1],
        "That counts every right guess. Guesses after the first wrong one are of no use, even if they are right.",
    )
    every.slip(lambda case: case["sizes"][0] * case["sizes"][1], f"{own} Guesses after a wrong one are of no use.")
    every.slip(lambda case: case["sizes"][0] ** case["sizes"][1], "That is the probability that all guesses are right.")
    every.slip(
        lambda case: 1 + case["sizes"][1] * case["sizes"][0] ** case["sizes"][1],
        "That is all or nothing. If two of four guesses are right, those two count.",
    )
    for case in facts["cases"]:
        acceptance, guesses = case["sizes"]
        where = (
            f"For {fmt.counted(guesses, 'guess')}, with a probability of {acceptance:g} that a guess is right, your "
            f"result is {case['said']:.6g}."
        )
        Number(case["said"], case["wanted"], 1e-6, where).wrong(
            "", "How likely is it that a pass gives at least one character, at least two, at least three?"
        )


#: The largest absolute value that the model in exercise 9.9 outputs.
LARGEST = 6.0


def measure_difference(answer: Any) -> Facts:
    function = as_function(answer, "largest_difference(model, other, inputs)")
    inputs = [torch.linspace(-1.0, 0.8, 12).reshape(3, 4) * size for size in (1.0, LARGEST / 2, 0.5)]
    cases = {}
    for name, change in CHANGES.items():
        with torch.no_grad():
            said = outcome(function, lambda x: 2.0 * x, lambda x, change=change: change(2.0 * x), list(inputs))
        number = _as_difference(said)
        before = [2.0 * x for x in inputs]
        after = [change(values) for values in before]
        cases[name] = {"said": number if number is not None and math.isfinite(number) else None}
        if name != "broken":
            cases[name] |= _differences(before, after)
    return {"cases": cases}


def _differences(before: list[torch.Tensor], after: list[torch.Tensor]) -> dict[str, float]:
    """Return the right relative difference and the differences that common mistakes lead to."""
    one, other = torch.stack(before), torch.stack(after)
    apart = (other - one).abs()
    scale = one.abs().max()
    found = {
        "wanted": apart.max() / scale,
        "first": apart[0].max() / one[0].abs().max(),
        "signed": (other - one).max() / scale,
        "signed_back": (one - other).max() / scale,
        "mean": apart.mean() / scale,
        "absolute": apart.max(),
        "per_input": (apart.amax((1, 2)) / one.abs().amax((1, 2))).max(),
        "by_number": (apart / one.abs()).max(),
        "by_other": apart.max() / other.abs().max(),
        "by_signed": apart.max() / one.max(),
    }
    return {name: float(value) for name, value in found.items()}


def _broken(values: torch.Tensor) -> torch.Tensor:
    """Replace one element of the largest output with NaN."""
    broken = values.clone()
    if float(values.abs().max()) > 5.0:
        broken[1, 2] = math.nan
    return broken


#: Functions that change the other model's output, by name.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal": lambda values: values,
    "smaller": lambda values: values - 0.03 * (values > 0.5),
    "one input": lambda values: values + (0.06 if float(values.abs().max()) > 5.0 else 0.0),
    "broken": _broken,
}


def _as_difference(said: Any) -> float | None:
    """Return a number that may be infinite or NaN, because an honest comparison with NaN may return these."""
    if isinstance(said, (str, bytes)):
        return as_number(said, "The result of your function")
    try:
        number = float(said)
    except (Exception, SystemExit):
        return as_number(said, "The result of your function")
    return number if not math.isfinite(number) else as_number(said, "The result of your function")


def judge_difference(facts: Facts) -> None:
    cases = all_there(facts["cases"], len(CHANGES))
    numbers = [cases[name] for name in ("equal", "smaller", "one input")]
    if any(case["said"] is None for case in numbers):
        raise Hint("Your result is not a finite number, although all outputs are.")
    every = Numbers(numbers, 3, 1e-4, 1e-7)
    every.slip(lambda case: case["first"], "It looks only at the first input. Another one may be where they differ.")
    every.slip(lambda case: case["signed"], "A smaller output counts as no difference: is there an absolute value?")
    every.slip(lambda case: case["signed_back"], "A larger output counts as no difference: is there an absolute value?")
    every.slip(lambda case: case["mean"], "That is the mean; one wrong number in a thousand disappears in it.")
    every.slip(lambda case: case["absolute"], "Divide by the largest absolute output, so that the scale has no effect.")
    every.slip(
        lambda case: case["per_input"],
        "You divide the distance in each input by the largest output of that input. A small distance in an input with "
        "small outputs then counts too much: take one scale for all inputs.",
    )
    every.slip(
        lambda case: case["by_number"],
        "You divide each distance by its own number, so numbers near 0 decide. Take one scale for all of them.",
    )
    every.slip(
        lambda case: case["by_other"],
        "You divide by an output of `other`. That is the model in doubt, so its outputs cannot be the scale.",
    )
    every.slip(
        lambda case: case["by_signed"],
        "The distance is right, but not the scale: an output of -6 is larger than one of 5 in absolute value.",
    )
    if not every.right:
        wrong = next(case for case in numbers if not close(case["said"], case["wanted"], 1e-4, 1e-7))
        raise Hint(
            f"Your result is {wrong['said']:.3g} where the largest distance is {wrong['absolute']:.3g} and the outputs "
            f"go up to {LARGEST:g} in absolute value. Which two numbers does your function divide?"
        )
    if cases["broken"]["said"] is not None:
        raise Hint(
            f"One output of the other model is not a number (NaN), and you report {cases['broken']['said']:.3g}. "
            "Python's max() and comparisons pass over NaN: use torch's, or test for it."
        )


EXERCISES = (
    Exercise("9.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("9.2", "Little's law", measure_little, judge_little),
    Exercise("9.3", "A queue in five lines", measure_queue, judge_queue),
    Exercise("9.4", "An honest load test", measure_load_test, judge_load_test),
    Exercise("9.5", "The size of the cache", measure_cache, judge_cache),
    Exercise("9.6", "One character at a time", measure_answer, judge_answer),
    Exercise("9.7", "Batches within a bound", measure_batching, judge_batching),
    Exercise("9.8", "Guesses", measure_tokens, judge_tokens),
    Exercise("9.9", "The same answers", measure_difference, judge_difference),
)
