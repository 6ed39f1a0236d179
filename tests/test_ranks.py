"""Traces of several ranks, loaded together: their tables, their clocks, and who waited for whom."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.frames import reading
from perfnb.views import palette
from perfnb.views.escape import cells
from perfnb.views.rank_notes import distinct_names
from tests.traces.test_public_traces import FOLDER
from tests.written_traces import Written

TABLES = (
    "events",
    "steps",
    "layers",
    "ops",
    "phases",
    "kernels",
    "gpu_time",
    "gpu_steps",
    "gpu_idle",
    "times",
    "clocks",
)


def rank_trace(late: float, clock: float = 0.0, steps: int = 3, lost: tuple[int, ...] = (), **facts: Any) -> Written:
    """A rank that comes to each collective `late` µs after its begin; each ends for all 200 µs after its begin."""
    group = {name: facts.pop(name) for name in ("Process Group Ranks",) if name in facts}
    trace, count = Written(**facts), 0
    for number in range(steps):
        t = 10_000.0 * number + clock
        trace.step(number, t, t + 5000)
        for place in range(4):
            begin = t + 1000 * place + 137 * place * place  # unevenly, so that no wrong shift fits all
            trace.op("aten::mm", begin + 2, begin + 8).kernel("gemm", begin + 5, begin + 20, begin + 20 + late)
            if count not in lost:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                told = {"Collective name": "allreduce", **group}
                trace.kernel(name, begin + 10, begin + 100 + late, begin + 300, **told)
            count += 1
    return trace


def written(tmp_path: Path, traces: list[Written], names: str = "rank{}.json") -> list[Path]:
    return [trace.write(tmp_path / names.format(place)) for place, trace in enumerate(traces)]


def test_the_last_to_come_is_the_straggler_whatever_its_clock_says(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(150, clock=2_500_000.25), rank_trace(20, clock=-777)])

    ranks = perfnb.load(paths)

    assert isinstance(ranks, perfnb.Ranks)
    assert ranks.ranks == [0, 1, 2]
    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 2_500_000.25, -777])
    assert ranks.clocks["collectives"].tolist() == [12, 12, 12]
    assert ranks.straggler == 1
    times = ranks.times
    assert times["waiting_ms"].tolist() == pytest.approx([0.6] * 3 + [0] * 3 + [0.52] * 3)
    assert times["communication_ms"].tolist() == pytest.approx([0.8] * 3 + [0.2] * 3 + [0.72] * 3)
    assert times["exposed_ms"].tolist() == pytest.approx([0.8] * 3 + [0.2] * 3 + [0.72] * 3)
    assert times["computation_ms"].tolist() == pytest.approx([0] * 3 + [0.6] * 3 + [0.08] * 3)
    assert times["wall_ms"].tolist() == [5.0] * 9
    assert "Rank 1 is the straggler" in str(ranks)
    assert "Rank 1 is the straggler" in ranks._repr_mimebundle_()["text/html"]


def test_kernels_that_a_profiler_lost_confuse_nothing(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0, lost=(1, 5)), rank_trace(50, clock=4321, lost=(0, 6, 7))])

    ranks = perfnb.load(paths)

    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 4321])
    assert ranks.clocks["collectives"].tolist() == [7, 7]
    assert ranks.times["waiting_ms"].iloc[:3].tolist() == pytest.approx([0.1, 0.05, 0.2])


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(30), rank_trace(30, clock=99)]))

    assert ranks.straggler is None
    assert "No rank stands out" in str(ranks)


def test_without_collectives_nothing_is_claimed(tmp_path: Path) -> None:
    only_here = rank_trace(0, lost=tuple(range(12)))

    ranks = perfnb.load(written(tmp_path, [only_here, rank_trace(0), only_here]))

    assert ranks.straggler is None
    assert ranks.times["waiting_ms"].isna().all()
    assert ranks.clocks["ahead_us"].isna().tolist() == [False, True, True]
    assert "No collective could be matched" in str(ranks)


@pytest.mark.parametrize(
    ("names", "own", "expected"),
    [
        ("job_rank{}.json", (None, None, None), [0, 1, 2]),
        ("trace-{}.json", (None, None, None), [0, 1, 2]),
        ("trace-{}.json", (5, 2, 7), [2, 5, 7]),
        ("rank{}.json", (5, 2, 7), [2, 5, 7]),
        ("trace-{}.json", (4, 4, 4), [0, 1, 2]),
    ],
)
def test_a_rank_is_the_traces_else_the_names_else_the_place(
    tmp_path: Path, names: str, own: tuple[int | None, ...], expected: list[int]
) -> None:
    facts: list[dict[str, Any]] = [{} if rank is None else {"distributedInfo": {"rank": rank}} for rank in own]
    paths = written(tmp_path, [rank_trace(10 * place, **one) for place, one in enumerate(facts)], names)

    ranks = perfnb.load(paths)

    assert ranks.ranks == expected
    assert sorted(set(ranks.events["rank"])) == expected
    late = ranks.times.groupby("rank")["computation_ms"].mean()
    order = [rank for rank in own if rank is not None] if len(set(own)) == 3 else expected
    assert [late[rank] for rank in order] == pytest.approx([0, 0.04, 0.08])


def test_tables_are_those_of_the_ranks_one_after_another(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)], "r_rank{}.json.gz")

    ranks = perfnb.load(tmp_path)

    assert [profile.meta["name"] for profile in ranks] == [path.name for path in paths]
    for table in ("events", "steps", "gpu_time", "kernels", "ops"):
        whole = getattr(ranks, table)
        assert sorted(set(whole["rank"])) == [0, 1, 2]
        assert len(whole) == sum(len(getattr(ranks[rank], table)) for rank in range(3))
    assert isinstance(perfnb.load(paths[1]), perfnb.Profile)
    assert perfnb.load(paths[2]).events["rank"].unique().tolist() == [2]


def test_they_are_saved_and_come_back(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0), rank_trace(50, clock=10)]))

    for _ in range(2):
        again = perfnb.load(ranks.save(tmp_path / "saved"))
    assert isinstance(again, perfnb.Ranks)
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(again, table), getattr(ranks, table))
    assert str(again) == str(ranks)
    assert repr(again) == repr(ranks) == "<perfnb.Ranks: 0, 1>"
    (tmp_path / "saved" / "rank_0" / "mine.txt").write_text("mine")
    with pytest.raises(RecordingError, match="is not just a perfnb ranks"):
        ranks.save(tmp_path / "saved")
    with pytest.raises(RecordingError, match="is not just"):
        ranks.save(tmp_path)


def test_ranks_of_groups_that_share_nothing_are_told_within_their_group(tmp_path: Path) -> None:
    lates, clocks = (0, 0, 0, 200), (0, 70, 5_000_000, 5_000_123.5)
    paths = written(
        tmp_path,
        [
            rank_trace(late, clock, **{"Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]"})
            for rank, (late, clock) in enumerate(zip(lates, clocks, strict=True))
        ],
    )

    ranks = perfnb.load(paths)

    assert ranks.clocks["reference"].tolist() == [0, 0, 2, 2]
    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, 70, 0, 123.5])
    assert ranks.clocks["collectives"].tolist() == [12] * 4
    waited = ranks.times.groupby("rank")["waiting_ms"].mean()
    assert waited.tolist() == pytest.approx([0, 0, 0.8, 0])
    assert ranks.straggler == 3
    assert "could be matched with the others: ranks 0, 1; ranks 2, 3." in str(ranks)


def test_clocks_are_told_through_other_ranks(tmp_path: Path) -> None:
    """Ranks 0 and 2 share nothing, but both share with rank 1."""
    traces = []
    for clock, groups in ((0, (0,)), (-500, (0, 1)), (40_000, (1,))):
        trace = Written()
        trace.step(0, clock, clock + 90_000)
        for place in range(10):
            for group in groups:
                begin = clock + 5_000 * place + 137 * place * place + 2_000 * group
                told = {"Process Group Ranks": f"[{group}, {group + 1}]"}
                late = 100 if clock == 40_000 else 0
                trace.kernel("ncclDevKernel_AllReduce_Sum_f32", begin, begin + late, begin + 300, **told)
        traces.append(trace)

    ranks = perfnb.load(written(tmp_path, traces))

    assert ranks.clocks["ahead_us"].tolist() == pytest.approx([0, -500, 40_000])
    assert ranks.clocks["reference"].tolist() == [0, 0, 0]
    assert ranks.clocks["collectives"].tolist() == [10, 20, 10]
    assert ranks.times["waiting_ms"].tolist() == pytest.approx([0, 1.0, 0])
    assert ranks.straggler == 2


class Counting(Executor):
    """An executor that runs what it is given at once and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_any_executor_reads_them(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)])
    alone, counting = perfnb.load(paths), Counting()

    with ThreadPoolExecutor(2) as threads:
        for executor in (threads, counting):
            ranks = perfnb.load(paths, executor=executor)
            pd.testing.assert_frame_equal(ranks.events, alone.events)
            assert str(ranks) == str(alone)
    assert counting.asked == 3


