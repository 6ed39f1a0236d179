"""`Profile`, and the way to one: `profile_step`. `perfnb.loading` has the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.analysis import gpu_tables
from perfnb.analysis.allocations import allocation_table, watched_memory
from perfnb.analysis.attribution import attribute
from perfnb.analysis.events import all_events, event_table
from perfnb.analysis.gpu_events import GpuEvents, gpu_events
from perfnb.analysis.gpu_time import gpu_time
from perfnb.analysis.memory import memory_table
from perfnb.analysis.ops import kernel_table
from perfnb.analysis.profile_diff import diff_profiles
from perfnb.analysis.summary import Summary, summarize, timing_of
from perfnb.analysis.timeline import Timeline, timeline_of
from perfnb.analysis.trace_export import trace_text
from perfnb.errors import RecordingError
from perfnb.frames import storage
from perfnb.frames.recording import Recording
from perfnb.frames.schema import conform
from perfnb.profile_diff import ProfileComparison, not_comparable
from perfnb.roofline import Roofline
from perfnb.timing import Timing, shown
from perfnb.traces.chrome_writer import gzipped
from perfnb.views.display import in_notebook, show, static_bundle
from perfnb.views.page import standalone_page
from perfnb.views.progress import Progress
from perfnb.views.text import summary_text

if TYPE_CHECKING:
    from torch import nn

    Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


#: Seconds between readings of the machine during a profile.
WATCH_INTERVAL_S = 0.1


class Profile:
    """Where one step's time goes. Shows itself in a notebook; every table in it is a pandas frame.

    The tables are computed when first asked for. Each access gives a frame of its own, so that changing one changes
    nothing else. `events` is computed at each access and kept by nobody, for it is large: bind it to a name.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def layers(self) -> pd.DataFrame:
        """Time per layer in milliseconds of a traced step, forward and backward, and its share of the step."""
        return self._summary.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """Time per phase in milliseconds of a traced step; the rows add up to it."""
        return self._summary.phases.copy()

    @property
    def steps(self) -> pd.DataFrame:
        """Every executed step: its pass, its wall time and wait for data in milliseconds, its batch's samples."""
        return conform(self._recording.steps.assign(rank=self._recording.rank), "steps")

    @property
    def ops(self) -> pd.DataFrame:
        """Calls and time per operator of a traced step, the heaviest first."""
        return self._summary.ops.copy()

    @property
    def layer_ops(self) -> pd.DataFrame:
        """Calls and time per layer, operator and direction of a traced step, the heaviest first."""
        return self._summary.layer_ops.copy()

    @property
    def kernels(self) -> pd.DataFrame:
        """Calls and time of each GPU kernel, copy or fill, per traced step; empty without a GPU.

        Times are sums of durations: the rows add up to all work that the traced steps launched, divided by the number
        of steps.
        """
        return kernel_table(self._recording)

    @property
    def kernel_ops(self) -> pd.DataFrame:
        """Kernels, copies and fills by the operator that launched them and its input shapes, per traced step.

        Beside them the layer in which most of this time was launched. Shapes are known where they were recorded.
        """
        return gpu_tables.kernel_op_table(self._gpu_events(layers=True))

    @property
    def gpu_time(self) -> pd.DataFrame:
        """What each GPU did over the whole trace, in milliseconds: busy, computing, communicating, copying, idle.

        Each is the length of a union of intervals, not a sum; empty without a GPU.
        """
        return conform(gpu_time(all_events(self._recording)), "gpu_time")

    @property
    def gpu_steps(self) -> pd.DataFrame:
        """As `gpu_time`, of each step: from the begin of the first work that it launched to the end of the last."""
        return gpu_tables.step_table(self._gpu_events())

    @property
    def gpu_idle(self) -> pd.DataFrame:
        """Why each GPU was idle, in milliseconds by step.

        Either the host was late to launch (``host_ms``), or a kernel had been launched and waited for another one, its
        stream or an event (``dependency_ms``), or nothing in the trace explains it (``other_ms``, of it ``unknown_ms``
        where the launch is not in the trace). A gap belongs to the step of the work after it, so that the rows of a
        GPU, with that of no step, add up to its idle time in `gpu_time`.
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
        """
        return gpu_tables.path_table(self._gpu_events(layers=True))

    @property
    def path_savings(self) -> pd.DataFrame:
        """The parts of each step's critical path and what each would save, by kind and by operator, the longest first.

        ``path_ms`` bounds what removing a part can save; ``saves_ms`` is by how much the step is shorter when timed
        anew without it, missing for parts beyond the twelve longest. Takes about 3 s where the steps have 500,000
        events.
        """
        return gpu_tables.saving_table(self._gpu_events())

    @property
    def memory(self) -> pd.DataFrame:
        """Bytes alive by category at every change in the counted step, per device; empty where memory was not watched.

        Beside them what CUDA's allocator reserved, and on the CPU the process's resident memory.
        """
        watched = watched_memory(self._recording)
        return conform(pd.DataFrame(), "memory") if watched is None else memory_table(watched)

    @property
    def allocations(self) -> pd.DataFrame:
        """Every allocation alive at some time in the counted step: its bytes, category, layer, phase, op and life.

        Times are nanoseconds from the step's begin: missing where it was made before, or freed after, what was watched.
        """
        watched = watched_memory(self._recording)
        return conform(pd.DataFrame(), "allocations") if watched is None else allocation_table(watched)

    @property
    def roofline(self) -> Roofline | None:
        """How near layers and ops come to what the machine can do; ``None`` where arithmetic was not counted."""
        figures = self._summary.roofline
        return None if figures is None else Roofline(figures)

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
        if self._recording.events.empty:
            return conform(pd.DataFrame(), "events")
        return event_table(self._recording, attribute(self._recording))

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
        return deepcopy(dict(self._recording.meta))

    def save(self, path: str | Path) -> Path:
        """Write the profile to the folder `path` (Parquet and JSON), whole or not at all.

        Raises
        ------
        RecordingError
            If something that is no profile stands there, or it cannot be written.
        """
        return storage.save(self._recording, path)

    def to_html(self, path: str | Path) -> Path:
        """Write the report to one self-contained HTML file."""
        return storage.write_text(standalone_page(self._summary, self._timeline()), path)

    def _gpu_events(self, layers: bool = False) -> GpuEvents:
        recording = self._recording
        known = attribute(recording) if layers and len(recording.events) else None
        return gpu_events(recording, known)

    @cached_property
    def _summary(self) -> Summary:
        return summarize(self._recording)

    def save_trace(self, path: str | Path) -> Path:
        """Write a Chrome trace that Perfetto, chrome://tracing and `perfnb.load` open.

        It holds the events of the traced steps (of a loaded trace, all), each with its layer, phase and step, and
        beside them tracks of the steps, phases and layers, arrows from launches to kernels and from ops to their
        backward, and the curve of memory.

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
        return storage.write_parts(gzipped(parts) if str(path).endswith(".gz") else parts, path)

    def _timeline(self) -> Timeline | None:
        """When everything ran; computed anew each time, for it is large. ``None`` where no step was traced."""
        if self._recording.events.empty:
            return None
        return timeline_of(self._recording, attribute(self._recording), watched_memory(self._recording))

    def __str__(self) -> str:
        return summary_text(self._summary, timeline=self._timeline())

    def __repr__(self) -> str:
        timing, trace = self.timing, self._recording.meta.get("trace")
        if trace is not None:
            steps = self._recording.traced_steps
            words = f"{trace['events']:,} events, {steps} step{'s' * (steps != 1)}"
            return f"<perfnb.Profile of {trace['file']!r}: {words}>"
        return f"<perfnb.Profile {self.meta['name']!r}: {timing.median_ms:.3g} ms a step, {timing.steps} steps timed>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return static_bundle(self._summary, self._timeline())

    def _ipython_display_(self) -> None:
        show(self._summary, self._timeline())


def profile_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    model: Models | None = None,
    warmup: int | None = None,
    steps: int | None = None,
    traced: int = 3,
    budget_s: float = 30.0,
    memory: bool = True,
    flops: bool = True,
    stacks: bool = False,
    watch: bool = False,
    name: str | None = None,
) -> Profile:
    """Run a step again and again and find out where its time goes.

    Parameters
    ----------
    step : callable
        One step: ``step()``, or ``step(batch)`` where there are `batches`, whatever a batch is.
    batches : iterable, optional
        Batches for the steps; the wait for them is the phase ``data``. Begun again when they run out.
    model : Module, list of Module, or dict of name to Module, optional
        The models to break into layers. By default every module that the step calls, named by the variables that
        `step` uses.
    warmup, steps, traced : int, optional
        Steps to warm up, to time, and to trace. By default warm-up runs until the step time is steady, and as many
        steps are timed as the spread asks for, 20 to 200.
    budget_s : float
        Seconds that all steps together may take; each pass runs at least one step.
    memory, flops : bool
        Whether to run the counted pass: two steps (one to lead in) with every allocation recorded, and one with every
        operator counted.
    stacks : bool
        Record Python calls in the trace too (in ``events``), at a high cost.
    watch : bool
        Read the machine's meters meanwhile, ten times a second (``samples``), as `perfnb.watch` does.
    name : str, optional
        Title of the profile.

    Returns
    -------
    Profile

    Raises
    ------
    CaptureError
        Inside another profiler, with batches that run out, or where the step profiles itself.
    Exception
        Whatever `step` or `batches` raise, after everything that perfnb installed has been removed.
    """
    from perfnb.capture.budget import Plan
    from perfnb.capture.namespace import chosen_models, namespace_of

    __tracebackhide__ = True
    given: Any = watch
    if not isinstance(given, bool):
        raise TypeError(f"watch must be True or False, not {given!r}.")
    models, names = chosen_models(model)
    return run_profile(
        step,
        batches,
        plan=Plan(warmup=warmup, steps=steps, traced=traced, budget_s=budget_s, memory=memory, flops=flops),
        models=models,
        namespace={**names, **namespace_of(step), **names},  # a name given with a model comes first
        stacks=stacks,
        watch=watch,
        name=name or str(getattr(step, "__name__", "step")),
    )


def run_profile(
    step: Callable[..., Any],
    batches: Any,
    *,
    plan: Any,
    models: list[nn.Module] | None,
    namespace: Mapping[str, Any],
    stacks: bool = False,
    watch: bool = False,
    name: str = "step",
    quiet: bool = False,
) -> Profile:
    """What `profile_step` and its magic share: capture, with progress, and read the trace."""
    from perfnb.capture.run import capture_step
    from perfnb.capture.watcher import Watcher
    from perfnb.frames.build import recording_of

    __tracebackhide__ = True
    with Progress(enabled=not quiet) as progress:
        with Watcher(WATCH_INTERVAL_S) if watch else nullcontext() as watcher:
            capture = capture_step(
                step, batches, plan=plan, models=models, namespace=namespace, stacks=stacks, progress=progress
            )
        failure, profile = capture.failure, Profile(recording_of(capture, name, watcher))
        if failure is None:
            return _under_right_ceilings(profile)
    if in_notebook() and not quiet:
        show(profile._summary, profile._timeline())
        failure.add_note("perfnb: the profile up to here is shown above; it is incomplete.")
    else:
        failure.add_note(f"perfnb: the profile up to here, incomplete:\n\n{profile}")
    raise failure


def _under_right_ceilings(profile: Profile) -> Profile:
    """Measure the machine's ceilings again where a layer or op of the profile computed faster than they allow."""
    from perfnb.capture.ceilings import measure_ceilings

    roofline, recording = profile._summary.roofline, profile._recording
    if roofline is None or not roofline.above_ceiling():
        return profile
    on = recording.meta["ceilings"]["on"]
    ceilings = {"on": on, **measure_ceilings(roofline.peaks, on, refresh=True)}
    return Profile(replace(recording, meta={**recording.meta, "ceilings": ceilings}))
