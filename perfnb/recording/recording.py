"""A recording: the raw tables and metadata of one run, from which all tables of a profile are computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from perfnb.recording.text import found

#: Names of PyTorch's ops, ranges and kernels.
_OF_TORCH = re.compile(
    r"^(?:aten|autograd|c10d|torch)::|\bat::native\b|\bc10::|\btorch\.nn\b|^FSDP::|^ProfilerStep#|^nn\.Module: "
)


@dataclass(frozen=True)
class MemoryRecord:
    """The memory in use during the watched steps.

    Attributes
    ----------
    events : DataFrame
        The trace of the watched steps, in the format of `Recording.events`. Allocations and frees are events named
        ``[memory]`` in the category ``memory``, and have no duration.
    changes : DataFrame
        One row per allocation or free, in time order: ``event`` (its row in `events`), ``time_ns``, ``address``,
        ``bytes`` (negative for a free), ``device``, ``allocated`` and ``reserved`` (the allocator's totals, -1 if it
        reports none).
    known : DataFrame
        One row per block with a known owner: ``time_ns``, ``address``, ``bytes``, ``device``, ``category``, ``layer``
        (row of `Recording.modules`, or -1), ``name``.
    resident : DataFrame
        The process's resident memory: ``time_ns``, ``bytes``.
    """

    events: pd.DataFrame
    changes: pd.DataFrame
    known: pd.DataFrame
    resident: pd.DataFrame


@dataclass(frozen=True)
class ArithmeticRecord:
    """The arithmetic that was counted in one step.

    Attributes
    ----------
    events : DataFrame
        The trace of the counted step, in the format of `Recording.events`. Operator number n runs in an event named
        ``pf_op#<n>``.
    calls : DataFrame
        One row per operator call, indexed by its number: ``op``, ``flops`` (missing if there is no formula), ``bytes``
        (a lower bound on the bytes moved), ``dtype``.
    """

    events: pd.DataFrame
    calls: pd.DataFrame


@dataclass(frozen=True)
class WatchRecord:
    """The telemetry of a run.

    Attributes
    ----------
    samples : DataFrame
        One row per device and reading, as described in `perfnb.recording.schema`. Older rows may each summarise several
        readings.
    marks : DataFrame
        One row per period that was named by the user or the notebook: ``name``, ``depth``, ``start_s``, ``end_s``
        (missing until the period ends).
    """

    samples: pd.DataFrame
    marks: pd.DataFrame


@dataclass(frozen=True)
class PythonRecord:
    """The Python code that ran in the sampled steps.

    Attributes
    ----------
    tree : DataFrame
        One row per call, preceded by the calls around it: ``parent`` (row of the calling function, -1 if there is
        none), ``kind`` (``phase``, ``layer``, ``worker``, ``own`` for a user function, ``other``), ``name``, ``file``,
        ``line`` (-1 if there is none), ``code`` (the line's text, in user functions), and ``self_ns`` and ``samples``
        for the samples that ended in this call, over all steps.
    """

    tree: pd.DataFrame


@dataclass(frozen=True)
class CompiledRecord:
    """The code in the traced steps that was compiled with torch.compile.

    If the graphs do not identify their layers, the record does not contain kernels.

    Attributes
    ----------
    kernels : DataFrame
        One row per kernel call in a graph: ``graph`` (its key), ``kernel``, ``ops`` (the operations that it computes),
        ``source`` (the lines of user code), ``bytes`` (read or written outside the kernel), ``flops``, ``direction``,
        and optionally ``leaves`` (whether one of its results is only used outside the graph).
    shares : DataFrame
        One row per kernel and layer: ``kernel`` (row of `kernels`), ``layer`` (row of `Recording.modules`), ``share``
        of the kernel's time.
    calls : DataFrame
        One row per execution: ``kernel``, ``start_ns``, ``duration_ns``.
    code : DataFrame
        One row per region, as `CompiledCode`.
    """

    kernels: pd.DataFrame
    shares: pd.DataFrame
    calls: pd.DataFrame
    code: pd.DataFrame


#: The optional parts of a recording that consist of several frames, by name.
PARTS: Mapping[str, Any] = {
    "memory": MemoryRecord,
    "arithmetic": ArithmeticRecord,
    "watch": WatchRecord,
    "python": PythonRecord,
    "compiled": CompiledRecord,
}


@dataclass(frozen=True)
class Recording:
    """The raw tables of one run. Analysis never modifies them.

    Attributes
    ----------
    events : DataFrame
        One row per event of the traced steps: ``name``, ``category``, ``start_ns`` (from the trace's base),
        ``duration_ns``, ``thread``, ``device``, ``stream``, ``correlation``, ``sequence``, ``forward_thread`` (-1 if
        missing), ``span`` (number of the layer span, or -1). If known, there are also ``process``, ``external_id``,
        ``wait_stream``, ``wait_correlation`` and ``bytes`` (moved by a copy), and the text columns ``shapes``,
        ``collective`` and ``group``. A loaded trace also has ``marks_step`` (number of the step that the event marks,
        or -1).
    steps : DataFrame
        One row per executed step: ``pass``, ``wall_ms``, ``data_ms``, ``samples`` (in its batch), ``start_s`` (since
        the start of the first step), ``step`` (number of a traced step).
    modules : DataFrame
        One row per layer, in model order: ``name``, ``module``, ``parent`` (row of the enclosing layer, or -1),
        ``depth``, ``parameters``, ``parameter_bytes``, ``compiled``.
    spans : DataFrame
        One row per layer span, indexed by its number: ``layer`` (row of `modules`, or -1), ``loss`` (whether it is a
        call to a loss, whose time does not count as its layer's), and optionally ``derived`` (whether it was derived
        from a compiled graph and is not in the trace; its events are the pieces of one call).
    meta : mapping
        The run's name, options, environment and findings, in a form that can be written as JSON.
    memory : MemoryRecord or None
        The memory, if it was watched.
    arithmetic : ArithmeticRecord or None
        The arithmetic, if it was counted.
    watch : WatchRecord or None
        The telemetry, if the machine was watched.
    outside : DataFrame or None
        The events in a loaded trace that do not belong to any of its steps, with the same columns as `events`.
    trace_memory : DataFrame or None
        The allocations and frees in a loaded trace, both inside and outside its steps, in time order, if there are any:
        ``time_ns``, ``process``, ``thread``, ``address``, ``bytes`` (negative for a free), ``device_type`` (torch's
        number), ``device``, ``allocated``, ``reserved`` (the allocator's totals afterwards). Missing values are -1.
    python : PythonRecord or None
        The Python code, if stacks were sampled.
    compiled : CompiledRecord or None
        Details of the compiled code, if torch.compile was used.
    """

    events: pd.DataFrame
    steps: pd.DataFrame
    modules: pd.DataFrame
    spans: pd.DataFrame
    meta: Mapping[str, Any]
    memory: MemoryRecord | None = None
    arithmetic: ArithmeticRecord | None = None
    watch: WatchRecord | None = None
    outside: pd.DataFrame | None = None
    trace_memory: pd.DataFrame | None = None
    python: PythonRecord | None = None
    compiled: CompiledRecord | None = None

    @property
    def is_from_trace(self) -> bool:
        """Whether this is a loaded trace, as opposed to a profiled step."""
        return "trace" in self.meta

    @property
    def is_foreign(self) -> bool:
        """Whether it was recorded by a program other than perfnb and torch.profiler."""
        return self.is_from_trace and bool(self.meta["trace"].get("foreign"))

    @property
    def uses_torch(self) -> bool:
        """Whether the recorded program used PyTorch, judging by the names in the trace.

        If it did not, advice about torch would be useless.
        """
        return not self.is_foreign or bool(found(self.events["name"], _OF_TORCH.search).any())

    @property
    def rank(self) -> int:
        """The rank in a distributed job, or 0 for a single process."""
        return int(self.meta.get("rank", 0))

    @property
    def traced_steps(self) -> int:
        """The number of traced steps."""
        return int((self.steps["pass"] == "traced").sum())

    @property
    def span_layers(self) -> pd.Series:
        """The layer to which each span's time belongs, by span number.

        The layer is -1 for a loss, because the loss is a separate phase.
        """
        return self.spans["layer"].mask(self.spans["loss"], -1)

    @property
    def derived_spans(self) -> pd.Series:
        """Whether each span was added to the trace afterwards, by span number."""
        return self.spans["derived"] if "derived" in self.spans else self.spans["loss"] & False

    def with_events(self, events: pd.DataFrame) -> Recording:
        """Return the recording with the events of its watched or counted steps, whose time can then be attributed.

        Everything else is unchanged: `steps` still contains the steps of the whole run, and `traced_steps` is still the
        number of steps that were traced.
        """
        return replace(self, events=events)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name, in the format used for saving."""
        frames = {"events": self.events, "steps": self.steps, "modules": self.modules, "spans": self.spans}
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                frames |= {f"{name}_{field.name}": getattr(part, field.name) for field in fields(part)}
        alone = {"outside": self.outside, "trace_memory": self.trace_memory}
        return frames | {name: frame for name, frame in alone.items() if frame is not None}
