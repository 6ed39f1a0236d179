"""Speed-up, efficiency and losses: figures by hand, how they are shown, and one real study."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

import perfnb
from perfnb.draw.document import Bars
from perfnb.launching import rank_scaling
from perfnb.launching.order import Order
from perfnb.launching.rank_scaling import RankScaling
from perfnb.launching.scaling_figures import JobRun, ScalingJob, compared_jobs
from tests.launching.jobs import FAST, small

ALONE = {"input": 0.1, "communication": 0.0, "imbalance": 0.0, "compute": 0.9}
OF_TWO = {"input": 0.2, "communication": 0.15, "imbalance": 0.05, "compute": 0.6}


def job(kind: str, ranks: int, ms: float, shares: dict[str, Any], threads: int = 1) -> ScalingJob:
    """Return a job that ran twice, with steps that differ by 10 %."""
    steps = [ms * factor for factor in (0.95, 1.0, 1.05)] * 7
    return ScalingJob(kind, ranks, threads, [JobRun(steps, shares), JobRun(steps, shares)])


def jobs(**others: Any) -> list[ScalingJob]:
    """Return a study where one rank takes 100 ms, two take 80, one without DDP takes 90, and all cores take 60."""
    return [
        job("ranks", 1, 100.0, ALONE),
        job("ranks", 2, 80.0, {**OF_TWO, **others}),
        job("plain", 1, 90.0, ALONE),
        job("best", 1, 60.0, ALONE, threads=2),
    ]


def study_of(measured: list[ScalingJob], mode: str = "strong") -> RankScaling:
    return RankScaling(mode=mode, cores=2, **compared_jobs(measured, mode))


def test_strong_scaling() -> None:
    figures = study_of(jobs())
    two = figures.table.loc["2 ranks"]

    assert two["speedup"] == pytest.approx(100 / 80)
    assert two["efficiency"] == pytest.approx(100 / 80 / 2)
    assert (two["speedup_low"], two["speedup_high"]) == pytest.approx((95 / 84, 105 / 76))
    assert two["against_plain"] == pytest.approx(90 / 80)
    assert two["against_best"] == pytest.approx(60 / 80)
    assert figures.table.loc["1 rank", "efficiency"] == 1.0
    assert figures.table.loc["1 process, all cores", "speedup"] == pytest.approx(100 / 60)
    assert math.isnan(figures.table["efficiency"].astype(float)["1 process, all cores"])


def test_weak_scaling() -> None:
    two = study_of(jobs(), "weak").table.loc["2 ranks"]

    assert two["speedup"] == pytest.approx(2 * 100 / 80)
    assert two["efficiency"] == pytest.approx(100 / 80)
    assert two["against_best"] == pytest.approx(2 * 60 / 80)


@pytest.mark.parametrize(("mode", "divided"), [("strong", 2), ("weak", 1)])
def test_the_parts_of_a_loss_add_up(mode: str, divided: int) -> None:
    lost = study_of(jobs(), mode).losses.loc[2]

    assert lost["ideal_ms"] == pytest.approx(100 / divided)
    assert lost["loss_ms"] == pytest.approx(80 - 100 / divided)
    assert lost["compute_ms"] == pytest.approx(48 - 90 / divided)
    assert lost["communication_ms"] == pytest.approx(12)
    assert lost["imbalance_ms"] == pytest.approx(4)
    assert lost["input_ms"] == pytest.approx(16 - 10 / divided)
    parts = ["compute_ms", "communication_ms", "imbalance_ms", "input_ms"]
    assert lost[parts].sum() == pytest.approx(lost["loss_ms"])


def test_imbalance_is_missing_if_waiting_is_unknown() -> None:
    figures = study_of(jobs(imbalance=None, communication=0.2))

    assert figures.losses["imbalance_ms"].isna().all()
    assert figures.losses.loc[2, "communication_ms"] == pytest.approx(16)
    assert "2 ranks: the collectives could not be matched between ranks" in figures.notes[0]
    assert "n/a" in str(figures)


def test_too_few_steps_for_an_interval() -> None:
    runs = [JobRun([10.0, 11.0], ALONE)]

    figures = study_of([ScalingJob("ranks", n, 1, runs) for n in (1, 2)])
    table = figures.table

    assert table["ci_low_ms"].isna().all()
    assert [note.partition(". ")[0] for note in figures.notes] == [
        "1 rank and 2 ranks: there is no interval, because a run with only 2 timed steps is too short"
    ]
    assert table.loc["2 ranks", "speedup"] == 1.0


def test_runs_that_disagree_are_reported() -> None:
    def study(ms: float) -> RankScaling:
        runs = [JobRun([0.9 * each, *[each] * 20, 1.1 * each], ALONE) for each in (ms, 40.0)]
        return study_of([*jobs()[:2], ScalingJob("best", 1, 2, runs)])

    assert study(50.0).notes == []
    (note,) = study(50.1).notes
    assert note.startswith(
        "The step times of the same job differ between runs: 1 process, all cores (from 40.0 ms to 50.1 ms)."
    )
    best = study(50.0).table.loc["1 process, all cores"]
    assert best[["step_ms", "ci_low_ms", "ci_high_ms"]].tolist() == [45, 40, 50]


def test_what_several_jobs_say_alike_is_one_note() -> None:
    runs = [JobRun([10.0] * 20, ALONE, "One bucket could save 2 ms.")]

    notes = study_of([ScalingJob("ranks", n, 1, runs) for n in (1, 2, 4)]).notes

    assert notes == ["1 rank, 2 ranks and 4 ranks: One bucket could save 2 ms."]


def test_the_answer_is_the_speed_up_and_what_it_is_lost_to() -> None:
    told = study_of(jobs())._document().verdict

    assert told.sentence == "2 ranks: speed-up 1.25 × [1.13, 1.38], efficiency 62 %, strong scaling"
    assert told.why == (
        "A step takes 80.0 ms, which is 30.0 ms longer than with perfect scaling: exposed communication 12.0 ms, "
        "input 11.0 ms, imbalance 4.00 ms, slower computing 3.00 ms."
    )
    assert told.next == "Use one process with all cores. 2 ranks only do 0.750 × its work per second."


@pytest.mark.parametrize(
    ("ms", "best_ms", "state", "advised"),
    [
        (100.0, None, "none", False),  # as fast as one rank
        (101.0, None, "bad", False),
        (80.0, 80.0, "none", False),
        (80.0, 79.0, "bad", True),
        (101.0, 102.0, "bad", False),
    ],
)
def test_a_slower_job_is_bad_news(ms: float, best_ms: float | None, state: str, advised: bool) -> None:
    best = [] if best_ms is None else [job("best", 1, best_ms, ALONE, threads=2)]
    study = study_of([job("ranks", 1, 100.0, ALONE), job("ranks", 2, ms, OF_TWO), *best])
    document = study._document()
    assert (document.verdict.state, bool(document.verdict.next)) == (state, advised)
    assert [(each.label, each.value) for each in document.figures] == [
        ("step on 2 ranks", ms),
        ("speed-up", pytest.approx(100 / ms)),
        ("efficiency", pytest.approx(50 / ms)),
    ]
    assert document.figures[0].interval == pytest.approx((0.95 * ms, 1.05 * ms))


def test_only_causes_of_a_loss_are_named() -> None:
    def why(ms: float, **shares: float) -> str:
        return (
            study_of([job("ranks", 1, 100.0, ALONE), job("ranks", 2, ms, {**OF_TWO, **shares})])._document().verdict.why
        )

    assert why(50.0) == ""  # perfect scaling, although computing is faster and communication costs time
    gains = "A step takes 80.0 ms, which is 30.0 ms longer than with perfect scaling: exposed communication 43.0 ms."
    assert why(80.0, input=0.0625, compute=0.4, imbalance=0.0, communication=0.5375) == gains


def test_a_step_is_drawn_with_what_exceeds_perfect_scaling() -> None:
    bars = study_of(jobs(compute=0.4, communication=0.35))._document().sections[0]

    assert isinstance(bars, Bars)
    # Computing takes 32 ms, 13 less than half of what one rank took.
    assert {bar.label: [part.value for part in bar.parts] for bar in bars.bars} == {
        "1 rank": pytest.approx([100]),
        "2 ranks": pytest.approx([50 - 13, 0, 28, 4, 11]),
    }
    assert bars.bars[1].total == 80


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ranks": (0, 2)}, ValueError, "ranks must be"),
        ({"mode": "middling"}, ValueError, "mode must be 'strong' or 'weak'"),
        ({"rounds": 0}, ValueError, "rounds must be"),
        ({"target": "train.py"}, TypeError, "target must be a function"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        perfnb.rank_scaling(options.pop("target", small), **options)


class Jobs:
    """Fake jobs: each run takes a given time, and the first one of some kinds fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: float = 8.9, failing: Sequence[str] = ()) -> None:
        self.orders: list[Order] = []
        self.told: list[Any] = []
        self._failing = failing
        monkeypatch.setattr("perfnb.step.environment.usable_cpus", lambda: cores)
        monkeypatch.setattr("perfnb.launching.rank.gpu_count", lambda: 0)
        monkeypatch.setattr(rank_scaling, "run_ranks", self._run)
        monkeypatch.setattr(rank_scaling, "_measured", lambda ms: JobRun([ms] * 20, ALONE))

    def _run(self, order: Order, ranks: int, env: Any, *, note: str, show: bool) -> float:
        kind = "ranks" if not order.plain else "best" if order.threads > 2 else "plain"
        self.orders.append(order)
        self.told.append((kind, ranks, order.threads, note))
        assert (env, show) == ({"A": "b"}, False)
        if kind in self._failing and len(self.orders) > 4:
            raise AttributeError("no_sync")
        return {"ranks": 100.0, "plain": 90.0, "best": 60.0}[kind] / ranks

    def study(self, **options: Any) -> RankScaling:
        return perfnb.rank_scaling(small, env={"A": "b"}, **{"ranks": (1, 4), "budget_s": 48.0, **options})


