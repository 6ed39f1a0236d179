"""What speaks against the bounds of a step, on figures made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.findings.doubts import _works_ahead, disagree, doubt_of, held_up, too_few_steps
from perfnb.findings.lines import not_below_samples
from perfnb.findings.proposed_code import compiling, is_amd
from perfnb.recording.text import TEXT


def facts(traced: tuple[float, ...] = (10.0, 10.0), **change: Any) -> Any:
    """Return the facts of a step on a CPU, without a reason to doubt them."""
    known = {
        "live": True,
        "gpu": None,
        "scale": 1.0,
        "compiling_ms": np.zeros(2),
        "loader": {"class": "list"},
        "waits_ms": np.zeros(2),
        "typical_ms": lambda phase: 0.0,
        "share": lambda ms: ms / 100,
        "meta": {},
        "uneven": "",
        "busy": False,
        "environment": {"threads": 2},
        "steps": 3,
        "recording": SimpleNamespace(steps=pd.DataFrame({"pass": "traced", "wall_ms": traced})),
        "figures": figures(),
    }
    return SimpleNamespace(**known | change)


def figures(slowdown: float | None = None, steps: int = 9, interval: bool = True) -> Any:
    timing = SimpleNamespace(steps=steps, ci_ms=(1.0, 2.0) if interval else None)
    return SimpleNamespace(slowdown=slowdown, timing=timing)


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


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({"scale": 2.5}, False),
        ({"scale": 2.51}, True),
        ({"scale": 9.0, "live": False}, False),
        ({"scale": 9.0, "gpu": "a GPU"}, False),
        ({"scale": 9.0, "loader": {"num_workers": 2}}, False),
        ({"scale": 9.0, "compiling_ms": np.array([0.0, 1.0])}, False),
    ],
)
def test_timed_steps_that_take_far_longer_were_held_up(change: dict[str, Any], held: bool) -> None:
    assert held_up(facts(**change)) == held


THREADS = "If one thread has no core, all others wait for it: try torch.set_num_threads(1)."
LONGER, SHORTER = "timed steps took longer than traced", "traced steps took longer than timed"


@pytest.mark.parametrize(
    ("change", "reasons", "threads"),
    [
        ({}, [], False),
        ({"uneven": "they are uneven"}, ["they are uneven"], False),
        ({"uneven": "they are uneven", "live": False}, [], False),
        ({"uneven": "they are uneven", "gpu": "a GPU"}, [], False),
        ({"scale": 1.5}, [], False),
        ({"scale": 1.51}, [LONGER], True),
        ({"scale": 1.51, "environment": {"threads": 1}}, [LONGER], False),
        ({"scale": 1.51, "environment": {}}, [LONGER], False),
        ({"scale": 1.51, "loader": {"num_workers": 1}}, [], False),
        ({"scale": 1.51, "figures": figures(0.5)}, ["timed steps took 2 times as long as traced ones"], True),
        ({"scale": 1.51, "figures": figures(1.0)}, [LONGER], True),
        ({"scale": 0.67}, [], False),
        ({"scale": 0.66}, [SHORTER], False),
        ({"scale": 0.66, "meta": {"stacks": True}}, [], False),
        ({"scale": 0.66, "figures": figures(4.0)}, ["traced steps took 4 times as long as timed ones"], False),
        ({"scale": 0.66, "figures": figures(1.0)}, [SHORTER], False),
        ({"scale": 0.0}, [], False),
        ({"busy": True}, ["the CPU was busy with other work"], True),
        ({"traced": (10.0, 15.0)}, [], False),
        ({"traced": (10.0, 15.1)}, ["the traced steps disagree (10"], False),
        ({"figures": figures(steps=2, interval=False)}, [], False),
        (
            {"busy": True, "figures": figures(steps=2, interval=False)},
            ["the CPU was", "2 timed steps are too few"],
            True,
        ),
    ],
)
def test_what_makes_bounds_uncertain(change: dict[str, Any], reasons: list[str], threads: bool) -> None:
    doubt = doubt_of(facts(**change))

    found = doubt.removeprefix("Low confidence: ").split(". ")[0].split("; ")
    assert [one.startswith(other) for one, other in zip(found, reasons or [""], strict=True)] == [True] * len(found)
    assert (doubt == "", THREADS in doubt) == (not reasons, threads)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"figures": figures(steps=1, interval=False)}, "Low confidence: 1 timed step is too few for a 95 % interval."),
        (
            {"figures": figures(steps=2, interval=False)},
            "Low confidence: 2 timed steps are too few for a 95 % interval.",
        ),
        ({"figures": figures(steps=2, interval=False), "live": False}, ""),
    ],
)
def test_timed_steps_without_an_interval_are_too_few(change: dict[str, Any], words: str) -> None:
    assert too_few_steps(facts(**change)) == words


def test_steps_disagree_beyond_half_as_much_again() -> None:
    assert [disagree(pd.Series([10.0, 12.0, most])) for most in (15.0, 15.1)] == [False, True]


def recorded(*names: str, devices: tuple[str, ...] = (), **modules: list[Any]) -> Any:
    events = pd.DataFrame({"name": pd.Categorical(names)})
    table = pd.DataFrame({"name": [], "compiled": []} | modules).astype({"name": TEXT, "compiled": "boolean"})
    return SimpleNamespace(events=events, modules=table, meta={"devices": [{"name": name} for name in devices]})


def test_an_amd_gpu_is_known_by_its_calls_or_its_name() -> None:
    assert is_amd(recorded("aten::mm", "hipLaunchKernel"))
    assert is_amd(recorded("aten::mm", devices=("AMD Instinct MI300X",)))
    assert not is_amd(recorded("aten::chip", "cudaLaunchKernel", devices=("NVIDIA H100",)))


@pytest.mark.parametrize(
    ("change", "caveat", "line"),
    [
        ({}, "", True),
        ({"uses_torch": False}, "", False),
        ({"variable": lambda layer: None}, "", False),
        ({"is_called": lambda layer: False}, "torch.compile(net) alone would not compile anything", False),
        ({"recording": recorded(name=["net", "net.a"], compiled=[None, True])}, "already compiled", False),
        ({"recording": recorded(name=["net", "nets.a"], compiled=[False, True])}, "", True),
        ({"recording": recorded(name=["net"], compiled=[True])}, "already compiled", False),
    ],
)
def test_a_line_that_compiles_is_for_a_model_that_the_step_calls(
    change: dict[str, Any], caveat: str, line: bool
) -> None:
    known = facts(uses_torch=True, root=lambda layer: "net", variable=lambda layer: "net", is_called=lambda layer: True)
    known.recording = recorded()

    words, code = compiling(SimpleNamespace(**vars(known) | change), ["net.a"])  # type: ignore[arg-type]

    assert caveat in words
    assert (bool(words), "net" in code) == (bool(caveat), line)


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
