"""What `latency` answers: the highest rate, saturation, batchers, one request token by token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.draw.document import Series, Strip
from perfnb.inference import latency_view
from perfnb.inference.latency import HighestRate, Latency, OpenRun
from perfnb.inference.samples import TOKEN_COLUMNS, Cache
from tests.fake_clock import FakeClock
from tests.inference.latency_samples import back_to_back, fake, lognormal, with_everything, with_tokens, words_of
from tests.samples import texts
from tests.samples.inference import DOCUMENTS


def parts_of(found: Latency) -> tuple[Any, ...]:
    return found, found._measured, found._load, found._asked


def verdict_of(found: Latency) -> tuple[str, str]:
    verdict = latency_view._verdict(*parts_of(found))
    return verdict.state, verdict.sentence


def section(found: Latency, kind: type, title: str) -> Any:
    sections = latency_view._sections(*parts_of(found))
    return next(each for each in sections if isinstance(each, kind) and each.title.startswith(title))


def notes_of(found: Latency) -> list[str]:
    return list(latency_view._notes(*parts_of(found)[:3]))


KEPT = HighestRate(70.0, 60.0, 80.0, 40.0, 0.99)
CONFIRMED = dataclasses.replace(KEPT, confirmed_ms=38.0, confirmed_requests=700, confirmed_within=694)
FEW = dataclasses.replace(KEPT, confirmed_requests=40, confirmed_within=40)
BUSY = {"load_before": 6.0, "cpus": 2}


@pytest.mark.parametrize(
    ("asked", "state", "end"),
    [
        (CONFIRMED, "good", "confirmed by a run"),
        (FEW, "good", "not refuted by a run with few requests"),
        (KEPT, "open", "not confirmed by a run"),
        (HighestRate(0.0, 0.0, 0.0, 5.0, 0.99), "bad", "even requests served alone take longer"),
        (HighestRate(None, 0.0, 40.0, 50.0, 0.99), "open", "The highest rate with p99 within 50.0 ms is unknown"),
    ],
)
def test_the_highest_rate_within_the_bound_comes_first(asked: HighestRate, state: str, end: str) -> None:
    found = verdict_of(fake(lognormal(400), asked=asked))
    assert found[0] == state
    assert found[1].endswith(end)


def test_the_verdict_says_whether_the_rate_asked_for_saturates() -> None:
    samples = back_to_back(np.full(400, 10.0))
    within, beyond, few = (
        OpenRun(20.0, samples, 0, 0.0),
        OpenRun(200.0, samples, 9, 0.0),
        OpenRun(20.0, samples[:9], 0, 0),
    )
    alone = "A request takes 7.13 ms [6.81, 8.38] (median), and 129 requests/s are served back to back"
    for run, state, sentence in (
        (None, "none", alone),
        (few, "good", "Not saturated at 20.0 requests/s: the median is 10.0 ms [10.0, 10.0]"),
        (within, "good", "Not saturated at 20.0 requests/s: p99 is 10.0 ms [10.0, 10.0]"),
        (beyond, "bad", "Saturated at 200 requests/s: requests arrive faster than they are served"),
    ):
        assert verdict_of(fake(lognormal(60), open_run=run)) == (state, sentence)
    for run, words in (
        (within, "at 20.0 requests/s, the service is not"),
        (beyond, "at 200 requests/s, the service is"),
    ):
        _, sentence = verdict_of(fake(lognormal(60), open_run=run, asked=CONFIRMED))
        assert sentence.endswith(f"confirmed by a run; {words} saturated")


def test_a_busy_machine_leaves_the_highest_rate_and_saturation_undecided() -> None:
    within = OpenRun(20.0, back_to_back(np.full(400, 10.0)), 0, 0.0)
    busy, own = BUSY, {"load_before": 2.0, "cpus": 2}

    for given in ({"open_run": within}, {"asked": CONFIRMED}):
        state, sentence = verdict_of(fake(lognormal(60), **given))
        assert state == "good"
        assert verdict_of(fake(lognormal(60), noise=busy, **given)) == (
            "open",
            f"{sentence}; undecided: the machine was busy (load 6.0 on 2 CPUs)",
        )
        assert verdict_of(fake(lognormal(60), noise=own, **given)) == (state, sentence)
    assert verdict_of(fake(lognormal(60), noise=busy))[0] == "none"


def test_a_model_in_training_mode_leaves_the_verdict_open() -> None:
    verdict = latency_view._verdict(*parts_of(fake(lognormal(60), asked=CONFIRMED, in_training=True)))
    assert (verdict.state, verdict.next.startswith("The model was in training mode: ")) == ("open", True)


@pytest.mark.parametrize(
    ("layers", "basis"),
    [(((10, math.inf), (7, 1)), "30 tokens, and 10 B for each additional token"), (((10, 30), (7, 1)), "30 tokens")],
)
def test_the_cache_of_an_answer_is_a_figure(layers: Any, basis: str) -> None:
    found = with_tokens()
    measured = dataclasses.replace(found._measured, cache=Cache(layers, 30))
    *_, figure = latency_view._figures(found, measured, found._load, None)
    assert (figure.label, figure.value, figure.basis) == ("key-value cache", 307, basis)


def test_the_curve_has_the_quantiles_that_are_known_and_the_bound() -> None:
    curve = section(with_everything(), Series, "Latency under load")
    assert [line.mark.word for line in curve.lines] == ["p50", "p95", "p99"]
    assert curve.levels == {"bound for p99, kept up to 70.0 requests/s": 40.0}
    assert curve.y.log
    for line in curve.lines:
        known = [(low, value, high) for low, value, high in zip(line.low, line.values, line.high, strict=True) if high]
        assert known
        assert all(low <= value <= high for low, value, high in known)

    assert [line.mark.word for line in section(fake(lognormal(50)), Series, "Latency").lines] == ["p50"]
    far = fake(lognormal(400), asked=HighestRate(90.0, 80.0, 100.0, 9_000.0, 0.99))
    assert section(far, Series, "Latency").levels == {}


def test_dots_of_many_requests_are_drawn_from_the_fastest_to_the_slowest() -> None:
    (_, dots), (mark, in_run) = section(with_everything(), Strip, "Latency of single requests").groups

    assert (len(dots), min(dots), max(dots)) == (300, lognormal(400).min(), lognormal(400).max())
    assert np.median(dots) == pytest.approx(np.median(lognormal(400)), rel=0.01)
    assert (mark.word, min(in_run)) == ("at 20.0 requests/s", lognormal(400).min() + 4)


def test_the_batcher_to_use_and_what_is_overrun() -> None:
    found = fake(np.full(400, 10.0), asked_rate=150.0, batches_ms={4: np.full(100, 13.0)})  # one by one 100 are served
    best = found.batching.best(150.0)

    table = latency_view._settings(found.batching, 150.0)
    advice = latency_view._verdict(*parts_of(found)).next

    assert table.title.startswith("Simulated p99 of dynamic batchers at 150 requests/s; best: a batcher with at most 4")
    assert f"use a batcher with at most {best.most} requests and " in advice
    assert "instead of serving one by one, which is overrun (simulated)." in advice
    assert table.rows[0][:2] == (0.0, "overrun")
    assert best.p99_ms in next(row for row in table.rows if row[0] == best.delay_ms)


def test_waiting_is_a_share_of_the_latency() -> None:
    samples = back_to_back(np.full(400, 10.0))
    samples.loc[:19, "wait_ms"] = 30.0
    run = OpenRun(20.0, samples, 0, 0.0)

    words = words_of(fake(np.full(400, 10.0), open_run=run, asked_rate=20.0))

    assert "Waiting for earlier requests makes up 13 % of the mean latency." in words
    assert "at 20.0 /s, computed 10.0 ms" in words


def test_too_few_requests_for_the_bound_leave_the_rate_unknown(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(10), [1], bound_ms=50, budget_s=1)

    verdict = latency_view._verdict(*parts_of(found))
    assert (verdict.state, verdict.sentence) == ("open", "The highest rate with p99 within 50.0 ms is unknown")
    assert verdict.why == "There were too few requests to determine p99: raise budget_s."


def batcher(most: int, delay_ms: float = 3.0, rate: float = 80.0, p99_ms: float = 12.0) -> Any:
    return SimpleNamespace(most=most, delay_ms=delay_ms, rate_per_s=rate, p99_ms=p99_ms)


@pytest.mark.parametrize(
    ("asked", "best", "alone_ms", "sentence"),
    [
        (KEPT, batcher(4), 0, "Use a batcher with at most 4 requests and a delay of 3.00 ms, which serves up to 80.0"),
        (KEPT, batcher(1), 0, "Use serving requests one by one, which serves up to 80.0 requests/s within the bound"),
        (KEPT, batcher(4, rate=70.0), 0, "No batcher can serve a higher rate within the bound."),
        (KEPT, None, 0, "No batcher can serve a higher rate within the bound."),
        (dataclasses.replace(KEPT, rate_per_s=None), batcher(4, rate=0.1), 0, "Use a batcher with at most 4"),
        (None, None, 0, "At 20.0 requests/s, every batcher is overrun."),
        (None, batcher(1), 0, "At 20.0 requests/s, no batcher has a lower p99 than serving requests one by one"),
        (None, batcher(2), 15.0, "At 20.0 requests/s, use a batcher with at most 2 requests and a delay of 3.00 ms: "
         "p99 12.0 ms instead of 15.0 ms (simulated)."),
        (None, batcher(2), math.inf, "At 20.0 requests/s, use a batcher with at most 2 requests and a delay of "
         "3.00 ms: p99 12.0 ms instead of serving one by one, which is overrun (simulated)."),
        (dataclasses.replace(KEPT, quantile=0.9), None, 0, "At 20.0 requests/s, every batcher is overrun."),
    ],
)  # fmt: skip
def test_which_batcher_is_recommended(asked: Any, best: Any, alone_ms: float, sentence: str) -> None:
    found: Any = SimpleNamespace(batching=Mock())
    found.batching.best.return_value = found.batching.best_within.return_value = best
    found.batching.at.return_value = batcher(1, p99_ms=alone_ms)
    measured: Any = SimpleNamespace(batches_ms={2: [1.0]}, asked_rate=20.0)
    assert latency_view._batchers(found, measured, Mock(), asked).startswith(sentence)
    measured.batches_ms = {}
    assert latency_view._batchers(found, measured, Mock(), asked) == ""


@pytest.mark.parametrize(("rate", "at"), [(20.0, 20.0), (None, 80.0)])
def test_batchers_are_compared_at_the_rate_asked_for_or_at_most_of_what_is_served(rate: Any, at: float) -> None:
    load: Any = SimpleNamespace(closed_per_s=100.0)
    assert latency_view._batched_at(SimpleNamespace(asked_rate=rate), load) == at  # type: ignore[arg-type]


def closed(count: int, **columns: Any) -> dict[str, pd.DataFrame]:
    return {"closed": back_to_back(np.full(count, 10.0)).assign(**columns)}


@pytest.mark.parametrize(
    ("measured", "noted"),
    [
        ({}, []),
        (closed(298), ["p99 needs at least 299 requests: pass a budget_s 1 times as long."]),
        (closed(13), ["p99 needs at least 299 requests: pass a budget_s 23 times as long."]),
        (closed(301, first=np.arange(301) < 2), ["The first calls of each size are excluded as warm-up (2)."]),
        (closed(301, size=np.arange(301) // 2), ["No size was called more than twice, so these times may include"]),
        (closed(301, size=np.arange(301) // 3), []),
        ({"batches_ms": {}}, ["There was no time to measure batches: raise budget_s."]),
        ({"batches_ms": {2: [1.0]}}, []),
        ({"short_batch": 4}, ["No part of the input that batch= makes from 4 requests has the length 4."]),
        ({"tokens": pd.DataFrame(columns=list(TOKEN_COLUMNS))}, ["No tokens arrived."]),
        ({"price_per_hour": 1.0, "joules": {"closed": "no GPU"}}, ["Energy n/a: no GPU."]),
        ({"price_per_hour": 1.0, "joules": {"closed": 0.1}}, []),
        ({"joules": {"closed": "no GPU"}}, []),
        ({"noise": BUSY}, ["The machine was already busy (load 6.0 on 2 CPUs)."]),
    ],
)
def test_what_a_run_left_out_is_noted(measured: dict[str, Any], noted: list[str]) -> None:
    notes = notes_of(fake(np.full(299, 10.0), **measured))
    assert [note.startswith(words) for note, words in zip(notes, noted, strict=True)] == [True] * len(noted)


def test_what_was_not_measured_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"Batches were not measured: pass batch="):
        fake(lognormal(60)).batching  # noqa: B018
    with pytest.raises(ValueError, match=r"Goodput is only measured in a run at a given rate"):
        fake(lognormal(60)).goodput_per_s(ttft_ms=1.0)


def test_two_servers_may_wait_for_each_other_between_requests() -> None:
    """Their requests take 1 ms each, one after the other: 1,000 a second, and not 2,000."""
    waiting = fake(np.full(400, 1.0), concurrency=2)
    at_once = fake(np.full(400, 1.0), concurrency=2, **closed(400, service_ms=1.0, start_ms=np.arange(400) // 2 * 1.0))

    words = "1,000 requests/s were served, fewer than the 2,000 requests/s that these times allow"
    assert [note.startswith(words) for note in notes_of(waiting)] == [True]
    assert notes_of(at_once) == []
    assert at_once.costs.loc["closed", "requests_per_s"] == pytest.approx(2000)


@pytest.mark.parametrize(
    ("count", "took", "extra", "late", "saturated", "noted"),
    [
        (10, 15.0, None, 0.01, False, ["Requests took 15.0 ms in this run (median), 1.50 times as"]),
        (9, 15.0, None, 0.0, False, []),
        (10, 14.9, None, 0.0, False, []),
        (10, 15.0, 1.0, 0.0, False, []),
        (10, 16.5, 1.0, 0.0, False, ["Requests took 16.5 ms in this run (median), 1.50 times as"]),
        (10, 15.0, -2.0, 0.0, False, ["Requests took 15.0 ms in this run (median), 1.50 times as"]),
        (10, 10.0, None, 0.02, False, ["The clock started requests up to 2"]),
        (10, 10.0, None, 0.02, True, []),
    ],
)
def test_disturbances_of_a_run_at_a_rate_are_reported(
    count: int, took: float, extra: float | None, late: float, saturated: bool, noted: list[str]
) -> None:
    samples = pd.DataFrame({"service_ms": [took] * count})
    run: Any = SimpleNamespace(samples=samples, late=late, saturated=saturated)
    pauses = pd.DataFrame({"extra_ms": pd.array([extra, -9.0 if extra else None], dtype="Float64")})
    notes = list(latency_view._run_notes(run, 10.0, pauses))
    assert [note.startswith(words) for note, words in zip(notes, noted, strict=True)] == [True] * len(noted)


@pytest.mark.parametrize(
    ("extra_ms", "low_ms", "between_ms", "noted"),
    [
        ([0.5, 0.5], [0.4, 0.4], 1.1, []),
        ([0.51, 0.6], [0.1, -0.1], 1.1, ["more after a pause of 2.00 ms."]),
        ([0.51, 0.6], [0.0, 0.1], 1.1, ["more after a pause of 8.00 ms."]),
        ([0.0, 0.0], [0.0, 0.0], 10 / 9, ["90.0 requests/s were served, fewer than the 100 requests/s"]),
    ],
)
def test_time_before_and_between_requests_is_reported_from_a_share_on(
    extra_ms: list[float], low_ms: list[float], between_ms: float, noted: list[str]
) -> None:
    own = fake(np.full(400, 10.0))
    pauses = pd.DataFrame({"extra_ms": extra_ms, "ci_low_ms": low_ms, "ci_high_ms": 1.0}, index=[2.0, 8.0])
    found: Any = SimpleNamespace(pauses=pauses, first_calls=[], open_run=None)
    load = dataclasses.replace(own._load, between_ms=between_ms)
    notes = list(latency_view._notes(found, own._measured, load))
    assert [words in note for note, words in zip(notes, noted, strict=True)] == [True] * len(noted)


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
