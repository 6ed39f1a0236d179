"""Report the results of gated steps.

The formats are a line for the terminal, Markdown for a CI job's page, and pytest-benchmark's JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

#: Version of the layout of pytest-benchmark.
_LAYOUT = "5.2.0"

Facts = Mapping[str, Any]


def time_words(times: Any) -> str:
    """Describe a comparison's ratio with its interval, and its basis."""
    low, high = times.ratio_ci or (float("nan"), float("nan"))
    interval = f" [{low:.3f}, {high:.3f}]" if times.ratio_ci else ""
    return f"{times.ratio:.3f} ×{interval} the time of {times.a_name}, in {len(times.a_ms)} pairs"


def seen_words(times: Any, limit: float) -> str:
    """Describe the smallest slowdown that would have made the comparison fail."""
    least = limit * (1 + times.smallest_detectable) - 1
    return f"9 of 10 such runs fail from a slowdown of {least:.1%}".replace("%", " %")


def line(facts: Facts) -> str:
    """Return one line for the terminal."""
    return f"{_name(facts)}: {'; '.join(_parts(facts))}"


def _parts(facts: Facts) -> list[str]:
    return [f"counts {facts['said']}", *(facts[part] for part in ("time", "seen") if part in facts)]


def _name(facts: Facts) -> str:
    return f"{facts['test']} {facts['name']}".strip()


def markdown(steps: Sequence[Facts]) -> str:
    """Return a table with a row for each step."""
    rows = ["## Steps", "", "| | step | counts | time | would have been seen |", "|---|---|---|---|---|"]
    for facts in steps:
        mark = "❌" if facts["failures"] else "⏭️" if facts["skips"] else "✅"
        cells = [mark, f"`{_name(facts)}`", facts["said"], facts.get("time", "not compared"), facts.get("seen", "")]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*rows, "", f"Measured with {steps[0]['environment']}.", ""]) + "\n"


def benchmark_json(steps: Sequence[Facts]) -> str:
    """Return the timed steps' times and counts in pytest-benchmark's layout.

    Services that track performance over time can read this layout.
    """
    made = {
        "machine_info": {
            "node": platform.node(),
            "processor": platform.processor(),
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
            "python_version": platform.python_version(),
            "system": platform.system(),
            "release": platform.release(),
        },
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
