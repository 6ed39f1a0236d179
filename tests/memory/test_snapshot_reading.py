"""Snapshots of the CUDA allocator become columns; what is no snapshot, or pretends to be one, gives one error."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.memory.snapshot import reading
from perfnb.memory.snapshot.reading import decode, looks_like_snapshot, read
from tests.memory import snapshots
from tests.memory.snapshots import MIB, block, dumped, entry, frame, segment, snapshot

FOLDER = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
PUBLIC = FOLDER / "memory_snapshot" / "forward.pickle"
ADDRESS = 0x7F0000000000


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_becomes_columns(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(dumped(snapshots.small(), protocol))

    columns = read(path)

    assert columns.segments["size"].tolist() == [4 * MIB]
    assert columns.segments["pool"].tolist() == ["0, 0"]
    assert columns.segments["expandable"].tolist() == [False]
    assert columns.blocks["size"].tolist() == [MIB, 3 * MIB]
    assert columns.blocks["requested"].tolist() == [MIB - 100, 0]
    assert columns.blocks["address"].tolist() == [ADDRESS, ADDRESS + MIB]
    assert columns.blocks["state"].tolist() == ["active_allocated", "inactive"]
    assert columns.events["action"].tolist() == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "alloc", "free_requested", "free_completed",
    ]  # fmt: skip
    assert (columns.events["time_us"] - snapshots.BASE_US).tolist() == [0, 10, 20, 20, 30, 50, 55]
    assert columns.settings == {"expandable_segments": False, "max_split_size": -1, "roundup": {"1": 0}}


def test_a_stack_gives_the_users_line_and_the_operator_outermost_below_python() -> None:
    columns = decode(dumped(snapshots.small()))

    number = columns.blocks["stack"][0]
    assert columns.made_at[number] == "/code/my/train.py:42 forward"
    assert columns.ops[number] == "aten::add"
    assert (columns.events["stack"] == number).all()


@pytest.mark.parametrize(
    ("frames", "op", "made_at"),
    [
        ([], None, None),
        ([frame("??", 0, "at::_ops::mm::call(at::Tensor)")], "aten::mm", None),
        (
            [frame("/x/site-packages/torch/optim/adam.py", 7, "step")],
            None,
            "/x/site-packages/torch/optim/adam.py:7 step",
        ),
        ([frame("<stdin>", 3, "f")], None, "<stdin>:3 f"),
        ([frame("C:\\code\\a.py", 3, "f")], None, "C:\\code\\a.py:3 f"),
        ([frame("/code/my/a\udcff.py", 3, "f")], None, "/code/my/a\\udcff.py:3 f"),
        ([None, 3, "text", {}, frame("a.py", -1, "f")], None, "a.py f"),  # type: ignore[list-item]
        ([frame("a.py", 0, "f")], None, "a.py:0 f"),
        ([frame("a.py", 2**31 - 1, "f")], None, "a.py:2147483647 f"),
        ([frame("a.py", 2**31, "f")], None, "a.py f"),
        ([frame("a.py", True, "f")], None, "a.py f"),
        (
            [frame("??", 0, "at::_ops::mm::call"), frame("/x/lib/python3/ast.py", 5, "g"), frame("a.py", 7, "f")],
            "aten::mm",
            "a.py:7 f",
        ),
        (
            [frame("/torch/nn/a.py", 5, "g"), frame("??", 0, "at::_ops::mm::call"), frame("/torch/nn/b.py", 7, "f")],
            None,
            "/torch/nn/a.py:5 g",
        ),
        ([{"name": 3, "filename": [], "line": {}}], None, None),
    ],
)
def test_strange_stacks(frames: list, op: str | None, made_at: str | None) -> None:
    found = reading.Stacks()

    assert found.number(frames) == 0
    assert (found.ops, found.made_at) == ([op], [made_at])


def test_of_a_long_text_160_characters_are_kept() -> None:
    found = reading.Stacks()
    found.number([frame("/" + "x" * 10**6 + ".py", 1, "y" * 10**6)])

    assert found.made_at == ["x" * 157 + ".py:1 " + "y" * 160]


def test_settings_are_texts_numbers_and_dicts_of_these() -> None:
    kept = {"on": True, "share": 0.5, "least": -(2**63), "most": 2**63 - 1, "text": "y" * 160, "few": {"1": 0}}
    others = {"low": -(2**63) - 1, "high": 2**63, "list": [1], "deep": {"a": {"b": 1}}}
    settings = kept | others | {"text": "y" * 161, "few": {"1": 0, "2": {}}}

    columns = decode(dumped(snapshot([], allocator_settings=settings)))

    assert columns.settings == kept | {"few": {"1": 0, "2": None}} | dict.fromkeys(others) | {"deep": {"a": None}}
    many = snapshot([], allocator_settings={str(number): number for number in range(101)})
    assert list(decode(dumped(many)).settings.values()) == list(range(100))
    assert decode(dumped(snapshot([], allocator_settings=[3]))).settings == {}


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_collected_while_a_snapshot_is_decoded(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(reading.plain_pickle, "decode", lambda *_: seen.append(gc.isenabled()) or {"segments": []})
    try:
        (gc.enable if collects else gc.disable)()
        decode(b"")
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


def test_a_list_of_segments_is_a_snapshot_too() -> None:
    columns = decode(dumped(snapshots.small()["segments"]))

    assert len(columns.segments) == 1
    assert len(columns.events) == 0


@pytest.mark.parametrize(
    ("given", "pool"),
    [
        ((0, 7), "0, 7"),
        ([1, 2], "1, 2"),
        ((0, 2**64 - 1), f"0, {2**64 - 1}"),
        ((0, 2**64), None),  # more than the 64 bits of a number of a pool
        ((-(2**64), 0), None),
        ((1,), None),
        ((1, 2, 3), None),
        ((1, "2"), None),
        ((1, True), None),
        ("12", None),
        (None, None),
    ],
)
def test_a_pool_has_two_numbers(given: Any, pool: str | None) -> None:
    columns = decode(dumped(snapshot([segment(ADDRESS, []) | {"segment_pool_id": given}])))

    assert columns.segments["pool"].astype(object).where(columns.segments["pool"].notna(), None).tolist() == [pool]


def without(name: str, row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def test_the_forms_of_old_torch_versions_are_refused() -> None:
    """Version 2.0 had no times, and blocks without addresses."""
    old_block = snapshot([segment(ADDRESS, [without("address", block(ADDRESS, 512))])])
    old_entry = snapshot([], [without("time_us", entry("alloc", ADDRESS, 512, 0))])

    for data, why in ((old_block, "a block has no address"), (old_entry, "an entry of device_traces has no time_us")):
        with pytest.raises(TraceError, match=f"{why}. Dump it again with .* in torch 2.2 or later"):
            decode(dumped(data))


def test_an_error_for_want_of_memory_has_no_address() -> None:
    columns = decode(dumped(snapshot([], [without("addr", entry("oom", 0, 512, 0))])))

    assert columns.events[["address", "size"]].to_numpy().tolist() == [[0, 512]]


def test_addresses_above_int64_are_kept() -> None:
    high = 0xFF00_FFFF_0000_0000
    columns = decode(dumped(snapshot([segment(high, [block(high, 512)])])))

    assert columns.segments["address"].tolist() == columns.blocks["address"].tolist() == [high]


def test_a_device_may_have_no_history() -> None:
    columns = decode(dumped(snapshot([], [], None, [entry("alloc", ADDRESS, 512, 0)])))  # type: ignore[arg-type]

    assert columns.events["device"].tolist() == [2]


def changed(*path: Any, to: Any) -> Any:
    data = snapshots.small()
    place: Any = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "no segments"),
        ("text", "no segments"),
        (changed("segments", to="text"), "segments is a str, not a list"),
        (changed("segments", to=[1]), "segments contains something other than dicts"),
        (changed("segments", 0, "blocks", to={}), "blocks is a dict"),
        (changed("segments", 0, "blocks", 0, "size", to="1"), "size of a block is not a whole number"),
        (changed("segments", 0, "blocks", 0, "size", to=True), "size of a block is not a whole number"),
        (changed("segments", 0, "blocks", 0, "size", to=1.0), "size of a block is not a whole number"),
        (changed("segments", 0, "blocks", 0, "size", to=None), "a block has no size"),
        (changed("segments", 0, "blocks", 0, "state", to=None), "a block has no state"),
        (changed("segments", 0, "blocks", 0, "state", to=[]), "is not text"),
        (changed("segments", 0, "blocks", 0, "frames", to=3), "frames is a int"),
        (changed("device_traces", 0, to={}), "device_traces is a dict"),
        (changed("device_traces", 0, 0, "action", to=None), "has no action"),
    ],
)
def test_a_file_that_is_not_a_snapshot_gives_one_sentence(data: Any, why: str) -> None:
    with pytest.raises(TraceError) as error:
        decode(dumped(data), "b.pickle")

    text = str(error.value)
    assert text.startswith("b.pickle is not a CUDA memory snapshot that perfnb can read: ")
    assert why in text
    assert text.endswith(". Dump it again with torch.cuda.memory._dump_snapshot in torch 2.2 or later.")
    assert "\n" not in text


SEGMENT, BLOCK, ENTRY = ("segments", 0), ("segments", 0, "blocks", 0), ("device_traces", 0, 0)


@pytest.mark.parametrize(
    ("path", "least", "most"),
    [
        *[((*SEGMENT, "total_size"), 0, 2**43), ((*SEGMENT, "address"), 0, 2**64 - 1)],
        *[((*SEGMENT, "stream"), -(2**63) + 1, 2**63 - 1), ((*BLOCK, "requested_size"), 0, 2**43)],
        *[((*BLOCK, "address"), 0, 2**64 - 1), ((*BLOCK, "size"), 0, 2**43), ((*ENTRY, "addr"), 0, 2**64 - 1)],
        *[((*ENTRY, "stream"), -(2**63) + 1, 2**63 - 1), ((*ENTRY, "time_us"), 0, 2**53)],
    ],
)
def test_numbers_have_the_range_with_which_perfnb_can_compute(path: tuple[Any, ...], least: int, most: int) -> None:
    for value in (least, most):
        decode(dumped(changed(*path, to=value)))
    for value in (least - 1, most + 1):
        with pytest.raises(TraceError, match=f"{path[-1]} of .* is out of range"):
            decode(dumped(changed(*path, to=value)))


def test_a_file_has_at_most_one_row_in_twelve_bytes() -> None:
    shared = {**segment(ADDRESS, []), "blocks": None}
    for count, size in ((10, 120), (10, 131), (11, 132)):
        assert len(reading.SnapshotReader("it", size).columns([shared] * count).segments) == count
    with pytest.raises(TraceError, match="segments repeats the same few rows endlessly"):
        reading.SnapshotReader("it", 131).columns([shared] * 11)


def test_rows_that_are_shared_endlessly_are_refused() -> None:
    """A few thousand bytes that stand for a hundred million blocks."""
    blocks = [block(ADDRESS, 512)] * 10_000
    segments = [dict(segment(ADDRESS, []), blocks=blocks) for _ in range(10_000)]

    with pytest.raises(TraceError, match="blocks repeats the same few rows endlessly"):
        decode(dumped(snapshot(segments)))


def test_a_stack_that_is_shared_is_walked_once() -> None:
    class Counted(list):  # type: ignore[type-arg]
        walks = 0

        def __iter__(self) -> Any:
            Counted.walks += 1
            return super().__iter__()

    frames = Counted([{}] * 1000)
    found = reading.Stacks()
    for _ in range(50):
        found.number(frames)
    assert Counted.walks <= 2


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
ANYTHING = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner), max_leaves=5
)
ODD = VALUES | ANYTHING


@pytest.mark.slow
@settings(max_examples=60)
@given(
    places=st.lists(
        st.tuples(st.sampled_from(["whole", "segment", "block", "entry", "frame"]), st.integers(0, 20), ODD)
    ),
    protocol=st.sampled_from([2, 4]),
)
def test_any_value_at_any_place_is_read_or_gives_one_error(places: list, protocol: int) -> None:
    data = snapshots.small()
    parts = {
        "whole": data,
        "segment": data["segments"][0],
        "block": data["segments"][0]["blocks"][0],
        "entry": data["device_traces"][0][1],
        "frame": dict(snapshots.STACK[5]),
    }
    parts["block"]["frames"] = [parts["frame"]]
    for where, number, value in places:
        part = parts[where]
        part[list(part)[number % len(part)]] = value
    try:
        columns = decode(dumped(data, protocol))
    except TraceError:
        return
    assert columns.blocks["size"].dtype == np.int64
    assert columns.blocks["segment"].isin(columns.segments.index).all()


def test_files_that_are_none_give_one_error(tmp_path: Path) -> None:
    large = tmp_path / "large.pickle"
    large.write_bytes(dumped(snapshots.small()))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (pipe, "it is a pipe or a device")):
        with pytest.raises(TraceError, match=why):
            read(path)
    size = large.stat().st_size
    assert len(read(large, max_bytes=size).segments) == 1
    for most in (size - 1, 100):
        with pytest.raises(TraceError, match=r"its size is .*, and perfnb reads at most .* Record"):
            read(large, max_bytes=most)
    large.write_bytes(large.read_bytes()[:-10])
    with pytest.raises(TraceError, match=r"large\.pickle was not read: it is truncated"):
        read(large)


def test_an_enormous_file_is_refused_by_its_size_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "enormous.pickle"
    with path.open("wb") as file:
        file.write(b"\x80\x04")
        file.truncate(1 << 40)  # a hole that takes no room on disk

    with pytest.raises(TraceError, match=r"perfnb reads at most 1\.00 GiB"):
        read(path)


def test_what_looks_like_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for protocol in range(6):
        path.write_bytes(pickle.dumps({"segments": []}, protocol=protocol))
        assert looks_like_snapshot(path) == (protocol >= 2)
    for other in (b"", b"\x80", b'{"traceEvents": []}', b"\x1f\x8b\x08", b"\x80\x09"):
        path.write_bytes(other)
        assert not looks_like_snapshot(path)
    assert not looks_like_snapshot(tmp_path)
    assert not looks_like_snapshot(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    assert not looks_like_snapshot(tmp_path / "pipe")
