"""Save and load a report on a change: a folder of Parquet files and one JSON file, with a profile of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.bench.pairs import ABFigures, Blocks, ab_figures
from perfnb.errors import RecordingError
from perfnb.experiments.decision import Loss
from perfnb.experiments.report_table import Quality
from perfnb.files import usable
from perfnb.recording import folder, raw_columns, storage
from perfnb.recording.folder import Kind
from perfnb.recording.loaders import Loader
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


class _Experiment(TypedDict, total=False):
    a_name: Required[str]
    b_name: Required[str]
    equal_within: Required[Above0]
    planned: Required[Count]
    needed: Required[Count | None]
    seed: Required[Whole | None]
    check: Required[str | None]
    noise: Required[Noise]
    steady: Required[Any]
    batch_size: Required[Count | None]
    blocks: _Blocks | None


class _Quality(TypedDict):
    judged_by: str
    said: str
    dtype: str


class ReportFacts(TypedDict, total=False):
    """What a saved report contains besides its frames."""

    change: Required[str]
    limits: Required[dict[str, Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]]]
    environment: Required[Environment]
    options: Required[dict[str, Any]]
    experiment: Required[_Experiment]
    quality: Required[_Quality]


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
    return folder.save_all(REPORT, storage.PROFILE, parts, facts, path, frames)


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
        blocks = experiment.get("blocks")  # missing in reports of earlier versions
        ab = ab_figures(
            *([float(value) for value in frames["pairs"][name]] for name in ("a_ms", "b_ms")),
            equal_within=float(experiment["equal_within"]),
            blocks=None if blocks is None else Blocks(**blocks),
            **{name: experiment[name] for name in _EXPERIMENT},
        )
        losses = tuple(
            Loss(str(name), float(candidate), *(None if math.isnan(value) else float(value) for value in rest))
            for name, candidate, *rest in frames["losses"][_LOSS].itertuples(index=False)
        )
        kept = {
            "change": str(meta["change"]),
            "limits": {str(name): float(limit) for name, limit in meta["limits"].items()},
            **{name: dict(meta[name]) for name in ("options", "environment")},
        }
        return ab, Quality(losses, *(str(said[name]) for name in _QUALITY)), profiles, kept
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{source} is damaged: its figures are not those of a report ({error}).") from error


def _load(path: Path, *_: object) -> Any:
    from perfnb.experiments.report import load_report

    return load_report(path)


LOADER = Loader("saved reports", REPORT.is_at, _load)
