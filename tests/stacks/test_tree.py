"""Trees of calls by hand: their depths, times, orders and outermost calls, and the times that callers explain."""

from __future__ import annotations

import numpy as np
import pytest

from perfnb.recording.nesting import NONE
from perfnb.stacks.call_graph import tree_of_callers
from perfnb.stacks.tree import CallTree, Function, TreeBuilder, function_frame, numbers_of, sums_by


def built(*stacks: tuple[str, float]) -> CallTree:
    builder = TreeBuilder("it")
    for names, value in stacks:
        builder.add([builder.function(Function(name)) for name in names], value)
    return builder.tree()


#: a (1), a;b (2), a;b;a (4), a;c (8), d (16), d;b (32)
TREE = built(("a", 1), ("ab", 2), ("aba", 4), ("ac", 8), ("d", 16), ("db", 32))


def test_stacks_with_a_common_beginning_are_merged() -> None:
    tree = built(("ab", 1.5), ("a", 1.0), ("ab", 2.0))

    assert [tree.text(node) for node in range(len(tree))] == ["a", "a;b"]
    assert tree.parent.tolist() == [NONE, 0]
    assert tree.self.tolist() == [1.0, 3.5]
    assert tree.samples.tolist() == [1, 2]
    assert len(built(("", 9.0))) == 0


def test_times_and_depths_of_calls() -> None:
    assert [TREE.text(node) for node in range(6)] == ["a", "a;b", "a;b;a", "a;c", "d", "d;b"]
    assert TREE.depth.tolist() == [0, 1, 2, 1, 0, 1]
    assert [level.tolist() for level in TREE.levels] == [[0, 4], [1, 3, 5], [2]]
    assert TREE.total.tolist() == [15, 6, 4, 8, 48, 32]
    assert TREE.with_outer([1, 10, 100, 1000]).tolist() == [1, 11, 12, 101, 1000, 1010]
    assert built().levels == []
    assert built().with_outer([]).tolist() == []


def test_calls_are_sorted_among_their_siblings() -> None:
    def texts(*keys: np.ndarray) -> list[str]:
        return [TREE.text(node) for node in TREE.order(keys)]

    assert texts() == ["a", "a;b", "a;b;a", "a;c", "d", "d;b"]
    assert texts(-TREE.total) == ["d", "d;b", "a", "a;c", "a;b", "a;b;a"]
    same = np.zeros(6)
    assert texts(-TREE.total, same) == texts(-TREE.total)
    assert texts(-TREE.total, TREE.total) == texts(TREE.total) == texts()


def test_only_the_outermost_call_of_a_function_counts() -> None:
    assert TREE.outermost(TREE.function).tolist() == [True, True, False, True, True, True]
    assert TREE.outermost(np.zeros(6, dtype=np.int64)).tolist() == [True, False, False, False, True, False]
    beside = built(("ab", 1), ("cb", 1), ("cba", 1), ("cbab", 1))
    assert beside.outermost(beside.function).tolist() == [True, True, True, True, True, False]


def test_sums_of_groups_count_recursion_once() -> None:
    table = sums_by(TREE, TREE.function, 4, {"ms": TREE.self, "samples": TREE.samples})

    assert table["self_ms"].tolist() == [5, 34, 8, 16]  # a, b, c and d
    assert table["total_ms"].tolist() == [15, 38, 8, 48]
    assert table["self_samples"].tolist() == [2, 2, 1, 1]
    assert table["total_samples"].tolist() == [4, 3, 1, 2]
    known = np.where(TREE.function == 3, NONE, 0)  # all but d are one group
    some = sums_by(TREE, known, 2, {"ms": TREE.self})
    assert some.to_dict("list") == {"self_ms": [47.0, 0.0], "total_ms": [47.0, 0.0]}


def test_functions_in_columns() -> None:
    frame = function_frame([Function("a", "a.py", 3), Function("b")])

    assert frame["function"].tolist() == ["a", "b"]
    assert frame.isna().to_numpy().tolist() == [[False] * 3, [False, True, True]]
    assert (frame.loc[0, "file"], frame.loc[0, "line"]) == ("a.py", 3)
    assert numbers_of(["b", "a", "b"]).tolist() == [0, 1, 0]


def divided(own: list[float], total: list[float], edges: dict[tuple[int, int], float]) -> dict[str, float] | None:
    functions = [Function(name) for name in "abcd"[: len(own)]]
    tree = tree_of_callers(functions, np.array(own), np.array(total), edges)
    return None if tree is None else {tree.text(node): float(tree.total[node]) for node in range(len(tree))}


def test_a_function_is_divided_among_its_callers_as_they_called_it() -> None:
    found = divided([10.0, 20.0, 70.0], [60.0, 60.0, 70.0], {(0, 2): 30.0, (1, 2): 40.0, (0, 1): 20.0})

    # a is called from outside with all its 60, b with the 40 that a does not explain.
    assert found == pytest.approx(
        {"a": 60.0, "b": 40.0, "a;c": 30.0, "a;b": 20.0, "b;c": 40.0 * 40 / 60, "a;b;c": 20.0 * 40 / 60}
    )


def test_recursion_and_calls_that_took_no_time_are_left_out() -> None:
    assert divided([10.0, 20.0], [30.0, 20.0], {(0, 0): 25.0, (0, 1): 20.0}) == {"a": 30.0, "a;b": 20.0}
    assert divided([10.0, 20.0], [10.0, 20.0], {(0, 1): 0.0}) == {"b": 20.0, "a": 10.0}
    assert divided([10.0, 20.0], [10.0, 20.0], {(0, 1): -1.0}) == {"b": 20.0, "a": 10.0}
    assert divided([-5.0, 20.0], [0.0, 20.0], {}) == {"b": 20.0}


def test_functions_that_all_call_each_other_begin_with_the_longest() -> None:
    found = divided([10.0, 30.0], [40.0, 50.0], {(0, 1): 50.0, (1, 0): 40.0})

    assert found == pytest.approx({"b": 40.0, "b;a": 40.0 * 40 / 70})


def test_calls_of_at_most_a_20000th_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert divided([19_999.0, 1.0], [20_000.0, 1.0], {(0, 1): 1.0}) == {"a": 20_000.0}
    assert divided([19_998.0, 2.0], [20_000.0, 2.0], {(0, 1): 2.0}) == {"a": 20_000.0, "a;b": 2.0}
    assert divided([19_999.0, 1.0], [19_999.0, 1.0], {}) == {"a": 19_999.0}
    # The heaviest calls come first, and the number of all calls is limited.
    three = ([10_000.0, 1.0, 9_999.0], [20_000.0, 1.0, 9_999.0], {(0, 1): 1.0, (0, 2): 9_999.0})
    assert divided(*three) == {"a": 20_000.0, "a;c": 9_999.0}
    monkeypatch.setattr("perfnb.stacks.call_graph._MOST_CALLS", 1)
    assert divided(*three) == {"a": 20_000.0}


def test_without_times_there_is_no_tree() -> None:
    assert divided([0.0, 0.0], [5.0, 5.0], {}) is None
    assert divided([1.0, 1.0], [0.0, 0.0], {}) is None
    assert divided([-1.0], [5.0], {}) is None