def test_much_is_read_by_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50)])
    alone = perfnb.load(paths)
    monkeypatch.setattr(reading, "_PAYS", 1)
    monkeypatch.setattr(reading, "read_recording", None)  # not in this process

    ranks = perfnb.load(paths)

    pd.testing.assert_frame_equal(ranks.events, alone.events)
    assert ranks.meta == alone.meta
    assert str(ranks) == str(alone)


@pytest.mark.parametrize("apart", [False, True])
def test_a_bad_file_among_them_is_one_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50)])
    paths[1].write_text("[[[")
    monkeypatch.setattr(reading, "_PAYS", 1 if apart else 2**60)

    with pytest.raises(TraceError) as caught:
        perfnb.load(paths)
    assert str(paths[1]) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecordingError, match="does not exist"):
        perfnb.load([paths[0], tmp_path / "nowhere.json"])
    with pytest.raises(TraceError, match="the list is empty"):
        perfnb.load([])


SLOW = """
import sys, time
from pathlib import Path
asked = sys.stdin.read()
place = int(asked.split("rank")[1].split(".json")[0])
(Path(sys.argv[1]) / f"begun{place}").touch()
if place != BAD:
    time.sleep(60)
print("file", place, "is bad", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["the first is bad", "the second is bad", "interrupted"])
def test_what_goes_wrong_ends_the_reading_of_all_files(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    paths = written(tmp_path, [rank_trace(0)] * 8)
    bad = {"the first is bad": 0, "the second is bad": 1, "interrupted": -1}[how]
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW.replace("BAD", str(bad)))
    begun: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def begin(command: list[str], **options: Any) -> subprocess.Popen[str]:
        begun.append(popen([sys.executable, str(slow), str(tmp_path)], **options))
        return begun[-1]

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "_PAYS", 1)
    monkeypatch.setattr(reading.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(reading.subprocess, "Popen", begin)
    if how == "interrupted":
        monkeypatch.setattr(reading, "wait", interrupted)
    begin_s = time.monotonic()

    with pytest.raises(KeyboardInterrupt if how == "interrupted" else TraceError, match=None if bad < 0 else "is bad"):
        perfnb.load(paths)

    assert time.monotonic() - begin_s < 30
    assert len(begun) <= 4
    assert all(process.poll() is not None for process in begun)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES")
def test_two_ranks_of_a_public_job() -> None:
    """Of 10 collectives in each, of which a sample was kept, 5 are the same: their ends are at most 0.4 ms apart."""
    paths = [FOLDER / "kineto" / f"sampled_rank_{rank}.json.gz" for rank in (0, 1)]

    ranks = perfnb.load(paths)

    assert ranks.ranks == [0, 1]
    assert ranks.clocks["collectives"].tolist() == [5, 5]
    assert ranks.clocks["ahead_us"].tolist() == [0, 0]
    # Rank 0 came to the three of step 551 at 45.760, 216.370 and 506.029 ms, rank 1 at 50.619, 219.672 and 506.113.
    waited = ranks.times.set_index(["rank", "step"])["waiting_ms"]
    assert waited[0, 551] == pytest.approx(4.859 + 3.302 + 0.084)
    assert waited[1, 551] == 0
    assert ranks.straggler == 1


@pytest.mark.parametrize("how", ["one by one", "apart", "by an executor"])
def test_progress_tells_of_all_files_together(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, [rank_trace(0), rank_trace(50), rank_trace(60)])
    sizes, told = [path.stat().st_size for path in paths], []
    monkeypatch.setattr(reading, "QUIET_S", 0)
    monkeypatch.setattr(reading, "_PAYS", 1 if how == "apart" else 2**60)

    executor = Counting() if how == "by an executor" else None
    reading.read_recordings(paths, {}, executor, lambda done, total: told.append((done, total)))

    assert [done for done, _ in told] == [sizes[0], sizes[0] + sizes[1], sum(sizes)]
    assert {total for _, total in told} == {sum(sizes)}
    monkeypatch.setattr(reading, "QUIET_S", 60)
    told.clear()
    reading.read_recordings(paths, {}, executor, lambda done, total: told.append((done, total)))
    assert not told


def test_the_page_stands_alone_and_draws_what_each_rank_did(tmp_path: Path) -> None:
    trace = rank_trace(0)
    trace.event("gemm", 12_900, 13_000, "kernel", 7, 0, device=0, stream=9, correlation=77)
    paths = [trace.write(tmp_path / "rank0 <script>x.json"), rank_trace(400).write(tmp_path / "rank1.json")]
    ranks = perfnb.load(paths)

    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")

    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")
    assert page.count('class="pf-bar"') == 2
    assert "waited for by the others" in page
    parts = ranks._summary.parts
    gpu = ranks.gpu_time.set_index("rank")
    assert (parts["computing_ms"] + parts["both_ms"]).tolist() == pytest.approx(
        ranks.times.groupby("rank")["computation_ms"].mean().tolist()
    )
    assert (parts > 0).any().all() or gpu["overlap_ms"].sum() == 0
    for name, mark in palette.RANK_PARTS.items():
        assert f"{mark.word}" in page, name
    with pytest.raises(RecordingError, match="cannot be written"):
        ranks.to_html(tmp_path / "ranks.html" / "inside")


def test_ranks_without_a_gpu_have_no_bars(tmp_path: Path) -> None:
    paths = [Written().step(0, 0, 90).op("aten::mm", 0, 10).write(tmp_path / f"rank{n}.json") for n in range(2)]

    page = perfnb.load(paths).to_html(tmp_path / "ranks.html").read_text("utf-8")

    assert 'class="pf-bar"' not in page
    assert "n/a" in page


def gpu(name: str) -> list[dict[str, Any]]:
    return [{"id": 0, "name": name}]


def test_the_straggler_of_a_few_ranks_is_that_of_those_loaded(tmp_path: Path) -> None:
    few = [rank_trace(late, distributedInfo={"rank": rank, "world_size": 8}) for rank, late in ((2, 0), (5, 150))]
    ranks = perfnb.load(written(tmp_path, few))

    text = " ".join(str(ranks).split())
    assert ranks.straggler == 5
    assert "2 of 8 ranks are loaded: what the other 6 did is not known, and any of them may have held up these." in text
    assert "Rank 5 is the straggler of those loaded: in collectives the others waited 0.600 ms a step" in text
    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert '<p class="pf-head"><strong>2 ranks of 8</strong>' in page
    assert "what the other 6 did is not known" in page
    (tmp_path / "all").mkdir()
    whole = [rank_trace(late, distributedInfo={"rank": rank, "world_size": 2}) for rank, late in ((0, 0), (1, 150))]
    text = " ".join(str(perfnb.load(written(tmp_path / "all", whole))).split())
    assert "Rank 1 is the straggler: " in text
    assert "loaded" not in text


def test_times_in_notes_are_written_as_everywhere(tmp_path: Path) -> None:
    slow = rank_trace(0), rank_trace(0, clock=2_500_000.0)
    for trace in slow:  # steps and collectives of seconds
        for event in trace.events:
            event["ts"], event["dur"] = event["ts"] * 1e4, event["dur"] * 1e4
    slow[1].events[:] = [
        {**event, "ts": event["ts"] + 1.5e6, "dur": event["dur"] - 1.5e6} if event["name"].startswith("nccl") else event
        for event in slow[1].events
    ]

    text = " ".join(str(perfnb.load(written(tmp_path, list(slow)))).split())

    assert "waited 6.00 s a step for the last to come, it waited 0 ms" in text
    assert "e+0" not in text


def test_one_trace_loaded_twice_is_told(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0, distributedInfo={"rank": 3})] * 2 + [rank_trace(7)], "trace{}.json")

    ranks = perfnb.load(paths)
    text = " ".join(str(ranks).split())

    assert "Ranks 0, 1 hold the same events at the same times: one trace, loaded twice." in text
    assert "Ranks 0, 1 all are rank 3, as their traces or names say; so all ranks were numbered by place." in text
    again = perfnb.load(ranks.save(tmp_path / "saved"))
    assert str(again) == str(ranks)
    text = str(perfnb.load(written(tmp_path, [rank_trace(0), rank_trace(0, clock=5)])))
    assert "same events" not in text
    assert "all are rank" not in text


def test_traces_of_other_jobs_are_doubted(tmp_path: Path) -> None:
    traces = [
        rank_trace(0, distributedInfo={"rank": 0, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
        rank_trace(9, distributedInfo={"rank": 1, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
        rank_trace(0, lost=tuple(range(12)), distributedInfo={"rank": 2, "world_size": 4}, deviceProperties=gpu("Big")),
    ]

    ranks = perfnb.load(written(tmp_path, traces))

    text, page = " ".join(str(ranks).split()), ranks._repr_mimebundle_()["text/html"]
    assert "The traces do not agree on how many ranks there are, so they are not of one job: 2 (ranks 0, 1); 4" in text
    assert "different GPUs, so they may not be of one job: Small <b>GPU (ranks 0, 1); Big (rank 2)." in text
    assert "No collective of rank 2 could be matched with those of other ranks" in text
    assert "different GPUs" in page
    assert "<b>" not in page
    assert "nothing tells that the traces are of one job" in str(
        " ".join(str(perfnb.load(written(tmp_path, [traces[2], traces[2]]))).split())
    )


def test_one_rank_is_not_several(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0)]))

    assert isinstance(ranks, perfnb.Ranks)
    assert "perfnb · 1 rank · " in str(ranks)
    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert "<title>1 rank · perfnb</title>" in page
    assert "1 ranks" not in page + str(ranks)


@pytest.mark.parametrize(
    ("names", "width", "expected"),
    [
        (["a.json", "b.json"], 20, ["a.json", "b.json"]),
        (["mi300_compile_triton.json.gz", "mi300_vit.json.gz"], 15, ["mi300_c…_triton", "mi300_vit"]),
        (["job_of_today_7_on_node.json", "job_of_today_8_on_node.json"], 11, ["…y_7_o…node", "…y_8_o…node"]),
        (["a_long_name_of_it.json", "a_long_name_of_it.json.gz"], 20, None),
        (["same_long_name.json", "same_long_name.json"], 9, ["same…name"] * 2),
    ],
)
def test_names_of_files_stay_apart_when_cut(names: list[str], width: int, expected: list[str] | None) -> None:
    shown = distinct_names(names, width)

    assert expected is None or shown == expected
    assert len(set(shown)) == len(set(names))
    assert max(map(cells, shown)) <= width


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES")
def test_public_traces_of_two_makers_are_no_ranks_of_one_job() -> None:
    ranks = perfnb.load([FOLDER / "kineto" / f"{name}_vit.json.gz" for name in ("h100", "mi300")])

    text = " ".join(str(ranks).split())

    assert "NVIDIA H100 80GB HBM3 (rank 0); AMD Instinct MI300X VF (rank 1)" in text
    assert "nothing tells that the traces are of one job" in text
