"""`perfnb.watch` in a script: its frames, marks and life, and samples next to a profile."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch

import perfnb
from perfnb.draw.document import Table
from perfnb.draw.documented import Documented
from perfnb.profile.report import report_document
from perfnb.recording.schema import SCHEMA
from perfnb.telemetry.history import MOST_MARKS, Marks
from perfnb.watching.watch import CellMarks, LivePanel
from tests.fake_clock import FakeClock
from tests.recordings import ByHand
from tests.waiting import wait_until
from tests.watching import watch_samples

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]


def read_again(w: perfnb.Watch, times: int = 3) -> None:
    """Wait until the sampler has read so often, however busy the machine is."""
    before = len(w.samples)
    devices = max(1, w.samples["device"].nunique())
    wait_until(lambda: len(w.samples) >= before + times * devices)


class _Sampler:
    """Replaces the sampler's process and reads when a test asks for it."""

    def __init__(self, interval_s: float, taker: Any, pid: int) -> None:
        self.ended, self.asked_to_end, self.taker = False, False, taker
        devices = {"host": {"cpus": 4, "memory_bytes": 2**30}}
        self.tell({"hello": {"devices": devices, "absent": {"GPU": "GPU: no driver"}, "zero_ns": 10**9}})
        self.read(0.0, 20.0)

    def tell(self, message: Any) -> None:
        self.taker()(message)

    def read(self, at_s: float, cpu_percent: float) -> None:
        before = 10**9 + round(at_s * 1e9)
        rows = [["host", before, before + 1000, {"cpu_percent": cpu_percent}]]
        self.tell({"rows": rows, "due": before, "missed": 0, "cpu": 0})

    def end(self) -> None:
        self.ended = True

    def last_words(self) -> str:
        return ""


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Iterator[Callable[..., perfnb.Watch]]:
    """Yield a function that starts a watch whose sampler reads when a test asks for it."""
    monkeypatch.setattr("perfnb.telemetry.watcher.SamplerProcess", _Sampler)
    started: list[perfnb.Watch] = []

    def start(**given: Any) -> perfnb.Watch:
        started.append(perfnb.watch(0.5, **given))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def sampler_of(w: perfnb.Watch) -> _Sampler:
    assert w._watcher is not None
    process: Any = w._watcher._process
    return process


def test_a_watch_gives_samples_marks_and_a_summary(by_hand: Callable[..., perfnb.Watch], clock: FakeClock) -> None:
    w = by_hand(metrics="cpu, memory")
    sampler = sampler_of(w)

    def read(at_s: float, cpu_percent: float) -> None:
        clock.now_ns = 10**9 + round((at_s + 0.25) * 1e9)
        sampler.read(at_s, cpu_percent)

    clock.now_ns = 10**9 + 10**8
    assert w.running
    assert w._line() == "running, every 0.5 s, 1 reading"
    with w.mark("outer"):
        with w.mark("epoch 1"):
            read(0.5, 10.0)
            read(1.0, 30.0)
        with w.mark("cell 5"):
            read(1.5, 50.0)
    with w.mark("short"):
        pass
    sampler.tell({"note": "a note"})
    with w.mark("epoch 1"):
        read(2.0, 70.0)
        assert w.summary("epoch 1").loc[("host", "cpu_percent"), "readings"] == 3  # it has not ended
    read(2.5, 90.0)
    w.stop()
    w.stop()

    assert (w.running, w._line()) == (False, "stopped, every 0.5 s, 6 readings")
    assert w.notes == ("GPU: no driver", "a note")
    samples = w.samples
    assert list(samples.columns) == list(SCHEMA["samples"])
    marks = samples["mark"].astype(object)
    assert marks.where(marks.notna(), None).tolist() == [None, "epoch 1", "epoch 1", "cell 5", "epoch 1", None]
    assert w.marks["name"].tolist() == ["outer", "epoch 1", "cell 5", "short", "epoch 1"]
    assert w.marks["depth"].tolist() == [0, 1, 1, 0, 0]
    figures = {
        mark: w.summary(mark).loc[("host", "cpu_percent"), ["median", "max", "readings"]].tolist()
        for mark in (None, "outer", "epoch 1", 5)
    }
    assert figures == {None: [40, 90, 6], "outer": [30, 50, 3], "epoch 1": [30, 70, 3], 5: [50, 50, 1]}
    with pytest.raises(ValueError, match=r"^there is no mark 'epoch 3': did you mean 'epoch 1' or 'cell 5'\?$"):
        w.summary("epoch 3")
    with pytest.raises(ValueError, match=r"^there is no mark 'zzzzz'; see `marks` for all of them\.$"):
        w.summary("zzzzz")
    with pytest.raises(ValueError, match=r"^the mark 'short' contains no readings, because it is shorter"):
        w.summary("short")
    assert [chart.key for chart in w._summary().charts] == ["cpu"]
    assert [text.get_text() for text in w.plot("memory").texts] == ["Nothing to draw."]
    assert w.plot("cpu").texts == []
    w.meta["notes"].append("changed")
    assert w.notes == ("GPU: no driver", "a note")


