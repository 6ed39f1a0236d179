"""Every file of other profilers, from the user's end: loaded, shown, written as a page, saved and loaded again."""

from __future__ import annotations

import json
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


def test_without_layers_the_heaviest_ops_are_listed(tmp_path: Path) -> None:
    spans = [("outer", 0, 90), ("inner", 10, 30), ("<b>x", 50, 5), *(("short", 100 + place, 1) for place in range(12))]
    spans += [(f"op {place}", 200 + place, 0.5) for place in range(9)]
    events = [{"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1} for name, ts, dur in spans]
    (tmp_path / "a.json").write_text(json.dumps(events))
    found = perfnb.load(tmp_path / "a.json")

    lines = str(found).splitlines()
    start = lines.index("Ops") + 2
    assert [line.split()[:6] for line in lines[start + 2 : start + 6]] == [
        ["outer", "1", "55.0", "µs", "90.0", "µs"],
        ["inner", "1", "30.0", "µs", "30.0", "µs"],
        ["short", "12", "12.0", "µs", "12.0", "µs"],
        ["<b>x", "1", "5.00", "µs", "5.00", "µs"],
    ]
    assert lines[start + 12] == "… 3 more ops"
