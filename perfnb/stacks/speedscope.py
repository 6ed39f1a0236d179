"""Read speedscope's JSON format, which is written by py-spy, memray, pyinstrument and rbspy, among others."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from perfnb.errors import TraceError
from perfnb.quantities import counted, duration
from perfnb.recording.nesting import NONE
from perfnb.stacks.formats import Format, HostRecord
from perfnb.stacks.tree import DEEPEST, MS, Function, TreeBuilder
from perfnb.trace.trace_file import Limits, refuse_many_values, whole_file

_MARK = b"www.speedscope.app/file-format-schema.json"
_MOST = 1e18


class _Frame(msgspec.Struct):
    name: str
    file: str | None = None
    line: float | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _StackEvent(msgspec.Struct):
    type: str
    at: float
    frame: int


class _Profile(msgspec.Struct):
    type: str
    name: str = ""
    unit: str = "none"
    startValue: float = 0.0
    endValue: float = 0.0
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_StackEvent] = []


class _SpeedscopeFile(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]
    exporter: str | None = None


def read(path: Path, limits: Limits) -> HostRecord:
    """Read a speedscope file with sampled or evented profiles. Profiles of several threads are placed side by side."""
    data = whole_file(path, limits)
    refuse_many_values(data, str(path), limits)
    try:
        file = msgspec.json.decode(data, type=_SpeedscopeFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad(path, str(error)[:200]) from error
    if not file.profiles:
        raise _bad(path, "it contains no profiles")
    unit = file.profiles[0].unit
    if unit not in (*MS, "bytes", "none"):
        raise _bad(path, "its unit is not supported by speedscope")
    del data
    builder = TreeBuilder(str(path), limits)
    frames = [builder.function(_function(frame)) for frame in file.shared.frames]
    chosen = [profile for profile in file.profiles if profile.unit == unit]
    samples, idle, idle_value = 0, 0, 0.0
    for profile in chosen:
        root = [builder.function(Function(profile.name or "(no name)"))] if len(chosen) > 1 else []
        if profile.type == "sampled":
            samples += _sampled(path, profile, frames, root, builder, MS.get(unit, 1.0))
            empty = [weight for stack, weight in zip(profile.samples, profile.weights, strict=True) if not stack]
            idle, idle_value = idle + len(empty), idle_value + sum(empty) * MS.get(unit, 1.0)
        elif profile.type == "evented":
            _evented(path, profile, frames, root, builder, MS.get(unit, 1.0))
        else:
            raise _bad(path, "a profile is neither sampled nor evented")
    is_sampled = all(profile.type == "sampled" for profile in chosen)
    notes = []
    if idle:
        worth = f" ({duration(idle_value)})" if unit in MS else ""
        notes.append(
            f"Left out {counted(idle, 'sample')}{worth} without a stack, which py-spy writes for idle threads."
        )
    if left := len(file.profiles) - len(chosen):
        notes.append(f"{left:,} of the {len(file.profiles):,} profiles are in another unit and were left out.")
    if not is_sampled:
        notes.append("The file contains calls instead of samples, so the number of samples is n/a.")
    if unit == "none":
        notes.append("The file does not specify the unit of its values. Times are n/a, and only shares are known.")
    tree = builder.tree()
    if not math.isfinite(float(tree.self.sum())):
        raise _bad(path, "the sum of its values is implausibly large")
    kind = "ms" if unit in MS else unit
    return HostRecord(path.name, "speedscope", kind, tree, samples=samples if is_sampled else None, notes=tuple(notes))


def _sampled(
    path: Path, profile: _Profile, frames: list[int], root: list[int], builder: TreeBuilder, scale: float
) -> int:
    if len(profile.samples) != len(profile.weights):
        raise _bad(path, "a profile has a different number of weights than samples")
    for stack, weight in zip(profile.samples, profile.weights, strict=True):
        if not 0 <= weight <= _MOST:
            raise _bad(path, "a weight is below 0 or far too large")
        if stack:
            builder.add([*root, *(_one(path, frames, frame) for frame in stack)], weight * scale)
    return sum(1 for stack in profile.samples if stack)


def _evented(
    path: Path, profile: _Profile, frames: list[int], root: list[int], builder: TreeBuilder, scale: float
) -> None:
    top = NONE
    for function in root:
        top = builder.inside(top, function)
    stack: list[tuple[int, int]] = []
    now = profile.startValue
    for event in profile.events:
        if not now <= event.at <= _MOST:
            raise _bad(path, "its events are not in chronological order")
        if stack:
            builder.count(stack[-1][0], (event.at - now) * scale)
        now = event.at
        if event.type == "O":
            inside = stack[-1][0] if stack else top
            stack.append((builder.inside(inside, _one(path, frames, event.frame)), event.frame))
            if len(stack) > DEEPEST:
                raise _bad(path, f"a stack has more than {DEEPEST:,} calls")
        elif event.type != "C" or not stack or stack.pop()[1] != event.frame:
            raise _bad(path, "a call ends although it is not the innermost call")
    if stack:
        raise _bad(path, "a call does not end, so the file is not complete")


def _one(path: Path, frames: list[int], place: int) -> int:
    if not 0 <= place < len(frames):
        raise _bad(path, "it refers to a frame that does not exist")
    return frames[place]


def _function(frame: _Frame) -> Function:
    line = frame.line
    known = line is not None and 0 <= line < 2**31
    return Function(frame.name, frame.file or "", int(line) if known and line is not None else NONE)


def _bad(path: Path, why: str) -> TraceError:
    return TraceError(f"{path} cannot be read as a speedscope profile: {why}.")


FORMAT = Format(
    "speedscope profiles",
    lambda head: head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and _has_shape(head),
    read,
)


def _has_shape(head: bytes) -> bool:
    """Return whether the start of a file contains the name of the schema.

    The name can be anywhere in the first bytes, because keys can be in any order.
    """
    return _MARK in head or (b'"exporter"' in head and b"speedscope" in head and b'"shared"' in head)
