"""Kernels, copies and fills grouped by the op that launched them and its input shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.typing import SeriesGroupBy

from perfnb.attribution.device_work import DeviceWork, device_work, named
from perfnb.recording.nesting import NONE
from perfnb.recording.text import TEXT


def kernels_by_op(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Group kernels by launching op and its input shapes, most time first.

    The op is the innermost one around the launch call or, if the call is not in the trace, the one with the same
    external id.

    Returns
    -------
    DataFrame
        ``op`` and ``shapes`` (missing if unknown), ``op_calls`` (calls of the op that launched something), ``kernels``
        (distinct names), ``calls``, ``total_ms``, ``mean_us``, ``min_us``, ``max_us``, ``layers`` (how many launched
        it), ``layer`` (the one with most of this time; missing if none) and ``layer_share`` (its share). Layer columns
        are missing if the events have no layers. Times are totals over the trace, not per step.
    """
    rows = _work(events, work)
    by = rows.groupby(["op", "shapes"], dropna=False, sort=False, observed=True)
    table = _times(by["duration_ns"])
    table.insert(0, "kernels", by["name"].nunique())
    table.insert(0, "op_calls", by["op_row"].nunique().astype("Int64"))
    table = table.reset_index()
    # For an unknown op the number of calls is unknown too.
    table["op_calls"] = table["op_calls"].mask(table["op"].isna())
    return _heaviest_first(table.merge(_layers(rows), on=["op", "shapes"], how="left"))


def kernels_of_ops(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    """Like `kernels_by_op`, with one row per kernel name: ``op``, ``shapes``, ``kernel``, times."""
    rows = _work(events, work).rename(columns={"name": "kernel"})
    by = rows.groupby(["op", "shapes", "kernel"], dropna=False, sort=False, observed=True)
    return _heaviest_first(_times(by["duration_ns"]).reset_index())


def _work(events: pd.DataFrame, work: DeviceWork | None = None) -> pd.DataFrame:
    work = device_work(events) if work is None else work
    frame = {"name": named(events, work.rows), "op": named(events, work.op)}
    if "shapes" in events.columns:
        frame["shapes"] = named(events, work.op, "shapes")
    else:
        frame["shapes"] = pd.Categorical.from_codes(np.full(len(work), NONE), categories=pd.Index([], dtype=TEXT))
    if "layer" in events.columns:
        frame["layer"] = named(events, work.rows, "layer")
    return pd.DataFrame({**frame, "op_row": work.op, "duration_ns": work.end - work.start})


def _layers(rows: pd.DataFrame) -> pd.DataFrame:
    """For each op and shapes, the layer with most of its time and that layer's share."""
    key = ["op", "shapes"]
    if "layer" not in rows:
        rows = rows.assign(layer=pd.Categorical([None] * len(rows), categories=pd.Index([], dtype=TEXT)))
    sums = rows.groupby([*key, "layer"], dropna=False, sort=False, observed=True)["duration_ns"].sum().reset_index()
    total = sums.groupby(key, dropna=False, sort=False, observed=True)["duration_ns"].transform("sum")
    sums["layer_share"] = (sums["duration_ns"] / total.where(total > 0)).astype("Float64")
    known = sums[sums["layer"].notna()].sort_values("duration_ns", ascending=False, kind="stable")
    count = known.groupby(key, dropna=False, sort=False, observed=True)["layer"].transform("size")
    known.insert(len(key), "layers", count.astype("Int64"))
    return known.drop_duplicates(key).drop(columns="duration_ns")


def _times(durations: SeriesGroupBy[Any, Any]) -> pd.DataFrame:
    figures = durations.agg(["size", "sum", "mean", "min", "max"])
    return pd.DataFrame(
        {
            "calls": figures["size"],
            "total_ms": figures["sum"] / 1e6,
            "mean_us": figures["mean"] / 1e3,
            "min_us": figures["min"] / 1e3,
            "max_us": figures["max"] / 1e3,
        }
    )


def _heaviest_first(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
