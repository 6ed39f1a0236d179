"""The GPU tab: its sentences, text, static HTML, and data for the browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.document import Document, Picture
from perfnb.draw.tab import Tab
from perfnb.recording.nesting import NONE

if TYPE_CHECKING:
    from perfnb.gpu.summary import GpuSummary, PathFacts

#: Most kernels, and critical path parts by op, listed.
KERNELS_IN_HTML, KERNELS_IN_TEXT, OPS_IN_TEXT = 15, 5, 4
_MOST_DEVICES = 16


def gpu_html(summary: GpuSummary) -> str:
    """The GPU tab as bars and tables."""
    return "".join(
        [
            f"<p><strong>GPU</strong> · {escape.html_sentence(headline(summary))}</p>",
            *_devices_html(summary),
            _path_html(summary),
            _launches_html(summary),
            _kernels_html(summary),
            "".join(f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in summary.notes),
        ]
    )


def gpu_text(summary: GpuSummary, width: int = 100) -> list[str]:
    """The GPU tab as lines of at most `width` cells."""
    lines = escape.wrapped(f"GPU · {headline(summary)}", width)
    for row in _rows(summary.devices.head(_MOST_DEVICES)):
        shown = _shown(row)
        marks = [palette.GPU[name] for name, _ in shown]
        if len(summary.devices) > 1:
            lines.append(f"{device_word(row.device)}, {fmt.duration(row.total_ms)}")
        lines.append(bars.stacked(marks, [ms for _, ms in shown], width))
        figures = [(fmt.duration(ms), fmt.share(ms / row.total_ms)) for _, ms in shown]
        lines += bars.legend([(mark, *both) for mark, both in zip(marks, figures, strict=True)], width)
    if summary.path is not None and len(summary.path.kinds):
        lines += escape.wrapped(f"{path_title(summary.path)} (saves: at most, if the part took no time)", width)
        kinds = summary.path.kinds
        heaviest = kinds[kinds["share"] >= min(0.01, kinds["share"].max())]
        parts = [(palette.PATH[str(row.kind)].word, row) for row in _rows(heaviest)]
        parts += [(row.op, row) for row in _rows(summary.path.ops.head(OPS_IN_TEXT))]
        for word, row in parts:
            on_path, share, saves = fmt.duration(row.path_ms), fmt.share(row.share), fmt.duration(row.saves_ms)
            lines.append(f"  {escape.fit(word, min(48, width - 35))} {on_path:>8} {share:>6}   saves {saves:>8}")
    lines += escape.wrapped(launch_sentence(summary), width)
    lines += _kernels_text(summary, width)
    for note in summary.notes:
        lines += escape.wrapped(escape.plain(note, 2000), width)
    return [line.rstrip() for line in lines]


def _shown(row: Any) -> list[tuple[str, float]]:
    """The nonzero parts of a device's time."""
    parts = [(name, fmt.known(getattr(row, name)) or 0.0) for name in palette.GPU]
    return [(name, ms) for name, ms in parts if ms > 0]


def _devices_html(summary: GpuSummary) -> list[str]:
    rows, drawn = [], []
    for row in _rows(summary.devices.head(_MOST_DEVICES)):
        shown = _shown(row)
        drawn.append(tables.full_bar([(palette.GPU[name], ms) for name, ms in shown], row.total_ms))
        for name, ms in shown:
            share = escape.html(fmt.share(ms / row.total_ms))
            rows.append((device_word(row.device), tables.keyed(palette.GPU[name]), fmt.duration(ms), share))
    caption = "What each GPU did, from its first to its last activity"
    return [*drawn, tables.table(caption, ["GPU", "what", "time", "share"], rows, texts=2)]


