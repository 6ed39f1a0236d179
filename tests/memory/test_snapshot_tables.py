"""What the tables of a snapshot say, against snapshots whose truth is planted."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pytest

from perfnb.memory.snapshot.reading import SnapshotColumns, decode
from perfnb.memory.snapshot.snapshot import MemorySnapshot
from perfnb.memory.snapshot.tables import allocation_table, fragmentation_table, memory_table, segment_table
from tests.memory import snapshots
from tests.memory.snapshots import MIB, block, dumped, entry, segment, snapshot

ADDRESS = 0x7F0000000000


def columns(data: Any) -> SnapshotColumns:
    return decode(dumped(data))


def test_allocations_pair_their_begin_their_end_and_their_block() -> None:
    table = allocation_table(columns(snapshots.small())).sort_values("address", ignore_index=True)

    assert table["bytes"].tolist() == [MIB, MIB // 2, MIB]
    assert table["requested_bytes"].tolist() == [MIB - 100, MIB // 2, MIB]
    assert table["state"].tolist() == ["active_allocated", "freed", "freed"]
    assert table["start_ns"].tolist() == [10_000, 30_000, pd.NA]
    assert table["end_ns"].tolist() == [pd.NA, 50_000, 20_000]
    assert table["segment"].tolist() == [ADDRESS, pd.NA, pd.NA]
    assert table["made_at"].fillna("").tolist() == ["/code/my/train.py:42 forward"] * 2 + [""]
    assert table["op"].fillna("").tolist() == ["aten::add"] * 2 + [""]
    assert set(table["device"]) == {"cuda:0"}
    unknown = ["category", "layer", "phase", "direction", "name"]
    assert table[unknown].isna().all(axis=None)


def test_memory_over_time_ends_in_the_final_state() -> None:
    table = memory_table(columns(snapshots.small()))

    assert table["t_ms"].tolist() == [0.0, 0.01, 0.02, 0.03, 0.05]
    assert table["total"].tolist() == [MIB, 2 * MIB, MIB, MIB * 3 // 2, MIB]
    assert table["reserved"].tolist() == [4 * MIB] * 5
    assert table["parameters"].isna().all()
    assert segment_table(columns(snapshots.small()))["inactive_split_bytes"].tolist() == [3 * MIB]


def test_reserved_memory_follows_segments_and_mappings() -> None:
    trace = [
        entry("segment_alloc", ADDRESS, 2 * MIB, 0),
        entry("segment_map", ADDRESS * 2, MIB, 1),
        entry("segment_unmap", ADDRESS * 2, MIB, 2),
        entry("segment_free", ADDRESS + 8 * MIB, 6 * MIB, 3),
    ]
    table = memory_table(columns(snapshot([segment(ADDRESS, [block(ADDRESS, 2 * MIB)])], trace)))

    assert table["reserved"].tolist() == [8 * MIB, 9 * MIB, 8 * MIB, 2 * MIB]
    assert table["total"].tolist() == [2 * MIB] * 4


def test_devices_with_equal_addresses_are_distinguished() -> None:
    one, two = ([entry("alloc", ADDRESS, size, 0)] for size in (512, 1024))
    segments = [segment(ADDRESS, [block(ADDRESS, size)], device=i) for i, size in enumerate((512, 1024))]
    data = columns(snapshot(segments, one, two))

    table = allocation_table(data)
    assert dict(zip(table["device"], table["bytes"], strict=True)) == {"cuda:0": 512, "cuda:1": 1024}
    totals = memory_table(data).groupby("device", observed=True)["total"].last()
    assert totals.to_dict() == {"cuda:0": 512, "cuda:1": 1024}


def test_a_block_that_waits_to_be_free_is_active_and_its_allocation_has_ended() -> None:
    blocks = [block(ADDRESS, MIB, "active_awaiting_free"), block(ADDRESS + MIB, MIB)]
    trace = [entry("alloc", ADDRESS, MIB, 0), entry("free_requested", ADDRESS, MIB, 5)]
    data = columns(snapshot([segment(ADDRESS, blocks)], trace))

    table = allocation_table(data).set_index("address")
    assert table.loc[ADDRESS, "state"] == "active_awaiting_free"
    assert table.loc[ADDRESS, "end_ns"] == 5000
    row = fragmentation_table(data).loc["cuda:0"]
    assert (row["active_bytes"], row["allocated_bytes"]) == (2 * MIB, MIB)
    assert memory_table(data)["total"].tolist() == [2 * MIB, MIB]


def test_tables_agree_with_the_history_of_a_random_allocator() -> None:
    """An allocator is played; the tables from only its last 300 entries must agree with its history."""
    rng = random.Random(7)
    live: dict[int, tuple[int, int]] = {}  # address -> (size, begin)
    trace, totals, ended = [], [], []
    free = [ADDRESS + i * MIB for i in range(40)]
    for now in range(1000):
        if live and (not free or rng.random() < 0.5):
            address = rng.choice(list(live))
            size, begin = live.pop(address)
            free.append(address)
            trace.append(entry("free_requested", address, size, now))
            ended.append((begin, now, size))
        else:
            address = free.pop(rng.randrange(len(free)))
            live[address] = (rng.randrange(1, 2000) * 512, now)
            trace.append(entry("alloc", address, live[address][0], now))
        totals.append(sum(size for size, _ in live.values()))
    blocks = [block(address, size) for address, (size, _) in live.items()]
    seen = 700
    data = columns(snapshot([segment(ADDRESS, blocks)], trace[seen:]))

    assert memory_table(data)["total"].tolist() == totals[seen:]
    table = allocation_table(data)
    expected = sorted([(b if b >= seen else -1, e, s) for b, e, s in ended if e >= seen]
                      + [(b if b >= seen else -1, -1, s) for s, b in live.values()])  # fmt: skip
    times = [(table[name] // 1000 + seen).fillna(-1) for name in ("start_ns", "end_ns")]
    assert sorted(zip(*times, table["bytes"], strict=True)) == expected


def test_a_planted_checkerboard_gives_the_planted_fragmentation() -> None:
    """Every other block of 1 MiB is free, in eight segments of 20 MiB, and one segment is wholly free."""
    segments = []
    for i in range(8):
        base = ADDRESS + i * 64 * MIB
        states = ["active_allocated", "inactive"] * 10
        segments.append(segment(base, [block(base + j * MIB, MIB, state) for j, state in enumerate(states)]))
    base = ADDRESS + 8 * 64 * MIB
    segments.append(segment(base, [block(base, 20 * MIB, "inactive")]))
    data = columns(snapshot(segments, [entry("oom", 0, 50 * MIB, 1)]))

    row = fragmentation_table(data).loc["cuda:0"]
    assert row["reserved_bytes"] == 180 * MIB
    assert row["allocated_bytes"] == row["active_bytes"] == row["requested_bytes"] == 80 * MIB
    assert row["free_bytes"] == 100 * MIB
    assert row["fragmentation"] == pytest.approx(1 - 80 / 180)
    assert row["largest_free_bytes"] == 20 * MIB
    assert row["inactive_split_bytes"] == 80 * MIB
    assert (row["segments"], row["blocks"], row["ooms"]) == (9, 161, 1)
    table = segment_table(data)
    assert table["fragmentation"].tolist() == [0.5] * 8 + [1.0]
    assert table["largest_free_bytes"].tolist() == [MIB] * 8 + [20 * MIB]


def test_what_a_snapshot_without_history_cannot_tell_is_unknown() -> None:
    data = columns(snapshots.small()["segments"])

    memory = memory_table(data)
    assert memory["t_ms"].isna().tolist() == [True]
    assert memory["total"].tolist() == [MIB]
    assert allocation_table(data)[["start_ns", "end_ns"]].isna().all(axis=None)
    assert fragmentation_table(data)["ooms"].isna().all()
    assert MemorySnapshot(data).meta["notes"][0].startswith("The snapshot has no history")


def test_a_history_that_contradicts_the_final_state_is_reported_and_never_negative() -> None:
    """As where one pool's segments alone were dumped: more was allocated than there is."""
    data = columns(snapshot([], [entry("segment_alloc", ADDRESS, MIB, 0), entry("alloc", ADDRESS, MIB, 1)]))

    memory = memory_table(data)
    assert (memory["total"].isna() | (memory["total"] >= 0)).all()
    assert memory["reserved"].isna().tolist() == [False, False]
    gone = columns(snapshot([], [entry("free_requested", ADDRESS, MIB, 0), entry("alloc", ADDRESS, MIB, 1)]))
    assert memory_table(gone)["total"].isna().tolist() == [True, False]
    assert any("does not match" in note for note in MemorySnapshot(gone).meta["notes"])