def test_the_jobs_of_a_study_run_in_turns_and_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)

    study = jobs.study(rounds=3, warmup=4, steps=5, traced=6, ddp=True, batches=[1], backend="gloo")

    kinds = [("ranks", 1, 2), ("ranks", 4, 2), ("plain", 1, 2), ("best", 1, 8)]
    turns = [*kinds, *reversed(kinds), *kinds]
    assert jobs.told == [(*turn, f"job {place} of 12") for place, turn in enumerate(turns, start=1)]
    for (kind, ranks, threads), order in zip(turns, jobs.orders, strict=True):
        plan = {"warmup": 4, "steps": 5, "traced": 6, "budget_s": 4.0, "memory": False, "flops": ranks == 4}
        assert (order.kind, order.plan, order.backend, order.threads) == ("function", plan, "gloo", threads)
        assert (order.ddp, order.plain, order.split) == (kind == "ranks", kind != "ranks", True)
        assert pickle.loads(order.payload) == (small, [1])
    assert (study.mode, study.cores, study.rounds, study.notes) == ("strong", 8, 3, [])
    assert study.table["threads"].tolist() == [2, 2, 2, 8]
    assert study.table["step_ms"].tolist() == [100, 25, 90, 60]


def test_one_process_with_all_cores_is_only_measured_if_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch, cores=0.5)
    study = jobs.study(ranks=(2,), mode="weak", rounds=1, budget_s=3.0)
    assert [told[:3] for told in jobs.told] == [("ranks", 1, 1), ("ranks", 2, 1), ("plain", 1, 1)]
    assert {(order.ddp, order.split, order.plan["budget_s"]) for order in jobs.orders} == {(False, False, 1.0)}
    assert (study.mode, study.cores) == ("weak", 1)
    jobs = Jobs(monkeypatch, cores=3)
    jobs.study(ranks=(2,), rounds=1, threads=3)
    assert [told[2] for told in jobs.told] == [3, 3, 3]


