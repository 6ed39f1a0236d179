"""What is advised where PyTorch did not run names nothing of PyTorch's, and torch.profiler records no other's trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.findings.verdict import find
from perfnb.profile.profile import Profile
from perfnb.profile.summary import summarize
from perfnb.recording.recording import Recording
from tests.findings.findings_recordings import facts, live_cpu, loaded
from tests.trace.test_public_traces import FOLDER

FOREIGN = FOLDER.parent / "foreign"
FILES = [
    path
    for folder in (FOREIGN, FOLDER / "nsys", FOLDER / "tf_timeline")
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.parent.name not in ("collapsed", "cprofile", "perf_script", "speedscope", "foreign")
]
#: Of these programs, kernels or ranges are PyTorch's.
OF_TORCH = {
    *("mfu_2gpu_before.sqlite.gz", "rocprofv3_first6000_results.json.gz"),
    *("h100_2gpu_1s.sqlite", "healthy_1pct.sqlite", "mock.sqlite"),
}
TORCHS = re.compile(
    r"torch|aten|DataLoader|Distributed|DDP|FSDP|non_blocking|pin_memory|autocast|\.detach\(|_cap_mb|no_sync"
    r"|empty_cache|\bdevice=|fused=|num_workers|persistent_workers|GradScaler|stacks=True|try_levers",
    re.IGNORECASE,
)


def advice(table: pd.DataFrame) -> Iterator[str]:
    for row in table.to_dict("records"):
        yield " ".join(str(row[column]) for column in ("advice", "code", "remedy", "why", "blind"))


def require_nothing_of_torchs(profile: Profile) -> None:
    found = profile._summary.findings
    assert found is not None
    for said in (*advice(found.table), found.verdict.next, found.verdict.verdict):
        assert not TORCHS.search(said), said


def profiles(path: Path) -> list[Profile]:
    found = perfnb.load(path)
    if isinstance(found, perfnb.results.Ranks):
        return [found[rank] for rank in found.ranks]
    assert isinstance(found, Profile)
    return [found]


@pytest.mark.skipif(not FOREIGN.is_dir(), reason=f"no folder of foreign files at {FOREIGN}; set PERFNB_TRACES")
@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_advice_on_files_of_other_programs_names_nothing_of_torchs(path: Path) -> None:
    try:
        found = profiles(path)
    except TraceError:
        return
    for profile in found:
        recording = profile._recording
        assert recording.is_foreign
        assert recording.uses_torch == (path.name in OF_TORCH)
        if recording.uses_torch:  # torch.profiler did not write it, so its options are of no use
            assert not profile.findings["code"].str.contains("profiler").any()
        else:
            require_nothing_of_torchs(profile)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recording is that of a program without PyTorch."""
    monkeypatch.setattr(Recording, "is_foreign", True)
    monkeypatch.setattr(Recording, "uses_torch", False)


@pytest.mark.usefixtures("elsewhere")
def test_no_rule_names_torch_where_it_did_not_run(tmp_path: Path) -> None:
    known = facts(loaded(tmp_path))
    table = find(known.recording, known.attribution, known.figures).table
    assert len(table) > 1, table["bottleneck"]
    for said in advice(table):
        assert not TORCHS.search(said), said


def test_torchs_own_traces_and_live_steps_keep_their_advice(tmp_path: Path) -> None:
    for recording in (live_cpu(), loaded(tmp_path)):
        assert recording.uses_torch
        assert not recording.is_foreign
    table = summarize(live_cpu()).findings
    assert table is not None
    assert any(TORCHS.search(said) for said in advice(table.table))


def test_the_mark_of_a_foreign_file_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "horovod.json"
    path.write_text(json.dumps([{"ph": "X", "name": "ALLREDUCE", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]))
    found = perfnb.load(path)
    assert isinstance(found, Profile)
    again = perfnb.load(found.save(tmp_path / "saved"))
    assert isinstance(again, Profile)
    assert again._recording.is_foreign
    assert not again._recording.uses_torch
    require_nothing_of_torchs(again)
