"""A few measured rates kept from one session to the next, in a JSON file in the user's cache folder.

Nothing depends on it: a file that is damaged, foreign or cannot be written only means measuring again.
"""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from perfnb.files import write_file

_FILE, _FORMAT = "ceilings.json", 1
#: Longer than any such file; a larger one is none.
_MOST_BYTES = 1 << 20


class Rate(NamedTuple):
    """A measured rate.

    Attributes
    ----------
    per_s : float
    at : str
        When it was measured.
    others : float
        Share of the CPUs that other programs used meanwhile, 0 to 1: beside them a rate may be too low.
    """

    per_s: float
    at: str
    others: float = 0.0


def cache_folder() -> Path | None:
    """The folder in which perfnb keeps what it need not measure twice; ``None`` if the user has no home."""
    if chosen := os.environ.get("PERFNB_CACHE"):
        return Path(chosen)
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "perfnb"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfnb"
    except RuntimeError:
        return None


def kept(machine: str) -> dict[str, Rate]:
    """What is known of a machine, by the name of the rate."""
    return {name: rate for name, entry in _read().get(machine, {}).items() if (rate := _rate(entry)) is not None}


def keep(machine: str, rates: dict[str, Rate]) -> None:
    """Add what was measured on a machine to the file; the file is written beside and moved into place."""
    folder = cache_folder()
    if folder is None:
        return
    everything = _read()
    everything[machine] = everything.get(machine, {}) | {name: list(rate) for name, rate in rates.items()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file([json.dumps({"format": _FORMAT, "machines": everything}, indent=1).encode()], folder / _FILE)


def _read() -> dict[str, dict[str, Any]]:
    folder = cache_folder()
    try:
        with open(folder / _FILE, "rb") as file:  # type: ignore[operator]
            data = file.read(_MOST_BYTES + 1)
        content = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
    machines = content.get("machines") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    if not isinstance(machines, dict):
        return {}
    return {name: entries for name, entries in machines.items() if isinstance(entries, dict)}


def _rate(entry: Any) -> Rate | None:
    """A kept rate, if it is one."""
    match entry:
        case [int() | float() as rate, str() as at, *rest] if not isinstance(rate, bool) and len(rest) < 2:
            others = rest[0] if rest else 0.0
            if not isinstance(others, int | float):
                return None
            try:
                found = Rate(float(rate), at, float(others))
            except OverflowError:
                return None
            return found if math.isfinite(found.per_s) and found.per_s > 0 and 0 <= found.others <= 1 else None
    return None
