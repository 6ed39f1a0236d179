"""Sample the Python stacks of loader workers while a step's stacks are sampled.

A process cannot read the frames of another process. For this reason, each worker that starts inside `WorkerStacks` gets
a thread that sleeps until the sampled pass and then writes the stacks of the worker's main thread to a file. Workers
that were started earlier do not have such a thread.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet

from torch.utils.data import dataloader
from torch.utils.data._utils import worker as torch_worker

from perfnb.step.installed import Installed
from perfnb.step.loaders import only_here

#: The mean time between samples in seconds. Intervals vary by up to half of this time to avoid synchronising with the
#: step. Workers also use this interval to check whether the pass has started.
INTERVAL_S, _LOOKS_S = 0.01, 0.05
#: The maximum number of frames in a sample.
DEEPEST = 500
_LOOP = torch_worker._worker_loop.__code__
_QUEUES = os.path.join("multiprocessing", "queues.py")
#: The file whose existence tells the workers to write samples.
_GO = "go"

#: The name, file and first line of a function, and the current line.
WorkerFrame = tuple[str, str, int, int]
#: Represents a worker that is waiting for the next batch to load.
IDLE: WorkerFrame = ("waiting for work", "", -1, -1)


class WorkerStack(NamedTuple):
    """A worker's stack, outermost frame first, along with the number of samples and the time that it represents."""

    worker: int
    frames: tuple[WorkerFrame, ...]
    samples: int
    weight_ns: int


class WorkerStacks(Installed):
    """Context manager that makes it possible to sample loader workers.

    These are the workers of the loaders over which the thread that entered the context iterates.

    Attributes
    ----------
    unreached : int
        The number of workers that delivered batches to that thread during `sampling` but could not be sampled because
        they had been started earlier.
    """

    def __init__(self) -> None:
        self.unreached = 0
        self._started: WeakSet[Any] = WeakSet()
        self._iterators = 0
        self._folder = ""
        self._here = only_here()

    def _install(self, stack: ExitStack) -> None:
        self._folder = tempfile.mkdtemp(prefix="perfnb-stacks-")
        # This also ends the threads in workers that continue to run.
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        iterators: Any = dataloader._MultiProcessingDataLoaderIter
        make = iterators.__init__

        @functools.wraps(make)
        def __init__(self_: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not self._here():
                return make(self_, loader, *args, **kwargs)
            number, init = self._iterators, loader.worker_init_fn
            self._iterators += 1
            for worker in range(loader.num_workers):
                # The file is created here, because a worker that starts late might create it in a folder that is being
                # removed.
                Path(self._folder, _file(number, worker)).touch()
            loader.worker_init_fn = _Sampled(init, self._folder, number)
            try:
                make(self_, loader, *args, **kwargs)
            finally:
                loader.worker_init_fn = init
            self._started.add(self_)

        iterators.__init__ = __init__
        stack.callback(setattr, iterators, "__init__", make)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Make the workers write samples inside the block."""
        iterators: Any = dataloader._BaseDataLoaderIter
        following = iterators.__next__
        unreached: dict[int, int] = {}

        @functools.wraps(following)
        def __next__(self_: Any) -> Any:
            __tracebackhide__ = True
            if self_ not in self._started and self._here():
                unreached[id(self_)] = len(getattr(self_, "_workers", ()))
            return following(self_)

        go = Path(self._folder, _GO)
        iterators.__next__ = __next__
        try:
            go.touch()
            yield
        finally:
            go.unlink(missing_ok=True)
            iterators.__next__ = following
            self.unreached = sum(unreached.values())

    def read(self) -> list[WorkerStack]:
        """Return the stacks that have been sampled so far."""
        found: dict[tuple[int, tuple[WorkerFrame, ...]], list[int]] = {}
        for path in sorted(Path(self._folder).glob("*.stacks")):
            worker, stacks = int(path.stem.partition("-")[2]), []
            for line in path.read_text("utf-8", "replace").splitlines(keepends=True):
                if not line.endswith("\n"):  # still being written
                    break
                weight, number, *new = json.loads(line)
                stacks += [tuple(map(tuple, frames)) for frames in new]
                sums = found.setdefault((worker, stacks[number]), [0, 0])
                sums[0] += 1
                sums[1] += weight
        return [WorkerStack(worker, frames, *sums) for (worker, frames), sums in found.items()]


def _file(iterator: int, worker: int) -> str:
    return f"{iterator}-{worker}.stacks"


@dataclass(frozen=True)
class _Sampled:
    """A ``worker_init_fn`` that starts the thread and calls the loader's own function.

    It can be pickled if the loader's own function can be pickled.
    """

    init: Callable[[int], Any] | None
    folder: str
    iterator: int

    def __call__(self, worker: int) -> None:
        __tracebackhide__ = True
        path = os.path.join(self.folder, _file(self.iterator, worker))
        arguments = (path, os.path.join(self.folder, _GO), threading.get_ident())
        with suppress(RuntimeError):  # if no thread can be started, the worker continues without one
            threading.Thread(target=_write_samples, args=arguments, name="perfnb-stacks", daemon=True).start()
        if self.init is not None:
            self.init(worker)


def _write_samples(path: str, go: str, watched: int) -> None:
    """Write the stacks of a thread to the file at `path` for as long as the file `go` exists.

    Each distinct stack is written in full only once.
    """
    while not os.path.exists(go):
        if not os.path.exists(path):  # the capture has ended
            return
        time.sleep(_LOOKS_S)
    draw = random.Random()  # a separate generator, because the worker's random numbers must not change
    numbers: dict[tuple[WorkerFrame, ...], int] = {}
    # The capture may end and the disk may fill up at any time.
    with suppress(OSError), os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "w", encoding="utf-8") as file:
        last = time.perf_counter_ns()
        while os.path.exists(go):
            time.sleep(INTERVAL_S * (0.5 + draw.random()))
            frames = _frames(sys._current_frames().get(watched))
            now = time.perf_counter_ns()
            if frames is not None:
                new = [] if frames in numbers else [frames]
                number = numbers.setdefault(frames, len(numbers))
                file.write(f"{json.dumps([now - last, number, *new])}\n")
                file.flush()
            last = now


def _frames(frame: FrameType | None) -> tuple[WorkerFrame, ...] | None:
    """Return the frames inside torch's worker loop, outermost first, or ``None`` outside of the loop."""
    found: list[WorkerFrame] = []
    while frame is not None:
        code = frame.f_code
        if code is _LOOP:
            if found and found[-1][0].endswith("get") and found[-1][1].endswith(_QUEUES):
                return (IDLE,)
            return tuple(reversed(found))
        if len(found) == DEEPEST:  # the outermost frames are kept
            del found[0]
        line = frame.f_lineno or code.co_firstlineno
        found.append((code.co_qualname, code.co_filename, code.co_firstlineno, line))
        frame = frame.f_back
    return None
