"""A fleet of traces is reduced wherever the user's executor reads them, and every trace becomes a row."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.experiments import fleet
from tests.ranks.rank_traces import rank_trace, written


class Maps:
    """A pool that can only map, as those of multiprocessing and views of ipyparallel; all it carries is pickled."""

    def map(self, function: Callable[..., Any], questions: Iterable[Any]) -> Iterator[Any]:
        for question in questions:
            call, given = pickle.loads(pickle.dumps((function, question)))
            yield pickle.loads(pickle.dumps(call(given)))


class Submits:
    """A client of Dask's kind: its futures are its own, and may fail."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[str] = []
        self._fails = fails

    def submit(self, function: Callable[..., Any], *given: Any) -> Any:
        self.asked.append(given[0])
        future: Future[Any] = Future()
        if self._fails and self._fails in given[0]:
            future.set_exception(RuntimeError("the worker died"))
        else:
            future.set_result(function(*given))
        return future


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    """Return two runs of one process, a job of two ranks, a folder that is a job, and two files that are no traces."""
    for place in ("a", "b", "job"):
        (tmp_path / "raw" / place).mkdir(parents=True)
    alone = [
        *written(tmp_path / "raw" / "a", [rank_trace(0)], "t.json"),
        *written(tmp_path / "raw" / "b", [rank_trace(9)], "t.json"),
    ]
    ranks = written(tmp_path / "raw" / "b", [rank_trace(0), rank_trace(50)], "run_rank{}.json")
    written(tmp_path / "raw" / "job", [rank_trace(0), rank_trace(0)], "host_{}.json")
    (tmp_path / "raw" / "bad.json").write_text("[[[")
    return [*alone, *ranks, tmp_path / "raw" / "job", tmp_path / "raw" / "bad.json", tmp_path / "raw" / "gone.json"]


KINDS = {"a/t.json": 1, "b/t.json": 1, "b/run_ranks.json": 2, "job": 2}


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Maps(), pytest.param("threads", marks=pytest.mark.deep)])
def test_every_trace_becomes_a_row(traces: list[Path], tmp_path: Path, executor: Any) -> None:
    pool = ThreadPoolExecutor(2) if executor == "threads" else None
    journal = perfnb.load(traces, journal=tmp_path / "fleet", executor=pool or executor)
    if pool is not None:
        pool.shutdown()

    assert isinstance(journal, perfnb.results.Journal)
    table = journal.table
    good = table[table["damaged"].isna()]
    assert dict(zip(good.index, good["ranks"], strict=True)) == KINDS
    assert set(journal.damaged) == {"bad.json.unread", "gone.json.unread"}
    with pytest.raises(TraceError) as alone:
        perfnb.load(traces[5])
    assert journal.damaged["bad.json.unread"] == str(alone.value)
    assert "does not exist" in journal.damaged["gone.json.unread"]
    one, job = journal.load("a/t.json"), journal.load("b/run_ranks.json")
    whole = perfnb.load(traces[0])
    assert one.kernels.equals(whole.kernels)  # type: ignore[union-attr]
    assert good.loc["a/t.json", "step_ms"] == pytest.approx(whole._summary.traced_ms)  # type: ignore[union-attr]
    assert job.ranks == [0, 1]  # type: ignore[union-attr]
    assert journal.load("job").ranks == [0, 1]  # type: ignore[union-attr]
    rows = journal.kernels
    assert set(rows.loc[rows["entry"] == "job", "rank"]) == {0, 1}


