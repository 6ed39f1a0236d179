"""Run a torch.profiler session, one at a time, read its trace, and measure the cost of tracing."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, _KinetoProfile  # type: ignore[attr-defined]

from perfnb.errors import CaptureError, NestedProfilerError, TraceError
from perfnb.interrupts import InterruptGate
from perfnb.step.compiler import not_imported
from perfnb.step.device import accelerators
from perfnb.step.layers import LayerSpans, others_listen, profiler_active
from perfnb.trace import kineto
from perfnb.trace.columns import MISSING, TraceColumns

#: The most extra nested calls. With hooks, torch calls each module through one more function, so at most twice as many
#: calls nest; thousands more could overflow the C stack.
_MOST_ROOM = 3000

_running = threading.Lock()
_room = threading.Lock()
#: The limits found by each of those inside `room_to_nest`; the last one to leave restores the first limit.
_limits: list[int] = []


@contextmanager
def room_to_nest() -> Iterator[None]:
    """Raise Python's recursion limit, so that any deep model that runs without perfnb also runs here.

    A limit set by the step itself is kept.
    """
    with _room:
        limit = sys.getrecursionlimit()
        if not _limits:
            sys.setrecursionlimit(limit + min(limit, _MOST_ROOM))
        _limits.append(limit)
    try:
        yield
    finally:
        with _room:
            own = _limits[0]
            _limits.pop()
            if not _limits and sys.getrecursionlimit() == own + min(own, _MOST_ROOM):
                sys.setrecursionlimit(own)


@contextmanager
def exclusive() -> Iterator[None]:
    """Allow one capture at a time.

    Raises
    ------
    NestedProfilerError
        If a capture or a torch profiler is already running. torch's profiler does not nest: the outer one would
        silently lose its events.
    """
    if not _running.acquire(blocking=False):
        raise NestedProfilerError(
            "A step is already being profiled, and profilers do not nest: remove the inner %%profile_step or "
            "profile_step()."
        )
    try:
        if profiler_active() or _profiler_prepared():
            raise NestedProfilerError(
                "A torch profiler is already running, and profilers do not nest: stop it before profiling a step."
            )
        with room_to_nest():
            yield
    finally:
        _running.release()


def _profiler_prepared() -> bool:
    """Return whether a torch profiler is in the warm-up of its schedule, or records another thread.

    torch has no API for this, and a second session would crash the process when the first one ends.
    """
    kind = torch.autograd.profiler.profile
    profilers = (candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind))
    # Both are absent from a disabled one.
    return any(getattr(one, "entered", False) and getattr(one, "kineto_results", None) is None for one in profilers)


#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"
#: Activities of torch's profiler by kind of device; those of a backend that registered itself are PrivateUse1.
_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU", "mps": "MPS"}
_MEMORY = "[memory]"
_OWN_PROFILER = "The step runs a torch profiler of its own, and profilers do not nest: remove it from the step."


class Tracer:
    """A torch.profiler session, without shapes, because recording them would keep tensors alive.

    `devices` adds kernels and copies of the accelerators in use that torch's profiler can record, `stacks` Python calls
    (at a high cost), `memory` every allocation and free. After an error the events are freed, unless `keeps` returns
    true for the error.
    """

    def __init__(
        self,
        *,
        devices: bool = False,
        stacks: bool = False,
        memory: bool = False,
        keeps: Callable[[BaseException], bool] = lambda _: False,
    ) -> None:
        self._keeps = keeps
        self.devices = device_activities() if devices else []
        activities = [ProfilerActivity.CPU, *self.devices]
        # These are not tensors, which would be found among the user's. There are twice as many as it takes: the
        # allocator still knows the addresses of blocks that were allocated in earlier sessions and freed after them.
        self._blocks = [torch.UntypedStorage(4) for _ in range(2 * _FREES_PER_WARNING if memory else 0)]
        # Without the schedule of `torch.profiler.profile`, whose reference cycle keeps the events alive.
        self._profile: _KinetoProfile | None = _KinetoProfile(
            activities=activities, with_stack=stacks, profile_memory=memory
        )
        self._trace: TraceColumns | None = None

    def __enter__(self) -> Tracer:
        assert self._profile is not None
        if profiler_active():
            raise CaptureError(_OWN_PROFILER)  # started in an earlier pass and still running
        with quiet_kineto(), not_imported():  # torch asks for CUDA graphs of its compiler
            self._profile.start()
        if self._blocks:
            _spend_warning(self._blocks)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._profile is not None
        if not profiler_active():
            # A profiler inside the step ended the session; stopping it again would crash torch.
            self._profile = None
            self._blocks.clear()
            if error is None:
                raise CaptureError(_OWN_PROFILER)
            return
        with quiet_kineto():
            self._profile.stop()
        self._blocks.clear()  # freed in a later session, they would cause its warning there
        if error is not None and not self._keeps(error):
            self.close()

    def export(self, *, exact: bool = False) -> bytes:
        """Return the trace as Chrome trace JSON.

        torch's C++ exporter is fast, but writes a name with a quote as invalid JSON and a non-ASCII name as
        ``unknown``. `exact` uses torch's Python exporter, which is slow and correct.
        """
        assert self._profile is not None, "export() after close()"
        # The gate: an interrupt while the folder is created or removed would leave it behind.
        with InterruptGate(), tempfile.TemporaryDirectory(prefix="perfnb-") as folder:
            path = Path(folder) / "trace.json"
            options: dict[str, Any] = {"use_python_export": True} if exact else {}
            try:
                self._profile.export_chrome_trace(str(path), **options)
            except TypeError as error:
                raise CaptureError(
                    f"torch {torch.__version__} cannot export this trace, because a record_function name has a quote "
                    "or a non-ASCII character in it: rename it, or use torch 2.13."
                ) from error
            return path.read_bytes()

    def read(self) -> TraceColumns:
        """Return the columns of the session's trace, decoded once.

        A session that recorded devices is read before the next one starts: torch then discards the records of the GPU
        and its driver, although the session still has its results.

        Sequence numbers count per thread. Those of backward nodes whose forward ops ran on a thread that was not
        recorded are dropped, because ops of other threads have the same numbers.
        """
        if self._trace is None:
            trace = _decoded(self)
            unseen = (trace.forward_thread > 0) & ~np.isin(trace.forward_thread, list(self._threads()))
            if unseen.any():
                trace = replace(trace, sequence=np.where(unseen, MISSING, trace.sequence))
            self._trace = trace
        return self._trace

    def _threads(self) -> set[int]:
        """Return the recorded threads, by the numbers that backward nodes use for their forward op's thread."""
        assert self._profile is not None, "read() after close()"
        results: Any = self._profile.profiler
        return {event.start_tid for event in results.kineto_results.experimental_event_tree()}

    def memory_changes(self) -> list[tuple[int, int, str]]:
        """Return every allocation and free in order of time.

        Each has its Unix time in nanoseconds, bytes (a free is negative) and kind of device.
        """
        assert self._profile is not None, "memory_changes() after close()"
        results: Any = self._profile.profiler
        events = (event for event in results.kineto_results.events() if event.name() == _MEMORY)
        return sorted((event.start_ns(), event.nbytes(), event.device_type().name.lower()) for event in events)

    def close(self) -> None:
        """Free the session's memory."""
        self._profile = self._trace = None


