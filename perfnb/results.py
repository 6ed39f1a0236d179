"""The classes of perfnb's results, for annotations and `isinstance`. Each class is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfnb.bench.input_bound import InputBoundTest
    from perfnb.diff.comparison import ProfileComparison
    from perfnb.experiments.ab_test import ABTest
    from perfnb.experiments.compared_figures import ABTestSide
    from perfnb.experiments.journal import Journal, Trend
    from perfnb.flame.host_profile import HostComparison, HostProfile
    from perfnb.inference.batching import Batcher, Batching
    from perfnb.inference.compare_decoding import DecodingComparison
    from perfnb.inference.compare_inference import InferenceComparison
    from perfnb.inference.latency import HighestRate, Latency, LoadedLatency
    from perfnb.inference.samples import OpenRun
    from perfnb.launching.rank_scaling import RankScaling
    from perfnb.loop.profiled import ProfiledLoop
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.loop.run import RunComparison, RunSummary
    from perfnb.memory.estimate.estimate import MemoryEstimate
    from perfnb.memory.leaks.find import Leaks
    from perfnb.memory.snapshot.snapshot import MemorySnapshot
    from perfnb.models.architectures import ArchitectureComparison
    from perfnb.models.scaling import ScalingStudy
    from perfnb.models.size_laws import SizePrediction
    from perfnb.ranks.ranks import Ranks
    from perfnb.remedies.try_levers import LeverTrials
    from perfnb.roofline.roofline import Roofline
    from perfnb.stats.slope import Slope
    from perfnb.stats.step_times import Outliers
    from perfnb.system.resolution import Resolution
    from perfnb.system.system import SystemCheck

#: The module that defines each class.
_HOMES = {
    "ABTest": "experiments.ab_test",
    "ABTestSide": "experiments.compared_figures",
    "ArchitectureComparison": "models.architectures",
    "Batcher": "inference.batching",
    "Batching": "inference.batching",
    "DecodingComparison": "inference.compare_decoding",
    "HighestRate": "inference.latency",
    "HostComparison": "flame.host_profile",
    "HostProfile": "flame.host_profile",
    "InferenceComparison": "inference.compare_inference",
    "InputBoundTest": "bench.input_bound",
    "Journal": "experiments.journal",
    "Latency": "inference.latency",
    "Leaks": "memory.leaks.find",
    "LeverTrials": "remedies.try_levers",
    "LoadedLatency": "inference.latency",
    "MemoryEstimate": "memory.estimate.estimate",
    "MemorySnapshot": "memory.snapshot.snapshot",
    "OpenRun": "inference.samples",
    "Outliers": "stats.step_times",
    "ProfileComparison": "diff.comparison",
    "ProfiledLoop": "loop.profiled",
    "RankRuns": "loop.rank_runs",
    "RankScaling": "launching.rank_scaling",
    "Ranks": "ranks.ranks",
    "Resolution": "system.resolution",
    "Roofline": "roofline.roofline",
    "RunComparison": "loop.run",
    "RunSummary": "loop.run",
    "ScalingStudy": "models.scaling",
    "SizePrediction": "models.size_laws",
    "Slope": "stats.slope",
    "SystemCheck": "system.system",
    "Trend": "experiments.journal",
}

__all__ = [
    "ABTest",
    "ABTestSide",
    "ArchitectureComparison",
    "Batcher",
    "Batching",
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
    "OpenRun",
    "Outliers",
    "ProfileComparison",
    "ProfiledLoop",
    "RankRuns",
    "RankScaling",
    "Ranks",
    "Resolution",
    "Roofline",
    "RunComparison",
    "RunSummary",
    "ScalingStudy",
    "SizePrediction",
    "Slope",
    "SystemCheck",
    "Trend",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfnb.results' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfnb.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
