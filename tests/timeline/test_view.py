"""The timeline for the browser and without scripts: the bytes come back unchanged, and fit."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.draw import escape, palette
from perfnb.draw.as_text import document_text
from perfnb.draw.document import Picture, Table
from perfnb.draw.shown import WIDGET_VIEW
from perfnb.profile import display
from perfnb.profile.display import standalone_page
from perfnb.timeline.build import timeline_of
from perfnb.timeline.data import MAX_TEXT, timeline_bytes
from perfnb.timeline.median_step import step_timeline
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.tab import _curve, _title, shown_tracks, timeline_document
from perfnb.timeline.timeline import Timeline, Track
from tests import summaries
from tests.pages import boxes, spaced
from tests.recordings import US, ByHand
from tests.samples import texts
from tests.samples.timeline import DOCUMENTS
from tests.timeline.test_timeline import training

NUMPY = {"f8": "<f8", "u4": "<u4", "i4": "<i4", "u1": "u1"}
LARGE = 10**9


def timeline(made: ByHand) -> Timeline:
    recording = made.recording()
    return timeline_of(recording, attribute(recording))


def unpacked(packed: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays, read as the browser reads them."""
    data = zlib.decompress(packed)
    (length,) = struct.unpack_from("<I", data)
    assert (4 + length) % 8 == 0
    header = json.loads(data[4 : 4 + length])
    arrays = {}
    for name, (kind, offset, count) in header["arrays"].items():
        assert offset % 8 == 0
        arrays[name] = np.frombuffer(data, dtype=NUMPY[kind], count=count, offset=4 + length + offset)
    return header, arrays


@cache
def scattered(count: int) -> Timeline:
    """Return ops of all lengths in a step, few of them long."""
    random = np.random.default_rng(1)
    made, now = ByHand().step(0, 100 * count), 0.0
    for _ in range(count):
        length = float(random.lognormal(1, 1.5))
        now += 0.1 + float(random.exponential(2))
        made.op(f"aten::op{random.integers(20)}", now, now + length)
        now += length
    return timeline(made)


def test_what_the_browser_unpacks_is_what_was_packed() -> None:
    line = timeline(training().kernel("gemm", 1100, 1500, 1600))

    header, arrays = unpacked(timeline_bytes(line, range(len(line.layers)), LARGE)[0])

    rows = line.rows
    for name in ("start", "duration", "layer", "launch", "forward", "depth", "kind", "detail"):
        assert arrays[name].tolist() == rows[name].tolist()
    assert [header["names"][code] for code in arrays["name"]] == [line.names[code] for code in rows["name"]]
    assert [header["categories"][code] for code in arrays["category"]] == [line.categories[c] for c in rows["category"]]
    assert header["layers"] == list(line.layers)
    assert header["layer_rows"] == list(range(len(line.layers)))
    assert header["events"] == header["total_events"] == len(rows)
    assert (header["shortest_ns"], header["start_ns"], header["end_ns"]) == (0, 0, 1000 * US)
    assert [track["title"] for track in header["tracks"]] == [
        "Steps", "Phases", "Layers", "Thread 1 (main)", "GPU 0, stream 7",
    ]  # fmt: skip
    assert sum(track["count"] for track in header["tracks"]) == len(rows)
    assert [kind["colour"] for kind in header["kinds"]] == [palette.mark(name).colour for name in line.kinds]


def test_curves_of_memory_follow_each_other() -> None:
    curves = tuple(
        MemoryCurve(device, "planted", np.arange(3) * 10, np.array(sizes))
        for device, sizes in (("cpu", [1, 2, 3]), ("cuda:0", [7, 2**45, 5]))
    )
    line = timeline(training())
    line = Timeline(**{**vars(line), "memory": curves})

    header, arrays = unpacked(timeline_bytes(line, [-1] * len(line.layers), LARGE)[0])

    assert [(one["title"], one["note"], one["first"], one["count"], one["most"]) for one in header["memory"]] == [
        ("Memory, CPU", "planted", 0, 3, 3),
        ("Memory, cuda:0", "planted", 3, 3, 2**45),
    ]
    assert arrays["memory_t"].tolist() == [0, 10, 20] * 2
    assert arrays["memory_bytes"].tolist() == [1, 2, 3, 7, 2**45, 5]


def test_an_event_takes_40_bytes_at_most() -> None:
    line = scattered(500)
    _, arrays = unpacked(timeline_bytes(line, [-1] * len(line.layers), LARGE)[0])
    assert sum(array.nbytes for array in arrays.values()) <= 40 * len(line)


