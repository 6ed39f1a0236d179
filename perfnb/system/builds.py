"""Checks of the builds of Python and torch."""

from __future__ import annotations

from perfnb.system.check import Check, Facts, Finding

_INTEL = ("x86_64", "amd64", "i686")
#: BLAS libraries other than MKL, by torch's names.
_BLAS = {"open": "OpenBLAS", "accelerate": "Accelerate", "flame": "BLIS", "nvpl": "NVPL", "atlas": "ATLAS"}

_WHEEL = "Install the wheel for your machine from pytorch.org."
_ONE_RUNTIME = (
    "Each runtime has its own threads, which compete when two run at once. threadpoolctl shows which package loaded "
    "which; limit the others to one thread."
)


def python_build(facts: Facts) -> Finding:
    """Is Python a release build without debugging?"""
    python = facts["python"]
    found = f"{python['implementation']} {python['version']}"
    slow = [
        word
        for word, holds in (
            ("a debug build", python["debug"]),
            ("developer mode is on", python["developer_mode"]),
            (f"PYTHONMALLOC={python['malloc']}", "debug" in python["malloc"]),
            ("a debugger or tracer is active", python["tracer"]),
        )
        if holds
    ]
    if slow:
        return Finding(", ".join([found, *slow]), "attention")
    if python["optimized"] is False:
        return Finding(f"{found}, built without --enable-optimizations", "info")
    return Finding(found, "ok")


def torch_build(facts: Facts) -> Finding:
    """Does torch have the libraries that make it fast on this CPU?"""
    build, runtimes = facts["torch"], facts.get("openmp_runtimes") or []
    intel = build["machine"].lower() in _INTEL
    blas = "MKL" if build["mkl"] else _BLAS.get(build["blas"] or "")
    libraries = [(blas, blas), ("oneDNN", build["onednn"]), ("OpenMP", build["openmp"])]
    having = [word for word, have in libraries if word and have]
    lacks = [word for word, have in libraries[1:] if word and not have] + (["MKL"] if intel and not blas else [])
    gpu = f"CUDA {build['cuda']}" if build["cuda"] else f"ROCm {build['hip']}" if build["hip"] else "CPU only"
    found = f"{build['version']} ({gpu}), with {', '.join(having) or 'no CPU library'}"
    found += f", for {build['capability']}" if build["capability"] else ""
    found += f"; lacks {', '.join(lacks)}" if lacks else ""
    found += "; a debug build" if build["debug"] else ""
    plain = intel and (build["capability"] or "").upper() in ("DEFAULT", "NO AVX")
    if build["debug"] or plain or (intel and lacks):
        unset = " Unset ATEN_CPU_CAPABILITY; if it is not set, the CPU has no AVX2." if plain else ""
        return Finding(found, "attention", _WHEEL + unset)
    if len(runtimes) > 1:
        names = ", ".join(path.rpartition("/")[2] for path in runtimes)
        return Finding(f"{found}; {len(runtimes)} OpenMP runtimes are loaded ({names})", "info", _ONE_RUNTIME)
    return Finding(found, "info" if lacks or (intel and not build["mkl"]) else "ok")


CHECKS = (
    Check(
        "Python",
        "a release build, no debugger",
        "A debug build, developer mode or a tracer makes every operator call several times slower.",
        "Use a release build, and run outside the debugger, without PYTHONDEVMODE and PYTHONMALLOC.",
        python_build,
    ),
    Check(
        "torch",
        "a release build with OpenMP, oneDNN and, on Intel and AMD, MKL or another BLAS",
        "Without these libraries matrix products and convolutions run on one thread or without vector instructions.",
        _WHEEL,
        torch_build,
    ),
)
