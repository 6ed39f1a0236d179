"""Save and load a report on a change: a folder of Parquet files and one JSON file, with a profile of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.bench.design import ABFigures, Blocks, ab_figures
from perfnb.bench.quality import Loss
from perfnb.errors import RecordingError
from perfnb.experiments.decision import Quality
from perfnb.profile.profile import Profile
from perfnb.recording import store
from perfnb.recording.frame_files import Column
from perfnb.recording.outcome import make_outcome
from perfnb.recording.reading import Loader
from perfnb.recording.saved_facts import Above0, Amount, Count, Environment, Noise, Whole
from perfnb.recording.saved_profile import PROFILE, SavedProfile
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT

#: Folders of the two profiles.
SIDES = ("baseline", "candidate")
#: What is saved of the A/B test and of quality, besides the frames.
_EXPERIMENT = ("a_name", "b_name", "planned", "needed", "seed", "check", "noise", "steady", "batch_size")
_QUALITY = ("judged_by", "said", "dtype")
_LOSS = [field.name for field in fields(Loss)]
_MS, _LIMIT = Column("float64", low=0, high=1e15), Column("float64", missing=True)
#: The table is for other tools and is not read back.
_FRAMES = {
    "pairs": {"a_ms": _MS, "b_ms": _MS},
    "losses": {name: Column(TEXT) if name == "name" else _LIMIT for name in _LOSS},
    "table": {},
}


class _Blocks(TypedDict):
    who: str
    lead: Count
    turns: Count
    round_s: Amount | None


class _Experiment(TypedDict):
    a_name: str
    b_name: str
    equal_within: Above0
    planned: Count
    needed: Count | None
    seed: Whole | None
    check: str | None
    noise: Noise
    steady: Any
    batch_size: Count | None
    blocks: NotRequired[_Blocks | None]  # missing in reports of earlier versions


class _Quality(TypedDict):
    judged_by: str
    said: str
    dtype: str


class ReportFacts(TypedDict):
    """What a saved report contains besides its frames."""

    change: str
    limits: dict[str, Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]]
    environment: Environment
    options: dict[str, Any]
    experiment: _Experiment
    quality: _Quality


REPORT = SavedKind("report", ReportFacts, _FRAMES, parts=PROFILE)


def save_report(
    ab: ABFigures,
    quality: Quality,
    table: pd.DataFrame,
    profiles: Mapping[str, Profile],
    meta: Mapping[str, Any],
    path: str | Path,
) -> Path:
    """Save a report to the folder `path`, atomically; an earlier report there is replaced.

    `profiles` are by `SIDES`, or empty.
    """
    losses = pd.DataFrame([astuple(loss) for loss in quality.losses], columns=_LOSS)
    frames = {
        "pairs": pd.DataFrame({"a_ms": ab.a_ms, "b_ms": ab.b_ms}),
        "losses": losses.astype({name: column.dtype for name, column in _FRAMES["losses"].items()}),
        "table": table.reset_index(),
    }
    experiment = {name: getattr(ab, name) for name in _EXPERIMENT} | {
        "equal_within": ab.comparison.equal_within,
        "blocks": None if ab.blocks is None else asdict(ab.blocks),
    }
    facts = {**meta, "experiment": experiment, "quality": {name: getattr(quality, name) for name in _QUALITY}}
    outcome = make_outcome(
        meta["change"] or ab.b_name,
        meta["environment"],
        verdict=meta["decision"],
        step_ms=ab.b.median_ms,
        interval_ms=ab.b.ci_ms,
        ratio=ab.comparison.ratio,
        ratio_interval=ab.comparison.ratio_ci,
        peak_bytes=table["candidate"].get("peak_memory_bytes"),
        batch_size=ab.batch_size,
    )
    parts = {name: profile.save for name, profile in profiles.items()}
    return store.save(REPORT, frames, facts, path, outcome=outcome, parts=parts)


def read_report(path: str | Path) -> tuple[ABFigures, Quality, dict[str, SavedProfile], dict[str, Any]]:
    """Read the A/B test, quality, profiles and other facts that `save_report` wrote.

    Raises
    ------
    RecordingError
        If there is no report, or it is damaged or was saved by a newer version.
    """
    saved = SavedFolder(REPORT, path)
    source, meta, pairs, rows = saved.source, saved.facts, saved.frame("pairs"), saved.frame("losses")
    profiles = {name: SavedProfile(source / name) for name in SIDES if PROFILE.is_at(source / name)}
    if len(profiles) == 1:
        missing = next(name for name in SIDES if name not in profiles)
        raise RecordingError(f"{source} is damaged: the profile of the {missing} is missing.")
    try:
        experiment, said = meta["experiment"], meta["quality"]
        blocks = experiment.get("blocks")
        ab = ab_figures(
            *(pairs[name].tolist() for name in ("a_ms", "b_ms")),
            equal_within=experiment["equal_within"],
            blocks=None if blocks is None else Blocks(**blocks),
            **{name: experiment[name] for name in _EXPERIMENT},
        )
        losses = tuple(
            Loss(str(name), float(candidate), *(None if math.isnan(value) else float(value) for value in rest))
            for name, candidate, *rest in rows[_LOSS].itertuples(index=False)
        )
        kept = {name: meta[name] for name in ("change", "limits", "options", "environment")}
        return ab, Quality(losses, *(said[name] for name in _QUALITY)), profiles, kept
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{source} is damaged: its figures are not those of a report ({error}).") from error


def _load(path: Path, *_: object) -> Any:
    from perfnb.experiments.report import load_report

    return load_report(path)


LOADER = Loader("saved reports", REPORT.is_at, _load)
