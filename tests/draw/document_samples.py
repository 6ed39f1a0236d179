"""Documents that every renderer must show: each kind of section, strange names, nothing known, and real results.

Adding a result to the contracts of `test_document_renderers` takes a line in `DOCUMENTS` of a module in
`tests/samples/`, which has one for each room.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module

from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Budget,
    Card,
    Cards,
    Choice,
    Code,
    Column,
    Document,
    Dot,
    Effect,
    Effects,
    Figure,
    Heat,
    Inner,
    Line,
    Link,
    Nesting,
    Part,
    Picture,
    Scatter,
    Section,
    Series,
    Split,
    Strip,
    Table,
    Value,
    Verdict,
)
from perfnb.draw.palette import Mark, mark
from tests import samples
from tests.samples import HOSTILE


def sections(name: str) -> tuple[Section, ...]:
    """Return one section of each kind, with `name` wherever a name may be."""
    forward, backward = mark("forward"), Mark(name, "#D55E00", "▓", "hatch")
    time, size = Axis("step", "count"), Axis(name, "bytes")
    return (
        Bars(
            "Where a step goes",
            "ms",
            (Bar("", (Part(forward, 7.0), Part(backward, 5.3), Part(mark("loss"), 0.0)), 12.3),),
        ),
        Bars(
            "Two sides on one scale",
            "ms",
            (Bar("baseline", (Part(forward, 7.0), Part(backward, 5.3))), Bar(name, (Part(forward, 2.5),))),
        ),
        Effects(
            "Time of a step",
            (
                Effect(name, 0.54, (0.51, 0.57), "faster", f"It warns of {name}."),
                Effect("slow", 14.2, (13.9, 14.6), "slower"),
                Effect("unknown", None, None, name),
            ),
            same_within=0.02,
        ),
        Table(
            "Operators",
            (Column("operator"), Column("calls", "count"), Column("time", "ms", bar=True), Column("dtype", priority=1)),
            [(name, 12, 3.4, "float32"), ("aten::add", None, 0.05, name), ("total", 13, 3.45, None)],
            tail=1,
            details=["", f"It was called by {name}.", ""],
        ),
        tree(name),
        Series(
            "Memory over steps",
            time,
            size,
            [0, 1, 2, 3],
            (Line(forward, [1024, None, 4096, 2048]), Line(backward, [0, 1, 2, 3], [0, 0, 1, 2], [1, 2, 3, 4])),
            {name: 8192.0},
        ),
        Series(
            "Stacked",
            time,
            size,
            [0, 1],
            (Line(forward, [1, 2]), Line(backward, [3, None])),
            stacked=True,
            spans=((forward, 0, 0.4), (backward, 0.6, 1)),
        ),
        Scatter("Roofline", Axis("intensity", "number"), Axis("rate", "flops/s"), (Dot(name, 2.5, 3e9, forward),)),
        Strip("Pairs", Axis("ratio", "ratio"), ((forward, [0.5, 0.6, 0.61]), (backward, [])), ("the same", 1.0)),
        Heat("Traffic", "bytes/s", ["rank 0", name], ["rank 0", name], [[None, 1e9], [2e9, 0.0]], "to"),
        Table(
            "Kernels",
            (Column("kernel"), Column("time", "ms", bar=True, marks=(forward, backward))),
            [(name, Split(3.0, (1.0, 2.0))), ("gemm", Split(None, (None, None)))],
            selects=(("layers", "Show in the layers"),),
            names=[f"full {name}", "full gemm"],
            inner=Inner(
                "Layers of the kernel",
                (Column("layer"), Column("time", "ms")),
                [(name, 1.0), ("fc", 2.0), (name, None)],
                [0, 0, 1],
                "layers",
            ),
            key="kernels",
        ),
        Cards(
            "Findings",
            (
                Card(
                    "waiting for data",
                    "up to 1.50 ms (12 %)",
                    0.12,
                    "high",
                    f"It was measured in {name}.",
                    f"The step waits for {name}.",
                    f"Use {name}.",
                    f"use({name!r})",
                    "It was measured once.",
                    ("Try it:", f"try_levers({name!r})"),
                    (Link("layers", name),),
                    "workers",
                ),
                Card(name, "n/a"),
            ),
        ),
        Code(f"for x in loader:\n    train(x)  # {name.splitlines()[0]}", "Lines to copy"),
        Choice("By metric", {"time": (Code("by = 1.5"),), name: (Code("by = 2.5"),)}),
        Picture("flame", "Flame graph", lambda width: ["█" * width], lambda: "<p>flame</p>", lambda: {"frames": [1.5]}),
    )


def tree(name: str, breadth: int = 12) -> Table:
    """Return layers below each other, more than a page holds."""
    parents = [-1, *([0] * breadth), *[place + 1 for place in range(breadth) for _ in range(3)]]
    weights = [float(len(parents) - row) for row in range(len(parents))]
    rows = [(name if row == 1 else f"layer {row}", weight, weight / weights[0]) for row, weight in enumerate(weights)]
    columns = (Column("layer"), Column("total", "ms"), Column("share", "share", bar=True))
    rows.append(("unattributed", 0.5, 0.01))
    return Table(
        "Layers",
        columns,
        rows,
        Nesting(parents, weights, (0, 1)),
        tail=1,
        budget=Budget(12, 20),
        noun="layer",
        key="layers",
    )


def everything(name: str = "block.0") -> Document:
    verdict = Verdict(
        "open", f"Bound by {name}: up to 1.5 ms", f"It is {name}.", f"Try {name}.", f"use({name!r})", "low"
    )
    figures = (Figure("step", 12.3, "ms", (12.1, 12.6), "median of 20"), Figure("throughput", 2617.0, "samples/s"))
    tab = Document("memory", figures=(Figure("peak", 3 * 2**30, "bytes"),), sections=(Code("empty_cache()"),))
    return Document(
        "profile", name, f"cpu of {name}", verdict, figures, (f"2 of {name}",), sections(name), (name,), (tab,)
    )


def unknown() -> Document:
    """Return a result without measurements."""
    forward = mark("forward")
    nothing: tuple[Section, ...] = (
        Bars("No parts", "ms", (Bar("", ()),)),
        Bars("No bars", "ms", ()),
        Effects("No effects", ()),
        Effects("Unknown effects", (Effect("a", None), Effect("b", float("nan"), (0.5, float("nan"))))),
        Table("No rows", (Column("name"), Column("ms", "ms")), []),
        Table("Unknown", (Column("name"), Column("ms", "ms"), Column("bar", "share", bar=True)), [(None, None, None)]),
        Series("No lines", Axis("t", "ms"), Axis("y", "ms"), [], ()),
        Series("Unknown lines", Axis("t", "ms"), Axis("y", "ms"), [0.0], (Line(forward, [None]),)),
        Scatter("No dots", Axis("t", "ms"), Axis("y", "ms"), ()),
        Strip("No dots", Axis("t", "ms"), ((forward, [float("nan")]),)),
        Heat("No cells", "ms", [], [], []),
        Code(""),
        Choice("No options", {}),
    )
    return Document(
        "profile", figures=(Figure("step", None, "ms"), Figure("rate", float("inf"), "/s")), sections=nothing
    )


def wide() -> Document:
    """More columns than any terminal has room for, none of which may give way, and words that take two cells."""
    columns = (Column("名字"), *(Column(f"列 {place}", "ms") for place in range(30)))
    rows = [
        ("深度学习" * 12, *(1000.0 * place for place in range(30))),
        ("e\u0301" * 300, *[Value(0.02, "bytes/s")] * 30),
    ]
    return Document("comparison", sections=(Table("Wide", columns, rows),))


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "everything": everything,
    "hostile": lambda: everything(HOSTILE),
    "unknown": unknown,
    "wide": wide,
}
for room in pkgutil.iter_modules(samples.__path__):
    DOCUMENTS |= import_module(f"{samples.__name__}.{room.name}").DOCUMENTS
# A document never changes, and making one takes longer than most of what is asked of it.
DOCUMENTS = {name: cache(make) for name, make in DOCUMENTS.items()}