def _path_html(summary: GpuSummary) -> str:
    path = summary.path
    if path is None or not len(path.kinds):
        return ""
    heads = ["part", "path", "share", "saves up to"]
    kinds = [(tables.keyed(palette.PATH[str(row.kind)]), *_figures(row)) for row in _rows(path.kinds)]
    ops = [(tables.name(row.op), *_figures(row)) for row in _rows(path.ops)]
    by_op = tables.table("By op, including the work it launched", heads, ops) if ops else ""
    return tables.table(escape.html_sentence(path_title(path)), heads, kinds) + by_op


def _figures(row: Any) -> tuple[str, str, str]:
    return fmt.duration(row.path_ms), escape.html(fmt.share(row.share)), fmt.duration(row.saves_ms)


def _launches_html(summary: GpuSummary) -> str:
    rows = [tuple(map(escape.html, (word, small, value))) for word, value, small, _ in launch_figures(summary)]
    table = tables.table("Launches", ["", "", ""], rows, texts=2)
    return f"{table}<p>{escape.html_sentence(launch_sentence(summary))}</p>"


def _kernels_html(summary: GpuSummary) -> str:
    first = summary.kernels.head(KERNELS_IN_HTML)
    rows = [
        (
            tables.name("unknown op" if pd.isna(row.op) else row.op),
            tables.name(shape_words(row.shapes) or "", 40),
            "" if pd.isna(row.kernel) else tables.name(row.kernel, 40),
            tables.name(layer_words(row), 50),
            fmt.count(row.calls),
            fmt.duration(row.total_ms),
            fmt.duration(row.mean_us / 1e3),
            escape.html(fmt.share(row.share)),
        )
        for row in _rows(first)
    ]
    left = summary.kernels_in_all - len(first)
    more = f"; {left:,} more not listed" if left > 0 else ""
    heads = ["op", "shapes", "heaviest kernel", "layers", "calls", "total", "mean", "share"]
    return tables.table(f"Kernels, copies and fills per step, by op and input shapes{more}", heads, rows, texts=4)


def _kernels_text(summary: GpuSummary, width: int) -> list[str]:
    if not len(summary.kernels):
        return []
    names = width - 35
    lines = [f"{'kernels per step by op and input shapes':<{names}} {'calls':>7} {'total':>9} {'mean':>8} {'share':>7}"]
    for row in _rows(summary.kernels.head(KERNELS_IN_TEXT)):
        name = f"{row.kernel}" if pd.isna(row.op) else f"{row.op} {shape_words(row.shapes) or ''}".rstrip()
        figures = f"{fmt.count(row.calls):>7} {fmt.duration(row.total_ms):>9} {fmt.duration(row.mean_us / 1e3):>8}"
        lines.append(f"{escape.fit(name, names)} {figures} {fmt.share(row.share):>7}")
    left = summary.kernels_in_all - KERNELS_IN_TEXT
    return [*lines, f"… {left:,} more"] if left > 0 else lines


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


#: The parts of a GPU's time, explained.
PART_WORDS = {
    "computation": "At least one kernel was computing; memory fills count too.",
    "communication": "Only NCCL or RCCL kernels ran: communication with other GPUs that computation did not hide.",
    "memcpy": "Only copies ran: from the host, to the host, or on the GPU.",
    "host": "Nothing ran because the host had not launched the next work yet, or only just: a launch takes a few µs.",
    "dependency": "The next work was launched but had to wait: for the work before it, an event on another stream, or "
    "its turn in a CUDA graph.",
    "other": "Nothing ran although the next work was launched, and the trace does not show why; or its launch is not "
    "in the trace.",
}

#: The kinds of critical path segments, explained.
KIND_WORDS = {
    "computation": "A kernel that the step had to wait for",
    "communication": "An NCCL or RCCL kernel that the step had to wait for",
    "memcpy": "A copy that the step had to wait for",
    "delay": "From the end of one kernel to the start of the one that waited for it",
    "launch": "From the start of a launch call to the start of its kernel, if the kernel waited for nothing else",
    "operator": "The host running ops such as aten::mm",
    "call": "The host in CUDA or HIP calls: launching, allocating, copying",
    "host": "The host outside ops and GPU calls: Python and other code",
    "synchronisation": "From the end of the awaited work until the blocking call returned",
    "handover": "From the end of the forward thread's work to the start of the backward thread's, or back",
    "unknown": "The trace does not show what was waited for, so no saving is given: for instance between a launch and "
    "work that started much later although nothing known ran before it",
}

