"""Collect all results saved below a folder, their trends, and the entries that people add (`journal`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
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
from perfnb.experiments.journal_index import Catalogue, SavedEntry
from perfnb.experiments.journal_rows import TABLES, dataset_of, frame_of
from perfnb.experiments.journal_rows import query as run_query
from perfnb.experiments.journal_table import entry_table, finding_rows, journal_history
from perfnb.experiments.journal_trend import FIGURES, LIKE, trend_changes, trend_rows
from perfnb.experiments.journal_view import journal_document, trend_document, trends
from perfnb.files import usable
from perfnb.profile.loading import load
from perfnb.profile.profile import Profile
from perfnb.profile.timing import Timing, noise_facts, shown
from perfnb.stats.step_times import StepTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyarrow.dataset import Dataset

Thing = ABTest | Profile | Timing


class Trials(Protocol):
    """Several measured changes, as returned by `perfnb.try_levers` and `perfnb.compare_inference`."""

    def journal_entries(self) -> Iterable[tuple[Timing, str, bool]]:
        """Yield the step times of each trial, the change that was tried, and whether the change is kept."""


class Journal(Documented):
    """All results that perfnb has saved below a folder. Notebooks display the journal.

    Use `journal` to open one. New entries are found on every access, and several processes may write to the folder.
    """

    def __init__(self, path: Path, equal_within: float) -> None:
        # The path as given is displayed. The absolute path is used, because the notebook may change its working folder.
        self._given, self._path, self._equal_within = path, path.absolute(), equal_within
        self._catalogue = Catalogue(self._path)
        self._warned: set[str] = set()
        #: Tables of entries that could not be read, and the reasons.
        self._unread: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def table(self) -> pd.DataFrame:
        """One row per entry, in chronological order, with the outcome at the time when it was saved.

        The index ``entry`` is the entry's path below the folder. The columns are:

        - ``number``, ``at``, ``kind``, ``name``, ``commit``, ``host``, ``device``, ``torch`` and ``batch_size``.
        - ``step_ms``, the step time, with its 95 % interval from ``step_low_ms`` to ``step_high_ms``. For an A/B test,
          this is the candidate's step time.
        - ``data_share`` (from 0 to 1), ``peak_bytes``, ``verdict`` and, for A/B tests, ``decision``.
        - ``change``, ``hypothesis`` and ``accepted``, for entries that people added.
        - ``ranks``. A job with several ranks is a single row, with the figures of its slowest rank and the largest
          peak.
        - ``damaged``, the reason why an entry cannot be read. Such entries do not have a number.
        """
        return entry_table(self._entries())

    @property
    def findings(self) -> pd.DataFrame:
        """The saved findings of all entries: ``bottleneck``, ``confidence`` and ``bound_ms``."""
        return finding_rows(self._entries())

    @property
    def layers(self) -> pd.DataFrame:
        """The rows of `Profile.layers` for all profiles, with their ``entry`` and ``rank``."""
        return self._frame("layers")

    @property
    def phases(self) -> pd.DataFrame:
        """The rows of `Profile.phases` for all profiles."""
        return self._frame("phases")

    @property
    def ops(self) -> pd.DataFrame:
        """The rows of `Profile.ops` for all profiles."""
        return self._frame("ops")

    @property
    def kernels(self) -> pd.DataFrame:
        """The rows of `Profile.kernels` for all profiles."""
        return self._frame("kernels")

    @property
    def gpu_time(self) -> pd.DataFrame:
        """The rows of `Profile.gpu_time` for all profiles."""
        return self._frame("gpu_time")

    def dataset(self, table: str) -> Dataset:
        """Return one of the tables of all profiles as a dataset, without reading it.

        Filters and column selections are applied while the files are read, so the table does not have to fit into
        memory.

        Parameters
        ----------
        table : str
            ``layers``, ``phases``, ``ops``, ``layer_ops``, ``kernels`` or ``gpu_time``.

        Returns
        -------
        pyarrow.dataset.Dataset
        """
        if table not in TABLES:
            raise ValueError(f"table must be one of {', '.join(TABLES)}, not {amounts.shown(table)}.")
        return dataset_of(self._path, self._entries(), table, self._unread)

    def sql(self, query: str) -> pd.DataFrame:
        """Run a DuckDB query over the tables: ``entries`` (see `table`), ``findings``, ``layers`` and so on.

        Parameters
        ----------
        query : str
            For example, ``"select entry, total_ms from layers where layer = 'encoder'"``.

        Raises
        ------
        PerfnbError
            If DuckDB is not installed, or if the query fails.
        """
        frames: dict[str, Callable[[], Any]] = {name: partial(self.dataset, name) for name in TABLES}
        frames |= {"entries": lambda: self.table.reset_index(), "findings": lambda: self.findings.reset_index()}
        return run_query(query, frames)

    def trend(self, name: str | None = None, *, figure: str = "step_ms", across: str | Sequence[str] = ()) -> Trend:
        """Look for changes in a figure over time, among entries that are comparable.

        Entries belong to the same series if they have the same name, kind, host, device, torch version, batch size and
        number of ranks. A series needs at least ten entries. The search corrects for multiple comparisons: the
        probability of a false change in any of the series is 5 %. Changes smaller than the journal's `equal_within` are
        not listed. A/B tests and lever trials are not part of any series.

        Parameters
        ----------
        name : str, optional
            The name to which the search is restricted.
        figure : str
            ``step_ms`` or ``peak_bytes``.
        across : str or list of str
            The properties that may differ within a series. ``"torch"`` joins entries from different torch versions, and
            ``"host"`` joins entries from different machines of the same kind.
        """
        loose = [across] if isinstance(across, str) else list(across)
        if figure not in FIGURES:
            raise ValueError(f"figure must be one of {', '.join(FIGURES)}, not {amounts.shown(figure)}.")
        if wrong := [one for one in loose if one not in LIKE]:
            raise ValueError(f"across must be one or more of {', '.join(LIKE)}, not {amounts.shown(wrong[0])}.")
        return self._trend(self._entries(), name, figure, loose)

    def _trend(
        self, entries: Mapping[str, SavedEntry], name: str | None = None, figure: str = FIGURES[0], across: Any = ()
    ) -> Trend:
        rows = trend_rows(entry_table(entries), entries, figure, across)
        if name is not None:
            rows = rows[rows["name"] == name]
        changes, levels = trend_changes(rows, entries, figure, self._equal_within)
        return Trend(rows.assign(level=levels), changes, figure, str(self._given))

    @property
    def history(self) -> pd.DataFrame:
        """One row per added entry, in chronological order, compared with the last accepted entry.

        The columns are ``number``, ``at``, ``kind`` (report, profile or timing; an A/B test is a report on a change),
        ``name``, ``hypothesis``, ``change``, ``decision`` and ``reason`` (for reports), and ``accepted``. They are
        followed by the step time ``median_ms`` with its 95 % interval (for reports, the candidate's step time) and, for
        reports, the step time of the ``baseline`` and the ``candidate_ratio`` from the pairs.

        ``ratio`` with its interval, ``verdict`` and ``regression`` compare the entry (for reports, its baseline) with
        the last previously accepted entry (``against``) with the same ``name``, machine and batch size. These two were
        not measured in pairs. If the machine has changed in the meantime, this affects the ratio but not the interval.
        ``disturbed`` names the disturbances that were noticed. ``also_changed`` lists differences in environment and
        options that ``change`` does not mention. ``two_changes`` is true if more than one thing changed.
        ``not_compared`` contains the reason if an entry is not compared because it is the first one on its machine or
        with its batch size.
        """
        return self._history(self._entries())

    def _history(self, entries: Mapping[str, SavedEntry]) -> pd.DataFrame:
        added = {path: entry.added for path, entry in entries.items() if entry.added is not None}
        numbers = {path: number for number, path in enumerate(_readable(entries), start=1)}
        return journal_history(added, self._equal_within, numbers)

    @property
    def damaged(self) -> dict[str, str]:
        """The entries that cannot be read, and the reason for each. All other entries remain usable."""
        return _damaged(self._catalogue.entries()) | self._unread

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
        """Atomically add an A/B test, profile or timing, with its environment.

        Trials of levers or backends add several entries. An A/B test already includes its environment. A timing is
        stored with the current environment, so add it on the machine on which it was measured. A profile is stored with
        the current host and commit, which are unknown if the profile was loaded.

        Parameters
        ----------
        measured : ABTest, Profile, Timing, LeverTrials or InferenceComparison
        hypothesis : str
            The result that you expect, and why.
        change : str, optional
            The one thing that you changed. By default, this is the change that was passed to the test.
        name : str
            The name of the step, if the journal covers several steps. Only entries with the same name are compared with
            each other. Entries without a name are compared with each other, no matter what they measured.
        accepted : bool, optional
            Whether later entries are compared with this one. By default, they are if the entry is a test that accepts
            its candidate.

        Returns
        -------
        str
            The entry's name, for use with `load`. For trials, this is a list of names, with one name for each trial and
            one for the combination that is kept.

        Raises
        ------
        TypeError
            If `measured` is anything else.
        RecordingError
            If the entry cannot be written, or if its texts are too long (more than about a million characters).
        """
        given: Any = measured
        if callable(entries := getattr(given, "journal_entries", None)) and not isinstance(given, type):
            if change is not None or accepted is not None:
                raise TypeError("change and accepted cannot be passed with trials, which specify their own.")
            _require_texts(hypothesis=hypothesis, name=name)
            return [
                self._write(timing, hypothesis, name, change=what, accepted=kept, options={"lever": True})
                for timing, what, kept in entries()
            ]
        if not isinstance(given, (ABTest, Profile, StepTimes)):
            raise TypeError(
                f"a journal only accepts A/B tests, profiles, timings and trials, not {type(measured).__name__}."
            )
        _require_texts(hypothesis=hypothesis, change=change or "", name=name)
        if not (accepted is None or isinstance(accepted, bool)):
            raise TypeError(f"accepted must be True, False or None, not {amounts.shown(accepted)}.")
        thing = given if isinstance(given, (ABTest, Profile, Timing)) else shown(given)
        given_too = {"change": change, "accepted": accepted}  # otherwise those of the test
        return self._write(
            thing, hypothesis, name, **{key: value for key, value in given_too.items() if value is not None}
        )

    def _write(self, thing: Thing, hypothesis: str, name: str, **said: Any) -> str:
        entry = JournalEntry(**_facts(thing) | said, hypothesis=hypothesis, name=name)
        return storage.write_entry(self._path, entry, thing.save)

    def load(self, entry: str | int) -> Thing:
        """Load an entry that was saved or added.

        Parameters
        ----------
        entry : str or int
            The entry's path, the beginning of its path, or its number in `table`, where -1 is the last entry.
        """
        entries = _readable(self._entries())
        try:
            name = storage.entry_of(list(entries), entry)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        place = self._path / name
        return cast("Thing", load(place if entries[name].added is None else place / entries[name].kind))

    def plot(self) -> Figure:
        """Draw a run chart, which shows the step time of each added entry and of the last accepted entry before it."""
        return series_figure(list(trends(self.history, 1)))

    def _entries(self) -> dict[str, SavedEntry]:
        entries = self._catalogue.entries()
        damaged = {path: why for path, why in _damaged(entries).items() if entries[path].kind == storage.ENTRY.word}
        for path in damaged.keys() - self._warned:
            self._warned.add(path)
            warnings.warn(f"Entry {path} in {self._path} is damaged and ignored: {damaged[path]}.", stacklevel=3)
        return entries

    def _frame(self, table: str) -> pd.DataFrame:
        return frame_of(self.dataset(table), table)

    def __len__(self) -> int:
        return len(_readable(self._entries()))

    def _document(self) -> Document:
        entries = self._catalogue.entries()
        trend = self._trend(entries)
        notes = [self._catalogue.limits] if self._catalogue.limits else []
        return journal_document(
            entry_table(entries),
            self._history(entries),
            trend.table,
            trend.changes,
            self.damaged,
            str(self._given),
            notes,
        )


class Trend(Documented):
    """The trend of a figure, as returned by `Journal.trend`. Notebooks display it.

    Attributes
    ----------
    table : DataFrame
        The entries, as in `Journal.table`, with the number of their ``series`` and the figure's ``level``, which is the
        median between two changes.
    changes : DataFrame
        One row per change, with the oldest change first. The columns are its ``series``, the first ``entry`` after it,
        ``at``, the levels ``before`` and ``after``, their ``ratio`` with a 95 % interval, the ``p_value`` corrected for
        all series, ``verdict``, the properties that ``also_changed`` at that point (commit, batch size, versions,
        settings), and whether it is the ``latest`` change in its series.
    """

    def __init__(self, table: pd.DataFrame, changes: pd.DataFrame, figure: str, where: str) -> None:
        self.table, self.changes, self._figure, self._where = table, changes, figure, where

    def _document(self) -> Document:
        return trend_document(self.table, self.changes, self._figure, self._where)


def _readable(entries: Mapping[str, SavedEntry]) -> dict[str, SavedEntry]:
    return {path: entry for path, entry in entries.items() if not entry.damaged}


def _damaged(entries: Mapping[str, SavedEntry]) -> dict[str, str]:
    return {path: entry.damaged for path, entry in entries.items() if entry.damaged}


def journal(path: str | Path, *, equal_within: float = 0.02) -> Journal:
    """Open a folder's journal, with all results that perfnb saved below it and all entries added with `Journal.add`.

    The folder is created when you add the first entry. Several processes may write to it at the same time, and a
    process that is killed while writing does not leave an incomplete entry. You can move the folder. A hidden file in
    the folder caches the entries that have been read. You may delete this file.

    Parameters
    ----------
    path : str or Path
        The folder. Links to other folders are not followed.
    equal_within : float
        The largest relative time difference that does not matter (0.02 is 2 %).

    Returns
    -------
    Journal

    Raises
    ------
    ValueError
        If `equal_within` is invalid.
    RecordingError
        If `path` is a file.
    """
    if not 0 < equal_within < 1:
        raise ValueError(f"equal_within must be between 0 and 1 (0.02 is 2 %), not {amounts.shown(equal_within)}.")
    opened = Journal(usable(path), equal_within)
    opened._catalogue.entries()
    return opened


def _require_texts(**given: Any) -> None:
    if wrong := [key for key, value in given.items() if not isinstance(value, str)]:
        raise TypeError(f"{wrong[0]} must be a string.")


def _facts(thing: Thing) -> dict[str, Any]:
    """Return the facts about an entry, without the user's texts."""
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