@pytest.mark.parametrize("limit", [3_000, 6_000])
def test_a_coarser_level_fits_and_keeps_what_is_long(limit: int) -> None:
    line = scattered(1500)
    whole, facts = timeline_bytes(line, [-1] * len(line.layers), LARGE)
    assert facts == {"events": len(line), "total_events": len(line), "whole": True}
    assert len(whole) > limit

    for known in (None, len(whole)):
        packed, facts = timeline_bytes(line, [-1] * len(line.layers), limit, known)

        assert limit / 5 < len(packed) <= limit
        header, arrays = unpacked(packed)
        shortest = header["shortest_ns"]
        assert shortest > 0
        assert facts == {"events": header["events"], "total_events": len(line), "whole": False}
        joined = arrays["category"] == header["categories"].index("joined")
        long = line.rows["duration"].to_numpy() >= shortest
        own = set(zip(arrays["start"][~joined], arrays["duration"][~joined], strict=True))
        kept = line.rows.loc[long, ["start", "duration"]]
        assert set(zip(kept["start"].astype(float), kept["duration"].astype(float), strict=True)) <= own
        assert all(re.fullmatch(r"[\d,]+ short events", header["names"][code]) for code in arrays["name"][joined])


def test_names_are_plain_short_and_there_once() -> None:
    hostile = ["<img src=x>", "a\u202eb\n", "x" * 5000, "same", "same"]
    made = ByHand().step(0, 1000)
    for place, name in enumerate(hostile):
        made.op(name, 10 * place, 10 * place + 5)

    line = timeline(made)
    header, _ = unpacked(timeline_bytes(line, [-1] * len(line.layers), LARGE)[0])

    assert all(len(name) <= MAX_TEXT and escape.plain(name, MAX_TEXT) == name for name in header["names"])
    assert header["names"].count("same") == 1


def test_a_page_holds_the_timeline_as_data_that_does_not_run() -> None:
    line = timeline(training())
    summary = summaries.small_cnn()

    page = standalone_page(summary, line)

    (packed,) = re.findall(r'data-trait="timeline"[^>]*>(.*?)</script>', page)
    header, _ = unpacked(base64.b64decode(packed))
    assert header["events"] == len(line)
    (data,) = re.findall(r'<script type="application/json" id="perfnb-data">(.*?)</script>', page)
    (tab,) = [tab for tab in json.loads(data)["tabs"] if tab["kind"] == "timeline"]
    assert tab["sections"][0]["data"] == {"events": len(line), "total_events": len(line), "whole": True}
    assert 'data-trait="timeline"></script>' in standalone_page(summary)


def test_a_notebook_gets_picture_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    made: list[Any] = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: shown.append(bundle))
    monkeypatch.setattr("perfnb.profile.widget.ReportWidget._repr_mimebundle_",
                        lambda self: (made.append(self), ({WIDGET_VIEW: {}}, {}))[1])  # fmt: skip

    display.show(summaries.small_cnn(), timeline(training()))

    static, live = shown
    assert "Step 0 takes 1.00 ms" in static["text/plain"]
    assert "<strong>Timeline</strong>" in static["text/html"]
    assert unpacked(made[0].timeline)[0]["events"] > 0
    assert set(live) == {WIDGET_VIEW}


def test_the_static_picture_shows_tracks_of_boxes_and_curves_of_memory() -> None:
    line = timeline(training().kernel("gemm", 1100, 1500, 1600))
    used = {"cpu": 2**20, "cuda:0": 3 * 2**20, "cuda:1": 2**19, "cuda:2": 0}
    curves = [MemoryCurve(name, "", np.array([0, 500_000]), np.array([0, most])) for name, most in used.items()]
    (picture, _) = timeline_document(replace(line, memory=tuple(curves))).sections

    assert isinstance(picture, Picture)
    assert picture.html is not None
    drawn = spaced(picture.html())
    assert len(drawn) < 60_000
    (alt,) = re.findall(r'aria-label="([^"]*)"', drawn)
    assert alt.startswith("step 0 takes 1.00 ms; tracks: Phases, Layers, Thread 1 (main), GPU 0, stream 7; phases: ")
    assert alt.endswith("other, forward, loss, backward, optimizer")
    # 0.744 pixels per µs from 136 on, and rows of 15: phases at 0, layers at 23, the thread at 61, the stream at 99.
    found = boxes(drawn)
    assert {top for each in found.values() for _, top, _ in each} == {0, 23, 38, 61, 76, 99}  # at most two of a thread
    forward, backward = (found[palette.mark(name).colour] for name in ("forward", "backward"))
    assert forward == [
        *[(173.2, 0, 222.6), (173.2, 23, 222.6), (180.6, 38, 73.8), (269.9, 38, 118.4), (188.1, 61, 58.9)],
        *[(277.4, 61, 29.2), (314.6, 61, 66.4), (210.4, 76, 0.4), (508.0, 99, 73.8)],
    ]
    assert {(470.8, 0, 170.5), (470.8, 23, 14.3), (493.1, 38, 66.4)} <= set(backward)
    assert re.findall(r'<text x="130" y="(\d+)"[^>]*>([^<]*)<', drawn) == [
        *[("11", "Phases"), ("34", "Layers"), ("72", "Thread 1 (main)"), ("110", "GPU 0, stream 7")],
        *[("142", "Memory, cuda:0"), ("156", "3.00 MiB at most"), ("194", "Memory, CPU"), ("208", "1.00 MiB at most")],
    ]
    assert re.findall(r'<text x="(\d+)" y="238"', drawn) == ["136", "322", "508", "694", "880"]
    assert re.findall(r'd="(M136 [12]..H[^"]*Z)"', drawn) == [
        *["M136 166H136V166V166H508V126V126H880V166Z", "M136 218H136V218V218H508V178V178H880V218Z"]
    ]
    heights = re.findall(r'viewBox="0 0 880 (\d+)"', drawn)
    assert heights == ["244"]


