"""The builds of Python and torch, and torch's threads."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from typing import Any

import torch

from perfnb.step.environment import describe_environment
from perfnb.system.read.reading import Reader, Tree

#: Environment variables that set how many threads compute, and where.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)
_OPENMP_FILE = re.compile(r"(?<= )/[^\n]*lib(?:gomp|iomp5|omp5?)(?:-\w+)?\.so[.\w]*")


def build_readers(tree: Tree) -> dict[str, Reader]:
    """A reader for each fact."""
    return {
        "environment": describe_environment,
        "thread_variables": lambda: {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "python": python_build,
        "torch": torch_build,
        "openmp_runtimes": lambda: loaded_openmp(tree),
    }


def python_build() -> dict[str, Any]:
    """What affects the speed of Python's own code."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "debug": hasattr(sys, "gettotalrefcount") or bool(sysconfig.get_config_var("Py_DEBUG")),
        "optimized": "--enable-optimizations" in options if options else None,
        "developer_mode": bool(sys.flags.dev_mode),
        "malloc": os.environ.get("PYTHONMALLOC", ""),
        "tracer": sys.gettrace() is not None or sys.getprofile() is not None,
    }


def torch_build() -> dict[str, Any]:
    """What torch was built with."""
    capability = getattr(torch.backends.cpu, "get_cpu_capability", None)
    return {
        "version": str(torch.__version__),
        "debug": bool(torch.version.debug),
        "mkl": bool(torch.backends.mkl.is_available()),
        "onednn": bool(torch.backends.mkldnn.is_available()),
        "openmp": bool(torch.backends.openmp.is_available()),
        "blas": _blas(),
        "capability": None if capability is None else str(capability()),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "machine": platform.machine(),
    }


def _blas() -> str | None:
    """The BLAS library that torch says it was built with."""
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return None if found is None else found[1].lower()


def loaded_openmp(tree: Tree) -> list[str]:
    """The files of the OpenMP runtimes that the process has loaded; each has its own threads."""
    return sorted({found[0] for found in _OPENMP_FILE.finditer(tree.text("proc/self/maps"))})