def test_files_of_a_job_share_an_entry_and_others_have_their_own(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    for name in ("a/.t.json", "b/run_rank0.json", "b/run_rank1.json", "b/x_rank3.json", "job/h_0.json", "job/h_1.json"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).touch()
    (raw / "empty").mkdir()
    given = [raw / "a/.t.json", raw / "job", raw / "b/run_rank0.json", raw / "b/run_rank1.json", raw / "b/x_rank3.json"]

    tasks = [
        (*(str(path.relative_to(tmp_path)) for path in (task.file, task.entry, task.unread)), task.alone)
        for task in fleet._tasks([*given, raw / "empty"], out)
    ]

    assert tasks == [
        ("raw/a/.t.json", "out/a/_t.json", "out/a/_t.json.unread", True),
        ("raw/job/h_0.json", "out/job", "out/job/h_0.json.unread", False),
        ("raw/job/h_1.json", "out/job", "out/job/h_1.json.unread", False),
        ("raw/b/run_rank0.json", "out/b/run_ranks.json", "out/b/run_rank0.json.unread", False),
        ("raw/b/run_rank1.json", "out/b/run_ranks.json", "out/b/run_rank1.json.unread", False),
        ("raw/b/x_rank3.json", "out/b/x_rank3.json", "out/b/x_rank3.json.unread", True),
        ("raw/empty", "out/empty", "out/empty.unread", False),
    ]
    assert list(fleet._tasks([], out)) == []


@pytest.mark.parametrize(
    ("name", "alone", "made", "done"),
    [
        ("t.json", True, "profile.json", True),
        ("t.json", True, "ranks.json", True),
        ("t.json", True, "rank_1/profile.json", False),
        ("t.json", False, "profile.json", False),
        ("t_rank1.json", False, "rank_1/profile.json", True),
        ("t_rank1.json", False, "ranks.json", False),  # another rank may have been saved
        ("t_rank1.json", False, "rank_2/profile.json", False),
        ("t_rank1.json", True, "profile.json", True),
    ],
)
def test_a_trace_is_done_if_its_entry_is_newer(name: str, alone: bool, made: str, done: bool, tmp_path: Path) -> None:
    task = fleet._Task(tmp_path / name, tmp_path / "entry", tmp_path / "unread", alone)
    saved = task.entry / made
    saved.parent.mkdir(parents=True)
    saved.touch()
    assert not task.is_done  # the trace does not exist
    task.file.touch()
    for later_s, newer in ((-1, False), (0, False), (1, True)):
        os.utime(task.file, (1e9, 1e9))
        os.utime(saved, (1e9 + later_s, 1e9 + later_s))
        assert task.is_done == (newer and done)


def test_what_was_reduced_has_no_events_and_is_not_read_again_until_it_changes(
    traces: list[Path], tmp_path: Path
) -> None:
    perfnb.load(traces[:2], journal=tmp_path / "fleet")
    again = Submits()
    journal = perfnb.load(traces[:2], journal=tmp_path / "fleet", executor=again)
    assert again.asked == []
    saved = journal.path / "a" / "t.json"  # type: ignore[union-attr]
    assert not (saved / "outside.parquet").exists()
    assert not (saved / "table_events.parquet").exists()
    assert len(perfnb.load(saved)._recording.events) == 0  # type: ignore[union-attr]

    later = traces[0].stat().st_mtime + 3600
    os.utime(traces[0], (later, later))
    perfnb.load(traces[:2], journal=tmp_path / "fleet", executor=again)
    assert again.asked == [str(traces[0])]


def test_a_trace_that_is_mended_is_a_row_like_any_other(traces: list[Path], tmp_path: Path) -> None:
    bad = traces[5]
    assert perfnb.load([bad], journal=tmp_path / "fleet").damaged  # type: ignore[union-attr]
    bad.write_text(traces[0].read_text("utf-8"))
    journal = perfnb.load([bad], journal=tmp_path / "fleet")

    assert journal.table.index.tolist() == ["bad.json"]  # type: ignore[union-attr]
    assert not journal.damaged  # type: ignore[union-attr]


def test_a_worker_that_dies_or_fails_in_some_other_way_is_a_reason(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = perfnb.load(traces[:1], journal=tmp_path / "fleet", executor=Submits(fails="raw/a"))
    assert journal.damaged == {"t.json.unread": "RuntimeError: the worker died"}  # type: ignore[union-attr]

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(fleet, "read_file", fails)
    answer = fleet.reduce_file("x.json", None, None, None)  # type: ignore[arg-type]
    assert answer == "x.json cannot be read: MemoryError: "


def test_ranks_are_saved_under_their_numbers_or_the_next_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Source:
        def __init__(self, rank: int, known: bool) -> None:
            self.meta = {"rank": rank, "trace": {"rank_known": known}}

        def of_rank(self, rank: int) -> int:
            return rank

    made: list[tuple[int, str]] = []

    def saves(rank: int) -> Any:
        return SimpleNamespace(save=lambda place: (place.mkdir(), made.append((rank, place.name))))

    monkeypatch.setattr(fleet, "ReducedProfile", Source)
    monkeypatch.setattr(fleet, "Profile", saves)
    given: Any = [SimpleNamespace(_source=Source(*one)) for one in ((3, True), (0, False), (3, True), (2, False))]
    (tmp_path / "rank_7").mkdir()
    (tmp_path / "rank_x").mkdir()
    taken = {1, 7}
    fleet._save_ranks(given, tmp_path, taken)

    assert made == [(3, "rank_3"), (0, "rank_0"), (2, "rank_2"), (4, "rank_4")]
    assert taken == {0, 1, 2, 3, 4, 7}
    assert json.loads((tmp_path / "ranks.json").read_text())["meta"] == {"ranks": [0, 2, 3, 4, 7], "apart": True}


def test_what_makes_no_sense_is_refused(traces: list[Path], tmp_path: Path) -> None:
    for given in (3, "x", object(), ThreadPoolExecutor):
        with pytest.raises(TypeError, match="executor must be an executor"):
            perfnb.load(traces, journal=tmp_path / "fleet", executor=given)
    with pytest.raises(TraceError, match="belongs to a single trace"):
        perfnb.load(traces, journal=tmp_path / "fleet", provenance="x.json")
    assert not (tmp_path / "fleet").exists()
    assert len(perfnb.load([], journal=tmp_path / "fleet")) == 0  # type: ignore[arg-type]