def test_a_curve_has_the_highest_and_the_last_value_of_each_part() -> None:
    curve = MemoryCurve("cpu", "", np.array([-9, 0, 600, 601, 603, 1200]), np.array([10, 50, 100, 20, 25, 50]))
    assert _curve(curve, 1200, 44) == "M136 44H136V24V24H508V4V36H509V34V34H880V24V24H880V44Z"


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("Thread 1 (main, python3)", "Thread 1 (main)"),
        ("Thread 5 (backward, pt_autograd_0)", "Thread 5 (backward)"),
        ("Thread 1 (main)", "Thread 1 (main)"),
        ("Thread 7 (worker, main)", "Thread 7 (worker, main)"),
    ],
)
def test_a_thread_in_the_picture_is_named_after_its_role(title: str, shown: str) -> None:
    assert _title(Track("thread", title, 0, 1, 1)) == shown


def test_the_verdict_says_how_busy_gpu_and_host_were() -> None:
    shown = timeline_document(timeline(training().kernel("gemm", 1100, 1500, 1600)))

    assert shown.verdict.sentence == (
        "Step 0 takes 1.00 ms: GPU 0, stream 7 is busy for 10 % of it and the main thread for 42 %."
    )
    _, tracks = shown.sections
    assert isinstance(tracks, Table)
    assert [row[:4] for row in tracks.rows] == [
        ("Phases", "forward", pytest.approx(0.3), 7),
        ("Layers", "net.second", pytest.approx(0.16), 8),
        ("Thread 1 (main)", "aten::mm in net.second", pytest.approx(0.09), 17),
        ("GPU 0, stream 7", "gemm in net.first", pytest.approx(0.1), 1),
    ]
    assert [row[5] for row in tracks.rows] == pytest.approx([1.0, 0.54, 0.42, 0.1])


def test_a_step_without_work_only_has_its_length() -> None:
    idle = timeline_document(timeline(ByHand().step(0, 1000)))
    assert idle.verdict.sentence == "Step 0 takes 1.00 ms."


def test_work_after_the_end_of_the_step_is_in_the_picture() -> None:
    line = timeline(training().kernel("gemm", 1950, 2800, 3000).event("less", 1960, 1970, "kernel", device=0, stream=9))

    shown = timeline_document(line)

    assert shown.verdict.sentence == (
        "Step 0 takes 1.00 ms, and work that it launched ends 2.00 ms after it started: GPU 0, stream 7 is busy for "
        "10 % of it and the main thread for 21 %."
    )
    (picture, _) = shown.sections
    assert isinstance(picture, Picture)
    assert picture.html is not None
    drawn = picture.html()
    assert re.findall(r">(0|[\d.]+\s*m?s)<", spaced(drawn)) == ["0", "0.500 ms", "1.00 ms", "1.50 ms", "2.00 ms"]
    assert len(re.findall("stroke-dasharray", drawn)) == 1  # the end of the step on the host
    (whole, _) = timeline_document(timeline(training())).sections
    assert "stroke-dasharray" not in whole.html()  # type: ignore[union-attr, misc]


def test_of_many_threads_the_busiest_are_drawn_and_listed() -> None:
    made = ByHand().step(0, 1000).op("aten::main", 0, 500)
    for thread in range(2, 40):
        made.op("aten::work", 10, 10 + 10 * thread, thread=thread)
    line = timeline(made)

    step = step_timeline(line)
    assert step is not None
    drawn = [track.title for track in shown_tracks(step) if track.kind == "thread"]
    assert drawn == ["Thread 1 (main)", "Thread 37", "Thread 38", "Thread 39"]
    shown = timeline_document(line)
    assert shown.verdict.sentence == "Step 0 takes 1.00 ms: the main thread is busy for 50 % of it."
    text = document_text(shown).splitlines()
    assert text[-1] == "… 32 more tracks"
    listed = [" ".join(row.split()[:2]) for row in text[-9:-1]]
    assert listed == ["Phases other", "Thread 1", *(f"Thread {thread}" for thread in range(39, 33, -1))]


def test_a_step_without_length_is_not_drawn() -> None:
    shown = timeline_document(timeline(ByHand().step(5, 5)))
    assert (shown.verdict.sentence, len(shown.sections)) == ("", 1)
    assert document_text(shown) == "perfnb · timeline"


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
