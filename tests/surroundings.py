"""What perfnb could leave behind in a process, seen before and after."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
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

    @classmethod
    def now(cls) -> Surroundings:
        """Look around; torch is asked only where it is loaded already."""
        torch = sys.modules.get("torch")
        module = torch.nn.modules.module if torch else None
        return cls(
            hooks={name: frozenset(getattr(module, name, ())) for name in GLOBAL_HOOKS},
            profiling=bool(torch and torch.autograd._profiler_enabled()),
            threads={id(thread): thread.name for thread in threading.enumerate() if not _outlives_tests(thread)},
            processes=_children(),
            files=frozenset(path.name for path in Path(tempfile.gettempdir()).glob("perfnb-*")),
            sigint=signal.getsignal(signal.SIGINT),
        )

    def changed_since(self, before: Surroundings) -> list[str]:
        """Say in words what is there now and was not before."""
        left = [f"torch hook in {name}" for name in GLOBAL_HOOKS if self.hooks[name] - before.hooks[name]]
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
        return left


def _outlives_tests(thread: threading.Thread) -> bool:
    # tqdm starts one monitor with its first bar and keeps it until the interpreter ends.
    # Jupyter's own: begins with the first large message that a kernel sends.
    return type(thread).__name__ in ("TMonitor", "GarbageCollectorThread")


def _children() -> dict[tuple[int, float], Child]:
    """Living child processes, without the tracker that multiprocessing starts once and keeps."""
    children = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            alive = process.status() != psutil.STATUS_ZOMBIE
            key = (process.pid, process.create_time())
            above = frozenset(parent.pid for parent in process.parents())
        except psutil.NoSuchProcess:
            continue
        if alive and "multiprocessing.resource_tracker" not in command:
            children[key] = Child(f"{process.pid} ({command[:60]})", above)
    return children