def test_a_job_of_ranks_must_not_fail_and_another_one_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch, failing=["plain", "best"])
    study = jobs.study(rounds=3)
    assert [told[0] for told in jobs.told] == ["ranks", "ranks", "plain", "best", "best", "plain", *["ranks"] * 4]
    assert study.notes == [
        "1 rank without DDP and 1 process, all cores: not available because the job failed: AttributeError: no_sync"
    ]
    assert study.table["step_ms"].isna().tolist() == [False, False, True, True]
    assert study.table[["against_plain", "against_best"]].isna().all(axis=None)
    with pytest.raises(AttributeError, match="no_sync"):
        Jobs(monkeypatch, failing=["ranks"]).study(rounds=3)


@pytest.mark.deep
def test_a_real_study(nothing_left: None) -> None:
    options = {name: FAST[name] for name in ("warmup", "steps", "traced")}

    study = perfnb.rank_scaling(small, rounds=1, threads=1, **options)

    assert list(study.table.index[:3]) == ["1 rank", "2 ranks", "1 rank without DDP"]
    assert study.table["step_ms"].notna().all()
    lost = study.losses.loc[2]
    parts = ["compute_ms", "communication_ms", "imbalance_ms", "input_ms"]
    assert lost[parts].sum() == pytest.approx(lost["loss_ms"])
