"""A watch as a document, as data for the browser, and the widget that takes readings from a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.as_text import document_text
from perfnb.draw.document import Document, Line, Picture, Series, Table, Value
from perfnb.draw.palette import LINES
from perfnb.recording.schema import METRICS, conform
from perfnb.telemetry.metrics import METRIC_WORDS, unit_of
from perfnb.watching.charts import Chart, ChartLine, charts_of, on_grid
from perfnb.watching.data import (
    MOST_STRETCHES,
    band_data,
    history_data,
    lasted,
    line_mark,
    panel_data,
    row_data,
)
from perfnb.watching.summary import MachineSummary
from perfnb.watching.view import watch_document, watch_series
from perfnb.watching.widget import FIRST_PUSHES, REPEATED_PUSHES, WatchWidget
from tests.samples import texts
from tests.samples.watching import DOCUMENTS
from tests.summaries import HOSTILE
from tests.watching import watch_samples as samples
from tests.watching.watch_samples import GIB


def machine(
    cpu: float = 100.0,
    own: float = 50.0,
    memory: float = 4.0,
    busy: Sequence[float] = (),
    cgroup: dict[str, float] | None = None,
    gpu_memory: float = 20.0,
) -> MachineSummary:
    """Return a machine with 2 cores and 16 GiB where nothing changes; memory in GiB."""
    of_devices: dict[str, dict[str, float | None]] = {
        "process": {"cpu_percent": own, "memory_bytes": 1.0 * GIB},
        "host": {"cpu_percent": cpu, "memory_bytes": memory * GIB},
    }
    if cgroup is not None:
        of_devices["cgroup"] = dict(cgroup)
    for number, percent in enumerate(busy):
        of_devices[f"gpu{number}"] = {"busy_percent": percent, "memory_bytes": gpu_memory * GIB}
    rows = [(device, 0.5 * tick, 0.5, values) for tick in range(20) for device, values in of_devices.items()]
    facts: dict[str, dict[str, Any]] = {
        "process": {},
        "host": {"cpus": 2, "memory_bytes": 16 * GIB},
        "cgroup": {"cpu_limit": 1.0, "memory_limit_bytes": 8 * GIB},
        **{f"gpu{number}": {"name": "H100", "memory_bytes": 80 * GIB} for number in range(len(busy))},
    }
    return replace(samples.summary(rows), facts={device: facts[device] for device in of_devices})


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (machine(cpu=200, own=18), "CPU saturated by others: host 200 %, you 18 %"),
        (machine(cpu=190, own=95), "CPU saturated: host 190 % of 200 %, you 95 %"),
        (machine(cpu=180, own=180), "CPU saturated: host 180 % of 200 %, you 180 %"),
        (machine(memory=15.25), "Memory near its limit: 15.2 GiB of 16.0 GiB, you 1.00 GiB"),
        (machine(busy=[5.0]), "Nothing saturated: CPU 100 % of 200 %, GPU busy 5.0 %, memory 4.00 GiB of 16.0 GiB"),
        (machine(cpu=179), "Nothing saturated: CPU 179 % of 200 %, memory 4.00 GiB of 16.0 GiB"),
        (machine(memory=15.125), "Nothing saturated: CPU 100 % of 200 %, memory 15.1 GiB of 16.0 GiB"),
        (
            machine(memory=15.5, cgroup={"memory_bytes": 7.75 * GIB}),
            "Memory near its limit: 7.75 GiB of 8.00 GiB (cgroup), you 1.00 GiB; 15.5 GiB of 16.0 GiB, you 1.00 GiB",
        ),
        (
            machine(cgroup={"cpu_percent": 89.0, "memory_bytes": 2.0 * GIB}),
            "Nothing saturated: CPU 89 % of 100 %, memory 2.00 GiB of 8.00 GiB (cgroup)",
        ),
        (machine(cgroup={"cpu_percent": 90.0}), "CPU limit of the cgroup reached: 90 % of 100 %"),
        (machine(busy=[30.0]), "GPU starved: busy for 30 % of the time, while you used 50 % CPU"),
        (machine(busy=[90, 20, 40]), "2 of 3 GPUs starved: busy for 20 % to 40 % of the time, while you used 50 % CPU"),
        (
            machine(busy=[50.0, 90.0]),
            "Nothing saturated: CPU 100 % of 200 %, GPUs busy 50 % to 90 %, memory 4.00 GiB of 16.0 GiB",
        ),
        (machine(busy=[0.0]), "Nothing saturated: CPU 100 % of 200 %, GPU busy 0 %, memory 4.00 GiB of 16.0 GiB"),
        (machine(busy=[90.0], gpu_memory=79), "Memory near its limit: 79.0 GiB of 80.0 GiB (GPU 0)"),
        (
            machine(cgroup={"cpu_percent": 99.0, "throttled_percent": 12.0, "memory_bytes": 2.0 * GIB}),
            "CPU limit of the cgroup reached: 99 % of 100 %, which paused it for 12 % of the time",
        ),
        (samples.empty(), "No readings"),
        (replace(samples.empty(), running=True), "No readings yet"),
    ],
)
def test_the_answer(seen: MachineSummary, sentence: str) -> None:
    assert watch_document(seen).verdict.sentence == sentence


def test_what_else_is_short_follows() -> None:
    verdict = watch_document(machine(cpu=200, own=190, busy=[30.0])).verdict
    assert verdict.sentence == "CPU saturated: host 200 % of 200 %, you 190 %"
    assert verdict.why == "GPU starved: busy for 30 % of the time, while you used 190 % CPU."


def table_of(document: Document, title: str) -> Table:
    (found,) = [part for part in document.sections if isinstance(part, Table) and part.title == title]
    return found


def test_figures_are_those_of_the_summary() -> None:
    made = replace(samples.server(), cost_percent=50.0)
    shown = watch_document(made)
    rows = {(row[0], row[1]): row[2:] for row in table_of(shown, "Over the whole watch").rows}
    assert len(rows) == len(made.table)
    used, written = rows["process", "CPU"], rows["process", "disk written"]
    assert used[0] == Value(made.table.at[("process", "cpu_percent"), "median"] / 100, "share")
    assert used[3] == ""
    assert written[3] == Value(made.table.at[("process", "disk_write_bytes_per_s"), "total"], "bytes")
    assert rows["GPU 0", "energy"][3].number == made.table.at[("gpu0", "energy_j"), "total"]
    assert shown.figures[0].value == pytest.approx(made.table.at[("gpu0", "busy_percent"), "median"] / 100)
    assert shown.facts == (
        *("watched for 2:00 min", "every 0.5 s", "240 readings, 1 missed", "99 % within 500 ms of the previous one"),
        "the sampler used 50 % of one core",
    )
    assert "GPU 0: PCIe counters cannot be read at times: not permitted." in shown.notes
    assert "no NVIDIA driver on this machine" in watch_document(samples.laptop()).notes
    assert watch_document(samples.laptop(running=True)).facts[0].startswith("watching for")


def test_unknown_energy_is_not_shown() -> None:
    made = samples.server(0.9)
    (row,) = [row for row in table_of(watch_document(made), "Over the whole watch").rows if row[1] == "energy"]
    assert row[5] == Value(None, "joules")


@pytest.mark.parametrize(("uncertainty", "bounds"), [(0.51, (99.49, 100.51)), (0.5, None), (None, None)])
def test_an_interval_of_energy_that_rounds_to_its_value_is_left_out(
    uncertainty: float | None, bounds: tuple[float, float] | None
) -> None:
    made = samples.server()
    made.table.loc[("gpu0", "energy_j"), ["total", "uncertainty"]] = 100.0, uncertainty
    (row,) = [row for row in table_of(watch_document(made), "Over the whole watch").rows if row[1] == "energy"]
    assert row[5] == Value(100.0, "joules", bounds)


def test_lines_are_what_was_read_and_ceilings_are_drawn_where_they_are_near() -> None:
    made = samples.server(60.0)
    (picture,) = [part for part in watch_document(made).sections if isinstance(part, Picture)]
    charts = {part.title: part for part in picture.static if isinstance(part, Series)}
    cpu, power = charts["CPU"], charts["Power"]
    frame = made.samples[made.samples["device"] == "gpu0"]
    assert power.at == pytest.approx(1e3 * frame["t_s"])
    assert power.lines[0].values == pytest.approx(frame["power_w"])
    assert cpu.levels == {"cgroup limit": 4.0}
    assert list(charts)[2] == "Memory"
    assert "CPU (all cores: 800 %)" in [part.title for part in watch_document(samples.laptop()).sections[0].static]  # type: ignore[union-attr]


def test_lines_of_a_chart_differ_in_colour() -> None:
    for made in (samples.laptop(), samples.server(10.0), samples.server(10.0, 8)):
        picture = watch_document(made).sections[0]
        assert isinstance(picture, Picture)
        lines: list[tuple[Line, ...]] = [part.lines for part in picture.static if isinstance(part, Series)]
        for own in lines:
            assert len({line.mark.colour for line in own}) == min(8, len(own))


@pytest.mark.parametrize(
    ("cpu", "title", "levels"), [(119, "CPU (all cores: 200 %)", {}), (120, "CPU", {"all cores": 2})]
)
def test_a_ceiling_is_drawn_from_60_percent_on(cpu: float, title: str, levels: dict[str, float]) -> None:
    made = machine(cpu=cpu)
    chart = next(watch_series(replace(made, charts=charts_of(made.samples, made.facts, ["cpu"]))))
    assert (chart.title, chart.levels) == (title, levels)


@pytest.mark.parametrize("gpus", [0, 2, 3])
def test_up_to_two_gpus_have_figures_of_their_own(gpus: int) -> None:
    figures = watch_document(machine(busy=[60.0, 70.0, 80.0][:gpus])).figures
    of_gpus = [("GPU 0 busy", 0.6, "share", "median"), ("GPU 1 busy", 0.7, "share", "median")][: gpus % 3]
    assert [(figure.label, figure.value, figure.unit, figure.basis) for figure in figures] == [
        *of_gpus,
        ("CPU of the process", 0.5, "share", "median"),
        ("CPU of the host", 1.0, "share", "median, of 200 %"),
        ("memory of the process", GIB, "bytes", "most"),
    ]


def test_every_mark_has_the_one_around_it() -> None:
    marks = [("d", 1, 5.0, None), ("a", 0, 1.0, 9.0), ("c", 2, 2.0, 3.0), ("b", 1, 1.0, 4.0), ("e", 0, 9.5, 9.5)]
    made = samples.summary(samples.rows_of(10.0), marks)
    assert table_of(watch_document(made), "Marks, newest first").rows == [
        ("e", "", 9500, 0, ""),
        ("d", "a", 5000, "still running", ""),
        ("c", "b", 2000, 1000, ""),
        ("b", "a", 1000, 3000, ""),
        ("a", "", 1000, 8000, ""),
    ]


def test_marks_say_what_they_are_inside() -> None:
    rows = table_of(watch_document(samples.laptop()), "Marks, newest first").rows
    assert rows[0] == ("evaluation", "epoch 4", 92_000.0, 3000.0, "")
    assert rows[-2] == ("cell 5", "", 16_000.0, "still running", "")
    passes = table_of(watch_document(samples.profiled(), "machine"), "Passes and marks").rows
    assert passes[1] == ("timed", "", 6200.0, pytest.approx(23_800), "30 steps")


def test_means_in_each_phase() -> None:
    made = samples.profiled()
    table = table_of(watch_document(made, "machine"), "Mean in each phase")
    assert [column.head for column in table.columns[2:5]] == ["data", "host to device", "forward"]
    assert table.rows[0] == (
        *("process", "CPU", Value(pytest.approx(1.842), "share"), Value(None, "share")),
        *(Value(pytest.approx(1.842 * (1 - 0.03 * place)), "share") for place in (2,)),
        Value(None, "share"),
        *(Value(pytest.approx(1.842 * (1 - 0.03 * place)), "share") for place in (4, 5)),
    )


def test_unknown_phases_and_metrics_are_omitted() -> None:
    made = samples.profiled()
    assert made.steps is not None
    means = made.steps.by_phase
    few = (means.index.get_level_values("phase") == "loss") | (means.index.get_level_values("metric") == "power_w")
    lacking = replace(made, steps=replace(made.steps, by_phase=means.assign(mean=means["mean"].mask(few))))
    table = table_of(watch_document(lacking, "machine"), "Mean in each phase")
    assert "loss" not in [column.head for column in table.columns]
    assert "power" not in [row[1] for row in table.rows]
    nothing = replace(made, steps=replace(made.steps, by_phase=means.assign(mean=pd.NA)))
    text = document_text(watch_document(nothing, "machine"))
    assert "No phase has enough readings for a mean" in text
    assert "Mean in each phase" not in text


def test_every_metric_has_a_word_and_a_unit() -> None:
    assert set(METRICS) == set(METRIC_WORDS)
    units = {unit_of(metric) for metric in METRICS}
    assert units == {"percent", "bytes", "bytes_per_s", "watts", "joules", "celsius", "megahertz", ""}
    assert all(fmt.reading(1.0, unit) for unit in units)


def test_a_long_history_has_no_more_points_and_numbers_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.watching.data.MOST_POINTS", 100)
    for most in (10_000, 500):
        monkeypatch.setattr("perfnb.watching.data.MOST_NUMBERS", most)
        long = panel_data(samples.server(60.0), "x")
        numbers = [len(values) for own in long["history"]["devices"].values() for _, values in own.values()]
        assert max(numbers) == min(100, most // len(numbers))
        assert sum(numbers) <= most


def test_numbers_of_the_history_are_what_was_read() -> None:
    made = samples.server(60.0)
    history = history_data(made)["history"]
    frame = made.samples[made.samples["device"] == "gpu0"]
    assert history["first"] + history["step"] * np.arange(120) == pytest.approx(frame["t_s"])
    for name, (factor, values) in history["devices"]["gpu0"].items():
        told = [np.nan if value is None else factor * value for value in values]
        assert told == pytest.approx(frame[name].to_numpy(float, na_value=np.nan), rel=1e-3, nan_ok=True)
    assert "energy_j" not in history["devices"]["gpu0"]  # no chart draws it


def test_the_grid_of_the_history_has_the_step_of_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.watching.data.MOST_POINTS", 30)
    history = history_data(samples.server(60.0))["history"]
    assert history["first"] == 0.0
    assert history["step"] == pytest.approx(59.5 / 29)
    (_, values) = history["devices"]["gpu0"]["power_w"]
    assert len(values) == 30
    once = samples.summary([("process", 3.0, None, {"cpu_percent": 5.0})], interval_s=0.5)
    assert history_data(once)["history"] | {"devices": {}} == {"first": 3.0, "step": 0.5, "devices": {}}


def test_phases_of_steps_lie_where_they_ran() -> None:
    made = samples.profiled()
    assert made.steps is not None
    steps, phases = history_data(made)["steps"], made.steps.phases.sort_values("start_s")
    starts = np.cumsum(steps["start"])
    assert starts / 1e6 == pytest.approx(phases["start_s"], abs=1e-6)
    assert (starts + steps["us"]) / 1e6 == pytest.approx(phases["end_s"], abs=1e-6)
    assert steps["placed"] == phases["placed"].tolist()
    words = [steps["phases"][place]["word"].replace(" ", "_") for place in steps["phase"]]
    assert [word.startswith(phase) for word, phase in zip(words, phases["phase"], strict=True)] == [True] * len(phases)


def test_what_is_unknown_is_null() -> None:
    own = history_data(samples.laptop(60.0))["history"]["devices"]["process"]
    assert own["cpu_percent"][1][0] is None
    memory = own["memory_bytes"][1]
    assert [place / 2 for place, value in enumerate(memory) if value is None] == [40.5 + n / 2 for n in range(11)]


def test_devices_that_are_read_at_times_of_their_own_share_a_grid() -> None:
    at = [7.0 + 2.0 * tick for tick in range(9)]
    rows = [(f"gpu{n}", t + 0.003 * n, 2.0, {"power_w": 5 * t + n}) for t in at for n in (0, 1)]
    made = samples.summary([row for row in rows if row[1] != 15.0], interval_s=2.0)
    times, values = on_grid(made.samples, made.charts, 2.0, 100)
    assert times.tolist() == at
    assert values["gpu1", "power_w"].tolist() == [5 * t + 1 for t in at]
    assert np.isnan(values["gpu0", "power_w"][4])
    coarse, values = on_grid(made.samples, made.charts, 2.0, 3)
    assert len(coarse) == 3
    assert values["gpu1", "power_w"][0] == np.mean([36.0, 46.0])
    # A reading counts as long as it covers, and the first one for an interval.
    two = samples.summary([("gpu0", 7.0, None, {"power_w": 8.0}), ("gpu0", 7.1, 1.5, {"power_w": 4.0})])
    assert on_grid(two.samples, two.charts, 0.5, 1)[1]["gpu0", "power_w"].tolist() == [5.0]


def test_while_it_runs_charts_of_what_may_come_are_there() -> None:
    made = samples.summary([], devices=["process", "host", "gpu0"], running=True)
    assert made.charts == ()
    keys = [chart["key"] for chart in panel_data(made, "x")["charts"]]
    assert {"cpu", "gpu", "power", "disk"} <= set(keys)
    assert [chart["key"] for chart in panel_data(made, "x", ["power"])["charts"]] == ["power"]
    assert history_data(made)["charts"] == []


def test_names_are_short_and_visible() -> None:
    data = panel_data(samples.hostile(), "x")
    names = [name for name, *_ in data["marks"]] + list(data["words"].values()) + data["notes"]
    assert len(data["marks"]) == len(HOSTILE)
    assert all(escape.plain(name, 600) == name for name in names)


def widget_of(make: Callable[[], MachineSummary]) -> WatchWidget:
    return WatchWidget(lambda: panel_data(make(), "x"))


def test_the_widget_s_state_is_fresh_only_where_everything_is_asked_for() -> None:
    now = [samples.laptop(10.0, running=True)]
    asked: list[int] = []

    def refreshed() -> MachineSummary:
        asked.append(1)
        return now[0]

    widget = widget_of(refreshed)
    before = widget.data
    now[0] = samples.laptop(20.0, running=True)
    asked.clear()
    assert widget.get_state("chunk") == {"chunk": ""}
    assert widget.get_state({"data"})["data"] == before
    assert not asked
    fresh = json.loads(widget.get_state()["data"])
    assert len(fresh["history"]["devices"]["host"]["memory_bytes"][1]) == 40
    assert widget.data == before
    widget.reload()
    assert len(json.loads(widget.data)["history"]["devices"]["host"]["memory_bytes"][1]) == 40
    widget.finish(watch_document(samples.laptop(30.0)), "x")
    asked.clear()
    ended = json.loads(widget.get_state()["data"])
    assert ended["verdict"]["sentence"].startswith("Nothing saturated")
    assert (ended["id"], ended["running"]) == ("x", False)
    assert not asked


def test_a_push_sets_one_trait_from_a_thread() -> None:
    widget = widget_of(lambda: samples.laptop(0, running=True))
    seen: list[str] = []
    widget.observe(lambda change: seen.append(change["name"]))
    rows = [("process", 1.23456, None, {"cpu_percent": 12.3456789, "unheard_of": 1.0, "memory_bytes": None})]
    pushing = threading.Thread(target=lambda: widget.push(rows, [("a\nb", 0, 0.5, None)], "<b>"))
    pushing.start()
    pushing.join()
    assert seen == ["chunk"]
    ((number, taken, marks, note),) = json.loads(widget.chunk)
    assert number == 1
    assert taken == [["process", 1.235, None, {"cpu_percent": 12.3457, "memory_bytes": None}]]
    assert marks == [["a\\nb", 0, 0.5, None, ""]]
    assert note == "<b>"


def test_chunks_repeat_what_was_pushed_before_and_marks_come_once() -> None:
    widget = widget_of(lambda: samples.laptop(0, running=True))
    for tick in range(FIRST_PUSHES):
        widget.push(samples.rows_of(0.5, start_s=0.5 * tick), [("cell 1", 0, 0.0, None)])
    pushes = json.loads(widget.chunk)
    assert [number for number, *_ in pushes] == list(range(1, FIRST_PUSHES + 1))
    assert [len(new) for _, _, new, _ in pushes] == [1] + [0] * (FIRST_PUSHES - 1)
    widget.push([], [("cell 1", 0, 0.0, 9.0)])
    pushes = json.loads(widget.chunk)
    assert len(pushes) == REPEATED_PUSHES
    assert pushes[-1][2] == [["cell 1", 0, 0.0, 9.0, ""]]
    widget.finish(watch_document(samples.laptop(10.0)), "x")
    assert widget.chunk == ""
    widget.push(samples.rows_of(1.0))
    assert widget.chunk == ""


def test_of_very_many_phases_those_that_were_seen_are_kept() -> None:
    made = samples.profiled()
    assert made.steps is not None
    phases = pd.concat([made.steps.phases] * 60)
    steps = history_data(replace(made, steps=replace(made.steps, phases=phases)))["steps"]
    assert len(steps["start"]) == MOST_STRETCHES
    assert steps["placed"].count(0) == (~phases["placed"]).sum()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *[(0, "0 s"), (0.099, "99.0 ms"), (0.1, "0.1 s"), (42.5, "42.5 s"), (59.9, "59.9 s"), (60, "1:00 min")],
        *[(125, "2:05 min"), (3599.4, "59:59 min"), (3599.5, "1:00:00 h"), (90_000, "25:00:00 h")],
    ],
)
def test_how_long(seconds: float, words: str) -> None:
    assert lasted(seconds) == words


def test_times_are_sent_in_milliseconds() -> None:
    values = {"cpu_percent": 1.0, "unknown metric": 2.0}
    assert row_data("host", 1.23456, 0.49949, values) == ["host", 1.235, 0.499, {"cpu_percent": 1}]
    assert row_data("host", 0.0, None, {}) == ["host", 0, None, {}]
    assert band_data("a", 1, 1.23456, 2.34567, "more") == ["a", 1, 1.235, 2.346, "more"]


def test_an_empty_frame_of_samples_is_not_an_error() -> None:
    made = replace(samples.empty(), samples=conform(pd.DataFrame(), "samples"))
    assert panel_data(made, "x")["history"]["devices"] == {}


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


@pytest.mark.parametrize(("count", "columns", "apart"), [(LINES, 2, True), (LINES + 1, 2, False), (4, 1, False)])
def test_lines_have_marks_of_their_own_unless_there_are_too_many(count: int, columns: int, apart: bool) -> None:
    lines = [ChartLine(f"gpu{place // columns}", f"column{place % columns}", f"w{place}") for place in range(count)]
    chart = Chart("key", "title", "percent", tuple(lines))
    marks = [line_mark(chart, line) for line in lines]
    assert [mark.word for mark in marks] == [line.word for line in lines]
    of_devices = [palette.line(place // columns, line.word) for place, line in enumerate(lines)]
    assert (marks == of_devices) is not apart
    assert (marks == [palette.line(place, line.word) for place, line in enumerate(lines)]) is (apart or columns == 1)
