"""Whether a backend is used and why, by its time, its outputs, its losses and the limits; and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch

from perfnb.bench.quality import Loss
from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, UNCHECKED, Values
from perfnb.errors import CaptureError
from perfnb.inference import backend_trials
from perfnb.inference.backend_figures import BackendTrial, Judged, judge
from perfnb.inference.backend_view import _notes, _verdict
from perfnb.inference.backends import ReadyBackend, call_of
from tests.inference.backend_samples import backends_of_times


def trial(values: str = SAME, error: float | None = 0.0, why: str = "", **facts: Any) -> BackendTrial:
    """Return a backend that always takes 10 ms, whose outputs have this verdict and distance."""
    usual: dict[str, Any] = {"times_ms": (10.0,) * 80, "peak_bytes": 4000}
    return BackendTrial("b", "", print, 0.5, 1000, values=Values(values, error, why), error=error, **usual | facts)


SPREAD = tuple(10 + 0.1 * (place - 40) for place in range(80))
LOW = trial(REDUCED, 0.01)


@pytest.mark.parametrize(
    ("tried", "verdict", "losses", "limits", "decision", "reason"),
    [
        (trial(), "faster", None, {}, "accept", "faster, and its outputs are exactly the same"),
        (trial(NOISE, 1e-6), "faster", None, {}, "accept", "faster, and its outputs are the same within noise"),
        (LOW, "faster", None, {}, "inconclusive",
         "faster, in lower precision: pass quality=, or limits={'difference': ...}"),
        (LOW, "faster", None, {"difference": 0.01}, "accept", "faster, and its outputs are within the limit"),
        (LOW, "faster", None, {"difference": 0.009}, "reject", "difference is 0.01, more than 0.009"),
        (trial(DIFFERENT, 0.8, "NaN"), "faster", None, {}, "reject", "its outputs are different: NaN"),
        (trial(UNCHECKED, None, "no numbers"), "faster", None, {}, "inconclusive",
         "faster, but its outputs could not be checked: no numbers"),
        (trial(), "slower", None, {}, "reject", "slower than the unmodified model"),
        (trial(), "same", None, {}, "reject", "as fast as the unmodified model, within 2%"),
        (trial(), "inconclusive", None, {}, "inconclusive", "no clear difference in time: raise budget_s"),
        (trial(), "faster", None, {"peak_memory_bytes": 3999}, "reject", "over the limit of peak_memory_bytes"),
        (trial(), "faster", None, {"median_ms": 9.9, "p95_ms": 9.9}, "reject", "over the limit of median_ms, p95_ms"),
        (trial(), "faster", None, {"peak_memory_bytes": 4000, "median_ms": 10, "p95_ms": 10}, "accept",
         "faster, and its outputs are exactly the same"),
        (trial(peak_bytes=None), "faster", None, {"peak_memory_bytes": 1}, "inconclusive",
         "faster, but peak_memory_bytes was not measured"),
        (trial(times_ms=SPREAD), "faster", None, {"median_ms": 10}, "inconclusive",
         "faster, but median_ms may be over its limit: raise budget_s"),
        (LOW, "faster", [Loss("error", 0.25, limit=0.125)], {}, "reject", "error is 0.25, more than 0.125"),
        (LOW, "faster", [Loss("error", 0.25, limit=0.25)], {}, "accept", "faster, and good enough"),
        (LOW, "faster", [Loss("error", 0.25)], {}, "inconclusive",
         "faster, but error has no limit, and the unmodified model has no finite one"),
        (LOW, "faster", [Loss("error", 0.25, limit=1.0)], {"other": 1.0, "median_ms": 99}, "inconclusive",
         "faster, but other was not measured"),
    ],
)  # fmt: skip
def test_whether_a_backend_is_used_and_why(
    tried: BackendTrial, verdict: str, losses: Sequence[Loss] | None, limits: dict[str, float],
    decision: str, reason: str,
) -> None:  # fmt: skip
    assert judge(tried, verdict, losses, limits) == Judged(decision, reason)


def test_the_distance_of_outputs_is_that_of_the_numbers_farthest_apart() -> None:
    output, truth = torch.tensor([1.5, 1.0, 4.0]), torch.tensor([1.0, -2.0, 5.0])

    assert backend_trials._distance(output, truth) == backend_trials._distance(truth, output) == 3.0
    assert backend_trials._distance(output[:0], truth[:0]) == 0.0
    for unlike in (None, output[:2], output[:, None]):
        assert backend_trials._distance(unlike, truth) == float("inf")
    assert backend_trials._distance(output, None) == float("inf")


@pytest.mark.parametrize(
    ("changes", "peak"),
    [
        ([(0, 100, "cpu"), (1, -50, "cpu"), (2, 60, "cpu")], 117),
        ([(0, 1000, "cpu"), (1, 40, "cuda"), (2, 30, "cuda"), (3, 900, "cpu"), (4, -70, "cuda")], 77),
        ([(0, -5, "cpu")], 7),
        (CaptureError("too many"), None),
    ],
)
def test_the_peak_is_that_of_the_weights_and_of_what_a_call_allocates_on_its_device(
    changes: Any, peak: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer, run = MagicMock(), MagicMock()
    tracer.return_value.memory_changes.side_effect = [changes]
    monkeypatch.setattr(backend_trials, "Tracer", tracer)
    ready, call = ReadyBackend(run, 7), call_of((1, 2))
    assert backend_trials._peak_bytes(ready, call) == peak
    run.assert_called_once_with(1, 2)
    tracer.return_value.close.assert_called_once_with()
    assert backend_trials._peak_bytes(ready._replace(by_torch=False), call) is None


def test_the_fastest_accepted_backend_is_recommended() -> None:
    table = pd.DataFrame({"ratio": [0.1, 0.5, 0.4, 1.0], "decision": ["reject", *["accept"] * 3]}, index=list("abcd"))
    table = table.assign(median_ms=10 * table["ratio"], ratio_low=table["ratio"] - 0.1, ratio_high=table["ratio"] + 0.1)
    assert _verdict(table).sentence == "Use c: 4.00 ms per call, 60 % less than eager: 0.400 × [0.300, 0.500]"
    alone = _verdict(table.tail(1)).sentence
    assert alone == "Use d: 10.0 ms per call, no longer than eager: 1.00 × [0.90, 1.10]"


def test_only_backends_known_to_be_unsteady_are_noted() -> None:
    rounds = backends_of_times(exact=0.5)._rounds
    unsteady = "Not all backends had reached steady state when the warm-up ended."
    for steady, notes in ((True, []), (None, []), (False, [unsteady])):
        assert list(_notes(replace(rounds, steady=steady))) == notes
