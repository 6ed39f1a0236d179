"""`journal`: what was tried, why, and what came of it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import arguments as amounts
from perfnb.draw.shown import Page, Shown
from perfnb.experiments import journal_files as storage
from perfnb.experiments.journal_files import Entry
from perfnb.experiments.journal_table import journal_history
from perfnb.experiments.journal_view import journal_figure, journal_html, journal_line, journal_page, journal_text
from perfnb.experiments.report import PerformanceReport
from perfnb.files import usable
from perfnb.profile.loading import load
from perfnb.profile.noise import noise_facts
from perfnb.profile.profile import Profile
from perfnb.profile.timing import Timing, shown
from perfnb.stats import step_times as analysis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Thing = PerformanceReport | Profile | Timing


class Journal(Page, Shown):
    """What was tried on a step, in a folder that several notebooks may write to. Shows itself in a notebook.

    `journal` opens one. It is read anew at each access.
    """

    def __init__(self, path: Path, equal_within: float) -> None:
        # As it was given for display; as it is now for use, whatever folder the notebook changes to.
        self._given, self._path, self._equal_within = path, path.absolute(), equal_within
        self._warned: set[str] = set()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def history(self) -> pd.DataFrame:
        """A row an entry, in the order of time.

        ``number``, ``at``, ``kind`` (report, profile, timing), ``name``, ``hypothesis``, ``change``, ``decision`` and
        ``reason`` (of a report), ``accepted``; the step's time ``median_ms`` with its 95 % interval (of a report the
        candidate's), and of a report that of its ``baseline`` and, from its pairs, the ``candidate_ratio``.

        ``ratio``, with its interval, ``verdict`` and ``regression``: the entry, of a report its baseline, by what was
        accepted last before it (``against``) of the same ``name``, machine and batch size. These two were not measured
        in pairs: what changed on the machine meanwhile is in the ratio, and not in the interval; ``disturbed`` tells
        what was seen of that. ``also_changed`` is what differs in environment and options and was not named in
        ``change``; ``two_changes`` tells where more than one thing changed, and ``not_compared`` what keeps the first
        entry of a machine or batch size from comparison.
        """
        return journal_history(self._entries(), self._equal_within)

    @property
    def damaged(self) -> dict[str, str]:
        """Entries that cannot be read, and why; the others are not touched by that."""
        return storage.read_entries(self._path)[1]

    def add(
        self,
        measured: Thing,
        *,
        hypothesis: str = "",
        change: str | None = None,
        name: str = "",
        accepted: bool | None = None,
    ) -> str:
        """Keep a report, a profile or a timing, with the environment it was made in, whole or not at all.

        A report knows its environment. A timing does not: that of now is kept, so add it where it was made. Of a
        profile host and commit are those of now, unless it was loaded, which leaves them unknown.

        Parameters
        ----------
        measured : PerformanceReport, Profile or Timing
        hypothesis : str
            What you expected, and why.
        change : str, optional
            The one thing that was changed; by default that of a report.
        name : str
            Of the step, where a journal holds several: only entries of one name are compared.
        accepted : bool, optional
            Whether later entries are compared with this one; by default where it is a report that accepts.

        Returns
        -------
        str
            The entry's name, by which `load` finds it.

        Raises
        ------
        TypeError
            For what is none of these.
        RecordingError
            If it cannot be written, or its words are longer than can be read again (about a million letters).
        """
        given: Any = measured
        if not isinstance(given, (PerformanceReport, Profile, analysis.Timing)):
            raise TypeError(f"a journal keeps reports, profiles and timings, not {type(measured).__name__}.")
        words: dict[str, Any] = {"hypothesis": hypothesis, "change": change or "", "name": name}
        if wrong := [key for key, value in words.items() if not isinstance(value, str)]:
            raise TypeError(f"{wrong[0]} must be words.")
        if not (accepted is None or isinstance(accepted, bool)):
            raise TypeError(f"accepted must be True, False or None, not {amounts.shown(accepted)}.")
        thing = given if isinstance(given, (PerformanceReport, Profile, Timing)) else shown(given)
        entry = replace(_facts(thing), hypothesis=hypothesis, name=name)
        if change is not None:
            entry = replace(entry, change=change)
        if accepted is not None:
            entry = replace(entry, accepted=accepted)
        return storage.write_entry(self._path, entry, thing.save)

    def load(self, entry: str | int) -> Thing:
        """What an entry keeps.

        Parameters
        ----------
        entry : str or int
            Its name, or the begin of it, or its number in `history`; -1 is the last.
        """
        entries = self._entries()
        try:
            name = storage.entry_of(entries, entry)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        thing: Thing = load(self._path / name / entries[name].kind)
        return thing

    def plot(self) -> Figure:
        """The run chart: each entry's step time with its interval, and what was accepted last before it."""
        return journal_figure(self.history)

    def _page(self) -> str:
        return journal_page(*self._shown())

    def _entries(self) -> dict[str, Entry]:
        entries, damaged = storage.read_entries(self._path)
        for name in damaged.keys() - self._warned:
            self._warned.add(name)
            warnings.warn(f"Entry {name} in {self._path} is damaged and left out: {damaged[name]}.", stacklevel=3)
        return entries

    def _shown(self) -> tuple[pd.DataFrame, dict[str, str], str]:
        entries, damaged = storage.read_entries(self._path)
        return journal_history(entries, self._equal_within), damaged, str(self._given)

    def __len__(self) -> int:
        return len(self._entries())

    def _text(self) -> str:
        return journal_text(*self._shown())

    def _line(self) -> str:
        history, _, where = self._shown()
        return journal_line(history, where)

    def _html(self) -> str:
        return journal_html(*self._shown())


