"""The rules of a run on both sides of their limits, and what they say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.loop.run_comparison import _of_slope
from perfnb.loop.run_rules import _share, run_findings
from perfnb.loop.run_summary import RunMemory
from perfnb.loop.run_view import _change_verdict, _outcome
from perfnb.loop.windows import Windows
from perfnb.stats.blocks import Changes
from perfnb.stats.intervals import Centre
from perfnb.stats.slope import Slope

MIB = 2**20
NOTHING = RunMemory(None, None, None)


def slow_steps(*steps: int, data_ms: tuple[float, ...] = ()) -> pd.DataFrame:
    """Return steps of 100 ms, and how long they waited."""
    waits = data_ms or (0.0,) * len(steps)
    return pd.DataFrame({"step": steps, "wall_ms": 100.0, "data_ms": waits, "lost_ms": 90.0})


def found(**changes: Any) -> Any:
    """Return what the rules find in a run of 100 steps of 10 ms."""
    usual: dict[str, Any] = {
        "enough": True, "load": None, "wait": Centre(0.0, 0.0, 0.0), "mean_ms": 10.0, "between_ms": 0.0, "batches": 1,
        "slow": slow_steps(), "has_device": False, "counted": 100, "lost_ms": 0.0, "changes": None, "count": 100,
        "judged": pd.DataFrame({"step": np.arange(100)}), "memory_bytes": None, "profiled": 0,
        "memory_of": {"allocated": NOTHING, "resident": NOTHING},
    }  # fmt: skip
    run: Any = SimpleNamespace(**(usual | changes))
    return run_findings(run)


def only(**changes: Any) -> pd.Series:
    table = found(**changes).table
    assert len(table) == 1
    return table.iloc[0]


def test_without_a_finding_the_run_is_steady() -> None:
    assert found().table.empty
    assert found().verdict.verdict == "Steady"
    assert found(enough=False, wait=Centre(0.5, 0.4, 0.6)).verdict.verdict == "Too few steps for a verdict"


@pytest.mark.parametrize(
    ("wait", "verdict"),
    [
        (Centre(0.049, 0.04, 0.06), "Steady"),
        (Centre(0.3, 0.0, 0.6), "Slowed by waits for data: "),
        (Centre(0.05, 0.04, 0.06), "Slowed by waits for data: removing the wait for data could save up to 0.500 ms"),
        (Centre(0.199, 0.1, 0.3), "Slowed by waits for data: "),
        (Centre(0.2, 0.1, 0.3), "Input-bound: removing the wait for data could save up to 2.00 ms per step, 20 %"),
    ],
)
def test_waits_for_data(wait: Centre, verdict: str) -> None:
    assert found(wait=wait).verdict.verdict.startswith(verdict)


def test_words_of_waits() -> None:
    wait = Centre(0.9, 0.8, 1.2)
    plain = only(wait=wait)
    assert plain["evidence"] == "Steps wait 9.00 ms for their batch on average, or 90.0 % [80.0, 100.0] of their time."
    assert (plain["bound_ms"], plain["confidence"]) == (9.0, "high")
    unsure, sure = (only(wait=Centre(0.06, low, 0.12)) for low in (0.0, 0.001))
    assert [one["confidence"] for one in (unsure, sure)] == ["low", "high"]
    assert ["few steps waited" in one["why"] for one in (unsure, sure)] == [True, False]
    gpu = only(wait=wait, has_device=True, batches=1200)
    assert "for their 1,200 batches on average" in gpu["evidence"]
    assert gpu["evidence"].endswith(" The GPU may have been working during the wait.")
    assert gpu["confidence"] == "medium"
    bursts = [only(wait=wait, slow=slow_steps(1, 5, data_ms=waits)) for waits in ((51.0, 50.0), (51.0, 51.0))]
    assert ["in bursts" in each["evidence"] for each in bursts] == [False, True]


@pytest.mark.parametrize(
    ("steps", "often", "confidence"),
    [
        ((10, 20, 30), "every 10 steps", "medium"),
        ((10, 12, 14), "every 2 steps", "medium"),
        ((10, 11, 12), "3 of 100 steps", "medium"),
        ((10, 20, 31), "3 of 100 steps", "medium"),
        ((10, 20), "2 of 100 steps", "low"),
    ],
)
def test_stalls_are_named_by_how_often_they_come(steps: tuple[int, ...], often: str, confidence: str) -> None:
    stalls = only(slow=slow_steps(*steps), lost_ms=270.0)
    assert f"({often}; the slowest, step 10, took 100 ms)" in stalls["evidence"]
    assert (stalls["bound_ms"], stalls["confidence"]) == (2.7, confidence)
    assert ("only in these steps" in stalls["advice"]) == often.startswith("every")


def test_stalls_matter_from_two_percent() -> None:
    assert only(slow=slow_steps(1), lost_ms=20.0)["bottleneck"] == "stalls"
    assert found(slow=slow_steps(1), lost_ms=19.9).table.empty
    assert found(slow=slow_steps(), lost_ms=500.0).table.empty
    joined = only(slow=slow_steps(1, 9), lost_ms=50.0, counted=200)
    assert "(at least 2 of 200 steps;" in joined["evidence"]


def test_time_between_steps_matters_from_five_percent() -> None:
    between = only(mean_ms=9.5, between_ms=0.5)
    assert between["evidence"].startswith("50.0 ms passed between steps, or 5.0 % of the time: ")
    assert between["bound_ms"] == 0.5
    profiled = only(mean_ms=9.5, between_ms=0.5, profiled=3)
    assert "5.0 % of the time outside profiled windows: " in profiled["evidence"]
    assert found(mean_ms=9.5, between_ms=0.49).table.empty


def drift(low: float, estimate: float = 1.2, first: float = 10.0, last: float = 12.0) -> Changes:
    return Changes("drift", (), (first, last), Centre(estimate, low, 1.5))


def test_a_drift_costs_what_keeping_the_first_pace_would_save() -> None:
    slower = only(changes=drift(1.1), mean_ms=11.5)
    assert slower["evidence"] == "Step time rose over the run from 10.0 ms to 12.0 ms, +20.0 % [+10.0, +50.0]."
    assert slower["bound_ms"] == 1.0
    assert only(changes=drift(1.1), mean_ms=10.5)["bound_ms"] == 0.5
    assert only(changes=drift(1.01, estimate=1.05), mean_ms=11.5)["bottleneck"] == "drift"
    for changes, mean_ms in ((drift(1.0), 11.5), (drift(1.01, estimate=1.049), 11.5), (drift(1.1), 10.0)):
        assert found(changes=changes, mean_ms=mean_ms).table.empty


def jumps(places: tuple[int, ...], *levels: float, high: float = 1.3) -> Changes:
    return Changes("jumps", places, levels, Centre(levels[-1] / levels[0], 1.1, high))


def test_a_change_of_pace_costs_what_the_fastest_would_save() -> None:
    pace = only(changes=jumps((50,), 10.0, 12.0), mean_ms=11.5)
    assert pace["evidence"] == (
        "Step time changed from 10.0 ms to 12.0 ms at step 50. From first to last level: +20.0 % [+10.0, +30.0]."
    )
    assert pace["bound_ms"] == 1.0  # half of the steps take 2 ms more
    assert only(changes=jumps((75,), 10.0, 12.0), mean_ms=11.5)["bound_ms"] == 0.5
    assert only(changes=jumps((25,), 10.0, 12.0), mean_ms=11.0)["bound_ms"] == 1.0
    twice = only(changes=jumps((50, 75), 12.0, 10.0, 14.0), mean_ms=12.0)
    assert (
        twice["evidence"]
        == "Step time changed from 12.0 ms to 10.0 ms at step 50, then from 10.0 ms to 14.0 ms at step 75."
    )
    assert twice["bound_ms"] == 2.0
    assert found(changes=jumps((50,), 10.0, 10.49), mean_ms=11.5).table.empty
    assert found(changes=jumps((98,), 10.0, 12.0), mean_ms=11.5).table.empty
    assert only(changes=jumps((25,), 10.0, 10.5), mean_ms=10.4)["bound_ms"] == 0.375
    assert only(changes=jumps((80,), 10.0, 12.0), mean_ms=16.0)["bound_ms"] == 0.4
    assert found(changes=jumps((80,), 10.0, 12.0), mean_ms=16.1).table.empty
    wide = only(changes=jumps((50,), 10.0, 12.0, high=120.0), mean_ms=11.5)
    assert wide["evidence"].endswith("From first to last level: +20.0 %.")
    assert found(changes=Changes("steady", (), (10.0,), Centre(1.0, 1.0, 1.0))).table.empty


def growing(mib_per_step: float, last_mib: float, low: float = 1.0) -> RunMemory:
    slope = Slope(mib_per_step * MIB, low, 2 * mib_per_step * MIB, 90)
    return RunMemory(round(last_mib * MIB), round(last_mib * MIB), slope)


@pytest.mark.parametrize(
    ("memory", "found_it"),
    [
        (growing(0.17, 1024), True),
        (growing(0.15, 1024), False),  # 15 MiB over the run
        (growing(0.21, 2048), True),
        (growing(0.20, 2048), False),  # below 1 % of the level
        (growing(1.0, 1024, low=-1.0), False),
        (RunMemory(None, None, growing(1.0, 1024).growth), False),
    ],
)
def test_memory_that_grows_by_enough(memory: RunMemory, found_it: bool) -> None:
    table = found(memory_of={"allocated": NOTHING, "resident": memory}).table
    assert table["bottleneck"].tolist() == ["memory growth"] * found_it


def test_when_memory_is_full() -> None:
    wait = Centre(0.5, 0.4, 0.6)

    def of(free_mib: int, kind: str = "resident") -> pd.DataFrame:
        memory = {"allocated": NOTHING, "resident": NOTHING} | {kind: growing(1.0, 1024)}
        return found(memory_of=memory, memory_bytes=(1024 + free_mib) * MIB, wait=wait).table

    soon, late, device = of(999), of(1000), of(999, "allocated")
    assert soon["bottleneck"].tolist() == ["memory growth", "input pipeline"]
    assert (
        "or 100 MiB over the run. At this rate, 1.98 GiB are full after about 1,000 more steps."
        in soon["evidence"].iloc[0]
    )
    assert late["bottleneck"].tolist() == ["input pipeline", "memory growth"]
    assert "full" not in device["evidence"].iloc[1]
    assert device["evidence"].iloc[1].startswith("Memory allocated on the device grows by ")
    both = {"allocated": growing(1.0, 1024), "resident": growing(2.0, 1024)}
    assert only(memory_of=both)["evidence"].startswith("Memory allocated on the device")
    assert only(memory_of=both)["bound_bytes"] == MIB


def test_on_a_busy_machine_what_others_cause_has_low_confidence_and_comes_last() -> None:
    busy = found(load=(8.0, 4), slow=slow_steps(10, 20, 30), lost_ms=500.0, mean_ms=9.0, between_ms=1.0).table
    assert busy["bottleneck"].tolist() == ["between steps", "stalls"]
    assert busy["confidence"].tolist() == ["high", "low"]
    assert busy["why"].iloc[1].startswith("The machine was busy with other work. ")
    assert found(slow=slow_steps(10, 20, 30), lost_ms=500.0, between_ms=1.0).table["bottleneck"].iloc[0] == "stalls"


@pytest.mark.parametrize(
    ("at", "every", "done", "due"),
    [
        (3, None, [0, 5], [3, None]),
        ([7, 3, 3], None, [0, 4, 9], [3, 7, None]),
        ([3, 7], None, [0, 9, 9], [3, 9, None]),  # one became due while another was open
        (3, 10, [0, 5, 14, 35, 43], [3, 13, 23, 43, 53]),
        (3, 10, [0, 13, 24], [3, 13, 33]),
    ],
)
def test_when_windows_are_due(at: Any, every: int | None, done: list[int], due: list[int | None]) -> None:
    windows = Windows(at, every)
    assert windows.single == (due == [3, None] and every is None)
    assert [windows.next(steps) for steps in done] == due


def test_windows_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^at must contain at least one step\.$"):
        Windows([])
    for at, every in ((-1, None), ("3", None), (3, 0)):
        with pytest.raises(ValueError, match=r"^(at|every) must be a whole number"):
            Windows(at, every)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Centre(0.25, -np.inf, np.inf), "25 %"),
        (Centre(0.25, 0.2, 0.304), "25.0 % [20.0, 30.4]"),
        (Centre(0.9, 0.8, 1.02), "90.0 % [80.0, 100.0]"),
    ],
)
def test_a_share_is_given_with_its_interval_if_it_has_one(share: Centre, said: str) -> None:
    assert _share(share) == said


@pytest.mark.parametrize(
    ("slope", "centre"),
    [
        (None, (np.nan, -np.inf, np.inf)),
        (Slope(5.0, None, None, 3), (5.0, -np.inf, np.inf)),
        (Slope(5.0, 4.0, 7.0, 30), (5.0, 4.0, 7.0)),
    ],
)
def test_growth_of_memory_without_an_interval_may_be_anything(slope: Slope | None, centre: tuple[float, ...]) -> None:
    assert tuple(_of_slope(slope)) == pytest.approx(centre, nan_ok=True)


@pytest.mark.parametrize(
    ("changes", "together", "said"),
    [
        ({}, True, " with the others"),
        ({"lever": "a and b"}, True, ": it would have saved about 300 ms over {100}, 30 % of their time"),
        ({"setup_s": 0.1}, False, ": it would have saved about 200 ms over {100}, 20 % of their time"),
        ({"setup_s": 0.3}, False, " in a longer run: preparing it takes longer than what it saves over {100}"),
        ({"saves_ms": 10.0}, False, ": it would have saved about 1.00 s over {100}"),
        ({"left": None}, False, ""),
        ({"saves_ms": None, "values": "not checked"}, False, "; values unchecked here: check with try_levers"),
    ],
)
def test_what_a_lever_would_have_saved(changes: dict[str, Any], together: bool, said: str) -> None:
    run: Any = SimpleNamespace(mean_ms=9.0, between_ms=1.0)
    tried = {"lever": "a", "kept": True, "saves_ms": 3.0, "left": 100, "setup_s": None, "values": "exact"} | changes
    assert _outcome(run, tried, together) == f"worth keeping{said}".replace("{100}", "the remaining 100 steps")
    assert _outcome(run, {"kept": False, "why_not": "too noisy"}, together) == "too noisy"


def changed(verdict: str, ratio: float | None, ratio_ci: tuple[float, float] | None = None, **parts: Any) -> Any:
    """Return changes between two runs: of step times in ms with interval, and of the growth of memory in bytes."""
    names = ["waiting for data", "working", "between steps"]
    rows = [parts.get(name.split()[0], (0.0, -1.0, 1.0)) for name in names]
    step = pd.DataFrame(rows, index=names, columns=["change_ms", "low_ms", "high_ms"], dtype="Float64")
    columns = ["change_bytes", "low_bytes", "high_bytes"]
    memory = pd.DataFrame([parts["memory"]] if "memory" in parts else [], columns=columns, dtype="Float64")
    memory.index = pd.Index(["growth of process memory"] * len(memory))
    return SimpleNamespace(verdict=verdict, ratio=ratio, ratio_ci=ratio_ci, equal_within=0.02, step=step, memory=memory)


@pytest.mark.parametrize(
    ("changes", "state", "words", "why"),
    [
        (changed("", None), "open", "Inconclusive: one of the runs has no steps to compare", ""),
        (
            changed("faster", 0.8, (0.7, 0.9)),
            "good",
            "The candidate's steps are faster: 20 % less time, 0.800 × [0.700, 0.900]",
            "",
        ),
        (
            changed("slower", 1.25, (1.2, 1.3), waiting=(2.0, 1.0, 3.0), working=(-4.0, -5.0, -3.0)),
            "bad",
            "The candidate's steps are slower: 25 % more time, 1.25 ×",
            "On average per step: working −4.00 ms [−5.00, −3.00], waiting for data +2.00 ms [1.00, 3.00].",
        ),
        (changed("same", 1.0, (0.99, 1.01)), "none", "The steps take the same time within 2.0 %: 1.00 ×", ""),
        (changed("inconclusive", 1.0, (0.9, 1.1)), "open", "Inconclusive: neither a difference nor equality", ""),
        (changed("inconclusive", 1.5), "open", "Inconclusive: ", "There are too few steps for an interval: each run"),
        (changed("same", 1.0, (1, 1), memory=(2.0, 0.0, 4.0)), "none", "The steps take the same time", ""),
        (
            changed("same", 1.0, (1, 1), memory=(2.0 * MIB, 1.0 * MIB, 3.0 * MIB)),
            "none",
            "The steps take the same time",
            "Memory (process memory) grows faster, by ",
        ),
    ],
)
def test_the_verdict_on_two_runs_gives_reasons_that_are_clear(changes: Any, state: str, words: str, why: str) -> None:
    verdict = _change_verdict(changes)
    assert (verdict.state, verdict.sentence[: len(words)]) == (state, words)
    assert verdict.why.startswith(why)
    assert bool(verdict.why) == bool(why)
