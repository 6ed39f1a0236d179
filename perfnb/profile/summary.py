"""What a report shows, as data: the one source of every view of a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfnb.attribution.arithmetic import arithmetic_per_span, counted_ops, special_arithmetic, work_by_op
from perfnb.attribution.attribution import Attribution, attribute, blocks_of_events
from perfnb.attribution.blocks import Host, Kind, host_blocks
from perfnb.attribution.tables import (
    layer_op_table,
    layer_table,
    op_calls,
    op_table,
    op_times,
    phase_table,
    sums_by_layer,
)
from perfnb.findings import Findings, StepFigures, find
from perfnb.gpu.summary import GpuSummary, gpu_summary
from perfnb.memory.allocations import Watched, watched_memory
from perfnb.memory.table import MemorySummary, activation_bytes, memory_summary, memory_table, most_alive
from perfnb.profile.notes import notes, notes_of_failure, slowdown_of
from perfnb.profile.report import tabs
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PASSES, conform
from perfnb.recording.text import is_one_of
from perfnb.roofline.levels import Roofline, step_roofline
from perfnb.stats.step_times import Timing, timing_of_batches
from perfnb.trace_names import DEVICE_WORK

#: The step including its GPU work is reported separately if it is longer than the host's step by this factor.
_LONGER = 1.01
_WAYS = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class Summary:
    """The facts of a report; views format and draw them and compute nothing.

    Attributes
    ----------
    name : str
        Title of the profile.
    timing : Timing
        Step time of the timed pass.
    executed : mapping of str to int
        How often the step ran, by pass.
    traced_ms : float or None
        Mean wall time of a traced step, the sum of the times in `phases` and `layers`. ``None`` if none was traced.
    slowdown : float or None
        Traced step time divided by the timed one.
    device : str
        What the step ran on, in words.
    phases, layers, ops, layer_ops : DataFrame
        As described by `perfnb.recording.schema`; ``share`` is corrected for tracing overhead, times are not.
    memory : MemorySummary or None
        If memory was watched.
    roofline : Roofline or None
        If arithmetic was counted.
    gpu : GpuSummary or None
        If anything ran on a GPU.
    source : str or None
        Name of the loaded trace; ``None`` for a profiled step.
    hot_path : tuple of str
        Layers from a root down to the heaviest one, which a view opens first.
    notes : tuple of str
        What the reader must know to read the figures correctly.
    findings : Findings or None
        What holds the step back; ``None`` if no step was traced.
    parts : mapping of str to object
        What tabs computed for themselves, by key.
    tokens_per_s : float or None
        Token ids in the timed steps' batches, at the same step time as samples; if the model has an embedding for them.
    mfu : float or None
        Model FLOPs utilisation of the timed step, 0 to 1; see `model_flops_utilisation`.
    by_batch : bool
        Whether each step is one batch of a loop, because no optimizer's step shows where a step ends.
    """

    name: str
    timing: Timing
    executed: Mapping[str, int]
    traced_ms: float | None
    slowdown: float | None
    device: str
    phases: pd.DataFrame
    layers: pd.DataFrame
    ops: pd.DataFrame
    layer_ops: pd.DataFrame
    hot_path: tuple[str, ...]
    notes: tuple[str, ...]
    memory: MemorySummary | None = None
    roofline: Roofline | None = None
    source: str | None = None
    gpu: GpuSummary | None = None
    findings: Findings | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    tokens_per_s: float | None = None
    mfu: float | None = None
    by_batch: bool = False

    @property
    def until_gpu_ms(self) -> float | None:
        """A traced step until its GPU work is done, if that is longer and findings are shares of it."""
        found = None if self.findings is None or self.timing.steps else self.findings.step_ms
        return found if found is not None and self.traced_ms and found > _LONGER * self.traced_ms else None


def timing_of(recording: Recording) -> Timing:
    """The step times of the timed pass."""
    steps = recording.steps
    timed, warmup = steps[steps["pass"] == "timed"], steps[steps["pass"] == "warmup"]
    return timing_of_batches(
        [float(value) for value in timed["wall_ms"]],
        [None if pd.isna(size) else int(size) for size in timed["samples"]],
        warmup_ms=tuple(float(value) for value in warmup["wall_ms"]),
        steady=recording.meta.get("steady"),
        noise=recording.meta.get("noise", {}),
    )


def summarize(recording: Recording, attribution: Attribution | None = None, watched: Watched | None = None) -> Summary:
    """Compute what a report shows; if a step failed before any was traced, what was measured until then.

    Parameters
    ----------
    recording : Recording
    attribution, watched : optional
        Results of `attribute` and `watched_memory`, if known.
    """
    timing, roofline = timing_of(recording), None
    tables = ("phases", "layers", "ops", "layer_ops")
    phases, layers, ops, layer_ops = (conform(pd.DataFrame(), name) for name in tables)
    said = tuple(notes_of_failure(recording))
    if len(recording.events):
        attribution = attribution or attribute(recording)
        phases, layers = phase_table(attribution), layer_table(recording, attribution)
        calls = op_calls(recording, attribution)
        on_gpu = _on_gpu(recording, attribution.host, calls)
        ops, layer_ops = (table(calls, attribution.steps, on_gpu) for table in (op_table, layer_op_table))
        if counted := count_ops(recording):
            layers, ops = with_arithmetic(layers, *counted), ops_with_arithmetic(ops, counted[2])
            roofline = step_roofline(recording, attribution, counted[2], timing.median_ms if timing.steps else None)
        said += notes(recording, attribution, layers, timing)
    memory: MemorySummary | None = None
    if watched := watched or watched_memory(recording):
        table = memory_table(watched)
        memory = memory_summary(watched, table, timing.batch_size)
        if memory is not None:
            layers = with_memory(layers, watched, table, memory.device)
    executed = recording.steps["pass"].value_counts()
    slowdown = slowdown_of(recording, timing)
    figures = StepFigures(timing, phases, slowdown, roofline, memory)
    return Summary(
        name=str(recording.meta["name"]),
        timing=timing,
        executed={name: int(executed[name]) for name in PASSES if executed.get(name, 0)},
        traced_ms=float(phases["ms"].sum()) if len(phases) else None,
        slowdown=slowdown,
        device=device_words(recording.meta["environment"]),
        phases=phases,
        layers=layers,
        ops=ops,
        layer_ops=layer_ops,
        hot_path=hot_path(recording, layers) if len(layers) else (),
        notes=said,
        memory=memory,
        roofline=roofline,
        source=str(recording.meta["trace"]["file"]) if recording.is_loaded else None,
        gpu=None if attribution is None else gpu_summary(recording, attribution),
        parts={tab.key: tab.compute(recording, attribution) for tab in tabs() if tab.compute},
        findings=None if attribution is None else find(recording, attribution, figures),
        tokens_per_s=_tokens_per_s(recording, timing),
        mfu=None if roofline is None else model_flops_utilisation(recording, roofline),
        by_batch=bool(recording.meta.get("loop", {}).get("by_batch", False)),
    )


def _tokens_per_s(recording: Recording, timing: Timing) -> float | None:
    tokens, rate = recording.meta.get("tokens"), timing.throughput_per_s
    if tokens is None or rate is None or not timing.samples:
        return None
    # Without an embedding, whole numbers may mean anything.
    embeds = any("embedding" in str(kind).lower() for kind in recording.modules["module"])
    return float(rate * tokens / timing.samples) if embeds else None


def model_flops_utilisation(recording: Recording, roofline: Roofline) -> float | None:
    """The step's arithmetic as a share of what the measured peak would allow in its time.

    ``None`` if the peak is not known or was refuted by the step, or if some of the arithmetic was not seen, because it
    is in a compiled region or nothing was counted.
    """
    unseen = bool(recording.modules["compiled"].any()) or not roofline.flops or roofline.dtype in roofline.refuted
    return None if unseen else roofline.utilisation


def ops_alone(recording: Recording) -> pd.DataFrame:
    """The `ops` of `summarize`, in a fraction of its time."""
    if recording.events.empty:
        return conform(pd.DataFrame(), "ops")
    host = host_blocks(recording.events)
    calls = op_times(recording, host)
    steps = int((host.blocks["kind"] == Kind.STEP).sum())
    ops = op_table(calls, steps, _on_gpu(recording, host, calls))
    counted = count_ops(recording)
    return ops_with_arithmetic(ops, counted[2]) if counted else ops


def _on_gpu(recording: Recording, host: Host, calls: pd.DataFrame) -> bool:
    """Whether the steps launched device work."""
    on_device = is_one_of(recording.events["category"], DEVICE_WORK)
    known = blocks_of_events(recording.events, host)[on_device] != NONE
    return bool(known.any()) or bool((calls["gpu_ns"] > 0).any())


def hot_path(recording: Recording, layers: pd.DataFrame) -> tuple[str, ...]:
    """From the heaviest model down to a leaf, at each level the layer with the largest share."""
    modules = recording.modules
    share = layers["share"].iloc[: len(modules)].to_numpy(dtype=float, na_value=0.0)
    path: list[str] = []
    inside = -1
    while True:
        children = (modules["parent"] == inside).to_numpy().nonzero()[0]
        if len(children) == 0:
            return tuple(path)
        inside = int(children[share[children].argmax()])
        path.append(str(modules["name"].iloc[inside]))


def device_words(environment: Mapping[str, Any]) -> str:
    """What ran the steps, from the recording's environment."""
    if environment.get("gpus"):
        count = Counter(environment["gpus"])
        return ", ".join(name if times == 1 else f"{times} × {name}" for name, times in count.items())
    if "processor" not in environment:
        return "CPU"
    if (threads := environment.get("threads")) is None:
        return f"CPU ({environment['processor']})"
    return f"CPU ({environment['processor']}), {threads} thread{'' if threads == 1 else 's'}"


