"""Names that torch's fast exporter breaks or loses survive a whole profile, saved and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import record_function

import perfnb
from perfnb.errors import CaptureError

pytestmark = pytest.mark.usefixtures("nothing_left")

NAMES = {
    "quote": 'say "hi"',
    "newline": "two\nlines\tand a tab",
    "braces": "}],[{",
    "html": "<script>alert(1)</script>&amp;",
    "accents": "Größe naïve",
    "emoji": "模型 🚀",
    "right to left": "שלום",
    "long": "x" * 10_000,
    "control": "bell\x07",
    "unknown": "unknown",
    "like an op": "aten::mm",
    "dollars": "$x^2$ %s {0}",
    "empty": "",
}


def profile_of(name: str) -> perfnb.Profile:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def step() -> None:
        with record_function(name):
            model(torch.ones(4, 8)).sum().backward()

    return perfnb.profile_step(step, warmup=1, steps=1, traced=2)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_given_to_record_function_is_in_the_events_and_spoils_nothing(name: str, tmp_path: Path) -> None:
    p = profile_of(name)

    assert (p.events["name"] == name).sum() >= 2
    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers.index.tolist() == ["model", "model.0", "model.1"]
    assert layers["calls"].tolist() == [1, 1, 1]
    assert p.phases["ms"].sum() == pytest.approx(p.steps.loc[p.steps["pass"] == "traced", "wall_ms"].mean(), rel=0.2)
    again = perfnb.load(p.save(tmp_path / "profile"))
    assert (again.events["name"] == name).sum() >= 2
    assert str(p)
    assert p.to_html(tmp_path / "report.html").is_file()


@pytest.mark.parametrize("name", ["Größe", 'say_"hi"', "<script>", "a.b", "x" * 1000, "pf#1", "(loss)"])
def test_a_class_may_have_any_name(name: str, tmp_path: Path) -> None:
    kind = type(name, (nn.Module,), {"forward": lambda self, x: x * 2})
    model = nn.Sequential()
    model.add_module("größe", kind())
    model.add_module('<b>"x"</b>', nn.Linear(8, 8))

    p = perfnb.profile_step(lambda: model(torch.ones(4, 8)), warmup=1, steps=1, traced=1)

    layers = p.layers[p.layers["module"].notna()]
    assert layers.index.tolist() == ["model", "model.größe", 'model.<b>"x"</b>']
    assert layers["module"].tolist() == ["Sequential", name, "Linear"]
    assert layers["calls"].tolist() == [1, 1, 1]
    again = perfnb.load(p.save(tmp_path / "profile"))
    assert again.layers.index.tolist() == p.layers.index.tolist()
    assert str(p)


def test_a_layer_called_like_a_row_in_parentheses_is_a_layer() -> None:
    model = nn.Linear(8, 8)

    p = perfnb.profile_step(
        lambda: model(torch.ones(4, 8)).sum().backward(), model={"(loss)": model}, warmup=1, steps=1, traced=1
    )

    row = p.layers[p.layers["module"] == "Linear"]
    assert row["calls"].tolist() == [1]


def test_where_torch_cannot_export_a_name_the_error_says_which_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(self: object, path: str) -> None:
        Path(path).write_text('{"traceEvents": [{"name": "say "hi""}]}')

    monkeypatch.setattr("torch.profiler.profiler._KinetoProfile.export_chrome_trace", older)

    with pytest.raises(
        CaptureError, match=r"a record_function name in it holds a quote .* rename it or use torch 2\.13\.$"
    ):
        profile_of('say "hi"')


def test_a_backslash_becomes_a_slash_as_torchs_exporter_writes_it() -> None:
    p = profile_of("back\\slash")

    assert {"back\\slash", "back/slash"} & set(p.events["name"])
    assert p.layers["calls"].dropna().tolist() == [1, 1, 1]
