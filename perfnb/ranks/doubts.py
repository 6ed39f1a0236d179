"""Whether traces are those of all ranks of one job: what they say of themselves that does not go together."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfnb.recording.recording import Recording

#: What stands for a device that the trace gives no name.
_NAMELESS = re.compile(r"GPU \d+")


@dataclass(frozen=True)
class Doubts:
    """What does not go together. All are empty, or 0, where nothing does not.

    Attributes
    ----------
    absent : int
        Ranks of the job that are not among these.
    world_size : int or None
        How many the job has, where the traces tell and agree.
    world_sizes : dict of int to tuple of int
        The ranks by how many ranks their traces say that there are, where they do not agree.
    devices : dict of str to tuple of int
        The ranks by the names of their GPUs, where these differ.
    same : tuple of tuple of int
        Ranks whose traces hold the same events at the same times.
    one_rank : dict of int to tuple of int
        The ranks, numbered anew, of which each trace or its file's name says that it is the one rank.
    """

    absent: int
    world_size: int | None
    world_sizes: dict[int, tuple[int, ...]]
    devices: dict[str, tuple[int, ...]]
    same: tuple[tuple[int, ...], ...]
    one_rank: dict[int, tuple[int, ...]]


def doubts_of(recordings: Sequence[Recording]) -> Doubts:
    """What recordings say of themselves that does not go together."""
    sizes = _grouped((_of_trace(one, "world_size"), one.rank) for one in recordings)
    size = next(iter(sizes)) if len(sizes) == 1 else None
    devices = _grouped((_devices(one), one.rank) for one in recordings)
    told = _grouped((_of_trace(one, "rank"), one.rank) for one in recordings)
    contents = _grouped((_content(one), one.rank) for one in recordings)
    return Doubts(
        absent=0 if size is None else max(0, int(size) - len(recordings)),
        world_size=None if size is None else int(size),
        world_sizes=sizes if len(sizes) > 1 else {},
        devices=devices if len(devices) > 1 else {},
        same=tuple(ranks for ranks in contents.values() if len(ranks) > 1),
        one_rank={rank: ranks for rank, ranks in told.items() if len(ranks) > 1},
    )


def _grouped(pairs: Iterable[tuple[Hashable, int]]) -> dict[Any, tuple[int, ...]]:
    """Ranks by what is told of them; those of which nothing is are left out."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for key, rank in pairs:
        if key is not None:
            groups[key].append(rank)
    return {key: tuple(ranks) for key, ranks in groups.items()}


def _of_trace(recording: Recording, name: str) -> int | None:
    told = recording.meta.get("trace", {}).get(name)
    return int(told) if isinstance(told, int) and told >= 0 else None


def _devices(recording: Recording) -> str | None:
    names = {str(name) for name in recording.meta.get("environment", {}).get("gpus", [])}
    named = sorted(name for name in names if not _NAMELESS.fullmatch(name))
    if not named:  # a trace may name other devices of the machine than the one in use, which are of its kind
        others = [device for device in recording.meta.get("devices", []) if isinstance(device, dict)]
        named = sorted({device["name"] for device in others if isinstance(device.get("name"), str)})
    return ", ".join(named) or None


def _content(recording: Recording) -> str | None:
    """A digest of when everything began and how long it took."""
    events = recording.events
    if not len(events):
        return None
    digest = hashlib.blake2b(str(recording.meta.get("base_ns", 0)).encode(), digest_size=16)
    for name in ("start_ns", "duration_ns"):
        digest.update(np.ascontiguousarray(events[name].to_numpy(dtype=np.int64)).tobytes())
    return digest.hexdigest()
