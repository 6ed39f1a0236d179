"""A snapshot of the CUDA allocator as a user meets it: loaded, shown, and safe to show."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from perfnb.errors import TraceError
from perfnb.memory.snapshot.snapshot import LOADABLE, MemorySnapshot, load_snapshot
from tests.memory import snapshots
from tests.memory.snapshots import dumped, snapshot

FOLDER = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
PUBLIC = FOLDER / "memory_snapshot" / "forward.pickle"


def loaded(tmp_path: Path, data: object, name: str = "step.pickle") -> MemorySnapshot:
    path = tmp_path / name
    path.write_bytes(dumped(data))
    assert LOADABLE.recognise(path)
    return load_snapshot(path)


def test_its_repr_is_one_line_with_figures(tmp_path: Path) -> None:
    assert repr(loaded(tmp_path, snapshots.two_devices())) == (
        "<perfnb.MemorySnapshot: 'step.pickle': 8.00 MiB active of 13.0 MiB reserved, 2 segments, 3 blocks>"
    )


def test_its_tables_belong_to_the_caller(tmp_path: Path) -> None:
    shot = loaded(tmp_path, snapshots.small())
    for name in ("allocations", "memory", "segments", "fragmentation"):
        table = getattr(shot, name)
        first = table.columns[0]
        del table[first]
        assert first in getattr(shot, name)
    shot.meta["settings"].clear()
    assert shot.meta["settings"]["expandable_segments"] is False
    assert shot.meta["base_ns"] == snapshots.BASE_US * 1000
    assert shot.meta["events"] == 7


def test_without_history_it_still_shows_itself(tmp_path: Path) -> None:
    for data in (snapshots.small()["segments"], snapshot([])):
        shot = loaded(tmp_path, data)
        assert "no history" in str(shot)
        assert shot.meta["base_ns"] is None
        assert set(shot._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_strangers_pickle_runs_nothing(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [Runs()]}))

    with pytest.raises(TraceError, match=r"a\.pickle was not read: .* Nothing in the file was run"):
        load_snapshot(path)

    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not PUBLIC.is_file(), reason=f"no public memory snapshot at {PUBLIC}; set PERFNB_TRACES")
def test_a_public_snapshot_adds_up() -> None:
    shot = load_snapshot(PUBLIC)

    row = shot.fragmentation.loc["cuda:0"]
    assert (row["segments"], row["blocks"]) == (1722, 4158)
    assert row["active_bytes"] / 1e6 == pytest.approx(44_607.6, abs=0.05)
    assert row["reserved_bytes"] / 1e6 == pytest.approx(47_234, abs=0.5)
    assert row["fragmentation"] == pytest.approx(1 - 44_607_570_432 / 47_234_154_496)
    allocations, memory = shot.allocations, shot.memory
    alive = allocations["state"] == "active_allocated"
    assert allocations.loc[alive, "bytes"].sum() == row["allocated_bytes"] == memory["total"].iloc[-1]
    # Of 4,138 allocations in its history 1,734 were never freed, and 1 that was freed is older than the history.
    assert (alive & allocations["start_ns"].notna()).sum() == 1734
    assert allocations["start_ns"].notna().sum() == 4138
    assert memory["total"].max() <= memory["reserved"].max()
    assert shot.meta["notes"]
    assert shot._document().verdict.sentence.startswith("41.5 GiB of 44.0 GiB reserved are in use")
