"""Lab 9, queues and load: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.errors import LabError
from perfnb.labs.made_service import CARDS_PER_S, PlantedService, monday
from tests.labs.judging import expect, hint
from tests.labs.lab_09_answers import (
    by_own_clock,
    lateness,
    load_test,
    moments,
    queue,
    sent,
    since_own_start,
    too_early,
    unpaced,
)

LOG = monday()
PER_S = len(LOG) / 600
SERVICE, LATENCY = float(LOG["service_s"].mean()), float((LOG["answered_s"] - LOG["arrived_s"]).mean())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"utilization": np.float32(PER_S * SERVICE), "inside": torch.tensor(PER_S * LATENCY)}, ""),
        ({"utilization": 10 * SERVICE}, "ten cards per second, the rate of the benchmark"),
        ({"utilization": 0.96}, "not the share of the ten minutes"),
    ],
)
def test_little_s_law(change: dict[str, Any], words: str) -> None:
    expect("9.2", words, {"utilization": PER_S * SERVICE, "inside": PER_S * LATENCY} | change)


def waits(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    return [latency - service for latency, service in zip(queue(arrivals, services), services, strict=True)]


def ends(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    return [arrived + latency for arrived, latency in zip(arrivals, queue(arrivals, services), strict=True)]


def never_idle(arrivals: Sequence[float], services: Sequence[float], first: float = 0.0) -> Any:
    return first + np.cumsum(services) - np.array(arrivals)


def after_one(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    found = []
    for place, (arrived, service) in enumerate(zip(arrivals, services, strict=True)):
        busy = max(0.0, arrivals[place - 1] + services[place - 1] - arrived) if place else 0.0
        found.append(busy + service)
    return found


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (queue, ""),
        (waits, "These are the waits"),
        (lambda a, s: s, "no card ever waits"),
        (ends, "the times at which the cards were answered"),
        (never_idle, "before it has arrived"),
        (lambda a, s: never_idle(a, s, a[0]), "before it has arrived"),
        (after_one, "may have waited, too"),
        (lambda a, s: [1000 * latency for latency in queue(a, s)], "When does the server become free"),
    ],
)
def test_a_queue(answer: Callable[..., Any], words: str) -> None:
    expect("9.3", words, answer)


def test_monday_is_what_the_lab_tells() -> None:
    """No minute exceeds the benchmark, and still most customers of two minutes wait too long."""
    in_time = (LOG["answered_s"] - LOG["arrived_s"]) <= 0.5
    minute = LOG["arrived_s"] // 60

    assert max(CARDS_PER_S) < 10
    assert in_time.groupby(minute).size().max() / 60 < 10
    assert pytest.approx(0.1, rel=0.02) == SERVICE
    assert (in_time.groupby(minute).mean()[[3, 4]] < 0.5).all()
    assert 0.6 < PER_S * SERVICE < 0.7
    assert LOG["arrived_s"].is_monotonic_increasing
    assert monday(6).shape[0] == pytest.approx(6 * len(LOG), rel=0.05)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (load_test, ""),
        (sent, "Your clock starts when a card is sent"),
        (lateness, "how late each card was sent"),
        (moments, "the times at which the cards were answered"),
        (unpaced, "before it was due"),
        (lambda service, due: [1000 * latency for latency in load_test(service, due)], "in the middle of a stall"),
        (too_early, "as soon as the last card has been answered"),
        (by_own_clock, "service.now() reads its clock"),
        (since_own_start, "service.now() reads its clock"),
        (lambda service, due: [float(place) for place in range(len(due))], "once for each card"),
        (lambda service, due: (load_test(service, due), service.serve()), "have been served"),
    ],
)
def test_an_honest_load_test(answer: Callable[..., Any], words: str) -> None:
    expect("9.4", words, answer)


def test_cards_are_due_at_even_intervals() -> None:
    seen: list[Sequence[float]] = []

    assert hint("9.4", lambda service, due: seen.append(due) or load_test(service, due)) == ""
    assert seen == [[0.5 * place for place in range(20)], [3.0 + 0.5 * place for place in range(10)]]


def test_only_waiting_and_serving_take_time() -> None:
    service = PlantedService([2.0, 0.5])
    service.wait_until(1.0)
    service.wait_until(0.2)
    assert service.now() == 1.0
    service.serve()
    service.serve()
    assert (service.now(), service.served) == (3.5, 2)
    with pytest.raises(LabError, match="All 2 requests have been served"):
        service.serve()


def rate(batch_ms: dict[int, float], bound_ms: float, batches: float = 2.0) -> float:
    return max((1000 * size / ms for size, ms in batch_ms.items() if batches * ms <= bound_ms), default=0)


def largest_size(batch_ms: dict[int, float], bound_ms: float) -> float:
    size = max((size for size, ms in batch_ms.items() if 2 * ms <= bound_ms), default=0)
    return 1000 * size / batch_ms[size] if size else 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (rate, ""),
        (lambda b, bound: rate(b, bound, 1), "has to wait for that one as well"),
        (lambda b, bound: rate(b, math.inf), "ignores the bound"),
        (lambda b, bound: rate(b, bound) / 1000, "per millisecond"),
        (lambda b, bound: max((s for s, ms in b.items() if 2 * ms <= bound and s / ms * 1000 == rate(b, bound)),
                              default=0), "the size of the batch"),
        (largest_size, "is not always the one that serves most"),
        (lambda b, bound: rate(b, bound) or rate({1: b[1]}, math.inf), "no size keeps the bound"),
        (lambda b, bound: max(1000 * size / ms for size, ms in b.items() if 2 * ms <= bound),
         "1 in 30 ms, 2 in 34 ms, no size keeps the bound. Your code raised ValueError"),
        (lambda b, bound: rate(b, bound, 3), "Which sizes keep the bound"),
    ],
)  # fmt: skip
def test_batches_within_a_bound(answer: Callable[..., Any], words: str) -> None:
    expect("9.7", words, answer)
