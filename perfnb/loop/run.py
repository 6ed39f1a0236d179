"""`RunSummary`: a whole run that can be displayed, saved, loaded and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.arguments import finite, shown
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.loop.run_comparison import RunChanges
from perfnb.loop.run_summary import RunFigures, memory_frame, steps_frame
from perfnb.loop.run_view import comparison_document, run_document
from perfnb.loop.thinning import COLUMNS, READING_COLUMNS, WINDOW_COLUMNS
from perfnb.profile.outcome import origin
from perfnb.profile.trackers import Logged, log_result
from perfnb.recording import store
from perfnb.recording.frame_files import SavedColumn
from perfnb.recording.job import RANKS
from perfnb.recording.loadable import Loadable
from perfnb.recording.outcome import Outcome, make_outcome
from perfnb.recording.saved_facts import Above0, Amount, Count, Number, Rank, Whole
from perfnb.recording.saved_profile import PROFILE
from perfnb.recording.store import SavedFolder, SavedKind

if TYPE_CHECKING:
    from perfnb.loop.record import Recorded, RunRecorder

#: The columns whose values may be unknown (-1), and the constraints for numbers that may and that may not be unknown.
_UNKNOWN = ("one_device_ns", "timed_median_ns", "resident_bytes", "allocated_bytes")
_NUMBER, _KNOWN = (SavedColumn("int64", low=low, high=2**62) for low in (-1, 0))


class TriedLever(TypedDict):
    """A lever that was tried during a run, with the number of steps that remained afterwards."""

    lever: str
    verdict: str
    ratio: Required[Above0 | None]
    interval: Required[tuple[Amount, Amount] | None]
    values: str
    saves_ms: Required[Number | None]
    setup_s: Required[Amount | None]
    left: Required[Count | None]
    kept: bool
    why_not: str
    code: list[str]


class RunFacts(TypedDict):
    """The contents of a saved run except for its frames."""

    name: str
    steps: Count
    by_batch: NotRequired[bool]
    batches: NotRequired[Annotated[int, Meta(ge=1, le=2**40)]]
    stride: Annotated[int, Meta(ge=1, le=2**40)]
    duration_ns: Count
    dropped_windows: dict[str, Count]
    peak_resident_bytes: Whole
    peak_allocated_bytes: Whole
    memory_bytes: Required[Count | None]
    load: NotRequired[Amount | None]  # not in runs of earlier versions
    cpus: NotRequired[Count | None]
    waits_known: bool
    device: str | None
    rank: Rank | None
    ranks: Rank | None
    tried: NotRequired[list[TriedLever]]


#: The folder of a loop's run, next to those of its profiles.
RUN_FOLDER = "run"
_TABLES = {
    name: {column: _NUMBER if column in _UNKNOWN else _KNOWN for column in columns}
    for name, columns in (("rows", COLUMNS), ("windows", WINDOW_COLUMNS), ("readings", READING_COLUMNS))
}
RUN = SavedKind("run", RunFacts, _TABLES)


class RunSummary(RunFigures, Documented):
    """A whole run: how long its steps took, what slowed them down, and how memory usage developed.

    Notebooks and terminals display it. Its tables are pandas DataFrames.

    Attributes
    ----------
    name : str
        The name of the run.
    median_ms, ci_ms
        Median step time, excluding profiled windows and the warm-up, and its 95 % interval. The median is ``None``
        without any step, and the interval is ``None`` with fewer than 6 steps.
    steps : DataFrame
        The steps in order. Each row is one step. In runs with more than 100,000 steps, a row covers several consecutive
        steps (`steps` is their number), and a profiled window is also one row (`profiled`). `wall_ms`, `data_ms` (the
        part spent waiting for data) and `device_ms` (the time between the ends of steps on an accelerator) belong to
        one of the row's steps, which is chosen at random; for a window, they are the medians of its `timed_steps`.
        `sum_wall_ms`, `sum_data_ms` and `sum_other_ms` (between steps) are sums, and `slowest_ms`, `slowest_data_ms`
        and `slowest_step` describe the slowest step.
    memory : DataFrame
        Occasional memory readings: `t_s` since the start, the preceding `step`, `resident_bytes` and `allocated_bytes`.
    phases : DataFrame
        How the run's time was spent: data, step, other (between steps) and profiled windows, which add up to the whole.
    findings : DataFrame
        What slowed the run down, most important first; the columns are those of `Profile.findings`.
    slow : DataFrame
        Steps that are far slower than their neighbours, slowest first, with the milliseconds that they lost.
    tried : list of dict
        The levers that were tried during the run, with one entry for each lever and one more for the combination that
        is kept: ``lever``, ``verdict``, ``ratio`` to the run's own step with its ``interval``, ``values``, ``saves_ms``
        per step, ``setup_s``, the number of steps that were ``left``, whether the lever was ``kept``, ``why_not``, and
        the lines of ``code`` that enable it permanently.
    windows : DataFrame
        The profiled windows, and whether each was `typical` of the run, that is, 0.8 to 1.25 × its median.
    """

    def __init__(self, recorded: Recorded, outcome: Outcome | None = None) -> None:
        self._recorded, self._first_outcome = recorded, outcome
        steps = steps_frame(recorded.rows, recorded.windows)
        super().__init__(steps, memory_frame(recorded.readings), recorded.facts)

    @property
    def verdict(self) -> str:
        """What slowed the run down, in a few words; "Steady" if nothing did, or a note about too few steps."""
        return self.judgement.verdict.verdict.partition(":")[0]

    @property
    def sentences(self) -> list[str]:
        """The verdict with its largest possible saving and its reasons, the other findings, and caveats."""
        document, evidence = self._document(), self.findings["evidence"]
        verdict = document.verdict
        return list(dict.fromkeys([f"{verdict.sentence}.", *filter(None, [verdict.why]), *evidence, *document.notes]))

    @property
    def next(self) -> str | None:
        """A recommendation; ``None`` if nothing stands out."""
        return self.judgement.verdict.next or None

    def compare(self, other: RunSummary, *, equal_within: float = 0.02) -> RunComparison:
        """Compare another run with this one.

        Parameters
        ----------
        other : RunSummary
        equal_within : float
            The relative difference between step times that does not matter.
        """
        return RunComparison(self, other, equal_within)

    def save(self, path: str | Path) -> Path:
        """Save the run atomically to the folder `path`, as Parquet and JSON files that `perfnb.load` reads.

        Raises
        ------
        RecordingError
            If `path` contains something else, or cannot be written.
        """
        kept = self._recorded
        frames = {
            name: pd.DataFrame(getattr(kept, name), columns=list(columns), dtype="int64")
            for name, columns in _TABLES.items()
        }
        return store.save(RUN, frames, kept.facts, path, outcome=self._first_outcome or self._outcome())

    def log_to(self, target: Any, step: int | None = None) -> list[str]:
        """Log the figures, report and verdict to an experiment tracker's run, like `Profile.log_to`.

        The names of the figures start with ``perfnb/run/``, as in ``perfnb/run/step_ms``.
        """
        return log_result(Logged("run", self, self._first_outcome or self._outcome()), target, step)

    def _outcome(self) -> Outcome:
        """Return what slowed the run down as facts with a date."""
        facts = self._recorded.facts
        peaks = [facts[f"peak_{which}_bytes"] for which in ("allocated", "resident")]
        return make_outcome(
            self.name,
            origin(),
            verdict=self.verdict,
            findings=self.findings,
            row=0 if len(self.findings) else None,
            step_ms=self.median_ms,
            interval_ms=self.ci_ms,
            data_share=self.wait.estimate,
            peak_bytes=next((peak for peak in peaks if peak >= 0), None),
        )

    def show(self) -> None:
        """Display the run in a notebook, or print it elsewhere."""
        self._ipython_display_()

    def _document(self) -> Document:
        return run_document(self)


class RunComparison(RunChanges, Documented):
    """The changes between two runs, with intervals that are computed over blocks of steps.

    Attributes
    ----------
    verdict : str
        The verdict on the second run compared with the first: ``faster``, ``slower``, ``same`` or ``inconclusive``.
    ratio : float or None
        The second run's median step time divided by the first run's; ``None`` without steps.
    ratio_ci : tuple of float or None
        The ratio's 95 % interval; ``None`` with too few steps.
    step : DataFrame
        Rows for ``step`` (median), ``mean step``, ``waiting for data``, ``working`` and ``between steps`` (means per
        step). The columns are the two runs' times `a_ms` and `b_ms`, `change_ms` with its 95 % interval from `low_ms`
        to `high_ms`, and the `ratio` with its interval from `ratio_low` to `ratio_high`.
    memory : DataFrame
        Both runs' peak memory and growth per step, and the change. Peaks have no interval.
    """

    def __init__(self, a: RunSummary, b: RunSummary, equal_within: float = 0.02) -> None:
        for run in (a, b):
            if not isinstance(run, RunSummary):
                raise TypeError(f"a run can only be compared with another run, not with {shown(run)}.")
        within = finite(equal_within)
        if within is None or not 0 <= within < 1:
            raise ValueError(f"equal_within must be between 0 and 1 (0.02 is 2 %), not {shown(equal_within)}.")
        super().__init__(a, b, within)

    @property
    def sentences(self) -> list[str]:
        """The changes as sentences, most important first."""
        document = self._document()
        return [f"{document.verdict.sentence}.", *filter(None, [document.verdict.why]), *document.notes]

    def _document(self) -> Document:
        return comparison_document(self)


def summarise(recorder: RunRecorder) -> RunSummary | None:
    """Summarise the run so far; return ``None`` before the first step."""
    recorded = recorder.recorded()
    return RunSummary(recorded) if recorded.facts["steps"] else None


def place_of_run(path: str | Path) -> Path:
    """Return a run's folder, given this folder or the folder where a loop saved its profiles."""
    source = usable(path)
    return source if RUN.is_at(source) or not RUN.is_at(source / RUN_FOLDER) else source / RUN_FOLDER


