"""Made-up timelines as the browser gets them: planted events at known places, and as many as wanted."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfnb.draw.palette import MARKS

US = 1_000
KINDS = list(MARKS)
_TYPES = {
    "start": "f8", "duration": "f8", "name": "u4", "layer": "i4", "launch": "i4", "forward": "i4", "detail": "i4",
    "depth": "u1", "kind": "u1", "category": "u1", "memory_t": "f8", "memory_bytes": "f8",
}  # fmt: skip


@dataclass
class Event:
    """One event; `key` is how others point at it."""

    name: str
    start_us: float
    duration_us: float
    kind: str = "forward"
    depth: int = 0
    layer: str | None = None
    category: str = "cpu_op"
    detail: str | None = None
    key: str = ""
    launch: str = ""
    forward: str = ""


@dataclass
class Track:
    """One track of events."""

    kind: str
    title: str
    events: list[Event] = field(default_factory=list)
    note: str = ""
    thread: str = ""


def encoded(
    tracks: Sequence[Track],
    memory: Sequence[tuple[str, Sequence[float], Sequence[float]]] = (),
    *,
    layers: Sequence[str] = (),
    **facts: Any,
) -> bytes:
    """Return the bytes of a timeline; `layers` in the order of the report's rows, memory as title, µs and bytes."""
    ordered = [(t, sorted(t.events, key=lambda e: (e.depth, e.start_us))) for t in tracks]
    events = [event for _, inside in ordered for event in inside]
    places = {event.key: i for i, event in enumerate(events) if event.key}
    tables: dict[str, dict[str, int]] = {"names": {}, "details": {}, "categories": {}}

    def code(table: str, text: str | None) -> int:
        return -1 if text is None else tables[table].setdefault(text, len(tables[table]))

    columns = {
        "start": [event.start_us * US for event in events],
        "duration": [event.duration_us * US for event in events],
        "name": [code("names", event.name) for event in events],
        "layer": [-1 if event.layer is None else list(layers).index(event.layer) for event in events],
        "launch": [places.get(event.launch, -1) for event in events],
        "forward": [places.get(event.forward, -1) for event in events],
        "detail": [code("details", event.detail) for event in events],
        "depth": [event.depth for event in events],
        "kind": [KINDS.index(event.kind) for event in events],
        "category": [code("categories", event.category) for event in events],
    }
    first = 0
    shown = []
    for track, inside in ordered:
        depth = 1 + max((event.depth for event in inside), default=0)
        shown.append({"kind": track.kind, "title": track.title, "note": track.note, "thread": track.thread})
        shown[-1] |= {"first": first, "count": len(inside), "depth": depth}
        first += len(inside)
    times, alive, curves = [], [], []
    for title, instants, values in memory:
        curves.append({"title": title, "note": "as in the counted step", "first": len(times), "count": len(instants)})
        curves[-1]["most"] = max(values)
        times += [t * US for t in instants]
        alive += values
    ends = [event.start_us + event.duration_us for event in events]
    header = {
        "start_ns": min((event.start_us for event in events), default=0) * US,
        "end_ns": max(ends, default=1) * US,
        "total_events": len(events),
        "shortest_ns": 0,
        **{name: list(table) for name, table in tables.items()},
        "layers": list(layers),
        "layer_rows": list(range(len(layers))),
        "tracks": shown,
        "memory": curves,
        **facts,
    }
    return packed(header, {**columns, "memory_t": times, "memory_bytes": alive})


def packed(header: dict[str, Any], columns: dict[str, Any]) -> bytes:
    """Return a header and arrays, laid out as the browser reads them."""
    body = bytearray()
    laid = {}
    for name, values in columns.items():
        array = np.asarray(values, dtype="<" + _TYPES[name])
        laid[name] = [_TYPES[name], len(body), len(array)]
        body += array.tobytes()
        body += bytes(-len(body) % 8)
    kinds = [{"word": mark.word, "colour": mark.colour, "pattern": mark.pattern} for mark in MARKS.values()]
    whole = {"events": len(columns["start"]), "kinds": kinds, **header, "arrays": laid}
    text = json.dumps(whole).encode()
    text += b" " * (-(4 + len(text)) % 8)
    return zlib.compress(len(text).to_bytes(4, "little") + text + bytes(body), 6)


