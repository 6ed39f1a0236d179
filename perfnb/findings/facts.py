"""Compute the figures of a step that several rules need.

Times from the traced pass are corrected for tracing overhead. They are also scaled to make all parts of the step except
the wait for data add up to a timed step, which means that bounds refer to the duration without tracing. If all traced
steps did the same work, each part is the median over these steps, and a single disturbed step has little effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.attribution import Attribution, blocks_of_events, owner_names
from perfnb.attribution.backward_links import makers
from perfnb.attribution.blocks import Kind
from perfnb.attribution.collectives import collective_calls
from perfnb.attribution.events import python_calls
from perfnb.findings.gpu_facts import GpuFacts, gpu_facts
from perfnb.findings.proposed_code import MODULES, root_of
from perfnb.flame.step_stacks import step_stacks
from perfnb.memory.table import MemorySummary
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.nesting import NONE, Bools, Floats, Ints, children_sums, innermost, nest, subtree_sums
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES, conform
from perfnb.recording.text import found, of_labels
from perfnb.roofline.levels import RooflineLevels
from perfnb.stats.step_times import StepTimes
from perfnb.trace_names import stepped_optimizer

#: Names of events of compiled code.
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call CompiledFxGraph")
#: Nanoseconds below which an operator is pure overhead if the cost of operators was not measured, and the limits of
#: this value otherwise.
_TINY_NS, _LEAST_TINY_NS, _MOST_TINY_NS = 10_000.0, 8_000.0, 30_000.0
#: The same threshold as a multiple of an operator that does nothing.
_TINY = 15.0


@dataclass(frozen=True)
class StepFigures:
    """A step's figures in the report, which the rules are based on."""

    #: Step times of the timed pass.
    timing: StepTimes
    #: The frame ``phases``.
    phases: pd.DataFrame
    #: Traced step time divided by the timed one.
    slowdown: float | None = None
    #: Not ``None`` if arithmetic was counted.
    roofline: RooflineLevels | None = None
    #: Not ``None`` if memory was recorded.
    memory: MemorySummary | None = None


#: The mean of the timed steps' own work is far from its median if it exceeds the median by more than this factor.
_FAR = 1.5

Known = TypeVar("Known")


