"""Which levers of `perfnb.try_levers` a step takes, as far as its recording tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfnb.findings.facts import Facts


def _compiles(facts: Facts) -> bool:
    modules = facts.recording.modules
    return not modules.empty and not modules["compiled"].fillna(False).any()


def _has_blocks(facts: Facts) -> bool:
    """Whether a container holds several layers, and the step has a backward pass."""
    modules = facts.recording.modules
    lists = modules.index[modules["module"].isin(["Sequential", "ModuleList"])]
    trains = bool((facts.attribution.cells["direction"] == "backward").any())
    return trains and bool(modules["parent"].isin(lists).any() and modules["parent"].value_counts()[lists].max() > 1)


def _loads_alone(facts: Facts) -> bool:
    loader = facts.loader
    return bool(loader.get("same")) and loader.get("direct") is True and not loader.get("num_workers")


_TAKES: Mapping[str, Callable[[Facts], bool]] = {
    "attention": lambda facts: facts.switches_attention,
    "autocast": lambda facts: facts.has_parameters_of(4),
    "checkpointing": _has_blocks,
    "compile": _compiles,
    "compile_reduce_overhead": _compiles,
    "compile_max_autotune": _compiles,
    "float32": lambda facts: facts.has_parameters_of(8),
    "loader_workers": _loads_alone,
}

#: The levers that findings propose.
REMEDIES = frozenset(
    {
        *_TAKES,
        "channels_last",
        "float32_precision",
        "foreach_optimizer",
        "fused_optimizer",
        "gc_freeze",
        "threads",
    }
)


def taken(facts: Facts, lever: str) -> str:
    """The lever, or an empty text if the step would refuse it; of a trace, whose step is not known, any."""
    takes = _TAKES.get(lever)
    return lever if takes is None or not facts.live or takes(facts) else ""
