"""Rules that rest on the timed steps: waits for data, pauses, slow steps, and threads that were tried."""

from __future__ import annotations

from typing import Any

import pytest

from perfnb.attribution.attribution import attribute
from perfnb.findings.doubts import held_up as is_held_up
from perfnb.findings.facts import facts_of
from perfnb.findings.finding import Finding, in_order
from perfnb.findings.verdict import verdict_of
from perfnb.profile.profile import Profile
from perfnb.profile.summary import summarize
from tests.findings.test_findings import found, one_long_op, timed
from tests.findings.test_gpu import two_kernels
from tests.recordings import ByHand


def test_the_wait_for_data_is_that_of_the_timed_steps() -> None:
    recording = timed(one_long_op().recording(), [31.0, 41.0] * 10, [30.0, 40.0] * 10)

    wait = found(recording).loc["input pipeline"]

    assert wait["bound_ms"] == pytest.approx(35)
    assert wait["bound_share"] == pytest.approx(35 / 36)
    assert wait["confidence"] == "high"
    assert wait["rows"] == [{"kind": "phase", "name": "data"}]


@pytest.mark.parametrize(("waited", "bound_ms"), [(2.0, 2.0), (5.25, 5.11)])
def test_a_wait_for_data_costs_no_more_than_the_gpu_is_idle(waited: float, bound_ms: float) -> None:
    """It works for 0.2 ms of each step of 5.31."""
    wait = found(timed(two_kernels(5000).recording(), [5.31] * 9, [waited] * 9)).loc["input pipeline"]

    assert wait["bound_ms"] == pytest.approx(bound_ms)
    assert f"; the GPU was idle for {bound_ms:.2f} ms of this time" in wait["evidence"]
    assert wait["confidence"] == "medium"


def test_a_mean_step_is_called_one_where_the_headline_has_the_median() -> None:
    wall, waits = [0.773] * 16 + [2.758] * 4, [0.0] * 16 + [1.985] * 4
    summary = Profile(timed(one_long_op().recording(), wall, waits))._summary

    assert summary.timing.median_ms == 0.773
    assert summary.findings is not None
    assert "0.397 ms of a mean step of 1.17 ms (34 %)" in summary.findings.verdict.verdict
    even = Profile(timed(one_long_op().recording(), [1.0] * 20, [0.5] * 20))._summary.findings
    assert even is not None
    assert "0.500 ms of 1.00 ms (50 %)" in even.verdict.verdict


@pytest.mark.parametrize(("workers", "wanted"), [(0, 35), (2, 64)])
def test_workers_are_counted_from_how_long_a_batch_takes_to_make_and_to_use(workers: int, wanted: int) -> None:
    loader = {"name": "train_loader", "class": "DataLoader", "num_workers": workers, "same": ["batch_sampler"]}
    environment = {"processor": "made up", "threads": 1, "cpus": 64, "gpus": []}
    recording = timed(
        one_long_op().recording(), [36.0] * 9, [35.0] * 9, parts={"loader": loader}, environment=environment
    )

    wait = found(recording).loc["input pipeline"]

    assert f"num_workers={wanted})" in wait["code"]
    assert "(train_loader.dataset, batch_sampler=train_loader.batch_sampler, " in wait["code"]


def test_a_short_wait_is_no_finding() -> None:
    assert found(timed(one_long_op().recording(), [1.0] * 9, [0.04] * 9)).empty


def test_pauses_of_the_garbage_collector_are_a_mean_over_the_steps() -> None:
    pauses = [[step, 20.0] for step in range(4, 50, 5)]
    recording = timed(one_long_op().recording(), [1.0, 1.0, 1.0, 1.0, 21.0] * 10, noise={"gc_pauses": pauses})

    pause = found(recording).loc["garbage collection"]

    assert pause["bound_ms"] == pytest.approx(4)
    assert pause["bound_share"] == pytest.approx(4 / 5)
    assert "every 5 steps" in pause["evidence"]
    assert pause["rows"][0] == {"kind": "step", "name": "4"}
    assert "uneven steps" not in found(recording).index  # explained already


@pytest.mark.parametrize(("load", "noted"), [(0.5, True), (9.0, False)])
def test_slow_steps_are_reported_unless_the_machine_was_busy_with_other_work(load: float, noted: bool) -> None:
    wall = [1.0 + 0.001 * (n % 7) for n in range(40)]
    wall[3] = wall[20] = wall[21] = 9.0
    recording = timed(one_long_op().recording(), wall, noise={"load_after": load, "cpus": 2, "gc_pauses": []})

    table = found(recording)

    assert ("uneven steps" in table.index) == noted
    if noted:
        assert table.loc["uneven steps", "bound_ms"] == pytest.approx(3 * 8 / 40, rel=0.01)
        assert table.loc["uneven steps", "confidence"] == "low"


def test_stalls_that_come_regularly_are_told_of_with_their_period() -> None:
    wall = [9.0 if n % 8 == 3 else 1.0 + 0.001 * (n % 7) for n in range(40)]
    recording = timed(one_long_op().recording(), wall, noise={"load_after": 9.0, "cpus": 2})

    stalls = found(recording).loc["uneven steps"]

    assert "every 8 steps" in stalls["evidence"]
    assert stalls["confidence"] == "medium"