@dataclass(frozen=True)
class Facts:
    """The known facts about a step."""

    #: The source of all figures.
    recording: Recording
    attribution: Attribution
    figures: StepFigures
    #: The duration of a timed step: the median without waits for data and garbage collection pauses, plus the mean of
    #: these. For a loaded trace, it is the mean of the traced steps, or the GPU's time if that is longer.
    step_ms: float
    #: For each timed step: its duration, how long it waited for a batch, and the garbage collector's pauses.
    timed_ms: Floats
    waits_ms: Floats
    pauses_ms: Floats
    #: Typical time of each cell, corrected for the cost of tracing.
    cells_ns: Floats
    #: Factor that converts this time to timed time.
    scale: float
    #: Not ``None`` if a GPU did any work.
    gpu: GpuFacts | None

    @property
    def meta(self) -> Mapping[str, Any]:
        """The facts recorded about the run."""
        return self.recording.meta

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions, the device and the number of threads."""
        return dict(self.meta.get("environment", {}))

    @property
    def live(self) -> bool:
        """Whether steps were run and timed, rather than loaded from a trace."""
        return len(self.timed_ms) > 0

    @property
    def trains(self) -> bool:
        """Whether the step has a backward pass."""
        return bool((self.attribution.cells["direction"] == "backward").any())

    @cached_property
    def known(self) -> dict[Callable[[Facts], Any], Any]:
        """The results of the rules' `shared` functions that have been called so far."""
        return {}

    @cached_property
    def uses_torch(self) -> bool:
        """Whether PyTorch ran in the step. If not, recommendations do not mention torch."""
        return self.recording.uses_torch

    def for_torch(self, words: str) -> str:
        """Return these words if PyTorch ran in the step, and an empty text otherwise."""
        return words if self.uses_torch else ""

    @cached_property
    def records_python(self) -> bool:
        """Whether all Python calls were recorded, not only those of modules.

        A trace may contain module calls but no other Python calls.
        """
        events = self.recording.events
        names = events["name"].iloc[python_calls(events)]
        return bool(of_labels(names, lambda name: not name.startswith("nn.Module: ")).any())

    @cached_property
    def lines_of_code(self) -> pd.DataFrame:
        """Sampled time by phase and line of user code; empty if stacks were not sampled."""
        sampled = step_stacks(self.recording)
        return conform(pd.DataFrame(), "lines") if sampled is None else sampled.lines

    @property
    def step_words(self) -> str:
        """The duration of the step that bounds refer to, in words.

        It is called a mean step if it differs from the median in the headline.
        """
        whole, median = fmt.duration(self.step_ms), self.figures.timing.median_ms
        return whole if median is None or fmt.duration(median) == whole else f"a mean step of {whole}"

    @property
    def steps(self) -> int:
        """Number of traced steps, at least 1."""
        return max(self.attribution.steps, 1)

    @cached_property
    def uneven(self) -> str:
        """A warning that the mean of the timed steps' own work is far from its median; empty if it is not.

        `step_ms` is based on the median, so waits and pauses have a larger share of it than of the mean step.
        """
        own = self.timed_ms - self.waits_ms - self.pauses_ms - self.compiling_ms
        usual, mean = (float(np.median(own)), float(own.mean())) if len(own) else (0.0, 0.0)
        if usual <= 0 or mean <= _FAR * usual:
            return ""
        return f"the timed steps' own work takes {fmt.duration(mean)} on average but mostly {fmt.duration(usual)}"

    @cached_property
    def compilations(self) -> pd.DataFrame:
        """One row per compilation in timed steps: ``step``, ``function``, ``line``, the failed ``guard`` and ``ms``."""
        known = pd.DataFrame(self.meta.get("compilations") or [], columns=["step", "function", "line", "guard", "ms"])
        return known[known["step"].isin(range(len(self.timed_ms)))].astype({"step": "int64", "ms": "float64"})

    @cached_property
    def compiling_ms(self) -> Floats:
        """For each timed step, the time that torch.compile took, or the step's additional time if that is longer."""
        ms = np.bincount(self.compilations["step"], self.compilations["ms"], len(self.timed_ms))
        own, without = self.timed_ms - self.waits_ms - self.pauses_ms, ms == 0
        usual = float(np.median(own[without])) if without.any() else np.inf
        return np.where(without, 0.0, np.minimum(np.maximum(ms, own - usual), own))

    def share(self, ms: float) -> float:
        """Return a time as a share of the step."""
        return ms / self.step_ms if self.step_ms > 0 else 0.0

    def of_step(self, ms: float) -> str:
        """Describe a time as part of the step, for example ``2.00 ms (16 % of the step)``."""
        ms = min(ms, self.step_ms)
        return f"{fmt.duration(ms)} ({fmt.share(self.share(ms))} of the step)"

    def per_step(self, ns: float) -> float:
        """Convert typical nanoseconds over all traced steps to milliseconds in a timed step."""
        return ns / 1e6 / self.steps * self.scale

    @cached_property
    def phases_ms(self) -> dict[str, float]:
        """The time of each phase in a timed step; the wait for data is the mean over the timed pass.

        The times never exceed those in the report, which are means.
        """
        waited_ms = float(self.waits_ms.mean()) if self.live and self.waits_ms.any() else self.shown_ms("data")
        return {name: min(self.typical_ms(name), self.shown_ms(name)) for name in PHASES} | {"data": waited_ms}

    def typical_ms(self, phase: str) -> float:
        """Return a phase's time in an undisturbed timed step."""
        return self.per_step(float(self.cells_ns[(self.attribution.cells["phase"] == phase).to_numpy()].sum()))

    def shown_share(self, phase: str) -> float:
        """Return a phase's share of the step in the report: the mean of the traced steps."""
        return fmt.known(self.figures.phases["share"].get(phase)) or 0.0

    def shown_ms(self, phase: str) -> float:
        """Return a phase's time in a timed step according to its share in the report, but at most its time there."""
        ms, by_share = fmt.known(self.figures.phases["ms"].get(phase)), self.shown_share(phase) * self.step_ms
        return by_share if ms is None else min(by_share, ms)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """One row per call to an operator in the traced steps, in order of time.

        The columns are ``op``, ``start``, ``end``, ``thread``, ``block``, ``step``, ``phase``, ``layer``,
        ``direction``, ``outer`` (whether no other operator in its block encloses it), ``around`` (the row of the
        enclosing operator, -1 for none), ``place`` (its position among the host's events) and ``whole_ns`` (typical and
        corrected time, including the operators inside; the sum never exceeds the block's time in the step's thread).
        """
        host, cells = self.attribution.host, self.attribution.cells
        # Work that other threads do in parallel does not add to the step's time.
        chosen = np.flatnonzero(host.is_op & (np.append(self.lines, NONE)[host.block] != NONE))
        chosen = chosen[np.lexsort((-host.ends[chosen], host.starts[chosen]))]
        start, end, block = host.starts[chosen], host.ends[chosen], host.block[chosen]
        forest = nest(host.thread[chosen], start, end)
        inside = subtree_sums(forest, np.ones(len(chosen)))
        cost = float(self.meta.get("cost", {}).get("op_ns", 0.0))
        above = forest.parent
        names = self.recording.events["name"].array
        codes, step = names.codes[host.rows[chosen]], cells["step"].to_numpy()[block]
        outer = (above == NONE) | (block[above] != block)
        whole = typical(np.maximum(end - start - inside * cost, 0.0), step, codes)
        line = self.lines[block]
        sums = np.bincount(line[outer], weights=whole[outer], minlength=len(cells))
        whole = whole * np.minimum(self.cells_ns / np.where(sums > 0, sums, 1.0), 1.0)[line]
        return pd.DataFrame(
            {
                "op": pd.Categorical.from_codes(codes, names.categories),
                "start": start,
                "end": end,
                "thread": host.thread[chosen],
                "block": block,
                "step": step,
                "phase": cells["phase"].array[block],
                "layer": self.owners[block],
                "direction": cells["direction"].to_numpy(dtype=object)[block],
                "outer": outer,
                "around": above,
                "place": chosen,
                "whole_ns": whole,
            }
        )

    @cached_property
    def lines(self) -> Ints:
        """For each block, the innermost enclosing block on the step's thread (possibly itself); -1 on other threads."""
        host = self.attribution.host
        main = host.blocks["main"].to_numpy(dtype=bool)
        return np.where(main, np.arange(len(main)), innermost(host.forest, main))

    @cached_property
    def left_ns(self) -> Floats:
        """For each block of the step's thread, its time outside operators."""
        outer = self.ops[self.ops["outer"]]
        line = self.lines[outer["block"].to_numpy()]
        inside = np.bincount(line, weights=outer["whole_ns"].to_numpy(), minlength=len(self.cells_ns))
        return np.maximum(self.cells_ns - inside, 0.0)

    def in_compiled(self, thread: Ints, start: Ints) -> Bools:
        """Return which events on a thread start inside compiled code, including its backward pass and its lookup."""
        host = self.attribution.host
        compiled = found(self.recording.events["name"], COMPILED.search)[host.rows]
        inside = np.zeros(len(start), dtype=bool)
        for number in np.unique(host.thread[compiled]).tolist():
            own, here = compiled & (host.thread == number), thread == number
            order = np.argsort(host.starts[own], kind="stable")
            starts, ends = host.starts[own][order], np.maximum.accumulate(host.ends[own][order])
            last = np.searchsorted(starts, start[here], side="right") - 1
            inside[here] = (last >= 0) & (start[here] < ends[last])
        return inside

    def between_ops_ms(self, ns: float) -> float:
        """Convert nanoseconds between operators over all traced steps to milliseconds in a timed step.

        Tracing slows down operators but not the Python code between them. If this code takes longer than a timed step,
        tracing must have slowed down both, for example because Python calls were recorded.
        """
        fits = float(self.left_ns.sum()) / 1e6 / self.steps <= self.per_step(float(self.cells_ns.sum()))
        return ns / 1e6 / self.steps if self.scale < 1 and fits else self.per_step(ns)

    def backward_of(self, chosen: Bools) -> pd.DataFrame:
        """Return the outermost operators of the backward nodes created by some of `ops`."""
        made_by = makers(self.recording.events, self.attribution.host)
        nodes = np.isin(made_by, self.ops["place"].to_numpy()[chosen])
        backward: pd.DataFrame = self.ops[self.ops["outer"] & nodes[self.ops["block"].to_numpy()]]
        return backward

    @cached_property
    def layers_ms(self) -> pd.Series:
        """Time of each row in the layers' table in a timed step, excluding the layers inside it."""
        return pd.Series(self.cells_ns).groupby(self.owners).sum().map(self.per_step)

    def layers_on_gpu_ms(self, layers: Collection[str]) -> float:
        """Return the time per step during which any of these layers, excluding nested ones, runs on the GPU."""
        assert self.gpu is not None
        events = self.recording.events
        block = blocks_of_events(events, self.attribution.host)[rows_of_trace(events)]
        block = np.append(block, NONE)[np.minimum(self.gpu.runs.row, len(block))]
        chosen = pd.Series(np.append(self.owners, "")[block]).isin(list(layers)).to_numpy()
        return self.gpu.ran_ms(chosen)

    @cached_property
    def owners(self) -> npt.NDArray[np.object_]:
        """The name of the layer that each cell belongs to; empty if there is none."""
        return owner_names(self.recording, self.attribution)

    @cached_property
    def blocks_inside(self) -> Floats:
        """Number of blocks directly inside each block."""
        forest = self.attribution.host.forest
        return children_sums(forest.parent, np.ones(len(forest.parent)))

    @property
    def tiny_ns(self) -> float:
        """Nanoseconds below which an operator is mostly dispatch overhead."""
        bare = self.bare_op_ns
        return float(np.clip(_TINY * bare, _LEAST_TINY_NS, _MOST_TINY_NS)) if bare > 0 else _TINY_NS

    @property
    def bare_op_ns(self) -> float:
        """Nanoseconds that an empty operator takes without the profiler; 0 if they were not measured."""
        return float(self.meta.get("bare_cost", {}).get("op_ns", 0.0))

    @property
    def cores(self) -> float | None:
        """Number of CPUs that the process may use; ``None`` if unknown."""
        cpus, limit = self.environment.get("cpus"), self.environment.get("cpu_limit")
        return min((float(value) for value in (cpus, limit) if value), default=None)

    @property
    def busy(self) -> bool:
        """Whether more programs wanted to run during the timed steps than the machine has CPUs."""
        noise = self.meta.get("noise", {})
        load = max(noise.get("load_before", 0.0), noise.get("load_after", 0.0))
        return bool(noise.get("cpus")) and load > noise["cpus"]

    @property
    def variables(self) -> set[str]:
        """The user's variables that proposed code may use, if known."""
        names = [*self._models, *(part.get("name") for part in (*self.optimizers, self.loader))]
        imported = set(self._parts.get("imports") or ()) & set(MODULES)
        return {root for name in names if (root := root_of(name))} | imported

    @property
    def _parts(self) -> Mapping[str, Any]:
        return self.meta.get("parts") or {}

    @property
    def parallel(self) -> list[Mapping[str, Any]]:
        """The models wrapped in DistributedDataParallel: the ``name`` and the recorded settings of each."""
        return list(self._parts.get("parallel") or ())

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """All collectives in the traced steps; see `collective_calls`."""
        return collective_calls(self.recording, self.attribution)

    @property
    def _models(self) -> dict[str, bool]:
        """The models in the user's variables, and whether the step calls each of them directly."""
        models = self._parts.get("models") or ()
        return {model["name"]: model.get("called") is True for model in models if root_of(model["name"])}

    def applicable(self, lever: str) -> str:
        """Return the lever, or an empty text if it does not apply to the step.

        For traces, where the step is not known, all levers apply.
        """
        return "" if self.live and lever in (self._parts.get("refused") or ()) else lever

    def root(self, layer: str | None = None) -> str | None:
        """Return the model that a layer belongs to.

        Without a layer, this is the model with the most parameters, or ``None`` if there are no models.
        """
        modules = self.recording.modules
        roots = modules.loc[modules["parent"] == NONE].sort_values("parameters", ascending=False, kind="stable")
        names = [str(name) for name in roots["name"]]
        if layer is None:
            return names[0] if names else None
        return max((name for name in names if f"{layer}.".startswith(f"{name}.")), key=len, default=None)

    def variable(self, layer: str | None = None) -> str | None:
        """Return the variable of the model that a layer belongs to; ``None`` if the variable is unknown."""
        root = self.root(layer)
        return root if root in self._models else None

    def is_called(self, layer: str | None = None) -> bool:
        """Return whether the step calls the layer's model directly, rather than one of its methods or layers."""
        return self._models.get(self.root(layer) or "", False)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The class of each layer."""
        return dict(zip(self.recording.modules["name"], self.recording.modules["module"], strict=True))

    @property
    def own_tables(self) -> frozenset[str]:
        """The embeddings with a dense gradient whose weight no other layer shares, as far as is known."""
        return frozenset(self._parts.get("own_tables") or ())

    @property
    def optimizers(self) -> list[Mapping[str, Any]]:
        """Names and settings of the known optimizers.

        If the trace contains optimizer steps, only these optimizers are included.
        """
        known = [_named(part) for part in self._parts.get("optimizers") or ()]
        return [part for part in known if not self.optimizer_classes or part.get("class") in self.optimizer_classes]

    @property
    def trainer(self) -> str:
        """The name of the trainer for `perfnb.findings.proposed_code.setting`; empty for a plain loop.

        Optimizers prepared by an ``Accelerator`` are recognised by their class.
        """
        prepared = any(part.get("class") == "AcceleratedOptimizer" for part in self._parts.get("optimizers") or ())
        return str(self.meta.get("loop", {}).get("trainer") or "accelerate" * prepared)

    @cached_property
    def optimizer_classes(self) -> list[str]:
        """Classes of the optimizers whose steps are in the trace."""
        kinds = (stepped_optimizer(str(name)) for name in self.recording.events["name"].cat.categories)
        return list(dict.fromkeys(kind for kind in kinds if kind))

    @cached_property
    def optimizer_steps(self) -> Bools:
        """Whether each event is an optimizer step."""
        return found(self.recording.events["name"], stepped_optimizer)

    @cached_property
    def updates(self) -> float:
        """How many times each optimizer steps per profiled step, which is more than once if the step has a loop."""
        blocks = self.attribution.host.blocks
        steps = blocks[blocks["kind"] == Kind.STEP]
        starts = self.recording.events["start_ns"][self.optimizer_steps]
        inside = starts.between(min(0, steps["start"].min()), steps["end"].max(), inclusive="left")
        return max(float(inside.sum()) / self.steps / max(len(self.optimizers), 1), 1.0)

    @property
    def loader(self) -> Mapping[str, Any]:
        """Name and settings of the loader; empty if unknown."""
        loader = self._parts.get("loader")
        return _named(loader) if loader else {}

    def heaviest_ops(self, chosen: pd.DataFrame, most: int = 3) -> pd.Index:
        """Return the names of the operators with the most time."""
        return chosen.groupby("op", observed=True)["whole_ns"].sum().nlargest(most).index

    def heaviest_layers(self, chosen: pd.DataFrame) -> list[str]:
        """Return the layers where some operators take the most time."""
        owned = chosen[~of_labels(chosen["layer"], lambda layer: layer == "" or layer.startswith("("), missing=True)]
        return [str(name) for name in owned.groupby("layer")["whole_ns"].sum().nlargest(3).index]


def shared(find: Callable[[Facts], Known]) -> Callable[[Facts], Known]:
    """Cache a function's result for each step. The rules that share the result must not modify it."""

    @wraps(find)
    def known(facts: Facts) -> Known:
        if find not in facts.known:
            facts.known[find] = find(facts)
        result: Known = facts.known[find]
        return result

    return known


