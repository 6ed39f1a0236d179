"""Who makes the memory that stays, and the verdict: planted allocations, each kind distinguished from the others."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.blocks import Kind
from perfnb.memory.allocations import AFTER, BEFORE, Watched, allocations_by_step
from perfnb.memory.leaks import judge
from perfnb.memory.leaks.judge import (
    NO_LEAK,
    PROCESS_FLOOR_BYTES,
    leak_figures,
    left_by_every_step,
    levels_by_step,
    surviving,
)
from perfnb.stats.slope import Slope

MIB = 2**20
STEPS = 40
FLAT = [500 * MIB] * STEPS


def made(
    steps: object,
    size: object = MIB,
    lives: int | None = None,
    *,
    layer: str | None = "encoder.0",
    phase: str = "forward",
    op: str | None = "aten::add",
    device: str = "cpu",
) -> pd.DataFrame:
    """Return allocations made in `steps`, each freed `lives` steps later; alive at the end where that is ``None``."""
    step = pd.array(np.asarray(steps), dtype="Int64")
    freed = pd.array([pd.NA] * len(step), dtype="Int64") if lives is None else step + lives
    freed[np.asarray(freed.isna() | (freed >= STEPS))] = pd.NA
    return pd.DataFrame(
        {
            "bytes": np.broadcast_to(np.asarray(size, dtype=np.int64), len(step)),
            "device": device, "layer": layer, "phase": phase, "op": op,
            "made_in_step": step, "freed_in_step": freed,
        }
    ).astype({"layer": "str" if layer else object, "op": "str" if op else object})  # fmt: skip


def joined(*parts: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([part.astype({"layer": object, "op": object}) for part in parts], ignore_index=True)


EVERY = range(STEPS)
#: What an ordinary step does: temporaries, gradients replaced in the next step, optimizer state made once.
ORDINARY = joined(
    made(EVERY, 3 * MIB, lives=0),
    made(EVERY, 650_000, lives=1, phase="backward", op="aten::mm"),
    made(EVERY, 4, lives=1, layer=None, phase="loss", op="aten::mean"),
    made([0] * 8, 100_000, phase="optimizer", op="aten::zeros_like"),
    made([3], 5 * MIB, phase="other", op=None, layer=None),
)


def test_levels_are_what_is_alive_at_each_end() -> None:
    before = made([0], 100, lives=2).assign(made_in_step=pd.array([pd.NA], dtype="Int64"))
    frame = joined(made([0, 1], 10, lives=1), made([1], 5), made([2], 7, lives=0), before)
    assert levels_by_step(frame, 4).tolist() == [10, 15, -95, -95]


@pytest.mark.parametrize("lives", [0, 1, 2, 7])
def test_memory_that_is_replaced_does_not_survive(lives: int) -> None:
    assert len(surviving(made(EVERY, lives=lives), STEPS)) == 0


def test_survivors_are_of_three_steps_in_both_halves_before_the_last_fifth() -> None:
    for steps in (range(10), [0, 30], [16, 17, 31]):  # a cache that is filled early, two of one owner, one half
        assert len(surviving(made(steps), STEPS)) == 0
    assert surviving(made([15, 16, 31, 32, 39]), STEPS)["steps"].tolist() == [3]


def test_allocations_grow_if_larger_ones_replace_them_by_more_than_1_kib_in_all() -> None:
    sizes = np.array([MIB * (place + 1) for place in EVERY])
    pairs = made([*EVERY, *EVERY], [*sizes, *sizes], lives=1, op="pairs")
    slow = [made(EVERY, np.linspace(0, most, STEPS).astype(int), lives=1, op=f"{most}") for most in (1024, 1025)]
    waiting = made(EVERY, sizes, op="waiting").assign(freed_in_step=pd.array([STEPS] * STEPS, dtype="Int64"))

    found = surviving(joined(ORDINARY, made(EVERY, sizes, lives=1, op="single"), pairs, *slow, waiting), STEPS)

    columns = ["op", "bytes_per_step", "count_per_step", "steps", "kind"]
    assert found[columns].to_numpy().tolist() == [
        ["pairs", 2 * MIB, 2, STEPS, "growing"],
        ["single", MIB, 1, STEPS, "growing"],
        ["1025", pytest.approx(1025 / 39, rel=0.01), 1, STEPS, "growing"],
    ]


def test_a_leak_of_1_mib_per_step_is_reported_with_its_owner() -> None:
    leak = joined(made(EVERY, MIB - 4096), made([*EVERY, *EVERY], 2048, op="aten::cat", layer=None, phase="loss"))
    report = leak_figures(joined(ORDINARY, leak), [], steps=STEPS)
    assert (report.verdict, report.reason) == ("leak", "kept")
    assert report.allocator is not None
    assert report.allocator.bytes_per_step == pytest.approx(MIB, rel=0.02)
    assert report.survivors["bytes_per_step"].sum() == pytest.approx(report.allocator.bytes_per_step, rel=0.02)
    first, second = report.survivors.to_dict("records")
    assert (first["layer"], first["phase"], first["op"]) == ("encoder.0", "forward", "aten::add")
    assert (first["bytes_per_step"], first["count_per_step"], first["steps"]) == (MIB - 4096, 1, 32)
    assert pd.isna(second["layer"])
    assert (second["bytes_per_step"], second["count_per_step"], second["kind"]) == (4096, 2, "kept")


def garbage(steps: Iterable[int], collected_in: Iterable[int], size: int = MIB) -> pd.DataFrame:
    return made([*steps], size).assign(freed_in_step=pd.array([*collected_in], dtype="Int64"))


PROCESS_LEAK = [500 * MIB + place * MIB for place in EVERY]
CLEARED = [500 * MIB + place % 25 * MIB for place in EVERY]
KEPT = made(EVERY)
EVER_LARGER = made(EVERY, [MIB * (place + 1) for place in EVERY], lives=1, op="aten::cat")
OF_ANOTHER_OWNER_EACH = [made([place], layer=f"layer{place}") for place in EVERY]
VARYING = np.random.default_rng(0).integers(MIB, 20 * MIB, STEPS)


@pytest.mark.parametrize(
    ("leak", "process", "later", "reason", "of_survivors"),
    [
        ([], FLAT, [], "steady", []),
        ([made(range(0, STEPS, 5), 5 * MIB, op="aten::cat")], [], [], "kept", [pytest.approx(MIB, rel=0.15)]),
        ([EVER_LARGER], [], [], "growing", [MIB]),
        (OF_ANOTHER_OWNER_EACH, [], [], "kept", [5 * MIB / 32, *[MIB / 32] * 32, 8 * 100_000 / 32]),
        ([made([at], MIB * (at + 1), lives=1, layer=f"layer{at}") for at in EVERY], [], [], "unexplained", []),
        ([made(EVERY, device="cuda:0")], FLAT, [], "kept", [MIB]),  # the process says nothing of a GPU
        ([garbage(EVERY, [STEPS] * STEPS)], FLAT, [], "garbage", []),
        ([garbage(EVERY, [17] * 17 + [STEPS] * 23)], FLAT, [], "garbage", []),  # some was collected in between
        ([garbage([3, 20], [STEPS] * 2, 4096)], FLAT, [], "steady", []),  # a cycle here and there
        ([KEPT], FLAT, [], "unseen", [MIB]),
        ([KEPT], PROCESS_LEAK, FLAT, "unseen", [MIB]),  # all freed after the recording
        ([KEPT], PROCESS_LEAK, CLEARED, "unseen", [MIB]),
        ([KEPT], PROCESS_LEAK, PROCESS_LEAK, "kept", [MIB]),
        ([], PROCESS_LEAK, FLAT, "settled", []),
        ([], PROCESS_LEAK, PROCESS_LEAK, "outside", []),
        ([made(EVERY, VARYING, lives=0)], PROCESS_LEAK, [], "shapes", []),
        ([made(EVERY, VARYING % 3 * MIB, lives=0)], PROCESS_LEAK, [], "outside", []),
        ([made(EVERY, VARYING * 20, lives=1, op="aten::relu"), KEPT], [], [], "hidden", [MIB]),
    ],
)
def test_the_reason_of_a_verdict_and_its_survivors(
    leak: list[pd.DataFrame], process: list[int], later: list[int], reason: str, of_survivors: list[Any]
) -> None:
    report = leak_figures(joined(ORDINARY, *leak), process, steps=STEPS, later_bytes=later)

    assert report.reason == reason
    assert report.survivors["bytes_per_step"].tolist() == of_survivors
    assert (report.survivors["kind"] == ("growing" if reason == "growing" else "kept")).all()
    assert report.early is None or report.early.grows


def test_figures_beside_the_verdict() -> None:
    ordinary = leak_figures(ORDINARY, FLAT, steps=STEPS)
    assert ordinary.allocator is not None
    assert (ordinary.allocator.bytes_per_step, ordinary.allocator.excludes_zero) == (0, False)
    waits = leak_figures(joined(ORDINARY, garbage(EVERY, [17] * 17 + [STEPS] * 23)), FLAT, steps=STEPS)
    assert waits.garbage_bytes == MIB * 23 / STEPS
    process = [500 * MIB + 3 * place * MIB for place in EVERY]
    assert leak_figures(joined(ORDINARY, KEPT), process, steps=STEPS).beyond_bytes == 2 * MIB
    assert leak_figures(joined(ORDINARY, KEPT), PROCESS_LEAK, steps=STEPS).beyond_bytes is None
    assert leak_figures(made([0]), [], steps=1).reason == "few"
    assert leak_figures(made(range(8)), [], steps=8).verdict == "inconclusive"
    assert leak_figures(ORDINARY.iloc[:0], [], steps=STEPS).verdict == "no leak seen"


@pytest.mark.parametrize(
    ("totals", "new"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10], False),  # the last step does not count
        ([1] * 19 + [2, 1], False),  # one new of ten is not above a tenth
        ([1] * 19 + [2, 3, 1], True),
        ([2, *[1] * 17, 2, 3, 1], False),
    ],
)
def test_new_shapes_are_totals_that_the_later_half_has_for_the_first_time(totals: list[int], new: bool) -> None:
    assert judge._new_shapes_keep_coming(made(range(len(totals)), totals, lives=0), len(totals)) is new


def test_the_table_of_steps_holds_both_series() -> None:
    table = leak_figures(ORDINARY, FLAT, steps=STEPS).steps
    assert table.columns.tolist() == ["step", "allocated_bytes", "process_bytes"]
    assert len(table) == STEPS
    assert table["process_bytes"].eq(500 * MIB).all()
    assert leak_figures(ORDINARY, [1, None, *FLAT[2:]], steps=STEPS).steps["process_bytes"].isna().sum() == 1


def test_the_frame_stays_as_it_was() -> None:
    frame = joined(ORDINARY, made(EVERY))
    before = frame.copy()
    leak_figures(frame, FLAT, steps=STEPS)
    pd.testing.assert_frame_equal(frame, before)


def watched(*blocks: tuple[int, int, int], device: str = "cuda:0") -> Watched:
    """Return blocks by event, start and end, in three steps of 10 ns that begin at 100, 120 and 140."""
    nobody = pd.Series([pd.NA] * len(blocks), dtype="object")
    host = pd.DataFrame({"kind": [Kind.STEP, Kind.SPAN, Kind.STEP, Kind.STEP], "start": [140, 103, 100, 120]})
    attribution: Any = SimpleNamespace(host=SimpleNamespace(blocks=host))
    frame = pd.DataFrame(blocks, columns=["event", "start", "end"])
    frame = frame.assign(bytes=8, device=device, layer=nobody, phase=nobody, op=nobody)
    return Watched(None, attribution, frame, 140, 150)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block", "made", "freed"),
    [
        ((3, 100, 110), 0, 0),
        ((3, 105, 119), 0, 0),  # freed before the next step begins
        ((3, 105, 125), 0, 1),
        ((3, 141, 150), 2, 2),
        ((3, 125, 151), 1, 3),  # freed by the collection after the last step
        ((3, 125, AFTER), 1, None),
        ((-1, BEFORE, 125), None, 1),
        ((3, 90, 151), None, 3),
        ((3, 90, AFTER), None, None),
        ((3, 90, 95), None, None),
        ((-1, BEFORE, AFTER), None, None),  # a parameter
        ((-1, 121, AFTER), None, None),  # a batch from a loader's shared memory, never allocated here
    ],
)
def test_blocks_lie_in_the_steps_that_made_and_freed_them(
    block: tuple[int, int, int], made: int | None, freed: int | None
) -> None:
    found = allocations_by_step(watched(block))
    on_cpu = allocations_by_step(watched(block, device="cpu"))
    pd.testing.assert_frame_equal(on_cpu, found[found["made_in_step"].notna()].assign(device="cpu"))
    if made is None and freed is None:
        assert len(found) == 0
    else:
        row = found.iloc[0]
        assert [None if pd.isna(row[name]) else row[name] for name in ("made_in_step", "freed_in_step")] == [
            made,
            freed,
        ]
        assert leak_figures(found, [], steps=3).verdict == "inconclusive"


def test_of_two_steps_only_what_both_left_counts() -> None:
    replaced_by_a_larger_one = (made([0], MIB, lives=1), made([1], 4 * MIB))
    waits_for_the_collector = made([0, 1], MIB, layer="cycle").assign(freed_in_step=pd.array([2, 2], dtype="Int64"))
    made_once = made([1], MIB, layer="cache")
    harmless = joined(*replaced_by_a_larger_one, waits_for_the_collector, made_once)

    left = left_by_every_step(joined(harmless, made([0, 1], [2 * MIB, 3 * MIB], layer="history")), 2)

    assert left_by_every_step(harmless, 2).empty
    assert left_by_every_step(made([0], 5), 1)["bytes_per_step"].tolist() == [5]
    assert left[["layer", "op", "bytes_per_step"]].values.tolist() == [["history", "aten::add", 2 * MIB]]


def slope(bytes_: float, low: float | None, high: float | None = None) -> Slope:
    return Slope(bytes_, low, high, 40)


FLOOR = PROCESS_FLOOR_BYTES
GROWS, NOT = slope(8 * FLOOR, 7.0, 9.0 * FLOOR), slope(0, -5.0, 5.0)


@pytest.mark.parametrize(
    ("allocator", "process", "kept", "garbage", "early", "said"),
    [
        (None, None, 0, 0, None, "few"),
        (GROWS, None, 4 * FLOOR, 0, None, "kept"),  # half of the growth explains it
        (GROWS, None, 4 * FLOOR - 1, 4 * FLOOR - 1, None, "unexplained"),
        (GROWS, None, 4 * FLOOR - 1, 4 * FLOOR, None, "garbage"),
        (GROWS, slope(0, -5.0, 4.0 * FLOOR - 1), 8 * FLOOR, 0, None, "unseen"),
        (GROWS, slope(0, -5.0, 4.0 * FLOOR), 8 * FLOOR, 0, None, "kept"),
        (GROWS, slope(0, -5.0, 4.0 * FLOOR), 8 * FLOOR, 0, GROWS, "unseen"),
        (GROWS, slope(9, 1.0, 4.0 * FLOOR), 8 * FLOOR, 0, GROWS, "kept"),
        (NOT, slope(9, FLOOR + 1.0, 9e9), 0, 0, None, "outside"),
        (NOT, slope(9, float(FLOOR), 9e9), 0, 0, None, "steady"),
        (NOT, slope(9, None, None), 0, 0, None, "few"),
        (slope(9, None, None), NOT, 0, 0, None, "few"),
        (NOT, NOT, 0, 0, GROWS, "settled"),
        (NOT, None, 0, 0, GROWS, "settled"),
        (NOT, slope(9, 1.0, 9.0), 0, 0, GROWS, "steady"),
        (NOT, NOT, FLOOR + 1, FLOOR + 1, None, "hidden"),
        (NOT, NOT, FLOOR, FLOOR + 1, None, "garbage"),
        (NOT, NOT, FLOOR, FLOOR, None, "steady"),
    ],
)
def test_from_which_growth_on_there_is_which_verdict(
    allocator: Slope | None, process: Slope | None, kept: float, garbage: float, early: Slope | None, said: str
) -> None:
    survivors = pd.DataFrame({"bytes_per_step": [kept], "kind": ["kept"]})
    told = judge._judged(allocator, allocator, process, survivors, garbage, False, early)
    assert told[1] == said
    verdicts = {"kept": judge.LEAK, "outside": judge.LEAK} | dict.fromkeys(("steady", "settled", "garbage"), NO_LEAK)
    assert told[0] == verdicts.get(said, judge.INCONCLUSIVE)


def test_time_outside_torch_is_reported_if_the_intervals_are_disjoint() -> None:
    cpu = slope(2.0 * FLOOR, 1.0, 3.0 * FLOOR)
    assert judge._beyond(slope(9.0 * FLOOR, 4.0 * FLOOR + 1), cpu) == 7 * FLOOR
    assert judge._beyond(slope(9.0 * FLOOR, 4.0 * FLOOR), cpu) is None
    for process, of_torch in ((None, cpu), (slope(9.0, None), cpu), (GROWS, None), (GROWS, slope(9.0, 1.0))):
        assert judge._beyond(process, of_torch) is None
    assert not judge._contradicted(slope(2 * FLOOR - 1, 1.0), NOT, settled=True)
    assert judge._contradicted(slope(2 * FLOOR, 1.0), NOT, settled=True)
    assert [judge.process_grows([place * each for place in EVERY]) for each in (FLOOR, FLOOR + 1)] == [False, True]
    assert not judge.process_grows([0, 9 * FLOOR])


@pytest.mark.deep
@pytest.mark.slow
def test_batches_that_vary_are_no_leak_in_100_runs() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(MIB, 20 * MIB, STEPS)
        cache = 500 * MIB + np.cumsum(rng.integers(0, MIB, STEPS))  # each new shape is prepared and kept
        varying = joined(made(EVERY, sizes, lives=0), made(EVERY, sizes // 10, lives=1, op="aten::relu"))
        assert leak_figures(joined(ORDINARY, varying), cache, steps=STEPS).verdict != "leak"
