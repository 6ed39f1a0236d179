"""Find the layers inside compiled regions.

A region's kernels become spans of the layers whose operations they compute. Inductor maps each kernel in a graph to the
operations that it computes, and these operations to the modules that called them (`Graph`). Within each call to a
graph, the trace's events are matched with the graph's kernels by name and order. Each kernel's time is then assigned to
a layer by adding events to the trace. In the forward pass, these events are spans. In the backward pass, they are
pieces of the backward node, and a sequence number identifies the call to which they belong, in the same way as for
autograd's nodes.

A kernel that computes operations for several layers is cut into parts. If a kernel's operations do not belong to any
layer, for example because they are in a function around the model, its time belongs to the region's own layer. Each
layer's part is proportional to the bytes that its operations read from or write to memory outside the kernel, plus
their FLOPs. Results that one fused operation passes to another do not count, because they stay in registers. The rest
of a region's time, which includes guards, copies and kernel launches, is assigned to a separate layer named `OVERHEAD`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.recording.kernel_work import Kernel, Operation, Work, work_of
from perfnb.recording.nesting import NONE, Bools, Ints, forest_of, nest_cutting
from perfnb.recording.raw_frames import frame_of_rows
from perfnb.recording.recording import CompiledRecord, Recording
from perfnb.recording.text import is_one_of, of_labels
from perfnb.trace.trace_steps import refuse_odd_layers
from perfnb.trace_names import (
    BACKWARD_NODE,
    CALLS,
    DEVICE_WORK,
    GRAPH_CALL,
    GRAPH_LAUNCH,
    LAYER_SPAN,
    OPS,
    PIECE,
    PYTHON_CALLS,
    RANGES,
    REGION,
    REGION_LOOKUP,
    SPAN_CATEGORY,
)

#: The layer for a region's overhead. It is a child of the region's own layer.
OVERHEAD = "(compiled region overhead)"
#: The key that torch writes for all graphs that it did not cache.
UNCACHED = "None"
#: The variable at the start of a module's path in compiled code.
_VARIABLE = re.compile(r"[LG]\['([^']*)'\]")
#: A subsequent part of the path: ``.name``, or a number or a string in brackets.
_PART = re.compile(r"""\.([^.\[\]]+)|\[(?:([0-9]+)|'([^']*)'|"([^"]*)")\]""")
#: The names that compiled code uses for its own module: the first in the module's own method, the second in torch's
#: wrapper around torch.nn modules.
_ITSELF = ("self", "fn")
#: Parts of a path that do not occur in layer names.
_NOT_NAMES = ("", "_modules", "_orig_mod")
#: Dynamo's name for the rest of a function after a graph break, including the line number.
RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_([0-9]{1,9})")
_ADDITION = "aten::add"
#: The prefix of a kernel that Inductor generated for a CPU.
_GRAPH_NUMBER = re.compile(r"^graph_[0-9]+_")
#: The name of a CUDA graph, before its number.
CUDA_GRAPH = "CUDA graph"
#: The path of a module, in an annotation that may contain any text.
_MODULE = re.compile(r"\w+(?:\.\w+){0,100}")
_FAR = 2**62


@dataclass(frozen=True)
class Graph:
    """A compiled graph, forward or backward."""

    #: The key that identifies it in the trace.
    key: str
    #: The kernels, in the order of the generated code.
    kernels: tuple[Kernel, ...]
    operations: Mapping[str, Operation]

    @cached_property
    def work(self) -> list[Work]:
        """The work that each of the graph's kernels does."""
        return work_of(self.kernels, self.operations)

    @cached_property
    def classes(self) -> dict[str, str]:
        """The classes of the modules that call operations, by their paths, in the order of the operations."""
        return dict(module for operation in self.operations.values() for module in operation.modules)


#: The sequence numbers that link pieces of backward nodes to their layer's call, and the thread they are on. Neither
#: occurs in a real trace.
_FIRST_SEQUENCE, _THREAD = 2**40, 2**40