def facts_of(recording: Recording, attribution: Attribution, figures: StepFigures) -> Facts:
    """Return the facts of a recording with at least one traced step."""
    steps = recording.steps
    timed = steps[steps["pass"] == "timed"]
    timed_ms = timed["wall_ms"].to_numpy(dtype=float)
    waits_ms = timed["data_ms"].fillna(0.0).to_numpy(dtype=float)  # an unknown wait is part of the rest of the step
    cells = attribution.cells
    on_gpu = bool(cells["kernels"].sum()) or recording.is_from_trace
    gpu = gpu_facts(recording, attribution) if on_gpu else None
    cells_ns = _cells_ns(attribution)
    count = max(attribution.steps, 1)
    pauses_ms = np.zeros(len(timed_ms))
    for step, ms in recording.meta.get("noise", {}).get("gc_pauses", []):
        if 0 <= step < len(pauses_ms):
            pauses_ms[int(step)] += ms
    for step, *_ in recording.meta.get("compilations", []):
        if step < len(pauses_ms):
            pauses_ms[step] = 0.0  # garbage of the compiler itself
    if len(timed_ms):
        waits_ms = np.clip(waits_ms, 0.0, timed_ms)
        # A pause too long for the rest of its step was part of the wait.
        pauses_ms = np.where(pauses_ms > timed_ms - waits_ms, 0.0, pauses_ms)
        usual = float(np.median(timed_ms - waits_ms - pauses_ms))
        step_ms = usual + float(waits_ms.mean()) + float(pauses_ms.mean())
        # Waits inside the step's own code were not timed separately and count as part of its time.
        timed_apart = (cells["phase"] == "data").to_numpy() & bool(waits_ms.any())
        rest = float(cells_ns[~timed_apart].sum()) / 1e6 / count
        scale = usual / rest if rest > 0 < usual else 1.0
        gpu = None if gpu is None else gpu.in_step_of(step_ms)
    else:
        wall = float(steps.loc[steps["pass"] == "traced", "wall_ms"].mean())
        step_ms = max(wall, 0.0 if gpu is None else gpu.span_ms)
        # The medians of the parts can add up to more than the mean of the whole.
        whole = float(cells_ns.sum()) / 1e6 / count
        scale = min(wall / whole, 1.0) if whole > 0 else 1.0
    return Facts(recording, attribution, figures, step_ms, timed_ms, waits_ms, pauses_ms, cells_ns, scale, gpu)


