"""Find what prefetches for a step while another one runs: a loader's workers, threads and processes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from queue import Queue, SimpleQueue
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from perfnb.bench.design import Prefetching
from perfnb.step.namespace import reachable

#: Prefetched batches to assume if their number is unknown.
UNKNOWN_AHEAD = 16
#: Packages whose threads load nothing: the notebook kernel, progress bars, and perfnb itself.
_OTHER_THREADS = ("ipykernel", "IPython", "zmq", "tornado", "traitlets", "tqdm", "perfnb")


def prefetching(steps: Sequence[Callable[..., Any]], shared: Any = None) -> Prefetching | None:
    """Find what prefetches for one of the steps while another runs; ``None`` if nothing is found.

    Searches what a step can reach for live loader workers, processes, threads and queues, and then the children of
    `multiprocessing`. Call it after each step has run: a generator holds nothing before.
    `shared` is the source of batches common to all steps, whose workers favour none of them.
    """
    found = list({id(value): value for value in reachable([shared])}.values())
    ignored = {id(value) for value in found}
    everyones = {pid for value in found for pid in _pids(value)}
    seen = [value for value in reachable(list(steps)) if id(value) not in ignored]
    if iterators := [value for value in seen if _is_working(value)]:
        return Prefetching("worker processes", max(map(_most_ahead, iterators)))
    queues = [value for value in seen if _is_a(value, Queue) or _is_a(value, SimpleQueue)]
    ahead = max((getattr(queue, "maxsize", 0) for queue in queues), default=0)
    ahead = ahead + 1 if ahead > 0 else UNKNOWN_AHEAD  # one more is held by a thread
    if any(_is_a(value, BaseProcess) and _pids(value) for value in seen):
        return Prefetching("processes", ahead)
    if queues or any(_fetches(value) for value in seen):
        return Prefetching("threads", ahead)
    children = {child.pid for child in multiprocessing.active_children()}
    return Prefetching("processes", UNKNOWN_AHEAD) if children - everyones else None


def prepared(step: Callable[..., Any]) -> int | None:
    """Number of prefetched batches in the queue of a step's loader; ``None`` if unknown.

    With several loaders, the smallest number counts: each turn takes one batch from each.
    """
    ready = [_ready(value) for value in reachable([step]) if _is_working(value)]
    known = [count for count in ready if count is not None]
    return min(known) if known and len(known) == len(ready) else None


def _is_a(value: Any, kind: type) -> bool:
    # By type: isinstance asks a proxy for its class, and a proxy may have none.
    return issubclass(type(value), kind)


def _is_working(value: Any) -> bool:
    return _is_a(value, _MultiProcessingDataLoaderIter) and not getattr(value, "_shutdown", True)


def _most_ahead(iterator: Any) -> int:
    """Most batches that a loader's workers prefetch."""
    workers, factor = getattr(iterator, "_num_workers", None), getattr(iterator, "_prefetch_factor", None)
    return workers * factor if isinstance(workers, int) and isinstance(factor, int) else UNKNOWN_AHEAD


def _ready(iterator: Any) -> int | None:
    """Batches that workers delivered and nobody took: in the queue, or set aside because out of order."""
    try:
        queues = {id(queue): queue for queue in (iterator._data_queue, iterator._worker_result_queue)}
        waiting = int(sum(queue.qsize() for queue in queues.values()))
        return waiting + sum(len(info) == 2 for info in list(iterator._task_info.values()))
    except Exception:  # another torch version, or macOS, which cannot tell the size of a queue
        return None


def _fetches(value: Any) -> bool:
    """Whether this is a thread that may load for a step."""
    if not _is_a(value, threading.Thread) or value in (threading.main_thread(), threading.current_thread()):
        return False
    return value.is_alive() and type(value).__module__.partition(".")[0] not in _OTHER_THREADS


def _pids(value: Any) -> list[int]:
    """ID of a live process that this one started."""
    if not _is_a(value, BaseProcess):
        return []
    try:
        return [value.pid] if value.is_alive() and value.pid is not None else []
    except Exception:  # a child of another process, or closed
        return []