def count_ops(recording: Recording) -> tuple[Recording, Attribution, pd.DataFrame] | None:
    """The counted step, its attribution, and its ops; ``None`` if arithmetic was not counted."""
    view = recording.of_arithmetic()
    if view is None or recording.arithmetic is None:
        return None
    attribution = attribute(view)
    return view, attribution, counted_ops(view, attribution, recording.arithmetic.calls)


def with_arithmetic(
    layers: pd.DataFrame, view: Recording, attribution: Attribution, counted: pd.DataFrame
) -> pd.DataFrame:
    """The frame ``layers`` with FLOPs and bytes moved, child layers included.

    FLOPs are those of ops with a formula, and missing if a layer only has ops without one. Rows that are not modules
    have none in a direction in which they have no time.
    """
    sums = sums_by_layer(view, attribution, arithmetic_per_span(attribution, counted))
    table = _whole_numbers(sums)
    seen = np.isin(np.arange(len(view.modules)), _spans_layer(view, attribution))
    table[~_largest_inside(view, seen)] = pd.NA
    special = layers.iloc[len(view.modules) :]
    own = special_arithmetic(counted).reindex(special.index)
    for way in _WAYS:
        own[f"{way}_flops"] = own[f"{way}_flops"].mask(special[f"{way}_ms"].isna())
    whole = pd.concat([table, own], ignore_index=True)
    for way in _WAYS:
        unknown = (whole[f"{way}_flops"] == 0) & (whole[f"{way}_uncounted"] > 0)
        whole[f"{way}_flops"] = whole[f"{way}_flops"].mask(unknown.fillna(False))
    moved = whole[[f"{way}_bytes" for way in _WAYS]].sum(axis=1, min_count=1)
    columns = {f"{way}_flops": whole[f"{way}_flops"].array for way in _WAYS}
    return conform(layers.assign(**columns, moved_bytes=moved.array), "layers")


