"""Whether batches are made in the background, whether a GPU is AMD's, and bounds by samples, on made-up figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.findings.doubts import _works_ahead
from perfnb.findings.lines import lines_in_words, not_below_samples
from perfnb.findings.proposed_code import is_amd


def facts(**change: Any) -> Any:
    known = {"loader": {"class": "list"}, "typical_ms": lambda phase: 0.0, "share": lambda ms: ms / 100}
    return SimpleNamespace(**known | change)


@pytest.mark.parametrize(
    ("waited", "data", "step", "ahead"),
    [
        (10.0, 4.9, 100.0, True),  # more than twice the wait of traced steps
        (10.0, 5.0, 100.0, False),
        (10.0, 4.0, 200.0, True),  # a wait of 5 % of the step
        (10.0, 4.0, 201.0, False),
    ],
)
def test_an_iterable_works_ahead_if_traced_steps_wait_less_than_timed_ones(
    waited: float, data: float, step: float, ahead: bool
) -> None:
    known = facts(loader={"class": "Feeder"}, waits_ms=np.array([waited, waited]), share=lambda ms: ms / step)
    known.typical_ms = {"data": data}.__getitem__

    assert _works_ahead(known) == ahead


@pytest.mark.parametrize(
    ("loader", "ahead"),
    [
        ({"num_workers": 1}, True),
        ({"class": "DataLoader", "num_workers": 0}, False),
        ({"class": "Feeder", "num_workers": 0}, True),  # its waits decide
        ({"class": "list"}, False),
        ({"class": "DataLoader", "num_workers": None}, True),
    ],
)
def test_workers_and_existing_batches_are_known(loader: dict[str, Any], ahead: bool) -> None:
    assert _works_ahead(facts(loader=loader, waits_ms=np.array([50.0]))) == ahead


def recorded(*names: str, devices: tuple[str, ...] = ()) -> Any:
    events = pd.DataFrame({"name": pd.Categorical(names)})
    return SimpleNamespace(events=events, meta={"devices": [{"name": name} for name in devices]})


def test_an_amd_gpu_is_known_by_its_calls_or_its_name() -> None:
    assert is_amd(recorded("aten::mm", "hipLaunchKernel"))
    assert is_amd(recorded("aten::mm", devices=("AMD Instinct MI300X",)))
    assert not is_amd(recorded("aten::chip", "cudaLaunchKernel", devices=("NVIDIA H100",)))


@pytest.mark.parametrize(
    ("ms", "traced_ms", "samples", "sampled", "wanted"),
    [
        (10.0, 20.0, 100, 50.0, 200 * (0.5 + 1.96 * 0.05) / 2),  # half of the traced work
        (40.0, 20.0, 100, 50.0, 200 * (0.5 + 1.96 * 0.05)),
        (150.0, 20.0, 100, 50.0, 150.0),
        (10.0, 20.0, 0, 50.0, 100.0),  # the interval ends at the whole step
        (10.0, 20.0, 100, 0.0, 10.0),
        (10.0, 0.0, 100, 50.0, 10.0),
    ],
)
def test_work_takes_no_less_time_than_its_samples(
    ms: float, traced_ms: float, samples: int, sampled: float, wanted: float
) -> None:
    columns = ["process", "phase", "self_ms"]
    rows = [("step", "forward", 0.8 * sampled), ("step", "backward", 0.2 * sampled), ("step", "loss", sampled)]
    lines = pd.DataFrame([*rows, ("worker 0", "forward", 900.0)], columns=columns)
    typical = {"forward": 0.75 * traced_ms, "backward": 0.25 * traced_ms}.__getitem__
    known = facts(lines_of_code=lines, typical_ms=typical, step_ms=200.0, meta={"python": {"samples": samples}})

    assert not_below_samples(known, ["forward", "backward"], ms) == pytest.approx(wanted)


FORWARD = ("step", "forward", "a.py")


def sampled(**ms: float) -> list[tuple[Any, ...]]:
    """Return samples of functions in forward, each in a file of its own."""
    return [("step", "forward", f"/code/{name}.py", name, 7, "x()", spent) for name, spent in ms.items()]


@pytest.mark.parametrize(
    ("rows", "bound", "said"),
    [
        (sampled(a=10, b=20, c=30, d=40), 1.0, ["40 % of the step in d (d.py:7: x())", "30 % ", "20 % "]),
        (sampled(a=90, b=10), 1.0, ["90 % of the step in a", "10 % of the step in b"]),
        (sampled(a=91, b=9), 1.0, ["91 % of the step in a"]),
        (sampled(a=50), 0.2, ["20 % of the step in a"]),  # no more than the finding's bound
        ([*sampled(a=50), ("step", "loss", "a.py", "l", 1, "", 50)], 1.0, ["50 % of the step in a"]),
        ([*sampled(a=50), ("worker 0", "forward", "a.py", "w", 1, "", 500)], 1.0, ["100 % of the step in a"]),
        (
            [("step", "forward", "a.py", "f", line, None, ms) for line, ms in ((1, 2), (8, 6))],
            1.0,
            ["100 % of the step in f (a.py:8)"],
        ),
        (
            [("step", "forward", "a.py", "f" * 61, 1, "c" * 81, 9)],
            1.0,
            [f"100 % of the step in …{'f' * 59} (a.py:1: {'c' * 79}…)"],
        ),
        ([("step", "loss", "a.py", "l", 1, "", 50)], 1.0, []),
        ([], 1.0, []),
    ],
)
def test_the_functions_with_the_most_samples_are_named(
    rows: list[tuple[Any, ...]], bound: float, said: list[str]
) -> None:
    lines = pd.DataFrame(rows, columns=["process", "phase", "file", "function", "line", "code", "self_ms"])
    words = lines_in_words(facts(lines_of_code=lines, share=lambda ms: ms), ["forward"], bound)

    named = words.removeprefix(" Sampled: ").removesuffix(".").split("), ") if words else []
    assert len(named) == len(said)
    assert all(one.startswith(start.removesuffix(")")) for one, start in zip(named, said, strict=True)), named
