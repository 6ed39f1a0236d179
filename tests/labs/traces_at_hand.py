"""Where the traces of lab 8 lie, so that no test fetches anything."""

from __future__ import annotations

import os
from pathlib import Path

from perfnb.labs.public_traces import FOLDER, TRACES

_BESIDE = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces")) / "kineto"
MISSING = f"the public traces of lab 8 are not at hand: set {FOLDER}, or PERFNB_TRACES"


def folder() -> Path | None:
    """The folder that the environment names, or the one beside the project; ``None`` if it has not all of them."""
    chosen = Path(os.environ.get(FOLDER) or _BESIDE)
    return chosen if all((chosen / f"{name}.json.gz").is_file() for name in TRACES) else None