def ops_with_arithmetic(ops: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """The frame ``ops`` with FLOPs and bytes moved; missing for ops without a formula or of which others do the
    work."""
    work = work_by_op(counted).reindex(ops.index)
    return conform(ops.assign(flops=work["flops"].array, bytes=work["bytes"].array), "ops")


def with_memory(layers: pd.DataFrame, watched: Watched, memory: pd.DataFrame, device: str) -> pd.DataFrame:
    """The frame ``layers`` with what each saves for backward, and the most alive on `device` while it ran."""
    view, attribution = watched.recording, watched.attribution
    cells = attribution.cells
    span = cells["span"].to_numpy()
    saved = activation_bytes(watched)
    owned = span != NONE
    per_span = np.bincount(span[owned], weights=saved[owned], minlength=len(cells)).astype(np.float64)
    table = _whole_numbers(sums_by_layer(view, attribution, {"activation_bytes": per_span}))
    peak = _peaks(watched, memory, device)
    table["peak_bytes"] = pd.arrays.IntegerArray(peak, peak == NONE)
    table.loc[peak == NONE, "activation_bytes"] = pd.NA
    table = table.reindex(range(len(layers)))
    return conform(layers.assign(**{name: table[name].array for name in table.columns}), "layers")


def _peaks(watched: Watched, memory: pd.DataFrame, device: str) -> Ints:
    """Most memory alive while each layer, or a node of its backward, ran in the counted step; -1 if none did."""
    view, attribution = watched.recording, watched.attribution
    blocks, span = attribution.host.blocks, attribution.cells["span"].to_numpy()
    ran = (blocks["kind"].isin((Kind.SPAN, Kind.NODE))).to_numpy() & (span != NONE)
    ran &= (blocks["start"] >= watched.begin).to_numpy() & (blocks["end"] <= watched.end).to_numpy()
    starts, ends = (blocks[name].to_numpy()[ran] - watched.begin for name in ("start", "end"))
    most = np.full(len(blocks), NONE, dtype=np.int64)
    if ran.any():
        np.maximum.at(most, span[ran], most_alive(memory, device, starts / 1e6, ends / 1e6))
    for level in reversed(attribution.spans.by_depth()[1:]):
        np.maximum.at(most, attribution.spans.parent[level], most[level])
    layer = _spans_layer(view, attribution)
    known = (blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    peaks = np.full(len(view.modules), NONE, dtype=np.int64)
    np.maximum.at(peaks, layer[known], most[known])
    return _largest_inside(view, peaks)


def _spans_layer(view: Recording, attribution: Attribution) -> Ints:
    return np.asarray(view.span_layers.reindex(attribution.host.blocks["span"], fill_value=NONE).to_numpy())


def _largest_inside(view: Recording, values: np.ndarray) -> np.ndarray:
    """The largest value of each layer and those inside it."""
    parent, largest = view.modules["parent"].to_numpy(), values.copy()
    for row in range(len(largest) - 1, -1, -1):  # parents come first
        if parent[row] != NONE:
            largest[parent[row]] = max(largest[parent[row]], largest[row])
    return largest


def _whole_numbers(sums: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({name: np.rint(values).astype(np.int64) for name, values in sums.items()}).astype("Int64")