class CompiledCode(NamedTuple):
    """torch's report about the code of a compiled region. Anything that torch does not report is empty or ``None``."""

    #: The number of the compiled function and the number of its code's version, written as in the trace: ``1/0``.
    region: str
    function: str = ""
    #: The function's file and first line.
    line: str = ""
    #: Also ``None`` if torch left the function uncompiled because its graph breaks at a point where torch cannot
    #: resume.
    guards: int | None = None
    compile_s: float | None = None
    #: The guard that failed and prevented an earlier version from being used.
    recompiled: str = ""
    #: The reason for a graph break before the end of the function, and its location.
    broke: str = ""
    broke_at: str = ""


def region_ids(events: pd.DataFrame) -> list[str]:
    """Return the names of the compiled regions that events run, such as ``1/0``."""
    ids = of_labels(events["name"], lambda name: name.removeprefix(REGION) if name.startswith(REGION) else "", "")
    return [name for name in np.unique(ids[is_one_of(events["category"], OPS)]).tolist() if name]


def graph_keys(events: pd.DataFrame) -> list[str]:
    """Return the keys of the compiled graphs that events call."""
    return [key for key in np.unique(_called_keys(events)).tolist() if key]


def _called_keys(events: pd.DataFrame) -> npt.NDArray[Any]:
    """Return the key of the graph that each event calls, or an empty string if it does not call one."""
    return np.where(is_one_of(events["category"], (*OPS, *RANGES)), of_labels(events["name"], _key, ""), "")


def _key(name: str) -> str:
    return name.removeprefix(GRAPH_CALL).removesuffix("##").strip() if name.startswith(GRAPH_CALL) else ""


def with_compiled_regions(recording: Recording, graphs: Sequence[Graph], code: Sequence[CompiledCode]) -> Recording:
    """Add the known facts about compiled regions, and the layers inside the regions whose graphs contain any."""
    annotated = annotated_work(recording.events)
    if not code and annotated.empty:
        return recording
    if (not graphs and annotated.empty) or (recording.modules.empty and not recording.is_from_trace):
        return replace(recording, compiled=_record([], code))
    functions = {each.region: RESUMED.sub(r"\1", each.function) for each in code}
    regions = _Regions(recording, {graph.key: graph for graph in graphs}, functions, annotated)
    regions.read()
    return regions.result(code)


def graph_launches(events: pd.DataFrame) -> list[int]:
    """Return the correlation ids of the calls that launch CUDA graphs."""
    numbers: list[int] = events["correlation"][_is_launch(events)].tolist()
    return [number for number in numbers if number != NONE]


def _is_launch(events: pd.DataFrame) -> Bools:
    return of_labels(events["name"], lambda name: GRAPH_LAUNCH in name) & is_one_of(events["category"], CALLS)


def annotated_work(events: pd.DataFrame) -> pd.DataFrame:
    """Return the duration of the work that CUDA graphs replayed.

    The columns are ``correlation`` (of launches), ``module`` and ``duration_ns``. A launch is included only if some
    of its work is annotated. For work without an annotation, the module is empty.
    """
    wanted = is_one_of(events["category"], DEVICE_WORK)
    if "module" not in events or not (known := wanted & events["module"].notna().to_numpy()).any():
        return pd.DataFrame({"correlation": [], "module": [], "duration_ns": []})
    wanted &= events["correlation"].isin(events["correlation"][known]).to_numpy()
    rows = events.loc[wanted & (events["correlation"] != NONE), ["correlation", "module", "duration_ns"]]
    rows = rows.assign(module=rows["module"].astype(object).fillna(""), duration_ns=rows["duration_ns"].astype(float))
    return rows.groupby(["correlation", "module"], sort=False, as_index=False).sum()


