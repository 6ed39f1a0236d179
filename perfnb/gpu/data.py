"""The GPU tab's data for the browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.gpu.view import (
    KIND_WORDS,
    PART_WORDS,
    SAVES_WORDS,
    device_word,
    headline,
    launch_figures,
    launch_sentence,
    layer_words,
    path_title,
    shape_words,
)

if TYPE_CHECKING:
    from perfnb.gpu.summary import GpuSummary, PathFacts

#: Longest kernel name, in cells.
KERNEL_WIDTH = 400
_NONE = -1


def gpu_data(summary: GpuSummary) -> dict[str, Any]:
    """Everything the GPU tab shows, ready for JSON; unknown figures are ``None``.

    Times are milliseconds. ``parts`` of a device or step follow the order of ``marks``. Name columns hold places in
    ``names``, -1 for none.
    """
    names: dict[str, int] = {}
    kernels = summary.kernels
    queue = summary.queue
    steps = summary.steps if len(summary.steps) > len(summary.devices) else summary.steps.head(0)
    return {
        "busy": fmt.short(summary.busy),
        "headline": _together(headline(summary)),
        "marks": [{**mark.data, "title": PART_WORDS[name]} for name, mark in palette.GPU.items()],
        "devices": [_bar(row, device_word(row.device)) for row in summary.devices.itertuples(index=False)],
        "steps": [_bar(row, _step_word(row, summary)) for row in steps.itertuples(index=False)],
        "steps_in_all": summary.steps_in_all,
        "path": None if summary.path is None else _path(summary.path),
        "launches": [[word, value, *map(_together, rest)] for word, value, *rest in launch_figures(summary)],
        "sentence": _together(launch_sentence(summary)),
        "queue": None
        if queue is None
        else {
            "start_ms": fmt.short(queue.start_ms),
            "piece_ms": fmt.short(queue.piece_ms, 9),
            "devices": [
                [device_word(device), [fmt.short(value, 4) for value in queue.mean[device]], values.tolist()]
                for device, values in queue.longest.items()
            ],
        },
        "kernels": {
            "op": [_place(names, value) for value in kernels["op"]],
            "shapes": [_place(names, shape_words(value)) for value in kernels["shapes"]],
            "kernel": [_place(names, value, KERNEL_WIDTH) for value in kernels["kernel"]],
            "layers": [_place(names, layer_words(row) or None) for row in kernels.itertuples(index=False)],
            **{
                name: [fmt.short(value) for value in kernels[name]]
                for name in ("kernels", "calls", "total_ms", "mean_us", "share")
            },
        },
        "kernels_in_all": summary.kernels_in_all,
        "names": list(names),
        "notes": [escape.plain(note, 2000) for note in summary.notes],
    }


def _bar(row: Any, word: str) -> dict[str, Any]:
    return {
        "word": word,
        "total_ms": fmt.short(row.total_ms),
        "parts": [fmt.short(getattr(row, name)) for name in palette.GPU],
        "overlap_ms": fmt.short(row.overlap_ms),
    }


def _step_word(row: Any, summary: GpuSummary) -> str:
    return f"step {row.step}" if len(summary.devices) == 1 else f"step {row.step}, {device_word(row.device)}"


def _path(path: PathFacts) -> dict[str, Any]:
    kinds, ops = path.kinds, path.ops
    marks = [palette.PATH[str(kind)] for kind in kinds["kind"]]
    return {
        "title": _together(path_title(path)),
        "saves_title": SAVES_WORDS,
        "kinds": [
            {**mark.data, "title": KIND_WORDS[str(kind)], **_figures(row)}
            for mark, kind, row in zip(marks, kinds["kind"], kinds.itertuples(index=False), strict=True)
        ],
        "ops": [{"word": escape.plain(row.op), **_figures(row)} for row in ops.itertuples(index=False)],
    }


def _figures(row: Any) -> dict[str, float | None]:
    return {"ms": fmt.short(row.path_ms), "share": fmt.short(row.share), "saves_ms": fmt.short(row.saves_ms)}


def _place(names: dict[str, int], value: Any, width: int = escape.MAX_NAME) -> int:
    return _NONE if pd.isna(value) else names.setdefault(escape.plain(value, width), len(names))


def _together(sentence: str) -> str:
    """Put no-break spaces between figures and their units."""
    return re.sub(r"(?<=\d) (?=%|[mµ]?s\b)", "\N{NO-BREAK SPACE}", sentence)
