"""Report the results of gated steps.

The results are reported as a line in the terminal, as Markdown for the page of a CI job, and as JSON in
pytest-benchmark's format.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

#: The version of pytest-benchmark's JSON format.
_LAYOUT = "5.2.0"
#: The functions of `platform` that describe the machine in this format.
_MACHINE = ("node", "processor", "machine", "python_implementation", "python_version", "system", "release")

Facts = Mapping[str, Any]


def time_words(times: Any) -> str:
    """Describe the ratio in a comparison, its interval, and the number of pairs."""
    interval = "" if times.ratio_ci is None else " [{:.3f}, {:.3f}]".format(*times.ratio_ci)
    return f"{times.ratio:.3f} ×{interval} the time of {times.a_name}, in {len(times.a_ms)} pairs"


def seen_words(times: Any, limit: float) -> str:
    """Describe the smallest slowdown that would have made the comparison fail."""
    least = limit * (1 + times.smallest_detectable) - 1
    return f"9 of 10 such runs would detect a slowdown of {least:.1%}".replace("%", " %")


def line(facts: Facts) -> str:
    """Return a line for the terminal that describes a step's results."""
    parts = [f"counts {facts['said']}", *(facts[part] for part in ("time", "seen") if part in facts)]
    return f"{_name(facts)}: {'; '.join(parts)}"


def _name(facts: Facts) -> str:
    return f"{facts['test']} {facts['name']}".strip()


def markdown(steps: Sequence[Facts]) -> str:
    """Return a Markdown table with one row for each step."""
    rows = ["## Steps", "", "| | step | counts | time | would have been seen |", "|---|---|---|---|---|"]
    for facts in steps:
        mark = "❌" if facts["failures"] else "⏭️" if facts["skips"] else "✅"
        cells = [mark, f"`{_name(facts)}`", facts["said"], facts.get("time", "not compared"), facts.get("seen", "")]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*rows, "", f"Measured with {steps[0]['environment']}.", ""]) + "\n"


def benchmark_json(steps: Sequence[Facts]) -> str:
    """Return the times and counts of timed steps in pytest-benchmark's JSON format.

    Services that track performance over time can read this format.
    """
    made = {
        "machine_info": {name: getattr(platform, name)() for name in _MACHINE},
        "commit_info": {},
        "benchmarks": [_benchmark(facts) for facts in steps if facts.get("ms")],
        "datetime": datetime.now(UTC).isoformat(),
        "version": _LAYOUT,
    }
    return json.dumps(made, indent=4) + "\n"


def _benchmark(facts: Facts) -> dict[str, Any]:
    seconds = sorted(ms / 1e3 for ms in facts["ms"])
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    mean, spread = statistics.fmean(seconds), statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    inside = [one for one in seconds if low - 1.5 * (high - low) <= one <= high + 1.5 * (high - low)]
    beyond = sum(abs(one - mean) > spread for one in seconds)
    return {
        "group": None,
        "name": _name(facts).partition("::")[2],
        "fullname": _name(facts),
        "params": None,
        "param": None,
        "extra_info": {**facts["counts"], "environment": facts["environment"]},
        "options": {"timer": "perf_counter_ns", "warmup": True},
        "stats": {
            "min": seconds[0],
            "max": seconds[-1],
            "mean": mean,
            "stddev": spread,
            "rounds": len(seconds),
            "median": middle,
            "iqr": high - low,
            "q1": low,
            "q3": high,
            "iqr_outliers": len(seconds) - len(inside),
            "stddev_outliers": beyond,
            "outliers": f"{beyond};{len(seconds) - len(inside)}",
            "ld15iqr": inside[0],
            "hd15iqr": inside[-1],
            "ops": 1 / mean,
            "total": sum(seconds),
            "iterations": 1,
        },
    }
