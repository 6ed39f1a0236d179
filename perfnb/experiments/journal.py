"""`journal`: keep what was tried, why, and with what result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

import pandas as pd

from perfnb import arguments as amounts
from perfnb.draw.as_figure import series_figure
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.experiments import journal_files as storage
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.journal_files import JournalEntry
from perfnb.experiments.journal_table import journal_history
from perfnb.experiments.journal_view import journal_document, trends
from perfnb.files import usable
from perfnb.profile.loading import load
from perfnb.profile.profile import Profile
from perfnb.profile.timing import Timing, noise_facts, shown
from perfnb.stats.step_times import StepTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Thing = ABTest | Profile | Timing


class Trials(Protocol):
    """Several measurements with what changed in each, as `perfnb.try_levers` and `perfnb.compare_inference` return."""

    def journal_entries(self) -> Iterable[tuple[Timing, str, bool]]:
        """Step times, the change, and whether it is kept."""


class Journal(Documented):
    """Experiments on a step, in a folder that several notebooks may write to. A notebook displays it.

    Opened by `journal`; read again at each access.
    """

    def __init__(self, path: Path, equal_within: float) -> None:
        # As given, for display; absolute, for use, because the notebook may change its working folder.
        self._given, self._path, self._equal_within = path, path.absolute(), equal_within
        self._warned: set[str] = set()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def history(self) -> pd.DataFrame:
        """A row per entry, in chronological order.

        Columns: ``number``, ``at``, ``kind`` (report, profile, timing; an A/B test is a report on a change), ``name``,
        ``hypothesis``, ``change``, ``decision`` and ``reason`` (of a report), ``accepted``; the step time ``median_ms``
        with its 95 % interval (of a report, the candidate's), and of a report that of its ``baseline`` and the
        ``candidate_ratio`` of its pairs.

        ``ratio`` with its interval, ``verdict`` and ``regression`` compare the entry (of a report, its baseline) with
        the last accepted one before it (``against``) of the same ``name``, machine and batch size. These two were not
        measured in pairs: changes of the machine in between affect the ratio but not the interval; ``disturbed`` says
        what was noticed. ``also_changed`` lists differences in environment and options that ``change`` does not name,
        ``two_changes`` is true if more than one thing changed, and ``not_compared`` says why the first entry of a
        machine or batch size is not compared.
        """
        return journal_history(self._entries(), self._equal_within)

    @property
    def damaged(self) -> dict[str, str]:
        """Entries that cannot be read, and why; the others still work."""
        return storage.read_entries(self._path)[1]

    @overload
    def add(
        self,
        measured: Thing,
        *,
        hypothesis: str = "",
        change: str | None = None,
        name: str = "",
        accepted: bool | None = None,
    ) -> str: ...

    @overload
    def add(self, measured: Trials, *, hypothesis: str = "", name: str = "") -> list[str]: ...

    def add(
        self,
        measured: Thing | Trials,
        *,
        hypothesis: str = "",
        change: str | None = None,
        name: str = "",
        accepted: bool | None = None,
    ) -> str | list[str]:
        """Add an A/B test, profile or timing with its environment, atomically; trials of levers or backends add many.

        An A/B test knows its environment. A timing gets the current one, so add it where it was measured. A profile
        gets the current host and commit, unless it was loaded; then they are unknown.

        Parameters
        ----------
        measured : ABTest, Profile, Timing, LeverTrials or InferenceComparison
        hypothesis : str
            What you expect, and why.
        change : str, optional
            The one thing you changed; by default that of the test.
        name : str
            Name of the step, if the journal covers several. Only entries of the same name are compared, and without
            names all are, whatever they measured.
        accepted : bool, optional
            Whether later entries are compared with this one; by default, if it is a test that accepts.

        Returns
        -------
        str
            The entry's name, for `load`; for trials, a list with that of each that was tried, and of what is kept
            together.

        Raises
        ------
        TypeError
            For anything else.
        RecordingError
            If it cannot be written, or its texts are too long (about a million characters).
        """
        given: Any = measured
        if callable(entries := getattr(given, "journal_entries", None)) and not isinstance(given, type):
            if change is not None or accepted is not None:
                raise TypeError("trials say what changed and what is accepted: leave out change and accepted.")
            _require_texts(hypothesis=hypothesis, name=name)
            return [
                self._write(timing, hypothesis, name, change=what, accepted=kept, options={"lever": True})
                for timing, what, kept in entries()
            ]
        if not isinstance(given, (ABTest, Profile, StepTimes)):
            raise TypeError(f"a journal takes A/B tests, profiles, timings and trials, not {type(measured).__name__}.")
        _require_texts(hypothesis=hypothesis, change=change or "", name=name)
        if not (accepted is None or isinstance(accepted, bool)):
            raise TypeError(f"accepted must be True, False or None, not {amounts.shown(accepted)}.")
        thing = given if isinstance(given, (ABTest, Profile, Timing)) else shown(given)
        given_too = {"change": change, "accepted": accepted}  # else those of the test
        return self._write(
            thing, hypothesis, name, **{key: value for key, value in given_too.items() if value is not None}
        )

    def _write(self, thing: Thing, hypothesis: str, name: str, **said: Any) -> str:
        entry = JournalEntry(**_facts(thing) | said, hypothesis=hypothesis, name=name)
        return storage.write_entry(self._path, entry, thing.save)

    def load(self, entry: str | int) -> Thing:
        """Load what was added.

        Parameters
        ----------
        entry : str or int
            The entry's name, the start of it, or its number in `history`; -1 is the last.
        """
        entries = self._entries()
        try:
            name = storage.entry_of(entries, entry)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        return cast("Thing", load(self._path / name / entries[name].kind))

    def plot(self) -> Figure:
        """Draw the run chart: each entry's step time with its interval, next to the last accepted one."""
        return series_figure(list(trends(self.history, 1)))

    def _entries(self) -> dict[str, JournalEntry]:
        entries, damaged = storage.read_entries(self._path)
        for name in damaged.keys() - self._warned:
            self._warned.add(name)
            warnings.warn(f"Entry {name} in {self._path} is damaged and ignored: {damaged[name]}.", stacklevel=3)
        return entries

    def __len__(self) -> int:
        return len(self._entries())

    def _document(self) -> Document:
        entries, damaged = storage.read_entries(self._path)
        return journal_document(journal_history(entries, self._equal_within), damaged, str(self._given))


def journal(path: str | Path, *, equal_within: float = 0.02) -> Journal:
    """Open a journal of experiments: a folder that is created when the first entry is added.

    Several notebooks may write to it at once, a killed writer leaves nothing half-written, and it can be moved.

    Parameters
    ----------
    path : str or Path
    equal_within : float
        Largest relative difference of time that does not matter: 0.02 is 2 %.

    Returns
    -------
    Journal

    Raises
    ------
    ValueError
        For an invalid `equal_within`.
    RecordingError
        If `path` is a file.
    """
    if not 0 < equal_within < 1:
        raise ValueError(f"equal_within must be between 0 and 1 (0.02 is 2 %), not {amounts.shown(equal_within)}.")
    folder = usable(path)
    storage.read_entries(folder)
    return Journal(folder, equal_within)


def _require_texts(**given: Any) -> None:
    if wrong := [key for key, value in given.items() if not isinstance(value, str)]:
        raise TypeError(f"{wrong[0]} must be a string.")


def _facts(thing: Thing) -> dict[str, Any]:
    """The facts of an entry, without the user's texts."""
    from perfnb.step.environment import provenance

    if isinstance(thing, ABTest):
        baseline, candidate = thing.baseline, thing.candidate
        return _measured("report", candidate.timing) | {
            "throughput_per_s": candidate.throughput_per_s,
            "change": thing.change,
            "accepted": thing.decision == "accept",
            "decision": thing.decision,
            "reason": thing.reason,
            "baseline_ms": baseline.median_ms,
            "baseline_ci_ms": baseline.timing.ci_ms,
            "ratio": thing.ratio,
            "ratio_ci": thing.ratio_ci,
            "utilisation": candidate.utilisation,
            "peak_memory_bytes": candidate.peak_memory_bytes,
            "environment": thing.environment,
            "options": thing.options,
        }
    if isinstance(thing, Profile):
        memory, roofline, meta = thing._summary.memory, thing.roofline, thing.meta
        return _measured("profile", thing.timing) | {
            "utilisation": None if roofline is None else roofline.utilisation,
            "peak_memory_bytes": None if memory is None else memory.peak_bytes,
            "environment": (provenance() if thing._measured_here else {}) | meta.get("environment", {}),
            "options": meta.get("options", {}),
        }
    return _measured("timing", thing) | {"environment": provenance()}


def _measured(kind: str, timing: StepTimes) -> dict[str, Any]:
    known = timing.median_ms is not None and math.isfinite(timing.median_ms)
    return {
        "kind": kind,
        "at": datetime.now(UTC).isoformat(timespec="microseconds"),
        "steps": timing.steps,
        "batch_size": timing.batch_size,
        "disturbed": "; ".join(noise_facts(timing.noise)),
        "median_ms": timing.median_ms if known else None,
        "ci_ms": timing.ci_ms if known else None,
        "throughput_per_s": timing.throughput_per_s if known else None,
    }
