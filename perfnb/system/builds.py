"""Checks of Python, torch and the allocator."""

from __future__ import annotations

import re

from perfnb.system.check import Check, Facts, Finding

_INTEL = ("x86_64", "amd64", "i686")
#: Libraries of linear algebra other than MKL, as torch calls them.
_BLAS = {"open": "OpenBLAS", "accelerate": "Accelerate", "flame": "BLIS", "nvpl": "NVPL", "atlas": "ATLAS"}
_ALLOCATOR = re.compile("jemalloc|tcmalloc|mimalloc|hoard|tbbmalloc")

_WHEEL = "Install the wheel for your machine from pytorch.org."
_ONE_RUNTIME = (
    "Each runtime has threads of its own, which compete where two of them work at once. threadpoolctl tells which "
    "package brought which; let the others run with one thread."
)
_WHOLE_PATH = "Give LD_PRELOAD the whole path of the library (ldconfig -p lists it), and start Python anew."


def python_build(facts: Facts) -> Finding:
    """Was Python built, and started, to be fast?"""
    told = facts["python"]
    found = f"{told['implementation']} {told['version']}"
    slow = [
        word
        for word, holds in (
            ("a debug build", told["debug"]),
            ("developer mode is on", told["developer_mode"]),
            (f"PYTHONMALLOC={told['malloc']}", "debug" in told["malloc"]),
            ("a debugger or tracer is on", told["tracer"]),
        )
        if holds
    ]
    if slow:
        return Finding(", ".join([found, *slow]), "attention")
    if told["optimized"] is False:
        return Finding(f"{found}, built without --enable-optimizations", "info")
    return Finding(found, "ok")


def torch_build(facts: Facts) -> Finding:
    """Has torch the libraries that make it fast on this CPU?"""
    told, runtimes = facts["torch"], facts.get("openmp_runtimes") or []
    intel = told["machine"].lower() in _INTEL
    blas = "MKL" if told["mkl"] else _BLAS.get(told["blas"] or "")
    libraries = [(blas, blas), ("oneDNN", told["onednn"]), ("OpenMP", told["openmp"])]
    having = [word for word, have in libraries if word and have]
    lacks = [word for word, have in libraries[1:] if word and not have] + (["MKL"] if intel and not blas else [])
    gpu = f"CUDA {told['cuda']}" if told["cuda"] else f"ROCm {told['hip']}" if told["hip"] else "CPU only"
    found = f"{told['version']} ({gpu}), with {', '.join(having) or 'no library for the CPU'}"
    found += f", for {told['capability']}" if told["capability"] else ""
    found += f"; lacks {', '.join(lacks)}" if lacks else ""
    found += "; a debug build" if told["debug"] else ""
    plain = intel and (told["capability"] or "").upper() in ("DEFAULT", "NO AVX")
    if told["debug"] or plain or (intel and lacks):
        unset = " Unset ATEN_CPU_CAPABILITY; where it is not set, the CPU has no AVX2." if plain else ""
        return Finding(found, "attention", _WHEEL + unset)
    if len(runtimes) > 1:
        names = ", ".join(path.rpartition("/")[2] for path in runtimes)
        return Finding(f"{found}; {len(runtimes)} runtimes of OpenMP are loaded ({names})", "info", _ONE_RUNTIME)
    return Finding(found, "info" if lacks or (intel and not told["mkl"]) else "ok")


def allocator(facts: Facts) -> Finding:
    """Which allocator serves the process?"""
    loaded = facts.get("allocators")
    wanted = [name for name in re.split(r"[: ]", facts.get("preloaded") or "") if _ALLOCATOR.search(name)]
    if loaded is None and not wanted:
        facts["allocators"]
    if loaded:
        return Finding(", ".join(loaded), "ok")
    if loaded is None:
        return Finding(f"{', '.join(wanted)} is to be loaded first; whether it was could not be read", "info")
    if wanted:
        return Finding(f"the system's own, though {', '.join(wanted)} was to be loaded first", "attention", _WHOLE_PATH)
    return Finding("the system's own", "info")


CHECKS = (
    Check(
        "Python",
        "a release build without debugger",
        "A debug build, developer mode or a tracer makes each operator's call several times as long.",
        "Use a release build, and run outside the debugger, without PYTHONDEVMODE and PYTHONMALLOC.",
        python_build,
    ),
    Check(
        "torch",
        "a release build with OpenMP, oneDNN and, on Intel and AMD, MKL or another BLAS",
        "Without these libraries products and convolutions run on one thread or without vector instructions.",
        _WHEEL,
        torch_build,
    ),
    Check(
        "allocator",
        "either; jemalloc or tcmalloc help where many tensors come and go",
        "glibc returns large blocks to the system and asks for them again: page faults in each step on the CPU.",
        "LD_PRELOAD with the whole path of libjemalloc.so.2 or libtcmalloc_minimal.so.4, where one is installed, "
        "before Python starts; compare with perfnb.time_step.",
        allocator,
    ),
)