def profiles_beside(path: str | Path) -> list[str]:
    """Return the paths of the profiles in a folder that also contains a run or several ranks' runs.

    The result is empty if the folder contains no run.
    """
    folder = usable(path)
    if not any(kind.is_at(folder / RUN_FOLDER) for kind in (RUN, RANKS)):
        return []
    found = [one for one in sorted(folder.glob("step_*")) if PROFILE.is_at(one) or RANKS.is_at(one)]
    return [escape.plain(str(one), 200) for one in found]


def load_run(path: str | Path) -> RunSummary:
    """Read a run that `RunSummary.save` wrote.

    Raises
    ------
    RecordingError
        If the folder is missing or damaged.
    """
    from perfnb.loop.record import Recorded

    source = place_of_run(path)
    saved = SavedFolder(RUN, source)
    tables: dict[str, Any] = {name: saved.frame(name).to_numpy("int64") for name in _TABLES}
    steps = pd.DataFrame(tables["rows"], columns=list(COLUMNS))
    if any((steps[f"{which}_data_ns"] > steps[f"{which}_wall_ns"]).any() for which in ("sum", "one")):
        raise RecordingError(f"{source} is damaged: a step's wait for data is longer than the step itself.")
    try:
        return RunSummary(Recorded(**tables, facts=saved.facts), saved.outcome)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise RecordingError(f"{source} is damaged: its steps are not valid steps of a run ({error}).") from error


LOADABLE = Loadable(lambda path: RUN.is_at(place_of_run(path)), lambda path, *_: load_run(path))