def test_what_slow_steps_add_is_a_share_of_a_step_in_the_mean() -> None:
    wall = [1.0 + 0.001 * (n % 7) for n in range(40)]
    wall[3] = wall[20] = wall[21] = 400.0

    profile = Profile(timed(one_long_op().recording(), wall))
    uneven = profile.findings.set_index("bottleneck").loc["uneven steps"]

    added = 3 * 399 / 40
    assert uneven["bound_ms"] == pytest.approx(added, rel=0.01)
    assert uneven["bound_share"] == pytest.approx(added / (1 + added), rel=0.01)
    assert "97 % of it" in uneven["evidence"]
    verdict = profile._summary.findings.verdict.verdict
    assert "29.9 ms of a mean step of 30.9 ms (97 %" in verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "wait_ms", "code"), [(0, 11.0, 2), (0, 5.0, 2), (1, 30.0, 2), (0, 1.5, 2), (2, 30.0, 0)]
)
def test_never_more_workers_than_cores_and_the_line_agrees(workers: int, wait_ms: float, code: int) -> None:
    loader = {"name": "loader", "class": "DataLoader", "num_workers": workers, "same": ["batch_sampler"]}
    environment = {"processor": "made up", "threads": 1, "cpus": 2, "gpus": []}
    recording = timed(
        one_long_op().recording(),
        [1.0 + wait_ms] * 9,
        [wait_ms] * 9,
        parts={"loader": loader},
        environment=environment,
    )

    wait = found(recording).loc["input pipeline"]

    if not code:
        assert (wait["code"], "there are 2 cores" in wait["advice"]) == ("", True)
        return
    assert f"num_workers={code})" in wait["code"]
    assert f"se {'about ' if wait_ms == 1.5 else ''}{code} workers" in wait["advice"]
    assert ("there are 2 cores" in wait["advice"]) == (wait_ms != 1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ([(0.5, "low"), (0.2, "medium")], "medium"),
        ([(0.5, "low"), (0.12, "high")], "low"),  # far less than what may be
        ([(0.3, "low"), (0.09, "high")], "low"),  # not enough to decide
        ([(0.5, "medium"), (0.4, "high")], "medium"),
    ],
)
def test_a_surer_finding_that_is_not_much_less_is_the_verdict(bounds: list[tuple[float, Any]], verdict: str) -> None:
    known = facts_of(recording := one_long_op().recording(), attribute(recording), summarize(recording))
    found = in_order(Finding("b", bound, "c", sure, "e", "f", bottleneck="compute") for bound, sure in bounds)
    place = verdict_of(known, found).finding

    assert place is not None
    assert found[place].confidence == verdict


@pytest.mark.parametrize(("load", "noted"), [(5.0, True), (1.0, False)])
def test_a_busy_machine_is_reported_where_nothing_else_is(load: float, noted: bool) -> None:
    environment = {"processor": "made up", "threads": 2, "cpus": 2, "gpus": []}
    recording = timed(
        one_long_op().recording(), [1.0] * 9, environment=environment, noise={"load_after": load, "cpus": 2}
    )

    verdict = Profile(recording)._summary.findings.verdict

    assert verdict.verdict.startswith("Nothing stands out")
    assert ("the CPU was busy with other work. Bounds can be off by half" in verdict.why) == noted
    assert ("torch.set_num_threads(1)" in verdict.why) == noted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timed_ms", "says"),
    [
        (1.0, ""),
        (2.0, "timed steps took 2 times as long as traced ones"),
        (0.5, "traced steps took 2 times as long as timed ones"),
        (10.0, "timed steps took 10 times as long"),
    ],
)
def test_times_that_do_not_fit_each_other_are_doubted(timed_ms: float, says: str) -> None:
    """A step under the tracer does all that a timed one does, and more."""
    verdict = Profile(timed(one_long_op().recording(), [timed_ms] * 9))._summary.findings.verdict

    assert says in verdict.why
    assert ("Low confidence: t" in verdict.why) == bool(says)
    assert verdict.verdict.startswith("No verdict") == (timed_ms == 10.0)


IN_THE_STEP: dict[str, Any] = {"name": "loader", "class": "DataLoader", "num_workers": 0, "batch_size": 4}


@pytest.mark.parametrize(
    ("loader", "wait_ms", "held_up"),
    [
        (None, 0.0, True),
        ({"name": None, "class": "list"}, 0.002, True),
        (IN_THE_STEP, 0.002, True),
        (IN_THE_STEP, 6.0, True),  # the wait was held up like the rest
        ({**IN_THE_STEP, "num_workers": 2}, 0.002, False),
        ({"name": "batches", "class": "generator"}, 0.002, True),
        ({"name": "batches", "class": "generator"}, 1.0, True),  # ten times as long as the traced wait, as all else
        ({"name": "batches", "class": "BackgroundLoader"}, 6.0, False),  # traced steps found batches that lay ready
        ({**IN_THE_STEP, "class": "BackgroundLoader"}, 6.0, False),
    ],
)
def test_only_batches_made_beside_the_step_explain_timed_steps_longer_than_traced_ones(
    loader: dict[str, Any] | None, wait_ms: float, held_up: bool
) -> None:
    hand = ByHand()
    model = hand.layer("model")
    for number in range(3):
        t = 10_000 * number
        hand.step(t, t + 1100).event("pf_data", t, t + 100)
        hand.call(model, t + 101, t + 1099).op("aten::mm", t + 102, t + 1098)
    recording = timed(hand.recording(), [10.0 + wait_ms] * 9, [wait_ms] * 9, parts={"loader": loader})

    known = facts_of(recording, attribute(recording), summary := summarize(recording))

    assert is_held_up(known) == held_up
    assert summary.findings is not None
    # A wait that is most of the timed step is reported all the same.
    assert summary.findings.verdict.verdict.startswith("No verdict") == (held_up and wait_ms < 5)
