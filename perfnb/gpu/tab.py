"""Show the GPU tab: how busy the GPUs were, what they waited for, and which kernels they ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Budget,
    Choice,
    Column,
    Document,
    Figure,
    Inner,
    Line,
    Part,
    Section,
    Series,
    Table,
    Verdict,
)
from perfnb.draw.palette import Mark
from perfnb.draw.tab import Tab

if TYPE_CHECKING:
    from perfnb.gpu.summary import GpuSummary, PathFacts

#: The maximum numbers of devices and of queues to show.
_MOST_DEVICES, _MOST_QUEUES = 16, 4
#: The section where a row of the table selects the op with the same name.
_OPS = (("ops", "Show in the ops"),)

#: Explanations of the kinds of critical path segments.
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
    "unknown": "The trace does not show the cause of the wait, so the saving is unknown. For example, the work started "
    "much later than its launch, but no other work is known to have run before it",
}

_SAVES = (
    "How much shorter the step would be if this part took no time and everything else took as long as before. The "
    "saving is small if another path is nearly as long"
)
_QUEUED = Mark("longest queue", palette.BLUE, "█", "solid")

_SHAPES, _SHAPE = re.compile(r"\[[][0-9, ]*\]"), re.compile(r"\[([0-9][0-9, ]*)\]")

#: The share of idle time above which waiting for the host is mentioned, and above which it is the main message.
_SOME, _MUCH = 0.05, 0.3
#: The share of short kernels above which it is mentioned.
_SHORT = 0.2
_BECAUSE = {
    "host": "the host launched the next work too late",
    "latency": "work starts late after its launch",
    "dependency": "launched work waited for other work or an event",
    "other": "of something that the trace does not show",
    "unknown": "of something unknown: the launch of the next work is not in the trace",
    "outside": "it had no work before its first and after its last kernel",
}


def gpu_document(summary: GpuSummary) -> Document:
    """Return the document about the GPUs' work, their waits, and the critical path of a step."""
    overlap = float(summary.devices["overlap_ms"].sum())
    words = f"{fmt.duration(overlap)} of communication ran during computation and counts as computation."
    return Document(
        "GPU",
        verdict=gpu_verdict(summary),
        figures=tuple(figure for figure in _figures(summary) if figure.value is not None),
        sections=(*_times(summary), *_queues(summary), _kernels(summary), *_by_name(summary), *_paths(summary.path)),
        notes=(*([words] if overlap > 0 else []), *summary.notes),
    )


def gpu_verdict(summary: GpuSummary) -> Verdict:
    """Return a verdict about how busy the GPUs were, and the main reason why they were idle."""
    idle, several = 1 - summary.busy, len(summary.devices) > 1
    who = f"{len(summary.devices)} GPUs are" if several else "The GPU is"
    named = max(("host", "dependency", "other", "outside"), key=lambda name: _part(summary, name))
    most, main = _part(summary, named), {"host": "latency", "other": "unknown"}.get(named, "")
    because = _BECAUSE[main if main and _part(summary, main) > most / 2 else named]
    if several:
        because = because.replace("it had", "they had").replace("its", "their")
    because = f"{'' if most > 0.8 * idle else 'mostly '}because {because}"
    if idle >= _MUCH:
        said = f"{who} idle for {fmt.share(idle)} of {_whole(summary)}, {because}."
    else:
        said = f"{who} busy {fmt.share(summary.busy)} of {_whole(summary)}"
        said += f", and idle {because}." if most >= 0.01 else "."
    return Verdict("bad" if idle >= _MUCH else "good", said, launch_sentence(summary))


def _whole(summary: GpuSummary) -> str:
    """Return a phrase for the period that shares refer to."""
    if not summary.steps_marked:
        return "the trace"
    return "the traced step" if summary.steps_marked == 1 else f"{summary.steps_marked:,} traced steps"


def _part(summary: GpuSummary, name: str) -> float:
    """Return a part's share of the devices' time."""
    total = float(summary.devices["total_ms"].sum())
    return float(summary.devices[name].sum()) / total if total else 0.0


