"""Define `watch`, which records hardware telemetry while code runs."""

from __future__ import annotations

import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import shown, storable
from perfnb.draw.as_figure import series_figure
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented, document_bundle
from perfnb.draw.shown import live_bundle, twin_of
from perfnb.interrupts import InterruptGate
from perfnb.recording.recording import WatchRecord
from perfnb.recording.samples import watch_record
from perfnb.shell import in_notebook, running_shell
from perfnb.telemetry.history import Marks
from perfnb.telemetry.watcher import Watcher
from perfnb.watching.charts import CHARTS
from perfnb.watching.data import panel_data
from perfnb.watching.saved import save_watch
from perfnb.watching.summary import MachineSummary, inside_mark, machine_summary, machine_table
from perfnb.watching.view import watch_document, watch_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: The number of panels that a watch updates. If it is displayed in more places, the oldest ones stop updating.
MOST_PANELS = 4


class Watch(Documented):
    """Hardware telemetry that a separate process reads. A notebook displays it, live while it runs.

    It is a context manager that ends with its block. Create it with `watch`.
    """

    def __init__(
        self, source: Watcher | tuple[WatchRecord, Mapping[str, Any]], metrics: Sequence[str] | None = None
    ) -> None:
        self._watcher = source if isinstance(source, Watcher) else None
        self._kept = None if isinstance(source, Watcher) else source
        self._metrics = metrics
        self._marks, self._panels, self._renamed = Marks(), list[LivePanel](), 0
        # Callbacks must not keep a watch alive if nothing else refers to it.
        own = weakref.proxy(self)
        self._cells = CellMarks(own)
        if self._watcher is not None:
            self._watcher.on_rows = lambda rows: own._on_rows(rows)
            self._cells.start()

    def __del__(self) -> None:
        if getattr(self, "_watcher", None) is not None:
            self._cells.stop()

    @property
    def samples(self) -> pd.DataFrame:
        """The readings, with one row per device and reading.

        The columns are `t_s` (the time since the first reading), the device, its metrics, and the innermost mark. In a
        long watch, older rows represent several readings (`readings`), which are averaged over their `window_s`.
        """
        return self._record().samples

    @property
    def marks(self) -> pd.DataFrame:
        """The named intervals: the cells of the notebook, and blocks that you named with `mark`."""
        return self._record().marks

    @property
    def running(self) -> bool:
        """Whether the sampler is still reading."""
        return self._watcher is not None and self._watcher.running

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about missing sensors and other caveats."""
        meta = self._meta()
        return (*meta["absent"].values(), *meta["notes"])

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata, such as the interval and the devices."""
        return deepcopy(self._meta())

    def summary(self, mark: str | int | None = None) -> pd.DataFrame:
        """Return the median, 95th percentile and maximum of each metric, and the totals of rates and energy.

        Parameters
        ----------
        mark : str or int, optional
            Only use readings inside marks with this name. An integer refers to a cell, for example 5 to ``cell 5``.

        Returns
        -------
        DataFrame
            Indexed by ``device`` and ``metric``: ``median``, ``p95``, ``max``, ``total``, ``uncertainty`` and
            ``readings``. The total is in bytes for a rate, and in joules with an uncertainty for energy. The energy is
            missing for periods of less than 1 s.
        """
        record = self._record()
        if mark is None:
            return machine_table(record.samples, self._meta().get("exact"))
        return machine_table(inside_mark(record, f"cell {mark}" if isinstance(mark, int) else str(mark)))

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """Mark the code that runs in the block with a name. Marks can be nested."""
        __tracebackhide__ = True
        if self._watcher is None or self._kept is not None:
            warnings.warn(f"The watch has ended: the mark {shown(name)} is ignored.", stacklevel=3)
        number = self._marks.start(storable(str(name)), self._now())
        try:
            yield
        finally:
            self._marks.end(number, self._now())

    def plot(self, metrics: str | Sequence[str] | None = None) -> Figure:
        """Return the history as a matplotlib figure.

        Parameters
        ----------
        metrics : sequence of str, optional
            Some of ``cpu``, ``throttled``, ``memory``, ``gpu``, ``gpu-memory``, ``power``, ``temperature``, ``clocks``,
            ``pcie``, ``disk``, ``network``.
        """
        return series_figure(list(watch_series(self._summary(require_metrics(metrics)))), across=2)

    def save(self, path: str | Path) -> Path:
        """Write the watch atomically to the folder `path`, as Parquet and JSON. `perfnb.load` reads it back.

        Raises
        ------
        RecordingError
            If the folder contains something other than a saved watch, or if it cannot be written.
        """
        return save_watch(self._record(), self._meta() | {"running": False}, path)

    def stop(self) -> None:
        """Take a final reading and end the watch. If it has already ended, do nothing."""
        if self._watcher is None:
            return
        with InterruptGate():  # an interrupt would leave the watch in an undefined state
            self._cells.stop()
            self._watcher.stop()
            if self._kept is None:
                self._marks.end_all(self._now())
                self._kept = self._record(), self._meta()
            panels, self._panels = self._panels, []
            for panel in panels:
                panel.finish()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _document(self) -> Document:
        return watch_document(self._summary())

    def _line(self) -> str:
        meta = self._meta()
        state = "running" if self.running else "stopped"
        return f"{state}, every {meta['interval_s']:g} s, {fmt.counted(meta['ticks'], 'reading')}"

    def _ipython_display_(self) -> None:
        if not (self.running and self._watcher is not None and in_notebook()):
            super()._ipython_display_()
            return
        panel = LivePanel(self._summary, self._metrics, len(self._watcher.notes))
        panel.show()
        self._panels.append(panel)
        for old in self._panels[:-MOST_PANELS]:
            self._panels.remove(old)
            old.finish()

    def _now(self) -> float:
        return self._watcher.now_s() if self._watcher is not None else 0.0

    def _start_cell(self, name: str) -> int:
        return self._marks.start(name, self._now())

    def _end_cell(self, number: int) -> None:
        self._marks.end(number, self._now())
        if not self.running:
            self.stop()
        for panel in self._panels:
            panel.refresh()

    def _on_rows(self, rows: Any) -> None:
        """Pass rows on to the panels. This method is called from a thread."""
        watcher = self._watcher
        assert watcher is not None
        renamed, self._renamed = self._renamed != watcher.renamed, watcher.renamed
        for panel in list(self._panels):
            if renamed:
                panel.reload()
            panel.push(rows, self._marks, watcher.notes)

    def _record(self) -> WatchRecord:
        if self._kept is not None:
            record = self._kept[0]
            return WatchRecord(record.samples.copy(), record.marks.copy())
        assert self._watcher is not None
        return watch_record(self._watcher.columns(), self._marks.all())

    def _meta(self) -> dict[str, Any]:
        if self._kept is not None:
            return dict(self._kept[1])
        assert self._watcher is not None
        meta, dropped = self._watcher.meta, self._marks.dropped
        if dropped:
            meta["notes"].append(f"The oldest {dropped:,} marks were dropped because there were too many.")
        return meta

    def _summary(self, metrics: Sequence[str] | None = None) -> MachineSummary:
        return machine_summary(self._record(), self._meta(), metrics or self._metrics)


