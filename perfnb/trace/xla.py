"""Translate JAX and TensorFlow events into perfnb's terms, for both XSpace files and Chrome JSON.

Both formats use the same planes and lines. A plane appears as a process in the trace viewer (``/device:GPU:0``,
``/host:CPU``), and a line appears as a thread of that process (``Stream #16(Kernel)``, ``XLA Ops``, ``python``). Events
have statistics such as ``hlo_op`` and ``correlation_id``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from perfnb.trace.columns import MISSING
from perfnb.trace.kineto import whole_number
from perfnb.trace.rows import Rows
from perfnb.trace_names import CALLS, COPIES, DEVICE_RANGES, KERNELS, OPS, PYTHON_CALLS, RANGES, TORCH_STEP

Stat = int | str
#: The statistics that are used. Readers do not need to decode any others.
STATS = frozenset(
    {"correlation_id", "hlo_op", "hlo_module", "tf_op", "name", "step_num", "memcpy_details", "memset_details"}
)

CAVEATS = (
    "JAX and TensorFlow record neither modules nor autograd, so there are no layers, and only the names of ops (jvp, "
    "transpose, gradient_tape) distinguish forward from backward. Work is launched asynchronously, so look at the "
    "phases of ops and kernels in events instead of those of host time.",
    "On GPUs, an XLA op is listed once for each call that launched work for it.",
)

_DEVICE = re.compile(r"/(?:device:)?(?P<kind>GPU|TPU|gpu|tpu):(?P<number>\d{1,6})")
_STREAM = re.compile(r"Stream #(?P<number>\d{1,9})")
_PYTHON = re.compile(r"\$(?P<file>[^:]+\.py):(?P<line>\d+) (?P<function>.+)", re.DOTALL)
_TENSORFLOW_OP = re.compile(r"[\w./>\[\]()-]+:_?[A-Z]\w*")
_COPY = re.compile(r"mem ?(?:cpy|copy)|copy(?:h2d|d2h|d2d|p2p)", re.IGNORECASE)
#: Lines that the profiler derives from other lines.
_WORK, _MODULES, _STEPS = "XLA Ops", "XLA Modules", "Steps"
_SET, _RUNTIME = "gpu_memset", CALLS[0]


class XlaPlane:
    """A plane with the names of its lines, which adds its events to the rows.

    Parameters
    ----------
    rows : Rows
    name : str
        The name of the plane.
    process : int
        The number of the plane.
    lines : collection of str
        The names of its lines.
    """

    def __init__(self, rows: Rows, name: str, process: int, lines: Collection[str]) -> None:
        self._rows = rows
        self._process = process
        device = _DEVICE.search(name) if not name.startswith("/host:") else None
        self.device = MISSING if device is None else int(device["number"])
        self._has_streams = any(_STREAM.match(line) for line in lines)
        #: The steps that a device marks: the number, and the start and duration in nanoseconds.
        self.device_steps: list[tuple[int, int, int]] = []
        self.marked_steps = False

    def add(self, line: str, thread: int, name: str, start: int, duration: int, stats: Mapping[str, Stat]) -> None:
        """Add an event."""
        if self.device == MISSING:
            self._on_host(thread, name, start, duration, stats)
        else:
            self._on_device(line, thread, name, start, duration, stats)

    def _on_host(self, thread: int, name: str, start: int, duration: int, stats: Mapping[str, Stat]) -> None:
        place = (start, duration, self._process, thread)
        correlation, step = number_of(stats.get("correlation_id")), number_of(stats.get("step_num"))
        if step != MISSING:
            self.marked_steps = True
            self._rows.add(f"{TORCH_STEP}{step}", RANGES[0], *place)
        op = str(stats.get("hlo_op", ""))
        if op:
            around = framework_op(stats)
            if around and around != op:
                self._rows.add(around, OPS[0], *place)
            self._rows.add(op, OPS[0], *place)
        if correlation != MISSING:
            self._rows.add(name, _RUNTIME, *place, correlation=correlation)
        elif call := _PYTHON.fullmatch(name):
            self._rows.add(f"{call['file']}({call['line']}): {call['function']}", PYTHON_CALLS[0], *place)
        elif name.startswith("$"):
            self._rows.add(name[1:], PYTHON_CALLS[0], *place)
        elif not op:
            self._rows.add(name, OPS[0] if _TENSORFLOW_OP.fullmatch(name) else RANGES[0], *place)

    def _on_device(
        self, line: str, thread: int, name: str, start: int, duration: int, stats: Mapping[str, Stat]
    ) -> None:
        place = (start, duration, self._process, thread)
        stream = _STREAM.match(line)
        if stream or (line == _WORK and not self._has_streams):
            correlation = number_of(stats.get("correlation_id"))
            category = work_category(line, name, stats)
            number = int(stream["number"]) if stream else thread
            self._rows.add(name, category, *place, device=self.device, stream=number, correlation=correlation)
        elif line == _STEPS:
            step = number_of(name)
            if step != MISSING:
                self.device_steps.append((step, start, duration))
                name = f"{TORCH_STEP}{step}"
            self._rows.add(name, DEVICE_RANGES[0], *place, device=self.device)
        elif line == _MODULES:
            self._rows.add(name, DEVICE_RANGES[0], *place, device=self.device)
        # The other lines repeat the same work by scope or source line.


def add_device_steps(rows: Rows, planes: Collection[XlaPlane]) -> None:
    """Add the steps that the first device marks, if the host does not mark any."""
    if not any(plane.marked_steps for plane in planes):
        marked = next((plane.device_steps for plane in planes if plane.device_steps), [])
        for step, start, duration in marked:
            rows.add(f"{TORCH_STEP}{step}", RANGES[0], start, duration, MISSING, MISSING)


def framework_op(stats: Mapping[str, Stat]) -> str:
    """Return the JAX or TensorFlow op, or an empty string if it is unknown.

    An example of an op is ``jit(f)/transpose(jvp(Dense))/dot_general``.
    """
    for key in ("name", "tf_op"):
        text = str(stats.get(key, "")).partition(":")[0]
        if "/" in text:
            return text
    return ""


def work_category(line: str, name: str, stats: Mapping[str, Stat]) -> str:
    """Return the category of a piece of work on a device."""
    kinds = line.partition("(")[2]
    if "memset_details" in stats or name.lower().startswith("memset"):
        return _SET
    if "memcpy_details" in stats or name.lower().startswith("memcpy"):
        return COPIES[0]
    if kinds and _COPY.match(kinds):
        return COPIES[0]
    return KERNELS[0]


def number_of(value: object) -> int:
    """Convert a number, which may be stored as text, to an integer. The result is -1 for anything else."""
    number = whole_number(value)
    return MISSING if number is None or number < 0 else number


def is_plane(name: str) -> bool:
    """Check whether a process in a Chrome trace is a plane."""
    return name.startswith(("/device:", "/host:"))
