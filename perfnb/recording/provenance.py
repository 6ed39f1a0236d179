"""Read and write provenance files.

Such a file maps the kernels in a compiled graph to operations and their modules, which traces do not contain. `written`
returns the text of a file about graphs that were compiled for profiling. The files that torch itself writes do not
contain modules, so perfnb does not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from perfnb.errors import TraceError
from perfnb.files import read_regular
from perfnb.recording.compiled_layers import Graph, graph_keys
from perfnb.recording.kernel_work import Kernel, Operation, Text
from perfnb.recording.recording import Recording
from perfnb.trace.chrome_json import depth_of
from perfnb.trace.trace_file import MAX_DEPTH

#: The maximum size of a file in bytes. perfnb's own file for a model with a thousand layers is about a tenth as large.
_MOST_BYTES = 64 * 2**20
#: Variables at the start of the paths in a graph, which refer to the models that it calls.
_MOST_VARIABLES = 100


class _Graph(Struct):
    key: Text
    kernels: list[Kernel]
    operations: list[Operation]


class _Written(Struct):
    version: Literal[1]
    graphs: list[_Graph]


class _File(Struct):
    perfnb_provenance: _Written


def written(graphs: Iterable[Graph]) -> bytes:
    """Return the text of a provenance file about the given graphs."""
    described = [_Graph(graph.key, [*graph.kernels], [*graph.operations.values()]) for graph in graphs]
    return msgspec.json.encode(_File(_Written(1, described)))


def graphs_of_files(paths: Sequence[Path], recording: Recording, trace: str) -> list[Graph]:
    """Return the graphs in a trace that provenance files describe.

    Raises
    ------
    TraceError
        If a file cannot be read, or does not describe any of the graphs.
    """
    if paths and recording.derived_spans.any():
        raise TraceError(f"{trace} already has the layers of its compiled code: load it without a provenance file.")
    keys, found = set(graph_keys(recording.events)), list[Graph]()
    for path in paths:
        graphs = [graph for graph in _read(path) if graph.key in keys]
        if not graphs:
            raise TraceError(f"{path} does not belong to {trace}: none of its graphs run in the trace.")
        found += graphs
    return found


def _read(path: Path) -> list[Graph]:
    """Return the graphs in a file."""
    try:
        text = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error}.") from error
    if depth_of(text) <= MAX_DEPTH:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return [_described(graph) for graph in msgspec.json.decode(text, type=_File).perfnb_provenance.graphs]
    raise TraceError(
        f"{path} is not a provenance file that perfnb can read; pass one that perfnb.compile_for_profiling wrote. The "
        "files that torch writes do not contain layers."
    )


def _described(graph: _Graph) -> Graph:
    """Return a graph from perfnb's description."""
    variables = {path.partition("]")[0].partition(".")[0] for each in graph.operations for path, _ in each.modules}
    if len(variables) > _MOST_VARIABLES:
        raise msgspec.ValidationError("too many models")
    return Graph(graph.key, tuple(graph.kernels), {each.name: each for each in graph.operations})
