"""What the figures of the GPUs mean, in sentences; the same in the browser, in HTML and as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt

if TYPE_CHECKING:
    from perfnb.gpu.summary import GpuSummary, PathFacts

#: What the parts of a GPU's time mean.
PART_WORDS = {
    "computation": "At least one kernel computed; fills count as well.",
    "communication": "Only kernels of NCCL or RCCL ran: communication with other GPUs that no computation hid.",
    "memcpy": "Only copies ran, from the host, to it or on the GPU.",
    "host": "Nothing ran, since the host had not yet launched the next work, or only just: a launch takes some µs.",
    "dependency": "The next work had been launched and waited: for the work before it, an event of another stream, or "
    "its turn in a CUDA graph.",
    "other": "Nothing ran though the next work had been launched, and the trace does not explain why; or it does not "
    "hold its launch.",
}

#: What the kinds of a critical path mean.
KIND_WORDS = {
    "computation": "A kernel that the step had to wait for",
    "communication": "A kernel of NCCL or RCCL that the step had to wait for",
    "memcpy": "A copy that the step had to wait for",
    "delay": "From the end of one kernel to the begin of the one that waited for it",
    "launch": "From the begin of a launching call to the begin of its kernel, where the kernel waited for nothing else",
    "operator": "The host at work in ops, as aten::mm",
    "call": "The host in calls of CUDA or HIP: launching, allocating, copying",
    "host": "The host in neither an op nor a call: Python and other code",
    "synchronisation": "From the end of the awaited work until the waiting call returned",
    "handover": "From the end of the forward thread's work to the begin of the backward thread's, or back",
    "unknown": "The trace does not tell what was waited for, nor what would be saved: as between a launch and work "
    "that began much later, though nothing known ran before it",
}

SAVES_WORDS = (
    "By how much the step would be shorter if this took no time and all else took as long as it did: another path is "
    "often nearly as long"
)

_SHAPES, _SHAPE = re.compile(r"\[[][0-9, ]*\]"), re.compile(r"\[([0-9][0-9, ]*)\]")

#: Idle share from which waiting for the host is worth a word, and from which it is the main thing.
_SOME, _MUCH = 0.05, 0.3
#: Share of the steps above which first work to last stands for them.
_COVERED = 0.7
#: Share of short kernels from which it is worth a word.
_SHORT = 0.2


def headline(summary: GpuSummary) -> str:
    """How busy the GPUs were, and what they waited for most."""
    devices = summary.devices
    total = float(devices["total_ms"].sum())
    each = total / len(devices)
    who = "The GPU was" if len(devices) == 1 else f"{len(devices)} GPUs were"
    said = f"{who} busy {fmt.share(summary.busy)} of {fmt.duration(each)}, from first work to last"
    if _much_longer(summary):
        busy = fmt.share(summary.busy * each / summary.whole_ms)
        said += f" ({busy} of the {_whole_word(summary)}, {fmt.duration(summary.whole_ms)})"
    idle = {name: _part(summary, name) for name in ("host", "dependency", "other")}
    why, most = max(idle.items(), key=lambda item: item[1])
    if most < 0.01:
        return f"{said}."
    because = {
        "host": "the host launched the next work too late",
        "dependency": "launched work waited for other work or for an event",
        "other": "of something that the trace does not explain",
    }[why]
    if why == "host" and _part(summary, "latency") > most / 2:
        because = "work needs some time from its launch until it begins"
    elif why == "other" and _part(summary, "unknown") > most / 2:
        because = "of something that cannot be told: the launch of the next work is not in the trace"
    return f"{said}, and idle {fmt.share(most)} of it because {because}."


def _part(summary: GpuSummary, name: str) -> float:
    """The share of the devices' time."""
    total = float(summary.devices["total_ms"].sum())
    return float(summary.devices[name].sum()) / total if total else 0.0


def _much_longer(summary: GpuSummary) -> bool:
    """Whether the steps, or the trace, are much longer than the time from first work to last."""
    return float(summary.devices["total_ms"].mean()) < _COVERED * summary.whole_ms


def _whole_word(summary: GpuSummary) -> str:
    if not summary.steps_marked:
        return "trace"
    steps = summary.path.steps_in_all if summary.path is not None else summary.steps_in_all
    return "step" if steps == 1 else "steps"


