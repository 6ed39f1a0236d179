"""What pairs of blocks of a loop's own steps say about a lever, and which levers a loop allows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from perfnb.remedies.blocks import IN_LOOPS, LEAD, PAIRS, BlockTrial, answer, counted_steps, judged, levers_for_loops
from perfnb.remedies.levers import LEVERS, by_name
from perfnb.remedies.verdicts import fewest_rounds

Milliseconds = Callable[[int, bool], float]


def usual(seed: int) -> Milliseconds:
    """Return steps of 10 ms as on a quiet machine, each a little like the one before; a lever changes nothing."""
    noise, held = np.random.default_rng(seed), 0.0

    def ms(_step: int, _on: bool) -> float:
        nonlocal held
        held = 0.3 * held + 0.03 * float(noise.standard_normal())
        return 10.0 * float(np.exp(held))

    return ms


def tried(lever: str, ms: Milliseconds, pairs: int = PAIRS, seed: int = 1, first: int = 0) -> BlockTrial:
    """Return a lever that was tried on steps of these times, from the step `first` on."""
    trial, step = BlockTrial(lever, "not timed"), first
    for _, order in zip(range(pairs), trial.orders(seed), strict=False):
        took = {}
        for on in order:
            times = [ms(step + place, on) for place in range(trial.lead + trial.counted)]
            took[on], step = sum(times[trial.lead :]) / trial.counted, step + len(times)
        trial.add(took)
    return trial


def test_a_lever_that_helps_is_faster_by_what_was_planted() -> None:
    noise = usual(1)
    [found] = judged([tried("threads", lambda step, on: noise(step, on) * (0.8 if on else 1.0))])
    assert found.verdict == "faster"
    assert found.ratio_ci is not None
    assert found.ratio_ci[0] < 0.8 < found.ratio_ci[1]
    assert found.helps("time")
    assert answer([found]) == "threads is faster by 19 % [18, 21]; values unchecked here: check with try_levers"


def test_a_lever_that_does_nothing_is_not_called_faster() -> None:
    [found] = judged([tried("threads", usual(2))])
    assert found.verdict in ("same", "inconclusive")
    assert answer([found]) == "none of the levers was proven to make the loop faster"


@pytest.mark.parametrize("seed", range(5))
def test_drift_along_the_run_is_not_taken_for_the_lever(seed: int) -> None:
    noise = usual(seed)
    [found] = judged([tried("threads", lambda step, on: noise(step, on) * (1 + 0.01 * step), seed=seed)])
    assert found.verdict in ("same", "inconclusive")
    [found] = judged([tried("threads", lambda step, on: noise(step, on) * (1 + 0.01 * step) * (0.7 if on else 1))])
    assert found.verdict == "faster"


def test_steps_right_after_a_switch_do_not_count() -> None:
    size = LEAD + counted_steps(10.0)
    [found] = judged([tried("compile", lambda step, on: 9000.0 if on and step % size < 2 else 10.0 - 2.0 * on)])
    assert (found.verdict, found.ratio) == ("faster", pytest.approx(0.8))


@pytest.mark.parametrize("levers", [1, 2, 4, 8])
def test_too_few_pairs_give_no_verdict(levers: int) -> None:
    fewest = fewest_rounds(levers)
    rest = [BlockTrial(name, "not timed") for name in IN_LOOPS[1:levers]]

    def half(pairs: int) -> BlockTrial:
        return judged([tried("threads", lambda _, on: 5.0 if on else 10.0, pairs), *rest])[0]

    assert half(fewest).verdict == "faster"
    few = half(fewest - 1)
    assert (few.verdict, few.ratio) == ("not timed", None)
    assert few.why_not == f"too few pairs of blocks before the loop ended: {fewest - 1}, but {fewest} are needed"
    assert not few.helps("time")


def test_judging_changes_nothing_so_that_the_trial_can_go_on() -> None:
    trial = tried("threads", usual(1), 3)
    assert judged([trial])[0].why_not
    assert trial.why_not == ""


def test_of_one_kind_only_the_fastest_is_kept() -> None:
    noise = usual(1)
    fused, foreach = (
        tried(name, lambda step, on, by=by: noise(step, on) * (by if on else 1.0))
        for name, by in (("fused_optimizer", 0.6), ("foreach_optimizer", 0.8))
    )
    fused.family = foreach.family = "update"
    first, second = judged([fused, foreach])
    assert (first.why_not, second.why_not) == (
        "",
        "only one lever of this kind can be on, and fused_optimizer is faster",
    )


def test_a_hopeless_lever_is_not_tried_to_the_end() -> None:
    trial = tried("compile", lambda _, on: 60.0 if on else 10.0)
    assert len(trial.on_ms) == 2
    assert judged([trial])[0].why_not == "too slow to keep trying: it takes more than 5 times as long"


@pytest.mark.parametrize(
    ("on_ms", "hopeless"),
    [([50.0, 99.0], False), ([50.1, 99.0], True), ([99.0], False), ([99.0, 50.0], False), ([99.0, 50.1], True)],
)
def test_two_blocks_more_than_five_times_as_long_are_hopeless(on_ms: list[float], hopeless: bool) -> None:
    assert BlockTrial("threads", "", on_ms=on_ms, off_ms=[11.0, 10.0][: len(on_ms)]).hopeless is hopeless


def test_the_order_of_blocks_is_random_and_the_seed_decides_it() -> None:
    orders = {seed: list(zip(range(PAIRS), BlockTrial("threads", "").orders(seed), strict=False)) for seed in (1, 2, 3)}
    assert orders[1] == list(zip(range(PAIRS), BlockTrial("threads", "").orders(1), strict=False))
    assert len({str(order) for order in orders.values()}) == 3
    assert orders[1] != list(zip(range(PAIRS), BlockTrial("compile", "").orders(1), strict=False))
    assert {on for _, (on, _) in orders[1]} == {True, False}


def test_short_steps_have_longer_blocks() -> None:
    assert [counted_steps(ms) for ms in (100.0, 1.0, 0.0)] == [3, 20, 64]
    assert counted_steps(100.0, lead=9) == 9


def test_levers_that_lower_precision_or_repeat_the_step_are_refused_in_a_sentence() -> None:
    known = by_name()
    assert set(IN_LOOPS) <= known.keys()
    assert not any(known[name].lowers for name in IN_LOOPS)
    for lever in LEVERS:
        if lever.name in IN_LOOPS:
            assert levers_for_loops([lever.name]) == [lever.name]
        else:
            with pytest.raises(
                ValueError, match=rf"only these levers: threads, .*; not \['{lever.name}'\]. Other levers lower"
            ):
                levers_for_loops([lever.name])
    assert (levers_for_loops(False), levers_for_loops(True), levers_for_loops("auto")) == (None, [], [])
    assert levers_for_loops(("threads", "threads")) == ["threads"]
    for nonsense in (1, [], None, ["threads", 3], "thread"):
        with pytest.raises(ValueError, match="only these levers"):
            levers_for_loops(nonsense)


def test_the_command_line_checks_names_without_loading_torch() -> None:
    code = "import sys, perfnb.remedies.blocks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.deep
def test_idle_levers_are_hardly_ever_called_faster() -> None:
    """Twenty runs of four levers that do nothing, on steps that depend on each other, drift and stall."""
    faster = 0
    for run in range(20):
        noise, stalls = usual(100 + run), Random(run)

        def ms(step: int, on: bool, noise: Milliseconds = noise, stalls: Random = stalls) -> float:
            return noise(step, on) * (1 + step / 2000) * (8.0 if stalls.random() < 0.02 else 1.0)

        levers = [tried(name, ms, seed=run, first=120 * place) for place, name in enumerate(IN_LOOPS[:4])]
        faster += any(one.verdict == "faster" for one in judged(levers))
    assert faster <= 3