class HostEvents:
    """Some of a recording's host events, in chronological order, and the way they are nested."""

    def __init__(self, events: pd.DataFrame, wanted: Bools) -> None:
        rows = np.flatnonzero(wanted)
        host = events.iloc[rows[np.argsort(events["start_ns"].to_numpy()[rows], kind="stable")]]
        self.start = host["start_ns"].to_numpy()
        places = [name for name in ("process", "thread") if name in host]
        self.thread = np.asarray(host.groupby(places).ngroup(), dtype=np.int64)
        self.forest, self.end = nest_cutting(self.thread, self.start, self.start + host["duration_ns"].to_numpy())
        self.name = host["name"].astype(object).to_numpy()
        self.key = _called_keys(host).astype(object)
        self.is_node = of_labels(host["name"], lambda name: name.startswith(BACKWARD_NODE))
        self.is_region = of_labels(host["name"], lambda name: name.startswith(REGION))
        self.is_launch = _is_launch(host)
        columns = ("span", "sequence", "forward_thread", "correlation")
        self.span, self.sequence, self.forward_thread, self.correlation = (host[name].to_numpy() for name in columns)
        #: The process and the thread of each event.
        self.places = host[places]

    @cached_property
    def _inside(self) -> tuple[Ints, Ints]:
        """The events sorted by their parents, and the first place of each parent among them."""
        children = np.argsort(self.forest.parent, kind="stable")
        return children, np.searchsorted(self.forest.parent[children], np.arange(len(children) + 1))

    def children(self, place: int) -> list[int]:
        """Return the events directly inside an event, in chronological order."""
        children, first = self._inside
        inside: list[int] = children[first[place] : first[place + 1]].tolist()
        return inside

    def all_above(self, place: int) -> Iterator[int]:
        """Yield all events around an event, from the inside out."""
        while (place := int(self.forest.parent[place])) != NONE:
            yield place

    def above(self, place: int, marked: Bools) -> int:
        """Return the nearest marked event around an event, or `NONE` if there is none."""
        return next((around for around in self.all_above(place) if marked[around]), NONE)

    def looked_up(self, region: int) -> int:
        """Return the event that looks up compiled code just before a region, or the region itself if there is none."""
        return region - 1 if region > 0 and self.name[region - 1] == REGION_LOOKUP else region

    def until_next(self, call: int, region: int) -> int:
        """Return the time when a region ends or, if other code runs in it after its graph, the start of that code."""
        later = self.start[self.children(region)]
        return int(later[later >= self.end[call]].min(initial=self.end[region]))

    def numbers(self, place: int) -> list[int]:
        """Return the sequence numbers that forward operators around an event assigned to their nodes."""
        around = (at for at in self.all_above(place) if self.sequence[at] != NONE and self.forward_thread[at] <= 0)
        return [int(self.sequence[at]) for at in around]


class _Planned(NamedTuple):
    """A kernel in a graph, with the layers whose operations it computes."""

    kernel: Kernel
    #: The path of layers from the region's root (excluded) to each of these layers, and the layer's share of the
    #: kernel's time.
    shares: list[tuple[tuple[int, ...], float]]
    #: Its graph and name, the ops and the lines of user code that it computes, its bytes and FLOPs, and whether it has
    #: a result that only code outside the graph uses.
    facts: tuple[str, str, str, str, int, int, bool]


class _Models(NamedTuple):
    """The layers that a graph's modules may correspond to."""

    #: The region's layer.
    root: int
    #: The layers of its models, by the start of their modules' paths.
    heads: tuple[tuple[str, int], ...]


