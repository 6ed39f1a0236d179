"""`RankRuns`: the runs of a job's ranks, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.loop.rank_figures import RankFigures
from perfnb.loop.run import RUN, RUN_FOLDER, RunSummary, load_run
from perfnb.loop.run_view import ranks_document
from perfnb.recording.loadable import Loadable
from perfnb.recording.reading import rank_of_name


class RankRuns(RankFigures, Documented):
    """The runs of a job's ranks, which notebooks display. ``runs[3]`` is the `RunSummary` of rank 3.

    Attributes
    ----------
    straggler : int or None
        The rank whose steps clearly wait longer for data than those of other ranks or, if there is none, the rank whose
        steps clearly work longer. The difference must be at least 5 % of the median step, with an interval above 0.
    times : DataFrame
        For each rank, ``step_ms`` (the median) and the mean time per step that is spent waiting, working and between
        steps. Profiled steps and the warm-up are excluded.
    differences : DataFrame
        How much longer each rank takes for each part of its steps than the median rank (``than``). The 95 % intervals
        from ``low_ms`` to ``high_ms`` hold simultaneously for all ranks.
    """

    def __init__(self, runs: Sequence[RunSummary]) -> None:
        known = {run.rank: run for run in runs if run.rank is not None}
        by_rank = known if len(known) == len(runs) else dict(enumerate(runs))
        self._runs: dict[int, RunSummary] = dict(sorted(by_rank.items()))
        super().__init__(self._runs)

    @property
    def ranks(self) -> list[int]:
        """The rank numbers."""
        return list(self._runs)

    def __getitem__(self, rank: int) -> RunSummary:
        return self._runs[rank]

    def __iter__(self) -> Iterator[RunSummary]:
        return iter(self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def _document(self) -> Document:
        return ranks_document(self)


def _folders(path: Path) -> list[Path]:
    """Return the folders of the ranks' runs in a folder or in its subfolder for runs."""
    for place in (path, path / RUN_FOLDER):
        if place.is_dir():
            found = [one for one in place.iterdir() if one.name.startswith("rank_") and RUN.is_at(one)]
            if found:
                return sorted(found, key=lambda one: (rank_of_name(one.name) or 0, one.name))
    return []


def load_rank_runs(path: Path) -> RankRuns:
    """Read the runs that a job's ranks saved.

    Raises
    ------
    RecordingError
        If a run is damaged.
    """
    return RankRuns([load_run(one) for one in _folders(path)])


LOADABLE = Loadable(lambda path: bool(_folders(path)), lambda path, *_: load_rank_runs(path))
