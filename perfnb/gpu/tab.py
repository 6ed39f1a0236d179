"""Show the GPU tab: how busy the GPUs were, what they waited for, and which kernels they ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
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
    State,
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

_SAVES = (
    "How much shorter the step would be if this part took no time and everything else took as long as before. The "
    "saving is small if another path is nearly as long"
)
_QUEUED = Mark("longest queue", palette.BLUE, "█", "solid")

_SHAPES, _SHAPE = re.compile(r"\[[][0-9, ]*\]"), re.compile(r"\[([0-9][0-9, ]*)\]")

#: The share of idle time from which launches do not keep up, and from which idle time is the main message.
_SOME, _MUCH = 0.05, 0.3
#: The share of short kernels above which it is mentioned.
_SHORT = 0.2
_BECAUSE = {
    "host": "the host launched the next work too late",
    "latency": "work starts late after its launch",
    "dependency": "launched work waited for other work or an event",
    "other": "of something that the trace does not show",
    "unknown": "of something unknown: the launch of the next work is not in the trace",
    "outside": "there was no work before the first and after the last kernel",
}


def gpu_document(summary: GpuSummary) -> Document:
    """Return the document about the GPUs' work, their waits, and the critical path of a step."""
    overlap = float(summary.devices["overlap_ms"].sum())
    words = f"{fmt.duration(overlap)} of communication ran during computation and counts as computation."
    return Document(
        "GPU",
        verdict=gpu_verdict(summary),
        figures=tuple(_figures(summary)),
        sections=(*_times(summary), *_queues(summary), *_kernels(summary), *_paths(summary.path)),
        notes=(*([words] if overlap > 0 else []), *summary.notes),
    )


def gpu_verdict(summary: GpuSummary) -> Verdict:
    """Return a verdict about how busy the GPUs were, and the main reason why they were idle."""
    idle, devices = 1 - summary.busy, len(summary.devices)
    who = f"{devices} GPUs are" if devices > 1 else "The GPU is"
    named = max(("host", "dependency", "other", "outside"), key=lambda name: _part(summary, name))
    most, main = _part(summary, named), {"host": "latency", "other": "unknown"}.get(named, "")
    reason = _BECAUSE[main if main and _part(summary, main) > most / 2 else named]
    because = f"{'' if most > 0.8 * idle else 'mostly '}because {reason}"
    state: State
    if idle >= _MUCH:
        state, said = "bad", f"{who} idle for {fmt.share(idle)} of {_whole(summary)}, {because}."
    else:
        idle_too = f", and idle {because}" if most >= 0.01 else ""
        state, said = "good", f"{who} busy {fmt.share(summary.busy)} of {_whole(summary)}{idle_too}."
    return Verdict(state, said, launch_sentence(summary))


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
    known, lost = facts.known / facts.launched, _part(summary, "unknown")
    if known < 0.5 or lost >= _SOME:
        idle = f", and the GPU was idle {fmt.share(lost)} of the time before them" if lost >= _SOME else ""
        return (
            "This trace does not show whether launches keep up with the GPU: it lacks the launches of "
            f"{fmt.share(1 - known)} of the kernels, copies and fills{idle}."
        )
    late, call, latency = (_part(summary, name) for name in ("host", "call", "latency"))
    if late < _SOME:
        return f"Launches keep up with the GPU: it was idle {fmt.share(late)} of the time because the host was late."
    parts = (
        (max(late - call - latency, 0.0), "before the call"),
        (call, "inside it"),
        (latency, "from its return until the work started"),
    )
    named = ", ".join(f"{fmt.share(part)} {word}" for part, word in parts if part >= 0.005)
    said = f"The GPU waited for the host: it was idle {fmt.share(late)} of the time until the next launch ({named})."
    if (short := facts.short_share or 0.0) < _SHORT:
        return f"{said} The critical path shows what the host was doing."
    return (
        f"{said} {fmt.share(short)} of the kernels were shorter than their launch: larger batches, fused ops or CUDA "
        "graphs need fewer launches."
    )


def _figures(summary: GpuSummary) -> Iterator[Figure]:
    facts = summary.launches
    known = fmt.share(facts.known / facts.launched) if facts.launched else "100 %"
    launch = "" if known == "100 %" else f"; the launch of {known} is known"
    yield Figure("GPU busy", summary.busy, "share", basis=f"of {_whole(summary)}, {fmt.duration(summary.whole_ms)}")
    yield Figure("launched per step", facts.launched, "count", basis=f"kernels, copies and fills{launch}")
    for label, middle, high in (
        ("launch call", facts.call_us, facts.call_us_95),
        ("from launch call to start", facts.delay_us, facts.delay_us_95),
    ):
        if middle is not None and high is not None:
            yield Figure(label, middle / 1e3, "ms", basis=f"median; 95 % within {fmt.duration(high / 1e3)}")
    if facts.short_share is not None:
        yield Figure("short kernels", facts.short_share, "share", basis="took longer to launch than to run")
    if facts.longest_queue is not None:
        yield Figure("longest queue", facts.longest_queue, "count", basis="launched, not started")
        yield Figure("queue empty", facts.empty_share, "share", basis="of the time from first to last work")


def _times(summary: GpuSummary) -> Iterator[Section]:
    """Yield bars that show how each GPU spent its time, in total and step by step."""
    several, steps = len(summary.devices) > 1, summary.steps
    title = f"What {'each' if several else 'the'} GPU did in {_whole(summary)}"
    whole = Bars(title, "ms", _bars(summary.devices.head(_MOST_DEVICES), several))
    if len(steps) <= len(summary.devices):
        yield whole
        return
    left = summary.steps_in_all - steps["step"].nunique()
    more = f"; {fmt.counted(left, 'later step')} not shown" if left > 0 else ""
    stepwise = Bars(f"From the first work of a step to its last{more}", "ms", _bars(steps, several))
    yield Choice(title, {"all steps": (replace(whole, title=""),), "step by step": (stepwise,)})


