"""The ranks of a job on engines that run already, one on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from perfnb.arguments import shown
from perfnb.draw import escape
from perfnb.errors import CaptureError
from perfnb.launching.child import STOP, tell
from perfnb.launching.engine import run_on_engine
from perfnb.launching.job import FollowedRanks
from perfnb.launching.order import Order
from perfnb.shell import print_text

#: Seconds that engines have to stop.
_PATIENCE_S = 10.0


class Answer(Protocol):
    """What an engine will return, as ipyparallel's AsyncResult."""

    def ready(self) -> bool:
        """Whether it has."""

    def get(self) -> Any:
        """The value, or raise the engine's exception."""


class Engine(Protocol):
    """One engine, as ipyparallel's DirectView of it."""

    def apply_async(self, function: Any, *args: Any) -> Answer:
        """Call a function on it, in its main thread."""


class Engines(Protocol):
    """Running engines, as ipyparallel's Client."""

    ids: Sequence[int]

    def __getitem__(self, engine: int) -> Engine: ...


def chosen_engines(executor: Any, ranks: int) -> tuple[Engines, list[int]]:
    """The engines of an executor that carry a job: a client's first ones, or those of a view.

    Raises
    ------
    TypeError
        If it has no engines.
    CaptureError
        If it has too few.
    """
    client = getattr(executor, "client", executor)
    targets = getattr(executor, "targets", None)
    if not hasattr(client, "ids") or not hasattr(type(client), "__getitem__"):
        raise TypeError(f"executor must be an ipyparallel Client or DirectView, not {shown(executor)}.")
    ids = list(targets) if isinstance(targets, (list, tuple)) else list(client.ids)
    ids = [targets] if isinstance(targets, int) else ids
    if len(ids) < ranks:
        have = "1 engine" if len(ids) == 1 else f"{len(ids):,} engines"
        raise CaptureError(f"{ranks} ranks need an engine each, but the executor has {have}.")
    return cast("Engines", client), ids[:ranks]


class EngineJob(FollowedRanks):
    """Ranks on running engines, which go on afterwards."""

    def __init__(
        self,
        folder: Path,
        order: Order,
        ranks: int,
        env: Mapping[str, str],
        executor: Any,
        note: str = "",
    ) -> None:
        super().__init__(folder, order, ranks, note)
        engines, self._ids = chosen_engines(executor, ranks)
        self._answers: list[Answer] = []
        for rank, number in enumerate(self._ids):
            self._answers.append(engines[number].apply_async(run_on_engine, str(folder), rank, ranks, dict(env)))

    def end(self) -> None:
        if not self._have_ended():
            with suppress(OSError):
                tell(self._folder / STOP, "")
            self._wait_for(self._have_ended, _PATIENCE_S)
        left = [
            str(number)
            for rank, (number, answer) in enumerate(zip(self._ids, self._answers, strict=False))
            if not answer.ready() and rank not in self._missing()
        ]
        if left:
            print_text(
                f"perfnb: engine {', '.join(left)} did not stop within {_PATIENCE_S:.0f} seconds, and may still run "
                "its rank. Restart it before it is used again."
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
        return "The engines ended before the profiles were complete."
