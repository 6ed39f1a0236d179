"""Detect anything that perfnb leaves behind in a process, by comparing the state before and after."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


#: Linux's lists of child processes, if the kernel was built with them.
_LISTS = Path("/proc/thread-self/children")


class Child(NamedTuple):
    """A running descendant of this process."""

    what: str
    above: frozenset[int]


@dataclass(frozen=True)
class Surroundings:
    """The state of the process at a point in time."""

    hooks: dict[str, frozenset[Any]]
    profiling: bool
    threads: dict[int, str]
    processes: dict[tuple[int, float], Child]
    files: frozenset[str]
    sigint: Any
    deepest: int
    callbacks: int
    switching_s: float

    @classmethod
    def now(cls) -> Surroundings:
        """Return the current state. Torch is only checked if it is already loaded."""
        torch = sys.modules.get("torch")
        modules, optimizers = map(sys.modules.get, ("torch.nn.modules.module", "torch.optim.optimizer"))
        return cls(
            hooks={name: frozenset(getattr(modules, name, ())) for name in GLOBAL_HOOKS}
            | {name: frozenset(getattr(optimizers, name, ())) for name in OPTIMIZER_HOOKS},
            profiling=bool(torch and torch.autograd._profiler_enabled()),
            threads={id(thread): thread.name for thread in threading.enumerate() if not _outlives_tests(thread)},
            processes=_children(),
            files=frozenset(path.name for path in Path(tempfile.gettempdir()).glob("perfnb-*")),
            sigint=signal.getsignal(signal.SIGINT),
            deepest=sys.getrecursionlimit(),
            callbacks=sum(str(getattr(one, "__module__", "")).startswith("perfnb.") for one in gc.callbacks),
            switching_s=sys.getswitchinterval(),
        )

    def changed_since(self, before: Surroundings) -> list[str]:
        """Describe everything that exists now but did not exist before."""
        left = [f"torch hook in {name}" for name in self.hooks if self.hooks[name] - before.hooks[name]]
        if self.profiling:
            left.append("a running torch profiler")
        left += [f"thread {self.threads[key]}" for key in self.threads.keys() - before.threads.keys()]
        there = {pid for pid, _ in before.processes}
        fresh = [self.processes[key] for key in self.processes.keys() - before.processes.keys()]
        # A browser or server that existed before may start its own processes at any time.
        left += [f"process {child.what}" for child in fresh if not child.above & there]
        left += [f"file {name}" for name in sorted(self.files - before.files)]
        if self.sigint is not before.sigint:
            left.append(f"SIGINT handler {self.sigint!r}")
        if self.deepest != before.deepest:
            left.append(f"a recursion limit of {self.deepest}")
        if self.callbacks > before.callbacks:
            left.append("a callback of the garbage collector")
        if self.switching_s != before.switching_s:
            left.append(f"a switch interval of {self.switching_s} s")
        return left


def _outlives_tests(thread: threading.Thread) -> bool:
    # tqdm starts a monitor thread with its first bar, which runs until the interpreter ends.
    # A thread of Jupyter, which starts with the first large message that a kernel sends.
    return type(thread).__name__ in ("TMonitor", "GarbageCollectorThread")


def _children() -> dict[tuple[int, float], Child]:
    """Return the running descendants, except for the resource tracker that multiprocessing starts once."""
    children = {}
    for pid, above in _below().items():
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            alive = process.status() != psutil.STATUS_ZOMBIE
            key = (pid, process.create_time())
        except psutil.NoSuchProcess:
            continue
        if alive and "multiprocessing.resource_tracker" not in command:
            children[key] = Child(f"{pid} ({command[:60]})", above)
    return children


def _below() -> dict[int, frozenset[int]]:
    """Return the descendants of this process, each with its ancestors."""
    here = os.getpid()
    if not _LISTS.exists():
        found = {}
        for process in psutil.Process(here).children(recursive=True):  # iterates over all processes on the machine
            with suppress(psutil.NoSuchProcess):
                found[process.pid] = frozenset(parent.pid for parent in process.parents())
        return found
    above: dict[int, frozenset[int]] = {here: frozenset()}
    ahead = [here]
    for parent in ahead:
        fresh = [child for child in _started_by(parent) if child not in above]
        above |= dict.fromkeys(fresh, above[parent] | {parent})
        ahead += fresh
    return {pid: above[pid] for pid in ahead[1:]}


def _started_by(pid: int) -> list[int]:
    """Return the children of a process according to the kernel's lists, of which there is one for each thread."""
    found: list[int] = []
    with suppress(OSError):  # the process has ended in the meantime
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as children:
                found += map(int, children.read().split())
    return found
