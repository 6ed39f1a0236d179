"""Every file of other profilers, from the user's end: loaded, shown, written as a page, saved and loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfnb
from perfnb.profile.profile import Profile
from tests.trace.test_xplane import FOREIGN

FOLDERS = ("horovod", "rocprof", "tf_trace", "trace_event", "xplane", "../traces/tf_timeline", "../traces/dmon")
FILES = sorted(path for folder in FOLDERS for path in (FOREIGN / folder).glob("*")) or [FOREIGN / "nothing"]


@pytest.mark.deep
@pytest.mark.skipif(not FOREIGN.is_dir(), reason=f"no folder of foreign files at {FOREIGN}; set PERFNB_TRACES")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_shown_saved_and_compared(path: Path, tmp_path: Path) -> None:
    found = perfnb.load(path)

    shown = str(found)
    assert "•" in shown
    again = perfnb.load(found.save(tmp_path / "saved"))
    assert str(again).splitlines()[4:] == shown.splitlines()[4:]
    if isinstance(found, Profile):
        assert found.to_html(tmp_path / "page.html").stat().st_size > 10_000
        assert len(perfnb.load(found.save_trace(tmp_path / "trace.json")).events) == len(found.events)
        assert str(found.compare(again))
        assert "with_stack=True" not in " ".join(shown.split("Notes")[1].split())