SAVES_WORDS = (
    "How much shorter the step would be if this took no time and everything else took as long as it did; often "
    "another path is nearly as long"
)

_SHAPES, _SHAPE = re.compile(r"\[[][0-9, ]*\]"), re.compile(r"\[([0-9][0-9, ]*)\]")

#: Share of idle time above which waiting for the host is mentioned, and above which it is the main point.
_SOME, _MUCH = 0.05, 0.3
#: First work to last stands for the steps if it covers more than this share of them.
_COVERED = 0.7
#: Share of short kernels above which it is mentioned.
_SHORT = 0.2


def headline(summary: GpuSummary) -> str:
    """How busy the GPUs were, and the main reason they were idle."""
    devices = summary.devices
    total = float(devices["total_ms"].sum())
    each = total / len(devices)
    who = "The GPU was" if len(devices) == 1 else f"{len(devices)} GPUs were"
    said = f"{who} busy {fmt.share(summary.busy)} of {fmt.duration(each)} from first to last activity"
    if _much_longer(summary):
        busy = fmt.share(summary.busy * each / summary.whole_ms)
        steps = summary.path.steps_in_all if summary.path is not None else summary.steps_in_all
        whole = ("step" if steps == 1 else "steps") if summary.steps_marked else "trace"
        said += f" ({busy} of the {whole}, {fmt.duration(summary.whole_ms)})"
    why = max(("host", "dependency", "other"), key=lambda name: _part(summary, name))
    if (most := _part(summary, why)) < 0.01:
        return f"{said}."
    because = {
        "host": "the host launched the next work too late",
        "dependency": "launched work waited for other work or an event",
        "other": "of something the trace does not show",
    }[why]
    if why == "host" and _part(summary, "latency") > most / 2:
        because = "of launch latency"
    elif why == "other" and _part(summary, "unknown") > most / 2:
        because = "of something unknown: the launch of the next work is not in the trace"
    return f"{said}, and idle {fmt.share(most)} of it because {because}."


def _part(summary: GpuSummary, name: str) -> float:
    """Share of the devices' time."""
    total = float(summary.devices["total_ms"].sum())
    return float(summary.devices[name].sum()) / total if total else 0.0


def _much_longer(summary: GpuSummary) -> bool:
    """Whether the steps, or the trace, last much longer than first work to last."""
    return float(summary.devices["total_ms"].mean()) < _COVERED * summary.whole_ms


def launch_sentence(summary: GpuSummary) -> str:
    """Whether launches kept up with the GPU, and if not, why."""
    facts = summary.launches
    if not facts.known:
        return "The trace contains no launches, so launch overhead is unknown."
    doubt = "This trace does not show whether launches keep up with the GPU"
    known, lost = facts.known / facts.launched, _part(summary, "unknown")
    if known < 0.5 or lost >= _SOME:
        idle = f", and the GPU was idle {fmt.share(lost)} of its time before them" if lost >= _SOME else ""
        return f"{doubt}: it lacks the launches of {fmt.share(1 - known)} of the kernels, copies and fills{idle}."
    late, short = _part(summary, "host"), facts.short_share or 0.0
    if summary.pieces <= len(summary.devices):
        return f"{doubt}: only one kernel, copy or fill ran."
    if late < _SOME:
        often = f"idle {fmt.share(late)} of its time" if fmt.share(late) != "0 %" else "never idle"
        hidden = f", although {fmt.share(short)} of the kernels were shorter than their launch"
        between = " between its first and last activity" if _much_longer(summary) else ""
        said = f"Launches keep up with the GPU: it was {often}{between} because the host was late"
        return f"{said}{hidden if short >= _SHORT else ''}."
    call, latency = _part(summary, "call"), _part(summary, "latency")
    before = max(late - call - latency, 0.0)
    parts = [(before, "before the call"), (call, "inside it"), (latency, "from its return until the work started")]
    named = [f"{fmt.share(part)} {word}" for part, word in parts if part >= 0.005]
    waited = "The GPU waited for the host" if late >= _MUCH else "At times the GPU waited for the host"
    said = f"{waited}: it was idle {fmt.share(late)} of its time until the next launch"
    if len(named) > 1:
        said = f"{said} ({', '.join(named)})"
    if call > before and facts.call_us_95 is not None:
        return f"{said}. Launch calls are slow: the 95th percentile is {fmt.duration(facts.call_us_95 / 1e3)}."
    if short >= _SHORT:
        return (
            f"{said}. {fmt.share(short)} of the kernels were shorter than their launch: larger batches, fused ops or "
            "CUDA graphs need fewer launches."
        )
    return f"{said}. The critical path shows what the host was doing."


