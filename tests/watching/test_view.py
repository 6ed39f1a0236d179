"""A watch without scripts, as data for the browser, and the widget that takes readings from a thread."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfnb import quantities as fmt
from perfnb.draw import assets, escape
from perfnb.profile.report import report_data, report_script, summary_html, summary_text
from perfnb.profile.widget import ReportWidget
from perfnb.recording.schema import conform
from perfnb.watching.charts import thinned
from perfnb.watching.data import (
    METRIC_WORDS,
    MOST_NUMBERS,
    MOST_POINTS,
    MOST_STRETCHES,
    lasted,
    machine_data,
    watch_data,
)
from perfnb.watching.summary import MachineSummary
from perfnb.watching.view import MOST_MARKS, machine_html, machine_text, watch_html, watch_text
from perfnb.watching.widget import FIRST_PUSHES, REPEATED_PUSHES, WatchWidget
from tests import summaries
from tests.pages import check, picture_bytes, spaced
from tests.summaries import HOSTILE
from tests.watching import watch_samples as samples

EXAMPLES = {
    "laptop": samples.laptop,
    "server": samples.server,
    "hostile": samples.hostile,
    "unknown": samples.unknown,
    "empty": samples.empty,
}


@functools.cache
def page_of(make: Callable[[], MachineSummary]) -> str:
    """The page of an example, drawn once for all tests that read it."""
    return watch_html(make())


def body(page: str) -> str:
    """What the twin's element holds, without its style sheet."""
    start, end = page.index("</style>") + len("</style>"), page.rindex("</div>")
    assert page.startswith('<div class="perfnb-static" ')
    return page[start:end]


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    golden(f"watch_{name}.txt", "\n".join(watch_text(EXAMPLES[name]())) + "\n")


