"""Every table has exactly the columns and types that the schema promises, in every kind of profile."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.recording.schema import INDEX, PHASES, SCHEMA, conform
from tests.step.models import three_linears, training_step

#: Those of one profile; others are of a watch, of a host profile, and of two profiles side by side.
OTHERS = ("marks", "functions", "stacks")
TABLES = [table for table in SCHEMA if table not in OTHERS and not table.startswith("diff_")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "no model", "compiled"])
def test_tables_have_the_schemas_columns_types_and_index_and_are_the_callers_to_change(kind: str) -> None:
    model, x = three_linears(), torch.ones(4, 8)
    compiled = torch.compile(nn.Sequential(nn.Tanh()), backend="eager")
    steps = {"training": training_step(model, x), "no model": lambda: x.sin(), "compiled": lambda: compiled(x)}
    profile = perfnb.profile_step(steps[kind], warmup=1, steps=2, traced=2)

    for table in TABLES:
        frame = getattr(profile, table)
        assert list(frame.columns) == list(SCHEMA[table])
        for name, dtype in SCHEMA[table].items():
            found, wanted = frame[name].dtype, pd.Series(dtype=dtype).dtype
            assert found == wanted or (dtype == "category" and isinstance(found, pd.CategoricalDtype)), (table, name)
        assert frame.index.name == INDEX.get(table)
        assert frame.index.is_unique
        before = frame.copy(deep=True)
        frame["mine"] = 1
        frame[frame.columns[0]] = pd.NA
        pd.testing.assert_frame_equal(getattr(profile, table), before)
    assert tuple(profile.phases.index) == PHASES
    assert profile.phases.notna().all(axis=None)
    # What was not measured is unknown and never zero.
    assert profile.layers[["kernels", "gpu_ms"]].isna().all(axis=None)
    assert profile.ops["gpu_ms"].isna().all()
    assert profile.events["device"].isna().all()


def test_conform_adds_what_is_missing_orders_and_types() -> None:
    given = pd.DataFrame({"share": [1], "ms": [2]}, index=["data"])

    frame = conform(given, "phases")

    assert list(frame.columns) == ["ms", "share"]
    assert frame.dtypes.astype(str).tolist() == ["Float64", "Float64"]
    assert frame.index.name == "phase"
    assert list(given.columns) == ["share", "ms"]
    assert given.index.name is None
    assert conform(given.drop(columns="share"), "phases")["share"].isna().all()


def test_conform_refuses_a_column_that_the_schema_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"frame 'phases' has no column 'mss'; its columns are ms, share"):
        conform(pd.DataFrame({"mss": [1.0]}), "phases")


def test_an_empty_frame_conforms() -> None:
    for table, columns in SCHEMA.items():
        frame = conform(pd.DataFrame(), table)
        assert list(frame.columns) == list(columns)
        assert frame.empty
