"""`perfnb.watch` in a script: its frames, marks and life, and samples next to a profile."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import perfnb
from perfnb.draw.document import Table
from perfnb.profile.report import report_document
from perfnb.recording.schema import SCHEMA
from perfnb.telemetry.history import MOST_MARKS, Marks
from perfnb.watching.watch import CellMarks, LivePanel
from tests.waiting import wait_until
from tests.watching import watch_samples

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]


def sleeping_step(seconds: float) -> Callable[[], None]:
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        time.sleep(seconds)
        layer(torch.ones(1, 4)).sum().backward()

    return step


def read_again(w: perfnb.Watch, times: int = 3) -> None:
    """Wait until the sampler has read so often, however busy the machine is."""
    before = len(w.samples)
    devices = max(1, w.samples["device"].nunique())
    wait_until(lambda: len(w.samples) >= before + times * devices)


@pytest.mark.slow
def test_a_watch_gives_samples_marks_and_a_summary() -> None:
    with perfnb.watch(0.05) as w:
        with w.mark("outer"), w.mark("epoch 1"):
            read_again(w)
        with w.mark("epoch 2"):
            read_again(w)

    samples = w.samples
    assert list(samples.columns) == list(SCHEMA["samples"])
    assert {"host", "process"} <= set(samples["device"])
    assert set(samples["mark"].dropna()) == {"epoch 1", "epoch 2"}
    assert w.marks["name"].tolist() == ["outer", "epoch 1", "epoch 2"]
    assert w.marks["depth"].tolist() == [0, 1, 0]
    whole, part = w.summary(), w.summary("epoch 1")
    assert whole.loc[("process", "memory_bytes"), "max"] > 1e7
    assert 0 < part.loc[("process", "memory_bytes"), "readings"] < whole.loc[("process", "memory_bytes"), "readings"]
    with pytest.raises(ValueError, match="there is no mark 'epoch 3': did you mean 'epoch 2' or 'epoch 1'"):
        w.summary("epoch 3")
    assert "stopped" in repr(w)


def test_frames_are_the_readers_own() -> None:
    with perfnb.watch(0.05) as w:
        read_again(w)
    frame = w.samples
    frame["t_s"] = 0.0
    assert w.samples["t_s"].max() > 0


@pytest.mark.slow
def test_stopping_twice_and_asking_while_it_runs() -> None:
    w = perfnb.watch(0.05)
    read_again(w)
    assert w.running
    assert len(w.samples)
    w.stop()
    w.stop()
    assert not w.running


def test_an_exception_reaches_the_user_and_the_watch_ends() -> None:
    with pytest.raises(ZeroDivisionError), perfnb.watch(0.05) as w, w.mark("bad"):
        1 / 0  # noqa: B018
    assert not w.running
    assert w.marks["end_s"].notna().all()


@pytest.mark.slow
def test_an_absent_source_is_said_in_words_and_is_no_zero() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with perfnb.watch(0.05) as w:
        read_again(w)
    assert any(note.startswith("GPU: ") for note in w.notes)
    assert w.samples["busy_percent"].isna().all()
    assert w.samples["power_w"].isna().all()


@pytest.mark.slow
def test_a_saved_watch_is_loaded(tmp_path: Path) -> None:
    with perfnb.watch(0.05) as w, w.mark("a"):
        read_again(w)
    loaded = perfnb.load(w.save(tmp_path / "w"))
    assert isinstance(loaded, perfnb.Watch)
    pd.testing.assert_frame_equal(loaded.samples, w.samples)
    pd.testing.assert_frame_equal(loaded.summary(), w.summary())
    assert str(loaded) == str(w)
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
    profile = perfnb.profile_step(sleeping_step(0.12), warmup=1, steps=12, watch=True, memory=False, flops=False)

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
    profile = perfnb.profile_step(sleeping_step(0.001), warmup=1, steps=2, memory=False, flops=False)
    assert profile.samples.empty
    assert "machine" not in [tab.kind for tab in report_document(profile._summary).tabs]


@pytest.mark.slow
def test_a_watch_that_nobody_holds_ends() -> None:
    w = perfnb.watch(0.05)
    assert w._watcher is not None
    assert w._watcher._process is not None
    thread = w._watcher._process.thread
    del w
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("interval", ["fast", None, True])
def test_an_interval_that_is_no_number_is_refused(interval: object) -> None:
    with pytest.raises(TypeError, match="interval_s must be a number of seconds, not"):
        perfnb.watch(interval)  # type: ignore[arg-type]


@pytest.mark.slow
def test_metrics_in_one_text() -> None:
    with perfnb.watch(0.05, metrics="cpu, memory") as w:
        read_again(w)
    assert [chart.key for chart in w._summary().charts] == ["cpu", "memory"]


def test_marks_that_were_dropped_are_told_of() -> None:
    with perfnb.watch(0.5) as w:
        for number in range(MOST_MARKS + 1):
            with w.mark(f"step {number}"):
                pass
    assert any("marks were dropped" in note for note in w.notes)


def test_a_mark_after_the_end_is_not_kept_and_that_is_said() -> None:
    with perfnb.watch(0.05) as w:
        read_again(w)
    with pytest.warns(UserWarning, match="The watch has ended: the mark 'late' is ignored"), w.mark("late"):
        pass
    assert w.marks.empty


@pytest.mark.slow
def test_a_cell_may_be_asked_for_by_its_number_and_a_short_mark_has_no_figures() -> None:
    with perfnb.watch(0.3) as w:
        with w.mark("cell 5"):
            read_again(w)
        with w.mark("short"):
            pass
        read_again(w)
    assert len(w.summary(5)) == len(w.summary("cell 5")) > 0
    with pytest.raises(ValueError, match="the mark 'short' contains no readings"):
        w.summary("short")


@pytest.mark.parametrize("metrics", [[], 3, ""])
def test_metrics_that_are_none(metrics: object) -> None:
    with pytest.raises(ValueError, match="metric"):
        perfnb.watch(metrics=metrics)  # type: ignore[arg-type]


def test_whether_a_profile_is_watched_is_yes_or_no() -> None:
    with pytest.raises(TypeError, match="watch must be True or False, not 'no'"):
        perfnb.profile_step(lambda: None, watch="no")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_picture_of_nothing_says_so() -> None:
    with perfnb.watch(0.05) as w:
        read_again(w)
    assert [text.get_text() for text in w.plot("gpu").texts] == (
        ["Nothing to draw."] if not torch.cuda.is_available() else []
    )
    assert type(w.plot("cpu")).__name__ == "Figure"


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


def test_cells_are_marked_from_start_to_end_until_the_watch_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = _Shell()
    monkeypatch.setattr("perfnb.watching.watch.running_shell", lambda: shell)
    w = perfnb.watch(0.05)
    try:
        shell.tell("pre_run_cell")
        shell.execution_count += 1
        shell.tell("pre_run_cell")  # a cell that a cell runs
        shell.tell("post_run_cell")
        assert w.marks["name"].tolist() == ["cell 7", "cell 8"]
        assert w.marks["depth"].tolist() == [0, 1]
        assert w.marks["end_s"].isna().tolist() == [True, False]
        shell.tell("post_run_cell")
        assert w.marks["end_s"].notna().all()
    finally:
        w.stop()
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
