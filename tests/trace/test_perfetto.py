"""Perfetto traces: as Perfetto's own encoder writes them, in torch's order of packets, whole or damaged."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace.columns import TraceColumns
from perfnb.trace.perfetto import READER, _pairs, _Slice, read
from perfnb.trace.trace_file import LIMITS, MOST_TEXT, reader_of
from tests.trace.test_xplane import written
from tests.wire import message, varint

START = 1_750_000_000_000_000_000
HOST, STREAM = 11, 2**63 + 5
#: Track, category, name, start, duration and arguments.
SLICES: list[tuple[int, str, str, int, int, dict[str, Any]]] = [
    (HOST, "user_annotation", "ProfilerStep#4", 0, 9_000, {}),
    (HOST, "cpu_op", "aten::mm", 100, 900, {"External id": 3, "Input Dims": [[8, 16], [16, 4]]}),
    (HOST, "cuda_runtime", "cudaLaunchKernel", 200, 100, {"correlation": 77, "External id": 3}),
    (HOST, "cpu_op", "aten::add", 1_000, 500, {"External id": 4, "Sequence number": 12}),
    (HOST, "cuda_runtime", "cudaLaunchKernel", 1_100, 100, {"correlation": 78}),
    (STREAM, "kernel", "gemm", 2_000, 3_000, {"correlation": 77, "device": 0, "stream": 7, "grid": [1, 2, 3]}),
    (STREAM, "kernel", "add", 5_000, 1_000, {"correlation": 78, "device": 0, "stream": 7, "External id": 2**32 - 1}),
    (STREAM, "kernel", "ncclAllReduce", 7_000, 0, {"device": 0, "stream": 7, "Collective name": "allreduce",
     "Process Group Name": "0", "Process Group Ranks": [0, 1]}),
]  # fmt: skip


def in_torchs_order() -> Iterator[tuple[int, bool, int]]:
    """Track, whether it starts, and number of a slice: of each track all starts, then all ends."""
    for track in (STREAM, HOST):
        mine = [number for number, one in enumerate(SLICES) if one[0] == track]
        yield from ((track, True, number) for number in mine)
        yield from ((track, False, number) for number in mine)


def interned() -> dict[str, dict[str, int]]:
    tables: dict[str, dict[str, int]] = {"c": {}, "n": {}, "a": {}}
    for _, category, name, _, _, arguments in SLICES:
        for table, words in (("c", [category]), ("n", [name]), ("a", arguments)):
            for word in words:
                tables[table].setdefault(word, len(tables[table]) + 1)
    return tables


def by_hand() -> bytes:
    """Return the trace, written field by field."""
    tables = interned()

    def annotation(name: str | None, value: Any) -> bytes:
        own: list[tuple[int, Any]] = [] if name is None else [(1, tables["a"][name])]
        if isinstance(value, list):
            own += [(12, annotation(None, each)) for each in value]
        else:
            own.append((4 if isinstance(value, int) else 6, value))
        return message(*own)

    packets = [
        message((60, message((1, 9), (3, message((1, 42), (2, "secret --token"), (6, "python")))))),
        message((60, message((1, HOST), (5, 9), (4, message((1, 42), (2, 43), (5, "main")))))),
        message((60, message((1, STREAM), (2, "stream 7"), (5, 9)))),
    ]
    words = [(field, message((1, iid), (2, word))) for field, table in ((1, "c"), (2, "n"), (3, "a"))
             for word, iid in tables[table].items()]  # fmt: skip
    packets.append(message((10, 5), (12, message(*words)), (13, 1)))
    for track, starts, number in in_torchs_order():
        _, category, name, begin, lasts, arguments = SLICES[number]
        event: list[tuple[int, Any]] = [(9, 1 if starts else 2), (11, track)]
        if starts:
            event += [(3, tables["c"][category]), (10, tables["n"][name])]
            event += [(4, annotation(key, value)) for key, value in arguments.items()]
        time = START + begin + (0 if starts else lasts)
        packets.append(message((8, time), (10, 5), (11, message(*event))))
    return message(*((1, packet) for packet in packets))


def of_name(trace: TraceColumns, name: str) -> dict[str, int]:
    (row,) = np.flatnonzero(trace.name == trace.names.index(name))
    columns = ("start_ns", "duration_ns", "process", "thread", "device", "stream", "correlation", "external_id")
    return {column: int(getattr(trace, column)[row]) for column in (*columns, "sequence", "shapes", "collective")}


def test_slices_are_events_whatever_the_order_of_packets(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(by_hand()), "t.pftrace")
    assert reader_of(path) is READER
    trace = read(path, LIMITS)

    assert len(trace) == len(SLICES)
    for _, category, name, begin, lasts, _ in SLICES:
        rows = np.flatnonzero(trace.name == trace.names.index(name))
        assert (START + begin, lasts) in zip(
            trace.start_ns[rows].tolist(), trace.duration_ns[rows].tolist(), strict=True
        )
        assert {trace.categories[code] for code in trace.category[rows]} == {category}
    host = {"process": 42, "thread": 43, "device": -1, "stream": -1}
    assert of_name(trace, "aten::mm").items() >= {**host, "external_id": 3, "shapes": 0, "sequence": -1}.items()
    assert of_name(trace, "aten::add").items() >= {**host, "external_id": 4, "shapes": -1, "sequence": 12}.items()
    on_gpu = {"process": 42, "device": 0, "stream": 7, "external_id": -1}
    assert of_name(trace, "gemm").items() >= {**on_gpu, "correlation": 77}.items()
    assert of_name(trace, "add").items() >= {**on_gpu, "correlation": 78}.items()
    assert (trace.shape_texts, trace.collective_names) == (["[[8, 16], [16, 4]]"], ["allreduce"])
    assert trace.group_names == ["0 [0, 1]"]
    assert trace.caveats == []
    assert "secret" not in repr(trace)


def test_perfettos_own_decoder_reads_the_same_in_what_is_written_by_hand() -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    process, host, stream, words, *events = pb.Trace.FromString(by_hand()).packet

    def value(annotation: Any) -> Any:
        of_list = [value(each) for each in annotation.array_values]
        return of_list or annotation.string_value or annotation.int_value

    def known(entries: Any) -> dict[int, str]:
        return {entry.iid: entry.name for entry in entries}

    assert (process.track_descriptor.uuid, process.track_descriptor.process.pid) == (9, 42)
    assert process.track_descriptor.process.process_name == "python"
    thread = host.track_descriptor.thread
    assert (host.track_descriptor.parent_uuid, thread.pid, thread.tid, thread.thread_name) == (9, 42, 43, "main")
    assert (stream.track_descriptor.parent_uuid, stream.track_descriptor.name) == (9, "stream 7")
    data = words.interned_data
    categories, names, keys = map(known, (data.event_categories, data.event_names, data.debug_annotation_names))
    for packet, (track, starts, number) in zip(events, in_torchs_order(), strict=True):
        event, (_, category, name, begin, lasts, arguments) = packet.track_event, SLICES[number]
        assert (event.type, event.track_uuid) == (1 if starts else 2, track)
        assert packet.timestamp == START + begin + (0 if starts else lasts)
        if starts:
            assert ([categories[iid] for iid in event.category_iids], names[event.name_iid]) == ([category], name)
            assert {keys[one.name_iid]: value(one) for one in event.debug_annotations} == arguments


def test_a_profile_of_it_is_like_one_of_kineto(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, by_hand()))

    assert profile.steps["step"].tolist() == [4]
    assert profile.kernels["total_ms"].to_dict() == {"gemm": 0.003, "add": 0.001, "ncclAllReduce": 0.0}
    by_op = profile.kernel_ops.dropna(subset="op").set_index("op")["total_ms"]
    assert by_op.to_dict() == {"aten::mm": 0.003, "aten::add": 0.001}
    assert profile.gpu_time["kernel_ms"].tolist() == [0.004]


def packet(time: int, kind: int, *more: tuple[int, Any]) -> tuple[int, bytes]:
    return (1, message((8, time), (11, message((9, kind), *more))))


def test_slices_without_an_end_or_a_start_are_reported(tmp_path: Path) -> None:
    data = message(
        packet(5, 2), packet(10, 1, (23, "open")), packet(20, 1, (23, "whole")), packet(30, 2), packet(40, 3, (23, "i"))
    )
    trace = read(written(tmp_path, data), LIMITS)

    assert of_name(trace, "whole").items() >= {"start_ns": 20, "duration_ns": 10}.items()
    assert of_name(trace, "open")["duration_ns"] == 0
    assert trace.caveats == [
        "Slices without an end (treated as taking no time): 1.",
        "Ends of slices without a start (left out): 1.",
        "Instants and counters (not shown): 1.",
    ]


def test_the_first_category_and_the_first_of_several_values_count(tmp_path: Path) -> None:
    def argument(name: str, value: int | str) -> tuple[int, bytes]:
        return (4, message((10, name), (4 if isinstance(value, int) else 6, value)))

    arguments = [
        *(argument("stream", 7), argument("stream", 8), argument("External id", 3), argument("external id", 4)),
        *(argument("Input Dims", ""), argument("Input Dims", "[1]"), argument("Input Dims", "[2]")),
    ]
    words = message((12, message((1, message((1, 1), (2, "kernel"))), (1, message((1, 2), (2, "cpu_op"))))))
    data = message(
        (1, words),
        packet(10, 1, (3, 9), (3, 1), (3, 2), (23, "a"), *arguments),
        packet(20, 2),
        packet(30, 1, (22, "gpu_memcpy"), (22, "cpu_op"), (23, "b")),
        packet(40, 2),
    )
    trace = read(written(tmp_path, data), LIMITS)

    assert [trace.categories[code] for code in trace.category] == ["kernel", "gpu_memcpy"]
    assert of_name(trace, "a").items() >= {"stream": 7, "external_id": 3}.items()
    assert trace.shape_texts == ["[1]"]


def shapes(*fields: tuple[int, Any]) -> tuple[int, bytes]:
    return (4, message((10, "Input Dims"), *fields))


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ([(2, 0)], "False"),
        ([(2, 1)], "True"),
        ([(3, 2**64 - 1)], "18446744073709551615"),
        ([(7, 5)], "5"),
        ([(4, -5)], "-5"),
        ([(5, 0.25)], "0.25"),
        ([(6, "a")], "a"),
        ([(9, "b")], "b"),
        ([(17, 1)], "interned"),
        ([(11, b"")], None),
        ([(6, "a"), (11, b"x"), (99, 3)], "a"),
        ([(12, message((4, 2))), (12, message((12, message((4, 3))), (12, message((5, 0.5)))))], "[2, [3, 0.5]]"),
        ([(12, message((6, "x" * MOST_TEXT))), (12, message((4, 12)))], f"[{'x' * (MOST_TEXT - 2)}…"),
    ],
)
def test_an_argument_has_a_value_of_any_kind(tmp_path: Path, fields: list[tuple[int, Any]], value: str | None) -> None:
    words = message((12, message((29, message((1, 1), (2, "interned"))))))
    trace = read(written(tmp_path, message((1, words), packet(10, 1, (23, "a"), shapes(*fields)))), LIMITS)

    assert trace.shape_texts == ([] if value is None else [value])


@pytest.mark.parametrize(
    ("kind", "given", "stream"),
    [
        *((4, 7, 7), (4, 0, 0), (4, -5, -5), (2, 1, 1), (6, "7", -1)),
        *((3, 2**32 - 1, -1), (3, 2**63 - 1, 2**63 - 1), (3, 2**63, -1)),
    ],
)
def test_numbers_are_columns_and_an_unsigned_minus_one_and_texts_are_none(
    tmp_path: Path, kind: int, given: int | str, stream: int
) -> None:
    arguments = [(4, message((10, "stream"), (kind, given))), (4, message((10, "other"), (4, 3)))]
    trace = read(written(tmp_path, message(packet(10, 1, (23, "a"), *arguments))), LIMITS)

    assert of_name(trace, "a").items() >= {"stream": stream, "device": -1}.items()


def test_a_sequence_has_a_track_and_a_clock_for_all_its_slices(tmp_path: Path) -> None:
    def of_sequence(number: int, *fields: tuple[int, Any]) -> tuple[int, bytes]:
        return (1, message((10, number), *fields))

    thread = (4, message((1, 42), (2, 43), (5, "main")))
    tracks = [(1, message((60, message((1, uuid), thread)))) for uuid in (5, 6)]
    defaults = of_sequence(1, (59, message((11, message((11, 5))))))
    slices = [
        of_sequence(1, (8, time), (11, message((9, kind), *more)))
        for time, kind, more in ((1, 1, [(23, "default")]), (2, 1, [(23, "own"), (11, 6)]), (3, 2, []))
    ]
    data = message(*tracks, defaults, *slices, of_sequence(2, (8, 1), (11, message((9, 1), (23, "other")))))
    trace = read(written(tmp_path, data), LIMITS)

    assert of_name(trace, "default").items() >= {"duration_ns": 2, "process": 42, "thread": 43}.items()
    assert of_name(trace, "own").items() >= {"duration_ns": 0, "process": 42, "thread": 43}.items()
    assert of_name(trace, "other").items() >= {"duration_ns": 0, "process": -1}.items()
    for clock, own, refused in ((63, 0, False), (64, 0, True), (64, 63, False), (63, 64, True)):
        event = of_sequence(1, (8, 1), (11, message((9, 1))), *([(58, own)] if own else []))
        path = written(tmp_path, message(of_sequence(1, (59, message((58, clock)))), event))
        if refused:
            with pytest.raises(TraceError, match="incremental timestamps"):
                read(path, LIMITS)
        else:
            assert len(read(path, LIMITS)) == 1


@pytest.mark.parametrize(
    ("begins", "ends", "paired", "alone"),
    [
        ([], [], [], 0),
        ([], [5], [], 1),
        ([5], [4], [(5, None)], 1),
        ([5], [5], [(5, 5)], 0),
        ([5], [6, 6], [(5, 6)], 1),
        ([1, 2], [3, 4], [(2, 3), (1, 4)], 0),
        ([1, 3], [3, 4], [(1, 3), (3, 4)], 0),
        ([3, 1, 2], [4], [(3, 4), (1, None), (2, None)], 0),
        ([1, 9], [3], [(1, 3), (9, None)], 0),
    ],
)
def test_an_end_belongs_to_the_last_open_slice(
    begins: list[int], ends: list[int], paired: list[tuple[int, int | None]], alone: int
) -> None:
    found, unpaired = _pairs([_Slice(time, "", "", {}) for time in begins], ends)

    assert [(begin.time, end) for begin, end in found] == paired
    assert unpaired == alone


@pytest.mark.parametrize(
    ("words", "own", "name"),
    [
        ([], "", ""),
        ([], "own", "own"),
        ([(2, "x")], "own", "own"),
        ([(13, "z"), (10, "y"), (2, "x")], "", "x"),
        ([(13, "z"), (10, "y")], "", "y"),
        ([(13, "z")], "", "z"),
    ],
)
def test_a_process_and_a_thread_have_their_own_name_or_that_of_their_track(
    tmp_path: Path, words: list[tuple[int, str]], own: str, name: str
) -> None:
    process = message((1, 7), *([(6, own)] if own else []))
    thread = message((1, 8), (2, 9), *([(5, own)] if own else []))
    tracks = [
        (1, message((60, message((1, uuid), part, *words)))) for uuid, part in ((5, (3, process)), (6, (4, thread)))
    ]
    trace = read(written(tmp_path, message(*tracks, packet(10, 1, (23, "a")))), LIMITS)

    assert (trace.process_names, trace.thread_names) == ({7: name}, {(8, 9): name})


def test_strings_are_forgotten_when_the_sequence_says_so(tmp_path: Path) -> None:
    def names(word: str, cleared: int) -> tuple[int, bytes]:
        return (1, message((10, 1), (12, message((2, message((1, 1), (2, word))))), (13, cleared)))

    def begin(time: int, sequence: int) -> tuple[int, bytes]:
        return (1, message((8, time), (10, sequence), (11, message((9, 1), (10, 1)))))

    forgets = (1, message((10, 1), (13, 1)))
    data = message(
        *(names("one", 1), begin(1, 1), begin(2, 2), names("two", 1), begin(3, 1), forgets, begin(4, 1)),
    )
    trace = read(written(tmp_path, data), LIMITS)
    assert [trace.names[code] for code in trace.name] == ["one", "(no name)", "two", "(no name)"]


def test_damaged_and_hostile_files_are_one_error(tmp_path: Path) -> None:
    deep = message((4, 1))
    for _ in range(300):
        deep = message((12, deep))
    deep += message((10, "Input Dims"))
    cases = {
        "cut off": by_hand()[:-3],
        "compressed": message((1, message((50, b"x")))),
        "uses incremental timestamps": message((1, message((8, 1), (58, 64), (11, message((9, 1)))))),
        "nested more than 200 levels deep": message(packet(1, 1, (4, deep))),
        "out of range": message(packet(2**63 - 1, 1, (23, "x"))),
    }
    for said, data in cases.items():
        with pytest.raises(TraceError, match=said):
            read(written(tmp_path, data), LIMITS)


def test_other_files_are_not_taken_for_one(tmp_path: Path) -> None:
    for other in (b"", b"\n", b"\n\nhello there", b"\n{}", b"\n\n\n\n\n", message((1, b"")), b"\n" + varint(2**40)):
        assert reader_of(written(tmp_path, other)) is not READER
    damaged = message((1, message((8, 5)) + b"\x07")) + bytes(2**16)
    assert reader_of(written(tmp_path, damaged)) is not READER


def test_a_file_cut_off_in_its_first_packet_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, message((1, message((8, 5), (11, message((23, "x" * 300))))))[:99])
    assert reader_of(path) is READER
    with pytest.raises(TraceError, match="cut off"):
        perfnb.load(path)
