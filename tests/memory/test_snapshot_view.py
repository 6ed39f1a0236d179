"""What a snapshot shows: the verdict, who holds the memory, its history by origin, and the map of segments."""

from __future__ import annotations

from typing import Any

import pytest

from perfnb.draw.document import Bars, Choice, Document, Series, Table
from perfnb.memory.snapshot.reading import SnapshotColumns, decode
from perfnb.memory.snapshot.snapshot import MemorySnapshot
from perfnb.memory.snapshot.tables import OriginHistory, history_by_origin, largest_segments, lifetimes
from tests.memory import snapshots
from tests.memory.snapshots import MIB, STACK, block, dumped, entry, frame, segment, snapshot

ADDRESS = 0x7F0000000000
LINE = "/code/my/train.py:42 forward (aten::add)"


def columns(data: Any) -> SnapshotColumns:
    return decode(dumped(data))


def history(data: SnapshotColumns, device: int = 0, most: int = 6) -> OriginHistory:
    return history_by_origin(data, lifetimes(data)[0], device, most, 100)


def document(data: Any) -> Document:
    return MemorySnapshot(columns(data))._document()


def from_line(line: int) -> list[dict[str, Any]]:
    return [frame("/code/a.py", line, "f")]


def test_the_history_adds_up_by_origin() -> None:
    found = history(columns(snapshots.small()))

    assert found.times_ms.tolist() == [0.0, 0.01, 0.02, 0.03, 0.05]
    assert found.origins == ["(not recorded)", LINE]
    assert found.alive.tolist() == [[MIB, MIB, 0, 0, 0], [0, MIB, MIB, 1.5 * MIB, MIB], [0] * 5]


def test_the_largest_origins_at_the_peak_are_separate_and_the_others_added_up() -> None:
    sizes = [3 * MIB, 1 * MIB, 2 * MIB]
    trace = [
        *(entry("alloc", ADDRESS + 8 * MIB * place, size, place, from_line(place)) for place, size in enumerate(sizes)),
        *(entry("free_requested", ADDRESS + 8 * MIB * place, size, 10, []) for place, size in enumerate(sizes)),
        entry("alloc", ADDRESS, 5 * MIB, 20, from_line(9)),  # after the peak
    ]
    found = history(columns(snapshot([segment(ADDRESS, [])], trace)), most=2)

    assert found.origins == ["/code/a.py:0 f", "/code/a.py:2 f"]
    assert found.alive[:, -1].tolist() == [0, 0, 5 * MIB]
    assert found.alive.max(axis=1).tolist() == [3 * MIB, 2 * MIB, 5 * MIB]


def test_a_device_has_its_own_history() -> None:
    traces = [[entry("alloc", ADDRESS, MIB, 0)], [entry("alloc", ADDRESS, 2 * MIB, 5)]]
    data = columns(snapshot([segment(ADDRESS, []), segment(ADDRESS, [], 1)], *traces))

    assert history(data, 1).alive[0].tolist() == [2 * MIB]
    assert history(data, 1).times_ms.tolist() == [0.005]


def test_segments_list_their_blocks_in_the_order_of_addresses() -> None:
    small = segment(ADDRESS, [block(ADDRESS, 512)])
    far = ADDRESS + 64 * MIB
    blocks = [block(far + MIB, MIB, frames=STACK), block(far, MIB, "inactive"), block(far + 2 * MIB, MIB)]

    data = columns(snapshot([small, segment(far, blocks)]))

    found = list(largest_segments(data, lifetimes(data)[0], 0, 1))

    assert found == [(far, 3 * MIB, [(None, MIB), (LINE, MIB), ("(not recorded)", MIB)])]


def test_the_verdict_names_the_line_that_holds_most() -> None:
    shown = document(snapshots.two_devices())

    assert shown.verdict.state == "bad"
    assert shown.verdict.sentence == (
        "Out of memory once: 8.00 MiB of 13.0 MiB reserved are in use; the known line with the most memory is "
        "/code/my/train.py:42 forward: 3.00 MiB (38 %)"
    )
    choice, holders, devices = shown.sections
    assert isinstance(choice, Choice)
    assert list(choice.options) == ["cuda:0", "cuda:1"]
    assert isinstance(holders, Table)
    assert [(row[0], row[3]) for row in holders.rows] == [
        ("(not recorded)", 5 * MIB),
        ("/code/my/train.py:42 forward", 3 * MIB),
    ]
    assert isinstance(devices, Table)
    assert len(devices.rows) == 2


def test_the_map_is_to_scale() -> None:
    area, held = document(snapshots.small()).sections[:2]
    assert isinstance(area, Series)
    assert isinstance(held, Bars)

    assert held.bars[0].label == "0x7f0000000000 4.00 MiB"
    assert [(part.mark.word, part.value) for part in held.bars[0].parts] == [(LINE, MIB), ("free", 3 * MIB)]
    assert max(line.values[-1] for line in area.drawn) == MIB
    assert area.at[-1] == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "words"), [(24, ""), (25, ", the 24 largest of 25")])
def test_the_largest_segments_of_a_device_are_drawn(count: int, words: str) -> None:
    segments = [segment(ADDRESS + place * MIB, [block(ADDRESS + place * MIB, 512)]) for place in range(count)]

    drawn = document(snapshot(segments)).sections[1]

    assert isinstance(drawn, Bars)
    assert (drawn.title, len(drawn.bars)) == (f"Segments, with their blocks by origin{words}", 24)
