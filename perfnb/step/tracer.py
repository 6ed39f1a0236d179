"""One session of torch.profiler, and its trace as the bytes of a Chrome trace file."""

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
_OWN_PROFILER = "The step runs a torch profiler of its own, and profilers do not nest: take it out of the step."


class Tracer:
    """A torch.profiler session. It records no shapes, for those keep tensors alive.

    Parameters
    ----------
    cuda : bool
        Record the GPU's kernels and copies too.
    stacks : bool
        Record Python calls too, at a high cost.
    memory : bool
        Record every allocation and free.
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
            raise CaptureError(_OWN_PROFILER)  # started in an earlier pass, and running still
        with quiet_kineto():
            self._profile.start()
        if self._warning is not None:
            self._warning.spend()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._profile is not None
        if not profiler_active():
            # A profiler inside the step took the session with it; torch would crash on what is left of this one.
            self._profile = None
            if exc_info[0] is None:
                raise CaptureError(_OWN_PROFILER)
            return
        with quiet_kineto():
            self._profile.stop()

    def export(self, *, exact: bool = False) -> bytes:
        """The trace as Chrome trace JSON.

        torch's C++ exporter is fast, but writes a name with a quote as broken JSON and a name outside ASCII as
        ``unknown``; `exact` asks for its Python exporter, which is slow and right.
        """
        assert self._profile is not None, "export() after close()"
        # The gate: an interrupt while the folder is made or removed would leave it behind.
        with InterruptGate(), tempfile.TemporaryDirectory(prefix="perfnb-") as folder:
            path = Path(folder) / "trace.json"
            options: dict[str, Any] = {"use_python_export": True} if exact else {}
            try:
                self._profile.export_chrome_trace(str(path), **options)
            except TypeError as error:
                raise CaptureError(
                    f"torch {torch.__version__} cannot export this trace: a record_function name in it holds a quote "
                    "or a character outside ASCII; rename it or use torch 2.13."
                ) from error
            return path.read_bytes()

    def threads(self) -> set[int]:
        """The threads that were recorded, by torch's own numbers, in which a backward node tells its forward op's."""
        assert self._profile is not None, "threads() after close()"
        results: Any = self._profile.profiler
        return {event.start_tid for event in results.kineto_results.experimental_event_tree()}

    def close(self) -> None:
        """Free what the session holds."""
        self._profile = None


def step_span(number: int) -> Any:
    """The span around a traced step."""
    return function_span(f"{STEP_SPAN}{number}")


def data_span(_: str) -> Any:
    """The span around the wait for a batch."""
    return function_span(DATA_SPAN)


def read_trace(tracer: Tracer) -> TraceColumns:
    """The columns of a session's trace.

    Sequence numbers count the operators of one thread. Those of backward nodes whose operators ran in a thread that was
    not recorded are left out: the same numbers stand at other operators.
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
        pass  # a name with a quote in it; the slow exporter writes it right
    try:
        return kineto.decode(tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # an older torch: all but the names outside ASCII is there


_LOG_LEVEL = "KINETO_LOG_LEVEL"
_STDERR = 2
#: Each time this many blocks from before the session were freed, torch's CPU allocator says so.
_FREES_PER_WARNING = 1000
_WARNING = b"allocated before the profiling started"


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto's log lines out of the notebook's output; a level that the user set stays."""
    before = os.environ.get(_LOG_LEVEL)
    if before is None:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


class AllocatorWarning:
    """Spends the CPU allocator's warning about blocks that it did not see being made.

    Blocks from before a session that records memory are freed in every such session, and the first of each thousand
    makes a line on standard error. Blocks made before the session are freed in it, unseen, until that line was
    written: a thousand frees of the user's step are then silent. The other blocks must live as long as the session.
    """

    def __init__(self) -> None:
        # No tensors: those would be seen among the user's.
        self._blocks = [torch.UntypedStorage(4) for _ in range(_FREES_PER_WARNING)]

    def spend(self) -> None:
        """Free the blocks; call this when the session has begun."""
        try:
            with tempfile.TemporaryFile() as sink:
                self._spend_into(sink.fileno())
                sink.seek(0)
                other = b"".join(line for line in sink if _WARNING not in line)
        except OSError:  # no standard error, or nowhere to write: then the line is shown
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
    """Time of one op and of one module call that do almost nothing."""

    op_ns: float
    call_ns: float

    def least(self, other: Costs) -> Costs:
        """The smaller of two measurements: other work can only add to one, and may last longer than it."""
        return Costs(min(self.op_ns, other.op_ns), min(self.call_ns, other.call_ns))

    def beyond(self, bare: Costs) -> Costs:
        """What these cost more than `bare`, never below 0."""
        return Costs(max(0.0, self.op_ns - bare.op_ns), max(0.0, self.call_ns - bare.call_ns))


def measure_costs(spans: LayerSpans | None = None) -> Costs:
    """Least cost over a few blocks of ops and calls, which other work disturbs least; under the tracer active now.

    Parameters
    ----------
    spans : LayerSpans, optional
        The layer spans that are entered, if any.
    """
    number, module = torch.zeros(1), nn.Identity()
    call: Callable[[Any], Any] = module
    if others_listen():  # the user's hooks are not to hear of these calls
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
