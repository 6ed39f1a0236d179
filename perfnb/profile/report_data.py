"""What the report in the browser is drawn from: short columns of numbers and names, as JSON has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.tree import build_tree, split_layers
from perfnb.findings.view_data import findings_data
from perfnb.gpu.data import gpu_data
from perfnb.memory.data import memory_data
from perfnb.profile.noise import notes_of
from perfnb.profile.summary import Summary
from perfnb.roofline.data import roofline_data
from perfnb.watching.data import machine_data

#: Columns of numbers that the browser gets of each frame.
LAYER_COLUMNS = (
    "calls", "forward_ms", "backward_ms", "recompute_ms", "total_ms", "self_ms", "share", "self_share",
    "forward_flops", "backward_flops", "recompute_flops", "moved_bytes", "parameters", "parameter_bytes",
    "activation_bytes", "peak_bytes", "ops", "kernels", "gpu_ms",
)  # fmt: skip
OP_COLUMNS = ("calls", "self_cpu_ms", "total_cpu_ms", "gpu_ms", "flops", "bytes")
LAYER_OP_COLUMNS = ("calls", "self_cpu_ms", "gpu_ms")

#: Significant digits of figures in tables, and of the few that stand out and must not be rounded twice.
_DIGITS, _HEADLINE_DIGITS = 6, 9
_NOWHERE = -1
_NOT_ATTRIBUTED = {"", "nan", "None", "<NA>"}


def report_data(
    summary: Summary, report_id: str = "report", timeline: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that the browser shows, ready for JSON; unknown figures are ``None``.

    Parameters
    ----------
    summary : Summary
    report_id : str
        Ties the live report to its static twin, whose class is ``perfnb-static-<report_id>``.
    timeline : mapping, optional
        Facts of the timeline, which travels beside the report; see `perfnb.timeline.data.timeline_bytes`.
    """
    modules, special = split_layers(summary.layers)
    layers = pd.concat([modules, special])
    tree = build_tree(modules)
    timing = summary.timing
    places = _places(summary)
    op_names = list(dict.fromkeys([*map(str, summary.ops.index), *map(str, summary.layer_ops["op"])]))
    ops = {name: position for position, name in enumerate(op_names)}
    layer_ops = summary.layer_ops
    return {
        "id": report_id,
        "name": escape.plain(summary.name),
        "device": escape.plain(summary.device),
        "source": None if summary.source is None else escape.plain(summary.source),
        "step": {
            "median_ms": _exact(timing.median_ms if timing.steps else None),
            "ci_ms": [_exact(bound) for bound in timing.ci_ms] if timing.steps and timing.ci_ms else None,
            "samples_ms": _numbers(timing.samples_ms[:500]),
            "steps": timing.steps,
            "basis": timing.basis,
            "throughput_per_s": _exact(timing.throughput_per_s if timing.steps else None),
            "batch_size": timing.batch_size,
            "traced_ms": _exact(summary.traced_ms),
            "until_gpu_ms": _exact(summary.until_gpu_ms),
            "slowdown": _exact(summary.slowdown),
            "executed": [[fmt.PASS_WORDS.get(name, escape.plain(name)), n] for name, n in summary.executed.items()],
        },
        "phases": [
            {
                "word": escape.plain(mark.word),
                "colour": mark.colour,
                "pattern": mark.pattern,
                "ms": _number(row["ms"]),
                "share": _number(row["share"]),
            }
            for mark, row in ((palette.mark(str(name)), row) for name, row in summary.phases.iterrows())
        ],
        "layers": {
            "label": [escape.plain(label) for label in (*tree.labels, *map(str, special.index))],
            "parent": [*tree.parents, *[_NOWHERE] * len(special)],
            "module": [None if pd.isna(kind) else escape.plain(kind) for kind in layers["module"]],
            "modules": len(modules),
            **_columns(layers, LAYER_COLUMNS),
        },
        "ops": {
            "label": [escape.plain(name) for name in op_names],
            **_columns(_one_row_each(summary.ops).reindex(op_names), OP_COLUMNS),
        },
        "layer_ops": {
            "layer": [
                _NOWHERE if str(n) in _NOT_ATTRIBUTED else places.get(str(n), _NOWHERE) for n in layer_ops["layer"]
            ],
            "op": [ops[str(name)] for name in layer_ops["op"]],
            "direction": [str(direction) for direction in layer_ops["direction"]],
            **_columns(layer_ops, LAYER_OP_COLUMNS),
        },
        "findings": None if summary.findings is None else findings_data(summary.findings, places, ops),
        "memory": None if summary.memory is None else memory_data(summary.memory),
        "roofline": None if summary.roofline is None else roofline_data(summary.roofline),
        "gpu": None if summary.gpu is None else gpu_data(summary.gpu),
        "machine": None if summary.machine is None else machine_data(summary.machine),
        "timeline": None if timeline is None else dict(timeline),
        "hot_path": [places[name] for name in map(str, summary.hot_path) if name in places],
        "notes": [escape.plain(note, 2000) for note in notes_of(summary)],
    }


def layer_rows(summary: Summary, names: Iterable[str]) -> list[int]:
    """The row that each layer has in the report; -1 for one that has none."""
    places = _places(summary)
    return [places.get(name, _NOWHERE) for name in names]


def _places(summary: Summary) -> dict[str, int]:
    names = [str(name) for part in split_layers(summary.layers) for name in part.index]
    return {name: position for position, name in reversed(list(enumerate(names)))}


def _one_row_each(frame: pd.DataFrame) -> pd.DataFrame:
    named = frame.set_axis(frame.index.map(str), axis=0)
    return named[~named.index.duplicated()]


def _columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, list[float | None] | None]:
    """The columns of `frame`; ``None`` for one in which nothing is known."""
    known = {name: frame[name] for name in names if frame[name].notna().any()}
    return {name: _numbers(known[name]) if name in known else None for name in names}


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: Any, digits: int = _DIGITS) -> float | None:
    number = fmt.known(value)
    if number is None:
        return None
    short = fmt.rounded(number, digits)
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def _exact(value: Any) -> float | None:
    return _number(value, _HEADLINE_DIGITS)
