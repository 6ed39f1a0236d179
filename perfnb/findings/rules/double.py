"""Find computations in float64, which need twice as many bytes as float32 and run at half its speed or less."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.proposed_code import lever_line
from perfnb.recording.text import TEXT
from perfnb.roofline.levels import RooflineLevels

#: The lowest speedup of float32: it moves half as many bytes, and a vector register fits twice as many numbers.
_FASTER = 2.0
#: The highest factor on top of that, because half as many bytes may fit into a faster cache.
_IN_CACHE = 1.5
_CONVERTS = r"aten::(?:to|_to_copy|copy_)$"


@rule("float64", "Computes in float64", "computing in float32", worth=0.05)
def float64(facts: Facts) -> Iterator[Finding]:
    """Find float64 ops inside and outside the model.

    The bound is their time minus the estimated time of the same ops in float32.
    """
    record, roofline = facts.recording.arithmetic, facts.figures.roofline
    if record is None or roofline is None:
        return
    ops = _in_float64(facts, record.calls, roofline)
    if ops.empty:
        return
    double, single = (float(roofline.peaks.get(dtype) or 0.0) for dtype in ("float64", "float32"))
    faster = max(single / double, _FASTER) if double and single else _FASTER
    saved = ops["ms"] * (1 - 1 / (_IN_CACHE * ops["multiplies"].map({True: faster, False: _FASTER})))
    saved = saved.where(~ops.index.str.match(_CONVERTS), ops["ms"])  # nothing needs to be converted then
    points = roofline.points
    layers = points[(points["kind"] == "layer") & (points["dtype"] == "float64").fillna(False)]
    names = [str(name) for name in layers.sort_values("ms", ascending=False, kind="stable")["name"].head(3)]
    model = facts.variable(names[0]) if names else None
    where = "" if names else " All of these ops are outside the model."
    takes = facts.applicable("float32") and not facts.optimizers
    yield Finding(
        f"Ops in float64 take {facts.of_step(float(ops['ms'].sum()))}. {_rates(double, single)} Other ops would move "
        f"half as many bytes, which may fit into a faster cache.{where}",
        float(saved.sum()),
        "Compute in float32 unless the problem requires more precision. NumPy arrays are float64 by default, and so "
        "are tensors created from them. Convert the model before you create its optimizer.",
        # The state of an optimizer would stay in float64.
        "medium",
        "The time in float64 was measured. The time in float32 is an estimate, and short ops gain less.",
        "Whether the results are still accurate enough in float32.",
        rows("layer", names) + rows("op", ops["ms"].nlargest(2).index),
        code=lever_line("float32", model) if model and takes and not facts.optimizer_classes else "",
        remedy="float32",
    )


def _rates(double: float, single: float) -> str:
    if not double or not single:
        return "The speedup of matrix products in float32 was not measured on this machine."
    return f"On this machine, large matrix products run {single / double:.2g} times as fast in float32."


def _in_float64(facts: Facts, calls: pd.DataFrame, roofline: RooflineLevels) -> pd.DataFrame:
    """For each operator, return the ``ms`` of its float64 calls per timed step, and whether it ``multiplies``."""
    op, dtype = calls["op"].astype(TEXT), calls["dtype"].astype(object)
    # The time of an operator is divided among its calls by their arithmetic or, if there is none, by their bytes.
    peak = dtype.map(dict(roofline.peaks)).astype("Float64")
    work = (calls["flops"].astype("Float64") / peak).fillna(0.0).astype(float)
    multiplies = work.groupby(op).transform("sum") > 0
    weight = work.where(multiplies, calls["bytes"].astype("Float64").fillna(0.0).astype(float))
    share = weight.where(dtype == "float64", 0.0).groupby(op).sum() / weight.groupby(op).sum()
    points = roofline.points[roofline.points["kind"] == "op"].set_index("name")
    traced_ms = float(facts.attribution.cells["corrected_ns"].sum()) / 1e6 / facts.steps
    # For a step on the host, the parts add up to a timed step.
    scale = 1.0 if facts.gpu is not None or traced_ms <= 0 else facts.per_step(facts.cells_ns.sum()) / traced_ms
    ms = points["ms"].astype("Float64").fillna(0.0).astype(float) * scale * share.reindex(points.index)
    return pd.DataFrame({"ms": ms, "multiplies": ms.index.isin(op[multiplies])})[ms > 0]
