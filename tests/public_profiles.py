"""Load public traces as profiles and as events. Each is only read once for all tests that do not change it."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import Any

import perfnb
from tests.trace.test_public_traces import FOLDER, LEFT_OUT, expected, text_of


@cache
def profile_of(name: str) -> perfnb.Profile:
    """Return the profile of a file in `expected`, or of the Kineto trace with the given name (without its suffix)."""
    if name not in expected():
        (name,) = (one for one in expected() if one.removesuffix(".gz") == f"kineto/{name}.json")
    return _read(name)


@cache
def _read(name: str) -> perfnb.Profile:
    profile = perfnb.load(FOLDER / name)
    assert isinstance(profile, perfnb.Profile)
    return profile


@lru_cache(maxsize=2)
def events_of(name: str) -> list[dict[str, Any]]:
    """Return the timed events in a file, unchanged."""
    value = json.loads(text_of(name))
    events = value["traceEvents"] if isinstance(value, dict) else value
    return [event for event in events if event.get("ph") == "X" and event.get("cat") not in LEFT_OUT]
