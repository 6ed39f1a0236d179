"""Trace files as recordings: waits for data, what a trace without marks has, and the order of the ranks of a job."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfnb.errors import TraceError
from perfnb.recording import executors, reading
from perfnb.recording.executors import answers, is_executor
from perfnb.recording.from_trace import (
    WHOLE_TRACE,
    _names,
    categorical,
    layers_read,
    layers_written,
    rows_of_trace,
    with_module_layers,
)
from perfnb.recording.job import RANKS, place_of_rank, tell_of_ranks
from perfnb.recording.reading import in_rank_order, rank_of_name, read_file, read_recordings, trace_files
from perfnb.recording.recording import Recording
from perfnb.recording.store import SavedFolder
from perfnb.trace.trace_file import Limits
from tests.recordings import ByHand
from tests.written_traces import BACKWARD, Written, training

LOADER = "enumerate(DataLoader)#_Iter.__next__"


def read(trace: Written, tmp_path: Path, name: str = "trace.json", rank: int | None = None) -> Recording:
    (recording,) = read_file(trace.write(tmp_path / name), Limits(), rank)
    return recording


def test_a_step_waits_for_its_own_loader_and_a_mark_may_cut_a_wait(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 1000).step(2, 1000, 2000).op("aten::mm", 500, 510).op("aten::mm", 1500, 1510)
    trace.event(LOADER, 10, 50, "user_annotation").event(LOADER, 20, 30, "user_annotation")  # inside the first
    trace.event(LOADER, 50, 60, "user_annotation")
    trace.event(LOADER, 950, 1070, "user_annotation")  # 50 in the first step, 70 in the second
    trace.event(LOADER, 100, 400, "user_annotation", tid=BACKWARD).event(LOADER, 100, 400, "user_annotation", pid=7)
    steps = read(trace, tmp_path).steps
    assert steps["data_ms"].tolist() == pytest.approx([0.1, 0.07])
    assert steps["wall_ms"].tolist() == [1.0, 1.0]
    assert steps["start_s"].tolist() == [0.0, 0.001]
    assert steps["step"].tolist() == [1, 2]
    others = Written().step(1, 0, 1000).op("aten::mm", 500, 510).event(LOADER, 1, 9, "user_annotation", tid=BACKWARD)
    assert read(others, tmp_path).steps["data_ms"].tolist() == [0.0]


def test_a_trace_without_marks_is_one_step(tmp_path: Path) -> None:
    trace = Written().op("aten::mm", 100, 300, 4).kernel("gemm", 120, 310, 600)
    recording = read(trace, tmp_path)
    events = recording.events
    whole = events.iloc[0]
    assert (whole["name"], whole["category"]) == (WHOLE_TRACE, WHOLE_TRACE)
    assert (whole["start_ns"], whole["duration_ns"]) == (events["start_ns"].iloc[1:].min(), 200_000)
    assert len(events) == len(trace.events) + 1
    assert rows_of_trace(events).tolist() == [1, 2, 3]
    assert events["sequence"].tolist()[:2] == [-1, 4]
    assert (events["stream"].tolist(), set(events["bytes"])) == ([-1, -1, -1, 7], {-1})
    assert recording.steps["wall_ms"].tolist() == [0.2]
    assert not recording.meta["trace"]["steps_marked"]
    assert recording.traced_steps == 1
    marked = read(training(1), tmp_path)
    assert rows_of_trace(marked.events).tolist() == list(range(len(marked.events)))


def test_what_a_trace_tells_of_itself(tmp_path: Path) -> None:
    recording = read(training(2).kernel("late", 5000, 5010, 5020).op("aten::late", 5030, 5040), tmp_path)
    told = recording.meta["trace"]
    assert (recording.meta["name"], recording.rank, told["world_size"], told["rank_known"]) == (
        "trace.json",
        3,
        8,
        True,
    )
    assert recording.meta["environment"] == {"gpus": ["Small GPU"]}
    assert (told["steps_marked"], told["device_events"], told["host_calls"]) == (True, 11, 11)
    assert recording.outside is not None
    assert len(recording.events) + len(recording.outside) == told["events"]
    unknown = Written().step(0, 0, 10).op("aten::mm", 1, 2)
    assert read(unknown, tmp_path, rank=5).rank == 5
    assert (
        read(unknown, tmp_path).meta["trace"] | {"rank_known": False, "rank": None}
        == read(unknown, tmp_path).meta["trace"]
    )


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "B"}], ["B"]),
        ([{"id": 4, "name": "A"}, {"id": 5, "name": "A"}], ["A"]),
        ([{"id": 4, "name": "A"}, {"id": 5, "name": "B"}], ["GPU 1"]),
        ([{"id": "1", "name": "A"}, {"id": 1, "name": 7}], ["GPU 1"]),
    ],
)
def test_gpus_have_the_names_that_the_trace_tells(devices: Any, names: list[str], tmp_path: Path) -> None:
    trace = Written(deviceProperties=devices).step(0, 0, 100).op("aten::mm", 1, 9).kernel("k", 2, 5, 8, device=1)
    assert read(trace, tmp_path).meta["environment"]["gpus"] == names


def test_a_range_on_a_device_is_where_the_work_of_its_track_is(tmp_path: Path) -> None:
    trace = Written().step(0, 0, 100).op("aten::mm", 1, 9).kernel("k", 2, 5, 8)
    trace.event("near", 4, 9, "gpu_user_annotation", 7, 0).event("far", 4, 9, "gpu_user_annotation", 8, 0)
    events = read(trace, tmp_path).events.set_index("name")
    assert events.loc["near", ["device", "stream"]].tolist() == [0, 7]
    assert events.loc["far", ["device", "stream"]].tolist() == [-1, -1]


def test_the_layers_that_perfnb_writes_into_a_trace_are_read_again(tmp_path: Path) -> None:
    recording = with_module_layers(read(training(1), tmp_path))
    written = layers_written(recording)
    assert written["modules"]["name"] == ["Net_0", "Net_0.Linear_0", "Net_0.ReLU_0", "Net_0.Linear_1"]
    assert written["spans"]["loss"] == [False] * 4 + [True]
    again = layers_read(written)
    assert again is not None
    modules, spans = again
    assert modules["depth"].tolist() == [0, 1, 1, 1]
    assert modules["parent"].tolist() == [-1, 0, 0, 0]
    assert spans["layer"].tolist() == [0, 1, 2, 3, -1]
    assert layers_written(replace(recording, modules=modules, spans=spans)) == written
    assert with_module_layers(replace(recording, modules=modules)) is not recording
    changes: list[tuple[str, str, Any]] = [
        ("modules", "name", ["Net_0"]),
        ("modules", "parent", [-1, 0, 2, 0]),
        ("modules", "parent", [-2, 0, 0, 0]),
        ("modules", "parent", [-1, 0, 0, None]),
        ("spans", "layer", [0, 1, 2, 4, -1]),
        ("spans", "layer", [0, 1, 2, -2, -1]),
        ("spans", "span", [0, 1, 2, 3, 3]),
    ]
    for frame, column, values in changes:
        assert layers_read(written | {frame: written[frame] | {column: values}}) is None
    assert layers_read(written | {"version": 2}) is None
    assert layers_read(None) is None


def test_layers_have_the_names_that_lightning_gives_them_and_a_loss_is_none(tmp_path: Path) -> None:
    trace = Written().step(0, 0, 1000).op("aten::mm", 30, 40)
    calls = [("my.Encoder: encoder", 10, 100), ("torch.nn.modules.linear.Linear: encoder.head", 20, 50)]
    calls += [("nn.MSELoss: criterion", 200, 300), ("Linear: criterion.scale", 210, 220)]
    calls += [("torch.nn.modules.linear.Linear: encoder.head", 400, 450)]
    for name, begin, end in calls:
        trace.event(f"[pl][module]{name}", begin, end, "user_annotation")
    trace.event("[pl][module]my.Decoder: no_range", 600, 700, "cpu_op")

    recording = read(trace, tmp_path)

    assert recording.modules["name"].tolist() == ["encoder", "encoder.head"]
    assert recording.modules["module"].tolist() == ["Encoder", "Linear"]
    assert recording.modules[["parent", "depth"]].to_numpy().tolist() == [[-1, 0], [0, 1]]
    assert recording.spans["layer"].tolist() == [0, 1, -1, -1, 1]
    assert recording.spans["loss"].tolist() == [False, False, True, True, False]
    spans = recording.events[recording.events["span"] != -1].sort_values("span")
    assert (spans["start_ns"] // 1000).tolist() == [begin for _, begin, _ in calls]


def test_layers_of_one_path_are_distinguished() -> None:
    assert _names(["Net", "A", "A", "Net", "A"], [-1, 0, 0, -1, 3], False) == [
        *("Net", "Net.A", "Net.A (2)", "Net (2)", "Net (2).A")
    ]
    assert _names(["net", "net.a", "net"], [-1, 0, -1], True) == ["net", "net.a", "net (2)"]


def test_labels_are_sorted_and_merged_and_unused_ones_dropped() -> None:
    made = categorical(["b", "a", "b", "unused"], np.array([0, 2, -1, 1]))

    assert (made.categories.tolist(), made.codes.tolist()) == (["a", "b"], [1, 1, -1, 0])
    assert categorical(["unused"], np.array([], dtype=np.int64)).categories.empty


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        *(("aten::mm", True), ("xaten::mm", False), ("void at::native::k", True), ("at::nativex", False)),
        *(("ProfilerStep#1", True), ("my ProfilerStep#1", False), ("nn.Module: A", True), ("mine", False)),
    ],
)
def test_a_program_uses_torch_if_anything_in_its_trace_is_named_so(name: str, uses: bool) -> None:
    made = ByHand().op("other", 0, 9).op(name, 10, 20)

    foreign, of_torch = made.recording(trace={"foreign": True}), made.recording(trace={})
    live = made.recording()

    assert (foreign.is_from_trace, foreign.is_foreign, foreign.uses_torch) == (True, True, uses)
    assert (of_torch.is_from_trace, of_torch.is_foreign, of_torch.uses_torch) == (True, False, True)
    assert (live.is_from_trace, live.is_foreign, live.uses_torch) == (False, False, True)


def test_the_time_of_a_loss_belongs_to_no_layer() -> None:
    hand = ByHand().step(0, 100)
    recording = hand.call(hand.layer("net"), 1, 9).call(hand.layer("criterion"), 10, 20, loss=True).recording()
    earlier = replace(recording, spans=recording.spans.drop(columns="derived"))

    assert recording.span_layers.tolist() == [0, -1]
    derived = replace(recording, spans=recording.spans.assign(derived=[True, False]))
    assert derived.derived_spans.tolist() == [True, False]
    assert earlier.derived_spans.tolist() == [False, False]


@pytest.mark.parametrize(
    ("base_s", "at"), [(1_700_000_000, {"at": "2023-11-14T22:13:20+00:00"}), (1_400_000_000, {}), (4_600_000_000, {})]
)
def test_a_clock_that_counts_from_1970_tells_the_date(base_s: int, at: dict[str, str], tmp_path: Path) -> None:
    trace = Written(baseTimeNanoseconds=base_s * 10**9).step(0, 0, 10).op("aten::mm", 1, 2)

    assert read(trace, tmp_path).meta["environment"] == {"gpus": [], **at}


def of_rank(rank: int | None, label: str, tmp_path: Path) -> Path:
    facts = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 4}}
    return Written(**facts).step(0, 0, 10).op("aten::mm", 1, 2).write(tmp_path / f"{label}.json")


@pytest.mark.parametrize("threads", [True, False])
def test_the_files_of_a_job_are_read_in_rank_order(threads: bool, tmp_path: Path) -> None:
    paths = [of_rank(None, "job_rank2", tmp_path), of_rank(3, "job_rank1", tmp_path), of_rank(0, "a", tmp_path)]
    with ThreadPoolExecutor(2) as pool:
        read = read_recordings(paths, Limits(), pool if threads else None)
    assert [(one.rank, one.meta["name"]) for one in read] == [
        (0, "a.json"),
        (2, "job_rank2.json"),
        (3, "job_rank1.json"),
    ]


@pytest.mark.parametrize("threads", [True, False])
def test_a_file_of_a_job_that_cannot_be_read_is_an_error(threads: bool, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    paths = [of_rank(0, "a", tmp_path), bad, tmp_path / "gone.json"]
    with ThreadPoolExecutor(2) as pool, pytest.raises(TraceError, match=r"(bad|gone)\.json"):
        read_recordings(paths, Limits(), pool if threads else None)


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_file(path: str, limits: Limits, rank: int | None, progress: Any = None, steps: Any = None) -> Any:
        if progress:
            progress(1, 9)
        return [ByHand().step(0, 100).recording(trace={"rank_known": False})]

    monkeypatch.setattr(reading, "read_file", read_file)
    monkeypatch.setattr(reading, "Reports", lambda progress, length: lambda done: progress(done, length))
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (20, 30), strict=True):
        path.write_bytes(b" " * size)
    told: list[tuple[int, int]] = []
    for executor in (None, Mapping()):
        assert len(read_recordings(paths, Limits(), executor, lambda *each: told.append(each))) == 2
    assert told == [(done, 50) for done in (1, 20, 21, 50, 20, 50)]


def test_ranks_that_two_files_claim_are_their_places(tmp_path: Path) -> None:
    read = [read_file(of_rank(rank, "a", tmp_path), Limits())[0] for rank in (3, 1, 3)]
    assert [one.rank for one in in_rank_order(read)] == [0, 1, 2]
    assert [one.rank for one in in_rank_order(read[:2])] == [1, 3]
    unknown = [read_file(of_rank(None, "a", tmp_path), Limits())[0] for _ in range(2)]
    assert [one.rank for one in in_rank_order(unknown)] == [0, 1]


def test_the_traces_of_a_folder_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank9.json", "a.pt.trace.json.gz", "notes.txt", "x.sqlite", ".index.json"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.json").mkdir()
    assert [path.name for path in trace_files(tmp_path)] == ["a.pt.trace.json.gz", "rank9.json", "rank10.json"]
    for name in ("host.xplane.pb", "host.trace.json.gz", "perfetto_trace.json.gz", "other.trace.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    names = {path.name for path in trace_files(tmp_path)}
    assert "host.xplane.pb" in names
    assert "other.trace.json.gz" in names
    assert not names & {"host.trace.json.gz", "perfetto_trace.json.gz"}


class Process:
    """A process that reads files as the real one does, but inside this process."""

    ends: int | None = None

    def __init__(self, command: list[str], **options: Any) -> None:
        assert command == [sys.executable, "-m", "perfnb.recording.reading"]
        self.returncode, self.killed = 0, False

    def communicate(self, question: str) -> tuple[None, str]:
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
            patch.setattr(sys, "stdin", io.StringIO(question))
            self.returncode = reading._answer() if self.ends is None else self.ends
        return None, said.getvalue()

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[reading._Processes]:
    monkeypatch.setattr(subprocess, "Popen", Process)
    with reading._Processes() as processes:
        yield processes


def test_a_process_reads_a_file_with_the_same_options_and_returns_all_its_recordings(
    processes: reading._Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [ByHand().step(0, 100 + place).op("aten::mm", 10, 20).recording(name=f"{place}") for place in range(2)]
    asked: list[Any] = []

    def read_file(*given: Any, **named: Any) -> list[Recording]:
        asked.append((given, named))
        return made

    monkeypatch.setattr(reading, "read_file", read_file)

    answer = processes.read("a.json", Limits(max_bytes=7, max_events=9), 3, "pass")

    assert asked == [(("a.json", Limits(max_bytes=7, max_events=9), 3), {"steps": "pass"})]
    assert not isinstance(answer, str)
    assert [one.meta["name"] for one in answer] == [one.meta["name"] for one in made]
    for one, other in zip(answer, made, strict=True):
        for column in ("name", "start_ns", "duration_ns"):
            assert one.events[column].tolist() == other.events[column].tolist()
    assert not processes._running


def test_a_process_that_fails_says_why(
    processes: reading._Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    path = str(tmp_path / "bad.json")

    assert processes.read(path, Limits(), None, None) == reading._read_or_say(path, Limits(), None, None)
    monkeypatch.setattr(Process, "ends", -9)
    assert "bad.json was not read: the process that was reading it exited with code -9" in str(
        processes.read(path, Limits(), None, None)
    )
    assert not processes._running


def test_processes_are_killed_by_an_error_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Process)
    for error in (None, KeyboardInterrupt):
        process = Process([sys.executable, "-m", "perfnb.recording.reading"])
        processes = reading._Processes()
        processes._running.add(process)  # type: ignore[arg-type]
        processes.__exit__(error, None, None)
        assert process.killed is (error is not None)
        assert (processes.read("a.json", Limits(), None, None) == "a.json was not read.") is (error is not None)


class Later:
    """An executor that runs its calls in the opposite order once it holds a given number of them."""

    def __init__(self, most: int) -> None:
        self.most, self.waiting, self.asked = most, list[tuple[Callable[[], Any], Future[Any]]](), 0

    def submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((lambda: function(*given), future))
        self.asked += 1
        if len(self.waiting) == self.most:
            while self.waiting:
                self.run()
        return future

    def run(self) -> None:
        function, future = self.waiting.pop()
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)


class Mapping:
    """An executor that only maps."""

    def map(self, function: Callable[[Any], Any], given: Any) -> Iterator[Any]:
        return map(function, given)


def test_answers_come_with_the_place_of_their_question_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [(n, 2) for n in (1, 0, 3, 4)]
    monkeypatch.setattr(executors, "_MOST_WAITING", 2)
    later = Later(2)

    found, asked = [], []
    for one in answers(later, divmod, questions):
        found.append(one)
        asked.append(later.asked)
    with_error = dict(answers(Later(1), divmod, [(1, 1), (1, 0), (5, 3)]))

    assert sorted(found) == [(0, (0, 1)), (1, (0, 0)), (2, (1, 1)), (3, (2, 0))]
    assert asked == [2, 3, 4, 4]  # at most two answers are not yet retrieved
    assert [*answers(Mapping(), divmod, questions)] == sorted(found)
    assert (with_error[0], with_error[2]) == ((1, 0), (1, 2))
    assert isinstance(with_error[1], ZeroDivisionError)
    assert list(answers(later, divmod, [])) == []


def test_calls_that_have_not_begun_are_cancelled_when_nobody_wants_their_answers() -> None:
    later = Later(9)
    found = answers(later, divmod, [(1, 2), (3, 4), (5, 6)])
    submit = later.submit
    first: list[Any] = []

    def submit_and_run(*given: Any) -> Any:
        first.append(submit(*given))
        if len(first) == 3:
            later.run()
        return first[-1]

    later.submit = submit_and_run  # type: ignore[method-assign, assignment]
    assert next(found) == (2, (0, 5))
    found.close()

    assert [one.cancelled() for one in first] == [True, True, False]
    with pytest.raises(CancelledError):
        first[0].result()


@pytest.mark.parametrize(
    ("given", "runs"),
    [(Later(1), True), (Mapping(), True), (Mapping, False), (3, False), (type("", (), {"map": 3})(), False)],
)
def test_an_executor_submits_or_maps(given: object, runs: bool) -> None:
    assert is_executor(given) is runs


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *(("job_rank3.json.gz", 3), ("rank12.json", 12), ("trace.json", None), ("RANK-07.json", 7), ("rank 5", 5)),
        *(("rank123456789.json", 123456789), ("rank1234567890.json", None), ("rankx3.json", None), ("rank__3", None)),
    ],
)
def test_the_rank_in_the_name_of_a_file(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


@pytest.mark.parametrize(
    ("meta", "folder", "ranks"),
    [
        ({}, "run", None),
        ({"job": {"rank": 0, "world_size": 1}}, "run", None),
        ({"job": {"rank": 1, "world_size": 2}}, "run/rank_1", [0, 1]),
        ({"job": {"rank": 2, "world_size": 3}}, "run/rank_2", [0, 1, 2]),
    ],
)
def test_each_of_several_ranks_has_a_folder_of_its_own_and_tells_of_all(
    tmp_path: Path, meta: dict[str, Any], folder: str, ranks: list[int] | None
) -> None:
    (tmp_path / "run").mkdir()

    tell_of_ranks(tmp_path / "run", meta)

    assert place_of_rank(tmp_path / "run", meta) == tmp_path / folder
    assert RANKS.is_at(tmp_path / "run") is (ranks is not None)
    if ranks:
        assert SavedFolder(RANKS, tmp_path / "run").facts == {"ranks": ranks, "apart": True}