def journal(path: str | Path, *, equal_within: float = 0.02) -> Journal:
    """Open a journal of experiments: a folder, which is made when the first entry is added.

    Several notebooks may write to it at once, a writer that is killed leaves nothing half-written, and it may be moved.

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
        For a difference that makes no sense.
    RecordingError
        If `path` is a file.
    """
    if not 0 < equal_within < 1:
        raise ValueError(
            f"equal_within must lie between 0 and 1, and 0.02 is 2 %; it is {amounts.shown(equal_within)}."
        )
    folder = usable(path)
    storage.read_entries(folder)
    return Journal(folder, equal_within)


def _facts(thing: Thing) -> Entry:
    """What an entry says of a thing, without its words."""
    from perfnb.step.environment import provenance

    at = datetime.now(UTC).isoformat(timespec="microseconds")
    if isinstance(thing, PerformanceReport):
        ab, candidate, baseline = thing.ab, thing.candidate, thing.baseline
        return Entry(
            **_measured("report", at, candidate.timing) | {"throughput_per_s": candidate.throughput_per_s},
            change=thing.change,
            accepted=thing.decision == "accept",
            decision=thing.decision,
            reason=thing.reason,
            baseline_ms=baseline.median_ms,
            baseline_ci_ms=baseline.timing.ci_ms,
            ratio=ab.ratio,
            ratio_ci=ab.ratio_ci,
            utilisation=candidate.utilisation,
            peak_memory_bytes=candidate.peak_memory_bytes,
            environment=thing.meta["environment"],
            options=thing.meta["options"],
        )
    if isinstance(thing, Profile):
        memory, roofline, meta = thing._summary.memory, thing.roofline, thing.meta
        return Entry(
            **_measured("profile", at, thing.timing),
            utilisation=None if roofline is None else roofline.utilisation,
            peak_memory_bytes=None if memory is None else memory.peak_bytes,
            environment=(provenance() if thing._measured_here else {}) | meta.get("environment", {}),
            options=meta.get("options", {}),
        )
    return Entry(**_measured("timing", at, thing), environment=provenance())


def _measured(kind: str, at: str, timing: analysis.Timing) -> dict[str, Any]:
    known = timing.median_ms is not None and math.isfinite(timing.median_ms)
    return {
        "kind": kind,
        "at": at,
        "steps": timing.steps,
        "batch_size": timing.batch_size,
        "disturbed": "; ".join(noise_facts(timing.noise, sum(timing.samples_ms))),
        "median_ms": timing.median_ms if known else None,
        "ci_ms": timing.ci_ms if known else None,
        "throughput_per_s": timing.throughput_per_s if known else None,
    }
