"""Names that a stranger chose, in every short form, sentence and path: nothing reaches a terminal unescaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.draw.escape import MAX_NAME
from perfnb.errors import PerfnbError, RecordingError
from tests.models import architecture_samples

NAME = "e\x1b[31mvil\u202e\n\u2028\x9b<b>$x^2$" + "x" * 1000
#: What no file of text can hold: a lone surrogate, as Python makes of a file's name that is not UTF-8.
UNSTORABLE = "a\udcffb"
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
X = torch.ones(2, 4)
SHORT: dict[str, Any] = {"warmup": 1, "steps": 1, "traced": 1, "memory": False, "flops": False}


def invisible(text: str) -> set[str]:
    """Return what in a text does something instead of showing; lines of perfnb's own end."""
    return {char for char in text if unicodedata.category(char) in _INVISIBLE and char != "\n"}


def named(name: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module(name.replace(".", ""), nn.Linear(4, 4))
    return model


def test_the_repr_of_a_comparison_of_architectures_shows_names_and_does_nothing() -> None:
    figures = architecture_samples.hostile()
    names = {name: NAME + name for name in figures.table.index}
    figures = replace(
        figures,
        table=figures.table.rename(index=names),
        ratios=figures.ratios.replace({"a": names, "b": names}),
        shares=figures.shares.replace({"name": names}),
        layers={names[name]: layers for name, layers in figures.layers.items()},
    )
    text = repr(figures)

    assert r"e\x1b[31mvil\u202e" in text
    assert not invisible(text)
    assert "\n" not in text
    assert len(text) < 6 * MAX_NAME


@pytest.mark.slow
def test_a_profile_of_strange_names_shows_them_and_does_nothing(nothing_left: None) -> None:
    p = perfnb.profile_step(lambda: model(X), model={NAME: (model := named(NAME))}, name=NAME, **SHORT)

    assert not invisible(repr(p) + str(p))
    assert "\n" not in repr(p)
    assert len(repr(p)) < MAX_NAME
    assert r"vil\u202e" in str(p)


@pytest.mark.slow
def test_names_that_no_file_can_hold_are_profiled_shown_and_saved(tmp_path: Path, nothing_left: None) -> None:
    model = named(UNSTORABLE)
    p = perfnb.profile_step(lambda: model(X), model={UNSTORABLE: model}, name=UNSTORABLE, **SHORT)

    assert p.layers.index[0] == r"a\udcffb"
    assert p.layers.index[1] == r"a\udcffb.a\udcffb"
    assert not invisible(repr(p) + str(p))
    p.save(tmp_path / "saved")
    assert perfnb.load(tmp_path / "saved").layers.index[0] == r"a\udcffb"


@pytest.mark.deep
@pytest.mark.slow
def test_models_to_compare_may_have_names_that_no_file_can_hold(nothing_left: None) -> None:
    models = {UNSTORABLE: nn.Linear(4, 4), "plain": nn.ReLU()}
    compared = perfnb.compare_architectures(models, X, training=False, budget_s=0.3)

    assert compared.table.index.tolist() == [r"a\udcffb", "plain"]
    assert not invisible(repr(compared) + str(compared))


def test_a_mark_may_have_a_name_that_no_file_can_hold(nothing_left: None) -> None:
    with perfnb.watch(0.05) as watch, watch.mark(UNSTORABLE):
        pass

    assert watch.marks["name"].tolist() == [r"a\udcffb"]


def test_a_sentence_shows_what_it_quotes_and_does_nothing() -> None:
    assert str(PerfnbError(NAME[:21])) == r"e\x1b[31mvil\u202e\n\u2028\x9b<b>$x^2$"
    assert str(PerfnbError("5 µs · 10 % “so” 汉字")) == "5 µs · 10 % “so” 汉字"
    with pytest.raises(RecordingError) as caught:
        perfnb.load(f"/nowhere/{NAME[:20]}")
    assert not invisible(str(caught.value))


#: Paths at which nothing can be, and what is said of them.
NO_PATHS = {
    "a\0b": "contains a forbidden character",
    "/tmp/a\0b": "contains a forbidden character",
    "a\ud800b": "contains a forbidden character|does not exist",
    "x" * 5000: "too long",
    "/tmp/" + "y/" * 4000: "too long",
    "~nosuchuser/x": "home folder is unknown",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: ascii(path[:12]))
def test_a_path_that_cannot_be_is_refused_in_a_sentence(path: str) -> None:
    timing = perfnb.time_step(lambda: None, steps=1)
    uses: list[Callable[[], Any]] = [
        lambda: perfnb.load(path),
        lambda: perfnb.load(Path(path)),
        lambda: perfnb.load([path, path]),
        lambda: perfnb.journal(path),
        lambda: timing.save(path),
    ]
    for use in uses:
        with pytest.raises(RecordingError, match=NO_PATHS[path]) as caught:
            use()
        assert str(caught.value).endswith(".")
        assert len(str(caught.value)) < 300