def launch_sentence(summary: GpuSummary) -> str:
    """Return a sentence about whether launches kept up with the GPU, and if not, why."""
    facts = summary.launches
    if not facts.known:
        return "The trace contains no launches, so launch overhead is unknown."
    doubt = "This trace does not show whether launches keep up with the GPU"
    known, lost = facts.known / facts.launched, _part(summary, "unknown")
    if known < 0.5 or lost >= _SOME:
        idle = f", and the GPU was idle {fmt.share(lost)} of the time before them" if lost >= _SOME else ""
        return f"{doubt}: it lacks the launches of {fmt.share(1 - known)} of the kernels, copies and fills{idle}."
    late, short = _part(summary, "host"), facts.short_share or 0.0
    if late < _SOME:
        often = f"idle {fmt.share(late)} of the time" if fmt.share(late) != "0 %" else "never idle"
        hidden = f", although {fmt.share(short)} of the kernels were shorter than their launch"
        between = " between its first and last work" if _part(summary, "outside") >= _MUCH else ""
        said = f"Launches keep up with the GPU: it was {often}{between} because the host was late"
        return f"{said}{hidden if short >= _SHORT else ''}."
    call, latency = _part(summary, "call"), _part(summary, "latency")
    before = max(late - call - latency, 0.0)
    parts = [(before, "before the call"), (call, "inside it"), (latency, "from its return until the work started")]
    named = [f"{fmt.share(part)} {word}" for part, word in parts if part >= 0.005]
    waited = "The GPU waited for the host" if late >= _MUCH else "At times the GPU waited for the host"
    said = f"{waited}: it was idle {fmt.share(late)} of the time until the next launch"
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


def _figures(summary: GpuSummary) -> Iterator[Figure]:
    facts = summary.launches
    share = facts.known / facts.launched if facts.launched else 1.0

    def median(label: str, middle: float | None, high: float | None) -> Figure:
        if middle is None or high is None:
            return Figure(label, None, "ms")
        return Figure(label, middle / 1e3, "ms", basis=f"median; 95 % within {fmt.duration(high / 1e3)}")

    yield Figure("GPU busy", summary.busy, "share", basis=f"of {_whole(summary)}, {fmt.duration(summary.whole_ms)}")
    known = "" if share == 1 else f"; the launch of {fmt.share(share)} is known"
    yield Figure("launched per step", facts.launched, "count", basis=f"kernels, copies and fills{known}")
    yield median("launch call", facts.call_us, facts.call_us_95)
    yield median("from launch call to start", facts.delay_us, facts.delay_us_95)
    yield Figure("short kernels", facts.short_share, "share", basis="took longer to launch than to run")
    yield Figure("longest queue", facts.longest_queue, "count", basis="launched, not started")
    yield Figure("queue empty", facts.empty_share, "share", basis="of the time from first to last work")


def _times(summary: GpuSummary) -> Iterator[Section]:
    """Yield bars that show how each GPU spent its time, in total and step by step."""
    devices, steps = summary.devices.head(_MOST_DEVICES), summary.steps
    several = len(summary.devices) > 1
    title = f"What {'each' if several else 'the'} GPU did in {_whole(summary)}"
    bars = tuple(_bar(row, device_word(row.device) if several else "") for row in _rows(devices))
    if len(steps) <= len(summary.devices):
        yield Bars(title, "ms", bars)
        return
    left = summary.steps_in_all - steps["step"].nunique()
    more = f"; {fmt.counted(left, 'later step')} not shown" if left > 0 else ""
    words = (f"step {row.step}" + (f", {device_word(row.device)}" if several else "") for row in _rows(steps))
    by_step = tuple(_bar(row, word) for row, word in zip(_rows(steps), words, strict=True))
    stepwise = Bars(f"From the first work of a step to its last{more}", "ms", by_step)
    yield Choice(title, {"all steps": (Bars("", "ms", bars),), "step by step": (stepwise,)})


def _bar(row: Any, label: str) -> Bar:
    parts = tuple(Part(mark, fmt.known(getattr(row, name)) or 0.0) for name, mark in palette.GPU.items())
    return Bar(label, parts, fmt.known(row.total_ms))


def _queues(summary: GpuSummary) -> Iterator[Series]:
    """Yield charts of the amount of work that had been launched but had not started.

    A GPU with an empty queue has nothing to do next.
    """
    queue = summary.queue
    if queue is None:
        return
    for device, longest in list(queue.longest.items())[:_MOST_QUEUES]:
        at = [queue.piece_ms * place for place in range(len(longest))]
        title = f"Work queued on {device_word(device)} (launched but not started)"
        line = Line(_QUEUED, longest.tolist())
        yield Series(title, Axis("time from the first work", "ms"), Axis("queued", "count"), at, (line,))


