"""Rules that rest on the timed steps: waits for data, pauses, slow steps, and threads that were tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfnb.findings.rules import timed as rules
from tests.findings.findings_recordings import found
from tests.findings.test_findings import one_long_op, timed

LOADER = {"name": "data", "class": "DataLoader", "num_workers": 0, "same": ["batch_sampler"]}


def facts(**change: Any) -> Any:
    """Return the facts of a live step of 10 ms on the CPU, which waits 2 ms for its batch."""
    known = {
        "step_ms": 10.0,
        "live": True,
        "gpu": None,
        "waits_ms": np.full(9, 2.0),
        "phases_ms": {"data": 2.0},
        "loader": {},
        "cores": 4.0,
        "meta": {},
        "uneven": "",
        "busy": False,
        "step_words": "10.0 ms",
        "for_torch": str,
        "of_step": lambda ms: f"{ms:.3g} ms",
    } | change
    return SimpleNamespace(share=lambda ms: ms / known["step_ms"], **known)


GPU = SimpleNamespace(idle_ms=1.5, held_ms={"data": 1.25}.__getitem__)


@pytest.mark.parametrize(
    ("change", "bound_ms", "confidence"),
    [
        ({}, 2.0, "high"),
        ({"live": False}, 2.0, "medium"),
        ({"waits_ms": np.zeros(9)}, 2.0, "medium"),  # only traced steps waited
        ({"waits_ms": np.array([18.0] + [0.0] * 8)}, None, ""),  # one step was held up
        ({"waits_ms": np.array([3.0] * 4 + [0.0] * 5)}, 2.0, "high"),
        ({"waits_ms": np.array([3.0] * 4 + [0.0] * 5), "loader": {"class": "list"}}, None, ""),
        ({"waits_ms": np.array([3.0] * 5 + [0.0] * 4), "loader": {"class": "list"}}, 2.0, "high"),
        ({"step_ms": 40.0, "waits_ms": np.full(9, 3.0)}, 2.0, "high"),
        ({"step_ms": 40.1, "waits_ms": np.full(9, 3.0)}, None, ""),
        ({"step_ms": 1.0, "phases_ms": {"data": 0.05}}, 0.05, "high"),
        ({"step_ms": 0.9, "phases_ms": {"data": 0.049}}, None, ""),
        ({"gpu": GPU}, 1.5, "medium"),
        ({"gpu": GPU, "live": False}, 1.25, "medium"),
        ({"uneven": "steps vary"}, 2.0, "low"),
    ],
)
def test_a_wait_for_data_is_worth_reporting_if_it_recurs(
    change: dict[str, Any], bound_ms: float | None, confidence: str
) -> None:
    known = facts(**change)
    waits = list(rules.input_pipeline.search(known))

    assert [(one.bound_ms, one.confidence) for one in waits] == ([] if bound_ms is None else [(bound_ms, confidence)])
    for one in waits:
        assert ("the GPU was idle for" in one.evidence) == ("gpu" in change)
        measured = change.get("live", True) and known.waits_ms.any()
        assert ("mean of 9 timed steps" in one.evidence) == measured
        assert [tuple(row) for row in one.rows] == [("phase", "data")]


@pytest.mark.parametrize(("count", "mean"), [(1, 0.0), (50, 0.98), (51, 49 / 51)])
def test_the_longest_two_percent_of_waits_do_not_count(count: int, mean: float) -> None:
    assert rules._without_longest(np.ones(count)) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ({}, ""),
        (
            {"num_workers": 0, "dataset": "Rows"},
            " The loader has no workers: batches are made in the main process. Its samples come from Rows.__getitem__.",
        ),
        (
            {"name": "data", "num_workers": 1, "dataset": "Rows", "iterable": True},
            " data has 1 worker. Its samples come from Rows.__iter__.",
        ),
        ({"name": "data", "num_workers": 2, "dataset": "<b>"}, " data has 2 workers."),
    ],
)
def test_how_batches_are_made(loader: dict[str, Any], said: str) -> None:
    assert rules._setting(facts(loader=loader)) == said


@pytest.mark.parametrize(
    ("workers", "waited", "change", "wanted", "says"),
    [
        (0, 5.0, {}, 1, "Use about 1 worker: a batch takes about 5.00 ms to make and 5.00 ms to use"),
        (0, 5.1, {}, 2, "Use about 2 workers: "),
        (1, 5.0, {}, 2, "Use about 2 workers: a batch takes about 10.0 ms to make and 5.00 ms to use"),
        (2, 5.0, {}, 4, "Use about 4 workers: "),
        (0, 5.1, {"meta": {"batches": 3}}, 2, "the step's 3 batches take about 5.10 ms to make"),
        (0, 5.1, {"cores": None}, 2, "Use about 2 workers: "),
        (0, 5.1, {"cores": 1.5}, 1, "and use 1 worker: "),
        (0, 5.0, {"cores": 0.5}, 1, "about 1 worker would be needed, but there are 0.5 cores"),
        (2, 5.0, {"cores": 2.0}, None, "keep 2 workers: "),
        (2, 5.0, {"cores": 3.0}, 3, "about 4 workers would be needed, but there are 3 cores"),
        (0, 10.0, {"cores": None}, 10_000, "to use"),
        (0, 5.1, {"iterable": True}, 1, "Use 1 worker: "),
        (3, 5.1, {"iterable": True}, None, "Make batches cheaper, or use more workers: "),
    ],
)
def test_workers_are_counted_from_how_long_a_batch_takes_to_make_and_to_use(
    workers: int, waited: float, change: dict[str, Any], wanted: int | None, says: str
) -> None:
    loader = LOADER | {"num_workers": workers, "iterable": change.pop("iterable", False)}
    advice, code = rules._advice(facts(loader=loader, **change), waited)

    assert says in advice
    assert ("get_worker_info" in advice) == loader["iterable"]
    line = "data = torch.utils.data.DataLoader(data.dataset, batch_sampler=data.batch_sampler, num_workers={})"
    assert code == ("" if wanted is None else line.format(wanted))


def test_batches_are_copied_from_pinned_memory_to_a_gpu() -> None:
    assert rules._advice(facts(loader=LOADER, gpu=GPU), 5.1)[1].endswith("num_workers=2, pin_memory=True)")


def test_samples_in_memory_are_fetched_a_batch_at_a_time() -> None:
    advice, code = rules._advice(facts(loader=LOADER | {"indexed": True}), 5.0)
    assert "with a single indexing operation" in advice
    assert code.endswith("DataLoader(data.dataset, sampler=data.batch_sampler, batch_size=None)")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loader": {"class": "Feeder"}}, "use a torch.utils.data.DataLoader with workers"),
        ({"loader": {"class": "Feeder"}, "live": False}, rules._AHEAD),
        ({"loader": {"class": "tuple"}}, rules._AHEAD),
        ({}, rules._AHEAD),
        ({"for_torch": lambda words: ""}, "in other processes, or make them cheaper"),
    ],
)
def test_batches_of_other_iterables_are_to_be_made_ahead(change: dict[str, Any], says: str) -> None:
    advice, code = rules._advice(facts(**change), 5.0)
    assert says in advice
    assert code == ""


def test_the_wait_for_data_is_that_of_the_timed_steps() -> None:
    recording = timed(one_long_op().recording(), [31.0, 41.0] * 10, [30.0, 40.0] * 10)

    wait = found(recording, "input pipeline").loc["input pipeline"]

    assert wait["bound_ms"] == pytest.approx(35)
    assert wait["bound_share"] == pytest.approx(35 / 36)
    assert wait["confidence"] == "high"


SLOW = {3: 8.0, 20: 8.0, 21: 8.0}


@pytest.mark.parametrize(
    ("change", "often", "confidence"),
    [
        ({}, "3 of 40 steps", "low"),
        ({"busy": True}, None, ""),
        ({"more": dict.fromkeys(range(3, 40, 8), 8.0)}, "every 8 steps", "medium"),
        ({"more": dict.fromkeys(range(3, 40, 8), 8.0), "busy": True}, "every 8 steps", "medium"),
        ({"more": {}}, None, ""),
        ({"more": {3: 8.0}, "count": 9}, None, ""),
        ({"more": {3: 8.0}, "count": 10}, "1 of 10 steps", "low"),
        ({"live": False}, None, ""),
        *(({known: SLOW}, None, "") for known in ("waits_ms", "pauses_ms", "compiling_ms")),  # explained already
    ],
)
def test_slow_steps_are_reported_unless_the_machine_was_busy_with_other_work(
    change: dict[str, Any], often: str | None, confidence: str
) -> None:
    more, count = change.pop("more", SLOW), change.pop("count", 40)

    def with_more(of: dict[int, float]) -> Any:
        return np.array([of.get(place, 0.0) for place in range(count)])

    parts = {name: with_more(change.pop(name, {})) for name in ("waits_ms", "pauses_ms", "compiling_ms")}
    usual = np.array([1.0 + 0.001 * (place % 7) for place in range(count)])
    known = facts(timed_ms=usual + with_more(more), step_ms=1.0, **parts | change)

    slow = list(rules.uneven_steps.search(known))

    assert [one.confidence for one in slow] == ([confidence] if often else [])
    for one in slow:
        added = 8.0 * len(more) / count
        assert f"({often})" in one.evidence
        assert (one.bound_ms, one.of_ms) == pytest.approx((added, 1.0 + added), rel=0.01)
        assert [row.name for row in one.rows] == [str(place) for place in more][:5]


@pytest.mark.parametrize(
    ("slow", "count", "period"),
    [
        ([3, 8, 13], 15, 5),
        ([3, 8, 13], 25, 5),  # three of five that would be expected
        ([3, 8, 13], 26, None),
        ([3, 8], 10, None),
        ([3, 8, 14], 15, None),
        ([1, 3, 5], 6, 2),
        ([1, 2, 3], 4, None),
    ],
)
def test_slow_steps_have_a_period_if_they_recur_at_one_distance(
    slow: list[int], count: int, period: int | None
) -> None:
    assert rules._period(np.array(slow), count) == period


@pytest.mark.parametrize(
    ("pauses", "often", "confidence"),
    [
        ([0.0] * 10, None, ""),
        ([9.0] + [0.0] * 8, "in 1 step of 9", "low"),
        ([9.0] + [0.0] * 9, None, ""),  # a single pause among ten steps proves nothing
        ([9.0, 2.0] + [0.0] * 8, "in 2 steps of 10", "medium"),
        ([9.0, 1.8] + [0.0] * 8, None, ""),  # without the longest, less than 2 % of a step
        ([9.0, 0.0] * 3, "every 2 steps", "medium"),
        ([9.0, 0.0] * 4, "every 2 steps", "high"),
    ],
)
def test_pauses_of_the_garbage_collector_must_recur(pauses: list[float], often: str | None, confidence: str) -> None:
    collected = list(rules.garbage_collection.search(facts(pauses_ms=np.array(pauses))))

    assert [one.confidence for one in collected] == ([confidence] if often else [])
    for one in collected:
        assert one.bound_ms == pytest.approx(sum(pauses) / len(pauses))
        assert one.evidence.startswith(f"Python collected garbage {often}, for ")
        assert one.evidence.endswith("took up to 9.00 ms.")
        assert ("only one" in one.why) == (confidence == "low")
        assert one.rows[0] == ("step", "0")


@pytest.mark.parametrize(
    ("change", "bound_ms"),
    [
        ({}, 4.0),
        ({"step_ms": 5.0}, 2.5),  # of a step of 5 ms, half remains
        ({"step_ms": 99.0}, 4.0),
        ({"tried": [3.0, 4.0, 7.7, 7.7]}, 2.15),
        ({"tried": [3.0, 4.0, 7.9, 7.9]}, None),  # the upper quartile is not below the timed steps' lower one
        ({"gpu": object()}, None),
        ({"live": False}, None),
        ({"cores": None}, None),
        ({"threads": None}, None),
        ({"tried": None}, None),
    ],
)
def test_another_number_of_threads_is_proposed_if_it_was_clearly_faster(
    change: dict[str, Any], bound_ms: float | None
) -> None:
    threads, tried = change.pop("threads", 8), change.pop("tried", [4.0] * 4)
    known = facts(
        environment={"threads": threads, "cpus": 16, "cpu_limit": 4.0},
        meta={"threads_tried": tried and {"threads": 2, "steps_ms": tried}},
        timed_ms=np.array([7.8, 7.8, 8.0, 8.5, 9.0]),
        **{"step_ms": 8.0} | change,
    )

    better = list(rules.threads_and_cores.search(known))

    assert [one.bound_ms for one in better] == ([] if bound_ms is None else [pytest.approx(bound_ms)])
    for one in better:
        assert "torch uses 8 threads, and the process has 16 cores, limited to 4 by its cgroup" in one.evidence
        assert "additional threads" in one.advice
        assert one.code == "torch.set_num_threads(2)"
        known.cores = 8.0
        (enough,) = rules.threads_and_cores.search(known)
        assert "otherwise some are idle" in enough.advice