class _Layers:
    """A recording's layers, with the names used by paths in compiled graphs."""

    def __init__(self, modules: pd.DataFrame, source: str | None) -> None:
        self._modules, self._grows, self._source, self._letters = modules, source is not None, str(source), 0
        self._classes = modules["module"].astype(object).tolist()
        self._parent = modules["parent"].tolist()
        self._names = modules["name"].tolist()
        self._by_name = {name: row for row, name in enumerate(self._names)}

    def heads(self, classes: Mapping[str, str], around: int) -> dict[str, list[int]]:
        """Return the layers that a graph's models may be, by the common start of their modules' paths.

        This start is the variable that refers to a model, or the model's path in a list, dict or object.
        """
        found: dict[str, list[int]] = {}
        for variable in dict.fromkeys(map(_head, classes)):
            inside = {path: kind for path, kind in classes.items() if _head(path) == variable}
            found[variable] = self._roots(variable, inside, around)
            models: list[str] = []
            for path in sorted(inside) if not found[variable] else ():
                models += [path] if not any(_is_below(model, path) for model in models) else []
            for model in models:
                below = {path: kind for path, kind in inside.items() if _is_below(model, path)}
                found[model] = self._roots(model, below, around)
        return {head: roots for head, roots in found.items() if roots}

    def _roots(self, head: str, classes: Mapping[str, str], around: int) -> list[int]:
        """Return the layer around a model's region if it matches the model, or otherwise all layers that match.

        A trace does not contain its models, so layers are added for models that do not match any.
        """
        wanted = {_below(head, path): kind for path, kind in classes.items()}
        if around != NONE and self._fits(around, wanted):
            return [around]
        fitting = [row for row in range(len(self._names)) if self._fits(row, wanted)]
        if around != NONE:
            fitting = [row for row in fitting if self.nearest(row, (around,)) == around]
        else:
            fitting = [row for row in fitting if self._parent[row] == NONE] or fitting
        return fitting or ([self._grown(head, wanted, around)] if self._grows else [])

    def _grown(self, head: str, wanted: Mapping[str, str], around: int) -> int:
        """Add the layers of a model, including the layers below it.

        A method that was compiled within a layer's call belongs to that layer.
        """
        name = _VARIABLE.sub(r"\1", head) or "model"
        root = around
        if around == NONE or name not in _ITSELF:
            name = "model" if name in _ITSELF else name
            root = self.add(name if around == NONE else f"{self._names[around]}.{name}", around, wanted.get(""))
        for below, kind in wanted.items():
            outer = below.rpartition(".")[0]
            while self.at(root, outer) == NONE:
                outer = outer.rpartition(".")[0]
            self.add(f"{self._names[root]}{below}", self.at(root, outer), kind)
        return root

    def named(self, head: str, rows: Iterable[int]) -> int:
        """Return the layer whose name equals that of the variable at the start of the paths, or `NONE`."""
        variable = _VARIABLE.sub(r"\1", _head(head))
        names = (variable + head[len(_head(head)) :], variable + _below(_head(head), head))
        return next((row for row in rows if self._names[row] in names), NONE)

    def _fits(self, root: int, wanted: Mapping[str, str]) -> bool:
        if self._grows:
            return all(self.at(root, path) != NONE for path in wanted)
        known = [(self.at(root, path), kind) for path, kind in wanted.items()]
        alike = sum(row != NONE and kind in ("", self._classes[row]) for row, kind in known)
        return bool(2 * alike > len(wanted))

    def at(self, root: int, below: str) -> int:
        """Return the layer at a path below another layer, or `NONE` if there is none."""
        return self._by_name.get(f"{self._names[root]}{below}", NONE)

    def nearest(self, row: int, known: Container[int]) -> int:
        """Return the nearest enclosing layer that is in `known`, or `NONE` if there is none."""
        while row != NONE and row not in known:
            row = self._parent[row]
        return row

    def overhead(self, root: int) -> int:
        """Return the layer that represents a region's overhead."""
        return self.add(f"{self._names[root]}.{OVERHEAD}", root)

    def add(self, name: str, parent: int, kind: str | None = None) -> int:
        """Return the layer with this name, which is added if there is none."""
        if name not in self._by_name:
            if self._grows:
                self._letters += len(name)
                refuse_odd_layers([], self._letters, self._source)
            self._by_name[name] = len(self._names)
            self._names.append(name)
            self._classes.append(kind or None)
            self._parent.append(parent)
        return self._by_name[name]

    def frame(self) -> pd.DataFrame:
        """Return the table of layers, with the added layers appended."""
        known, depth = len(self._modules), forest_of(np.array(self._parent, dtype=np.int64)).depth
        refuse_odd_layers(depth.tolist() if self._grows else [], 0, self._source)
        count = len(self._names) - known
        parameters = [None if self._grows else 0] * count
        added = {
            "name": self._names[known:],
            "module": self._classes[known:],
            **{"parent": self._parent[known:], "depth": depth[known:], "compiled": [False] * count},
            **{"parameters": parameters, "parameter_bytes": parameters},
        }
        frame = pd.DataFrame(added)[list(self._modules.columns)].astype(self._modules.dtypes)
        whole = pd.concat([self._modules, frame], ignore_index=True)
        whole.loc[frame.loc[frame["name"].str.endswith(OVERHEAD), "parent"], "compiled"] = True
        return whole


