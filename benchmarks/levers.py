"""Print the table of levers for some steps. Run it on a quiet machine: ``python -m benchmarks.levers [SECONDS]``."""

from __future__ import annotations

import os
import sys

import torch

import perfnb
from perfnb.remedies.levers import LEVERS
from tests.accuracy.judging import machine
from tests.lever_steps import STEPS

COLUMNS = ["verdict", "ratio", "ratio_low", "ratio_high", "saves_ms", "bound_ms", "values", "error", "setup_s"]


def main(budget_s: float = 120.0) -> None:
    """Print a table for each step, with all levers that apply to it."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(machine())
    for name, make in STEPS.items():
        torch.manual_seed(0)
        curable = make()
        levers = [lever.name for lever in LEVERS]
        found = perfnb.try_levers(curable.step, curable.batches, levers=levers, budget_s=budget_s)
        print(f"\n{name}: kept {', '.join(found.best) or 'nothing'}\n{found}\n")
        tried = found.table[found.table["verdict"] != "not tried"]
        print(tried[COLUMNS].to_string(float_format="{:.3g}".format))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
