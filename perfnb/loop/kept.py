"""The profiles of a loop: kept in memory, or saved and loaded again when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from perfnb.files import usable
from perfnb.profile.profile import Profile
from perfnb.recording.job import place_of_rank, tell_of_ranks
from perfnb.recording.storage import SavedProfile


class KeptProfiles(Sequence[Profile]):
    """The profiles of a loop in the order of their steps; saved ones are loaded when they are asked for.

    Attributes
    ----------
    at : list of int
        Steps before each profile.
    paths : list of Path
        Their folders; empty if they are not saved.
    """

    def __init__(self, save: str | Path | None = None, *, keep_trace: bool = True) -> None:
        self.at: list[int] = []
        self.paths: list[Path] = []
        self._folder = None if save is None else usable(save)
        self._keep_trace = keep_trace
        self._held: list[Profile] = []

    def add(self, profile: Profile, at: int) -> None:
        """Save the profile of the window after `at` steps, or keep it."""
        profile = profile if self._keep_trace else profile._reduced()
        if self._folder is None:
            self._held.append(profile)
        else:
            folder, meta = self._folder / f"step_{at:06d}", profile.meta
            self.paths.append(profile.save(place_of_rank(folder, meta)))
            tell_of_ranks(folder, meta)
        self.at.append(at)

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, place: int) -> Profile: ...
    @overload
    def __getitem__(self, place: slice) -> list[Profile]: ...
    def __getitem__(self, place: int | slice) -> Profile | list[Profile]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        if self._folder is None:
            return self._held[place]
        return Profile(SavedProfile(self.paths[place]))

    def __repr__(self) -> str:
        return f"<{len(self)} profiles, at steps {', '.join(map(str, self.at))}>" if self.at else "<no profiles yet>"
