"""Memory of layers, in recordings made by hand: what they save, and the most that was alive while they ran."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfnb.memory.allocations import Watched
from perfnb.memory.table import activation_bytes, memory_table, most_alive
from perfnb.profile.layers import with_memory
from tests.recordings import ByHand
from tests.watched_steps import C, random_blocks, step_with_memory, watch


def test_activations_are_counted_where_they_were_made_in_the_counted_step() -> None:
    hand = step_with_memory().block(130, C + 50, 20, 9000)  # of the step before
    watched = watch(hand)

    saved = activation_bytes(watched)

    owner = watched.attribution.host.blocks.assign(bytes=saved)
    at = owner.loc[owner["bytes"] > 0]
    assert sorted(zip(at["start"] // 1000 - C, at["bytes"], strict=True)) == [(110, 300), (200, 500), (400, 4)]


def most_by_hand(table: pd.DataFrame, start: float, end: float) -> int:
    """Return the most at an instant in an interval, or at the last one before it."""
    before = table.loc[table["t_ms"] <= start, "total"].iloc[-1:]
    inside = table.loc[(table["t_ms"] > start) & (table["t_ms"] < end), "total"]
    return int(pd.concat([before, inside]).max())


def test_the_most_alive_in_any_interval() -> None:
    table = memory_table(watch(random_blocks(200)))
    random = np.random.default_rng(1)
    starts = np.concatenate([random.uniform(0, 10, 300), [0.0, 0.0, 10.0, 5.0], table["t_ms"].iloc[5:9]])
    ends = np.minimum(starts + random.exponential(1.0, len(starts)), 10)
    ends[300:304] = [10.0, 0.0, 10.0, 5.0001]

    found = most_alive(table, "cpu", starts, ends)

    assert found.tolist() == [most_by_hand(table, *pair) for pair in zip(starts, ends, strict=True)]


def columns_of(watched: Watched, names: Mapping[str, int]) -> dict[str, list[int | None]]:
    layers = pd.DataFrame(index=pd.Index([*names, "(loss)"], dtype="str"))
    table = with_memory(layers, watched, memory_table(watched), "cpu")
    columns = table[["activation_bytes", "peak_bytes"]].astype(object)
    return {str(name): [None if pd.isna(v) else int(v) for v in row] for name, row in columns.iterrows()}


def test_layers_have_what_they_save_and_the_most_that_was_alive_while_they_ran() -> None:
    hand = step_with_memory()
    idle = hand.layer("idle")
    former = hand.layer("former")
    hand.call(former, 960, 990)  # in the step before alone

    assert columns_of(watch(hand), {"model": 0, "model.a": 1, "model.b": 2, "idle": idle, "former": former}) == {
        "model": [800, 1777],
        "model.a": [300, 904],  # at its backward, from 650 on: more than the 600 of its forward
        "model.b": [500, 1777],
        "idle": [None, None],
        "former": [None, None],
        "(loss)": [None, None],
    }


def test_a_container_that_is_not_called_has_what_the_layers_in_it_have() -> None:
    hand = ByHand().step(0, 1000)
    blocks = hand.layer("blocks")
    for number, size in enumerate((100, 300)):
        hand.call(hand.layer(f"blocks.{number}", blocks), 100 + 100 * number, 200 + 100 * number)
        hand.op("aten::mm", 110 + 100 * number, 190 + 100 * number, number)
        hand.block(120 + 100 * number, 700 - 100 * number, number, size)
    hand.node("MmBackward0", 500, 560, 1).node("MmBackward0", 560, 700, 0)

    names = {"blocks": 0, "blocks.0": 1, "blocks.1": 2}
    assert columns_of(watch(hand), names) == {
        "blocks": [400, 400],
        "blocks.0": [100, 400],  # when its backward begins, the other's activation is still there
        "blocks.1": [300, 400],
        "(loss)": [None, None],
    }


def test_a_layer_that_runs_in_another_than_its_parent_counts_there_too() -> None:
    hand = ByHand().step(0, 1000)
    owner, user = hand.layer("owner"), hand.layer("user")
    shared = hand.layer("owner.shared", owner)
    hand.call(user, 100, 300).call(shared, 150, 250).op("aten::mm", 160, 240, 1).node("MmBackward0", 500, 600, 1)
    hand.block(200, 700, 1, 100).block(510, 590, 2, 900)

    names = {"owner": owner, "user": user, "owner.shared": shared}
    assert columns_of(watch(hand), names) == {**{name: [100, 1000] for name in names}, "(loss)": [None, None]}