def _head(path: str) -> str:
    """Return the variable at the start of a path, such as ``L['self']``."""
    match = _VARIABLE.match(path)
    return "" if match is None else match[0]


def _is_below(head: str, path: str) -> bool:
    """Check whether a path starts with another path."""
    return path.startswith(head) and path[len(head) : len(head) + 1] in ("", ".", "[")


def _below(head: str, path: str) -> str:
    """Return the path after its head, in the notation of layer names.

    For example, ``.blocks[0]._modules['up']`` becomes ``.blocks.0.up``.
    """
    parts = [match[match.lastindex or 0] for match in _PART.finditer(path[len(head) :])]
    return "".join(f".{part}" for part in parts if part not in _NOT_NAMES)


def _planned(graph: Graph, at: int, rows: Mapping[str, int], root: int) -> _Planned:
    """Return a kernel with the layers whose operations it computes, and each layer's share.

    Parameters
    ----------
    rows : mapping
        The layer of each module, by the module's path.
    root : int
        The region's layer.
    """
    kernel, work = graph.kernels[at], graph.work[at]
    weights: dict[tuple[int, ...], float] = {}
    inside = [graph.operations[name] for name in work.moved]
    for operation, moved in zip(inside, work.moved.values(), strict=True):
        if chain := _chain(graph, operation, rows, root):
            weights[chain] = weights.get(chain, 0.0) + moved + operation.flops
    total, total_bytes = sum(weights.values()), sum(work.moved.values())
    shares = [(chain, weight / total) for chain, weight in weights.items() if weight > 0] if total else []
    sources = dict.fromkeys(operation.source for operation in inside if operation.source)
    facts = (
        graph.key,
        kernel.name,
        ", ".join(dict.fromkeys(operation.op for operation in inside if operation.op)),
        "\n".join(f"{file}:{line}: {code}" for file, line, code in sources),
        min(total_bytes, _FAR),
        min(sum(operation.flops for operation in inside), _FAR) if total_bytes else 0,
        work.leaves,
    )
    return _Planned(kernel, shares, facts)


def _chain(graph: Graph, operation: Operation, rows: Mapping[str, int], root: int) -> tuple[int, ...]:
    """Return the layers from the root (excluded) to the layer that called an operation.

    The result is empty if no layer is known. Where branches meet, autograd adds up their gradients outside any module.
    Such an operation belongs to the layer around the modules whose gradients are added.
    """
    if not operation.modules and operation.op == _ADDITION and graph.operations.keys() >= set(operation.inputs):
        added = [graph.operations[name] for name in operation.inputs]
        chains = [_chain(graph, each, rows, root) if each.modules else () for each in added]
        return common_prefix(chains)
    known = dict.fromkeys(row for path, _ in operation.modules if (row := rows[path]) != NONE)
    return tuple(row for row in known if row != root) or tuple(known)


