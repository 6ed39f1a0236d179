"""Read and write provenance files.

Such a file maps the kernels in a compiled graph to operations. It is needed if the trace does not contain this mapping.
`written` returns the text of perfnb's own file, which describes graphs that were compiled for profiling and includes
the modules of their operations. The files that torch writes name operations and lines, but no modules:

- ``inductor_provenance_tracking_node_mappings.json`` maps kernels to operations (under ``cppCodeToPost``, even for
Triton kernels). torch 2.13 leaves it empty for a backward pass.
- ``inductor_provenance_tracking_kernel_stack_traces.json`` maps kernels to Python stacks.

torch's files do not name the graph, so perfnb looks for the graph that runs all of their kernels in the same order.
``kernel_information.json`` contains both, but only for packages that AOTInductor compiled, and traces do not mark the
graphs of these packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from perfnb.errors import TraceError
from perfnb.files import read_regular
from perfnb.recording.compiled_layers import Graph, graph_keys, kernels_in_order, run_kernels, source_of, with_keys
from perfnb.recording.kernel_work import Kernel, Operation
from perfnb.recording.recording import Recording
from perfnb.trace.chrome_json import depth_of
from perfnb.trace.trace_file import MAX_DEPTH, MOST_TEXT

#: The maximum size of a file in bytes. perfnb's own file for a model with a thousand layers is about a tenth as large.
_MOST_BYTES = 64 * 2**20
#: Variables at the start of the paths in a graph, which refer to the models that it calls.
_MOST_VARIABLES = 100
_NUMBER = re.compile(r"_[0-9]+$")

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Whole = Annotated[int, Meta(ge=0, lt=2**53)]


class _Operation(Struct, array_like=True):
    name: _Text
    op: _Text
    modules: Annotated[list[tuple[_Text, _Text]], Meta(max_length=MAX_DEPTH)]
    inputs: list[_Text]
    bytes: _Whole
    flops: _Whole
    source: tuple[_Text, _Whole, _Text] | None
    view: bool = False
    returned: bool = False


class _Graph(Struct):
    key: _Text
    kernels: list[tuple[_Text, bool, list[_Text]]]
    operations: list[_Operation]


class _Written(Struct):
    version: Literal[1]
    graphs: list[_Graph]


class _Mappings(Struct):
    kernels: dict[_Text, list[_Text]] = msgspec.field(name="cppCodeToPost")


_KEY = "perfnb_provenance"
#: The operations and stacks of each kernel, for a graph without a key.
_Kernels = dict[str, tuple[list[str], list[str]]]


def _row(operation: Operation) -> list[Any]:
    """Return an operation in the form that `_Operation` reads."""
    return list((operation._asdict() | {"source": operation.source or None}).values())


def written(graphs: Iterable[Graph]) -> bytes:
    """Return the text of a provenance file about the given graphs."""
    described = [
        {
            "key": graph.key,
            "kernels": graph.kernels,
            "operations": [_row(each) for each in graph.operations.values()],
        }
        for graph in graphs
    ]
    return msgspec.json.encode({_KEY: {"version": 1, "graphs": described}})


def graphs_of_files(paths: Sequence[Path], recording: Recording, trace: str) -> list[Graph]:
    """Return the graphs in a trace that provenance files describe.

    Raises
    ------
    TraceError
        If a file cannot be read, or does not describe any of the graphs.
    """
    if paths and recording.derived_spans.any():
        raise TraceError(f"{trace} already has the layers of its compiled code: load it without a provenance file.")
    keys, found, merged = set(graph_keys(recording.events)), list[Graph](), dict[frozenset[str], _Kernels]()
    for path in paths:
        told = _read(path)
        if isinstance(told, list):
            graphs = [graph for graph in told if graph.key in keys]
            if graphs and not run_kernels(recording.events, graphs):
                raise TraceError(f"{path} does not describe {trace}: it names the trace's graphs, but other kernels.")
        else:
            kernels = merged.setdefault(frozenset(told), {})
            for name, (nodes, stacks) in told.items():
                before = kernels.get(name, ([], []))
                kernels[name] = (before[0] or nodes, before[1] or stacks)
            graphs = with_keys(recording.events, _graph_of(kernels))
        if not graphs:
            raise TraceError(f"{path} does not belong to {trace}: none of its graphs run in the trace.")
        found += graphs
    return found


def _read(path: Path) -> list[Graph] | _Kernels:
    """Return the graphs in a file, or the kernels of a single graph if the file does not name the graph."""
    try:
        text = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error}.") from error
    if depth_of(text) <= MAX_DEPTH:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            held = msgspec.json.decode(text, type=dict[str, Any])
            if _KEY in held:
                return [_described(graph) for graph in msgspec.convert(held[_KEY], _Written).graphs]
            if "cppCodeToPost" in held:
                kernels = msgspec.convert(held, _Mappings).kernels
                return {name: (nodes, []) for name, nodes in kernels.items()}
            stacks = msgspec.convert(held, dict[_Text, list[str]])
            return {name: ([], of_kernel) for name, of_kernel in stacks.items()}
    raise TraceError(
        f"{path} is not a provenance file that perfnb can read; pass one that perfnb.compile_for_profiling wrote, or "
        "torch's inductor_provenance_tracking_node_mappings.json or ..._kernel_stack_traces.json."
    )


def _described(graph: _Graph) -> Graph:
    """Return a graph from perfnb's description."""
    variables = {path.partition("]")[0].partition(".")[0] for each in graph.operations for path, _ in each.modules}
    if len(variables) > _MOST_VARIABLES:
        raise msgspec.ValidationError("too many models")
    operations = [
        Operation(
            *(each.name, each.op, tuple(each.modules), tuple(each.inputs), each.bytes, each.flops, each.source or ()),
            *(each.view, each.returned),
        )
        for each in graph.operations
    ]
    kernels = [Kernel(name, extern, tuple(inside)) for name, extern, inside in graph.kernels]
    return Graph(graph.key, tuple(kernels), {each.name: each for each in operations})


def _graph_of(told: Mapping[str, tuple[list[str], list[str]]]) -> Graph:
    """Return a graph without a key.

    It has one operation for each operation that the file names, and one for each line of code, because torch does not
    name the operations of a line.
    """
    operations: dict[str, Operation] = {}
    fused: dict[str, list[str]] = {}
    for kernel, (nodes, stacks) in told.items():
        lines: Iterator[Any] = filter(None, map(source_of, stacks))
        named = {node: Operation(node, _NUMBER.sub("", node), (), (), 0, 0, ()) for node in nodes}
        named |= {f"{kernel} {at}": Operation("", "", (), (), 0, 0, line) for at, line in enumerate(lines)}
        operations |= named
        fused[kernel] = list(named)
    return Graph("", tuple(kernels_in_order(fused)), operations)
