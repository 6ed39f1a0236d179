"""Compute a step's FLOPs and bytes by layer and by operator.

A layer's FLOPs are the sum over its operators that have a formula. `uncounted_ops` lists the time of all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, owner_names
from perfnb.attribution.tables import DIRECTIONS, op_times
from perfnb.recording.nesting import NONE, Floats, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT, is_one_of, of_labels
from perfnb.trace_names import OP_SPAN, SPAN_CATEGORY, number_behind

_AMOUNTS = ("flops", "bytes", "uncounted")


def counted_ops(recording: Recording, attribution: Attribution, calls: pd.DataFrame) -> pd.DataFrame:
    """Add the block and layer that own each counted operator.

    Parameters
    ----------
    recording, attribution
        The recording of the counted step, and its attribution.
    calls : DataFrame
        ``op``, ``flops`` (NA if there is no formula), ``bytes`` and ``dtype``, indexed by call number.

    Returns
    -------
    DataFrame
        `calls` with the additional columns ``block`` (index of the block, -1 outside the step), ``span`` (index of the
        layer span that owns it, -1 if there is none), ``layer`` (row in the layer table, empty if there is none),
        ``direction`` and ``phase``.
    """
    block = _block_of_calls(recording, attribution).reindex(calls.index, fill_value=NONE).to_numpy()
    cells = attribution.cells
    owners = np.append(owner_names(recording, attribution), "")  # the last element of each is for calls without a block
    direction, phase = (np.append(cells[name].to_numpy(dtype=object), "") for name in ("direction", "phase"))
    return calls.assign(
        op=calls["op"].astype(TEXT),
        dtype=calls["dtype"].astype(TEXT),
        flops=calls["flops"].astype("Int64"),
        bytes=calls["bytes"].astype("int64"),
        block=block,
        span=np.append(cells["span"].to_numpy(), NONE)[block],
        layer=owners[block],
        direction=direction[block],
        phase=phase[block],
    )


def _block_of_calls(recording: Recording, attribution: Attribution) -> pd.Series:
    """Return the block that contains each counted operator's span, indexed by the operator's number."""
    names, host = recording.events["name"], attribution.host
    number = of_labels(names, partial(number_behind, OP_SPAN), NONE)[host.rows]
    # A user range may have the same name.
    ours = (number != NONE) & (recording.events["category"] == SPAN_CATEGORY).to_numpy()[host.rows]
    found = pd.Series(host.block[ours], index=number[ours])
    return found[~found.index.duplicated()]


def arithmetic_per_span(attribution: Attribution, counted: pd.DataFrame) -> dict[str, Floats]:
    """Return the work of each layer span without its children, indexed by block.

    The columns are ``forward_flops``, ``forward_bytes``, ``forward_uncounted`` (calls without a formula), and the same
    columns for backward and recompute.
    """
    owned = counted[counted["span"] != NONE]
    sums = _by_direction(owned, "span", owned["direction"]).reindex(range(len(attribution.cells)), fill_value=0)
    return {str(name): values.to_numpy(dtype=np.float64) for name, values in sums.items()}


def special_arithmetic(counted: pd.DataFrame) -> pd.DataFrame:
    """Return the same sums for the rows in the layer table that are not modules, by row."""
    rows = counted[(counted["span"] == NONE) & (counted["layer"] != "")]
    return _by_direction(rows, "layer", (rows["phase"] == "forward").map({True: "forward", False: "backward"}))


def _by_direction(calls: pd.DataFrame, by: str, direction: pd.Series) -> pd.DataFrame:
    amounts = calls.assign(uncounted=calls["flops"].isna())[[*_AMOUNTS]].fillna(0).astype("Int64")
    sums = {
        f"{way}_{amount}": amounts[amount].where(direction == way, 0).groupby(calls[by]).sum()
        for amount in _AMOUNTS
        for way in DIRECTIONS
    }
    return pd.DataFrame(sums)


def work_by(counted: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the work by ``layer`` (each row in the layer table, excluding child layers) or by ``op``.

    The columns are ``calls`` (number of operator calls), ``uncounted`` (number of calls without a formula), ``flops``
    (of all other calls), ``bytes``, and ``dtype`` (the dtype with the most FLOPs; ties are broken by the number of
    bytes and then by name). FLOPs are missing if none of the calls had a formula. They are also missing if the calls
    with a formula did no arithmetic and there were other calls without a formula.
    """
    counted = counted[counted[by] != ""]
    unknown = counted["flops"].isna()
    calls = counted[[by, "dtype", "bytes"]].assign(flops=counted["flops"].fillna(0), uncounted=unknown)
    sums = calls.groupby(by, sort=False).agg(
        calls=("uncounted", "size"), uncounted=("uncounted", "sum"), flops=("flops", "sum"), bytes=("bytes", "sum")
    )
    missing = (sums["uncounted"] == sums["calls"]) | ((sums["flops"] == 0) & (sums["uncounted"] > 0))
    of_dtypes = calls.groupby([by, "dtype"])[["flops", "bytes"]].sum().reset_index()
    of_dtypes = of_dtypes.sort_values(["flops", "bytes", "dtype"], ascending=[False, False, True])
    table = sums.assign(flops=sums["flops"].mask(missing), dtype=of_dtypes.drop_duplicates(by).set_index(by)["dtype"])
    table.index = table.index.astype(TEXT)
    return table.astype({"calls": "int64", "uncounted": "int64", "flops": "Int64", "bytes": "Int64", "dtype": TEXT})


