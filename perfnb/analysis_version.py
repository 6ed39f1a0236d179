"""Which analysis this is: what was computed by another must not be taken for its results."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

#: The rooms in which the tables are computed.
ROOMS = ("trace", "recording", "stats", "attribution", "memory", "roofline", "gpu", "timeline", "findings", "profile")


@cache
def analysis_version(package: Path = Path(__file__).parent) -> str | None:
    """A digest of the code that computes tables, which changes whenever that does; ``None`` where it cannot be read.

    A number to be raised by hand would one day be forgotten.
    """
    digest = hashlib.sha256()
    for room in ROOMS:
        files = sorted((package / room).rglob("*.py"))
        if not files:
            return None
        for file in files:
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
