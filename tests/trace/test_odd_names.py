"""Names that torch's fast exporter breaks or loses survive a whole profile, saved and shown."""

from __future__ import annotations

import inspect
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torch.profiler import record_function

import perfnb
from perfnb.errors import CaptureError
from perfnb.step.tracer import Tracer
from tests.step.timed import traced_ms

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Names that torch's fast exporter writes unchanged, and names that need its exact one.
QUICK = {
    "braces": "}],[{",
    "html": "<script>alert(1)</script>&amp;",
    "long": "x" * 10_000,
    "like an op": "aten::mm",
    "dollars": "$x^2$ %s {0}",
    "empty": "",
}
EXACT = {
    "control": "bell\x07",
    "newline": "two\nlines\tand a tab",
    "quote": 'say "hi"',
    "accents": "Größe naïve",
    "emoji": "模型 🚀",
    "right to left": "שלום",
    "unknown": "unknown",
}
NAMES = QUICK | EXACT
#: Whether this torch has the exact exporter.
HAS_EXACT = "use_python_export" in inspect.signature(torch.profiler.profile.export_chrome_trace).parameters
needs_exact = pytest.mark.skipif(not HAS_EXACT, reason="this torch has no exporter that writes every name right")
CLASSES = ("Größe", 'say_"hi"', "<script>", "a.b", "x" * 1000, "pf#1", "(loss)")


def profile_of(*names: str, model: dict[str, nn.Module]) -> perfnb.Profile:
    """Return steps that call a model once within a range of each name."""
    (called,) = model.values()

    def step() -> None:
        for name in names:
            with record_function(name):
                called(torch.ones(4, 8)).sum().backward()

    return perfnb.profile_step(step, model=model, warmup=1, steps=1, traced=2)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=id, marks=() if id in QUICK else needs_exact) for id, name in NAMES.items()],
)
def test_a_trace_has_the_name_from_the_exporter_that_writes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a trace of its own: another name would ask for the exact exporter on its behalf."""
    asked: list[bool] = []
    export = Tracer.export

    def told(self: Tracer, *, exact: bool = False) -> bytes:
        asked.append(exact)
        return export(self, exact=exact)

    monkeypatch.setattr(Tracer, "export", told)
    with Tracer() as tracer:
        for _ in range(2):
            with record_function(name):
                torch.ones(4)

    trace = tracer.read()

    assert [trace.names[code] for code in trace.name].count(name) == 2
    assert asked == ([False] if name in QUICK.values() else [False, True])


@pytest.mark.slow
@needs_exact
def test_names_of_ranges_classes_and_layers_are_in_the_profile_and_spoil_nothing(tmp_path: Path) -> None:
    model = nn.Sequential()
    for number, name in enumerate(CLASSES):
        model.add_module(f"größe{number}", type(name, (nn.Module,), {"forward": lambda self, x: x * 2})())
    model.add_module('<b>"x"</b>', nn.Linear(8, 8))

    p = profile_of(*NAMES.values(), model={"(loss)": model})

    again = perfnb.load(p.save(tmp_path / "profile"))
    for name in NAMES.values():
        assert (p.events["name"] == name).sum() >= 2, name
        assert (again.events["name"] == name).sum() >= 2, name
        assert calls_within(p.events, name) == 2, name
    layers = p.layers[p.layers["module"].notna()]
    assert layers["module"].tolist() == again.layers["module"].dropna().tolist() == ["Sequential", *CLASSES, "Linear"]
    assert layers.index.tolist()[1:] == [f"(loss).{name}" for name, _ in model.named_children()]
    assert layers["calls"].tolist() == [len(NAMES)] * len(layers)
    assert again.layers.index.tolist() == p.layers.index.tolist()
    assert p.phases["ms"].sum() == pytest.approx(traced_ms(p))
    assert str(p)


def calls_within(events: pd.DataFrame, name: str) -> int:
    """Return how often the model's linear layer is called in the ranges of a name."""
    ranges = events[(events["name"] == name) & (events["category"] == "user_annotation")]
    calls = events.loc[events["name"] == "aten::linear", "start_ns"]
    return sum(int(calls.between(one.start_ns, one.start_ns + one.duration_ns).sum()) for one in ranges.itertuples())


def test_where_torch_cannot_export_a_name_the_error_says_which_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(self: object, path: str) -> None:
        Path(path).write_text('{"traceEvents": [{"name": "say "hi""}]}')

    monkeypatch.setattr("torch.profiler.profiler._KinetoProfile.export_chrome_trace", older)

    with pytest.raises(
        CaptureError, match=r"a record_function name contains a quote .* rename it, or use torch 2\.13\.$"
    ):
        profile_of('say "hi"', model={"model": nn.Linear(8, 8)})


def test_a_backslash_becomes_a_slash_as_torchs_exporter_writes_it() -> None:
    with Tracer() as tracer, record_function("back\\slash"):
        torch.ones(4)

    assert {"back\\slash", "back/slash"} & set(tracer.read().names)
