"""Log a result to a run in an experiment tracker: MLflow, Weights & Biases, TensorBoard or Aim.

No tracker is imported. Instead, the methods of a target show what the tracker supports. If a tracker's class is needed,
it is taken from the tracker's module, which must already be loaded if a run exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from perfnb.arguments import require_count, shown
from perfnb.draw import escape
from perfnb.draw.documented import Documented
from perfnb.errors import PerfnbError
from perfnb.quantities import known
from perfnb.recording.outcome import Outcome

#: The module names of the trackers whose open runs can be found.
FOUND = ("mlflow", "wandb")
#: The maximum length of an exception's text that is quoted in a note.
_LONGEST = 200


@dataclass(frozen=True)
class Logged:
    """The parts of a result that are logged.

    Attributes
    ----------
    kind : str
        The second part of every name: ``profile``, ``run`` or ``ab_test``.
    result : Documented
        The result whose page is logged as the report.
    outcome : Outcome
        The outcome, which provides the figures and the verdict.
    more : mapping of str to float or None
        Additional figures that are not in the outcome.
    layers : DataFrame or None
        The table of layers, if there is one.
    """

    kind: str
    result: Documented
    outcome: Outcome
    more: Mapping[str, float | None] = field(default_factory=dict)
    layers: pd.DataFrame | None = None

    def name(self, what: str) -> str:
        """Return the name of a figure, tag or table.

        The name contains only letters, digits, underscores and slashes, which all trackers accept.
        """
        return f"perfnb/{self.kind}/{what}"

    @property
    def scalars(self) -> dict[str, float]:
        """The figures, keyed by name. Unknown figures are omitted."""
        found, (low, high) = self.outcome, self.outcome.step_ci_ms or (None, None)
        ratio_low, ratio_high = found.ratio_ci or (None, None)
        figures = {
            **{"step_ms": found.step_ms, "step_ms_low": low, "step_ms_high": high},
            **{"ratio": found.ratio, "ratio_low": ratio_low, "ratio_high": ratio_high},
            **{"data_share": found.data_share, "peak_bytes": found.peak_bytes, **self.more},
        }
        return {self.name(what): number for what, value in figures.items() if (number := known(value)) is not None}


def log_result(logged: Logged, target: Any, step: int | None = None) -> list[str]:
    """Log a result, and return a sentence for each part that could not be logged.

    Raises
    ------
    TypeError
        If `target` is not a run in a tracker.
    PerfnbError
        If the tracker has no open run.
    """
    if step is not None:
        require_count("step", step, 0)
    tracker = _tracker(target)
    notes: list[str] = []
    for what, log in tracker(target, logged, step):
        try:
            log()
        except Exception as error:  # if one part fails, the others must still be logged
            kind = "" if isinstance(error, _NotTakenError) else f"{type(error).__name__}: "
            notes.append(f"The tracker did not accept {what}: {kind}{escape.plain(error, _LONGEST).rstrip('.')}.")
    return notes


def open_runs(names: Iterable[str] = FOUND) -> list[Any]:
    """Return the open runs of all trackers that are loaded in this process.

    If no MLflow run is open, the last MLflow run is returned.
    """
    found: list[Any] = []
    for name in names:
        module: Any = sys.modules.get(name)
        if name == "mlflow" and module is not None:
            found += [module.active_run() or module.last_active_run()]
        elif module is not None:
            found += [getattr(module, "run", None)]
    return [run for run in found if run is not None]


class _NotTakenError(Exception):
    """The reason why a tracker cannot log a part."""


def _refuse(reason: str) -> None:
    raise _NotTakenError(reason)


def require_log(log: Any) -> None:
    """Reject any value that is neither a boolean nor a run in a tracker.

    Raises
    ------
    TypeError
        If the value is anything else.
    """
    if not isinstance(log, bool):
        _tracker(log)


def log_at_once(results: Iterable[tuple[Any, int | None]], targets: Iterable[Any]) -> Iterator[str]:
    """Log results at their steps to all targets.

    Callers do not handle errors, so this yields a sentence for each part that could not be logged.
    """
    runs = list(targets)
    if not runs:
        yield "Nothing was logged, because there is no tracker run in this process."
    for result, step in results if runs else ():
        for run in runs:
            try:
                yield from result.log_to(run, step)
            except Exception as error:  # a training run or a report must not be lost because of this
                yield f"Nothing was logged: {type(error).__name__}: {escape.plain(error, _LONGEST)}"


#: A description of each part, and a function that logs it.
_Parts = Iterator[tuple[str, Callable[[], Any]]]
_Tracker = Callable[[Any, Logged, int | None], _Parts]


def _tracker(target: Any) -> _Tracker:
    def has(*names: str) -> bool:
        return all(hasattr(target, name) for name in names)

    # A class has the same methods but is not a run.
    if not isinstance(target, type):
        if has("MlflowClient", "active_run") or hasattr(getattr(target, "info", None), "run_id"):
            return _mlflow
        if has("add_scalar", "add_text"):
            return _tensorboard
        if has("track", "__setitem__"):
            return _aim
        if has("log", "log_artifact", "summary") or has("Table", "Artifact", "run"):
            return _wandb
    raise TypeError(
        "log_to requires an MLflow run or the mlflow module, a W&B run, a TensorBoard SummaryWriter or an Aim run, not "
        f"{shown(target)}."
    )


def _module_of(run: Any) -> Any:
    """Return the top-level module of the tracker that created a run."""
    return sys.modules[type(run).__module__.partition(".")[0]]


def _mlflow(target: Any, logged: Logged, step: int | None) -> _Parts:
    is_module = hasattr(target, "active_run")
    run = target.active_run() if is_module else target
    if run is None:
        raise PerfnbError("MLflow has no open run to log to: call mlflow.start_run() first.")
    client, run_id = (target if is_module else _module_of(run)).MlflowClient(), run.info.run_id
    yield from _each(logged, lambda name, value: client.log_metric(run_id, name, value, step=step or 0))
    if logged.layers is not None:
        table, file = logged.layers.reset_index(), _file(logged, "layers.json", step)
        yield "the table of layers", lambda: client.log_table(run_id, data=table, artifact_file=f"perfnb/{file}")
    yield "the report", lambda: _page(logged, step, lambda path: client.log_artifact(run_id, path, "perfnb"))
    yield from _verdict(logged, lambda name, verdict: client.set_tag(run_id, name, verdict))


def _wandb(target: Any, logged: Logged, step: int | None) -> _Parts:
    run = target.run if hasattr(target, "Table") else target
    if run is None:
        raise PerfnbError("W&B has no open run to log to: call wandb.init() first.")
    latest = known(getattr(run, "step", None)) or 0
    if step is not None and step < latest:
        late = f"W&B does not accept earlier steps and is already at {latest:.0f}, where everything else was logged"
        yield f"step {step} for the figures", lambda: _refuse(late)
        step = None
    values: dict[str, Any] = {**logged.scalars}
    if logged.layers is not None:
        # W&B writes missing values of pandas' own types as text.
        values[logged.name("layers")] = _module_of(run).Table(dataframe=_known(logged.layers.reset_index(), None))
    yield "the figures and the table of layers", lambda: run.log(values, step=step)
    yield "the report", lambda: _page(logged, step, lambda path: _artifact(run, path))
    yield from _verdict(logged, lambda name, verdict: run.summary.update({name: verdict}))


def _artifact(run: Any, path: str) -> None:
    run.log_artifact(path, name=f"perfnb-{Path(path).stem}", type="profile")


def _tensorboard(writer: Any, logged: Logged, step: int | None) -> _Parts:
    yield from _each(logged, lambda name, value: writer.add_scalar(name, value, step))
    if logged.layers is not None:
        text = _markdown(logged.layers.reset_index())
        yield "the table of layers", lambda: writer.add_text(logged.name("layers"), text, step)
    yield "the report", lambda: _refuse("TensorBoard cannot display HTML, so write it with to_html")
    yield from _verdict(logged, lambda name, verdict: writer.add_text(name, verdict, step))


def _aim(run: Any, logged: Logged, step: int | None) -> _Parts:
    yield from _each(logged, lambda name, value: run.track(value, name=name, step=step))
    if logged.layers is not None:
        text, name = _markdown(logged.layers.reset_index()), logged.name("layers")
        yield "the table of layers", lambda: run.track(_module_of(run).Text(text), name=name, step=step)
    yield "the report", lambda: _page(logged, step, lambda path: _aim_file(run, path))
    yield from _verdict(logged, run.__setitem__)


def _aim_file(run: Any, path: str) -> None:
    try:
        place = run.artifacts_uri
    except TypeError:  # some versions join the location with a folder
        place = None
    if not place:  # Aim itself only prints this
        _refuse("Aim can store files only after you call run.set_artifacts_uri(...)")
    run.log_artifact(path, name=Path(path).name, block=True)  # the file is temporary


def _each(logged: Logged, log: Callable[[str, float], Any]) -> _Parts:
    for name, value in logged.scalars.items():
        yield name, partial(log, name, value)


def _verdict(logged: Logged, log: Callable[[str, str], Any]) -> _Parts:
    if logged.outcome.verdict:
        verdict = escape.plain(logged.outcome.verdict, _LONGEST)
        yield "the verdict", partial(log, logged.name("verdict"), verdict)


def _page(logged: Logged, step: int | None, log: Callable[[str], Any]) -> None:
    with TemporaryDirectory(prefix="perfnb_") as folder:
        log(str(logged.result.to_html(Path(folder, _file(logged, "html", step)))))


def _file(logged: Logged, ending: str, step: int | None) -> str:
    place = "" if step is None else f"_step_{step}"
    return f"{logged.kind}{place}{'_' if ending.startswith('layers') else '.'}{ending}"


def _markdown(table: pd.DataFrame) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *_known(table, "n/a").to_numpy()]
    return "\n".join(f"| {' | '.join(escape.markdown(cell) for cell in row)} |" for row in rows)


def _known(table: pd.DataFrame, instead: str | None) -> pd.DataFrame:
    """Return the table as plain Python objects, with missing values replaced."""
    return table.astype(object).where(table.notna(), instead)
