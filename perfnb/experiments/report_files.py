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
from perfnb.files import usable
from perfnb.recording import folder, raw_columns, storage
from perfnb.recording.folder import Kind
from perfnb.recording.reading import Loader
from perfnb.recording.recording import Recording
from perfnb.recording.saved_facts import Above0, Amount, Count, Environment, Noise, Whole
from perfnb.recording.text import TEXT

#: Folders of the two profiles.
SIDES = ("baseline", "candidate")
#: What is saved of the A/B test and of quality, besides the frames.
_EXPERIMENT = ("a_name", "b_name", "planned", "needed", "seed", "check", "noise", "steady", "batch_size")
_QUALITY = ("judged_by", "said", "dtype")
_LOSS = [field.name for field in fields(Loss)]


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


REPORT = Kind(
    "report", frozenset({"pairs", "losses", "table"}), frozenset({"change", "experiment", "quality"}), ReportFacts
)


def save_report(
    ab: ABFigures,
    quality: Quality,
    table: pd.DataFrame,
    profiles: Mapping[str, Recording],
    meta: Mapping[str, Any],
    path: str | Path,
) -> Path:
    """Save a report to the folder `path`, atomically; an earlier report there is replaced.

    The table is for other tools; it is not read back. `profiles` are by `SIDES`, or empty.
    """
    types = {name: TEXT if name == "name" else "float64" for name in _LOSS}
    frames = {
        "pairs": pd.DataFrame({"a_ms": ab.a_ms, "b_ms": ab.b_ms}),
        "losses": pd.DataFrame([astuple(loss) for loss in quality.losses], columns=_LOSS).astype(types),
        "table": table.reset_index(),
    }
    experiment = {name: getattr(ab, name) for name in _EXPERIMENT} | {
        "equal_within": ab.comparison.equal_within,
        "blocks": None if ab.blocks is None else asdict(ab.blocks),
    }
    facts = {**meta, "experiment": experiment, "quality": {name: getattr(quality, name) for name in _QUALITY}}
    parts = {name: (recording.frames(), recording.meta) for name, recording in profiles.items()}
    return folder.save(REPORT, frames, facts, path, parts, storage.PROFILE)


def read_report(path: str | Path) -> tuple[ABFigures, Quality, dict[str, Recording], dict[str, Any]]:
    """Read the A/B test, quality, profiles and other facts that `save_report` wrote.

    Raises
    ------
    RecordingError
        If there is no report, or it is damaged or was saved by a newer version.
    """
    source = usable(path)
    meta = folder.load_meta(REPORT, source)
    columns = {"pairs": raw_columns.PAIRS, "losses": raw_columns.LOSSES}
    frames = {name: folder.load_frame(name, its, source) for name, its in columns.items()}
    there = [name for name in SIDES if storage.PROFILE.is_at(source / name)]
    if len(there) == 1:
        missing = next(name for name in SIDES if name not in there)
        raise RecordingError(f"{source} is damaged: the profile of the {missing} is missing.")
    profiles = {name: storage.load(source / name) for name in there}
    try:
        experiment, said = meta["experiment"], meta["quality"]
        blocks = experiment.get("blocks")
        ab = ab_figures(
            *(frames["pairs"][name].astype(float).tolist() for name in ("a_ms", "b_ms")),
            equal_within=experiment["equal_within"],
            blocks=None if blocks is None else Blocks(**blocks),
            **{name: experiment[name] for name in _EXPERIMENT},
        )
        losses = tuple(
            Loss(str(name), float(candidate), *(None if math.isnan(value) else float(value) for value in rest))
            for name, candidate, *rest in frames["losses"][_LOSS].itertuples(index=False)
        )
        kept = {name: meta[name] for name in ("change", "limits", "options", "environment")}
        return ab, Quality(losses, *(said[name] for name in _QUALITY)), profiles, kept
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{source} is damaged: its figures are not those of a report ({error}).") from error


def _load(path: Path, *_: object) -> Any:
    from perfnb.experiments.report import load_report

    return load_report(path)


LOADER = Loader("saved reports", REPORT.is_at, _load)