def launch_sentence(summary: GpuSummary) -> str:
    """What the figures of the launches say together."""
    facts = summary.launches
    if not facts.known:
        return "No launch is in the trace: what launching cost cannot be told."
    doubt = "Whether launches keep up with the GPU cannot be told from this trace"
    known, lost = facts.known / facts.launched, _part(summary, "unknown")
    if known < 0.5 or lost >= _SOME:
        idle = f", and the GPU was idle {fmt.share(lost)} of its time before these" if lost >= _SOME else ""
        return f"{doubt}: the launches of {fmt.share(1 - known)} of the kernels, copies and fills are not in it{idle}."
    late, short = _part(summary, "host"), facts.short_share or 0.0
    if summary.pieces <= len(summary.devices):
        return f"{doubt}: only one kernel, copy or fill ran, so that the GPU waited for no next one."
    if late < _SOME:
        often = f"idle {fmt.share(late)} of its time" if fmt.share(late) != "0 %" else "never idle"
        hidden = f", although {fmt.share(short)} of the kernels ran for less time than their launch took"
        between = " between its first work and its last" if _much_longer(summary) else ""
        said = f"Launches keep up with the GPU: it was {often}{between} because the host was late"
        return f"{said}{hidden if short >= _SHORT else ''}."
    call, latency = _part(summary, "call"), _part(summary, "latency")
    before = max(late - call - latency, 0.0)
    parts = [(before, "before the call"), (call, "in it"), (latency, "from its return to the begin of the work")]
    named = [f"{fmt.share(part)} {word}" for part, word in parts if part >= 0.005]
    waited = "The GPU waited for the host" if late >= _MUCH else "At times the GPU waited for the host"
    said = f"{waited}: {fmt.share(late)} of its time it was idle until the next launch came"
    if len(named) > 1:
        said = f"{said}: {', '.join(named)}"
    if call > before and facts.call_us_95 is not None:
        return f"{said}. The calls that launch took long: 95 % of them up to {fmt.duration(facts.call_us_95 / 1e3)}."
    if short >= _SHORT:
        return (
            f"{said}. {fmt.share(short)} of the kernels ran for less time than their launch took: larger batches, "
            "fused ops (torch.compile) or CUDA graphs launch less often."
        )
    return f"{said}. The critical path tells what the host did meanwhile."


def path_title(path: PathFacts) -> str:
    """Of which step the path is, and how long."""
    if path.step is None:
        return f"Critical path of the whole trace, {fmt.duration(path.total_ms)}"
    which = f"step {path.step}{_chosen(path)}"
    tail = ""
    if path.tail_ms > 0:
        tail = f", of these {fmt.duration(path.tail_ms)} on the GPU after the host had ended the step"
    return f"Critical path of {which}: {fmt.duration(path.total_ms)}{tail}"


def _chosen(path: PathFacts) -> str:
    """Why this step."""
    working = " with work on a GPU" if path.steps < path.steps_in_all else ""
    if path.steps > 1:
        return f", the {'upper ' if path.steps == 2 else ''}median of {path.steps} steps{working}"
    return f", the only one{working}" if working else ""


def launch_figures(summary: GpuSummary) -> list[tuple[str, str, str, str]]:
    """Word, figure, its small print, and what it means."""
    facts = summary.launches

    def upper(value: float | None) -> str:
        return "" if value is None else f"95 % of them within {fmt.duration(value / 1e3)}"

    def us(value: float | None) -> str:
        return fmt.duration(None if value is None else value / 1e3)

    known = facts.known / facts.launched if facts.launched else 0.0
    return [
        (
            "Launched a step",
            fmt.count(facts.launched),
            "kernels, copies, fills" + ("" if known == 1 else f"; launches known of {fmt.share(known)}"),
            "Pieces of work that a step gives to the GPU",
        ),
        (
            "Launch call",
            us(facts.call_us),
            upper(facts.call_us_95),
            "Median time that the host spends in one launch; calls that wait until their copy is done are left out",
        ),
        (
            "Launch to start",
            us(facts.delay_us),
            upper(facts.delay_us_95),
            "Median time from the begin of a launch until its work begins: a few µs where the GPU waits for launches, "
            "long where a queue stands before it",
        ),
        (
            "Short kernels",
            fmt.share(facts.short_share),
            "ran less long than their launch took",
            "Kernels that took the host longer to launch than the GPU to run",
        ),
        (
            "Longest queue",
            fmt.count(facts.longest_queue),
            "launched, not yet begun",
            "The most work of one GPU that had been launched and had not begun",
        ),
        (
            "Queue empty",
            fmt.share(facts.empty_share),
            "of the time",
            "Share of the time, from first work to last, in which nothing that had been launched was left to begin: "
            "when the running work ends, the GPU has nothing to do",
        ),
    ]


def device_word(device: Any) -> str:
    """``GPU 0``, or ``GPU`` where the trace gives no number."""
    return "GPU" if pd.isna(device) else f"GPU {int(device)}"


def shape_words(shapes: Any) -> str | None:
    """``16 × 4, 4 × 8`` for ``[[16, 4], [4, 8], []]``; what has no shape is left out, what is no list stays."""
    if pd.isna(shapes):
        return None
    text = str(shapes)
    if not _SHAPES.fullmatch(text):
        return text
    return ", ".join(" × ".join(one.split(", ")) for one in _SHAPE.findall(text)) or "scalars"


def layer_words(row: Any) -> str:
    """``model.fc1``, or ``12 layers, most (8.6 %) in model.fc1``; empty where no layer is known."""
    if pd.isna(row.layer):
        return ""
    if row.layers == 1 and fmt.known(row.layer_share) == 1:
        return str(row.layer)
    count = "1 layer" if row.layers == 1 else f"{row.layers:,} layers"
    return f"{count}, most ({fmt.share(row.layer_share)}) in {row.layer}"
