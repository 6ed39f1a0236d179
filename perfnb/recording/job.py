"""A job's folder. Each rank saves its own profile there, and a small file identifies the folder as a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from perfnb.files import usable, write_text
from perfnb.recording.saved_facts import Rank
from perfnb.recording.saved_profile import PROFILE
from perfnb.recording.store import SavedKind, facts_text


class SavedRanks(TypedDict):
    """The contents of saved ranks, apart from their profiles."""

    ranks: Annotated[list[Rank], Meta(min_length=1)]
    #: Whether each rank saves its own profile. Some may then be missing, because they were not saved yet or are stored
    #: elsewhere.
    apart: NotRequired[bool]


RANKS = SavedKind("ranks", SavedRanks, parts=PROFILE)


def place_of_rank(path: str | Path, meta: Mapping[str, Any]) -> Path:
    """Return the path under which a process saves a profile that is requested for `path`.

    If the process belongs to a job with several ranks, this is a folder inside `path`.

    Parameters
    ----------
    path : str or Path
    meta : mapping
        As `Recording.meta`.
    """
    folder = usable(path)
    return folder / rank_folder(meta["job"]["rank"]) if _of_several(meta) else folder


def tell_of_ranks(path: str | Path, meta: Mapping[str, Any]) -> None:
    """Write the file that identifies a job's folder to `perfnb.load`, if the job has several ranks.

    Every rank writes the same file. The order therefore does not matter, and the file exists on each machine.

    Raises
    ------
    RecordingError
        If the file cannot be written.
    """
    if _of_several(meta):
        facts = {"ranks": list(range(meta["job"]["world_size"])), "apart": True}
        write_text(facts_text(facts), usable(path) / RANKS.file)


def rank_folder(rank: int) -> str:
    """Return the name of a rank's folder."""
    return f"rank_{rank}"


def _of_several(meta: Mapping[str, Any]) -> bool:
    return int(meta.get("job", {}).get("world_size", 1)) > 1
