"""A simulated machine that writes a trace of itself, in the format of `torch.profiler`.

A host thread moves from event to event and launches work onto GPU streams, which run it in order. Nothing is measured:
callers give every duration, and reproducible random noise is added.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: The process and its main thread, and the backward thread.
MAIN, BACKWARD = 4000, 4001
#: Duration of a launch call, and the time from its start until the work can start, in microseconds.
CALL_US, ARRIVES_US = 4.5, 6.0
Shapes = Sequence[Sequence[int]]


class Machine:
    """A host and its GPU; times are in microseconds.

    Parameters
    ----------
    launch : sequence of (category, name)
        The calls that launch kernels; `launch` picks one by index.
    pace : float
        Factor on the duration of what the host does.
    seed : int
        Seed of the noise, up to 10 % of each duration.
    **facts
        Metadata of the trace beside its events.
    """

    def __init__(
        self, launch: Sequence[tuple[str, str]], pace: float = 1.0, seed: int = 0, begin: float = 1000.0, **facts: Any
    ) -> None:
        self.now, self.thread = begin, MAIN
        self._launch, self._pace, self._facts = launch, pace, facts
        self._chance = random.Random(seed)
        self._events: list[dict[str, Any]] = []
        self._free: dict[int, float] = {}
        self._number = 0

    def works(self, us: float) -> None:
        """The host does something that the trace does not record."""
        self.now = round(self.now + self._about(us) * self._pace, 3)

    @contextmanager
    def span(self, name: str, category: str = "user_annotation", **args: Any) -> Iterator[None]:
        """A host span around what happens inside."""
        began = self.now
        yield
        self._add(name, category, began, self.now, MAIN, self.thread, args)

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """A layer's forward pass."""
        with self.span(f"nn.Module: {name}", "python_function"):
            self.works(8)
            yield
            self.works(4)

    @contextmanager
    def op(self, name: str, shapes: Shapes = (), us: float = 6, **args: Any) -> Iterator[None]:
        """An operator, with its own time in addition to what is inside."""
        with self.span(name, "cpu_op", **{"Input Dims": [list(shape) for shape in shapes], **args}):
            self.works(us / 2)
            yield
            self.works(us / 2)

    def launch(self, kernel: str, us: float, stream: int = 7, call: int = 0, after: float = 0.0, **args: Any) -> float:
        """Launch a kernel; returns when it ends."""
        category, name = self._launch[call]
        return self._launched(category, name, "kernel", kernel, self._about(us), stream, after, args)

    def moves(self, what: str, us: float, stream: int = 7, prefix: str = "cuda") -> float:
        """Launch a copy or a fill; returns when it ends."""
        call = f"{prefix}{'MemsetAsync' if what.startswith('Memset') else 'MemcpyAsync'}"
        category = "gpu_memset" if what.startswith("Memset") else "gpu_memcpy"
        return self._launched("cuda_runtime", call, category, what, self._about(us), stream, 0.0, {"bytes": 65536})

    def collective(self, kernel: str, begin: float, end: float, stream: int, kind: str, group: str) -> None:
        """Launch a collective with a given start and end, because other ranks take part."""
        category, name = self._launch[0]
        args = {"Collective name": kind, "Process Group Ranks": group}
        self._launched(category, name, "kernel", kernel, end - begin, stream, begin, args)

    def call(self, name: str, us: float, *, waits: bool = False) -> None:
        """A GPU library call that launches nothing; it can wait until the GPU has finished everything."""
        began = self.now
        if waits:
            self.waits()
        self.now = round(self.now + self._about(us), 3)
        self._number += 1
        self._add(name, "cuda_runtime", began, self.now, MAIN, self.thread, {"correlation": self._number})

    def waits(self) -> None:
        """The host waits, without an event, until the GPU has finished everything."""
        self.now = max(self.now, *self._free.values(), 0.0)

    def free_at(self, stream: int = 7) -> float:
        """When a stream finishes its work."""
        return self._free.get(stream, 0.0)

    def text(self) -> bytes:
        """The trace, compressed."""
        content = {"schemaVersion": 1, **self._facts, "traceEvents": self._events}
        return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)

    def _launched(
        self, category: str, name: str, sort: str, work: str, us: float, stream: int, after: float, args: dict[str, Any]
    ) -> float:
        self._number += 1
        number, called = self._number, self.now
        self.now = round(self.now + self._about(CALL_US), 3)
        self._add(name, category, called, self.now, MAIN, self.thread, {"correlation": number})
        begin = round(max(called + self._about(ARRIVES_US), self.free_at(stream), after), 3)
        end = self._free[stream] = round(begin + us, 3)
        facts = {"device": 0, "stream": stream, "correlation": number, **args}
        self._add(work, sort, begin, end, 0, stream, facts)
        return end

    def _about(self, us: float) -> float:
        return us * self._chance.uniform(0.9, 1.1)

    def _add(self, name: str, category: str, begin: float, end: float, process: int, thread: int, args: Any) -> None:
        times = {"ts": round(begin, 3), "dur": round(end - begin, 3)}
        self._events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": args}
        )
