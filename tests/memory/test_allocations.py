"""Blocks of memory in recordings made by hand: what they are for, and who made them."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.memory.allocations import allocation_table, watched_memory
from perfnb.recording.recording import Recording
from tests.attribution.test_attribution import training_step
from tests.recordings import ByHand
from tests.watched_steps import C


def table_of(hand: ByHand | Recording) -> pd.DataFrame:
    """Return the allocations by their sizes, each of which is used once."""
    watched = watched_memory(hand.recording() if isinstance(hand, ByHand) else hand)
    assert watched is not None
    table = allocation_table(watched).set_index("bytes")
    assert table.index.is_unique
    return table


def test_without_a_watch_there_are_no_allocations() -> None:
    assert watched_memory(training_step(2).recording()) is None


def test_categories_by_life() -> None:
    lives = [
        (C + 130, C + 700, "activations"),
        (C + 130, None, "activations"),
        (C + 420, C + 460, "activations"),  # of the loss
        (C + 130, C + 449, "temporaries"),  # gone when backward begins
        (C + 510, C + 700, "temporaries"),  # made in backward
        (C + 810, C + 940, "temporaries"),
        (130, C + 50, "activations"),  # of the step before: the next backward after it counts
        (770, C + 50, "other"),  # over the step's border
        (810, C + 50, "other"),
        (520, C + 700, "other"),
        (C + 810, None, "other"),
        (1500, C + 50, "other"),  # between the steps
        (C + 20, C + 990, "temporaries"),
        (C + 20, None, "inputs"),
        (20, C + 50, "inputs"),
    ]
    hand = training_step(2)
    for number, (begin, end, _) in enumerate(lives, start=1):
        hand.block(begin, end, address=number, size=number)

    assert table_of(hand)["category"].to_dict() == {number: life[2] for number, life in enumerate(lives, start=1)}


def test_what_forward_left_is_activations_only_where_a_backward_follows_or_the_step_failed() -> None:
    hand = ByHand().step(0, 1000)
    layer = hand.layer("model")
    hand.call(layer, 100, 400).block(150, None, 1, 100).block(160, 300, 2, 200)

    assert table_of(hand)["category"].to_dict() == {100: "other", 200: "temporaries"}
    failed = hand.recording(failure="RuntimeError: no memory")
    assert table_of(failed)["category"].to_dict() == {100: "activations", 200: "temporaries"}


def test_categories_by_owner() -> None:
    hand = training_step(2)
    hand.known(-1, 1, 11, "parameters", 1, "weight").known(C - 1, 1, 11, "parameters", 1, "weight")
    hand.block(520, C + 120, 2, 22).known(755, 2, 22, "gradients", 1, "weight")  # of the former step
    hand.block(C + 520, None, 3, 33).known(C + 755, 3, 33, "gradients", 2, "weight")
    hand.block(820, None, 4, 44).known(955, 4, 44, "optimizer_state", 1, "weight (exp_avg)")
    hand.block(C + 20, C + 990, 5, 55).known(C + 90, 5, 55, "inputs")
    hand.block(C + 130, C + 700, 6, 66).known(C + 150, 6, 66, "inputs")  # an output handed to another model
    hand.known(C - 1, 7, 77, "other").known(C + 90, 7, 77, "inputs")  # the batch, seen to be there before
    hand.known(C + 90, 8, 88, "inputs")  # from a loader's shared memory
    hand.known(C - 1, 9, 99, "other")
    hand.known(-1, 10, 1010, "other")  # gone before the counted step
    hand.block(C + 110, C + 120, 11, 1111).known(C + 990, 11, 1212, "gradients", 2, "bias")
    hand.block(1900, None, 12, 1313).known(C - 1, 12, 1313, "inputs").known(C - 1, 12, 1313, "gradients", 1, "weight")

    table = table_of(hand)

    assert table["category"].to_dict() == {
        11: "parameters",
        22: "gradients",
        33: "gradients",
        44: "optimizer_state",
        55: "inputs",
        66: "activations",
        77: "inputs",
        88: "inputs",
        99: "other",
        1111: "temporaries",  # another block than the gradient that was seen there later
        1212: "gradients",
        1313: "gradients",
    }
    assert table["layer"].dropna().to_dict() == dict.fromkeys((11, 22, 44, 1313), "model.a") | {
        **dict.fromkeys((33, 1212), "model.b"),
        **dict.fromkeys((66, 1111), "model.a"),
    }
    assert table["name"].dropna().to_dict() == {
        **dict.fromkeys((11, 22, 33, 1313), "weight"),
        44: "weight (exp_avg)",
        1212: "bias",
    }
    missing = table.index[table["start_ns"].isna()].tolist()
    assert sorted(missing) == [11, 77, 99, 1212]
    assert table.loc[88, "start_ns"] == 90_000


def test_a_block_from_before_the_watch_ends_where_another_begins_at_its_address() -> None:
    hand = training_step(2).known(C - 1, 1, 100, "other").block(C + 510, None, 1, 200)

    table = table_of(hand)

    assert table.loc[100, "end_ns"] == table.loc[200, "start_ns"] == 510_000
    assert table.loc[100, "category"] == "other"


@pytest.mark.parametrize(("seen_last", "end"), [(C - 1, 1), (C + 770, 770_001)])
def test_what_the_look_after_the_step_does_not_find_went_after_it_was_last_seen(seen_last: float, end: int) -> None:
    hand = training_step(2).known(C - 1, 1, 100, "gradients", 1, "weight").known(C - 1, 2, 200, "parameters", 1, "bias")
    hand.known(C - 1, 3, 300, "other").known(C + 50, 4, 400, "inputs")  # of these that look tells nothing
    hand.known(seen_last, 1, 100, "gradients", 1, "weight").known(C + 1001, 2, 200, "parameters", 1, "bias")
    hand.block(C + 800, None, 5, 500)

    ends = table_of(hand)["end_ns"]

    assert ends[100] == end
    assert ends[[200, 300, 400]].isna().all()


def test_of_a_block_from_before_the_watch_the_size_is_that_of_the_object_seen_in_it() -> None:
    """On the CPU torch may tell one that the address had in an earlier session; what the watch saw made is right."""
    hand = training_step(2).known(C - 1, 1, 100, "gradients", 1, "weight").known(C - 1, 2, 200, "other")
    hand.alloc(C + 50, 1, -11).alloc(C + 60, 2, -22).alloc(C + 70, 3, -33)
    hand.block(C - 500, C + 80, 4, 44).known(C - 1, 4, 400, "gradients", 2, "weight")

    assert table_of(hand)["end_ns"].to_dict() == {100: 50_000, 200: 60_000, 33: 70_000, 44: 80_000}


def test_what_recomputation_leaves_for_backward_is_activations() -> None:
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    inner = hand.layer("model.inner", model)
    hand.call(model, 0, 300).call(inner, 100, 200).op("aten::mm", 110, 190, sequence=1)
    hand.node("CheckpointBackward", 400, 800, sequence=1)
    hand.call(model, 440, 560).call(inner, 450, 550).op("aten::mm", 460, 540, sequence=2)
    hand.node("MmBackward0", 600, 700, sequence=2)
    hand.block(120, 180, 1, 11).block(470, 650, 2, 22).block(471, 555, 3, 33).block(472, 480, 4, 44)

    table = table_of(hand)

    assert table["category"].to_dict() == dict.fromkeys((11, 33, 44), "temporaries") | {22: "activations"}
    assert table.loc[[22, 33, 44], "direction"].tolist() == ["recompute"] * 3
    assert set(table["layer"]) == {"model.inner"}


def test_each_allocation_has_its_phase_layer_direction_and_op() -> None:
    hand = training_step(2).op("aten::empty", C + 250, C + 260).op("aten::zeros", C + 851, C + 859)
    hand.op("aten::empty", C + 852, C + 858).op("aten::zeros", C + 770, C + 779).op(
        "aten::empty_like", C + 771, C + 778
    )
    for size, at in enumerate((50, 130, 255, 395, 415, 460, 510, 640, 755, 775, 855, 990), start=1):
        hand.block(C + at, None, size, size)
    hand.block(1500, None, 99, 99)

    table = table_of(hand).drop(columns=["category", "name", "device", "start_ns", "end_ns"])

    text = table.astype("object").where(table.notna(), None)
    assert {size: tuple(row) for size, row in zip(text.index, text.to_numpy(), strict=True)} == {
        99: (None, None, None, None),
        1: (None, "data", None, None),
        2: ("model.a", "forward", "forward", "aten::mm"),
        3: ("model.b", "forward", "forward", "aten::mm"),  # not aten::empty, which only fetches memory for it
        4: ("model", "forward", "forward", None),
        5: (None, "loss", None, "aten::mse_loss"),
        6: ("(loss)", "backward", "backward", "MseLossBackward0"),
        7: ("model.b", "backward", "backward", "MmBackward0"),
        8: ("model.b", "backward", "backward", "ReluBackward0"),
        9: ("(gradient accumulation)", "backward", "backward", "torch::autograd::AccumulateGrad"),
        10: (None, "other", None, "aten::zeros"),  # nothing but fetching: the outermost
        11: (None, "optimizer", None, "aten::_foreach_add_"),
        12: (None, "other", None, None),
    }
    assert table.index.tolist() == [99, *range(1, 13)]  # in order of time


def test_times_are_from_the_begin_of_the_counted_step_and_missing_outside_the_watch() -> None:
    hand = training_step(2).alloc(C + 500, 1, -11).block(500, C + 300, 2, 22).block(C + 130, None, 3, 33)
    hand.block(C + 140, C + 1400, 4, 44).block(100, 900, 5, 55).block(C + 1200, None, 6, 66)

    table = table_of(hand)

    assert table["start_ns"].astype(object).where(table["start_ns"].notna(), None).to_dict() == {
        11: None,
        22: -1_500_000,
        33: 130_000,
        44: 140_000,
    }
    assert table["end_ns"].astype(object).where(table["end_ns"].notna(), None).to_dict() == {
        11: 500_000,
        22: 300_000,
        33: None,
        44: None,
    }
