"""Exports of Nsight Systems: their contents are in the profile, for each process, and hostile ones are refused."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace import sqlite_file, trace_file
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.nsys import _copy_name, read
from perfnb.trace.trace_file import LIMITS, Limits
from tests.nsys_files import (
    CALL,
    COPY,
    COPYING,
    KERNEL,
    RANGE,
    joined,
    launched,
    pid,
    pushed,
    strings,
    tid,
    training,
    write,
)

PUBLIC = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))


def rows_of(trace: TraceColumns, *categories: str) -> np.ndarray:
    return np.flatnonzero(np.isin(np.array(trace.categories, dtype=object), categories)[trace.category])


def profile_of(path: Path, **options: Any) -> perfnb.Profile:
    profile = perfnb.load(path, **options)
    assert isinstance(profile, perfnb.Profile)
    return profile


def error_of(path: Path, limits: Limits = LIMITS) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, limits)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


@pytest.mark.skipif(not (PUBLIC / "nsys").is_dir(), reason=f"no public files at {PUBLIC}; set PERFNB_TRACES")
@pytest.mark.parametrize(
    ("name", "kernels", "total_ns"),
    [
        ("h100_2gpu_1s", [1721, 1721], [22_385_163, 22_444_359]),
        ("saxpy_mpi", [5], [88_573_480]),
        ("mock", [2], [4_129]),
        ("healthy_1pct", [400], [400_000_000]),
    ],
)
def test_other_versions_and_missing_tables(name: str, kernels: list[int], total_ns: list[int]) -> None:
    traces = read(PUBLIC / "nsys" / f"{name}.sqlite", LIMITS)

    rows = [rows_of(trace, "kernel") for trace in traces]
    assert [len(one) for one in rows] == kernels
    assert [int(trace.duration_ns[one].sum()) for trace, one in zip(traces, rows, strict=True)] == total_ns
    for trace in traces:
        assert (trace.duration_ns >= 0).all()
    if name == "saxpy_mpi":  # each call is in the file twice, under its name and under that with a version
        assert len(rows_of(traces[0], "cuda_runtime", "cuda_driver")) == 57


def test_a_training_has_steps_ops_layers_and_backward(tmp_path: Path) -> None:
    p = profile_of(write(tmp_path / "anything", training()))

    assert p.steps["step"].tolist() == [20, 21, 22]
    assert p.steps["wall_ms"].tolist() == [0.9] * 3
    assert p.kernels.loc["gemm<float>(float*)", "calls"] == 1  # per step
    assert p.ops.loc["aten::addmm", "gpu_ms"] == p.ops.loc["aten::mm", "gpu_ms"] == pytest.approx(0.1)
    head = p.layers.loc["head"]
    assert head["module"] == "Linear"
    assert head["forward_ms"] == pytest.approx(0.11)
    assert head["backward_ms"] > 0.15
    assert head["gpu_ms"] == pytest.approx(0.2)
    assert p.phases.loc["backward", "ms"] == pytest.approx(0.21)
    assert p.phases.loc["host_to_device", "ms"] > 0
    time_ms = p.gpu_time.iloc[0]
    assert (time_ms["busy_ms"], time_ms["memcpy_ms"], time_ms["kernels"]) == (pytest.approx(0.63), 0.03, 6)
    assert (p.gpu_idle["host_ms"] > 0).all()
    assert "[[8, 4], [4, 2]]" in set(p.events["shapes"].dropna())
    assert any("Steps are the ranges named 'iteration'" in note for note in p.meta["trace"]["caveats"])
    assert any("does not record module calls" in note for note in p.meta["trace"]["caveats"])


def test_an_export_may_be_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unpacking").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "unpacking"))
    plain, packed, cut = write(tmp_path / "plain", training()), tmp_path / "packed", tmp_path / "cut"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    cut.write_bytes(packed.read_bytes()[:-500])

    assert profile_of(packed).ops.equals(profile_of(plain).ops)
    assert "its compressed data is cut off" in error_of(cut)
    assert "would unpack to more than 9.77 KiB" in error_of(packed, Limits(max_bytes=10_000))
    assert [*(tmp_path / "unpacking").iterdir()] == []


def test_ids_are_of_their_own_process(tmp_path: Path) -> None:
    """Both processes use the same numbers."""
    ranks = perfnb.load(write(tmp_path / "two.sqlite", joined(training(40), training(41, at=2 * 10**9))))

    assert isinstance(ranks, perfnb.results.Ranks)
    assert [len(ranks[rank].events) for rank in (0, 1)] == [len(ranks[0].events)] * 2
    assert ranks[0].layers.loc["head", "gpu_ms"] == ranks[1].layers.loc["head", "gpu_ms"] == pytest.approx(0.2)
    several = perfnb.load([tmp_path / "two.sqlite", tmp_path / "two.sqlite"])
    assert isinstance(several, perfnb.results.Ranks)
    assert several.ranks == [0, 1, 2, 3]


def test_a_folder_of_exports_is_one_job(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path / f"rank{rank}.sqlite", training(40 + rank))
        (tmp_path / f"rank{rank}.nsys-rep").write_bytes(b"what it was exported from")
    with sqlite3.connect(tmp_path / "notes.sqlite") as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()

    ranks = perfnb.load(tmp_path)

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.ranks == [0, 1]
    (tmp_path / "a.json").write_text('[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]')
    both = perfnb.load(tmp_path)  # the traces of another program are not mixed with them
    assert isinstance(both, perfnb.results.Ranks)
    assert list(both[0].ops.index) == ["a"]


def test_a_process_without_gpu_work_is_left_out_and_named(tmp_path: Path) -> None:
    tables = joined(training(), {RANGE: [pushed(5, 9, "load", 99)], KERNEL: [], CALL: [], COPY: []})
    tables["PROCESSES"] = [{"globalPid": pid(99), "pid": 99, "name": "/opt/loader"}]

    p = profile_of(write(tmp_path / "a.sqlite", tables))

    assert "load" not in set(p.events["name"])
    assert "1 events from processes without work on a GPU were left out: loader 99." in p.meta["trace"]["caveats"]


def test_ranges_stand_for_ops_where_torch_wrote_none(tmp_path: Path) -> None:
    tables = training(steps=1)
    for row in tables[RANGE]:
        row["text"] = row["text"].partition(",")[0].removeprefix("autograd::engine::")
    tables[RANGE].append({"start": 5, "end": 10**9, "eventType": 60, "text": "warm", "globalTid": tid(40)})

    p = profile_of(write(tmp_path / "a.sqlite", tables))

    assert p.ops.loc["aten::addmm", "gpu_ms"] == pytest.approx(0.1)
    assert p.ops.loc["iteration 20", "calls"] == 1
    assert "The file does not contain operators, so ops lists NVTX ranges." in p.meta["trace"]["caveats"]
    assert set(p.events.loc[p.events["name"] == "warm", "category"]) == {"nvtx_range"}


def test_hooks_that_describe_a_module_name_a_layer(tmp_path: Path) -> None:
    tables = training()
    for row in tables[RANGE]:
        if row["text"].startswith("[pl]"):
            row["text"] = "{'Module': 'model.head', 'Inputs': [[8, 4]]}"

    assert profile_of(write(tmp_path / "a.sqlite", tables)).layers.loc["model.head", "gpu_ms"] == pytest.approx(0.2)


def test_graphs_recorded_as_wholes_are_work(tmp_path: Path) -> None:
    call, kernel = launched(10**9, 1, 40)
    graph = {**{name: kernel[name] for name in ("start", "end", "deviceId", "streamId", "correlationId")}, "graphId": 3}
    tables = {
        "StringIds": [*strings(), {"id": 9, "value": "cudaGraphLaunch_v10000"}],
        CALL: [
            {**call, "nameId": 9},
            {**call, "start": 10**9 + 500_000, "end": 10**9 + 510_000, "correlationId": 2, "nameId": 9},
        ],
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{**graph, "globalPid": pid(40)}],
    }

    p = profile_of(write(tmp_path / "a.sqlite", tables))

    assert p.kernels.loc["CUDA graph 3", "total_ms"] == pytest.approx(0.1)
    told = " ".join(p.meta["trace"]["caveats"])
    assert "1 CUDA graph launches were recorded as a whole" in told
    assert "The file does not contain the work of 1 of 2 CUDA graph launches" in told


def test_calls_and_fills_are_events_and_the_machine_is_described(tmp_path: Path) -> None:
    call = {"start": 5, "end": 9, "globalTid": tid(40), "correlationId": 3}
    fill = {"start": 6, "end": 8, "deviceId": 1, "streamId": 7, "correlationId": 3, "globalPid": pid(40)}
    gpu = {"name": "H100", "totalMemory": 2**36, "smCount": 132, "computeMajor": 9, "computeMinor": 0}
    kinds = ((0, 5), (1, 4), (2, 4), (None, COPYING))  # others repeat inner calls
    tables = {
        "StringIds": strings("cuLaunchKernel", "cudaMalloc_v3020_ptsz", "main"),
        CALL: [{**call, "eventClass": kind, "nameId": name} for kind, name in kinds],
        "CUPTI_ACTIVITY_KIND_MEMSET": [{**fill, "memKind": 1, "bytes": 64}, {**fill, "memKind": 99}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000}],
        "TARGET_INFO_GPU": [{"id": 5, "cuDevice": 1, **gpu}, {"id": 6, "cuDevice": 0}],
        "PROCESSES": [{"globalPid": pid(40), "pid": 40, "name": "/usr/bin/python3"}],
        "ThreadNames": [{"nameId": 6, "globalTid": tid(40, 77)}, {"nameId": 99, "globalTid": tid(40, 78)}],
    }

    (trace,) = read(write(tmp_path / "a.sqlite", tables), LIMITS)

    columns = (trace.category, trace.name, trace.correlation, trace.thread, trace.device, trace.bytes)
    rows = [(trace.categories[kind], trace.names[name], *rest) for kind, name, *rest in zip(*columns, strict=True)]
    assert rows == [
        ("gpu_memset", "Memset (Pinned)", 3, 7, 1, 64),
        ("gpu_memset", "Memset (Unknown)", 3, 7, 1, MISSING),
        ("cuda_runtime", "cudaMalloc", 3, 40, MISSING, MISSING),
        ("cuda_runtime", "cudaMemcpyAsync", 3, 40, MISSING, MISSING),
        ("cuda_driver", "cuLaunchKernel", 3, 40, MISSING, MISSING),
    ]
    assert trace.base_ns == 1_700_000_000_000_000_000
    facts = {"name": "H100", "totalGlobalMem": 2**36, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    assert trace.devices == [{"id": 1, **facts}, {"id": 0, "name": ""}]
    assert (trace.process_names, trace.thread_names) == ({40: "python3"}, {(40, 77): "main"})
    tables["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": 2**62}]
    assert [one.base_ns for one in read(write(tmp_path / "a.sqlite", tables), LIMITS)] == [0]


def test_ranges_may_have_a_payload_and_marks_are_no_ranges(tmp_path: Path) -> None:
    kinds = [34, 58, 59, 60, 61, 69, 70, 71, 72]
    rows = [{"start": 5, "end": 9, "eventType": kind, "text": str(kind), "globalTid": tid(40)} for kind in kinds]

    (trace,) = read(write(tmp_path / "a.sqlite", {RANGE: rows}), LIMITS)

    found = [(trace.categories[kind], trace.names[name]) for kind, name in zip(trace.category, trace.name, strict=True)]
    assert found == [("cpu_op", "59"), ("cpu_op", "70"), ("nvtx_range", "60"), ("nvtx_range", "71")]


def test_copies_have_the_names_that_torch_gives_them() -> None:
    ways = ["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"]
    ways += ["HtoD (unified)", "DtoH (unified)", "DtoD (unified)"]
    assert [_copy_name(kind, 0, 9) for kind in range(15)] == [f"Memcpy {way}" for way in ("Unknown", *ways, "Unknown")]
    places = ["Pageable", "Pinned", "Device", "Array", "Managed", "Device static", "Managed static"]
    assert [_copy_name(8, place, 2) for place in range(7)] == [f"Memcpy DtoD ({place} -> Device)" for place in places]
    assert [_copy_name(1, 1, 3), _copy_name(1, 9, 0)] == ["Memcpy HtoD (Pinned -> Array)", "Memcpy HtoD"]


def test_synchronisation_names_what_it_waits_for(tmp_path: Path) -> None:
    tables = training(steps=1)
    sync = {"start": 5, "end": 9, "deviceId": 0, "streamId": 8, "correlationId": 90, "globalPid": pid(40)}
    tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] = [
        {**sync, "syncType": 2, "eventId": 4, "eventSyncId": 6},
        {**sync, "syncType": 2, "eventId": 4, "eventSyncId": 7},
        {**sync, "syncType": 4, "streamId": 2**32 - 1, "eventId": 2**32 - 1},
        *({**sync, "syncType": kind} for kind in (1, 3, 5)),
    ]
    tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = [
        {"streamId": 7, "correlationId": 89, "globalPid": pid(40), "eventId": 4, "eventSyncId": 6}
    ]

    (trace,) = read(write(tmp_path / "a.sqlite", tables), LIMITS)

    rows = rows_of(trace, "cuda_sync")
    assert [trace.names[code] for code in trace.name[rows]] == [
        *["Stream Wait Event"] * 2, "Context Sync", "Event Sync", "Stream Sync", "Synchronization"
    ]  # fmt: skip
    assert trace.wait_stream[rows].tolist() == [7, *[MISSING] * 5]
    assert trace.wait_correlation[rows].tolist() == [89, *[MISSING] * 5]
    assert trace.stream[rows].tolist() == [8, 8, MISSING, 8, 8, 8]


def test_calls_of_the_system_and_overheads_are_events(tmp_path: Path) -> None:
    tables = training(steps=1)
    wait = {"start": 10**9 + 1000, "end": 10**9 + 2_000_000, "eventClass": 27, "nameId": 9}
    tables["OSRT_API"] = [{**wait, "globalTid": tid(40, 77)}, {**wait, "globalTid": tid(40)}]
    tables["ThreadNames"] = [{"nameId": 10, "globalTid": tid(40, 77)}]
    tables["StringIds"] += [{"id": 9, "value": "poll"}, {"id": 10, "value": "pt_data_worker"}]

    p = profile_of(write(tmp_path / "a.sqlite", tables))

    polls = p.events[p.events["name"] == "poll"]
    assert set(polls["category"]) == {"os_runtime"}
    assert polls["duration_ns"].tolist() == [1_999_000] * 2
    assert [len(p.meta["trace"]["thread_names"]), p.meta["trace"]["thread_names"][0][2]] == [1, "pt_data_worker"]
    assert "poll" in p._timeline().names


def test_odd_rows(tmp_path: Path) -> None:
    """No end, an end before the start, an unknown name or none, no process at all."""
    tables = training(steps=1)
    tables["StringIds"].append({"id": 99, "value": None})
    tables[CALL][0]["nameId"] = 99
    tables[KERNEL][0]["end"] = tables[KERNEL][0]["start"] - 1
    tables[KERNEL][1]["demangledName"] = 12345
    tables[RANGE].append({"start": 7, "eventType": 59, "text": "open", "globalTid": tid(40)})
    tables[RANGE].append({"start": 7, "eventType": 34, "text": "mark", "globalTid": tid(40)})

    (trace,) = read(write(tmp_path / "a.sqlite", tables), LIMITS)

    assert trace.negative_durations == 1
    assert "kernel without a name" in trace.names
    assert "CUDA call without a name" in trace.names
    assert trace.caveats == ["1 records without a start or an end were left out."]
    for table in (KERNEL, COPY):
        for row in tables[table]:
            row["globalPid"] = None
    assert sum(len(rows_of(trace, "kernel")) for trace in read(write(tmp_path / "b.sqlite", tables), LIMITS)) == 2


def test_columns_that_a_file_lacks_take_no_memory(tmp_path: Path) -> None:
    traces = read(write(tmp_path / "a.sqlite", joined(training(40), training(41))), LIMITS)

    assert len(traces) == 2
    for trace in traces:
        assert trace.python_id.tolist() == [MISSING] * len(trace)
        assert trace.python_id.strides == (0,)


def test_events_without_a_process_are_counted(tmp_path: Path) -> None:
    tables = joined(training(40), training(41))
    for row in tables[RANGE][::2]:
        row["globalTid"] = None

    traces = read(write(tmp_path / "half.sqlite", tables), LIMITS)

    left_out = len(tables[RANGE][::2])
    assert len(traces) == 2
    for trace in traces:
        assert trace.caveats == [
            f"{left_out} events from processes without work on a GPU were left out: process -1.",
        ]
    assert sum(map(len, traces)) == sum(map(len, tables.values())) - len(tables["StringIds"]) - left_out


def test_ranges_that_all_lack_a_process_make_the_file_one_process(tmp_path: Path) -> None:
    tables = joined(training(40), training(41))
    for row in tables[RANGE]:
        row["globalTid"] = None

    (trace,) = read(write(tmp_path / "none.sqlite", tables), LIMITS)

    assert len(trace) == sum(map(len, tables.values())) - len(tables["StringIds"])
    assert trace.caveats == []


def test_command_lines_and_the_environment_are_never_kept(tmp_path: Path) -> None:
    tables = training()
    tables["META_DATA_CAPTURE"] = [{"name": "COMMAND", "value": "train.py --token=planted_secret"}]
    tables["TARGET_INFO_SYSTEM_ENV"] = [{"name": "HF_TOKEN", "value": "planted_secret"}]
    p = profile_of(write(tmp_path / "a.sqlite", tables))

    for file in p.save(tmp_path / "saved").rglob("*"):
        assert not file.is_file() or b"planted_secret" not in file.read_bytes()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            f"CREATE VIEW {KERNEL} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT * FROM n",
            "is not a plain table",
        ),
        ("CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END", "it contains triggers"),
        (f"CREATE VIRTUAL TABLE {KERNEL} USING fts5(start, end)", "is not a plain table"),
        (f"INSERT INTO {RANGE} (text) VALUES (zeroblob(30000000))", "damaged SQLite database (string or blob too big)"),
        (
            f"INSERT INTO {CALL} (start, end) VALUES ('now', 1.5)",
            "start in CUPTI_ACTIVITY_KIND_RUNTIME contains a value of the wrong type",
        ),
        (f"INSERT INTO {CALL} (start, end) VALUES ({2**62}, 0)", "it has times beyond"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, sql: str, said: str) -> None:
    tables = training(steps=1)
    if f"{KERNEL} " in sql:
        del tables[KERNEL]
    path = write(tmp_path / "a.sqlite", tables)
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()

    assert said in error_of(path)


@pytest.mark.parametrize("table", ["StringIds", RANGE])
def test_names_have_a_limit_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """An export may hold more events than other formats, but no more text."""
    tables = training(steps=1)
    for number in range(20):
        text = f"{number} " + "x" * 10_000
        tables[table].append(pushed(5, 9, text, 40) if table == RANGE else {"id": 100 + number, "value": text})
    path = write(tmp_path / "a.sqlite", tables)
    assert read(path, LIMITS)

    monkeypatch.setattr(trace_file, "_WHOLE", (2**28, 3_000))
    assert "its names have more than 192,000 characters in total; if you trust it, raise max_events." in error_of(path)
    assert read(path, Limits(max_events=4_000))


def test_a_path_that_cannot_be_opened_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "missing.sqlite"):
        assert "it is not a file" in error_of(path)
    path = write(tmp_path / "a.sqlite", training(steps=1))
    monkeypatch.setattr(sqlite_file, "TemporaryDirectory", None)  # only what is compressed needs one
    assert read(path, LIMITS)

    def refuse(*args: object, **options: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert error_of(path) == " cannot be read as a trace: unable to open database file."


def test_a_database_with_a_part_in_the_log_next_to_it_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", training(steps=1))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(f"INSERT INTO {KERNEL} (start, end) VALUES (1, 2)")

    assert "a.sqlite-wal contains changes that are not yet in the database" in error_of(path)

    writer.close()  # which moves the log into the database
    kernels = [sum(trace.categories[code] == "kernel" for code in trace.category) for trace in read(path, LIMITS)]
    assert sum(kernels) == len(training(steps=1)[KERNEL]) + 1
    (tmp_path / "a.sqlite-wal").touch()  # an empty one holds nothing
    assert read(path, LIMITS)
    (tmp_path / "a.sqlite-journal").write_bytes(b"half a transaction")
    assert "a.sqlite-journal contains changes" in error_of(path)


def test_work_beyond_what_the_size_of_a_file_allows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_COST", 0)
    monkeypatch.setattr(sqlite_file, "_COST_PER_BYTE", 0)
    monkeypatch.setattr(sqlite_file, "_LOOK", 10)

    assert "far more work than its size suggests" in error_of(write(tmp_path / "a.sqlite", training()))


def test_an_interrupt_and_an_error_of_the_callers_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.sqlite", training())
    monkeypatch.setattr(sqlite_file, "_LOOK", 10)
    monkeypatch.setattr(trace_file, "QUIET_S", -1.0)
    monkeypatch.setattr(trace_file, "_EVERY_S", -1.0)

    for error in (KeyboardInterrupt, ZeroDivisionError):

        def raises(done: int, total: int, error: type[BaseException] = error) -> None:
            assert 0 <= done <= total
            raise error

        with pytest.raises(error):
            read(path, LIMITS, raises)


def test_another_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (start INT)")
    connection.close()

    assert "not an Nsight Systems export" in error_of(path)
    with pytest.raises(TraceError, match=r"it is an SQLite database\); help\(perfnb\.load\)"):
        perfnb.load(path)
    empty = write(tmp_path / "empty.sqlite", {KERNEL: []})
    assert "has no events" in error_of(empty)


def test_a_report_names_the_command_where_nsys_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "run 1.nsys-rep"
    report.write_bytes(b"\x01closed")

    with pytest.raises(TraceError) as caught:
        perfnb.load(report)

    assert f" run nsys export --type sqlite --output 'run 1.sqlite' '{report}' and load run 1.sqlite." in str(
        caught.value
    )


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nsys is a shell script")
def test_a_report_is_exported_where_nsys_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = write(tmp_path / "export.sqlite", training())
    program = tmp_path / "nsys"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3 $4" = "export --type sqlite --output" ] || exit 9\n/bin/cp {export} "$5"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"\x01closed")

    assert profile_of(report).steps["step"].tolist() == [20, 21, 22]
    program.write_text("#!/bin/sh\necho no licence >&2\nexit 3\n")
    with pytest.raises(TraceError, match=r"nsys export failed with code 3 \(no licence\)"):
        perfnb.load(report)


TWO = PUBLIC.parent / "foreign" / "nsys" / "mfu_2gpu_before.sqlite.gz"


needs_files = pytest.mark.skipif(
    not (TWO.is_file() and (PUBLIC / "nsys").is_dir()),
    reason=f"no folders of public files at {PUBLIC}; set PERFNB_TRACES",
)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.sqlite"
    path.write_bytes(gzip.decompress(TWO.read_bytes()))
    return path


@needs_files
def test_a_public_file_of_two_processes_has_the_figures_that_are_known(two: Path) -> None:
    traces = read(two, LIMITS)

    kernels = [rows_of(trace, "kernel") for trace in traces]
    assert [len(rows) for rows in kernels] == [1993, 2017]
    both = list(zip(traces, kernels, strict=True))
    assert [int(trace.duration_ns[rows].sum()) for trace, rows in both] == [270_875_926, 264_324_724]
    assert sum(len(rows_of(trace, "gpu_memcpy")) for trace in traces) == 1020
    assert sum(len(rows_of(trace, "gpu_memset")) for trace in traces) == 269
    assert sum(len(rows_of(trace, "cuda_sync")) for trace in traces) == 366
    assert sum(len(rows_of(trace, "cuda_runtime", "cuda_driver")) for trace in traces) == 7466
    assert sum(len(rows_of(trace, "cpu_op", "user_annotation")) for trace in traces) == 19118
    launched_by = [
        np.isin(trace.correlation[rows], trace.correlation[rows_of(trace, "cuda_runtime", "cuda_driver")])
        for trace, rows in both
    ]
    assert sum(int(known.sum()) for known in launched_by) == 3986
    assert {trace.base_ns for trace in traces} == {1_779_782_330_176_752_435}
