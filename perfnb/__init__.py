"""perfnb: where one PyTorch step's time goes, layer by layer, forward and backward, in a notebook.

``%load_ext perfnb`` brings the magics; `profile_step` does the same from a script.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.bench.comparison import ABTest, ab_test
    from perfnb.bench.input_bound import InputBoundTest, confirm_input_bound
    from perfnb.bench.self_check import SelfCheck, selfcheck
    from perfnb.bench.timing import time_step
    from perfnb.diff.comparison import ProfileComparison
    from perfnb.experiments.journal import Journal, journal
    from perfnb.experiments.report import PerformanceReport, report
    from perfnb.flame.host_profile import HostComparison, HostProfile
    from perfnb.inference.compare_decoding import DecodingComparison, compare_decoding
    from perfnb.inference.compare_inference import InferenceComparison, compare_inference
    from perfnb.inference.latency import HighestRate, Latency, LoadedLatency, latency
    from perfnb.launching.profile_ranks import profile_ranks
    from perfnb.launching.rank_scaling import RankScaling, rank_scaling
    from perfnb.loop.profiled import ProfiledLoop, profiled
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.loop.run import RunComparison, RunSummary
    from perfnb.memory.estimate.estimate import MemoryEstimate, estimate_memory
    from perfnb.memory.leaks.find import Leaks, find_leaks
    from perfnb.memory.snapshot.snapshot import MemorySnapshot
    from perfnb.models.architectures import ArchitectureComparison, compare_architectures
    from perfnb.models.scaling import ScalingStudy, scaling_study
    from perfnb.profile.loading import load
    from perfnb.profile.profile import Profile
    from perfnb.profile.profiling import profile_step
    from perfnb.profile.timing import Timing
    from perfnb.ranks.ranks import Ranks
    from perfnb.remedies.try_levers import LeverTrials, levers, try_levers
    from perfnb.roofline.roofline import Roofline
    from perfnb.system.system import SystemCheck, system_check
    from perfnb.watching.watch import Watch, watch

__version__ = "0.1.0"
__all__ = [
    "ABTest",
    "ArchitectureComparison",
    "DecodingComparison",
    "HighestRate",
    "HostComparison",
    "HostProfile",
    "InferenceComparison",
    "InputBoundTest",
    "Journal",
    "Latency",
    "Leaks",
    "LeverTrials",
    "LoadedLatency",
    "MemoryEstimate",
    "MemorySnapshot",
    "PerfnbError",
    "PerformanceReport",
    "Profile",
    "ProfileComparison",
    "ProfiledLoop",
    "RankRuns",
    "RankScaling",
    "Ranks",
    "Roofline",
    "RunComparison",
    "RunSummary",
    "ScalingStudy",
    "SelfCheck",
    "SystemCheck",
    "Timing",
    "Watch",
    "ab_test",
    "compare_architectures",
    "compare_decoding",
    "compare_inference",
    "confirm_input_bound",
    "estimate_memory",
    "find_leaks",
    "journal",
    "latency",
    "levers",
    "load",
    "profile_ranks",
    "profile_step",
    "profiled",
    "rank_scaling",
    "report",
    "scaling_study",
    "selfcheck",
    "system_check",
    "time_step",
    "try_levers",
    "watch",
]

#: The modules in which public names live, by name: pandas and the rest load when one is first needed.
_HOMES = {
    **dict.fromkeys(("MemoryEstimate", "estimate_memory"), "memory.estimate.estimate"),
    **dict.fromkeys(("Leaks", "find_leaks"), "memory.leaks.find"),
    **dict.fromkeys(("HostComparison", "HostProfile"), "flame.host_profile"),
    "MemorySnapshot": "memory.snapshot.snapshot",
    "Roofline": "roofline.roofline",
    "ProfileComparison": "diff.comparison",
    "Profile": "profile.profile",
    "profile_step": "profile.profiling",
    **dict.fromkeys(("ProfiledLoop", "profiled"), "loop.profiled"),
    "load": "profile.loading",
    "time_step": "bench.timing",
    "Timing": "profile.timing",
    **dict.fromkeys(("ABTest", "ab_test"), "bench.comparison"),
    **dict.fromkeys(("InputBoundTest", "confirm_input_bound"), "bench.input_bound"),
    **dict.fromkeys(("SelfCheck", "selfcheck"), "bench.self_check"),
    **dict.fromkeys(("PerformanceReport", "report"), "experiments.report"),
    **dict.fromkeys(("Journal", "journal"), "experiments.journal"),
    **dict.fromkeys(("ArchitectureComparison", "compare_architectures"), "models.architectures"),
    **dict.fromkeys(("ScalingStudy", "scaling_study"), "models.scaling"),
    **dict.fromkeys(("Watch", "watch"), "watching.watch"),
    **dict.fromkeys(("SystemCheck", "system_check"), "system.system"),
    "Ranks": "ranks.ranks",
    "profile_ranks": "launching.profile_ranks",
    **dict.fromkeys(("RankScaling", "rank_scaling"), "launching.rank_scaling"),
    "RankRuns": "loop.rank_runs",
    **dict.fromkeys(("RunComparison", "RunSummary"), "loop.run"),
    **dict.fromkeys(("DecodingComparison", "compare_decoding"), "inference.compare_decoding"),
    **dict.fromkeys(("InferenceComparison", "compare_inference"), "inference.compare_inference"),
    **dict.fromkeys(("HighestRate", "Latency", "LoadedLatency", "latency"), "inference.latency"),
    **dict.fromkeys(("LeverTrials", "levers", "try_levers"), "remedies.try_levers"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfnb' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfnb.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext perfnb`` calls."""
    from perfnb.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext perfnb`` calls."""
    from perfnb.magics import unregister

    unregister(shell)