def facts_of(data: bytes) -> dict[str, Any]:
    """Return what the report's JSON says of these bytes."""
    plain = zlib.decompress(data)
    header = json.loads(plain[4 : 4 + int.from_bytes(plain[:4], "little")])
    whole = header["total_events"] == header["events"]
    return {"events": header["events"], "total_events": header["total_events"], "whole": whole}


LAYERS = ("model", "model.features", *(f"model.features.{k}" for k in range(4)), "model.head")
PHASES = {"data": (0, 60), "forward": (60, 300), "loss": (360, 20), "backward": (380, 420), "optimizer": (800, 180)}


def step(steps: int = 2, *, backward_layers: bool = False) -> bytes:
    """Return steps of 1 ms each: five layers, whose ops launch kernels and have backward nodes; an optimizer;
    memory.
    """
    named = ["Steps", "Phases", "Layers", "Thread 1 (main)", "Thread 2 (autograd)", "GPU 0, stream 7"]
    kinds = ["steps", "phases", "layers", "thread", "thread", "stream"]
    tracks = [Track(kind, title) for kind, title in zip(kinds, named, strict=True)]
    whole, phases, spans, main, autograd, gpu = (track.events for track in tracks)
    instants = []
    for n in range(steps):
        at = 1000.0 * n
        whole.append(Event(f"step {n + 1}", at, 1000, "other", category="step"))
        phases += [Event(name, at + begin, length, name, category="phase") for name, (begin, length) in PHASES.items()]
        spans.append(Event("model", at + 60, 300, layer="model", category="layer"))
        spans.append(Event("model.features", at + 60, 240, depth=1, layer="model.features", category="layer"))
        for b, layer in enumerate(LAYERS[2:]):
            begin, back, key = at + 60 + 60 * b, at + 380 + 80 * (4 - b), f"{n}.{b}"
            spans.append(Event(layer, begin, 58, depth=1 + ("features" in layer), layer=layer, category="layer"))
            shapes = f"[[8, {b}, 32, 32]]"
            main.append(Event("aten::conv2d", begin + 2, 50, layer=layer, detail=shapes))
            # The number by which torch joins backward to forward leads to the inner op.
            main.append(Event("aten::convolution", begin + 4, 46, depth=1, layer=layer, key=f"op{key}"))
            main.append(Event("cudaLaunchKernel", begin + 30, 6, "forward", 2, layer, "runtime", key=f"call{key}"))
            gpu.append(Event("fprop", begin + 55, 55, "forward", 0, layer, "kernel", launch=f"call{key}"))
            autograd.append(Event("ConvolutionBackward0", back, 70, "backward", 0, layer, forward=f"op{key}"))
            autograd.append(Event("cudaLaunchKernel", back + 20, 5, "backward", 1, layer, "runtime", key=f"bcall{key}"))
            if backward_layers:
                spans.append(Event(layer, back, 70, "backward", 1 + ("features" in layer), layer, category="layer"))
            gpu.append(Event("dgrad", back + 45, 65, "backward", 0, layer, "kernel", launch=f"bcall{key}"))
            instants += [begin, back + 70]
        main.append(Event("Optimizer.step#SGD.step", at + 800, 180, "optimizer"))
        main += [Event("aten::add_", at + 805 + 5 * k, 4, "optimizer", 1) for k in range(30)]
    alive = [2**20 * (4 + min(k % 10, 9 - k % 10)) for k in range(len(instants))]
    return encoded(tracks, [("Memory, CPU", sorted(instants), alive)], layers=LAYERS)
