"""What the GPU of a recording can do, if the recording says which one it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT

Capability = tuple[int, int]

#: The least compute capability of NVIDIA GPUs with units for a format, and of those that Triton, and so torch.compile,
#: supports.
NEEDS: Mapping[str, Capability] = {
    "float16": (7, 0),
    "torch.compile": (7, 0),
    "bfloat16": (8, 0),
    "TF32": (8, 0),
    "float8": (8, 9),
}
_OTHERS = re.compile(r"\bAMD\b|Radeon|Instinct|\bMI\d{2,3}")
#: By name, if the recording holds no number.
_NAMED: tuple[tuple[re.Pattern[str], Capability], ...] = (
    (re.compile(r"\bP100\b"), (6, 0)),
    (re.compile(r"\bP40?\b|GTX 10\d\d"), (6, 1)),
    (re.compile(r"\bV100|TITAN V\b"), (7, 0)),
    (re.compile(r"\bT4\b|RTX 20\d\d|GTX 16\d\d|Quadro RTX"), (7, 5)),
    (re.compile(r"\bA100|\bA30\b"), (8, 0)),
    (re.compile(r"\bA10G?\b|\bA40\b|RTX 30\d\d|RTX A\d{4}"), (8, 6)),
    (re.compile(r"\bL4\b|\bL40S?\b|RTX 40\d\d"), (8, 9)),
    (re.compile(r"\bH100|\bH200|\bGH200"), (9, 0)),
    (re.compile(r"\bB200|\bGB200"), (10, 0)),
)


def has_units(recording: Recording, what: str) -> bool | None:
    """Whether every GPU meets one of `NEEDS`; ``None`` if that is unknown."""
    known = [_capability(name, facts) for name, facts in _devices(recording)]
    return None if not known or None in known else all(one >= NEEDS[what] for one in known if one is not None)


def is_amd(recording: Recording) -> bool:
    """Whether the work ran on an AMD GPU: its runtime's calls start with ``hip``."""
    names = recording.events["name"].cat.categories.astype(TEXT)
    return bool(names.str.startswith("hip").any()) or any(_OTHERS.search(name) for name, _ in _devices(recording))


def _devices(recording: Recording) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and facts of each GPU that was used; of all known GPUs if the recording does not say which."""
    found = recording.meta.get("devices")
    known = [one for one in found if isinstance(one, Mapping)] if isinstance(found, (list, tuple)) else []
    gpus = recording.meta.get("environment", {}).get("gpus") or []
    names = [str(name) for name in gpus] if isinstance(gpus, (list, tuple)) else []
    of_name = {str(one.get("name")): one for one in known}
    if names and all(name in of_name for name in names):
        return [(name, of_name[name]) for name in dict.fromkeys(names)]
    return [(str(one.get("name")), one) for one in known] or [(name, {}) for name in names]


def _capability(name: str, facts: Mapping[str, Any]) -> Capability | None:
    """The compute capability of an NVIDIA GPU; other vendors number theirs differently."""
    if _OTHERS.search(name):
        return None
    major, minor = facts.get("computeMajor"), facts.get("computeMinor")
    if isinstance(major, int) and isinstance(minor, int) and "NVIDIA" in name:
        return major, minor
    by_name = next((capability for pattern, capability in _NAMED if pattern.search(name)), None)
    is_number = isinstance(major, int) and isinstance(minor, int)
    return (major, minor) if is_number and re.match(r"Tesla|GeForce|Quadro|TITAN", name) else by_name  # type: ignore[return-value]
