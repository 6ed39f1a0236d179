"""Reduce a fleet of raw traces. Each trace is reduced to its tables by the process that reads it, and then saved."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from perfnb.draw.progress import Progress
from perfnb.errors import PerfnbError
from perfnb.experiments.journal import Journal, journal
from perfnb.experiments.journal_files import UNREAD
from perfnb.files import write_text
from perfnb.profile.profile import Profile
from perfnb.profile.reduced import ReducedProfile
from perfnb.recording import store
from perfnb.recording.executors import answers
from perfnb.recording.job import RANKS, rank_folder
from perfnb.recording.reading import RANK, rank_of_name, read_file, trace_files
from perfnb.recording.saved_profile import PROFILE
from perfnb.trace.trace_file import Limits


class _Task(NamedTuple):
    """A trace to reduce.

    Attributes
    ----------
    file, entry : Path
        The trace, and the journal entry where it is saved.
    unread : Path
        The entry where the reason is saved if the trace cannot be read.
    alone : bool
        Whether the trace does not belong to a job with several ranks.
    """

    file: Path
    entry: Path
    unread: Path
    alone: bool

    @property
    def is_done(self) -> bool:
        """Whether the trace has been reduced since it was last modified."""
        rank = rank_of_name(self.file.name)
        made = [self.entry / PROFILE.file, self.entry / RANKS.file] if self.alone else []
        made += [self.entry / rank_folder(rank) / PROFILE.file] if rank is not None else []
        with suppress(OSError):
            written = self.file.stat().st_mtime
            return any(one.exists() and one.stat().st_mtime > written for one in made)
        return False


def reduce_traces(
    paths: Sequence[Path], folder: str | Path, limits: Limits, executor: Any = None, steps: str | None = None
) -> Journal:
    """Reduce traces to the entries of a journal; see `perfnb.load`.

    Raises
    ------
    RecordingError
        If the journal cannot be written.
    """
    opened = journal(folder)
    tasks = [task for task in _tasks(paths, opened.path) if not task.is_done]
    questions = [(str(task.file), limits, rank_of_name(task.file.name), steps) for task in tasks]
    taken: dict[Path, set[int]] = {}
    answered = answers(_Here if executor is None else executor, reduce_file, questions)
    with Progress() as progress, closing(answered):
        for number, (place, answer) in enumerate(answered, start=1):
            progress("reducing traces", number, len(tasks))
            task = tasks[place]
            if not isinstance(answer, list):
                why = answer if isinstance(answer, str) else f"{type(answer).__name__}: {answer}"
                store.save(UNREAD, {}, {"name": task.file.name, "reason": why}, task.unread)
                continue
            if task.alone and len(answer) == 1:
                answer[0].save(task.entry)
            else:
                _save_ranks(answer, task.entry, taken.setdefault(task.entry, set()))
            with suppress(OSError):  # there is such an entry only if the trace could not be read before
                (task.unread / UNREAD.file).unlink()
                task.unread.rmdir()
    return opened


def reduce_file(path: str, limits: Limits, rank: int | None, steps: str | None) -> list[Profile] | str:
    """Read a trace and return the tables of each rank. Errors are returned as text, which any process can receive."""
    try:
        recordings, profiles = read_file(path, limits, rank, steps=steps), []
        while recordings:
            profiles.append(Profile(recordings.pop(0))._reduced())
        return profiles
    except PerfnbError as error:
        return str(error)
    except Exception as error:  # one trace must not prevent the others from being read
        return f"{path} cannot be read: {type(error).__name__}: {error}"


class _Here:
    """An executor that reads traces in this process, one after another."""

    map = staticmethod(map)


def _tasks(paths: Sequence[Path], folder: Path) -> Iterator[_Task]:
    """Yield the traces and their entries.

    A folder is treated as a job, and so are files whose names differ only in their ranks.
    """
    jobs: dict[Path, list[Path]] = {}
    for path in paths:
        place = path.absolute()
        if place.is_dir():
            jobs.setdefault(place, []).extend(trace_files(place) or [place])
        else:
            jobs.setdefault(place.with_name(RANK.sub("ranks", place.name)), []).append(place)
    base = os.path.commonpath([job.parent for job in jobs]) if jobs else ""
    for job, files in jobs.items():
        alone = len(files) == 1 and not job.is_dir()
        for file in files:
            name = _visible(os.path.relpath(file, base))
            yield _Task(
                file,
                folder / (name if alone else _visible(os.path.relpath(job, base))),
                folder / f"{name}.unread",
                alone,
            )


def _visible(path: str) -> str:
    """Return a path with its hidden parts renamed, because journals ignore hidden folders."""
    return "/".join(f"_{part[1:]}" if part.startswith(".") else part for part in Path(path).parts)


def _save_ranks(profiles: Sequence[Profile], entry: Path, taken: set[int]) -> None:
    """Save a job's ranks under their numbers or, if a number is unknown or already in use, under the next free one."""
    for profile in profiles:
        source = profile._source
        assert isinstance(source, ReducedProfile)
        own = source.meta["rank"] if source.meta["trace"]["rank_known"] else None
        rank = own if own is not None and own not in taken else next(n for n in itertools.count() if n not in taken)
        taken.add(rank)
        Profile(source.of_rank(rank)).save(entry / rank_folder(rank))
    there = {rank_of_name(place.name) for place in entry.glob(f"{rank_folder(0)[:-1]}*")}
    ranks = sorted(rank for rank in there if rank is not None)
    write_text(store.facts_text({"ranks": ranks, "apart": True}), entry / RANKS.file)
