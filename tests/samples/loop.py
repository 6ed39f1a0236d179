"""Documents of `loop`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfnb.draw.document import Document
from perfnb.loop.run import RunSummary
from tests.loop.planted_runs import MIB, run, steady_memory, usual
from tests.loop.test_rank_runs import ranks
from tests.samples import HOSTILE

N = 400


def waiting(name: str = "train.py") -> RunSummary:
    """Return a run that waits for data, stalls, was profiled, and leaks."""
    waits, wall = usual(N, 6.0, seed=2), usual(N)
    wall[[200, 300]] += 190.0
    leak = {"memory": lambda step: steady_memory(step) + step * MIB, "windows": [(50, 80)], "window_ms": 900.0}
    return run(wall + waits, waits, np.full(N, 0.5), name=name, **leak)


def tried() -> RunSummary:
    """Return a run during which levers were tried: one is worth keeping, one only in a longer run, others are not."""
    measured = {"ratio": 0.7, "interval": [0.6, 0.8], "values": "exact", "saves_ms": 3.0, "setup_s": 0.1, "left": 350}
    kept = {"verdict": "faster", "kept": True, "why_not": "", "code": ["TrainingArguments(dataloader_num_workers=2)"]}
    not_kept = {"kept": False, "code": [HOSTILE], "verdict": "slower"}
    recorded = waiting()._recorded
    recorded.facts["tried"] = [
        {**measured, **not_kept, "lever": HOSTILE, "ratio": 1.2, "interval": None, "why_not": HOSTILE},
        {**measured, **kept, "lever": "compile", "setup_s": 300.0, "code": ["TrainingArguments(torch_compile=True)"]},
        {**measured, **kept, "lever": "loader_workers", "ratio": 0.5, "interval": [0.4, 0.6]},
        {
            **measured,
            **kept,
            "lever": "gc_freeze",
            "values": "not checked",
            "ratio": None,
            "interval": None,
            "left": None,
            "code": [],
        },
    ]
    return RunSummary(recorded)


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "whole run": lambda: waiting()._document(),
    "whole run, hostile": lambda: waiting(HOSTILE)._document(),
    "whole run, levers tried": lambda: tried()._document(),
    "whole run, short": lambda: run(usual(2))._document(),
    "two runs": lambda: waiting(HOSTILE).compare(run(usual(N, seed=4)))._document(),
    "two runs, short": lambda: run(usual(2)).compare(run(usual(2)))._document(),
    "whole runs of ranks": lambda: ranks(0.1, 4.0, 0.1, count=N)._document(),
}
