"""Requests served for real: on schedule, by several servers, with errors that reach the user."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from perfnb.inference.latency import latency
from perfnb.inference.request_runner import RequestQueue, RequestRunner, Served
from perfnb.inference.serving import (
    Requests,
    TokenTimes,
    may_hold,
    served_by,
    serves_in_training,
    size_of,
    tokens_served_by,
)
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_latency_counts_from_the_schedule(clock: FakeClock) -> None:
    requests = Requests(["x"])

    queue = RequestQueue(requests, requests.draws(0), 3, 1e9, arrivals_ms=[0, 2, 40])
    served = queue.serve(lambda _: clock.pass_exactly(10))

    assert [round((one.end_ns - one.arrival_ns) / 1e6, 1) for one in served] == [10.0, 18.0, 10.0]
    assert [round((one.start_ns - one.arrival_ns) / 1e6, 1) for one in served] == [0.0, 8.0, 0.0]
    assert [one.arrival_ns - queue._begin_ns for one in served] == [0, 2_000_000, 40_000_000]
    assert max(one.late_ns for one in served) < 1e5


@pytest.mark.parametrize("tokens", [False, True])
def test_what_is_noted_of_requests_wakes_no_garbage_collector(tokens: bool) -> None:
    requests = Requests([3])

    queue = RequestQueue(requests, requests.draws(0), 50, 1e9)
    served = queue.serve(tokens_served_by(range_of) if tokens else served_by(abs))

    gc.collect(0)  # which is when it forgets tuples of numbers
    assert len(served) == 50
    assert all(len(one.tokens_ns) == 3 * tokens for one in served)
    assert not any(gc.is_tracked(one) or gc.is_tracked(one.tokens_ns) for one in served)


def range_of(count: int) -> Iterator[int]:
    yield from range(count)


def test_servers_take_turns_in_order_of_arrival() -> None:
    busy = threading.Barrier(2)
    requests = Requests(list(range(8)))

    served = RequestQueue(requests, requests.draws(0), 8, 60).serve(lambda _: busy.wait(20), servers=2)

    assert len(served) == 8
    assert sorted(one.request for one in served) == list(range(8))


def test_a_server_without_work_leaves_the_others_what_they_wait_for() -> None:
    def slow_in_the_main_thread(_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)  # meanwhile the other one takes the last request, and waits for it

    requests = Requests(["x"])
    queue = RequestQueue(requests, requests.draws(0), 3, 60, arrivals_ms=[0.0, 0.0, 300.0])
    served = queue.serve(slow_in_the_main_thread, servers=2)

    assert len(served) == 3


def test_an_error_in_any_server_reaches_the_user() -> None:
    main = threading.current_thread()

    def fails(_: int) -> None:
        if threading.current_thread() is not main:
            raise RuntimeError("in a thread")
        time.sleep(0.01)

    requests = Requests([1])
    with pytest.raises(RuntimeError, match="in a thread"):
        RequestQueue(requests, requests.draws(0), 10**6, 60).serve(fails, servers=2)

    with pytest.raises(KeyError):
        latency(lambda request: {}[request], [1])


def test_requests_are_drawn_as_often_as_they_come() -> None:
    requests = Requests(iter(["a", "bb", "bb"]))
    draws = requests.draws(1)

    drawn = [requests[next(draws)] for _ in range(300)]

    assert drawn.count("a") == 100
    assert [size_of(each) for each in ("abc", torch.ones(2, 3), {"x": torch.ones(4)}, 7)] == [
        "3",
        "(2, 3)",
        "(4,)",
        "int",
    ]
    with pytest.raises(ValueError, match="requests is empty"):
        Requests([])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a prompt", r"not a str: pass \[request\] if it is a single request"),
        ({"input_ids": torch.ones(1, 3)}, r"not a dict: pass \[request\]"),
        (UserDict(input_ids=1), "not a UserDict"),
        (pd.DataFrame({"text": ["a", "b"]}), r"not a DataFrame: pass list\(frame.itertuples\(\)\)"),
    ],
)
def test_what_is_one_request_itself_is_not_taken_apart(given: Any, meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        latency(lambda request: request, given)


def test_only_the_first_thousand_of_requests_without_a_length_are_used() -> None:
    assert len(Requests(range(1_001))) == len(Requests(dict.fromkeys(range(1_001)).keys())) == 1_001
    assert len(Requests(iter(int, 1))) == 1_000  # endless


def test_tokens_are_timed_once_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    synchronized, times, counts = list[int](), TokenTimes(), list[int]()
    monkeypatch.setattr("perfnb.inference.serving.synchronize", lambda: synchronized.append(len(times)))
    on_gpu = torch.ones(2, device="meta")  # in the place of an accelerator
    times.put(torch.ones(1, 7))  # the prompt; later, tokens that were guessed ahead come at once
    for token in ("a", "", [], [5, 6], 7, torch.ones(3), torch.ones(0), on_gpu):
        times.put(token)
        counts.append(len(times))
    assert (times.prompt_tokens, counts, synchronized) == (7, [1, 1, 1, 2, 3, 6, 6, 8], [6])
    assert times[2] < times[3] == times[5]


@pytest.mark.parametrize(("ms", "count"), [(1_999, 3), (2_001, 2)])
def test_requests_are_served_until_1_5_times_the_schedule_and_a_second_have_passed(
    ms: float, count: int, clock: FakeClock
) -> None:
    done = list[Any]()
    runner = RequestRunner(lambda _: clock.pass_exactly(ms), Requests(["x"]), 1, lambda *told: done.append(told))

    served = runner.on_schedule([0.0, 1_000.0, 2_000.0])  # until 4 s

    assert len(served) == count
    assert done[-1] == ("at a rate", count, 3)


def test_a_series_is_taken_by_place_whatever_its_index() -> None:
    requests = Requests(pd.Series(["x", "y"], index=[7, 9]))

    assert [requests[place] for place in range(len(requests))] == ["x", "y"]


def test_serving_a_request_includes_waiting_for_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr("perfnb.inference.serving.synchronize", lambda: told.append("synchronized"))
    served_by(told.append)("whole")
    tokens_served_by(lambda request: map(told.append, [request]))("token by token")
    assert told == ["whole", "synchronized", "token by token", "synchronized"]


def test_a_model_is_served_in_inference_mode() -> None:
    seen = []

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_inference_mode_enabled())
            return super().forward(x)

    served_by(Model(2, 2))(torch.ones(1, 2))

    assert seen == [True]


def test_a_model_gets_a_mapping_of_its_parameters_by_name() -> None:
    class Model(torch.nn.Module):
        def forward(self, tokens: object, mask: object = None) -> object:
            return tokens, mask

    assert served_by(Model())({"tokens": 1, "mask": 2}) == (1, 2)
    assert served_by(Model())({"other": 1}) == ({"other": 1}, None)


class Pipeline:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __call__(self, request: torch.Tensor) -> torch.Tensor:
        return self.model(request)

    def answer(self, request: torch.Tensor) -> torch.Tensor:
        return self(request)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_training_mode_is_noticed_wherever_the_function_has_it(training: bool) -> None:
    model = torch.nn.Linear(2, 2).train(training)

    def serve(request: torch.Tensor) -> torch.Tensor:
        return model(request)

    def default(request: torch.Tensor, model: torch.nn.Module = model) -> torch.Tensor:
        return model(request)

    def given(request: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
        return model(request)

    call = torch.nn.Module.__call__
    wrapped = served_by(lambda x: serve(x))
    for fn in (model, serve, wrapped, partial(call, model), partial(given, model=model), default):
        assert serves_in_training(fn) == training
    assert serves_in_training(Pipeline(model)) == serves_in_training(Pipeline(model).answer) == training


async def answered_later(request: int) -> int:
    return request


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (answered_later, "returned a coroutine before its result was ready"),
        (lambda _: concurrent.futures.Future(), "returned a Future before its result was ready"),
        (lambda _: torch.futures.Future(), "returned a Future before its result was ready"),
        (lambda request: (request for _ in range(3)), "returned a generator, which does not compute anything until"),
        (lambda request: map(str, [request]), "returned a map, which does not compute anything until"),
    ],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_returned_before_it_is_computed_is_refused(
    fn: Callable[[int], Any], message: str, servers: int
) -> None:
    with pytest.raises(TypeError, match=message):
        latency(fn, [1], concurrency=servers, budget_s=0.2)


def test_a_streamer_that_gets_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="accepts streamer= but does not use it: pass the streamer to generate"):
        latency(lambda request, streamer: request, [1], tokens=True, budget_s=0.2)


@pytest.mark.parametrize("servers", [1, 2])
def test_an_error_names_the_request(servers: int) -> None:
    def fails(request: str) -> None:
        if request == "c":
            raise ValueError("too long")

    with pytest.raises(ValueError, match="too long") as raised:
        latency(fails, ["a", "b", "c"], concurrency=servers, budget_s=0.5)

    assert raised.value.__notes__ == ["The error was raised while perfnb served request 2."]

    def unlike(batch: list[str]) -> None:
        assert len(batch) < 4

    with pytest.raises(AssertionError) as raised_by_batch:
        latency(unlike, ["a", "b", "c"], batch=list, budget_s=1)

    assert raised_by_batch.value.__notes__ == ["The error was raised while perfnb served a batch of 4 requests."]


@pytest.mark.parametrize(
    ("made", "holds"),
    [
        (torch.ones(8, 3), True),
        (torch.ones(30, 8, 3), True),  # the batch is the second dimension
        ({"packed": torch.ones(100, 16)}, True),
        ([torch.ones(8, 3), torch.ones(8)], True),
        (list("abcdefgh"), True),
        (object(), True),
        (torch.ones(1, 3), False),
        (["a"], False),
        ((torch.ones(7, 3), torch.ones(7)), False),
    ],
)
def test_an_input_without_room_for_all_requests_is_reported(made: object, holds: bool) -> None:
    assert may_hold(made, 8) == holds


def test_a_server_that_waits_for_its_request_stops_when_another_fails(clock: FakeClock) -> None:
    requests = Requests([0])
    queue = RequestQueue(requests, requests.draws(0), 2, 10.0, [0.0, 5000.0])
    due_ns = clock.now_ns + 50_000_000
    assert queue._sleep_until(due_ns)
    assert due_ns <= clock.now_ns < due_ns + 1_000_000
    queue._stopped = True
    assert queue._sleep_until(due_ns)
    assert not queue._sleep_until(clock.now_ns + 50_000_000)
    assert queue._take() is None


@pytest.mark.parametrize(
    ("times", "due"),
    [
        ({}, [None, None]),
        ({"arrivals_ms": [1.5, 2.0]}, [10**9 + 1_500_000, 10**9 + 2_000_000]),
        ({"pauses_ms": [0.5, 2.0]}, [10**9 + 500_000, 5 * 10**9 + 2_000_000]),
    ],
)
def test_requests_are_due_at_their_arrival_or_after_a_pause_until_the_time_is_over(
    times: dict[str, Any], due: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([1, 1, 5, 5 + 1e-9])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(next(moments) * 10**9))
    queue = RequestQueue(Requests(["x"]), iter([7, 8]), 9, 4.0, **times)
    assert [queue._take() for _ in range(3)] == [(7, due[0]), (8, due[1]), None]


def test_the_time_of_a_request_is_in_milliseconds() -> None:
    assert Served(0, "", 1_000_000, 2_000_000, 5_500_000_000, 0).service_ms == 5498.0


def test_a_freeze_is_seen_by_all_who_had_to_wait_for_it(clock: FakeClock) -> None:
    """A closed loop omits the requests that would have come meanwhile: its control reports nothing."""
    calls = []

    def freezes_once(request: int) -> None:
        calls.append(request)
        clock.pass_exactly(2_000 if len(calls) == 100 else 10)

    def run(arrivals_ms: list[float] | None) -> np.ndarray:
        calls.clear()
        requests = Requests([0])
        served = RequestQueue(requests, requests.draws(0), 400, 1e9, arrivals_ms).serve(freezes_once)
        return np.array([(one.end_ns - one.arrival_ns) / 1e6 for one in served])

    assert np.quantile(run([50.0 * number for number in range(400)]), 0.99) > 1_000
    assert np.quantile(run(None), 0.99) < 100
