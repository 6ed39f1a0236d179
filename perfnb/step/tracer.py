"""A torch.profiler session, reading its trace, and what tracing costs."""

from __future__ import annotations

import os
import sys
import tempfile
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

from perfnb.errors import CaptureError, TraceError
from perfnb.interrupts import InterruptGate
from perfnb.step.guard import profiler_active
from perfnb.step.layers import LayerSpans, function_span, others_listen
from perfnb.trace import kineto
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace_names import DATA_SPAN, STEP_SPAN

#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"
_OWN_PROFILER = "The step runs a torch profiler of its own, and profilers do not nest: remove it from the step."


class Tracer:
    """A torch.profiler session, without shapes, which would keep tensors alive.

    `cuda` adds GPU kernels and copies, `stacks` Python calls (at a high cost), `memory` every allocation and free.
    """

    def __init__(self, *, cuda: bool, stacks: bool = False, memory: bool = False) -> None:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
        self._warning = AllocatorWarning() if memory else None
        # Without the schedule of `torch.profiler.profile`, whose reference cycle keeps the events alive.
        self._profile: _KinetoProfile | None = _KinetoProfile(
            activities=activities, with_stack=stacks, profile_memory=memory
        )

    def __enter__(self) -> Tracer:
        assert self._profile is not None
        if profiler_active():
            raise CaptureError(_OWN_PROFILER)  # started in an earlier pass and still running
        with quiet_kineto():
            self._profile.start()
        if self._warning is not None:
            self._warning.spend()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._profile is not None
        if not profiler_active():
            # A profiler inside the step ended the session; stopping it again would crash torch.
            self._profile = None
            if exc_info[0] is None:
                raise CaptureError(_OWN_PROFILER)
            return
        with quiet_kineto():
            self._profile.stop()

    def export(self, *, exact: bool = False) -> bytes:
        """The trace as Chrome trace JSON.

        torch's C++ exporter is fast, but writes a name with a quote as invalid JSON and a non-ASCII name as
        ``unknown``; `exact` uses its Python exporter, which is slow and correct.
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

    def threads(self) -> set[int]:
        """The recorded threads, by the numbers that backward nodes use for their forward op's thread."""
        assert self._profile is not None, "threads() after close()"
        results: Any = self._profile.profiler
        return {event.start_tid for event in results.kineto_results.experimental_event_tree()}

    def close(self) -> None:
        """Free the session's memory."""
        self._profile = None


def step_span(number: int) -> Any:
    """The span around a traced step."""
    return function_span(f"{STEP_SPAN}{number}")


def data_span(_: str) -> Any:
    """The span around the wait for a batch."""
    return function_span(DATA_SPAN)


def read_trace(tracer: Tracer) -> TraceColumns:
    """The columns of a session's trace.

    Sequence numbers count per thread. Those of backward nodes whose forward ops ran on a thread that was not recorded
    are dropped, because ops of other threads have the same numbers.
    """
    trace = _decoded(tracer)
    unseen = (trace.forward_thread > 0) & ~np.isin(trace.forward_thread, list(tracer.threads()))
    return replace(trace, sequence=np.where(unseen, MISSING, trace.sequence)) if unseen.any() else trace


def _decoded(tracer: Tracer) -> TraceColumns:
    trace: TraceColumns | None = None
    try:
        trace = kineto.decode(tracer.export())
        if _LOST_NAME not in trace.names:
            return trace
    except TraceError:
        pass  # a name contains a quote; the slow exporter handles it
    try:
        return kineto.decode(tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # an older torch: everything but non-ASCII names is there


_LOG_LEVEL = "KINETO_LOG_LEVEL"
_STDERR = 2
#: torch's CPU allocator warns about every thousandth freed block that was allocated before the session.
_FREES_PER_WARNING = 1000
_WARNING = b"allocated before the profiling started"


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto's log lines out of the notebook's output; a level set by the user is kept."""
    before = os.environ.get(_LOG_LEVEL)
    if before is None:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


class AllocatorWarning:
    """Triggers the CPU allocator's warning about blocks from before the session where nobody sees it.

    In a session that records memory, the first of each thousand freed blocks from before it writes a line to standard
    error. Own blocks are freed, with standard error redirected, until that line appears; the next thousand frees of the
    user's step are then silent. The remaining blocks must live as long as the session.
    """

    def __init__(self) -> None:
        # Not tensors, which would be found among the user's.
        self._blocks = [torch.UntypedStorage(4) for _ in range(_FREES_PER_WARNING)]

    def spend(self) -> None:
        """Free the blocks; call this after the session has started."""
        try:
            with tempfile.TemporaryFile() as sink:
                self._spend_into(sink.fileno())
                sink.seek(0)
                other = b"".join(line for line in sink if _WARNING not in line)
        except OSError:  # no standard error, or no temporary file: the line is shown
            return
        if other:
            os.write(_STDERR, other)

    def _spend_into(self, sink: int) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        kept = os.dup(_STDERR)
        try:
            os.dup2(sink, _STDERR)
            while self._blocks and os.fstat(sink).st_size == 0:
                self._blocks.pop()
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)


_REPEATS, _BLOCKS = 100, 7


class Costs(NamedTuple):
    """Times of an op and of a module call that do almost nothing."""

    op_ns: float
    call_ns: float

    def least(self, other: Costs) -> Costs:
        """The smaller values of two measurements: other work only adds time."""
        return Costs(min(self.op_ns, other.op_ns), min(self.call_ns, other.call_ns))

    def beyond(self, bare: Costs) -> Costs:
        """The cost beyond `bare`, at least 0."""
        return Costs(max(0.0, self.op_ns - bare.op_ns), max(0.0, self.call_ns - bare.call_ns))


def measure_costs(spans: LayerSpans | None = None) -> Costs:
    """Measure ops and module calls that do almost nothing, traced or not as the session is now.

    Tracing adds about 1 µs to an op and a few to a module call, so layers of many tiny ops would look too heavy. The
    difference of two measurements, with and without the tracer, corrects for it. The least of a few repetitions is
    used, which other work disturbs least. `spans` are the active layer spans, if any.
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