def path_title(path: PathFacts) -> str:
    """Which step the path belongs to, and how long it is."""
    if path.step is None:
        return f"Critical path of the whole trace, {fmt.duration(path.total_ms)}"
    working = " with GPU work" if path.steps < path.steps_in_all else ""
    why = f", the only one{working}" if working else ""
    if path.steps > 1:
        why = f", the {'longer' if path.steps == 2 else 'median'} of {path.steps} steps{working}"
    tail = ""
    if path.tail_ms > 0:
        tail = f", including {fmt.duration(path.tail_ms)} on the GPU after the host had finished the step"
    return f"Critical path of step {path.step}{why}: {fmt.duration(path.total_ms)}{tail}"


def launch_figures(summary: GpuSummary) -> list[tuple[str, str, str, str]]:
    """Label, figure, small print, and explanation of each figure."""
    facts = summary.launches

    def upper(value: float | None) -> str:
        return "" if value is None else f"95 % within {fmt.duration(value / 1e3)}"

    def us(value: float | None) -> str:
        return fmt.duration(None if value is None else value / 1e3)

    known = facts.known / facts.launched if facts.launched else 0.0
    return [
        (
            "Launched per step",
            fmt.count(facts.launched),
            "kernels, copies, fills" + ("" if known == 1 else f"; launch known for {fmt.share(known)}"),
            "Kernels, copies and fills that a step submits to the GPU",
        ),
        (
            "Launch call",
            us(facts.call_us),
            upper(facts.call_us_95),
            "Median host time in one launch call; calls that block until their copy is done are left out",
        ),
        (
            "Launch to start",
            us(facts.delay_us),
            upper(facts.delay_us_95),
            "Median time from the start of a launch call to the start of its work: a few µs if the GPU is waiting for "
            "launches, long if work is queued",
        ),
        (
            "Short kernels",
            fmt.share(facts.short_share),
            "shorter than their launch",
            "Kernels that took the host longer to launch than the GPU to run",
        ),
        (
            "Longest queue",
            fmt.count(facts.longest_queue),
            "launched, not started",
            "Most work of one GPU that was launched and had not started",
        ),
        (
            "Queue empty",
            fmt.share(facts.empty_share),
            "of the time",
            "Share of the time, from first work to last, in which no launched work was waiting: when the running work "
            "ends, the GPU has nothing to do",
        ),
    ]


def device_word(device: Any) -> str:
    """``GPU 0``, or ``GPU`` if the trace gives no number."""
    return "GPU" if pd.isna(device) else f"GPU {int(device)}"


def shape_words(shapes: Any) -> str | None:
    """``16 × 4, 4 × 8`` for ``[[16, 4], [4, 8], []]``; empty shapes are dropped, text that is no list stays."""
    if pd.isna(shapes):
        return None
    text = str(shapes)
    if not _SHAPES.fullmatch(text):
        return text
    return ", ".join(" × ".join(one.split(", ")) for one in _SHAPE.findall(text)) or "scalars"


