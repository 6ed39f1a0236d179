"""perfnb: where one PyTorch step's time goes, layer by layer, forward and backward, in a notebook.

``%load_ext perfnb`` brings the magics; `profile_step` does the same from a script.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.architectures import ArchitectureComparison, compare_architectures
    from perfnb.comparison import ABTest, ab_test
    from perfnb.estimate import MemoryEstimate, estimate_memory
    from perfnb.experiments import Journal, journal
    from perfnb.input_bound import InputBoundTest, confirm_input_bound
    from perfnb.leaks import Leaks, find_leaks
    from perfnb.loading import load
    from perfnb.performance_report import PerformanceReport, report
    from perfnb.profile import Profile
    from perfnb.profile_diff import ProfileComparison
    from perfnb.profiling import profile_step
    from perfnb.ranks import Ranks
    from perfnb.roofline import Roofline
    from perfnb.scaling import ScalingStudy, scaling_study
    from perfnb.self_check import SelfCheck, selfcheck
    from perfnb.snapshot import MemorySnapshot
    from perfnb.system import SystemCheck, system_check
    from perfnb.timing import Timing, time_step
    from perfnb.watching import Watch, watch

__version__ = "0.1.0"
__all__ = [
    "ABTest",
    "ArchitectureComparison",
    "InputBoundTest",
    "Journal",
    "Leaks",
    "MemoryEstimate",
    "MemorySnapshot",
    "PerfnbError",
    "PerformanceReport",
    "Profile",
    "ProfileComparison",
    "Ranks",
    "Roofline",
    "ScalingStudy",
    "SelfCheck",
    "SystemCheck",
    "Timing",
    "Watch",
    "ab_test",
    "compare_architectures",
    "confirm_input_bound",
    "estimate_memory",
    "find_leaks",
    "journal",
    "load",
    "profile_step",
    "report",
    "scaling_study",
    "selfcheck",
    "system_check",
    "time_step",
    "watch",
]

#: The modules in which public names live, by name: pandas and the rest load when one is first needed.
_HOMES = {
    **dict.fromkeys(("MemoryEstimate", "estimate_memory"), "estimate"),
    **dict.fromkeys(("ABTest", "ab_test"), "comparison"),
    **dict.fromkeys(("ArchitectureComparison", "compare_architectures"), "architectures"),
    **dict.fromkeys(("Journal", "journal"), "experiments"),
    **dict.fromkeys(("InputBoundTest", "confirm_input_bound"), "input_bound"),
    **dict.fromkeys(("Leaks", "find_leaks"), "leaks"),
    "Profile": "profile",
    "profile_step": "profiling",
    **dict.fromkeys(("PerformanceReport", "report"), "performance_report"),
    "load": "loading",
    "Ranks": "ranks",
    "Roofline": "roofline",
    "MemorySnapshot": "snapshot",
    "ProfileComparison": "profile_diff",
    **dict.fromkeys(("ScalingStudy", "scaling_study"), "scaling"),
    **dict.fromkeys(("SelfCheck", "selfcheck"), "self_check"),
    **dict.fromkeys(("SystemCheck", "system_check"), "system"),
    **dict.fromkeys(("Timing", "time_step"), "timing"),
    **dict.fromkeys(("Watch", "watch"), "watching"),
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
