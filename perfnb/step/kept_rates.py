"""Keep measured ceilings between sessions in a JSON file in the user's cache folder.

The file is optional. If it is damaged, has a different format or cannot be written, ceilings are measured again.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from perfnb.arguments import finite
from perfnb.files import write_file

_FILE, _FORMAT = "ceilings.json", 1
#: A size in bytes that a valid file cannot exceed.
_MOST_BYTES = 1 << 20


class Rate(NamedTuple):
    """A measured rate."""

    per_s: float
    #: The time of the measurement.
    at: str
    #: The share of the CPUs that other programs used during the measurement, from 0 to 1. If this is high, the rate may
    #: be too low.
    others: float = 0.0


def cache_folder() -> Path | None:
    """Return perfnb's cache folder, or ``None`` if the user has no home directory."""
    if chosen := os.environ.get("PERFNB_CACHE"):
        return Path(chosen)
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "perfnb"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfnb"
    except RuntimeError:
        return None


def kept(machine: str) -> dict[str, Rate]:
    """Return the known rates of a machine, keyed by name."""
    return {name: rate for name, entry in _read().get(machine, {}).items() if (rate := _rate(entry)) is not None}


def keep(machine: str, rates: dict[str, Rate]) -> None:
    """Add a machine's rates to the file."""
    folder = cache_folder()
    if folder is None:
        return
    machines = _read()
    machines[machine] = machines.get(machine, {}) | {name: list(rate) for name, rate in rates.items()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file([json.dumps({"format": _FORMAT, "machines": machines}, indent=1).encode()], folder / _FILE)


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
    """Return the rate stored in an entry of the file, or ``None`` if the entry is invalid."""
    match entry:
        case [per_s, str() as at, others]:
            rate, share = finite(per_s), finite(others)
            if rate is not None and share is not None and rate > 0 and 0 <= share <= 1:
                return Rate(rate, at, share)
    return None
