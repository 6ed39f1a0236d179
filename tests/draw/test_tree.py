"""Layers are nested by their names, and a page shows the heaviest of them."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.draw.tree import inside_of, page_of
from perfnb.recording import schema
from perfnb.recording.layer_tree import nested, split_layers
from tests import summaries


def modules_of(names, depths=None):
    frame = pd.DataFrame({"module": "M", "depth": depths or [name.count(".") for name in names]}, index=names)
    return schema.conform(frame, "layers")


def test_names_nest_layers():
    labels, parents = nested(modules_of(["gan", "gan.g", "gan.g.0", "gan.d", "other"]))
    assert parents == [-1, 0, 1, 0, -1]
    assert labels == ["gan", "g", "0", "d", "other"]
    assert inside_of(parents) == [3, 1, 0, 0, 0]


def test_depth_nests_where_names_do_not():
    labels, parents = nested(modules_of(["net", "conv", "block", "block.0", "tail"], [0, 1, 1, 2, 0]))
    assert parents == [-1, 0, 0, 2, -1]
    assert labels == ["net", "conv", "block", "0", "tail"]


@pytest.mark.parametrize("names", [["a.b", "a", "a.b"], [".", "..", "a..b"], ["a." * 5000, "a"], []])
def test_strange_names_make_a_tree_without_circles(names):
    _, parents = nested(modules_of(names, [5, 9, 3][: len(names)]))
    assert all(parent < position for position, parent in enumerate(parents))


def test_a_small_model_is_listed_whole():
    modules, special = split_layers(summaries.small_cnn().layers)
    lines = page_of(nested(modules)[1], [1.0] * len(modules), (), limit=20)
    assert [line.layer for line in lines] == list(range(len(modules)))
    assert list(special.index) == ["(loss)", "(gradient accumulation)", "(unattributed)"]


@pytest.mark.parametrize("limit", [3, 10, 24, 60])
def test_a_large_model_fits_the_page_and_every_layer_is_accounted_for(limit):
    summary = summaries.big()
    modules, _ = split_layers(summary.layers)
    _, parents = nested(modules)
    weights = [float(value) for value in modules["total_ms"]]
    hot = [modules.index.get_loc(name) for name in summary.hot_path]
    lines = page_of(parents, weights, hot, limit)
    inside = inside_of(parents)
    listed = [line.layer for line in lines if line.layer >= 0]
    left_out = [layer for line in lines for layer in line.left_out]
    assert len(lines) <= limit
    assert len(listed) + sum(1 + inside[i] for i in left_out) + sum(line.inside for line in lines) == len(modules)
    if limit >= 24:
        assert set(hot) <= {*listed}


def test_a_layer_that_is_listed_is_as_heavy_as_its_siblings_that_are_not():
    summary = summaries.big()
    modules, _ = split_layers(summary.layers)
    weights = [float(value) for value in modules["total_ms"]]
    _, parents = nested(modules)
    lines = page_of(parents, weights, (), 24)
    listed = {line.layer for line in lines}
    for line in lines:
        siblings = {i for i in listed if i >= 0 and line.left_out and parents[i] == parents[line.left_out[0]]}
        assert not siblings or min(weights[i] for i in siblings) >= max(weights[i] for i in line.left_out)


def test_a_layer_that_took_no_time_takes_no_line_of_a_full_page():
    _, parents = nested(modules_of(["m", "m.a", "m.b", *(f"m.b.{i}" for i in range(40))]))
    lines = page_of(parents, [5.0, 0.0, 5.0, *[0.0] * 40], (0, 1), 10)
    assert [line.layer for line in lines] == [0, 2, -1]
    assert [line.layer for line in page_of(parents, [0.0] * 43, (), 10)][:2] == [0, 1]


@pytest.mark.parametrize(
    ("limit", "first", "layers", "inside", "left_out"),
    [
        (1, (), [0], [4], []),
        (2, (), [0], [4], []),
        (3, (), [0, 1, -1], [0, 1, 0], [(2, 3)]),
        (4, (), [0, 1, 2, 3], [0, 1, 0, 0], []),
        (4, (0, 1, 4), [0, 1, 4, -1], [0, 0, 0, 0], [(2, 3)]),
        (4, (4,), [0, 1, 2, 3], [0, 1, 0, 0], []),  # its parents are not listed before it
        (5, (), [0, 1, 4, 2, 3], [0, 0, 0, 0, 0], []),
    ],
)
def test_which_rows_of_a_small_tree_are_listed(limit, first, layers, inside, left_out):
    lines = page_of([-1, 0, 0, 0, 1], [4.0, 3.0, 2.0, 1.0, 1.0], first, limit)
    assert [line.layer for line in lines] == layers
    assert [line.inside for line in lines] == inside
    assert [line.left_out for line in lines if line.left_out] == left_out
    assert [line.depth for line in lines] == [{0: 0, 4: 2}.get(layer, 1) for layer in layers]


def test_the_last_of_siblings_is_known_at_each_depth():
    lines = page_of([-1, 0, 0, 1, 1, 2], [9.0, 5.0, 4.0, 3.0, 2.0, 4.0], (), 6)
    assert [(line.layer, line.last) for line in lines] == [
        (0, ()),
        (1, (False,)),
        (3, (False, False)),
        (4, (False, True)),
        (2, (True,)),
        (5, (True, True)),
    ]


def test_several_roots_are_listed_by_their_weight():
    lines = page_of([-1, -1, -1], [1.0, 3.0, 2.0], (), 2)
    assert [(line.layer, line.left_out, line.last) for line in lines] == [(1, (), ()), (-1, (0, 2), ())]
