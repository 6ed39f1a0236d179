"""The roofline chart's data for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape

if TYPE_CHECKING:
    from perfnb.roofline.levels import Roofline

#: Most layers and ops sent to the browser, heaviest first.
MOST_LAYERS, MOST_OPS = 400, 100

_POINT_COLUMNS = {
    "flops": "flops",
    "bytes": "bytes",
    "ms": "ms",
    "intensity": "intensity",
    "achieved": "achieved_flops_per_s",
    "attainable": "attainable_flops_per_s",
    "efficiency": "efficiency",
}


def roofline_data(roofline: Roofline) -> dict[str, Any]:
    """Everything the roofline tab shows, ready for JSON; unknown figures are ``None``."""
    points = heaviest_points(roofline.points)
    uncounted = roofline.uncounted.head(MOST_OPS)
    return {
        "device": escape.plain(roofline.device),
        "peaks": [[escape.plain(dtype, 40), fmt.short(peak)] for dtype, peak in roofline.peaks.items()],
        "bandwidth": fmt.short(roofline.bandwidth),
        "doubt": fmt.capital(doubt) + "." if (doubt := ceilings_doubt(roofline)) else "",
        "utilisation": fmt.short(roofline.utilisation),
        "flops": roofline.flops,
        "points": {
            "op": [int(kind == "op") for kind in points["kind"]],
            "name": [escape.plain(name) for name in points["name"]],
            "bound": [None if pd.isna(bound) else str(bound) for bound in points["bound"]],
            "dtype": [None if pd.isna(dtype) else escape.plain(dtype, 40) for dtype in points["dtype"]],
            **{short: [fmt.short(value) for value in points[column]] for short, column in _POINT_COLUMNS.items()},
            "left_out": len(roofline.points) - len(points),
        },
        "uncounted": {
            "op": [escape.plain(name) for name in uncounted["op"]],
            "calls": [fmt.short(value) for value in uncounted["calls"]],
            "ms": [fmt.short(value) for value in uncounted["ms"]],
            "share": [fmt.short(value) for value in uncounted["share"]],
            "total_share": fmt.short(roofline.uncounted["share"].sum()) if len(roofline.uncounted) else None,
        },
    }


def ceilings_doubt(roofline: Roofline) -> str:
    """Why the ceilings may be too low; empty if nothing suggests it."""
    doubts = [
        f"the measured {escape.plain(dtype, 40)} ceiling ({fmt.flops(peak)}/s) was too low: part of this step ran "
        "faster, and its rate is used instead"
        for dtype, peak in roofline.refuted.items()
    ]
    if roofline.ceilings_doubted:
        used = fmt.share(roofline.others)
        doubts.append(f"other programs used {used} of the CPUs while the ceilings were measured: they may be too low")
    return "; ".join(doubts)


def heaviest_points(points: pd.DataFrame) -> pd.DataFrame:
    """The layers, then the ops, with the most time: as many as are drawn, heaviest first."""
    ordered = points.sort_values("ms", ascending=False, kind="stable")
    layers, ops = ordered[ordered["kind"] != "op"], ordered[ordered["kind"] == "op"]
    return pd.concat([layers.head(MOST_LAYERS), ops.head(MOST_OPS)])
