"""What a process takes only when it starts: affinity of threads, allocators, inter-op threads."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perfnb.bench.values import UNCHECKED, Values
from perfnb.remedies.fresh import Setting, order_for, time_fresh
from perfnb.remedies.lever import Lever, always, without_cuda
from perfnb.remedies.subject import Subject
from perfnb.stats.intervals import Floats
from perfnb.step.environment import usable_cpus

_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", f"{sys.prefix}/lib")
#: Since torch 2.9 its allocators share one variable.
_ALLOCATOR = "PYTORCH_ALLOC_CONF" if torch.__version__ >= "2.9" else "PYTORCH_CUDA_ALLOC_CONF"
_PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2"}


def _lever(
    name: str,
    words: str,
    unfit: Callable[[Subject], str],
    setting: Callable[[], Setting],
    answers: tuple[str, ...] = (),
) -> Lever:
    """A lever that is tried in new processes, where the step can be imported."""

    def code(_: Subject) -> list[str]:
        one = setting()
        if one.interop:
            return [f"torch.set_num_interop_threads({one.interop})  # before torch computes anything"]
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in one.env.items())
        return [f"# start Python with {words}"]

    def refuses(subject: Subject) -> str:
        if why := unfit(subject):
            return why
        if order_for(subject) is None:
            return f"it needs a new process, and the step is in no file to import: {code(subject)[0].lstrip('# ')}"
        return ""

    def timed(*args: Any, **kwargs: Any) -> Floats:
        return time_fresh(setting(), *args, **kwargs)

    return Lever(
        name,
        words,
        refuses,
        always(lambda _: nullcontext()),
        code,
        answers=answers,
        costly=True,
        check=lambda *_: Values(UNCHECKED, None, "it ran in processes of its own"),
        timed=timed,
    )


def _off_linux(_: Subject) -> str:
    return "" if sys.platform == "linux" else "perfnb knows how to do this on Linux alone"


def _no_affinity(subject: Subject) -> str:
    if why := _off_linux(subject):
        return why
    if any(name in os.environ for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")):
        return "threads are bound to cores already"
    return "" if usable_cpus() >= 2 else "there is only one core"


def _library(kind: str) -> str:
    """The path of an allocator's library; empty if there is none."""
    roots = [Path(part) for folder in _FOLDERS for part in _expanded(folder)]
    found = [file for root in roots for file in sorted(root.glob(f"lib{kind}*.so*"))]
    plain = [file for file in found if "debug" not in file.name and "profiler" not in file.name]
    return str(plain[0]) if plain else ""


def _expanded(folder: str) -> list[str]:
    parent, _, last = folder.rpartition("/")
    return [str(path) for path in Path(parent).glob(last)] if "*" in last else [folder]


def _no_library(kind: str, subject: Subject) -> str:
    if why := _off_linux(subject):
        return why
    if kind in os.environ.get("LD_PRELOAD", ""):
        return f"{kind} is preloaded already"
    return "" if _library(kind) else f"{kind} is not installed (on Debian and Ubuntu: apt install {_PACKAGES[kind]})"


def _preloaded(kind: str) -> Setting:
    before = os.environ.get("LD_PRELOAD", "")
    return Setting({"LD_PRELOAD": ":".join(filter(None, [_library(kind) or f"lib{kind}.so", before]))})


def _no_segments(subject: Subject) -> str:
    expands = "expandable_segments:True" in os.environ.get(_ALLOCATOR, "")
    return without_cuda(subject) or ("the allocator's segments are expandable already" if expands else "")


def _segments() -> Setting:
    before = os.environ.get(_ALLOCATOR, "")
    return Setting({_ALLOCATOR: ",".join(filter(None, [before, "expandable_segments:True"]))})


def _one_interop_thread(_: Subject) -> str:
    return "" if torch.get_num_interop_threads() > 1 else "torch has one inter-op thread already"


def _affinity() -> Setting:
    return Setting({"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"})


PROCESS: tuple[Lever, ...] = (
    _lever("omp_affinity", "OpenMP's threads bound to cores, in a new process", _no_affinity, _affinity),
    _lever(
        "tcmalloc",
        "tcmalloc as the process's memory allocator, in a new process",
        partial(_no_library, "tcmalloc"),
        partial(_preloaded, "tcmalloc"),
    ),
    _lever(
        "jemalloc",
        "jemalloc as the process's memory allocator, in a new process",
        partial(_no_library, "jemalloc"),
        partial(_preloaded, "jemalloc"),
    ),
    _lever(
        "expandable_segments",
        "segments of the CUDA allocator that grow, in a new process",
        _no_segments,
        _segments,
        ("allocator",),
    ),
    _lever(
        "interop_threads",
        "one inter-op thread, in a new process",
        _one_interop_thread,
        lambda: Setting(interop=1),
    ),
)
