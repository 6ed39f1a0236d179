"""Define `Ranks`: the profiles of several ranks of one job, which can be displayed side by side, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.collectives import collective_table
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.errors import RecordingError, TraceError
from perfnb.files import locate
from perfnb.findings.finding import Finding, finding_table, found_by
from perfnb.profile.profile import Profile
from perfnb.ranks.buckets import BucketSizes, bucket_sizes
from perfnb.ranks.findings import IN_ALL, RULES, RanksFacts, job_report, without_waiting
from perfnb.ranks.summary import RanksSummary, summarize_ranks, with_waits
from perfnb.ranks.view import JobSteps, ranks_document
from perfnb.recording import store
from perfnb.recording.job import RANKS, rank_folder
from perfnb.recording.loadable import Loadable
from perfnb.recording.reading import in_rank_order, numbered, rank_of_name, read_recordings, trace_files
from perfnb.recording.recording import Recording
from perfnb.recording.saved_profile import PROFILE, SavedProfile
from perfnb.recording.schema import conform
from perfnb.recording.store import SavedFolder
from perfnb.trace.trace_file import Limits

#: The report includes the ranks' own findings up to this number of ranks, because each requires a complete analysis.
_MOST_ASKED = 8


class Ranks(Documented):
    """The profiles of several ranks of one job.

    Notebooks display it as a report, and ``ranks[3]`` is the profile of rank 3. Each table is the concatenation of the
    tables of all profiles, with an additional column ``rank``.
    """

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._profiles = {profile.meta["rank"]: profile for profile in profiles}

    @property
    def ranks(self) -> list[int]:
        """The rank numbers."""
        return list(self._profiles)

    def __getitem__(self, rank: int) -> Profile:
        return self._profiles[rank]

    def __iter__(self) -> Iterator[Profile]:
        return iter(self._profiles.values())

    def __len__(self) -> int:
        return len(self._profiles)

    @property
    def events(self) -> pd.DataFrame:
        """The events of all ranks. ``start_ns`` is relative to the start of each rank's own first step."""
        parts = [profile.events for profile in self]
        columns = {}
        for name in parts[0].columns:
            if isinstance(parts[0][name].dtype, pd.CategoricalDtype):
                columns[name] = pd.api.types.union_categoricals([part[name].array for part in parts])
            else:
                columns[name] = pd.concat([part[name] for part in parts], ignore_index=True).array
        return pd.DataFrame(columns)

    @property
    def steps(self) -> pd.DataFrame:
        """The steps of all ranks."""
        return pd.concat([profile.steps for profile in self], ignore_index=True)

    @property
    def gpu_time(self) -> pd.DataFrame:
        """GPU time of each rank and device over the whole trace."""
        return pd.concat([profile.gpu_time for profile in self], ignore_index=True)

    @property
    def gpu_steps(self) -> pd.DataFrame:
        """GPU time of each rank and device, per step."""
        return pd.concat([profile.gpu_steps for profile in self], ignore_index=True)

    @property
    def gpu_idle(self) -> pd.DataFrame:
        """The reasons why each rank's GPUs were idle, per step."""
        return pd.concat([profile.gpu_idle for profile in self], ignore_index=True)

    @property
    def kernels(self) -> pd.DataFrame:
        """Calls and time for each rank and GPU kernel."""
        return self._with_rank("kernels")

    @property
    def collectives(self) -> pd.DataFrame:
        """The collectives of all ranks, as in `Profile.collectives`.

        Waiting time and transfer time are separate if the collectives could be matched between ranks.
        """
        return self._collectives.copy()

    @cached_property
    def _collectives(self) -> pd.DataFrame:
        parts = []
        for rank, profile in self._profiles.items():
            if profile._is_reduced or profile._recording.events.empty:
                continue
            part = collective_table(*self._calls(rank))
            part.insert(0, "rank", rank)
            parts.append(part)
        if not parts:
            return conform(pd.DataFrame(), "collectives").assign(rank=pd.array([], dtype="int64"))
        return pd.concat(parts, ignore_index=True)

    def _calls(self, rank: int) -> tuple[pd.DataFrame, int]:
        """Return a rank's collectives with their waiting times, and its number of steps."""
        analysis = self._profiles[rank]._analysis
        assert analysis.attribution is not None  # callers skip ranks without events
        assert analysis.collectives is not None
        return with_waits(analysis.collectives, self._summary, rank), analysis.attribution.steps

    @cached_property
    def _buckets(self) -> BucketSizes | None:
        """The possible saving from other DDP bucket sizes, computed from the first rank with matched collectives."""
        return bucket_sizes(*self._calls(self._summary.matched[0])) if self._summary.matched else None

    @property
    def ops(self) -> pd.DataFrame:
        """Calls and time for each rank and operator."""
        return self._with_rank("ops")

    @property
    def layers(self) -> pd.DataFrame:
        """Time for each rank and layer."""
        return self._with_rank("layers")

    @property
    def phases(self) -> pd.DataFrame:
        """Time for each rank and phase."""
        return self._with_rank("phases")

    @property
    def findings(self) -> pd.DataFrame:
        """The findings about each rank, and about the whole job, where ``rank`` is missing.

        Findings about the job report a straggler, unbalanced input, unsuitable bucket sizes, and exposed copies and
        communication.
        """
        return self._findings_of_job_and(self._profiles)

    def _findings_of_job_and(self, ranks: Iterable[int], *more: Finding) -> pd.DataFrame:
        tables: dict[int | None, pd.DataFrame] = {
            None: finding_table([*self._found_in_job, *more], self._facts.step_ms)
        }
        tables |= {rank: self._findings_of(rank) for rank in ranks}
        kept = {rank: table for rank, table in tables.items() if len(table)} or {None: tables[None]}
        numbered = [table.assign(rank=pd.array([rank] * len(table), dtype="Int64")) for rank, table in kept.items()]
        whole = pd.concat(numbered, ignore_index=True)
        whole.insert(0, "rank", whole.pop("rank"))
        return whole.sort_values("bound_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)

    @cached_property
    def _facts(self) -> RanksFacts:
        """The facts that the rules are based on.

        They refer to the mean timed step if all ranks have timed steps, and otherwise to the mean traced step.
        """
        medians = [fmt.known(profile.timing.median_ms) for profile in self]
        known = [ms for ms in medians if ms is not None]
        is_timed = known and len(known) == len(medians)
        step_ms = sum(known) / len(known) if is_timed else float(self._summary.times["wall_ms"].mean())
        return RanksFacts(self._summary, self._buckets, step_ms)

    @cached_property
    def _found_in_job(self) -> list[Finding]:
        return found_by(RULES, self._facts, self._facts.step_ms)

    def _findings_of(self, rank: int) -> pd.DataFrame:
        """Return a rank's findings, without the costs that findings about the job already cover."""
        profile = self._profiles[rank]
        late = next((one for one in self._found_in_job if one.rows[0].kind == "rank"), None)
        if late is None or profile._is_reduced or profile._recording.events.empty:
            return profile.findings
        return without_waiting(profile.findings, self._calls(rank)[0], rank, late)

    @property
    def times(self) -> pd.DataFrame:
        """How each rank's GPUs spent each step, in milliseconds.

        If the collectives run on the host (gloo, MPI), the table describes the host instead. The columns include the
        time spent computing, communicating, doing both at once (``overlap_ms``), communicating without computing
        (``exposed_ms``), copying, only copying (``copying_ms``), idle, and waiting in collectives for the last rank to
        arrive (``waiting_ms``, if the collectives could be matched between ranks).
        """
        return self._summary.times.copy()

    @property
    def clocks(self) -> pd.DataFrame:
        """How far each rank's clock is ahead of the clock of rank ``reference``, computed from matched collectives.

        ``reference`` is the first rank that shares collectives with this rank, directly or through other ranks. The
        values are missing if no collectives could be matched, or if several offsets are possible.
        """
        return self._summary.clocks.copy()

    @property
    def straggler(self) -> int | None:
        """The rank that the other ranks wait for in collectives, or ``None`` if no loaded rank stands out."""
        return self._summary.straggler

    @property
    def meta(self) -> dict[int, dict[str, Any]]:
        """The `Profile.meta` of each rank."""
        return {rank: profile.meta for rank, profile in self._profiles.items()}

    def compare(self, other: object) -> NoReturn:
        """Raise an error, because ranks must be compared one by one: ``a[0].compare(b[0])``.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            "Several ranks cannot be compared at once, because the waits of each rank depend on the other ranks. "
            "Compare individual ranks instead: a[0].compare(b[0])."
        )

    def save(self, path: str | Path) -> Path:
        """Write the profiles to the folder `path`, each to its own subfolder. `perfnb.load` reads them back.

        Raises
        ------
        RecordingError
            If the folder contains something else, or if it cannot be written.
        """
        parts = {rank_folder(rank): profile.save for rank, profile in self._profiles.items()}
        return store.save(RANKS, {}, {"ranks": self.ranks}, path, parts=parts)

    def _with_rank(self, table: str) -> pd.DataFrame:
        parts = []
        for rank, profile in self._profiles.items():
            part: pd.DataFrame = getattr(profile, table).reset_index()
            part.insert(0, "rank", rank)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def _summary(self) -> RanksSummary:
        return summarize_ranks([profile._recording for profile in self])

    def _document(self) -> Document:
        facts, times = self._facts, {rank: profile.timing for rank, profile in self._profiles.items()}
        medians = {rank: fmt.known(timing.median_ms) for rank, timing in times.items()}
        timed = {rank: ms for rank, ms in medians.items() if ms is not None}
        traced = self._summary.times
        count = min((len(times[rank].samples_ms) for rank in timed), default=0)
        steps = JobSteps(timed, count, traced["step"].nunique(), float(traced["wall_ms"].mean()))
        if len(timed) == len(self) <= _MOST_ASKED:  # cheap, because there are few ranks and perfnb profiled them
            table = self._findings_of_job_and(self._profiles)
        else:
            table = self._findings_of_job_and((), *found_by(IN_ALL, facts, facts.step_ms))
        return ranks_document(self._summary, steps, job_report(facts, table), self._buckets)


def load_ranks(path: Path) -> Ranks:
    """Load ranks from a folder that was written by `Ranks.save` or by the ranks of a job.

    Ranks that did not save anything in the folder are left out.

    Raises
    ------
    RecordingError
        If the folder contains no ranks, or if they are damaged or were saved by a newer version.
    """
    facts = SavedFolder(RANKS, path).facts
    ranks = facts["ranks"]
    if len(set(ranks)) < len(ranks):
        raise RecordingError(f"{path / RANKS.file} is damaged: meta.ranks contains a rank twice.")
    if facts.get("apart"):
        ranks = [rank for rank in ranks if locate(path / rank_folder(rank)).exists()]
    if not ranks:
        raise RecordingError(f"{path} is the folder of a job, but none of its ranks has saved a profile in it.")
    profiles = [SavedProfile(locate(path / rank_folder(rank))) for rank in ranks]
    for rank, profile in zip(ranks, profiles, strict=True):
        if (own := profile.meta.get("rank", 0)) != rank:
            file = path / rank_folder(rank) / PROFILE.file
            raise RecordingError(f"{file} is damaged: its meta.rank is {own}, not {rank}.")
    return Ranks([Profile(one) for one in profiles])


def of_recordings(recordings: Sequence[Recording]) -> Ranks:
    """Return the ranks from a single trace file."""
    return Ranks(list(map(Profile, in_rank_order(recordings))))


def load_several(paths: Sequence[Path], limits: Limits, executor: Any = None, steps: str | None = None) -> Ranks:
    """Read several saved profiles or trace files, one for each rank, as `Ranks`.

    Raises
    ------
    RecordingError
        If a file does not exist, or if a saved profile is damaged.
    TraceError
        If a trace cannot be read, if the list is empty, or if it contains both traces and saved profiles.
    """
    if not paths:
        raise TraceError("There is nothing to load, because the list of files is empty.")
    sources = [locate(path) for path in paths]
    for one in sources:
        if not one.exists():
            raise RecordingError(f"{one} does not exist.")
    saved = [PROFILE.is_at(one) for one in sources]
    if all(saved) and steps is None:
        return _of_saved(sources)
    if all(saved):
        raise TraceError(f"The option steps only applies to traces, but {sources[0]} is a saved profile.")
    if any(saved):
        raise TraceError(
            f"{sources[saved.index(True)]} is a saved profile, but {sources[saved.index(False)]} is not. The ranks of "
            "a job must either all be saved profiles or all be traces."
        )
    with Progress() as progress:
        recordings = read_recordings(paths, limits, executor, progress.of_file(f"{len(paths):,} files"), steps)
    return Ranks(list(map(Profile, recordings)))


def _of_saved(paths: Sequence[Path]) -> Ranks:
    """Return saved profiles as ranks, which are numbered in the same way as traces."""
    profiles = [SavedProfile(path) for path in paths]
    ranks: list[int | None] = []
    for path, profile in zip(paths, profiles, strict=True):
        known = "job" in profile.meta or profile.meta.get("trace", {}).get("rank_known", False)
        ranks.append(profile.meta["rank"] if known else rank_of_name(path.name))
    in_order = sorted(zip(numbered(ranks), profiles, strict=True), key=lambda one: one[0])
    return Ranks([Profile(profile.of_rank(rank)) for rank, profile in in_order])


LOADABLE = Loadable(RANKS.is_at, lambda path, *_: load_ranks(path))
FOLDER_OF_TRACES = Loadable(
    lambda path: path.is_dir() and bool(trace_files(path)),
    lambda path, limits, executor, steps=None: load_several(trace_files(path), limits, executor, steps),
    has_steps=True,
)