def _kernels(summary: GpuSummary) -> Table:
    table, left = summary.kernels, summary.kernels_in_all - len(summary.kernels)
    by_op = bool(table["op"].notna().any())
    columns = (
        Column("op" if by_op else "kernel", help="The op that launched the kernel, or the kernel if the op is unknown"),
        Column("shapes", priority=1, help="Input shapes of the op"),
        Column("heaviest kernel", priority=5, help="The op's kernel with the most time", live=True),
        Column("layers", priority=4, help="Layers that launch it"),
        Column("calls", "count", priority=2, help="Kernels, copies and fills per step"),
        Column("mean", "ms", priority=3),
        Column("total", "ms", help="Sum of durations per step"),
        Column("share", "share", bar=True, help="Share of the total time of all kernels, copies and fills"),
    )
    rows = [
        (
            row.kernel if pd.isna(row.op) else row.op,
            shape_words(row.shapes) or "",
            row.kernel if by_op else "",
            layer_words(row),
            *map(fmt.known, (row.calls, row.mean_us / 1e3, row.total_ms, row.share)),
        )
        for row in _rows(table)
    ]
    layers = summary.kernel_layers
    return Table(
        "Kernels, copies and fills per step, by op and input shapes" + (f"; {left:,} more not listed" if left else ""),
        columns,
        rows,
        budget=Budget(5, 15),
        noun="kernel",
        selects=_OPS if by_op else (),
        names=[str(row.op if pd.isna(row.kernel) else row.kernel) for row in _rows(table)],
        inner=Inner(
            "Layers that launch it",
            (Column("layer"), Column("per step", "ms")),
            list(zip(map(str, layers["layer"]), layers["ms"], strict=True)),
            layers["row"].tolist(),
            "layers",
        )
        if len(layers)
        else None,
        key="kernels",
    )


def _by_name(summary: GpuSummary) -> Iterator[Table]:
    """Yield a table of the kernels by name, unless the table by op already lists them by name."""
    table, left = summary.by_name, summary.names_in_all - len(summary.by_name)
    if not table["op"].notna().any():
        return
    columns = {
        "kernel": Column("kernel"),
        "op": Column("op", priority=1, help="The op that launched most of it"),
        "calls": Column("calls", "count", priority=2, help="Per step"),
        "total_ms": Column("total", "ms", help="Sum of durations per step"),
        "share": Column("share", "share", bar=True, help="Share of the total time of all kernels, copies and fills"),
    }
    title = "Kernels, copies and fills per step, by name" + (f"; {left:,} more not listed" if left else "")
    yield Table.of(title, table, columns, budget=Budget(8, 15), noun="kernel", key="kernel names")


def _paths(path: PathFacts | None) -> Iterator[Table]:
    """Yield tables of the critical path, one by kind of segment and one by op."""
    if path is None or not len(path.kinds):
        return
    figures = (Column("saves up to", "ms", help=_SAVES), Column("path", "ms"), Column("share", "share", bar=True))
    kinds = [(palette.PATH[str(row.kind)], *_numbers(row), KIND_WORDS[str(row.kind)]) for row in _rows(path.kinds)]
    yield Table(
        path_title(path), (Column("part"), *figures, Column("what it is", priority=1, live=True)), kinds, noun="part"
    )
    ops = [(row.op, *_numbers(row)) for row in _rows(path.ops)]
    title = "Critical path by op, including the work it launched"
    yield Table(title, (Column("op"), *figures), ops, noun="op", budget=Budget(4, 8), selects=_OPS)


def _numbers(row: Any) -> Iterator[float | None]:
    return map(fmt.known, (row.saves_ms, row.path_ms, row.share))


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def path_title(path: PathFacts) -> str:
    """Return a title with the number of the path's step and the duration of the path."""
    if path.step is None:
        return f"Critical path of the whole trace, {fmt.duration(path.total_ms)}"
    why = ""
    if path.steps > 1:
        why = f", the {'longer' if path.steps == 2 else 'median'} of {path.steps} steps with GPU work"
    tail = ""
    if path.tail_ms > 0:
        tail = f", including {fmt.duration(path.tail_ms)} on the GPU after the host had finished the step"
    return f"Critical path of step {path.step}{why}: {fmt.duration(path.total_ms)}{tail}"


def device_word(device: Any) -> str:
    """Return the name of a device, such as ``GPU 0``, or ``the GPU`` if the trace does not contain its number."""
    return "the GPU" if pd.isna(device) else f"GPU {int(device)}"


def shape_words(shapes: Any) -> str | None:
    """Format input shapes for display, for example ``16 × 4, 4 × 8`` for ``[[16, 4], [4, 8], []]``.

    Empty shapes are dropped, and text that is not a list is returned unchanged.
    """
    if pd.isna(shapes):
        return None
    text = str(shapes)
    if not _SHAPES.fullmatch(text):
        return text
    return ", ".join(" × ".join(one.split(", ")) for one in _SHAPE.findall(text)) or "scalars"


def layer_words(row: Any) -> str:
    """Describe a kernel's layers, as in ``model.fc1`` or ``12 layers, most (8.6 %) in model.fc1``.

    Return an empty string if no layer is known.
    """
    if pd.isna(row.layer):
        return ""
    if row.layers == 1 and fmt.known(row.layer_share) == 1:
        return str(row.layer)
    count = "1 layer" if row.layers == 1 else f"{row.layers:,} layers"
    return f"{count}, most ({fmt.share(row.layer_share)}) in {row.layer}"


TAB = Tab("gpu", lambda report: report.summary.gpu, gpu_document)