def _named(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the known facts about an object that proposed code may refer to.

    Names and classes that are not plain Python identifiers are omitted.
    """
    name, kind = part.get("name"), part.get("class") or ""
    return {**part, "name": name if root_of(name) else None, "class": kind if kind.isidentifier() else None}


def _cells_ns(attribution: Attribution) -> Floats:
    """Return the corrected time of each cell: the median over the steps if they all did the same work."""
    cells, blocks = attribution.cells, attribution.host.blocks
    order = np.lexsort((attribution.host.forest.depth, blocks["start"].to_numpy()))
    result = np.empty(len(cells))
    ns, step = cells["corrected_ns"].to_numpy(dtype=float)[order], cells["step"].to_numpy()[order]
    result[order] = typical(ns, step, blocks["kind"].to_numpy()[order])
    return result


def typical(values: Floats, step: Ints, kind: npt.NDArray[Any]) -> Floats:
    """Replace values by their medians over the steps, if all steps have the same sequence of kinds.

    The values must be in order of time.
    """
    steps, counts = np.unique(step, return_counts=True)
    if len(steps) < 3 or len(set(counts.tolist())) > 1 or (np.diff(step) < 0).any():
        return values
    kinds = kind.reshape(len(steps), -1)
    if (kinds != kinds[0]).any():
        return values
    return np.tile(np.median(values.reshape(len(steps), -1), axis=0), len(steps))