def test_an_empty_snapshot_gives_empty_tables_of_the_same_columns() -> None:
    empty, full = columns(snapshot([])), columns(snapshots.small())

    for table in (allocation_table, memory_table, segment_table, fragmentation_table):
        assert len(table(empty)) == 0
        assert table(empty).dtypes.astype(str).to_dict() == table(full).dtypes.astype(str).to_dict()


def test_two_blocks_at_one_address_stay_two() -> None:
    blocks = [block(ADDRESS, 512), block(ADDRESS, 1024)]
    data = columns(snapshot([segment(ADDRESS, blocks)], [entry("alloc", ADDRESS, 512, 0)]))

    assert sorted(allocation_table(data)["bytes"]) == [512, 1024]


def test_a_block_that_lives_although_its_allocation_was_freed_is_another_one() -> None:
    trace = [entry("alloc", ADDRESS, 513, 0), entry("free_requested", ADDRESS, 513, 5)]
    table = allocation_table(columns(snapshot([segment(ADDRESS, [block(ADDRESS, 512)])], trace)))

    assert table["state"].tolist() == ["freed", "active_allocated"]
    assert table["bytes"].tolist() == [1024, 512]  # requests are rounded up to multiples of 512 bytes
    assert table["end_ns"].isna().tolist() == [False, True]
