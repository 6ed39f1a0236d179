"""A recording: the raw tables and metadata of one run, from which all tables of a profile are computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from perfnb.recording.text import found

#: Names that PyTorch gives to ops, ranges and kernels.
_OF_TORCH = re.compile(
    r"^(?:aten|autograd|c10d|torch)::|\bat::native\b|\bc10::|\btorch\.nn\b|^FSDP::|^ProfilerStep#|^nn\.Module: "
)


@dataclass(frozen=True)
class MemoryRecord:
    """The memory of the watched steps.

    Attributes
    ----------
    events : DataFrame
        The trace of the watched steps, as `Recording.events`. Allocations and frees are events without duration named
        ``[memory]``, in the category ``memory``.
    changes : DataFrame
        One row per allocation or free, in time order: ``event`` (its row in `events`), ``time_ns``, ``address``,
        ``bytes`` (negative for a free), ``device``, ``allocated`` and ``reserved`` (the allocator's totals, -1 if it
        reports none).
    known : DataFrame
        One row per block with a known owner: ``time_ns``, ``address``, ``bytes``, ``device``, ``category``, ``layer``
        (row of `Recording.modules`, else -1), ``name``.
    resident : DataFrame
        The process's resident memory: ``time_ns``, ``bytes``.
    """

    events: pd.DataFrame
    changes: pd.DataFrame
    known: pd.DataFrame
    resident: pd.DataFrame


@dataclass(frozen=True)
class ArithmeticRecord:
    """The arithmetic counted in one step.

    Attributes
    ----------
    events : DataFrame
        The trace of the counted step, as `Recording.events`; operator number n runs in an event named ``pf_op#<n>``.
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
        One row per device and reading, as described in `perfnb.recording.schema`. Old rows may represent several
        readings.
    marks : DataFrame
        One row per stretch of time that the user or the notebook named: ``name``, ``depth``, ``start_s``, ``end_s``
        (missing until it ends).
    """

    samples: pd.DataFrame
    marks: pd.DataFrame


@dataclass(frozen=True)
class PythonRecord:
    """The Python code of the sampled steps.

    Attributes
    ----------
    tree : DataFrame
        One row per call, after the call around it: ``parent`` (its row, -1 for none), ``kind`` (``phase``, ``layer``,
        ``worker``, ``own`` for a user function, ``other``), ``name``, ``file``, ``line`` (-1 for none),
        ``code`` (the line's text in the user's functions), ``self_ns`` and ``samples`` of those that ended in it, of
        all steps.
    """

    tree: pd.DataFrame


@dataclass(frozen=True)
class CompiledRecord:
    """The code of the traced steps that torch.compile compiled.

    If the graphs do not report their layers, the record contains no kernels.

    Attributes
    ----------
    kernels : DataFrame
        One row per kernel call in a graph: ``graph`` (its key), ``kernel``, ``ops`` (the operations that it computes),
        ``source`` (the user's lines), ``bytes`` (read or written outside the kernel), ``flops``, ``direction``, and
        perhaps ``leaves`` (whether a result of it is only for code outside the graph).
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


#: The optional parts of a recording that have several frames, by their names.
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
        missing), ``span`` (number of the layer span, else -1). If known also ``process``, ``external_id``,
        ``wait_stream``, ``wait_correlation``, ``bytes`` (moved by a copy), and as text ``shapes``, ``collective`` and
        ``group``. In a loaded trace also ``marks_step`` (number of the step that the event marks, else -1).
    steps : DataFrame
        One row per executed step: ``pass``, ``wall_ms``, ``data_ms``, ``samples`` (in its batch), ``start_s`` (from the
        start of the first), ``step`` (number of a traced step).
    modules : DataFrame
        One row per layer, in model order: ``name``, ``module``, ``parent`` (row of the enclosing layer, else -1),
        ``depth``, ``parameters``, ``parameter_bytes``, ``compiled``.
    spans : DataFrame
        One row per layer span, indexed by its number: ``layer`` (row of `modules`, else -1), ``loss`` (whether it is a
        call of a loss, whose time is not its layer's), and perhaps ``derived`` (whether it was not in the trace, but
        follows from a compiled graph; its events are the pieces of one call).
    meta : mapping
        The run's name, options, environment and findings, ready to be written as JSON.
    memory : MemoryRecord or None
        The memory, if it was watched.
    arithmetic : ArithmeticRecord or None
        The arithmetic, if it was counted.
    watch : WatchRecord or None
        The telemetry, if the machine was watched.
    outside : DataFrame or None
        The events in a loaded trace that do not belong to any of its steps, with the same columns as `events`.
    trace_memory : DataFrame or None
        The allocations and frees of a loaded trace, if it has any, in time order, inside and outside its steps:
        ``time_ns``, ``process``, ``thread``, ``address``, ``bytes`` (negative for a free), ``device_type`` (torch's
        number), ``device``, ``allocated``, ``reserved`` (the allocator's totals afterwards); -1 for missing values.
    python : PythonRecord or None
        The Python code, if stacks were sampled.
    compiled : CompiledRecord or None
        The compiled code, if torch.compile compiled any code.
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
        """Whether this is a loaded trace and not a profiled step."""
        return "trace" in self.meta

    @property
    def is_foreign(self) -> bool:
        """Whether it was recorded by a program other than perfnb and torch.profiler."""
        return self.is_from_trace and bool(self.meta["trace"].get("foreign"))

    @property
    def uses_torch(self) -> bool:
        """Whether the recorded program used PyTorch, as far as names reveal this.

        If it did not, advice that mentions torch is of no use.
        """
        return not self.is_foreign or bool(found(self.events["name"], _OF_TORCH.search).any())

    @property
    def rank(self) -> int:
        """The rank in a distributed job, or 0 if there is no job."""
        return int(self.meta.get("rank", 0))

    @property
    def traced_steps(self) -> int:
        """The number of traced steps."""
        return int((self.steps["pass"] == "traced").sum())

    @property
    def span_layers(self) -> pd.Series:
        """The layer that owns each span's time, by the span's number.

        The layer is -1 for a loss, which has its own phase.
        """
        return self.spans["layer"].mask(self.spans["loss"], -1)

    @property
    def derived_spans(self) -> pd.Series:
        """Whether each span, by its number, was added to the trace afterwards."""
        return self.spans["derived"] if "derived" in self.spans else self.spans["loss"] & False

    def with_events(self, events: pd.DataFrame) -> Recording:
        """Return the recording with the events of its watched or counted steps, in order to attribute their time.

        Everything else remains: `steps` still contains the steps of the whole run, and `traced_steps` is still the
        number of steps that were traced.
        """
        return replace(self, events=events)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name, in saved form."""
        frames = {"events": self.events, "steps": self.steps, "modules": self.modules, "spans": self.spans}
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                frames |= {f"{name}_{field.name}": getattr(part, field.name) for field in fields(part)}
        alone = {"outside": self.outside, "trace_memory": self.trace_memory}
        return frames | {name: frame for name, frame in alone.items() if frame is not None}
