"""`Profile`: what `perfnb.profile_step` and `perfnb.load` give."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import pandas as pd

from perfnb.analysis_version import analysis_version
from perfnb.attribution.attribution import Attribution, attribute
from perfnb.attribution.device_work import WORK_COLUMNS
from perfnb.attribution.events import all_events, event_table
from perfnb.attribution.ops import kernel_table
from perfnb.diff.comparison import ProfileComparison, not_comparable
from perfnb.diff.layers import diff_profiles
from perfnb.draw import escape
from perfnb.errors import RecordingError
from perfnb.files import write_parts, write_text
from perfnb.gpu import tables as gpu_tables
from perfnb.gpu.device_time import gpu_time
from perfnb.gpu.events import GpuEvents, gpu_events
from perfnb.memory.allocations import Watched, allocation_table, watched_memory
from perfnb.memory.from_trace import trace_memory_table
from perfnb.memory.table import memory_table
from perfnb.profile.display import show, static_bundle
from perfnb.profile.page import standalone_page
from perfnb.profile.summary import Summary, ops_alone, summarize, timing_of
from perfnb.profile.text import summary_text
from perfnb.profile.timing import Timing, shown
from perfnb.recording import storage
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.recording.storage import TABLES, SavedProfile
from perfnb.roofline.roofline import Roofline
from perfnb.stats.step_times import times_in_words
from perfnb.timeline.timeline import Timeline, timeline_of
from perfnb.timeline.trace_export import trace_text
from perfnb.trace.chrome_writer import gzipped

#: Of no more events is kept which layer and phase each belongs to, some 50 bytes an event, once it was asked for.
_KEPT_EVENTS = 500_000


class Profile:
    """Where one step's time goes. Shows itself in a notebook; every table in it is a pandas frame.

    The tables are computed when first asked for. Each access gives a frame of its own, so that changing one changes
    nothing else. `events` is computed at each access and kept by nobody, for it is large: bind it to a name.
    """

    def __init__(self, source: Recording | SavedProfile) -> None:
        self._source = source

    @property
    def _measured_here(self) -> bool:
        """Whether this process ran the step, and did not load it."""
        return isinstance(self._source, Recording) and not self._source.is_loaded

    @cached_property
    def _recording(self) -> Recording:
        return self._source.recording() if isinstance(self._source, SavedProfile) else self._source

    def _table(self, name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table: as it was saved if it was, else computed."""
        version = analysis_version()
        saved = self._source.table(name, version) if version and isinstance(self._source, SavedProfile) else None
        return compute() if saved is None else saved

    @property
    def layers(self) -> pd.DataFrame:
        """Time per layer in milliseconds of a traced step, forward and backward, and its share of the step."""
        return self._table("layers", lambda: self._summary.layers.copy())

    @property
    def phases(self) -> pd.DataFrame:
        """Time per phase in milliseconds of a traced step; the rows add up to it."""
        return self._table("phases", lambda: self._summary.phases.copy())

    @property
    def steps(self) -> pd.DataFrame:
        """Every executed step: its pass, its wall time and wait for data in milliseconds, its batch's samples."""
        return conform(self._recording.steps.assign(rank=self._recording.rank), "steps")

    @property
    def ops(self) -> pd.DataFrame:
        """Calls and time per operator of a traced step, the heaviest first."""
        return self._table("ops", self._ops)

    def _ops(self) -> pd.DataFrame:
        return self._summary.ops.copy() if "_summary" in vars(self) else ops_alone(self._recording)

    @property
    def layer_ops(self) -> pd.DataFrame:
        """Calls and time per layer, operator and direction of a traced step, the heaviest first."""
        return self._table("layer_ops", lambda: self._summary.layer_ops.copy())

    @property
    def kernels(self) -> pd.DataFrame:
        """Calls and time of each GPU kernel, copy or fill, per traced step; empty without a GPU.

        Times are sums of durations: the rows add up to all work that the traced steps launched, divided by the number
        of steps.
        """
        return self._table("kernels", lambda: kernel_table(self._recording))

    @property
    def kernel_ops(self) -> pd.DataFrame:
        """Kernels, copies and fills by the operator that launched them and its input shapes, per traced step.

        ``op_calls`` counts calls of the operator, ``kernels`` different kernels, ``calls`` the kernels, copies and
        fills that ran; ``total_ms`` is the sum of their durations. ``layers`` is the number of layers that launched
        them, ``layer`` the one with most of this time and ``layer_share`` its share of it, 0 to 1. Shapes are known
        where they were recorded.
        """
        return gpu_tables.kernel_op_table(self._gpu_events(layers=True))

    @property
    def gpu_time(self) -> pd.DataFrame:
        """What each GPU did over the whole trace, in milliseconds: busy, computing, communicating, copying, idle.

        Each is the length of a union of intervals, not a sum; empty without a GPU.
        """
        return self._table("gpu_time", self._gpu_time)

    def _gpu_time(self) -> pd.DataFrame:
        return conform(gpu_time(all_events(self._recording, WORK_COLUMNS)), "gpu_time")

    @property
    def gpu_steps(self) -> pd.DataFrame:
        """As `gpu_time`, of each step: from the begin of the first work that it launched to the end of the last."""
        return gpu_tables.step_table(self._gpu_events())

    @property
    def gpu_idle(self) -> pd.DataFrame:
        """Why each GPU was idle, in milliseconds by step.

        Either the host was late to launch (``host_ms``, of it ``call_ms`` in the launching call and ``latency_ms`` from
        its return to the begin of the work), or a kernel had been launched and waited for another one, its stream or an
        event (``dependency_ms``), or nothing in the trace explains it (``other_ms``, of it ``unknown_ms`` where the
        launch is not in the trace). One gap can have several parts: the host's until the call returned, then another.
        A gap belongs to the step of the work after it, so that the rows of a GPU, with that of no step, add up to its
        idle time in `gpu_time`; ``before_ms`` is what stands before the first work of the step, which `gpu_steps`
        leaves out.
        """
        return gpu_tables.idle_table(self._gpu_events())

    @property
    def launches(self) -> pd.DataFrame:
        """What launching work on the GPU took, by the operator that launched it, per traced step.

        ``call_ms`` is the host's time in the launching calls, ``delay_us`` the median from the begin of a call to that
        of the work, ``short`` the number of kernels that ran for less time than their launch took.
        """
        return gpu_tables.launch_table(self._gpu_events())

    @property
    def queue(self) -> pd.DataFrame:
        """How much launched work had not begun: the length of each stream's queue from each change on.

        ``start_ns`` counts as that of `events`. Work whose launch is not in the trace is not counted.
        """
        return gpu_tables.queue_table(self._gpu_events())

    @property
    def critical_path(self) -> pd.DataFrame:
        """What set how long each step took: a chain of host, launches, GPU and waiting, without a gap.

        A step lasts until the last work that it launched has ended. ``start_ns`` counts as that of `events`; the
        durations of a step add up to it. Without a GPU the path is the host's.

        ``kind`` is one of these (in brackets the word of the report):

        - ``operator`` (ops on the host): the host at work in an op, as ``aten::mm``
        - ``call`` (GPU calls on the host): in a call of CUDA or HIP: launching, allocating, copying
        - ``host`` (host between ops): in neither: Python and other code
        - ``synchronisation`` (return from waiting): from the end of the awaited work until the waiting call returned
        - ``handover`` (change of thread): from the forward thread's work to the backward thread's, or back
        - ``launch`` (launch): from the begin of a launching call to that of its work, which waited for nothing else
        - ``computation``, ``communication``, ``memcpy`` (computation, communication, copies): work of the GPU
        - ``delay`` (gap between kernels): from the end of one kernel to the begin of the one that waited for it
        - ``unknown`` (not known): the trace does not tell what was waited for

        ``inferred`` marks a delay after work that the trace does not name as awaited: it ended just before, and nothing
        else explains the delay. ``name`` is that of the op, call or kernel, ``op`` the op that it is, lies in or was
        launched by.
        """
        return gpu_tables.path_table(self._gpu_events(layers=True))

    @property
    def path_savings(self) -> pd.DataFrame:
        """The parts of each step's critical path and what each would save, by kind and by operator, the longest first.

        ``path_ms`` bounds what removing a part can save; ``saves_ms`` is by how much the step is shorter when timed
        anew without it, missing for parts beyond the twelve longest and for time of which the trace does not tell what
        it was spent on. Takes about 3 s where the steps have 500,000
        events.
        """
        return gpu_tables.saving_table(self._gpu_events())

    @property
    def memory(self) -> pd.DataFrame:
        """Bytes alive by category at every change in the counted step, per device; empty where memory was not watched.

        Beside them what CUDA's allocator reserved, and on the CPU the process's resident memory.

        Of a loaded trace that records memory (``profile_memory=True``): the allocators' totals at every change in it,
        ``t_ms`` from the begin of its first step. Categories are missing, for a trace does not tell what memory is for.
        On the CPU ``total`` leaves out what was alive before the profiler recorded.
        """
        if self._recording.trace_memory is not None:
            return trace_memory_table(self._recording)
        watched = self._watched
        return conform(pd.DataFrame(), "memory") if watched is None else memory_table(watched)

    @property
    def allocations(self) -> pd.DataFrame:
        """Every allocation alive at some time in the counted step: its bytes, category, layer, phase, op and life.

        Times are nanoseconds from the step's begin: missing where it was made before, or freed after, what was watched.
        """
        watched = self._watched
        return conform(pd.DataFrame(), "allocations") if watched is None else allocation_table(watched)

    @property
    def roofline(self) -> Roofline | None:
        """How near layers and ops come to what the machine can do; ``None`` where arithmetic was not counted."""
        figures = self._summary.roofline
        return None if figures is None else Roofline(figures)

    @property
    def findings(self) -> pd.DataFrame:
        """What holds the step back: the most that removing it could save, what speaks for it, and what to try.

        The greatest bound first; what costs memory and no time comes last. Empty where nothing was found.
        """
        found = self._summary.findings
        return conform(pd.DataFrame(), "findings") if found is None else found.table.copy()

    @property
    def samples(self) -> pd.DataFrame:
        """What the machine did meanwhile, from the first step's begin on; empty where it was not watched."""
        watch = self._recording.watch
        return conform(pd.DataFrame(), "samples") if watch is None else watch.samples.copy()

    @property
    def events(self) -> pd.DataFrame:
        """Every event of the traced steps with its layer, phase and step; times in nanoseconds.

        Of a loaded trace also what belongs to no step.
        """
        return self._table("events", self._events)

    def _events(self) -> pd.DataFrame:
        if self._recording.events.empty:
            return conform(pd.DataFrame(), "events")
        return event_table(self._recording, self._attribution())

    @property
    def timing(self) -> Timing:
        """The step time of the timed pass, with its confidence interval."""
        return shown(timing_of(self._recording))

    def compare(self, other: Profile) -> ProfileComparison:
        """Set `other` beside this profile: what grew, what shrank, by layer, by operator, and the kernels behind it.

        Either may be a trace that was loaded, from whatever GPU. Layers are matched by name, and what is left by class,
        depth and place; operators through the tree of operators, not by the names of kernels.

        Raises
        ------
        TypeError
            If `other` is no profile. Of several ranks compare one with one: ``a[0].compare(b[0])``.
        """
        if not isinstance(other, Profile):
            raise TypeError(not_comparable(other))
        return ProfileComparison(diff_profiles(self._summary, other._summary), self._recording, other._recording)

    @property
    def meta(self) -> dict[str, Any]:
        """Name, options, environment, and what was found out about the run."""
        return deepcopy(dict(self._source.meta))

    def save(self, path: str | Path) -> Path:
        """Write the profile to the folder `path` (Parquet and JSON), whole or not at all.

        Its tables are in files of their own, ``table_layers.parquet`` and the like.

        Raises
        ------
        RecordingError
            If something that is no profile stands there, or it cannot be written.
        """
        return storage.save(self._recording, path, self._tables(), analysis_version())

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {name: getattr(self, name) for name in sorted(TABLES, key="ops".__eq__)}  # most come from one summary

    def to_html(self, path: str | Path) -> Path:
        """Write the report to one self-contained HTML file."""
        return write_text(standalone_page(self._summary, self._timeline()), path)

    def _gpu_events(self, layers: bool = False) -> GpuEvents:
        recording = self._recording
        known = self._attribution() if layers and len(recording.events) else None
        return gpu_events(recording, known)

    def _attribution(self) -> Attribution:
        known: Attribution | None = vars(self).get("_attributed")
        if known is None:
            known = attribute(self._recording)
            if len(self._recording.events) <= _KEPT_EVENTS:
                self._attributed = known
        return known

    @cached_property
    def _watched(self) -> Watched | None:
        return watched_memory(self._recording)

    @cached_property
    def _summary(self) -> Summary:
        recording = self._recording
        return summarize(recording, self._attribution() if len(recording.events) else None, self._watched)

    def save_trace(self, path: str | Path) -> Path:
        """Write a Chrome trace that Perfetto, chrome://tracing and `perfnb.load` open.

        It holds the events of the traced steps (of a loaded trace, all), each with its layer, phase and step, and
        beside them tracks of the steps, phases and layers, arrows from launches to kernels and from ops to their
        backward, and the curve of memory. Of a loaded trace also its allocations and frees, so that it comes back with
        its memory; that of a profiled step is of other steps than the traced ones, and comes back as no table. Of a
        loaded trace's own arguments those that perfnb reads are kept; grid, block, registers, occupancy, types, strides
        and values of inputs are not.

        Parameters
        ----------
        path : str or Path
            Compressed with gzip if it ends in ``.gz``.

        Raises
        ------
        RecordingError
            If no step was traced, or the file cannot be written.
        """
        timeline = self._timeline()
        if timeline is None:
            raise RecordingError("There is no trace to write: no step was traced.")
        parts = trace_text(self._recording, timeline)
        return write_parts(gzipped(parts) if str(path).endswith(".gz") else parts, path)

    def _timeline(self) -> Timeline | None:
        """When everything ran; computed anew each time, for it is large. ``None`` where no step was traced."""
        if self._recording.events.empty:
            return None
        return timeline_of(self._recording, self._attribution(), self._watched)

    def __str__(self) -> str:
        return summary_text(self._summary, timeline=self._timeline())

    def __repr__(self) -> str:
        timing, trace = self.timing, self._recording.meta.get("trace")
        if trace is not None:
            steps = self._recording.traced_steps
            words = f"{trace['events']:,} events, {steps} step{'s' * (steps != 1)}"
            return f"<perfnb.Profile of {escape.plain(trace['file'], 60)!r}: {words}>"
        step = "" if timing.median_ms is None else f"{times_in_words([timing.median_ms])} a step, "
        return f"<perfnb.Profile {escape.plain(self.meta['name'], 60)!r}: {step}{timing.steps} steps timed>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return static_bundle(self._summary, self._timeline())

    def _ipython_display_(self) -> None:
        show(self._summary, self._timeline(), WeakMethod(self._timeline))
