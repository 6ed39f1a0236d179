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

#: The maximum number of additional nested calls. With hooks, torch calls each module through one more function, so the
#: depth of nested calls can at most double. Thousands of additional calls could overflow the C stack.
_MOST_ROOM = 3000

_running = threading.Lock()
_room = threading.Lock()
#: The limits that were in effect each time `room_to_nest` was entered. The last one to leave restores the first limit.
_limits: list[int] = []


@contextmanager
def room_to_nest() -> Iterator[None]:
    """Raise Python's recursion limit to ensure that any deep model that runs without perfnb also runs here.

    If the step itself sets a limit, that limit is kept.
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
        If a capture or a torch profiler is already running. torch profilers cannot be nested, because the outer one
        would silently lose its events.
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
    """Check whether a torch profiler is in the warm-up phase of its schedule, or is recording another thread.

    torch has no API for this check, but a second session would crash the process when the first one ends.
    """
    kind = torch.autograd.profiler.profile
    profilers = (candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind))
    # A disabled profiler has neither of these attributes.
    return any(getattr(one, "entered", False) and getattr(one, "kineto_results", None) is None for one in profilers)


#: The string that torch's C++ exporter writes in place of a non-ASCII name.
_LOST_NAME = "unknown"
#: The activities of torch's profiler for each kind of device. The activity of a registered backend is PrivateUse1.
_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU", "mps": "MPS"}
_MEMORY = "[memory]"
_OWN_PROFILER = "The step runs a torch profiler of its own, and profilers do not nest: remove it from the step."


class Tracer:
    """A torch.profiler session. Shapes are not recorded, because that would keep tensors alive.

    If `devices` is true, kernels and copies are recorded on all accelerators in use that torch's profiler supports. If
    `stacks` is true, Python calls are recorded, which is expensive. If `memory` is true, every allocation and free is
    recorded. After an error, the events are freed unless `keeps` returns true for the error.
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
        # The blocks are not tensors, because tensors would be found among the user's. There are twice as many as
        # needed, because the allocator still tracks the addresses of blocks that were allocated in earlier sessions
        # and freed afterwards.
        self._blocks = [torch.UntypedStorage(4) for _ in range(2 * _FREES_PER_WARNING if memory else 0)]
        # `torch.profiler.profile` is not used, because the reference cycle in its schedule keeps the events alive.
        self._profile: _KinetoProfile | None = _KinetoProfile(
            activities=activities, with_stack=stacks, profile_memory=memory
        )
        self._trace: TraceColumns | None = None

    def __enter__(self) -> Tracer:
        assert self._profile is not None
        if profiler_active():
            raise CaptureError(_OWN_PROFILER)  # it was started in an earlier pass and is still running
        with quiet_kineto(), not_imported():  # torch checks whether its compiler uses CUDA graphs
            self._profile.start()
        if self._blocks:
            _spend_warning(self._blocks)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._profile is not None
        if not profiler_active():
            # A profiler inside the step ended the session, and stopping the session again would crash torch.
            self._profile = None
            self._blocks.clear()
            if error is None:
                raise CaptureError(_OWN_PROFILER)
            return
        with quiet_kineto():
            self._profile.stop()
        self._blocks.clear()  # if freed in a later session, the blocks would cause the warning there
        if error is not None and not self._keeps(error):
            self.close()

    def export(self, *, exact: bool = False) -> bytes:
        """Return the trace as Chrome trace JSON.

        torch's C++ exporter is fast, but it produces invalid JSON if a name contains a quote, and it replaces non-ASCII
        names with ``unknown``. If `exact` is true, torch's Python exporter is used instead. It is slower, but correct.
        """
        assert self._profile is not None, "export() after close()"
        # The gate is needed because an interrupt while the folder is created or removed would leave it behind.
        with InterruptGate(), tempfile.TemporaryDirectory(prefix="perfnb-") as folder:
            path = Path(folder) / "trace.json"
            options: dict[str, Any] = {"use_python_export": True} if exact else {}
            try:
                self._profile.export_chrome_trace(str(path), **options)
            except TypeError as error:
                raise CaptureError(
                    f"torch {torch.__version__} cannot export this trace, because a record_function name contains a "
                    "quote or a non-ASCII character: rename it, or use torch 2.13."
                ) from error
            return path.read_bytes()

    def read(self) -> TraceColumns:
        """Return the columns of the session's trace, which is decoded only once.

        A session that recorded devices must be read before the next one starts, because torch then discards the records
        from the GPU and its driver, even though the session still has its results.

        Sequence numbers are assigned per thread. They are dropped for backward nodes whose forward ops ran on a thread
        that was not recorded, because ops on other threads have the same numbers.
        """
        if self._trace is None:
            trace = _decoded(self)
            unseen = (trace.forward_thread > 0) & ~np.isin(trace.forward_thread, list(self._threads()))
            if unseen.any():
                trace = replace(trace, sequence=np.where(unseen, MISSING, trace.sequence))
            self._trace = trace
        return self._trace

    def _threads(self) -> set[int]:
        """Return the numbers of the recorded threads that backward nodes use to refer to their forward op's thread."""
        assert self._profile is not None, "read() after close()"
        results: Any = self._profile.profiler
        return {event.start_tid for event in results.kineto_results.experimental_event_tree()}

    def memory_changes(self) -> list[tuple[int, int, str]]:
        """Return every allocation and free in chronological order.

        Each entry consists of a Unix time in nanoseconds, the number of bytes (negative for a free), and the kind of
        device.
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
    # This is only checked if an accelerator is in use, because the check itself starts the CUDA driver.
    supported = torch.profiler.supported_activities() if wanted else ()
    return [activity for activity in supported if activity in wanted]


def untraced() -> list[str]:
    """Return the kinds of accelerators that are in use but that torch's profiler cannot record."""
    recorded = device_activities()
    kinds = [accelerator.kind for accelerator in accelerators()]
    return [kind for kind in kinds if _activity(kind) not in recorded]


