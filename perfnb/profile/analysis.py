"""Compute the tables of a recording. Each table is computed on first access, using only the data that it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pandas as pd

from perfnb.attribution.arithmetic import counted_ops, work_by
from perfnb.attribution.attribution import Attribution, attribute, blocks_of_events
from perfnb.attribution.blocks import Host, Kind, host_blocks
from perfnb.attribution.collectives import collective_calls
from perfnb.attribution.tables import layer_op_table, layer_table, op_calls, op_table, op_times, phase_table
from perfnb.findings.facts import StepFigures, facts_of
from perfnb.findings.finding import Findings
from perfnb.findings.rules.host import unnamed_share
from perfnb.findings.verdict import find
from perfnb.flame.step_stacks import StepStacks, step_stacks
from perfnb.gpu.summary import GpuSummary, gpu_summary
from perfnb.memory.allocations import Watched, watched_memory
from perfnb.memory.table import MemorySummary, memory_summary, memory_table, most_used_device
from perfnb.profile.layers import with_arithmetic, with_fused, with_memory
from perfnb.profile.notes import notes, notes_of_failure, slowdown_of
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.recording.text import is_one_of
from perfnb.roofline.levels import RooflineLevels, step_roofline
from perfnb.stats.step_times import StepTimes, timing_of_batches
from perfnb.trace_names import DEVICE_WORK


class Analysis:
    """The results of a recording.

    If there are no traced events, all tables of times are empty, and results based on them are ``None``.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._parts: dict[str, Any] = {}

    def part(self, key: str, compute: Callable[[Analysis], Any]) -> Any:
        """Return the result of a tab's own computation, which is only run once."""
        if key not in self._parts:
            self._parts[key] = compute(self)
        return self._parts[key]

    @cached_property
    def timing(self) -> StepTimes:
        """The step times from the timed pass."""
        steps, meta = self.recording.steps, self.recording.meta
        timed, warmup = steps[steps["pass"] == "timed"], steps[steps["pass"] == "warmup"]
        return timing_of_batches(
            [float(value) for value in timed["wall_ms"]],
            [None if pd.isna(size) else int(size) for size in timed["samples"]],
            warmup_ms=tuple(float(value) for value in warmup["wall_ms"]),
            steady=meta.get("steady"),
            noise=meta.get("noise", {}),
        )

    @cached_property
    def attribution(self) -> Attribution | None:
        """The attribution of the traced steps' time."""
        return attribute(self.recording) if len(self.recording.events) else None

    @cached_property
    def counted(self) -> tuple[Recording, Attribution, pd.DataFrame] | None:
        """The counted step, its attribution and its ops, or ``None`` if arithmetic was not counted."""
        record = self.recording.arithmetic
        if self.recording.events.empty or record is None:
            return None
        view = self.recording.with_events(record.events)
        attribution = attribute(view)
        return view, attribution, counted_ops(view, attribution, record.calls)

    @cached_property
    def watched(self) -> Watched | None:
        """The step whose memory was recorded and its allocations, or ``None`` if memory was not recorded."""
        return watched_memory(self.recording)

    @cached_property
    def memory_table(self) -> pd.DataFrame:
        """The table ``memory`` for the step whose memory was recorded."""
        return conform(pd.DataFrame(), "memory") if self.watched is None else memory_table(self.watched)

    @cached_property
    def memory(self) -> MemorySummary | None:
        """The report's figures about memory, or ``None`` if no memory was allocated."""
        if self.watched is None:
            return None
        return memory_summary(self.watched, self.memory_table, self.timing.batch_size)

    @cached_property
    def phases(self) -> pd.DataFrame:
        """The table ``phases``."""
        return conform(pd.DataFrame(), "phases") if self.attribution is None else phase_table(self.attribution)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """The table ``layers``. `perfnb.profile.layers` lists where each column comes from."""
        if self.attribution is None:
            layers = conform(pd.DataFrame(), "layers")
        else:
            layers = with_fused(layer_table(self.recording, self.attribution), self.recording)
        if self.counted is not None:
            layers = with_arithmetic(layers, *self.counted)
        if self.watched is not None and (device := most_used_device(self.memory_table)) is not None:
            layers = with_memory(layers, self.watched, self.memory_table, device)
        return layers

    @cached_property
    def _host(self) -> Host:
        # Ops do not require attribution, which takes several times as long.
        known: Attribution | None = vars(self).get("attribution")
        return host_blocks(self.recording.events) if known is None else known.host

    @cached_property
    def _op_times(self) -> pd.DataFrame:
        return op_times(self.recording, self._host)

    @cached_property
    def _on_gpu(self) -> bool:
        """Whether the steps launched any work on a device."""
        on_device = is_one_of(self.recording.events["category"], DEVICE_WORK)
        known = blocks_of_events(self.recording.events, self._host)[on_device] != NONE
        return bool(known.any()) or bool((self._op_times["gpu_ns"] > 0).any())

    @cached_property
    def ops(self) -> pd.DataFrame:
        """The table ``ops``."""
        if self.recording.events.empty:
            return conform(pd.DataFrame(), "ops")
        steps = int((self._host.blocks["kind"] == Kind.STEP).sum())
        ops = op_table(self._op_times, steps, self._on_gpu)
        if self.counted is None:
            return ops
        # FLOPs are missing for ops without a formula and for ops that leave the work to other ops.
        work = work_by(self.counted[2], "op").reindex(ops.index)
        return conform(ops.assign(flops=work["flops"].array, bytes=work["bytes"].array), "ops")

    @cached_property
    def layer_ops(self) -> pd.DataFrame:
        """The table ``layer_ops``."""
        if self.attribution is None:
            return conform(pd.DataFrame(), "layer_ops")
        known = self._op_times if self._host is self.attribution.host else None
        calls = op_calls(self.recording, self.attribution, known)
        return layer_op_table(calls, self.attribution.steps, self._on_gpu)

    @cached_property
    def collectives(self) -> pd.DataFrame | None:
        """All collectives in the traced steps (see `collective_calls`), or ``None`` if no step was traced."""
        return None if self.attribution is None else collective_calls(self.recording, self.attribution)

    @cached_property
    def stacks(self) -> StepStacks | None:
        """The step's Python code, or ``None`` if it was not sampled."""
        return step_stacks(self.recording)

    @cached_property
    def roofline(self) -> RooflineLevels | None:
        """The ceilings and the layers relative to them, or ``None`` if arithmetic was not counted."""
        if self.counted is None or self.attribution is None:
            return None
        step_ms = self.timing.median_ms if self.timing.steps else None
        return step_roofline(self.recording, self.attribution, self.counted[2], step_ms)

    @cached_property
    def gpu(self) -> GpuSummary | None:
        """The report's figures about the GPUs, or ``None`` if nothing ran on a GPU."""
        return None if self.attribution is None else gpu_summary(self.recording, self.attribution)

    @cached_property
    def slowdown(self) -> float | None:
        """The traced step time divided by the timed step time."""
        return slowdown_of(self.recording, self.timing)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Caveats that readers should know when they interpret the figures."""
        failed = tuple(notes_of_failure(self.recording))
        if self.attribution is None:
            return failed
        return failed + tuple(notes(self.recording, self.attribution, self.layers, self.timing))

    @cached_property
    def host_share(self) -> float:
        """The share of the step that is the host's own work, which determines whether stacks are sampled.

        It can be computed without the findings or the memory of the step.
        """
        if self.attribution is None:
            return 0.0
        figures = StepFigures(self.timing, self.phases, self.slowdown, self.roofline)
        return unnamed_share(facts_of(self.recording, self.attribution, figures))

    @cached_property
    def findings(self) -> Findings | None:
        """The findings about the step, or ``None`` if no step was traced."""
        if self.attribution is None:
            return None
        figures = StepFigures(self.timing, self.phases, self.slowdown, self.roofline, self.memory)
        return find(self.recording, self.attribution, figures)
