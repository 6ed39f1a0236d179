"""Save and load a report on a change, as a folder with Parquet files, a JSON file, and the profiles of both steps."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.bench.paired_times import BlockPlan, PairedTimes, paired_times
from perfnb.bench.quality import Loss
from perfnb.errors import RecordingError
from perfnb.experiments.compared_figures import SIDES, Quality
from perfnb.recording import store
from perfnb.recording.frame_files import SavedColumn
from perfnb.recording.outcome import Outcome, make_outcome
from perfnb.recording.saved_facts import Above0, Amount, Count, Environment, Noise
from perfnb.recording.saved_profile import PROFILE, SavedProfile
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT

if TYPE_CHECKING:
    from perfnb.experiments.ab_test import ABTest

_LOSS = [field.name for field in fields(Loss)]
_MS, _LIMIT = SavedColumn("float64", low=0, high=1e15), SavedColumn("float64", missing=True)
#: The table is intended for other tools and is never read by perfnb.
_FRAMES = {
    "pairs": {"a_ms": _MS, "b_ms": _MS},
    "losses": {name: SavedColumn(TEXT) if name == "name" else _LIMIT for name in _LOSS},
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
    needed: Count
    noise: Noise
    steady: Any
    batch_size: Count | None
    blocks: NotRequired[_Blocks | None]


class _Quality(TypedDict):
    judged_by: str
    said: str
    dtype: str


class ReportFacts(TypedDict):
    """The contents of a saved report, except its frames."""

    change: str
    limits: dict[str, Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]]
    environment: Environment
    options: dict[str, Any]
    experiment: _Experiment
    quality: _Quality


#: The fields of `ABTest`, of its times and of its quality that are saved unchanged.
_QUALITY = tuple(_Quality.__annotations__)
_EXPERIMENT = tuple(name for name in _Experiment.__annotations__ if name not in ("equal_within", "blocks"))
_GIVEN = tuple(name for name in ReportFacts.__annotations__ if name not in ("experiment", "quality"))
REPORT = SavedKind("report", ReportFacts, _FRAMES, parts=PROFILE)


def save_report(test: ABTest, path: str | Path) -> Path:
    """Atomically save a test to the folder `path`, replacing any test that was saved there before.

    The table, the decision and the reason are written for other tools and are never read by perfnb.
    """
    losses = pd.DataFrame([astuple(loss) for loss in test.quality.losses], columns=_LOSS)
    frames = {
        "pairs": pd.DataFrame({"a_ms": test.a_ms, "b_ms": test.b_ms}),
        "losses": losses.astype({name: column.dtype for name, column in _FRAMES["losses"].items()}),
        "table": test.table.reset_index(),
    }
    facts = {
        **{name: getattr(test, name) for name in (*_GIVEN, "decision", "reason")},
        "experiment": {
            **{name: getattr(test, name) for name in _EXPERIMENT},
            "equal_within": test.comparison.equal_within,
            "blocks": None if test.blocks is None else asdict(test.blocks),
        },
        "quality": {name: getattr(test.quality, name) for name in _QUALITY},
    }
    parts = {name: profile.save for name, profile in test.profiles.items()}
    return store.save(REPORT, frames, facts, path, outcome=outcome_of_test(test), parts=parts)


def outcome_of_test(test: ABTest) -> Outcome:
    """Create a test's outcome, which consists of its decision and the candidate's figures."""
    return make_outcome(
        test.change or test.b_name,
        test.environment,
        verdict=test.decision,
        step_ms=test.b.median_ms,
        interval_ms=test.b.ci_ms,
        ratio=test.comparison.ratio,
        ratio_interval=test.comparison.ratio_ci,
        peak_bytes=test.table["candidate"].get("peak_memory_bytes"),
        batch_size=test.batch_size,
    )


def read_report(path: str | Path) -> tuple[PairedTimes, dict[str, SavedProfile], dict[str, Any]]:
    """Read the times, the profiles and the other fields of an `ABTest` that was saved with `save_report`.

    Raises
    ------
    RecordingError
        If there is no report, or if it is damaged or was saved by a newer version.
    """
    saved = SavedFolder(REPORT, path)
    source, meta, pairs, rows = saved.source, saved.facts, saved.frame("pairs"), saved.frame("losses")
    profiles = {name: SavedProfile(source / name) for name in SIDES if PROFILE.is_at(source / name)}
    if len(profiles) == 1:
        missing = next(name for name in SIDES if name not in profiles)
        raise RecordingError(f"{source} is damaged: the profile of the {missing} is missing.")
    try:
        experiment = dict(meta["experiment"])
        blocks = experiment.pop("blocks", None)  # missing in reports from earlier versions
        times = paired_times(
            *(pairs[name].tolist() for name in ("a_ms", "b_ms")),
            blocks=None if blocks is None else BlockPlan(**blocks),
            **experiment,
        )
        losses = tuple(
            Loss(str(name), float(candidate), *(None if math.isnan(value) else float(value) for value in rest))
            for name, candidate, *rest in rows[_LOSS].itertuples(index=False)
        )
        quality = Quality(losses, **meta["quality"])
        return times, profiles, {"quality": quality} | {name: meta[name] for name in _GIVEN}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{source} is damaged: its contents do not form a report ({error}).") from error