def _bars(table: pd.DataFrame, several: bool) -> tuple[Bar, ...]:
    """Return a bar for each row, labelled with its step, and with its device if there are several."""
    bars = []
    for row in _rows(table):
        words = [f"step {row.step}"] if "step" in table else []
        words += [device_word(row.device)] if several else []
        parts = tuple(Part(mark, fmt.known(getattr(row, name)) or 0.0) for name, mark in palette.GPU.items())
        bars.append(Bar(", ".join(words), parts, fmt.known(row.total_ms)))
    return tuple(bars)


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


def _kernels(summary: GpuSummary) -> Iterator[Table]:
    """Yield tables of the kernels by op and input shapes, if any op is known, and by name."""
    columns = {
        "name": Column("op", help="The op that launched the kernel, or the kernel if the op is unknown"),
        "shapes": Column("shapes", priority=1, help="Input shapes of the op"),
        "kernel": Column("heaviest kernel", priority=5, help="The op's kernel with the most time", live=True),
        "layers": Column("layers", priority=4, help="Layers that launch it"),
        "calls": Column("calls", "count", priority=2, help="Kernels, copies and fills per step"),
        "mean_ms": Column("mean", "ms", priority=3),
        "total_ms": Column("total", "ms", help="Sum of durations per step"),
        "share": Column("share", "share", bar=True, help="Share of the total time of all kernels, copies and fills"),
    }
    title, table, layers = "Kernels, copies and fills per step, by", summary.kernels, summary.kernel_layers
    if table["op"].notna().any():
        texts = {
            "name": [row.kernel if pd.isna(row.op) else row.op for row in _rows(table)],
            "shapes": list(map(shape_words, table["shapes"])),
            "layers": list(map(layer_words, _rows(table))),
        }
        owned = list(zip(map(str, layers["layer"]), layers["ms"], strict=True))
        inner = Inner(
            "Layers that launch it",
            (Column("layer"), Column("per step", "ms")),
            owned,
            layers["row"].tolist(),
            "layers",
        )
        yield Table.of(
            f"{title} op and input shapes{_more(summary.kernels_in_all - len(table))}",
            table.assign(**texts, mean_ms=table["mean_us"] / 1e3),
            columns,
            budget=Budget(5, 15),
            noun="kernel",
            selects=_OPS,
            names=[str(row.op if pd.isna(row.kernel) else row.kernel) for row in _rows(table)],
            inner=inner if owned else None,
            key="kernels by op",
        )
    own = {"kernel": Column("kernel"), "op": Column("op", priority=1, help="The op that launched most of it")}
    named = own | {name: columns[name] for name in ("calls", "total_ms", "share")}
    title += f" name{_more(summary.names_in_all - len(summary.by_name))}"
    yield Table.of(title, summary.by_name, named, budget=Budget(8, 15), noun="kernel", key="kernels")


def _more(left: int) -> str:
    return f"; {left:,} more not listed" if left else ""


def _paths(path: PathFacts | None) -> Iterator[Table]:
    """Yield tables of the critical path, one by kind of segment and one by op."""
    if path is None or not len(path.kinds):
        return
    figures = {
        "saves_ms": Column("saves up to", "ms", help=_SAVES),
        "path_ms": Column("path", "ms"),
        "share": Column("share", "share", bar=True),
    }
    kinds = path.kinds.assign(kind=path.kinds["kind"].map(palette.PATH))
    yield Table.of(path_title(path), kinds, {"kind": Column("part")} | figures, noun="part")
    title, budget = "Critical path by op, including the work it launched", Budget(4, 8)
    yield Table.of(title, path.ops, {"op": Column("op")} | figures, noun="op", budget=budget, selects=_OPS)


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def path_title(path: PathFacts) -> str:
    """Return a title with the number of the path's step and the duration of the path."""
    if path.step is None:
        return f"Critical path of the whole trace, {fmt.duration(path.total_ms)}"
    middle = "longer" if path.steps == 2 else "median"
    why = f", the {middle} of {path.steps} steps with GPU work" if path.steps > 1 else ""
    tail = f", including {fmt.duration(path.tail_ms)} on the GPU after the host had finished the step"
    return f"Critical path of step {path.step}{why}: {fmt.duration(path.total_ms)}{tail * (path.tail_ms > 0)}"


def device_word(device: Any) -> str:
    """Return the name of a device, such as ``GPU 0``, or ``the GPU`` if the trace does not contain its number."""
    return "the GPU" if pd.isna(device) else f"GPU {int(device)}"


def shape_words(shapes: Any) -> str:
    """Format input shapes for display, for example ``16 × 4, 4 × 8`` for ``[[16, 4], [4, 8], []]``.

    Empty shapes are dropped, and text that is not a list is returned unchanged.
    """
    text = "" if pd.isna(shapes) else str(shapes)
    if not _SHAPES.fullmatch(text):
        return text
    return ", ".join(" × ".join(one.split(", ")) for one in _SHAPE.findall(text)) or "scalars"


def layer_words(row: Any) -> str:
    """Name the layer that launched most of a kernel's time, and count the others: ``model.fc1 and 11 more``."""
    if pd.isna(row.layer):
        return ""
    return f"{row.layer} and {row.layers - 1:,} more" if row.layers > 1 else str(row.layer)


TAB = Tab("gpu", lambda report: report.summary.gpu, gpu_document)