def main_dtype(counted: pd.DataFrame) -> str | None:
    """Return the dtype with the most FLOPs in a step, or ``None`` if there are no FLOPs."""
    flops = counted.groupby("dtype")["flops"].sum()
    return str(flops.idxmax()) if len(flops) and flops.max() > 0 else None


def time_by_layer(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """Return the self time per step of each row in the layer table.

    The columns are ``ms`` (host time without tracing overhead) and ``gpu_ms``.
    """
    cells = attribution.cells[["corrected_ns", "gpu_ns"]]
    sums = cells.groupby(owner_names(recording, attribution)).sum() / 1e6 / max(attribution.steps, 1)
    return pd.DataFrame({"ms": sums["corrected_ns"], "gpu_ms": sums["gpu_ns"]}).rename_axis("layer")


def time_by_op(recording: Recording, attribution: Attribution, names: Iterable[str]) -> pd.DataFrame:
    """Return the time per traced step of each counted operator: ``ms`` on the host and ``gpu_ms``.

    Operators can call each other, so an operator's time includes everything inside its outermost call. Work outside
    operators, such as that of autograd and the dispatcher, does not belong to any operator.

    Parameters
    ----------
    recording, attribution
        The recording of the traced steps, and its attribution.
    names : iterable of str
        The names of the counted operators.
    """
    host, calls = attribution.host, op_times(recording, attribution.host)
    counted = host.is_op & is_one_of(recording.events["name"], frozenset(names))[host.rows]
    around = outermost(host.calls, counted)[calls.index.to_numpy()]
    inside = calls[around != NONE]
    owner = calls["op"].reindex(around[around != NONE]).array
    sums = inside.groupby(owner, observed=True)[["self_ns", "gpu_ns"]].sum() / 1e6 / max(attribution.steps, 1)
    sums.index = sums.index.astype(TEXT)
    return pd.DataFrame({"ms": sums["self_ns"], "gpu_ms": sums["gpu_ns"]}).rename_axis("op")


def uncounted_ops(counted: pd.DataFrame, times: pd.DataFrame, whole_ms: float, *, on_gpu: bool = False) -> pd.DataFrame:
    """Return the operators without a formula, in descending order of time.

    The columns are ``op``, ``calls``, ``ms`` and ``share`` of a step.

    Parameters
    ----------
    counted : DataFrame
        The result of `counted_ops`.
    times : DataFrame
        The result of `time_by_op`.
    whole_ms : float
        The duration of a traced step or, if `on_gpu` is true, of all of its GPU work.
    on_gpu : bool
        Whether to report GPU times.
    """
    unknown = counted["flops"].isna().groupby(counted["op"]).agg(["sum", "mean"])
    unknown = unknown[unknown["sum"] > 0]
    ms = times["gpu_ms" if on_gpu else "ms"].reindex(unknown.index)
    table = pd.DataFrame(
        {
            "op": unknown.index.astype(TEXT),
            "calls": unknown["sum"].to_numpy(dtype=np.int64),
            "ms": pd.array((ms * unknown["mean"]).to_numpy(dtype=float), dtype="Float64"),
        }
    )
    table["ms"] = table["ms"].mask(ms.isna().to_numpy())
    table["share"] = table["ms"] / whole_ms if whole_ms > 0 else pd.array([pd.NA] * len(table), dtype="Float64")
    return table.sort_values("ms", ascending=False, kind="stable", ignore_index=True)
