"""Tables of requests and tokens, made by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from perfnb.inference.request_runner import Served, first_calls
from perfnb.inference.samples import Cache, OpenRun, by_request, gaps_ms, goodput, open_run_of, samples_of, tokens_of

MS = 1_000_000


def served(
    request: int, arrival: int, start: int, end: int, *, late: int = 0, tokens: tuple[int, ...] = (), size: str = "a"
) -> Served:
    """Return a request whose times are in milliseconds."""
    prompt = 7 if tokens else None
    return Served(request, size, arrival * MS, start * MS, end * MS, late * MS, tuple(at * MS for at in tokens), prompt)


def test_times_of_samples_count_from_the_first_arrival() -> None:
    # The second one arrived first, but started last.
    requests = [served(4, 105, 106, 110), served(2, 100, 112, 115, late=2, size="b")]
    table = samples_of(requests, [True, False])

    names = ["request", "size", "arrival_ms", "start_ms", "wait_ms", "service_ms", "latency_ms", "late_ms", "first"]
    assert table[names].to_numpy().tolist() == [[4, "a", 5, 6, 1, 4, 5, 0, True], [2, "b", 0, 12, 12, 3, 15, 2, False]]
    assert [one.service_ms for one in requests] == [4, 3]
    assert samples_of([]).empty


def test_each_token_has_its_place_and_its_time_since_arrival_and_start() -> None:
    table = tokens_of("open", [served(4, 100, 110, 130, tokens=(115, 125)), served(2, 0, 1, 2)])

    assert table.to_numpy().tolist() == [["open", 0, 0, 15, 5, 7], ["open", 0, 1, 25, 15, 7]]


def test_a_run_on_a_schedule_has_its_rate_and_what_was_lost() -> None:
    requests = [served(0, 0, 0, 10, late=1), served(1, 20, 20, 30, late=1), served(2, 40, 42, 52, late=1)]

    run = open_run_of(requests, [0.0, 20.0, 40.0, 80.0], None, 2)

    assert (run.rate_per_s, run.lost, run.concurrency) == (50, 1, 2)
    assert run.late == pytest.approx(0.1)
    assert run.saturated
    assert open_run_of(requests, [0.0, 20.0, 40.0], 99.0, 2).rate_per_s == 99


@pytest.mark.parametrize(
    ("rate", "lost", "concurrency", "saturated"),
    [(99, 0, 1, False), (100, 0, 1, True), (50, 1, 1, True), (199, 0, 2, False), (200, 0, 2, True)],
)
def test_a_run_is_saturated_from_the_rate_on_that_keeps_all_servers_busy(
    rate: float, lost: int, concurrency: int, saturated: bool
) -> None:
    samples = pd.DataFrame({"service_ms": [5.0, 15.0]})

    assert OpenRun(rate, samples, lost, 0.0, concurrency=concurrency).saturated == saturated


def test_each_answer_has_its_tokens_and_the_times_of_its_parts() -> None:
    closed = [served(5, 0, 10, 60, tokens=(20, 30, 55)), served(5, 60, 60, 70), served(6, 70, 70, 90, tokens=(80,))]
    opened = [served(7, 1, 2, 9, tokens=(4, 8), size="b")]
    samples = pd.concat(
        [samples_of(closed, [True, False, False]).assign(run="closed"), samples_of(opened).assign(run="open")]
    )
    tokens = pd.concat([tokens_of("closed", closed), tokens_of("open", opened)])

    table = by_request(tokens, samples)

    names = ["run", "served", "tokens", "ttft_ms", "prefill_ms", "decode_ms", "prompt_tokens"]
    assert table[names].to_numpy().tolist() == [
        *(["closed", 0, 3, 20, 10, 35, 7], ["closed", 2, 1, 10, 10, 0, 7], ["open", 0, 2, 3, 2, 4, 7])
    ]
    assert table["tpot_ms"].tolist() == [17.5, pd.NA, 4]
    names = ["request", "size", "service_ms", "latency_ms", "first"]
    assert table[names].to_numpy().tolist() == [[5, "a", 50, 60, True], [6, "a", 20, 20, False], [7, "b", 7, 8, False]]
    assert gaps_ms(tokens).tolist() == [10, 25, 4]  # none between two requests


@pytest.mark.parametrize(("bound", "met"), [(2.9, 1), (3.0, 2), (3.1, 2)])
def test_a_request_at_the_bound_meets_it(bound: float, met: int) -> None:
    tpot_ms = pd.array([None, 1.0, 1.0], dtype="Float64")  # the first has one token
    requests = pd.DataFrame({"ttft_ms": [1.0, 3.0, 5.0], "tpot_ms": tpot_ms})

    assert goodput(requests, 0.5, {"ttft_ms": bound, "tpot_ms": 1.0}) == 2 * met
    assert goodput(requests, 0.5, {"ttft_ms": bound, "tpot_ms": 0.5}) == 2


@pytest.mark.parametrize(("length", "size"), [(1, 110 + 7), (4, 440 + 7), (5, 450 + 7), (40, 800 + 7)])
def test_a_cache_has_layers_that_grow_forever_up_to_a_window_or_not_at_all(length: int, size: int) -> None:
    assert Cache(((10, math.inf), (100, 4), (7, 1)), length=3).bytes_at(length) == size


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ("aaa", [True, True, False]),
        ("aabab", [True, True, True, False, True]),
        ("ab", [True, False]),  # no size was called more than twice
        ("abcd", [True, True, False, False]),
        ("a", [False]),
        ("", []),
    ],
)
def test_the_first_two_calls_of_each_size_are_warm_up(sizes: str, first: list[bool]) -> None:
    assert first_calls([served(0, 0, 0, 1, size=size) for size in sizes]) == first
