"""Time a step in a process of its own: what `perfnb.remedies.fresh` starts, as ``python -m``.

A step of an imported module is imported. A script runs again until it calls `try_levers`, whose step is the one.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from perfnb.bench.rounds import Bench

#: Steps that do not count, the most that do, and the seconds after which none starts.
_WARM, _MOST, _SECONDS = 3, 50, 1.0


def main(order: dict[str, Any], result: Path) -> None:
    """Time the step that an order describes, and write its milliseconds."""
    if order["interop"]:
        torch.set_num_interop_threads(order["interop"])
    sys.path[:] = order["path"]

    def reached(step: Callable[..., Any], batches: Any = None, **_: Any) -> NoReturn:
        if step.__qualname__ == order["step"]:
            result.write_text(json.dumps(_milliseconds(step, batches)), encoding="utf-8")
        raise SystemExit(0 if result.exists() else f"the script tries the levers of {step.__qualname__} first")

    if order["script"]:
        sys.argv = order["argv"]
        for place in ("perfnb", "perfnb.remedies.try_levers"):
            vars(importlib.import_module(place))["try_levers"] = reached
        runpy.run_path(order["script"], run_name="__main__")
    else:
        module = importlib.import_module(order["module"])
        reached(getattr(module, order["step"]), getattr(module, order["batches"]) if order["batches"] else None)


def _milliseconds(step: Callable[..., Any], batches: Any) -> float:
    with Bench([step], batches) as bench:
        bench.rounds([[0]] * _WARM, pass_name="warmup")
        return float(np.median(bench.rounds([[0]] * _MOST, until=time.perf_counter() + _SECONDS)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