def device_activities() -> list[ProfilerActivity]:
    """Return the activities that torch's profiler can record on the accelerators in use."""
    wanted = {_activity(accelerator.kind) for accelerator in accelerators()}
    # Asked only if one is in use: the question itself starts the CUDA driver.
    supported = torch.profiler.supported_activities() if wanted else ()
    return [activity for activity in supported if activity in wanted]


def untraced() -> list[str]:
    """Return the kinds of accelerators in use whose work torch's profiler cannot record."""
    recorded = device_activities()
    kinds = [accelerator.kind for accelerator in accelerators()]
    return [kind for kind in kinds if _activity(kind) not in recorded]


def _activity(kind: str) -> ProfilerActivity | None:
    # As members: torch renames that of a backend when the backend is named.
    return getattr(ProfilerActivity, _ACTIVITIES.get(kind, "PrivateUse1"), None)


def _decoded(tracer: Tracer) -> TraceColumns:
    trace: TraceColumns | None = None
    with suppress(TraceError):  # a name contains a quote; the slow exporter handles it
        trace = kineto.decode(tracer.export())
        if _LOST_NAME not in trace.names:
            return trace
    try:
        return kineto.decode(tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # an older torch: everything except non-ASCII names is there


_LOG_LEVEL = "KINETO_LOG_LEVEL"
_STDERR = 2
#: torch's CPU allocator warns about every thousandth freed block that was allocated before the session.
_FREES_PER_WARNING = 1000
_WARNING = b"allocated before the profiling started"


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto's log lines out of the notebook's output; a level that the user set is kept."""
    own = _LOG_LEVEL not in os.environ
    if own:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if own:
            os.environ.pop(_LOG_LEVEL, None)


def _spend_warning(blocks: list[torch.UntypedStorage]) -> None:
    """Trigger the CPU allocator's warning about blocks from before the session where nobody sees it.

    In a session that records memory, the first of each thousand freed blocks from before it writes a line to standard
    error. This function frees blocks of its own, with standard error redirected, until that line appears; the next
    thousand frees of the step are then silent. The remaining blocks must live as long as the session.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    try:
        with tempfile.TemporaryFile() as sink:
            kept = os.dup(_STDERR)
            try:
                os.dup2(sink.fileno(), _STDERR)
                while blocks and os.fstat(sink.fileno()).st_size == 0:
                    blocks.pop()
            finally:
                os.dup2(kept, _STDERR)
                os.close(kept)
            sink.seek(0)
            other = b"".join(line for line in sink if _WARNING not in line)
    except OSError:  # no standard error, or no temporary file: the line is shown
        return
    if other:
        os.write(_STDERR, other)


_REPEATS, _BLOCKS = 100, 7


class Costs(NamedTuple):
    """The times of an op and of a module call that do almost nothing."""

    op_ns: float
    call_ns: float

    def least(self, other: Costs) -> Costs:
        """Return the smaller values of two measurements, because other work can only add time."""
        return Costs(min(self.op_ns, other.op_ns), min(self.call_ns, other.call_ns))

    def beyond(self, bare: Costs) -> Costs:
        """Return the cost beyond `bare`, at least 0."""
        return Costs(max(0.0, self.op_ns - bare.op_ns), max(0.0, self.call_ns - bare.call_ns))


def measure_costs(spans: LayerSpans | None = None) -> Costs:
    """Measure ops and module calls that do almost nothing, traced or not as the session is now.

    Tracing adds about 1 µs to an op and a few to a module call, so layers of many tiny ops would look too heavy. The
    difference of two measurements, with and without the tracer, corrects for it. The smallest of a few repetitions is
    used, because other work disturbs it least. `spans` are the active layer spans, if any.
    """
    number, module = torch.zeros(1), nn.Identity()
    call: Callable[[Any], Any] = module
    if others_listen():  # the user's hooks must not see these calls
        call = module.forward if spans is None else partial(spans.call, module)
    with torch.no_grad():
        return Costs(_per_call(torch.neg_, number), _per_call(call, number))


def _per_call(function: Callable[[Any], Any], argument: Any) -> float:
    blocks = []
    for _ in range(_BLOCKS):
        begin = time.perf_counter_ns()
        for _ in range(_REPEATS):
            function(argument)
        blocks.append((time.perf_counter_ns() - begin) / _REPEATS)
    return min(blocks)