def layer_words(row: Any) -> str:
    """``model.fc1``, or ``12 layers, most (8.6 %) in model.fc1``; empty if no layer is known."""
    if pd.isna(row.layer):
        return ""
    if row.layers == 1 and fmt.known(row.layer_share) == 1:
        return str(row.layer)
    count = "1 layer" if row.layers == 1 else f"{row.layers:,} layers"
    return f"{count}, most ({fmt.share(row.layer_share)}) in {row.layer}"


#: Longest kernel name, in cells.
KERNEL_WIDTH = 400
_KERNEL_FIGURES = ("kernels", "calls", "total_ms", "mean_us", "share")


def gpu_data(summary: GpuSummary) -> dict[str, Any]:
    """Everything the GPU tab shows, ready for JSON; unknown figures are ``None``.

    Times are milliseconds. ``parts`` of a device or step follow the order of ``marks``. Name columns hold places in
    ``names``, -1 for none.
    """
    names: dict[str, int] = {}
    kernels = summary.kernels
    queue = summary.queue
    steps = summary.steps if len(summary.steps) > len(summary.devices) else summary.steps.head(0)
    several = len(summary.devices) > 1
    return {
        "busy": fmt.short(summary.busy),
        "headline": _together(headline(summary)),
        "marks": [{**mark.data, "title": PART_WORDS[name]} for name, mark in palette.GPU.items()],
        "devices": [_bar(row, device_word(row.device)) for row in _rows(summary.devices)],
        "steps": [
            _bar(row, f"step {row.step}" + (f", {device_word(row.device)}" if several else "")) for row in _rows(steps)
        ],
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
            "layers": [_place(names, layer_words(row) or None) for row in _rows(kernels)],
            **{name: list(map(fmt.short, kernels[name])) for name in _KERNEL_FIGURES},
        },
        "kernels_in_all": summary.kernels_in_all,
        "names": list(names),
        "notes": [escape.plain(note, 2000) for note in summary.notes],
    }


def _bar(row: Any, word: str) -> dict[str, Any]:
    parts = [fmt.short(getattr(row, name)) for name in palette.GPU]
    return {"word": word, "total_ms": fmt.short(row.total_ms), "parts": parts, "overlap_ms": fmt.short(row.overlap_ms)}


def _path(path: PathFacts) -> dict[str, Any]:
    return {
        "title": _together(path_title(path)),
        "saves_title": SAVES_WORDS,
        "kinds": [
            {**palette.PATH[str(row.kind)].data, "title": KIND_WORDS[str(row.kind)], **_numbers(row)}
            for row in _rows(path.kinds)
        ],
        "ops": [{"word": escape.plain(row.op), **_numbers(row)} for row in _rows(path.ops)],
    }


def _numbers(row: Any) -> dict[str, float | None]:
    return {"ms": fmt.short(row.path_ms), "share": fmt.short(row.share), "saves_ms": fmt.short(row.saves_ms)}


def _place(names: dict[str, int], value: Any, width: int = escape.MAX_NAME) -> int:
    return NONE if pd.isna(value) else names.setdefault(escape.plain(value, width), len(names))


def _together(sentence: str) -> str:
    """Put no-break spaces between figures and their units."""
    return re.sub(r"(?<=\d) (?=%|[mµ]?s\b)", "\N{NO-BREAK SPACE}", sentence)


TAB = Tab(
    "gpu",
    lambda report: report.summary.gpu,
    lambda part: Document(
        "GPU",
        sections=(
            Picture(
                "gpu",
                "",
                lambda width: gpu_text(part, width),
                lambda: gpu_html(part),
                lambda: gpu_data(part),
                "gpu/js/gpu.js",
                "gpu/js/gpu.css",
                "gpu",
            ),
        ),
    ),
)
