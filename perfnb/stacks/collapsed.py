"""Read collapsed stacks (``a;b;c 12``) from torch's ``export_stacks``, ``py-spy record -f raw`` and FlameGraph."""

from __future__ import annotations

import math
import re
from pathlib import Path

from perfnb.errors import TraceError
from perfnb.quantities import counted
from perfnb.recording.nesting import NONE
from perfnb.stacks.formats import Format, HostRecord, text_of
from perfnb.stacks.tree import Function, TreeBuilder
from perfnb.trace.trace_file import Limits, lines_of_file
from perfnb.trace_names import without_address

#: Frames written by py-spy, ``function (file.py:12)``, and by torch's export_stacks, ``file.py(12):_function``, which
#: replaces each space with an underscore.
_PY_SPY = re.compile(r"([^()]{1,300}) \(([^()]{1,1000}?)(?::(\d{1,9}))?\)")
_TORCH = re.compile(r"(.{1,1000})\((\d{1,9})\):[ _](.{1,300})")
_NATIVE = ("<built-in", "nn.Module:")
_LINE = re.compile(r"\S.*[ \t]\d{1,18}(\.\d{1,9})?")
_COMMENTS = ("#", "//")
_KNOWN_LINES = 50


def recognised(head: bytes) -> bool:
    """Return whether this is the start of a file with collapsed stacks.

    Most lines must contain a stack and a count, and at least one stack must have several calls.
    """
    text = text_of(head)
    if text.startswith(("{", "[")) or "\0" in text:
        return False
    *lines, last = text.split("\n")
    lines = [line for line in [*lines, *([last] if len(head) < 2**15 else [])] if line.strip()]
    told = [line.strip() for line in lines if not line.startswith(_COMMENTS)][:_KNOWN_LINES]
    stacks = [line for line in told if _LINE.fullmatch(line)]
    return 2 * len(stacks) > len(told) and any(";" in line.rpartition(" ")[0] for line in stacks)


def read(path: Path, limits: Limits) -> HostRecord:
    """Read collapsed stacks. Invalid lines are skipped and counted."""
    builder, bad, idle, whole = TreeBuilder(str(path), limits), 0, 0.0, 0.0
    stacks: dict[tuple[int, ...], float] = {}
    number: dict[str, int] = {}
    for line in lines_of_file(path, limits):
        if not line.strip() or line.startswith(_COMMENTS):
            continue
        stack, _, count = line.strip().replace("\t", " ").rpartition(" ")
        value = _number(count)
        if value is None:
            bad += 1
            continue
        if not stack.strip():
            idle += value
            continue
        known = len(number)
        calls = (frame.strip() or "(no name)" for frame in stack.strip().rstrip(";").split(";"))
        frames = tuple(number.setdefault(name, len(number)) for name in calls)
        builder.kept.add(2 * (len(number) - known))
        if frames not in stacks:
            builder.kept.add(1 + len(frames) // 10)
        stacks[frames] = stacks.get(frames, 0.0) + value
        whole += value
    if not stacks or not math.isfinite(whole) or whole > 2**62:
        raise TraceError(f"{path} cannot be read as collapsed stacks: no stack has a count above 0.")
    of_python = [name for name in number if not name.startswith(_NATIVE)]
    in_us = 2 * sum(_TORCH.fullmatch(name) is not None for name in of_python) > len(of_python)
    functions = [builder.function(_function(name, in_us)) for name in number]
    for frames, value in stacks.items():
        samples = 0 if in_us else round(value)
        builder.add([functions[place] for place in frames], value / 1e3 if in_us else value, samples)
    notes = [
        "The file does not specify the unit of its counts. They are read as microseconds, because calls are named "
        "as in torch's export_stacks."
        if in_us
        else "The file does not specify the unit of its counts. They are read as samples of unknown length."
    ]
    if 0 < idle < 2**62:
        notes.append(f"Left out {idle:,.0f} counts without a stack, which py-spy writes for idle threads.")
    if bad:
        notes.append(f"Skipped {counted(bad, 'line')} without a stack and a count.")
    tree, told = builder.tree(), tuple(notes)
    if in_us:
        return HostRecord(path.name, "collapsed stacks", "ms", tree, notes=told)
    return HostRecord(path.name, "collapsed stacks", "samples", tree, samples=round(whole), notes=told)


def _number(text: str) -> float | None:
    """Return the count as a number if it is above 0, and ``None`` otherwise."""
    if not re.fullmatch(r"\d{1,18}(\.\d{1,9})?", text, re.ASCII):
        return None
    return float(text) or None


def _function(name: str, of_torch: bool) -> Function:
    if of_torch and (found := _TORCH.fullmatch(name)):
        return Function(found[3], found[1], int(found[2]))
    if found := _PY_SPY.fullmatch(name):
        return Function(found[1], found[2], int(found[3]) if found[3] else NONE)
    return Function(without_address(name))


FORMAT = Format("collapsed stacks", recognised, read)