class CellMarks:
    """Marks each cell of the notebook with its number, such as ``cell 5``.

    This only works in IPython. It does not keep the watch alive.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._shell: Any = None
        self._open: list[int] = []  # a list, because a cell can run other cells
        self._ahead = 0

    def start(self) -> None:
        """Mark the cell that is currently running, and all later cells."""
        self._shell = running_shell()
        if self._shell is None:
            return
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        running = self._shell.displayhook.exec_result
        if running is not None:  # a cell is running
            # Newer versions of IPython increase the cell number before a cell runs, older versions afterwards.
            self._ahead = self._shell.execution_count - (running.execution_count or self._shell.execution_count)
            self._before()

    def stop(self) -> None:
        """Stop marking cells."""
        shell, self._shell = self._shell, None
        if shell is not None:
            for event, callback in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
                if callback in shell.events.callbacks[event]:
                    shell.events.unregister(event, callback)

    def _before(self, info: Any = None) -> None:
        self._open.append(self._watch._start_cell(f"cell {self._shell.execution_count - self._ahead}"))

    def _after(self, result: Any = None) -> None:
        if self._open:
            self._watch._end_cell(self._open.pop())


#: The number of seconds between updates of the panel, and of its static version.
_PUSHED_EVERY_S, _REFRESHED_EVERY_S = 0.25, 60.0
#: The number of marks, starting with the newest, that the panel gets with each update.
_MARKS_SHOWN = 100


class LivePanel:
    """A place in a notebook where a running watch is displayed.

    `summary` returns the current facts, `wanted` contains the keys of the charts, and `noted` is the number of notes
    that are already displayed.
    """

    def __init__(self, summary: Callable[[], MachineSummary], wanted: Sequence[str] | None, noted: int) -> None:
        self._summary, self._wanted = summary, wanted
        self._id = uuid.uuid4().hex[:12]
        self._widget: Any = None
        self._twin: Any = None
        self._waiting: list[Any] = []
        self._pushed = self._refreshed = 0.0
        self._changes, self._noted = -1, noted

    def show(self) -> None:
        """Display the watch here, as a live panel and a static version that the panel hides while it is live."""
        from IPython.display import DisplayHandle, display

        self._twin = DisplayHandle(display_id=f"perfnb-{self._id}")
        bundle = live_bundle(self._make_widget, self._id)
        self._twin.display(self._static(), raw=True)
        if bundle:
            display(bundle, raw=True)

    def push(self, rows: Sequence[Any], marks: Marks, notes: Sequence[str]) -> None:
        """Pass on the rows of a tick, or no rows at the end.

        This method is called from a thread, which is only allowed to change traits.
        """
        if self._widget is None:
            return
        self._waiting += rows
        now, new = time.monotonic(), list(notes[self._noted :])
        if not rows or new or now - self._pushed >= _PUSHED_EVERY_S:
            waiting, self._waiting, self._pushed = self._waiting, [], now
            changed, self._changes = marks.changes != self._changes, marks.changes
            self._noted += len(new)
            self._widget.push(waiting, marks.all(_MARKS_SHOWN) if changed else None, " ".join(new) or None)

    def reload(self) -> None:
        """Redraw everything after devices were renamed. This method is called from a thread."""
        if self._widget is not None:
            self._widget.reload()

    def refresh(self) -> None:
        """Update the static version if its last update was too long ago."""
        if time.monotonic() - self._refreshed > _REFRESHED_EVERY_S:
            self._twin.update(self._static(), raw=True)

    def finish(self) -> None:
        """Display the whole watch as a document, which remains in the notebook."""
        if self._widget is not None:
            self._widget.finish(watch_document(self._summary()), self._id)
        self._twin.update(self._static(), raw=True)

    def _make_widget(self, view_id: str) -> Any:
        from perfnb.watching.widget import WatchWidget

        self._widget = WatchWidget(lambda: panel_data(self._summary(), self._id, self._wanted))
        return self._widget

    def _static(self) -> dict[str, str]:
        self._refreshed = time.monotonic()
        static = document_bundle(watch_document(self._summary()))
        return static if self._widget is None else static | {"text/html": twin_of(self._id, static["text/html"])}


def watch(interval_s: float = 0.5, *, metrics: str | Sequence[str] | None = None) -> Watch:
    """Record hardware telemetry until `Watch.stop` is called or a ``with`` block ends.

    A separate process reads the sensors, so readings are not delayed by code that holds the GIL. The process ends when
    this process ends for any reason, or when nothing refers to the watch any more.

    Parameters
    ----------
    interval_s : float
        The number of seconds between readings, from 0.02 to 3600.
    metrics : sequence of str, optional
        The metrics to display, as in `Watch.plot`. All metrics are recorded, even if they are not displayed.

    Returns
    -------
    Watch

    Raises
    ------
    ValueError
        If the interval is out of range, or if a metric is unknown.
    CaptureError
        If the sampler's process cannot be started.
    """
    wanted = require_metrics(metrics)
    watcher = Watcher(interval_s)
    try:
        return Watch(watcher, wanted)
    except BaseException:
        watcher.stop()
        raise


def require_metrics(metrics: str | Sequence[str] | None) -> Sequence[str] | None:
    """Return the words that select charts. A string may contain several words separated by commas.

    Raises
    ------
    ValueError
        If a word is unknown.
    """
    if metrics is None:
        return None
    words = [word.strip() for word in metrics.split(",")] if isinstance(metrics, str) else metrics
    if not isinstance(words, (list, tuple)) or not words:
        raise ValueError(f"metrics must be one or more words, such as 'cpu, memory', not {shown(metrics)}.")
    for word in words:
        if word not in CHARTS:
            raise ValueError(f"there is no metric {shown(word)}: the metrics are {', '.join(CHARTS)}.")
    return words
