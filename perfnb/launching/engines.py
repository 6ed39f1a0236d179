"""Run the ranks of a job on existing engines, with one rank per engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfnb.arguments import shown
from perfnb.draw import escape
from perfnb.errors import CaptureError
from perfnb.launching.engine import run_on_engine
from perfnb.launching.job import FollowedRanks, of_loopback
from perfnb.launching.job_folder import STOP, tell
from perfnb.launching.order import Order
from perfnb.quantities import counted
from perfnb.shell import print_text

#: The number of seconds that engines have to stop.
_PATIENCE_S = 10.0


def chosen_engines(executor: Any, ranks: int) -> tuple[Any, list[int]]:
    """Return an executor's client, and the ids of the engines that will run a job.

    If the executor is a client, these are its first engines. If it is a view, these are the engines of the view.

    Raises
    ------
    TypeError
        If `executor` is not an ipyparallel client or view.
    CaptureError
        If the executor does not have enough engines.
    """
    client = getattr(executor, "client", executor)
    targets = getattr(executor, "targets", None)
    if not hasattr(client, "ids") or not hasattr(type(client), "__getitem__"):
        raise TypeError(f"executor must be an ipyparallel Client or DirectView, not {shown(executor)}.")
    ids = [targets] if isinstance(targets, int) else list(targets if isinstance(targets, (list, tuple)) else client.ids)
    if len(ids) < ranks:
        raise CaptureError(
            f"Each of the {ranks} ranks needs its own engine, but the executor has {counted(len(ids), 'engine')}."
        )
    return client, ids[:ranks]


class EngineJob(FollowedRanks):
    """A job whose ranks run on existing engines. The engines continue to run after the job."""

    def __init__(
        self, folder: Path, order: Order, ranks: int, env: Mapping[str, str], note: str, executor: Any
    ) -> None:
        super().__init__(folder, order, ranks, note)
        engines, self._ids = chosen_engines(executor, ranks)
        self._answers = [
            engines[number].apply_async(run_on_engine, str(folder), rank, ranks, {**of_loopback(), **env})
            for rank, number in enumerate(self._ids)
        ]

    def end(self) -> None:
        if not self._have_ended():
            with suppress(OSError):
                tell(self._folder / STOP, "")
            self._wait_for(self._have_ended, _PATIENCE_S)
        gone = self._missing()
        left = [
            str(self._ids[rank]) for rank, answer in enumerate(self._answers) if not answer.ready() and rank not in gone
        ]
        if left:
            print_text(
                f"perfnb: engine {', '.join(left)} did not stop within {_PATIENCE_S:.0f} seconds and may still be "
                "running its rank. Restart it before you use it again."
            )

    def _have_ended(self) -> bool:
        gone = self._missing()
        return all(answer.ready() or rank in gone for rank, answer in enumerate(self._answers))

    def _how_it_ended(self) -> str:
        for rank in self._missing():
            return f"Engine {self._ids[rank]}, which ran rank {rank} of {self._ranks}, has ended."
        for rank, answer in enumerate(self._answers):
            if answer.ready():
                try:
                    answer.get()
                except Exception as error:
                    said = escape.plain(f"{type(error).__name__}: {error}", 500)
                    return f"Engine {self._ids[rank]} could not run rank {rank} of {self._ranks}: {said}"
        return "The engines ended before all profiles were complete."
