"""Identify the version of the analysis code, because tables computed by another version must not be reused."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

#: The packages that compute tables, and the modules that they share.
ROOMS = (
    *("trace_names", "trace", "recording", "stacks", "stats", "attribution"),
    *("memory", "roofline", "gpu", "timeline", "flame", "findings", "profile"),
)


@cache
def analysis_version(package: Path = Path(__file__).parent) -> str | None:
    """Return a digest of the code that computes tables, or ``None`` if the code cannot be read.

    A version number would have to be incremented by hand, and sooner or later somebody would forget to do so.
    """
    digest = hashlib.sha256()
    for room in ROOMS:
        files = sorted([*package.glob(f"{room}.py"), *(package / room).rglob("*.py")])
        if not files:
            return None
        for file in files:
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
