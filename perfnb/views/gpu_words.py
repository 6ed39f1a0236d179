"""What the figures of the GPUs mean, in sentences; the same in the browser, in HTML and as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.views import format as fmt

if TYPE_CHECKING:
    from perfnb.analysis.gpu_summary import GpuSummary, PathFacts

#: What the parts of a GPU's time mean.
PART_WORDS = {
    "computation": "At least one kernel computed; fills count as well.",
    "communication": "Only kernels of NCCL or RCCL ran: communication with other GPUs that no computation hid.",
    "memcpy": "Only copies ran, from the host, to it or on the GPU.",
    "host": "Nothing ran, since the host had not yet launched the next work.",
    "dependency": "The next work had been launched and waited: for the work before it, an event of another stream, or "
    "its turn in a CUDA graph.",
    "other": "Nothing ran, and the trace does not explain why; or it does not hold the launch of the next work.",
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
    "unknown": "The trace does not tell what was waited for",
}

SAVES_WORDS = (
    "By how much the step would be shorter if this took no time and all else took as long as it did: another path is "
    "often nearly as long"
)

_SHAPES, _SHAPE = re.compile(r"\[[][0-9, ]*\]"), re.compile(r"\[([0-9][0-9, ]*)\]")

#: Idle share from which waiting for the host is worth a word, and from which it is the main thing.
_SOME, _MUCH = 0.05, 0.3
#: Share of short kernels from which it is worth a word.
_SHORT = 0.2


def headline(summary: GpuSummary) -> str:
    """How busy the GPUs were, and what they waited for most."""
    devices = summary.devices
    total = float(devices["total_ms"].sum())
    who = "The GPU was" if len(devices) == 1 else f"{len(devices)} GPUs were"
    said = f"{who} busy {fmt.share(summary.busy)} of {fmt.duration(total / len(devices))}, from first work to last"
    idle = {name: float(devices[name].sum()) / total if total else 0.0 for name in ("host", "dependency", "other")}
    why, most = max(idle.items(), key=lambda item: item[1])
    if most < 0.01:
        return f"{said}."
    because = {
        "host": "the host launched the next work too late",
        "dependency": "launched work waited for other work",
        "other": "of something that the trace does not explain",
    }[why]
    return f"{said}, and idle {fmt.share(most)} of it because {because}."


def launch_sentence(summary: GpuSummary) -> str:
    """What the figures of the launches say together."""
    facts, devices = summary.launches, summary.devices
    if not facts.known:
        return "No launch is in the trace: what launching cost cannot be told."
    total = float(devices["total_ms"].sum())
    late = float(devices["host"].sum()) / total if total else 0.0
    short = facts.short_share or 0.0
    if late < _SOME:
        often = f"idle {fmt.share(late)} of its time" if fmt.share(late) != "0 %" else "never idle"
        hidden = f", although {fmt.share(short)} of the kernels ran for less time than their launch took"
        said = f"Launches keep up with the GPU: it was {often} because the host was late"
        return f"{said}{hidden if short >= _SHORT else ''}."
    waited = "The GPU waited for the host" if late >= _MUCH else "At times the GPU waited for the host"
    idle = f"{fmt.share(late)} of its time it was idle because the next launch came late"
    if (facts.empty_share or 0.0) < late / 2 and facts.call_us_95 is not None:
        # A queue that is not empty while the GPU is idle is filled by a call that has not returned.
        slow = f"the calls that launch took long (95 % of them up to {fmt.duration(facts.call_us_95 / 1e3)})"
        return f"{waited}: {idle}, not for want of launches: {slow}."
    said = f"{waited}: {fmt.share(facts.empty_share)} of its time nothing was queued, and {idle}."
    if short >= _SHORT:
        return (
            f"{said} {fmt.share(short)} of the kernels ran for less time than their launch took: larger batches, fused "
            "ops (torch.compile) or CUDA graphs launch less often."
        )
    return f"{said} The critical path tells what the host did meanwhile."


def path_title(path: PathFacts) -> str:
    """Of which step the path is, and how long."""
    if path.step is None:
        return f"Critical path of the whole trace, {fmt.duration(path.total_ms)}"
    which = f"step {path.step}" + (f", the median of {path.steps} steps" if path.steps > 1 else "")
    tail = ""
    if path.tail_ms > 0:
        tail = f", of these {fmt.duration(path.tail_ms)} on the GPU after the host had ended the step"
    return f"Critical path of {which}: {fmt.duration(path.total_ms)}{tail}"


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
        ("Launch call", us(facts.call_us), upper(facts.call_us_95), "Median time that the host spends in one launch"),
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
