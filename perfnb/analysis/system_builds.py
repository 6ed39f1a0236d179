"""Checks of Python, torch and the allocator."""

from __future__ import annotations

from perfnb.analysis.system_finding import Check, Facts, Finding

_INTEL = ("x86_64", "amd64", "i686")


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
    told = facts["torch"]
    intel = told["machine"].lower() in _INTEL
    lacks = [word for word, have in (("oneDNN", told["onednn"]), ("OpenMP", told["openmp"])) if not have]
    lacks += ["MKL"] if intel and not told["mkl"] else []
    having = [
        word for word, have in (("MKL", told["mkl"]), ("oneDNN", told["onednn"]), ("OpenMP", told["openmp"])) if have
    ]
    gpu = f"CUDA {told['cuda']}" if told["cuda"] else f"ROCm {told['hip']}" if told["hip"] else "CPU only"
    found = f"{told['version']} ({gpu}), with {', '.join(having) or 'no library for the CPU'}"
    found += f", for {told['capability']}" if told["capability"] else ""
    found += f"; lacks {', '.join(lacks)}" if lacks else ""
    found += "; a debug build" if told["debug"] else ""
    if told["debug"] or (intel and (lacks or (told["capability"] or "").upper() in ("DEFAULT", "NO AVX"))):
        return Finding(found, "attention")
    return Finding(found, "info" if lacks else "ok")


def allocator(facts: Facts) -> Finding:
    """Which allocator serves the process?"""
    preloaded, loaded = facts.get("preloaded"), facts.get("allocators")
    if loaded is None and not preloaded:
        facts["allocators"]
    if loaded:
        return Finding(", ".join(loaded), "ok")
    if preloaded and loaded is None:
        return Finding(f"{preloaded} is to be loaded first; whether it was could not be read", "info")
    if preloaded:
        return Finding(f"the system's own, though {preloaded} was to be loaded first", "attention")
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
        "a release build with OpenMP, oneDNN and, on Intel and AMD, MKL",
        "Without these libraries products and convolutions run on one thread or without vector instructions.",
        "Install the wheel for your machine from pytorch.org; unset ATEN_CPU_CAPABILITY.",
        torch_build,
    ),
    Check(
        "allocator",
        "either; jemalloc or tcmalloc help where many tensors come and go",
        "glibc returns large blocks to the system and asks for them again: page faults in each step on the CPU.",
        "LD_PRELOAD=libjemalloc.so (or libtcmalloc.so) before Python starts; compare with perfnb.time_step.",
        allocator,
    ),
)
