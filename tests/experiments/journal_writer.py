"""A process that adds entries to a journal: ``python -m tests.experiments.journal_writer JOURNAL COUNT``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from perfnb.experiments.journal_files import write_entry
from perfnb.profile.timing import TIMING
from perfnb.recording import store
from tests.experiments.journal_entries import timing_entry

STEPS = pd.DataFrame({"pass": "timed", "wall_ms": np.linspace(9.0, 11.0, 20_000)})


def save(path: Path) -> None:
    facts = {"noise": {}, "batch_size": None, "samples": None, "steady": None, "wanted": None}
    store.save(TIMING, {"steps": STEPS}, facts, path)


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        name = write_entry(sys.argv[1], timing_entry(number), save)
        print(name, flush=True)
