"""A profile that was reduced to its tables reports what the whole profile does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError
from perfnb.findings.finding import Findings
from perfnb.profile.profile import Profile
from perfnb.profile.reduced import ReducedProfile, summary_of_tables
from perfnb.recording.saved_profile import REDUCED_TABLES
from tests.findings.test_elementwise import trained


@pytest.fixture(scope="module")
def whole() -> Profile:
    return Profile(trained().recording())


def test_a_reduced_profile_reports_the_same(whole: Profile, tmp_path: Path) -> None:
    reduced = whole._reduced()
    saved = perfnb.load(reduced.save(tmp_path / "p"))
    assert isinstance(saved, Profile)
    found, own = whole._summary, whole._summary.findings
    assert own is not None
    assert own.verdict.finding is not None
    for profile in (reduced, saved):
        summary = profile._summary
        assert summary.findings is not None
        assert (summary.findings.verdict, summary.findings.step_ms) == (own.verdict, own.step_ms)
        pd.testing.assert_frame_equal(profile.findings, whole.findings)
        assert summary.traced_ms == found.traced_ms
        assert summary.notes[:-1] == found.notes
        for name in REDUCED_TABLES:
            pd.testing.assert_frame_equal(getattr(profile, name), getattr(whole, name))
        assert profile._recording.events.empty
    assert reduced._reduced() is reduced
    source = reduced._source
    assert isinstance(source, ReducedProfile)
    assert (source.of_rank(3).meta, source.meta["rank"]) == ({**source.meta, "rank": 3}, 0)


def test_what_needs_the_trace_is_refused(whole: Profile, tmp_path: Path) -> None:
    reduced = whole._reduced()
    needed = ("compiled", "compiled_regions", "collectives", "memory", "allocations", "roofline", "events", "queue")
    needed += ("kernel_ops", "gpu_steps", "gpu_idle", "launches", "critical_path", "path_savings")
    assert not {*needed} & {*REDUCED_TABLES}
    for name in needed:
        with pytest.raises(RecordingError, match="create the profile with keep_trace=True"):
            getattr(reduced, name)
    with pytest.raises(RecordingError, match="create the profile with keep_trace=True"):
        reduced.save_trace(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_edited_proposes_only_what_perfnb_would(whole: Profile) -> None:
    reduced = whole._reduced()
    facts = reduced.meta["reduced"]

    def found(**changes: Any) -> Findings | None:
        recording = replace(reduced._recording, meta={**reduced.meta, "reduced": {**facts, **changes}})
        return summary_of_tables(recording, lambda name: getattr(reduced, name)).findings

    assert found(verdict=None) is None
    count = len(facts["findings"])
    for place, expected in ((None, None), (0, 0), (count - 1, count - 1), (count, None)):
        findings = found(finding=place)
        assert findings is not None
        assert findings.verdict.finding == expected
    edited = found(findings=[facts["findings"][0] | {"code": "import os", "remedy": "delete"}])
    assert edited is not None
    assert edited.table[["code", "remedy"]].fillna("").to_numpy().tolist() == [["", ""]]
