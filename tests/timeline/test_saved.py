"""What a notebook saves of a timeline, and what its kernel holds and gives beyond that."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any
from weakref import WeakMethod

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.draw.documented import document_bundle
from perfnb.profile import display
from perfnb.profile.report import report_document
from perfnb.timeline.data import NOTEBOOK_BYTES, bytes_of_report, timeline_bytes
from perfnb.timeline.timeline import Timeline, Track
from tests import summaries
from tests.timeline.test_coarse import by_hand
from tests.timeline.test_timeline import training
from tests.timeline.test_view import LARGE, scattered, timeline, unpacked


def test_a_notebook_keeps_little_and_its_kernel_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    line = scattered(1500)
    rows = [-1] * len(line.layers)

    assert bytes_of_report(None, []) == (b"", None)
    everything, facts = bytes_of_report(line, rows)
    assert facts is not None
    assert facts["whole"]

    monkeypatch.setattr("perfnb.timeline.data.NOTEBOOK_BYTES", 5_000)
    few, facts = bytes_of_report(line, rows)
    assert len(few) <= 5_000 < len(everything)
    assert facts is not None
    assert not facts["whole"]


def drawn_out(events: int, steps: int = 3) -> Timeline:
    """So many ops without pattern in so many steps of forward and backward."""
    random = np.random.default_rng(3)
    line = timeline(training())
    gaps, lengths = random.integers(1, 5_000, events), random.lognormal(8, 1.5, events).astype(np.int64) + 1
    start = np.cumsum(gaps + lengths) - lengths
    moments = np.linspace(0, max(start[-1] + lengths[-1], 10**6 * steps), 2 * steps + 1)
    ends = moments.astype(np.int64) + random.integers(0, moments[1] // 2, 2 * steps + 1)
    columns = {name: np.full(events, -1, dtype=np.int64) for name in line.rows.columns}
    columns |= {"start": start, "duration": lengths, "name": random.integers(0, len(line.names), events)}
    columns |= {name: random.integers(0, 2, events) for name in ("layer", "kind", "category")}
    columns |= {"depth": np.zeros(events, dtype=np.int64), "event": np.arange(events)}
    ops = pd.DataFrame(columns)
    marks = ops.iloc[:0].reindex(range(steps), fill_value=0)
    marks = marks.assign(start=ends[:-1:2], duration=ends[2::2] - ends[:-2:2], launch=-1, forward=-1, detail=-1)
    phases = ops.iloc[:0].reindex(range(2 * steps), fill_value=0)
    phases = phases.assign(start=ends[:-1], duration=np.diff(ends), kind=np.arange(2 * steps) % 2)
    phases = phases.assign(launch=-1, forward=-1, detail=-1)
    rows = pd.concat([marks, phases, ops], ignore_index=True)
    tracks = (
        Track("steps", "Steps", 0, steps, 1),
        Track("phases", "Phases", steps, 2 * steps, 1),
        Track("thread", "Thread 1 (main)", 3 * steps, events, 1),
    )
    return replace(line, tracks=tracks, rows=rows)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(("events", "steps"), [(300_000, 3), (1_000, 60_000)])
def test_what_a_notebook_saves_of_a_long_profile_is_2_mb_at_most(events: int, steps: int) -> None:
    ipywidgets = pytest.importorskip("ipywidgets")
    from perfnb.profile.widget import ReportWidget

    line, summary = drawn_out(events, steps), summaries.small_cnn()
    saved, facts = bytes_of_report(line, [-1] * len(line.layers))
    assert len(saved) <= NOTEBOOK_BYTES < len(timeline_bytes(line, [-1] * len(line.layers), LARGE)[0])
    assert facts is not None
    assert not facts["whole"]
    header, _ = unpacked(saved)
    assert header["total_events"] == len(line) > header["events"]
    assert header["shortest_ns"] > 0

    widget = ReportWidget(report_document(summary, None, facts), "id", saved)
    state = ipywidgets.Widget.get_manager_state(widgets=[widget])
    outputs = [document_bundle(report_document(summary, line)), widget._repr_mimebundle_()[0], state]
    assert len(saved) * 4 / 3 < len(json.dumps(outputs)) <= 2_000_000
    widget.close()


def test_whatever_the_limit_it_is_kept() -> None:
    line = by_hand(*([(10, 10 + thread, 0, "other")] for thread in range(400)))
    whole, _ = timeline_bytes(line, [], LARGE)

    packed, facts = timeline_bytes(line, [], 2_500)

    header, arrays = unpacked(packed)
    assert len(packed) <= 2_500 < len(whole)
    assert 5 < facts["events"] == len(arrays["start"]) < len(line)
    assert facts == {"events": header["events"], "total_events": 400, "whole": False}
    titles = [f"Thread {thread}" for thread in range(400 - facts["events"], 400)]
    assert [track["title"] for track in header["tracks"]] == titles
    assert header["shortest_ns"] > 0
    assert timeline_bytes(line, [], 1)[1]["events"] == 0  # what is not events is there all the same
    assert timeline_bytes(line, [], len(whole)) == (whole, {"events": 400, "total_events": 400, "whole": True})
    assert not timeline_bytes(line, [], len(whole) - 1)[1]["whole"]


def test_the_widget_holds_the_timeline_and_answers_a_page_that_wants_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfnb.profile.widget import ReportWidget

    summary = summaries.small_cnn()
    widget = ReportWidget(report_document(summary, None, {"events": 1}), "id", b"some", lambda: b"all of it")
    sent: list[tuple[Any, Any]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))

    assert widget.get_state()["timeline"] == b"some"
    (tab,) = [tab for tab in json.loads(widget.data)["tabs"] if tab["kind"] == "timeline"]
    assert tab["sections"][0]["data"] == {"events": 1}
    for asked in ({"timeline": "more"}, "whole", None, {}):
        widget._handle_custom_msg(asked, [])
    assert sent == []
    widget._handle_custom_msg({"timeline": "whole"}, [])
    assert sent == [({"timeline": "whole"}, [b"all of it"])]
    widget.close()


def test_a_widget_makes_the_whole_when_asked_and_holds_nothing_once_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        made = 0

        def timeline(self) -> Timeline:
            self.made += 1
            return line

    line, source = scattered(1500), Source()
    monkeypatch.setattr("perfnb.timeline.data.NOTEBOOK_BYTES", 5_000)
    again = WeakMethod(source.timeline)
    made: list[Any] = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr(display, "show_live", lambda _, widget_of: made.append(widget_of("id")))
    for _ in range(2):
        display.show(summaries.small_cnn(), line, again)
    widget, other = made
    sent: list[bytes] = []
    for one in (widget, other):
        monkeypatch.setattr(one, "send", lambda content, buffers: sent.extend(buffers))

    assert source.made == 0
    widget._handle_custom_msg({"timeline": "whole"}, [])
    assert (source.made, len(sent)) == (1, 1)
    assert unpacked(sent[0])[0]["events"] == len(line)
    held = {id(value) for value in gc.get_referents(widget.__dict__)}
    assert id(sent[0]) not in held
    widget.close()
    assert (widget._whole, widget.timeline, widget.data) == (None, b"", "")
    widget._handle_custom_msg({"timeline": "whole"}, [])
    gone = weakref.ref(source)
    del source, again
    gc.collect()
    assert gone() is None  # the report that is open does not hold it either
    other._handle_custom_msg({"timeline": "whole"}, [])
    assert len(sent) == 1
    other.close()


def test_without_a_timeline_nothing_is_sent_and_no_tab_is_listed() -> None:
    from perfnb.profile.widget import ReportWidget

    widget = ReportWidget(report_document(summaries.small_cnn()), "id")
    assert widget.get_state()["timeline"] == b""
    assert "timeline" not in [tab["kind"] for tab in json.loads(widget.data)["tabs"]]
    widget.close()


def test_a_profile_tells_its_report_how_to_make_its_timeline_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("perfnb.profile.profile.show", lambda *given: asked.extend(given))
    profile = perfnb.Profile(training().recording())
    monkeypatch.setattr(perfnb.Profile, "_summary", None)

    profile._ipython_display_()

    _, line, again, _ = asked
    assert again()().rows.equals(line.rows)
    del profile
    gc.collect()
    assert again() is None