def common_prefix(chains: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest common prefix of the chains."""
    length = 0
    while chains and all(len(chain) > length and chain[length] == chains[0][length] for chain in chains):
        length += 1
    return chains[0][:length] if chains else ()


def matched(host: HostEvents, call: int, kernels: Sequence[Kernel]) -> Iterator[tuple[int, int]]:
    """Yield the events inside a graph's call that run its kernels, in order.

    Each event is accompanied by its kernel's index.
    """
    places: dict[str, list[int]] = {}
    for at, kernel in enumerate(kernels):
        names = [f"::{part}" for part in kernel.name.split(".")] if kernel.extern else [kernel.name]
        for name in dict.fromkeys(names):
            places.setdefault(name, []).append(at)
    reached = 0
    waiting = host.children(call)[::-1]
    while waiting:
        event = waiting.pop()
        known = places.get(_called(str(host.name[event])), [])
        following = bisect_left(known, reached)
        if following == len(known):
            waiting += host.children(event)[::-1]
        else:
            yield event, known[following]
            reached = known[following] + 1


def _called(event: str) -> str:
    """Return the name of the kernel that an event calls.

    For ``aten::mm``, this is ``::mm``. For any other event, it is the event's name without the graph's number.
    """
    _, colons, name = event.rpartition("::")
    return f"::{name}" if colons else _GRAPH_NUMBER.sub("", event)


def _launched(host: HostEvents, annotated: pd.DataFrame) -> dict[str, Graph]:
    """Return the CUDA graphs whose work is annotated, with one graph for each set of annotations.

    Each launch counts as a call to its graph, which consists of a single kernel: the launch itself. The kernel's work
    for each annotation is proportional to the annotation's time on the device, added up over all launches.
    """
    modules_of = annotated.groupby("correlation", sort=False)["module"].agg(frozenset)
    graphs = {}
    for number, modules in enumerate(modules_of.unique()):
        key, launches = f"{CUDA_GRAPH} {number}", modules_of.index[modules_of == modules]
        host.key[host.is_launch & np.isin(host.correlation, launches)] = key
        total = annotated[annotated["correlation"].isin(launches)].groupby("module", sort=False)["duration_ns"].sum()
        graphs[key] = _graph_of(key, {str(module): int(ns) for module, ns in total.items()})
    return graphs


def _graph_of(key: str, total: Mapping[str, int]) -> Graph:
    operations = {}
    for name, ns in total.items():
        parts = name.split(".") if _MODULE.fullmatch(name) else filter(None, [name])
        paths = accumulate(parts, lambda path, part: f"{path}[{part!r}]", initial="L['self']")
        operations[name] = Operation(name, "", tuple((path, "") for path in paths), (), 0, ns)
    return Graph(key, (Kernel(key, False, tuple(operations)),), operations)


class _Piece(NamedTuple):
    """An event to be added: a part of a region's time, and the layer call that it belongs to."""

    start: int
    end: int
    #: An event on the same thread.
    place: int
    #: The number of the layer's call. All pieces of a call share it.
    number: int
    backward: bool


@dataclass
class _Run:
    """One execution of a graph's forward pass, with its backward pass."""

    models: _Models
    #: The number of each layer's call.
    numbers: dict[int, int] = field(default_factory=dict)


class _Regions:
    """Reads a recording's compiled regions and divides their time into pieces."""

    def __init__(
        self, recording: Recording, graphs: Mapping[str, Graph], functions: Mapping[str, str], annotated: pd.DataFrame
    ) -> None:
        self._recording, self._functions = recording, functions
        events = recording.events
        wanted = is_one_of(events["category"], (*OPS, *RANGES)) | _is_launch(events)
        wanted |= is_one_of(events["category"], PYTHON_CALLS) & (events["span"] != NONE).to_numpy()  # of a module
        self._host = HostEvents(events, wanted)
        self._layers = _Layers(recording.modules, recording.meta["trace"]["file"] if recording.is_from_trace else None)
        self._graphs = {**graphs, **_launched(self._host, annotated)}
        self._first = int(recording.spans.index.max()) + 1 if len(recording.spans) else 0
        self._called: list[int] = []
        self._heads: dict[tuple[str, int], dict[str, list[int]]] = {}
        self._plans: dict[tuple[str, _Models], list[_Planned]] = {}
        self._executed: list[_Executed] = []
        self.pieces: list[_Piece] = []

    def read(self) -> None:
        """Process all graph calls in chronological order."""
        host, runs = self._host, dict[int, _Run]()
        for call in np.flatnonzero(host.key != "").tolist():
            graph = self._graphs.get(str(host.key[call]))
            if graph is None:
                continue
            node, region = host.above(call, host.is_node), host.above(call, host.is_region)
            launch = bool(host.is_launch[call])
            span = host.above(call, host.span != NONE)
            around = NONE if span == NONE else int(self._recording.spans["layer"].get(int(host.span[span]), NONE))
            run = runs.get(int(host.sequence[node])) if node != NONE else None
            run = _Run(self._models(call, graph, around)) if run is None else run
            root, plan = run.models.root, self._plan(graph, run.models)
            ran = [(call, 0)] if launch else matched(host, call, graph.kernels)
            executed = [(event, plan[at]) for event, at in ran]
            if not any(kernel.shares for _, kernel in executed):
                for event, kernel in executed:
                    self._note(kernel, node != NONE, event)
                continue
            container = call if launch else node if node != NONE else region if region != NONE else call
            start, end = int(host.start[container]), int(host.end[container])
            if node == NONE:
                runs |= dict.fromkeys(host.numbers(call), run)
                start = int(host.start[host.looked_up(container)])
                if around != root:
                    self._add(run, [root], start + launch, end, call)
                end = host.until_next(call, container)
            # A launch begins in the layer that issues it, and its kernels are counted in that layer.
            self._cut(call, start + launch, end, executed, run, node != NONE)

    def _models(self, call: int, graph: Graph, around: int) -> _Models:
        """Return the layers that a graph's modules correspond to. The root is `NONE` if no layer is known.

        If a function has several similar models, the model named like the variable is used. The function's own layer is
        then the layer around it, or a layer that is added.
        """
        heads = self._heads.get((graph.key, around))
        if heads is None:
            heads = self._heads[graph.key, around] = self._layers.heads(graph.classes, around)
        known = {
            head: roots[0] if len(roots) == 1 else self._layers.named(head, roots) for head, roots in heads.items()
        }
        different = set(known.values()) or {NONE}
        if len(different) == 1:
            (root,) = different
        else:
            root = around if around != NONE else self._layers.add(f"{self._function(call)}()", NONE)
        return _Models(root, tuple(known.items()))

    def _function(self, call: int) -> str:
        """Return the name of the function that was compiled into a graph."""
        region = self._host.above(call, self._host.is_region)
        name = "" if region == NONE else self._functions.get(self._host.name[region].removeprefix(REGION), "")
        return name or "compiled function"

    def _plan(self, graph: Graph, models: _Models) -> list[_Planned]:
        key = (graph.key, models)
        if key not in self._plans:
            rows = {path: self._row(path, models) for path in graph.classes}
            self._plans[key] = [_planned(graph, at, rows, models.root) for at in range(len(graph.kernels))]
        return self._plans[key]

    def _row(self, path: str, models: _Models) -> int:
        """Return the layer of the module at a path, or `NONE` if it is unknown."""
        model = next(((head, row) for head, row in models.heads if row != NONE and _is_below(head, path)), None)
        return NONE if model is None else self._layers.at(model[1], _below(model[0], path))

    def _cut(
        self, call: int, begin: int, end: int, executed: Sequence[tuple[int, _Planned]], run: _Run, backward: bool
    ) -> None:
        """Divide a region into the time of kernels with layers, and the overhead between them."""
        host = self._host
        # Pieces must nest within the trace's events, so a piece ends wherever an event that contains a kernel starts or
        # ends.
        containing = {place for event, _ in [(call, None), *executed] for place in host.all_above(event)} | {call}
        borders = np.unique([bounds for place in containing for bounds in (host.start[place], host.end[place])])

        def add_overhead(start: int, until: int) -> None:
            inside = borders[(borders > start) & (borders < until)].tolist()
            for piece in pairwise([start, *inside, until]) if until > start else ():
                self._add(run, [self._layers.overhead(run.models.root)], *piece, call, backward)

        for event, kernel in executed:
            start, until = max(int(host.start[event]), begin), int(host.end[event])
            self._note(kernel, backward, event)
            add_overhead(begin, start)
            if backward and not kernel.shares:
                self._add(run, [run.models.root], start, until, call, backward)
            common = () if backward else common_prefix([chain for chain, _ in kernel.shares])
            self._add(run, common, start, until, call)
            at = float(start)
            for chain, share in kernel.shares:
                after = at + share * (until - start)
                inner = chain[-1:] if backward else chain[len(common) :]
                self._add(run, inner, round(at), round(after), call, backward)
                at = after
            begin = until
        add_overhead(begin, end)

    def _note(self, kernel: _Planned, backward: bool, event: int) -> None:
        """Record an execution of a kernel."""
        start, duration = int(self._host.start[event]), int(self._host.end[event] - self._host.start[event])
        self._executed.append((kernel, backward, start, duration))

    def _add(self, run: _Run, chain: Sequence[int], start: int, end: int, place: int, backward: bool = False) -> None:
        """Add a piece for each layer in a chain, from the outside in."""
        if end <= start:
            return
        for layer in chain:
            # If a layer ran nothing in forward, its backward time goes to a layer around it.
            owner = self._layers.nearest(layer, run.numbers) if backward else layer
            if owner == NONE:
                continue
            if owner not in run.numbers:
                run.numbers[owner] = self._first + len(self._called)
                self._called.append(owner)
            self.pieces.append(_Piece(int(start), int(end), place, run.numbers[owner], backward))

    def result(self, code: Sequence[CompiledCode]) -> Recording:
        """Return the recording with the results, and with the pieces added to its events."""
        recording, record = self._recording, _record(self._executed, code)
        if not self.pieces:
            return replace(recording, compiled=record)
        called = [(number, layer, False, True) for number, layer in enumerate(self._called, start=self._first)]
        spans = pd.concat([recording.spans.assign(derived=False), frame_of_rows("spans", called)])
        return replace(
            recording,
            events=self._events(),
            modules=self._layers.frame(),
            spans=spans,
            compiled=record,
        )

    def _events(self) -> pd.DataFrame:
        """Return the pieces, followed by the other events.

        This order matters: if two intervals are equal, the first is considered to be around the second.
        """
        events, pieces = self._recording.events.copy(deep=False), pd.DataFrame(self.pieces)
        for column, labels in (("name", (PIECE, LAYER_SPAN)), ("category", (SPAN_CATEGORY,))):
            known = events[column].cat.categories
            events[column] = events[column].cat.add_categories([each for each in labels if each not in known])
        backward, number = pieces["backward"], pieces["number"]
        added = self._host.places.iloc[pieces["place"]].reset_index(drop=True)
        added = added.assign(
            name=np.where(backward, PIECE, LAYER_SPAN),
            category=SPAN_CATEGORY,
            start_ns=pieces["start"],
            duration_ns=pieces["end"] - pieces["start"],
            sequence=_FIRST_SEQUENCE + number,
            forward_thread=np.where(backward, _THREAD, NONE),
            span=np.where(backward, NONE, number),
        ).reindex(columns=events.columns)
        numbers = events.select_dtypes("number").columns
        added[numbers] = added[numbers].fillna(NONE)
        return pd.concat([added.astype(events.dtypes.to_dict()), events], ignore_index=True)


#: The kernel, whether it ran in backward, the start and the duration.
_Executed = tuple[_Planned, bool, int, int]


def _record(executed: Sequence[_Executed], code: Sequence[CompiledCode]) -> CompiledRecord:
    """Return the tables of kernels and their executions."""
    kernels = {id(kernel): (kernel, backward) for kernel, backward, *_ in executed}
    numbers = {identity: number for number, identity in enumerate(kernels)}
    facts = [
        (*kernel.facts[:2], "backward" if backward else "forward", *kernel.facts[2:])
        for kernel, backward in kernels.values()
    ]
    shares = [(numbers[own], chain[-1], share) for own in kernels for chain, share in kernels[own][0].shares]
    calls = [(numbers[id(kernel)], start, duration) for kernel, _, start, duration in executed]
    return CompiledRecord(
        frame_of_rows("compiled_kernels", facts),
        frame_of_rows("compiled_shares", shares),
        frame_of_rows("compiled_calls", calls),
        frame_of_rows("compiled_code", list(code)),
    )
