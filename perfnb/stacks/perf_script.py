"""Read the output of ``perf script``, which lists Linux perf samples with the innermost call first."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from pathlib import Path

from perfnb.errors import TraceError
from perfnb.stacks.formats import Format, HostRecord, text_of
from perfnb.stacks.tree import DEEPEST, Function, TreeBuilder
from perfnb.trace.trace_file import Limits, lines_of_file

#: ``command pid[/tid] [cpu] seconds: [period] event:``. The command may contain spaces.
_SAMPLE = re.compile(
    r"(?P<command>\S.{0,63}?)\s{1,16}(?P<pid>-?\d{1,10})(?:/\s?\d{1,10})?\s{1,16}(?:\[\d{1,6}\]\s{1,16})?\d{1,12}\.\d{3,9}:"
    r"\s{1,32}(?:\d{1,20}\s{1,16})?(?P<event>[\w./=,:*-]{1,200}?):(?:\s.*)?",
    re.ASCII,
)
_FRAME = re.compile(r"\s+[0-9a-f]{1,16} \S", re.ASCII)
_OFFSET = re.compile(r"\+0x[0-9a-f]{1,16}$", re.ASCII)
_LONGEST = 4_096


def recognised(head: bytes) -> bool:
    """Return whether this is the start of ``perf script`` output: comments, followed by a sample and its calls."""
    lines = [line for line in text_of(head).split("\n") if line.strip() and not line.startswith("#")]
    if not lines or not _SAMPLE.fullmatch(lines[0].rstrip()[:_LONGEST]):
        return False
    return len(lines) == 1 or any(_FRAME.match(line) for line in lines[1:40])


def read(path: Path, limits: Limits) -> HostRecord:
    """Read samples. The outermost entry is the name of the command, followed by the event if there are several
    events.
    """
    builder = TreeBuilder(str(path), limits)
    samples: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    header: tuple[str, str] | None = None
    frames: list[int] = []
    bad = 0
    for line in chain(lines_of_file(path, limits), [""]):
        if line.startswith("#"):
            continue
        if line[:1].isspace() and line.strip():
            if header is None:
                bad += 1
            elif found := _frame(line):
                if len(frames) >= DEEPEST:
                    raise TraceError(f"{path} was not read: a stack has more than {DEEPEST:,} calls.")
                frames.append(builder.function(found))
            continue
        if header is not None:
            sample = (*header, tuple(reversed(frames)))
            if sample not in samples:
                builder.kept.add(2 + len(frames) // 10)
            samples[sample] += 1
        header, frames = None, []
        if line.strip():
            start = _SAMPLE.fullmatch(line.rstrip()[:_LONGEST])
            if start is None:
                bad += 1
            else:
                header = (start["command"].strip(), start["event"])
    if not samples:
        raise TraceError(f"{path} cannot be read as perf script output: it contains no samples.")
    events = {event for _, event, _ in samples}
    for (command, event, stack), count in samples.items():
        outer = [Function(event), Function(command)] if len(events) > 1 else [Function(command)]
        builder.add([*map(builder.function, outer), *stack], float(count), count)
    notes = ["Each sample counts once, regardless of its period. The time that a sample represents is n/a."]
    if len(events) > 1:
        notes.append("Several events were sampled. Their samples appear side by side under the names of the events.")
    if bad:
        notes.append(f"{bad:,} line{'s' * (bad != 1)} could not be read and {'were' if bad != 1 else 'was'} skipped.")
    whole = sum(samples.values())
    return HostRecord(path.name, "perf script", "samples", builder.tree(), samples=whole, notes=tuple(notes))


def _frame(line: str) -> Function | None:
    """Parse a call in the form ``addr symbol+0x12 (library)``."""
    _, _, rest = line.strip().partition(" ")
    symbol, _, library = rest.strip().rpartition(" (")
    if not symbol:
        return None
    return Function(_OFFSET.sub("", symbol[:_LONGEST]), library.removesuffix(")")[:_LONGEST])


FORMAT = Format("perf script output", recognised, read)
