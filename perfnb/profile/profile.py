"""Provide `Profile`, which `perfnb.profile_step` and `perfnb.load` return."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import pandas as pd

from perfnb.analysis_version import analysis_version
from perfnb.attribution.collectives import collective_table
from perfnb.attribution.device_work import WORK_COLUMNS
from perfnb.attribution.events import all_events, event_table
from perfnb.attribution.tables import kernel_table
from perfnb.compiled.tables import compiled_kernel_table, region_table
from perfnb.diff.comparison import ProfileComparison, not_comparable
from perfnb.diff.layers import diff_profiles
from perfnb.diff.step_times import step_change_of
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.errors import RecordingError
from perfnb.files import write_parts
from perfnb.flame.host_profile import HostProfile
from perfnb.gpu import tables as gpu_tables
from perfnb.gpu.device_time import gpu_time
from perfnb.gpu.tables import GpuEvents, gpu_events
from perfnb.memory.allocations import allocation_table
from perfnb.memory.from_trace import trace_memory_table
from perfnb.profile.analysis import Analysis
from perfnb.profile.display import show, standalone_page
from perfnb.profile.kept_step import KeptStep
from perfnb.profile.outcome import origin, outcome_of
from perfnb.profile.reduced import ReducedProfile, reduced, summary_of_tables
from perfnb.profile.report import report_document
from perfnb.profile.summary import Summary, summarize
from perfnb.profile.timing import Timing, shown
from perfnb.profile.trackers import Logged, log_result
from perfnb.quantities import durations
from perfnb.recording import saved_profile
from perfnb.recording.outcome import Outcome
from perfnb.recording.recording import Recording
from perfnb.recording.saved_profile import REDUCED_TABLES, TABLES, SavedProfile
from perfnb.recording.schema import conform
from perfnb.roofline.roofline import Roofline, roofline_result
from perfnb.timeline.build import timeline_of
from perfnb.timeline.timeline import Timeline
from perfnb.timeline.trace_export import trace_text
from perfnb.trace.chrome_writer import gzipped


class Profile(Documented):
    """The profile of a step, which shows where the step spends its time.

    Notebooks display the profile as a report, and all of its tables are pandas DataFrames. Each table is computed when
    you first access it. Every access returns a new data frame, so you can modify it safely.
    `events` is large and is computed on every access, so assign it to a variable.
    """

    def __init__(self, source: Recording | SavedProfile | ReducedProfile, kept: KeptStep | None = None) -> None:
        self._source, self._kept = source, kept

    @property
    def _measured_here(self) -> bool:
        """Whether the step was run in this process rather than loaded from a file."""
        return isinstance(self._source, Recording) and not self._source.is_from_trace

    @cached_property
    def _recording(self) -> Recording:
        return self._source if isinstance(self._source, Recording) else self._source.recording()

    def _table(self, name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return a saved table if it exists, and compute the table otherwise."""
        saved = None if isinstance(self._source, Recording) else self._source.table(name, analysis_version())
        return compute() if saved is None else saved

    @property
    def _is_reduced(self) -> bool:
        """Whether only the tables of the profile were kept."""
        return "reduced" in self._source.meta

    def _reduced(self) -> Profile:
        """Return a copy of the profile without its trace, which has only a few hundred rows."""
        if self._is_reduced:
            return self
        return Profile(reduced(self._recording, self._summary, lambda name: getattr(self, name)))

    def _require_trace(self) -> None:
        if self._is_reduced:
            raise RecordingError(
                "This is not available because the profile was reduced to its tables when it was created. To keep the "
                "trace, create the profile with keep_trace=True."
            )

    @property
    def layers(self) -> pd.DataFrame:
        """The forward and backward time of each layer in a traced step, in milliseconds and as a share of the step."""
        return self._table("layers", lambda: self._analysis.layers.copy())

    @property
    def phases(self) -> pd.DataFrame:
        """The time of each phase in a traced step, in milliseconds. The rows add up to the step time."""
        return self._table("phases", lambda: self._analysis.phases.copy())

    @property
    def steps(self) -> pd.DataFrame:
        """All steps that were run, with their pass, wall time and data wait in milliseconds, and number of samples."""
        return conform(self._recording.steps.assign(rank=self._recording.rank), "steps")

    @property
    def ops(self) -> pd.DataFrame:
        """The number of calls and the time of each op in a traced step, sorted by time."""
        return self._table("ops", lambda: self._analysis.ops.copy())

    @property
    def layer_ops(self) -> pd.DataFrame:
        """The number of calls and the time in a traced step by layer, op and direction, sorted by time."""
        return self._table("layer_ops", lambda: self._analysis.layer_ops.copy())

    @property
    def kernels(self) -> pd.DataFrame:
        """The number of calls and the time of each GPU kernel, copy or fill, per traced step.

        Times are sums of durations. The rows add up to the time of all work launched by the traced steps, divided by
        the number of steps. The table is empty if no GPU was used.
        """
        return self._table("kernels", lambda: kernel_table(self._recording))

    @property
    def compiled(self) -> pd.DataFrame:
        """The kernels of compiled code per traced step, sorted by time.

        The table is empty if the layers of the kernels are not known. ``layers`` lists the layers whose operations the
        kernel computes, sorted by their share of its time. ``ms`` is the time on the GPU or, for kernels in C++, on the
        host. ``ops`` and ``source`` list these operations and the lines of your code that they come from. ``bytes`` is
        the number of bytes that one call reads or writes, and ``flops`` is the number of FLOPs. Both are derived from
        the shapes in the graph. ``bytes_per_s`` is the resulting bandwidth. ``graph`` is the number of the graph within
        the step.
        """
        self._require_trace()
        return compiled_kernel_table(self._recording)

    @property
    def compiled_regions(self) -> pd.DataFrame:
        """The regions that ``torch.compile`` compiled and their forward time per traced step, sorted by time.

        The index contains torch's numbers for the function and for the version of its code. ``overhead_ms`` is the part
        of ``ms`` that is spent outside kernels, excluding nested regions. ``lookup_ms`` is the time spent searching for
        a version whose guards are satisfied, and ``guards`` is the number of guards of this version. ``recompiled`` is
        the guard whose failure prevented torch from using an earlier version. If there was a graph break, ``broke`` is
        the reason for the break, ``broke_at`` is its location, and ``gap_ms`` is the time from the end of the graph to
        the next region. ``compile_s`` is the compile time.
        """
        self._require_trace()
        return region_table(self._recording)

    @property
    def collectives(self) -> pd.DataFrame:
        """The collectives in a traced step, such as the all-reduce of each DDP bucket, sorted by time.

        ``ms`` is the time from the call to the end of the collective on this rank. ``exposed_ms`` is the part of this
        time that is not hidden by other work. On the host, this is the phase *communication*. On a GPU, it is the time
        during which nothing else ran. If several collectives run at the same time, it is attributed to the one that
        ended first. ``bytes`` is the size of the largest tensor, or list of tensors, that is passed to one call.
        ``bytes_per_s`` is the algorithm bandwidth, which is ``bytes`` divided by the transfer time or, if only one rank
        is known, by the running time. ``waiting_ms`` (the time spent waiting for the last rank to arrive) and
        ``transfer_ms`` require several ranks (see `Ranks`). ``layer`` is the layer that FSDP or the calling code
        belongs to, and ``bucket`` is the number of the DDP bucket within the step.
        """
        self._require_trace()
        attribution, calls = self._analysis.attribution, self._analysis.collectives
        if attribution is None or calls is None:
            return conform(pd.DataFrame(), "collectives")
        return collective_table(calls, attribution.steps)

    @property
    def kernel_ops(self) -> pd.DataFrame:
        """Kernels, copies and fills per traced step, grouped by the op that launched them and the op's input shapes.

        ``op_calls`` is the number of calls to the op, ``kernels`` is the number of distinct kernels, and ``calls`` is
        the number of kernels, copies and fills that ran. ``total_ms`` is the sum of their durations. ``layers`` is the
        number of layers that launched them, ``layer`` is the layer with the most time, and ``layer_share`` is that
        layer's share, from 0 to 1. Input shapes are included if they were recorded.
        """
        return gpu_tables.kernel_op_table(self._gpu_events(layers=True))

    @property
    def gpu_time(self) -> pd.DataFrame:
        """The time that each GPU was busy, computing, communicating, copying and idle, in milliseconds.

        The table covers the whole trace. Each figure is the length of a union of intervals, not a sum of durations. The
        table is empty if no GPU was used.
        """
        return self._table("gpu_time", lambda: conform(gpu_time(all_events(self._recording, WORK_COLUMNS)), "gpu_time"))

    @property
    def gpu_steps(self) -> pd.DataFrame:
        """The same as `gpu_time`, but for each step.

        A step lasts from the start of the first work that it launched to the end of the last.
        """
        return gpu_tables.step_table(self._gpu_events())

    @property
    def gpu_idle(self) -> pd.DataFrame:
        """The reasons why each GPU was idle, in milliseconds per step.

        There are three reasons:

        - ``host_ms``: the host was late. This includes ``call_ms``, the time inside the launch call, and
          ``latency_ms``, the time from the call's return to the start of the work.
        - ``dependency_ms``: the launched work had to wait for other work, its stream or an event.
        - ``other_ms``: the trace does not explain the gap. This includes ``unknown_ms``, which is used if the launch is
          not in the trace.

        If there are two reasons for a gap, the host's part lasts until the call returned. A gap belongs to the step of
        the work that follows it. This means that the rows of a GPU, including the row without a step, add up to its
        idle time in `gpu_time`. ``before_ms`` is the part before the step's first work, which is not included in
        `gpu_steps`.
        """
        return gpu_tables.idle_table(self._gpu_events())

    @property
    def launches(self) -> pd.DataFrame:
        """The cost of launching GPU work per traced step, by the op that launched it.

        ``call_ms`` is the host time spent in launch calls, ``delay_us`` is the median time from the start of a call to
        the start of its work, and ``short`` is the number of kernels that took less time than their launch.
        """
        return gpu_tables.launch_table(self._gpu_events())

    @property
    def queue(self) -> pd.DataFrame:
        """The length of each stream's queue after each change.

        The queue contains the work that has been launched but has not started yet. ``start_ns`` uses the same clock as
        `events`. Work whose launch is not in the trace is not counted.
        """
        return gpu_tables.queue_table(self._gpu_events())

    @property
    def critical_path(self) -> pd.DataFrame:
        """The critical path of each step: an unbroken chain of host work, launches, GPU work and waiting.

        The critical path determines the duration of a step, which lasts until the last work that it launched has ended.
        ``start_ns`` uses the same clock as `events`, and the durations on the path add up to the duration of the step.
        Without a GPU, the path consists only of host work.

        ``kind`` is one of the following. The term used in the report is in parentheses.

        - ``operator`` (ops on the host): the host was inside an op such as ``aten::mm``
        - ``call`` (GPU calls on the host): the host was inside a CUDA or HIP call, such as launching, allocating or
          copying
        - ``host`` (host between ops): the host was running Python or other code
        - ``synchronisation`` (return from waiting): from the end of the awaited work until the blocking call returned
        - ``handover`` (change of thread): from the forward thread's work to the backward thread's work, or back
        - ``launch`` (launch): from the start of a launch call to the start of its work, if the work did not wait for
          anything else
        - ``computation``, ``communication``, ``memcpy`` (computation, communication, copies): GPU work
        - ``delay`` (gap between kernels): from the end of a kernel to the start of a kernel that waited for it
        - ``unknown`` (not known): the trace does not show what caused the wait

        ``inferred`` marks delays whose cause is not recorded in the trace. In these cases, the preceding work ended
        just before, and nothing else explains the delay. ``name`` is the op, call or kernel. ``op`` is the same op, or
        the op that contains or launched it.
        """
        return gpu_tables.path_table(self._gpu_events(layers=True))

    @property
    def path_savings(self) -> pd.DataFrame:
        """The parts of each step's critical path by kind and by op, and how much removing each part would save.

        The parts are sorted by time. ``path_ms`` is the maximum time that removing a part can save. ``saves_ms`` is the
        difference in step time when the step is replayed without this part. It is only computed for the twelve longest
        parts, and it is missing for time whose cause is not in the trace. The computation takes about 3 s for steps
        with 500,000 events.
        """
        return gpu_tables.saving_table(self._gpu_events())

    @property
    def memory(self) -> pd.DataFrame:
        """The number of allocated bytes by category and device after every change in the counted step.

        ``reserved`` is the amount of memory reserved by the CUDA allocator. For the CPU, ``process`` is the resident
        memory of the process. The table is empty if memory was not recorded.

        For a loaded trace that records memory (``profile_memory=True``), the table contains the totals of the
        allocators after every change, and ``t_ms`` is relative to the start of the first step. Categories are missing
        because a trace does not record the purpose of memory. On the CPU, ``total`` excludes memory that was allocated
        before the profiler started recording.
        """
        self._require_trace()
        if self._recording.trace_memory is not None:
            return trace_memory_table(self._recording)
        return self._analysis.memory_table.copy()

    @property
    def allocations(self) -> pd.DataFrame:
        """Every allocation that was alive during the counted step, with bytes, category, layer, phase, op and lifetime.

        Times are in nanoseconds since the start of the step. They are missing for memory that was allocated before the
        recorded steps or freed after them.
        """
        self._require_trace()
        watched = self._analysis.watched
        return conform(pd.DataFrame(), "allocations") if watched is None else allocation_table(watched)

    @property
    def roofline(self) -> Roofline | None:
        """The roofline, which shows how close layers and ops come to the machine's peak rates.

        This is ``None`` if arithmetic was not counted.
        """
        self._require_trace()
        figures = self._analysis.roofline
        return None if figures is None else roofline_result(figures)

    @property
    def findings(self) -> pd.DataFrame:
        """The findings about what slows the step down, with the maximum saving, the evidence, and a change to try.

        Findings are sorted by the maximum time that can be saved. Findings that cost memory but no time come last. The
        table is empty if nothing was found.
        """
        findings = self._summary.findings if self._is_reduced else self._analysis.findings
        return conform(pd.DataFrame(), "findings") if findings is None else findings.table.copy()

    @property
    def samples(self) -> pd.DataFrame:
        """The hardware telemetry recorded during the run, starting at the first step; empty if it was not recorded."""
        watch = self._recording.watch
        return conform(pd.DataFrame(), "samples") if watch is None else watch.samples.copy()

    @property
    def events(self) -> pd.DataFrame:
        """All events in the traced steps, with their layer, phase and step. Times are in nanoseconds.

        For a loaded trace, events outside steps are included.
        """
        return self._table("events", self._events)

    def _events(self) -> pd.DataFrame:
        self._require_trace()
        attribution = self._analysis.attribution
        return conform(pd.DataFrame(), "events") if attribution is None else event_table(self._recording, attribution)

    @property
    def python(self) -> HostProfile | None:
        """The time of each Python function within each phase and layer, in milliseconds per step.

        The time of each loader worker is listed next to the phases. Python code is sampled in a separate pass without
        tracing overhead. This happens if ``stacks=True`` or if the host's own code takes a large share of the step.
        Otherwise, the result is ``None``.
        """
        found = self._analysis.stacks
        return None if found is None else HostProfile(found.record)

    @property
    def lines(self) -> pd.DataFrame:
        """The time of each line of your own code in each phase, sorted by ``self_ms``.

        ``self_ms`` is the time of a line, including the library code that it calls but excluding your other lines.
        ``total_ms`` includes those lines as well. ``process`` specifies whether the line ran in the ``step`` or in
        ``loader workers``, and ``share`` is its share of the time there. Your own code is all code that is part of
        neither Python nor an installed package. The table is empty if Python code was not sampled (see `python`).
        """
        found = self._analysis.stacks
        return conform(pd.DataFrame(), "lines") if found is None else found.lines.copy()

    @property
    def timing(self) -> Timing:
        """The step times from the timed pass, along with their confidence interval."""
        return shown(self._analysis.timing)

    def compare(self, other: Profile) -> ProfileComparison:
        """Compare `other` with this profile, and show which layers, ops and kernels became slower or faster.

        Either profile may be a loaded trace from any GPU. Layers are matched by name, and the remaining layers are
        matched by class, depth and position. Ops are matched by their position in the op tree, not by the names of
        their kernels.

        Parameters
        ----------
        other : Profile
            The profile to compare with this one, usually the later one.

        Returns
        -------
        ProfileComparison

        Raises
        ------
        TypeError
            If `other` is not a profile. To compare jobs with several ranks, compare individual ranks instead, for
            example with ``a[0].compare(b[0])``.
        """
        if not isinstance(other, Profile):
            raise TypeError(not_comparable(other))
        change = step_change_of(self.steps, other.steps)
        return ProfileComparison(
            diff_profiles(self._summary, other._summary, change), self._recording, other._recording
        )

    @property
    def meta(self) -> dict[str, Any]:
        """The profile's name, options and environment, and other information about the run."""
        return deepcopy(dict(self._source.meta))

    def save(self, path: str | Path) -> Path:
        """Save the profile atomically to the folder `path`, as Parquet and JSON files.

        Each table is written to a separate file, such as ``table_layers.parquet``. The JSON file also contains the
        verdict and the findings from the first time the profile was saved, under ``outcome``.

        Raises
        ------
        RecordingError
            If `path` contains anything other than a profile, or cannot be written.
        """
        return saved_profile.save(self._recording, path, self._tables(), analysis_version(), self._outcome())

    def log_to(self, target: Any, step: int | None = None) -> list[str]:
        """Log the figures, layers, report and verdict to a run in an experiment tracker.

        The names of the figures start with ``perfnb/profile/``, for example ``perfnb/profile/step_ms``. Unknown figures
        are not logged.

        Parameters
        ----------
        target : object
            An MLflow run, the module ``mlflow`` if it has an open run, a Weights & Biases run, a TensorBoard
            ``SummaryWriter``, or an Aim run.
        step : int, optional
            The training step at which to log them.

        Returns
        -------
        list of str
            A sentence for each part that could not be logged. The list is empty if everything was logged.

        Raises
        ------
        TypeError
            If `target` is anything else.
        PerfnbError
            If the tracker has no open run.
        """
        summary = self._summary
        more = {"samples_per_s": summary.timing.throughput_per_s, "flops_utilisation": summary.mfu}
        return log_result(Logged("profile", self, self._outcome(), more, self.layers), target, step)

    def _outcome(self) -> Outcome:
        """Return the outcome from the first time the profile was saved, or the current outcome otherwise."""
        if isinstance(self._source, SavedProfile) and self._source.outcome is not None:
            return self._source.outcome
        here = {} if self._recording.is_from_trace or isinstance(self._source, SavedProfile) else origin()
        return outcome_of(self._summary, {**here, **self._source.meta["environment"]})

    def _tables(self) -> dict[str, pd.DataFrame]:
        wanted = REDUCED_TABLES if self._is_reduced else TABLES
        return {name: getattr(self, name) for name in wanted}

    def _page(self) -> str:
        return standalone_page(self._summary, self._timeline())

    def _gpu_events(self, layers: bool = False) -> GpuEvents:
        self._require_trace()
        return gpu_events(self._recording, self._analysis.attribution if layers else None)

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(self._recording)

    @cached_property
    def _summary(self) -> Summary:
        if self._is_reduced:
            return summary_of_tables(self._recording, lambda name: getattr(self, name))
        return summarize(self._recording, self._analysis)

    def save_trace(self, path: str | Path) -> Path:
        """Write a Chrome trace that you can open with Perfetto, chrome://tracing or `perfnb.load`.

        The file contains the events in the traced steps (or all events if this is a loaded trace), along with their
        layer, phase and step. It also contains tracks for steps, phases and layers, arrows from launches to kernels and
        from ops to their backward pass, and the memory curve.

        For a loaded trace, the file also contains allocations and frees, so the table ``memory`` is available again
        when you load the file. This is not possible for a profiled step, because memory is recorded in a different step
        than the traced ones. Event arguments from a loaded trace are written only if perfnb reads them. The grid,
        block, registers, occupancy, and the types, strides and values of inputs are dropped.

        Parameters
        ----------
        path : str or Path
            The file to write. It is compressed with gzip if its name ends in ``.gz``.

        Raises
        ------
        RecordingError
            If no step was traced, or the file cannot be written.
        """
        self._require_trace()
        timeline = self._timeline()
        if timeline is None:
            raise RecordingError("There is no trace to write, because no step was traced.")
        parts = trace_text(self._recording, timeline)
        return write_parts(gzipped(parts) if str(path).endswith(".gz") else parts, path)

    def _timeline(self) -> Timeline | None:
        """Return the timeline of all events, or ``None`` if no step was traced.

        The timeline is large, so it is computed on every call instead of being stored.
        """
        attribution = self._analysis.attribution
        return None if attribution is None else timeline_of(self._recording, attribution, self._analysis.watched)

    def _document(self) -> Document:
        return report_document(self._summary, self._timeline())

    def __repr__(self) -> str:
        timing, trace = self.timing, self._recording.meta.get("trace")
        if trace is not None:
            steps = self._recording.traced_steps
            words = f"{trace['events']:,} events, {steps} step{'s' * (steps != 1)}"
            return f"<perfnb.Profile of {escape.plain(trace['file'], 60)!r}: {words}>"
        step = "" if timing.median_ms is None else f"{durations([timing.median_ms])} per step, "
        return f"<perfnb.Profile {escape.plain(self.meta['name'], 60)!r}: {step}{timing.steps} steps timed>"

    def _ipython_display_(self) -> None:
        show(self._summary, self._timeline(), WeakMethod(self._timeline), self._kept)