class _Panel:
    """Replaces a live panel and records its calls."""

    made: ClassVar[list[_Panel]] = []

    def __init__(self, summary: Any, wanted: Any, noted: int) -> None:
        self.told: list[Any] = [wanted, noted]
        self.made.append(self)

    def push(self, rows: Any, marks: Any, notes: Any) -> None:
        self.told.append((len(rows), len(marks.all()), list(notes)))

    def __getattr__(self, name: str) -> Any:
        return lambda: self.told.append(name)


def test_a_watch_is_live_at_the_last_four_places_that_show_it(
    by_hand: Callable[..., perfnb.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.watching.watch.LivePanel", _Panel)
    monkeypatch.setattr("perfnb.watching.watch.in_notebook", lambda: True)
    monkeypatch.setattr(_Panel, "made", made := [])
    static: list[Any] = []
    monkeypatch.setattr(Documented, "_ipython_display_", lambda self: static.append(self))
    w = by_hand(metrics=["cpu"])
    sampler = sampler_of(w)
    sampler.tell({"note": "known"})
    w._ipython_display_()
    number = w._start_cell("cell 1")
    sampler.read(0.5, 10.0)
    w._end_cell(number)
    assert w._watcher is not None
    w._watcher.renamed += 1
    sampler.read(1.0, 10.0)
    sampler.read(1.5, 10.0)
    pushed = (1, 1, ["known"])
    assert made[0].told == [["cpu"], 1, "show", pushed, "refresh", "reload", pushed, pushed]
    for _ in range(4):
        w._ipython_display_()
    assert [panel.told[-1] for panel in made] == ["finish", "show", "show", "show", "show"]
    number = w._start_cell("cell 2")
    sampler.ended = True
    w._end_cell(number)  # the sampler has ended by itself
    assert [panel.told[-1] for panel in made] == ["finish"] * 5
    assert not static
    w._ipython_display_()
    assert static == [w]
    monkeypatch.setattr("perfnb.watching.watch.in_notebook", lambda: False)
    other = by_hand()
    other._ipython_display_()
    assert static == [w, other]


@pytest.mark.parametrize("live", [False, True])
def test_a_panel_has_a_static_twin_that_comes_first(
    by_hand: Callable[..., perfnb.Watch], monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    shown: list[Any] = []

    class Handle:
        def __init__(self, display_id: str) -> None:
            self.display_id = display_id

        def display(self, bundle: Any, raw: bool) -> None:
            shown.append(self.display_id)

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    bundle = {"view": 1}
    monkeypatch.setattr("perfnb.watching.watch.live_bundle", lambda make, name: make(name) and bundle if live else None)
    w = by_hand()
    panel = LivePanel(w._summary, ["cpu"], 0)
    panel.show()

    assert shown == [f"perfnb-{panel._id}", *[bundle] * live]
    if live:
        data = json.loads(panel._widget.data)
        assert (data["id"], [chart["key"] for chart in data["charts"]]) == (panel._id, ["cpu"])


def test_a_watch_that_cannot_start_leaves_no_sampler(
    by_hand: Callable[..., perfnb.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_Sampler] = []
    monkeypatch.setattr(
        "perfnb.telemetry.watcher.SamplerProcess", lambda *given: (made.append(_Sampler(*given)), made[0])[1]
    )
    monkeypatch.setattr(CellMarks, "start", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        by_hand()
    assert made[0].ended


def test_frames_are_the_readers_own(by_hand: Callable[..., perfnb.Watch]) -> None:
    w = by_hand()
    frame = w.samples
    frame["t_s"] = 5.0
    assert w.samples["t_s"].tolist() == [0.0]


def test_an_exception_reaches_the_user_and_the_watch_ends(by_hand: Callable[..., perfnb.Watch]) -> None:
    with pytest.raises(ZeroDivisionError), by_hand() as w, w.mark("bad"):
        1 / 0  # noqa: B018
    assert not w.running
    assert w.marks["end_s"].notna().all()


def test_a_saved_watch_is_loaded(tmp_path: Path, by_hand: Callable[..., perfnb.Watch]) -> None:
    with by_hand() as w, w.mark("a"):
        sampler_of(w).read(0.5, 10.0)
    loaded = perfnb.load(w.save(tmp_path / "w"))
    assert isinstance(loaded, perfnb.Watch)
    pd.testing.assert_frame_equal(loaded.samples, w.samples)
    pd.testing.assert_frame_equal(loaded.summary(), w.summary())
    assert str(loaded) == str(w)
    loaded.stop()
    assert not loaded.running


def test_a_metric_that_does_not_exist_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="there is no metric 'gpus': the metrics are cpu, throttled, memory, gpu,"):
        perfnb.watch(metrics=["gpus"])


@pytest.mark.slow
def test_importing_the_watch_loads_no_torch() -> None:
    code = (
        "import perfnb, sys\nwith perfnb.watch(0.05) as w: pass\nassert len(w.samples) and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_watched_profile_has_samples_on_the_time_of_its_steps() -> None:
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        time.sleep(0.12)
        layer(torch.ones(1, 4)).sum().backward()

    profile = perfnb.profile_step(step, warmup=1, steps=12, watch=True, memory=False, flops=False)

    steps, samples = profile.steps, profile.samples
    assert steps["start_s"].iloc[0] == 0.0
    assert steps["start_s"].is_monotonic_increasing
    inside = samples["t_s"].between(0, float(steps["start_s"].iloc[-1]))
    assert inside.sum() > 0
    (machine,) = [tab for tab in report_document(profile._summary).tabs if tab.kind == "machine"]
    assert isinstance(machine.sections[-1], Table)
    assert [row[0] for row in machine.sections[-1].rows][:2] == ["warm-up", "timed"]
    assert profile.meta["watch"]["interval_s"] == 0.1


def test_a_profile_that_was_not_watched_has_no_samples() -> None:
    profile = perfnb.Profile(ByHand().step(0, 10).recording())
    assert profile.samples.empty
    assert "machine" not in [tab.kind for tab in report_document(profile._summary).tabs]


def test_marks_that_were_dropped_are_noted(by_hand: Callable[..., perfnb.Watch]) -> None:
    with by_hand() as w:
        for number in range(MOST_MARKS + 1):
            with w.mark(f"step {number}"):
                pass
    assert any("marks were dropped" in note for note in w.notes)


def test_a_mark_after_the_end_is_ignored_with_a_warning(by_hand: Callable[..., perfnb.Watch]) -> None:
    w = by_hand()
    w.stop()
    with pytest.warns(UserWarning, match="The watch has ended: the mark 'late' is ignored"), w.mark("late"):
        pass
    assert w.marks.empty


@pytest.mark.parametrize("metrics", [[], 3, ""])
def test_metrics_that_are_none(metrics: object) -> None:
    with pytest.raises(ValueError, match="metric"):
        perfnb.watch(metrics=metrics)  # type: ignore[arg-type]


def test_whether_a_profile_is_watched_is_yes_or_no() -> None:
    with pytest.raises(TypeError, match="watch must be True or False, not 'no'"):
        perfnb.profile_step(lambda: None, watch="no")  # type: ignore[arg-type]


class _Shell:
    """As much of IPython as marks cells."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[[Any], None]]] = {"pre_run_cell": [], "post_run_cell": []}
        self.execution_count, self.events, self.displayhook = 7, self, SimpleNamespace(exec_result=None)

    def register(self, event: str, callback: Callable[[Any], None]) -> None:
        self.callbacks[event].append(callback)

    def unregister(self, event: str, callback: Callable[[Any], None]) -> None:
        self.callbacks[event].remove(callback)

    def tell(self, event: str) -> None:
        for callback in list(self.callbacks[event]):
            callback(None)


def test_cells_are_marked_from_start_to_end_until_the_watch_stops(
    by_hand: Callable[..., perfnb.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = _Shell()
    monkeypatch.setattr("perfnb.watching.watch.running_shell", lambda: shell)
    w = by_hand()
    shell.tell("pre_run_cell")
    shell.execution_count += 1
    shell.tell("pre_run_cell")  # a cell that a cell runs
    shell.tell("post_run_cell")
    assert w.marks["name"].tolist() == ["cell 7", "cell 8"]
    assert w.marks["depth"].tolist() == [0, 1]
    assert w.marks["end_s"].isna().tolist() == [True, False]
    shell.tell("post_run_cell")
    assert w.marks["end_s"].notna().all()
    w.stop()
    assert shell.callbacks == {"pre_run_cell": [], "post_run_cell": []}


def test_a_watch_that_nobody_holds_marks_no_more_cells(
    by_hand: Callable[..., perfnb.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = _Shell()
    monkeypatch.setattr("perfnb.watching.watch.running_shell", lambda: shell)
    w = perfnb.watch(0.5)
    assert [len(callbacks) for callbacks in shell.callbacks.values()] == [1, 1]
    del w
    gc.collect()
    assert shell.callbacks == {"pre_run_cell": [], "post_run_cell": []}


class _Marked:
    """As much of a watch as cells are marked in."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def _start_cell(self, name: str) -> int:
        self.told.append(name)
        return len(self.told)

    def _end_cell(self, number: int) -> None:
        self.told.append(number)


@pytest.mark.parametrize(("counted", "next_cell"), [(7, "cell 8"), (6, "cell 7"), (None, "cell 8")])
def test_the_cell_that_starts_a_watch_is_marked_by_its_number(
    counted: int | None, next_cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, marked = _Shell(), _Marked()
    shell.displayhook.exec_result = SimpleNamespace(execution_count=counted)
    monkeypatch.setattr("perfnb.watching.watch.running_shell", lambda: shell)
    cells = CellMarks(marked)  # type: ignore[arg-type]
    cells.start()
    assert marked.told == [f"cell {counted or 7}"]
    assert [len(callbacks) for callbacks in shell.callbacks.values()] == [1, 1]
    shell.tell("post_run_cell")
    shell.tell("post_run_cell")  # of a cell that was not marked
    assert marked.told[1:] == [1]
    shell.execution_count += 1
    shell.tell("pre_run_cell")
    assert marked.told[2:] == [next_cell]
    shell.callbacks["pre_run_cell"].clear()  # another program has removed it
    cells.stop()
    cells.stop()
    assert shell.callbacks == {"pre_run_cell": [], "post_run_cell": []}


def test_outside_of_ipython_no_cell_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.watching.watch.running_shell", lambda: None)
    marked = _Marked()
    cells = CellMarks(marked)  # type: ignore[arg-type]
    cells.start()
    cells.stop()
    assert marked.told == []


class _Widget:
    """Takes what a panel sends to the page."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def push(self, rows: Any, marks: Any, note: Any) -> None:
        self.told.append((list(rows), marks if marks is None else [mark[0] for mark in marks], note))

    def reload(self) -> None:
        self.told.append("reload")

    def finish(self, document: Any, view_id: str) -> None:
        self.told.append("finish")


class _Twin:
    def __init__(self) -> None:
        self.updates = 0

    def update(self, bundle: Any, raw: bool) -> None:
        self.updates += 1


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[float]]]:
    """Yield a panel that a page shows, and the time of its clock."""
    now = [1000.0]
    monkeypatch.setattr("perfnb.watching.watch.time", SimpleNamespace(monotonic=lambda: now[0]))
    made: Any = LivePanel(lambda: watch_samples.laptop(), None, 1)
    made._widget, made._twin = _Widget(), _Twin()
    return made, now


def test_a_panel_gets_rows_four_times_a_second_and_news_at_once(panel: tuple[Any, list[float]]) -> None:
    shown, now = panel
    marks, told = Marks(), shown._widget.told
    marks.start("first", 0.0)
    shown.push(["a"], marks, ["known"])
    assert told == [(["a"], ["first"], None)]
    now[0] += 0.125
    shown.push(["b"], marks, ["known"])
    assert len(told) == 1
    now[0] += 0.125
    shown.push(["c"], marks, ["known"])
    assert told[1:] == [(["b", "c"], None, None)]
    shown.push(["d"], marks, ["known", "new", "newer"])
    assert told[2:] == [(["d"], None, "new newer")]
    shown.push(["e"], marks, ["known", "new", "newer"])
    marks.start("second", 1.0)
    shown.push([], marks, ["known", "new", "newer"])  # the end
    assert told[3:] == [(["e"], ["first", "second"], None)]
    shown.reload()
    assert told[4:] == ["reload"]


def test_the_static_twin_is_renewed_once_a_minute_and_at_the_end(panel: tuple[Any, list[float]]) -> None:
    shown, now = panel
    shown._static()
    now[0] += 60.0
    shown.refresh()
    assert shown._twin.updates == 0
    now[0] += 0.5
    shown.refresh()
    shown.refresh()
    assert shown._twin.updates == 1
    shown.finish()
    assert (shown._twin.updates, shown._widget.told) == (2, ["finish"])
    shown._widget = None
    shown.push(["a"], Marks(), [])
    shown.reload()
    shown.finish()
    assert shown._twin.updates == 3
