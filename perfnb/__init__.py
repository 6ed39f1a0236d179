"""perfnb: a notebook profiler that shows where a PyTorch step spends its time, layer by layer, forward and backward.

``%load_ext perfnb`` adds the magics to a notebook. In a script, call `profile_step` instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb import results as results
    from perfnb.bench.input_bound import confirm_input_bound
    from perfnb.bench.timing import time_step
    from perfnb.experiments.ab_test import ab_test
    from perfnb.experiments.journal import journal
    from perfnb.inference.compare_decoding import compare_decoding
    from perfnb.inference.compare_inference import compare_inference
    from perfnb.inference.latency import latency
    from perfnb.launching.profile_ranks import profile_ranks
    from perfnb.launching.rank_scaling import rank_scaling
    from perfnb.loop.profiled import profiled
    from perfnb.memory.estimate.estimate import estimate_memory
    from perfnb.memory.leaks.find import find_leaks
    from perfnb.models.architectures import compare_architectures
    from perfnb.models.scaling import scaling_study
    from perfnb.profile.for_profiling import compile_for_profiling
    from perfnb.profile.loading import load
    from perfnb.profile.profile import Profile
    from perfnb.profile.profiling import profile_step
    from perfnb.profile.timing import Timing
    from perfnb.remedies.try_levers import try_levers
    from perfnb.system.system import system_check
    from perfnb.watching.watch import Watch, watch

__version__ = "0.1.0"
__all__ = [
    "PerfnbError",
    "Profile",
    "Timing",
    "Watch",
    "ab_test",
    "compare_architectures",
    "compare_decoding",
    "compare_inference",
    "compile_for_profiling",
    "confirm_input_bound",
    "estimate_memory",
    "find_leaks",
    "journal",
    "latency",
    "load",
    "profile_ranks",
    "profile_step",
    "profiled",
    "rank_scaling",
    "scaling_study",
    "system_check",
    "time_step",
    "try_levers",
    "watch",
]

#: The module that defines each public name. A module is imported, along with pandas, when its name is first used.
_HOMES = {
    "Profile": "profile.profile",
    "Timing": "profile.timing",
    **dict.fromkeys(("Watch", "watch"), "watching.watch"),
    "ab_test": "experiments.ab_test",
    "compare_architectures": "models.architectures",
    "compare_decoding": "inference.compare_decoding",
    "compare_inference": "inference.compare_inference",
    "compile_for_profiling": "profile.for_profiling",
    "confirm_input_bound": "bench.input_bound",
    "estimate_memory": "memory.estimate.estimate",
    "find_leaks": "memory.leaks.find",
    "journal": "experiments.journal",
    "latency": "inference.latency",
    "load": "profile.loading",
    "profile_ranks": "launching.profile_ranks",
    "profile_step": "profile.profiling",
    "profiled": "loop.profiled",
    "rank_scaling": "launching.rank_scaling",
    "scaling_study": "models.scaling",
    "system_check": "system.system",
    "time_step": "bench.timing",
    "try_levers": "remedies.try_levers",
}
#: Public modules: the classes of all results, the checks of the labs, and the callbacks of trainers.
_MODULES = ("integrations", "labs", "results")
#: What to use instead of names that have been removed.
_GONE = {
    "report": "perfnb.report is now perfnb.ab_test(..., quality=..., limits=..., profile=True).",
    "PerformanceReport": "perfnb.PerformanceReport is now perfnb.results.ABTest.",
    "selfcheck": "perfnb.selfcheck is now perfnb.system_check(resolution=True).",
    "SelfCheck": "perfnb.SelfCheck is now perfnb.results.Resolution.",
    "levers": "perfnb.levers is now the magic %try_levers --list.",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"perfnb.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"perfnb.{name}")
    if name in _GONE:
        raise AttributeError(_GONE[name])
    if name[:1].isupper() and name in importlib.import_module("perfnb.results").__all__:
        raise AttributeError(f"perfnb.{name} is now perfnb.results.{name}.")
    raise AttributeError(f"module 'perfnb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; ``%load_ext perfnb`` calls this."""
    from perfnb.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; ``%unload_ext perfnb`` calls this."""
    from perfnb.magics import unregister

    unregister(shell)
