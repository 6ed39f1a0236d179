"""Run all benchmarks, or only those named on the command line: ``python -m benchmarks [name ...]``."""

from __future__ import annotations

import platform
import sys

import torch

from benchmarks import (
    compiled,
    counted,
    flame,
    fleet,
    journal,
    loading,
    measurements,
    memory,
    memory_view,
    nsight,
    report,
    roofline,
    spans,
    timeline,
    traces,
    trainers,
    watching,
)

_ALL = {
    "spans": spans.run,
    "compiled": compiled.run,
    "report": report.run,
    "counted": counted.run,
    "memory-view": memory_view.run,
    "roofline": roofline.run,
    "measurements": measurements.run,
    "loading": loading.run,
    "memory": memory.run,
    "watching": watching.run,
    "timeline": timeline.run,
    "flame": flame.run,
    "traces": traces.run,
    "nsight": nsight.run,
    "trainers": trainers.run,
    "journal": journal.run,
    "fleet": fleet.run,
}


def main(names: list[str]) -> None:
    """Print the environment and the results of each benchmark."""
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        sys.exit(f"There is no benchmark {unknown[0]!r}; choose from {', '.join(_ALL)}.")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    for name in names or _ALL:
        for line in _ALL[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
