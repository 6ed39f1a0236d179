"""Keep a loop's profiles in memory, or save them and load them again on access."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from perfnb.errors import RecordingError
from perfnb.files import require_writable, usable
from perfnb.profile.profile import Profile
from perfnb.recording.job import place_of_rank, tell_of_ranks
from perfnb.recording.saved_profile import SavedProfile


class KeptProfiles(Sequence[Profile]):
    """A loop's profiles in the order of their steps; saved profiles are loaded on access.

    Attributes
    ----------
    at : list of int
        Steps before each profile.
    paths : list of Path
        Their folders; empty if they are not saved.
    given, folder : str or Path, and Path; or None
        The folder where they are saved: the path as specified by the user, and a path that stays valid if the loop
        changes the working directory.
    """

    def __init__(self, save: str | Path | None = None, *, keep_trace: bool = True) -> None:
        self.at: list[int] = []
        self.paths: list[Path] = []
        self.given, self.folder = save, None if save is None else usable(save).absolute()
        if self.folder is not None:
            require_writable(self.folder)
        self._keep_trace = keep_trace
        #: Each profile, or the path where it is saved.
        self._kept: list[Profile | Path] = []

    def add(self, profile: Profile, at: int) -> None:
        """Save the profile of the window after `at` steps.

        Without a folder, or if saving fails, the profile stays in memory.
        """
        profile = profile if self._keep_trace else profile._reduced()
        kept: Profile | Path = profile
        if self.folder is not None:
            target = self.folder / f"step_{at:06d}"
            try:
                kept = profile.save(place_of_rank(target, profile.meta))
                tell_of_ranks(target, profile.meta)
                self.paths.append(kept)
            except RecordingError as error:
                warnings.warn(f"perfnb: kept in memory: {error}", RuntimeWarning, stacklevel=2)
        self._kept.append(kept)
        self.at.append(at)

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, place: int) -> Profile: ...
    @overload
    def __getitem__(self, place: slice) -> list[Profile]: ...
    def __getitem__(self, place: int | slice) -> Profile | list[Profile]:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        if not self._kept:
            raise IndexError("there is no profile yet, because no window of profiled steps has ended.")
        kept = self._kept[place]
        return Profile(SavedProfile(kept)) if isinstance(kept, Path) else kept

    def __repr__(self) -> str:
        return f"<{len(self)} profiles, at steps {', '.join(map(str, self.at))}>" if self.at else "<no profiles yet>"