def _activity(kind: str) -> ProfilerActivity | None:
    # Members are compared, because torch renames the member of a backend when the backend is named.
    return getattr(ProfilerActivity, _ACTIVITIES.get(kind, "PrivateUse1"), None)


def _decoded(tracer: Tracer) -> TraceColumns:
    trace: TraceColumns | None = None
    with suppress(TraceError):  # a name contains a quote, which the slow exporter handles
        trace = kineto.decode(tracer.export())
        if _LOST_NAME not in trace.names:
            return trace
    try:
        return kineto.decode(tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # in an older torch, only the non-ASCII names are missing


_LOG_LEVEL = "KINETO_LOG_LEVEL"
_STDERR = 2
#: torch's CPU allocator prints a warning for every thousandth freed block that was allocated before the session.
_FREES_PER_WARNING = 1000
_WARNING = b"allocated before the profiling started"


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto's log lines out of the notebook's output, unless the user has set a log level."""
    own = _LOG_LEVEL not in os.environ
    if own:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if own:
            os.environ.pop(_LOG_LEVEL, None)


def _spend_warning(blocks: list[torch.UntypedStorage]) -> None:
    """Trigger the CPU allocator's warning about blocks from before the session while standard error is redirected.

    In a session that records memory, the first of every thousand freed blocks that were allocated before the session
    causes a line on standard error. This function frees blocks that it allocated for this purpose until the line
    appears. The step can then free the next thousand blocks without a warning. The remaining blocks must be kept alive
    as long as the session.
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
    except OSError:  # without standard error or a temporary file, the line is displayed
        return
    if other:
        os.write(_STDERR, other)


_REPEATS, _BLOCKS = 100, 7


class Costs(NamedTuple):
    """The durations of an op and of a module call that do almost nothing."""

    op_ns: float
    call_ns: float

    def least(self, other: Costs) -> Costs:
        """Return the smaller value of each duration in two measurements, because other work can only add time."""
        return Costs(min(self.op_ns, other.op_ns), min(self.call_ns, other.call_ns))

    def beyond(self, bare: Costs) -> Costs:
        """Return the difference from `bare`, which is at least 0."""
        return Costs(max(0.0, self.op_ns - bare.op_ns), max(0.0, self.call_ns - bare.call_ns))


def measure_costs(spans: LayerSpans | None = None) -> Costs:
    """Measure ops and module calls that do almost nothing. They are traced if a session is active.

    Tracing adds about 1 µs to an op and a few microseconds to a module call, so layers that consist of many tiny ops
    would appear too slow. This is corrected with the difference between two measurements, with and without the tracer.
    Each measurement is the minimum of several repetitions, which is disturbed least by other work. `spans` are the
    active layer spans, if there are any.
    """
    number, module = torch.zeros(1), nn.Identity()
    call: Callable[[Any], Any] = module
    if others_listen():  # hooks that belong to the user must not see these calls
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
