"""Prepare to run the code of the documentation: files to load, and short budgets."""

from __future__ import annotations

import gc
import importlib
import inspect
import pickle
import re
from pathlib import Path

import perfnb
from tests.memory.snapshots import small
from tests.ranks.rank_traces import rank_trace
from tests.written_traces import training

#: Of a budget that a page gives, this share is used: what the code computes with it is not checked.
SHARE_OF_BUDGET = 0.05
_BUDGET = re.compile(r"(\bbudget_s=)([\d.]+)")
#: Budget of each function, in seconds, if the page gives none.
BUDGETS = {
    "profile_step": 0.3,
    "time_step": 0.3,
    "ab_test": 0.3,
    "system_check": 0.3,
    "compare_architectures": 0.5,
    "scaling_study": 0.5,
    "confirm_input_bound": 0.5,
    "try_levers": 1.0,
    "latency": 3.0,
    "compare_inference": 0.5,
    "compare_decoding": 0.5,
}

#: What pages import: torch's compiler comes with the first optimizer and is half of all objects.
MODULES = ("matplotlib.pyplot", "scipy.stats", "sklearn.datasets", "torch", "torch._dynamo", "perfnb.profile.profiling")


def shorten() -> None:
    """Give every function a short default budget in this process, let torch compute in one thread, and freeze the
    objects made by imports.

    A capture walks over all objects several times, which would take most of its time. Two threads that wait for each
    other's turn on a busy machine would take most of what is left.
    """
    import torch

    from perfnb.magics import MAGICS, parser_of
    from perfnb.step import ceilings

    for module in MODULES:
        importlib.import_module(module)

    torch.set_num_threads(1)
    for name, seconds in BUDGETS.items():
        inspect.unwrap(getattr(perfnb, name)).__kwdefaults__["budget_s"] = seconds
    perfnb.find_leaks.__kwdefaults__.update(steps=15, warmup=3)
    for name in MAGICS.keys() & BUDGETS.keys():
        parser_of(name).set_defaults(budget=BUDGETS[name])
    ceilings._TURN_S, ceilings._LEAST_TURNS, ceilings._MOST_TURNS = 0.02, 1, 1  # their results are not checked
    gc.collect()
    gc.freeze()


def with_short_budgets(code: str) -> str:
    """Return a page's code, where each budget that it gives is a small share of it."""
    return _BUDGET.sub(lambda found: f"{found[1]}{float(found[2]) * SHARE_OF_BUDGET:g}", code)


def write_files(folder: Path) -> None:
    """Write files for a page that loads those of the reader."""
    for name in ("trace.json.gz", "v100.json.gz", "mi300.json.gz"):
        training().write(folder / name)
    for rank, late in enumerate((0, 150)):
        rank_trace(late).write(folder / f"rank{rank}.json.gz")
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(small()))
    (folder / "data").mkdir()
    (folder / "data" / "part-0").write_bytes(bytes(1 << 20))
