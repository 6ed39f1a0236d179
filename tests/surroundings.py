"""What perfnb could leave behind in a process, seen before and after."""

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


#: Linux's lists of children, where the kernel was built with them.
_LISTS = Path("/proc/thread-self/children")


class Child(NamedTuple):
    """A living process below this one."""

    what: str
    above: frozenset[int]


@dataclass(frozen=True)
class Surroundings:
    """The state of the process at one moment."""

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
        """Look around; torch is asked only where it is loaded already."""
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
        """Say in words what is there now and was not before."""
        left = [f"torch hook in {name}" for name in self.hooks if self.hooks[name] - before.hooks[name]]
        if self.profiling:
            left.append("a running torch profiler")
        left += [f"thread {self.threads[key]}" for key in self.threads.keys() - before.threads.keys()]
        there = {pid for pid, _ in before.processes}
        fresh = [self.processes[key] for key in self.processes.keys() - before.processes.keys()]
        # A browser or server that was there before starts processes of its own when it likes.
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
    # tqdm starts one monitor with its first bar and keeps it until the interpreter ends.
    # Jupyter's own: begins with the first large message that a kernel sends.
    return type(thread).__name__ in ("TMonitor", "GarbageCollectorThread")


def _children() -> dict[tuple[int, float], Child]:
    """Living child processes, without the tracker that multiprocessing starts once and keeps."""
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
    """Return the processes below this one, each with those that it is below."""
    here = os.getpid()
    if not _LISTS.exists():
        found = {}
        for process in psutil.Process(here).children(recursive=True):  # a walk over all processes of the machine
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
    """Return the children of a process by the kernel's lists, of which each of its threads has one."""
    found: list[int] = []
    with suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as children:
                found += map(int, children.read().split())
    return found