def test_golden_of_the_machine_in_a_profile(golden):
    golden("watch_profiled.txt", "\n".join(machine_text(samples.profiled())) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", [*EXAMPLES, "profiled"])
def test_no_line_is_wider_than_asked(name, width):
    lines = machine_text(samples.profiled(), width) if name == "profiled" else watch_text(EXAMPLES[name](), width)
    for line in lines:
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_html_holds_only_known_elements(name):
    page = body(page_of(EXAMPLES[name]))
    check(page)
    assert "window.__pwned=1&quot;" in page or name != "hostile"


@pytest.mark.slow
def test_html_says_everything_in_words():
    made = samples.server()
    page = spaced(page_of(samples.server))
    for word in ("Watched for 2:00 min", "240 readings, 1 missed", "within 500 ms"):
        assert word in page
    energy = made.table.loc[("gpu0", "energy_j")]
    assert f"{fmt.reading(energy['total'], 'joules')} ± {fmt.reading(energy['uncertainty'], 'joules')}" in page
    written = made.table.loc[("process", "disk_write_bytes_per_s"), "total"]
    assert f">{fmt.size(written)}</td>" in page
    assert "GPU 0: PCIe counters cannot be read at times" in page
    assert "not how full the GPU was" in page
    assert page.count(">epoch") == 4
    assert "no NVIDIA driver on this machine" in page_of(samples.laptop)
    assert ">Watching for" in watch_html(samples.laptop(running=True))


def test_energy_that_is_not_known_is_not_told():
    made = samples.server(0.9)
    assert pd.isna(made.table.loc[("gpu0", "energy_j"), "total"])
    (line,) = [line for line in watch_text(made) if " energy" in line]
    assert line.endswith(fmt.UNKNOWN)


@pytest.mark.slow
def test_only_the_last_marks_are_listed():
    made = samples.laptop(10.0)
    marks = [(f"epoch {i}", 0, 0.1 * i, 0.1 * i + 0.1) for i in range(MOST_MARKS + 3)]
    page = watch_html(replace(made, marks=samples.marks_of(*marks)))
    assert "3 earlier ones are not listed" in page
    assert ">epoch 2<" not in page
    assert ">epoch 3<" in page


@pytest.mark.slow
@pytest.mark.parametrize("make", [samples.laptop, samples.server, samples.hostile, lambda: samples.server(60.0, 8)])
def test_the_picture_is_small_and_has_words(make):
    page = body(page_of(make))
    picture = picture_bytes(page)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 110_000
    (image,) = [attributes for tag, attributes in check(page).tags if tag == "img"]
    assert "CPU, Memory" in image["alt"] or "CPU throttled" in image["alt"]


@pytest.mark.slow
def test_matplotlib_is_loaded_only_to_draw_and_pyplot_never():
    code = (
        "import sys; from perfnb.watching import view as watch; from tests.watching import watch_samples as s\n"
        "made = s.laptop(5.0); watch.watch_text(made); assert 'matplotlib' not in sys.modules\n"
        "watch.watch_html(made); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_metric_has_a_word_and_a_unit():
    made = samples.server()
    told = {metric for _, metric in made.table.index}
    assert told <= set(METRIC_WORDS)
    assert all(fmt.reading(1.0, unit) for _, unit in METRIC_WORDS.values())


@pytest.mark.parametrize("name", [*EXAMPLES, "profiled"])
def test_it_is_json_without_nan(name):
    data = machine_data(samples.profiled()) if name == "profiled" else watch_data(EXAMPLES[name](), "x")
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.slow
def test_hours_stay_well_under_a_megabyte():
    hour = watch_data(samples.server(3600.0), "x")
    assert len(json.dumps(hour, separators=(",", ":"))) < 150_000
    numbers = [len(values) for own in hour["history"].values() for _, values in own["columns"].values()]
    assert max(numbers) <= MOST_POINTS
    assert sum(numbers) + sum(len(own["t"]) for own in hour["history"].values()) <= MOST_NUMBERS


def test_numbers_of_the_history_are_what_was_read():
    made = samples.server(60.0)
    own = watch_data(made, "x")["history"]["gpu0"]
    frame = made.samples[made.samples["device"] == "gpu0"]
    assert np.cumsum(own["t"]) / 1000 == pytest.approx(frame["t_s"])
    for name, (factor, values) in own["columns"].items():
        told = [np.nan if value is None else factor * value for value in values]
        assert told == pytest.approx(frame[name].to_numpy(float, na_value=np.nan), rel=1e-3, nan_ok=True)
    assert own["broken"] == []
    assert "energy_j" not in own["columns"]  # no chart draws it


def test_a_gap_is_told_and_what_is_unknown_is_null():
    made = samples.laptop(60.0)
    own = watch_data(made, "x")["history"]["process"]
    frame = made.samples[made.samples["device"] == "process"].reset_index(drop=True)
    assert own["broken"] == [int(frame.index[frame["t_s"] == 46.0][0])]
    assert own["columns"]["cpu_percent"][1][0] is None


def test_thinned_points_are_means_and_the_newest_stay():
    rows = samples.rows_of(1000.0, devices=("process",))
    frame = samples.frame_of([row for row in rows if not 300 < row[1] < 330])
    points = thinned(frame, ["memory_bytes", "power_w"], 0.5, 300, latest=100)
    assert 250 < len(points.t_s) <= 302
    assert points.t_s[-100:].tolist() == frame["t_s"].tail(100).tolist()
    assert "power_w" not in points.values
    (gap,) = np.flatnonzero(points.broken)
    assert points.t_s[gap - 1] <= 300 < 330 <= points.t_s[gap]
    whole = thinned(frame, ["memory_bytes"], 0.5, 10_000)
    assert len(whole.t_s) == len(frame)
    first = np.mean(whole.values["memory_bytes"][: len(frame) // 200 + 1])
    assert points.values["memory_bytes"][0] == pytest.approx(first, rel=0.01)


def test_more_gaps_than_points_are_drawn_all_the_same():
    rows = [row for i, row in enumerate(samples.rows_of(2000.0, devices=("process",))) if i % 4 == 0]
    points = thinned(samples.frame_of(rows), ["memory_bytes"], 0.5, 100)
    assert len(points.t_s) <= 151


def test_a_row_that_stands_for_several_readings_is_no_gap():
    frame = samples.frame_of([("host", float(4 * i), 4.0, {"memory_bytes": 1.0}) for i in range(20)])
    assert thinned(frame, ["memory_bytes"], 0.5, 100).broken.sum() == 19
    assert thinned(frame.assign(readings=8), ["memory_bytes"], 0.5, 100).broken.sum() == 0


def test_while_it_runs_charts_of_what_may_come_are_there():
    made = samples.summary([], devices=["process", "host", "gpu0"], running=True)
    assert made.charts == ()
    keys = [chart["key"] for chart in watch_data(made, "x")["charts"]]
    assert {"cpu", "gpu", "power", "disk"} <= set(keys)
    assert [chart["key"] for chart in watch_data(made, "x", ["power"])["charts"]] == ["power"]
    assert watch_data(replace(made, running=False), "x")["charts"] == []


def test_names_are_short_and_visible():
    data = watch_data(samples.hostile(), "x")
    names = [name for name, *_ in data["marks"]] + list(data["words"].values()) + data["notes"]
    assert len(data["marks"]) == len(HOSTILE)
    assert all(escape.plain(name, 600) == name for name in names)


def test_the_widget_s_state_is_fresh_only_where_everything_is_asked_for():
    now = [samples.laptop(10.0, running=True)]
    asked: list[int] = []

    def refreshed():
        asked.append(1)
        return watch_data(now[0], "x")

    widget = WatchWidget(watch_data(now[0], "x"), refreshed)
    before = widget.data
    now[0] = samples.laptop(20.0, running=True)
    assert widget.get_state("chunk") == {"chunk": ""}
    assert widget.get_state({"data"})["data"] == before
    assert not asked
    fresh = json.loads(widget.get_state()["data"])
    assert fresh["history"]["host"]["until"] == 19.5
    assert widget.data == before
    widget.finish(watch_data(samples.laptop(30.0), "x"))
    asked.clear()
    assert json.loads(widget.get_state()["data"])["state"] == "stopped"
    assert not asked
    assert repr(widget) == "WatchWidget(2 devices)"


def test_a_push_sets_one_trait_from_a_thread():
    widget = WatchWidget(watch_data(samples.laptop(0, running=True), "x"), dict)
    seen: list[str] = []
    widget.observe(lambda change: seen.append(change["name"]))
    rows = [["process", 1.23456, None, {"cpu_percent": 12.3456789, "unheard_of": 1.0, "memory_bytes": None}]]
    pushing = threading.Thread(target=lambda: widget.push(rows, [["a\nb", 0, 0.5, None]], "<b>"))
    pushing.start()
    pushing.join()
    assert seen == ["chunk"]
    ((number, taken, marks, note),) = json.loads(widget.chunk)
    assert number == 1
    assert taken == [["process", 1.235, None, {"cpu_percent": 12.3457, "memory_bytes": None}]]
    assert marks == [["a\\nb", 0, 0.5, None]]
    assert note == "<b>"


def test_chunks_repeat_what_was_pushed_before_and_marks_come_once():
    widget = WatchWidget(watch_data(samples.laptop(0, running=True), "x"), dict)
    marks = [["cell 1", 0, 0.0, None]]
    for tick in range(FIRST_PUSHES):
        widget.push(samples.rows_of(0.5, start_s=0.5 * tick), marks)
    pushes = json.loads(widget.chunk)
    assert [number for number, *_ in pushes] == list(range(1, FIRST_PUSHES + 1))
    assert [len(new) for _, _, new, _ in pushes] == [1] + [0] * (FIRST_PUSHES - 1)
    widget.push([], [["cell 1", 0, 0.0, 9.0]])
    pushes = json.loads(widget.chunk)
    assert len(pushes) == REPEATED_PUSHES
    assert pushes[-1][2] == [["cell 1", 0, 0.0, 9.0]]
    widget.finish(watch_data(samples.laptop(10.0), "x"))
    assert widget.chunk == ""
    widget.push(samples.rows_of(1.0))
    assert widget.chunk == ""


def test_the_panel_s_script_is_small_and_shares_the_report_s_charts():
    script = assets.script("watching/js/panel.js")
    assert len(script.encode()) < 50_000
    assert script.count("export default") == 1
    assert "initialize" in script
    charts = {path for path in assets.in_order("watching/js/panel.js") if not path.endswith("panel.js")}
    assert {path for path in charts if path.startswith("watching")} <= set(assets.in_order("watching/js/machine.js"))


def test_only_the_report_of_a_watched_profile_carries_the_machine_s_script():
    plain = ReportWidget(report_data(summaries.small_cnn()))
    watched = ReportWidget(report_data(replace(summaries.small_cnn(), parts={"machine": samples.profiled()})))
    assert plain._esm == report_script(["layers", "ops"])
    assert "machineTab" not in plain._esm
    assert "pf-watch-grid" not in plain._css
    assert watched.get_state("_esm") == {"_esm": report_script(["layers", "ops", "machine"])}
    assert "pf-watch-grid" in watched.get_state("_css")["_css"]
    assert len(plain._esm.encode()) < len(watched._esm.encode()) < 100_000


@pytest.mark.slow
def test_a_report_has_a_machine_only_where_it_was_watched():
    plain = summaries.small_cnn()
    made = replace(plain, parts={"machine": samples.profiled()})
    assert report_data(plain)["machine"] is None
    assert report_data(made)["machine"]["steps"]["passes"][1] == ["timed", 6.2, 30.0, 30]
    for views in (summary_html, summary_text):
        assert "Machine" not in views(plain)
        assert "too few readings" in views(made)
    page = machine_html(samples.profiled())
    assert page.count('title="too few readings"') == 8
    check(page)


def test_phases_are_told_as_they_lie():
    made = samples.profiled()
    steps = machine_data(made)["steps"]
    starts, phases = np.cumsum(steps["stretches"]["start"]) / 1e6, made.steps.phases
    assert starts == pytest.approx(phases["start_s"].to_numpy(), abs=1e-6)
    words = [steps["phases"][place]["word"] for place in steps["stretches"]["phase"]]
    assert words[:3] == ["data", "host to device", "forward"]
    assert sum(steps["stretches"]["placed"]) == phases["placed"].sum()
    assert steps["by_phase"]["rows"][0][2:4] == ["184 %", None]


@pytest.mark.slow
def test_phases_and_metrics_of_which_nothing_is_known_are_left_out():
    made = samples.profiled()
    means = made.steps.by_phase
    few = (means.index.get_level_values("phase") == "loss") | (means.index.get_level_values("metric") == "power_w")
    lacking = replace(made, steps=replace(made.steps, by_phase=means.assign(mean=means["mean"].mask(few))))
    shown = machine_data(lacking)["steps"]["by_phase"]
    assert "loss" not in [mark["word"] for mark in shown["phases"]]
    assert not [row for row in shown["rows"] if "power" in row[1]]
    nothing = replace(made, steps=replace(made.steps, by_phase=means.assign(mean=pd.NA)))
    assert "No phase is long enough for a mean" in machine_html(nothing)
    assert any("No phase is long enough" in line for line in machine_text(nothing))


def test_of_very_many_phases_those_that_were_seen_are_kept():
    made = samples.profiled()
    phases = pd.concat([made.steps.phases] * 60)
    steps = machine_data(replace(made, steps=replace(made.steps, phases=phases)))["steps"]["stretches"]
    assert len(steps["start"]) == MOST_STRETCHES
    assert steps["left_out"] == len(phases) - MOST_STRETCHES
    assert steps["placed"].count(0) == (~phases["placed"]).sum()


@pytest.mark.slow
def test_a_profile_without_phases_has_a_machine():
    made = samples.profiled()
    bare = replace(made.steps, by_phase=made.steps.by_phase.head(0), phases=made.steps.phases.head(0))
    shown = replace(made, steps=bare)
    assert machine_data(shown)["steps"]["by_phase"] == {"phases": [], "rows": []}
    assert "Mean in each phase" not in machine_html(shown) + "\n".join(machine_text(shown))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (42.5, "42.5 s"), (125, "2:05 min"), (3599.7, "1:00:00 h"), (90_000, "25:00:00 h")],
)
def test_how_long(seconds, words):
    assert lasted(seconds) == words


def test_an_empty_frame_of_samples_is_no_error():
    made = samples.empty()
    assert watch_data(replace(made, samples=conform(pd.DataFrame(), "samples")), "x")["history"] == {}
    assert watch_text(made)[-1] == "No readings."
