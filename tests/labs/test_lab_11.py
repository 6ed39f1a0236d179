"""Lab 11, what torch compiles: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from perfnb.labs import lab_11
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect, hint
from tests.labs.lab_11_answers import cell_with, models, rewritten


@pytest.fixture(autouse=True)
def _forgets_compiled_code() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def at_most(ms: dict[str, float], kept: list[str]) -> float:
    return sum(ms.values()) / sum(ms[name] for name in kept)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (at_most, ""),
        (lambda ms, kept: 1 / at_most(ms, kept), "the share that stays"),
        (lambda ms, kept: 1 - 1 / at_most(ms, kept), "How many times as fast is the whole?"),
        (lambda ms, kept: sum(ms.values()) - sum(ms[name] for name in kept), "milliseconds that can vanish"),
        (lambda ms, kept: sum(ms[name] for name in kept), "milliseconds that stay"),
        (
            lambda ms, kept: sum(ms.values()) / (sum(ms[n] for n in ms if n not in kept) or 1e-300),
            "keeps the wrong layers",
        ),
        (lambda ms, kept: sum(ms.values()) / sum(ms[n] for n in ms if n not in kept), "keeps the wrong layers"),
        (lambda ms, kept: round(at_most(ms, kept)), "is rounded"),
        (lambda ms, kept: len(ms) / len(kept), "counts layers"),
        (lambda ms, kept: sum(ms.values()), "how long is the step"),
    ],
)
def test_what_a_compiler_can_save(answer: Callable[..., Any], words: str) -> None:
    expect("11.2", words, answer)


ABS = "x.abs().max()"


def compiling(graphs: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let torch.compile make this number of graphs of a model, and return the cards that these get."""
    given: list[Any] = []

    def compiled(model: Any, *, backend: Any, dynamic: bool) -> Any:
        assert dynamic

        def forward(card: Any) -> Any:
            given.append(card)
            return model(card)

        each = [backend(SimpleNamespace(forward=forward), []) for _ in range(graphs)]
        return lambda card: [run(card) for run in each]

    monkeypatch.setattr(torch, "compile", compiled)
    return given


@pytest.mark.parametrize("graphs", [0, 1, 2])
def test_the_graphs_of_a_card_are_counted(graphs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, resets = compiling(graphs, monkeypatch), list[bool]()
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(True))

    facts = exercise_of("11.3").measure(rewritten(f"self.head(x), {ABS}"), checked=models()["Checked"])

    assert (facts["graphs"], len(resets)) == (graphs, 2)  # before it compiles, and afterwards
    assert [len(card) for card in given] == [images for images in lab_11.CARDS for _ in range(graphs)]
    assert facts["operators"] > 20
    for case in facts["cases"]:
        assert (case["returned"], case["same"]) == ("", True)
        assert case["said"] == pytest.approx(case["wanted"])
        assert case["said"] >= case["signed"] > case["mean"] > 0


def test_every_check_has_the_same_weights_and_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling(1, monkeypatch)
    answer = rewritten(f"self.head(x), {ABS}", more="assert not self.training")
    facts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        following = torch.rand(1, generator=torch.Generator().manual_seed(seed))
        facts.append(exercise_of("11.3").measure(answer, checked=models()["Checked"]))
        assert torch.rand(1) == following  # the check has not changed the reader's random numbers

    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (f"[self.head(x), {ABS}.reshape(1)]", ""),
        ("self.head(x), x.max()", "misses negative numbers"),
        (f"self.head(x), {ABS}.item()", "breaks the graph"),
        ("None", "nothing yet"),
    ],
)
def test_a_rewritten_reader(returns: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling(1, monkeypatch)
    expect("11.3", words, rewritten(returns), checked=models()["Checked"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Graph break:UserWarning")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", ""),
        ("if x.abs().max() > 1e4: raise ValueError", "2 graphs. A line"),
        ("print(x.abs().max())", "print() or .item()"),
        ("print(end=''), float(x.sum())", "graphs. A line"),
    ],
)
def test_a_graph_without_a_break(more: str, words: str) -> None:
    expect("11.3", words, rewritten(f"self.head(x), {ABS}", more=more), checked=models()["Checked"])


@pytest.mark.parametrize("returns", ["max(x.abs().flatten())", "max(map(max, x.abs()))"])
def test_a_loop_over_numbers_is_not_compiled(returns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would unroll Python's max, and compile it for minutes."""
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    answer = rewritten(f"self.head(x), {returns}")

    expect("11.3", "goes through the numbers one by one", answer, checked=models()["Checked"])


@pytest.mark.deep
@pytest.mark.slow
def test_a_check_can_be_repeated() -> None:
    """More often than torch compiles one function; and code that is not to be compiled has no graph."""
    names = models()
    whole = rewritten(f"self.head(x), {ABS}")
    for _ in range(lab_11.LIMIT + 2):
        assert hint("11.3", whole, checked=names["Checked"]) == ""

    whole.forward = torch.compiler.disable(whole.forward)
    assert "compiles none of it" in hint("11.3", whole, checked=names["Checked"])


def test_classes_are_needed() -> None:
    names = models()
    assert "Pass the class" in hint("11.3", names["Reader"], checked=3)
    assert "Give the class itself" in hint("11.3", names["Reader"](), checked=names["Checked"])
    assert "a single tensor" in hint("11.3", names["Reader"], checked=names["Checked"])


def versions(lengths: list[int], dynamic: bool | None) -> int:
    limit = {False: 8, None: 2, True: 1}[dynamic]
    return min(len(set(lengths)), limit)


def changes(lengths: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(lengths))


def only(dynamic: bool | None, answer: Callable[[list[int]], float]) -> Callable[..., float]:
    """The right answer, but for one setting."""
    return lambda lengths, given: answer(lengths) if given is dynamic else versions(lengths, given)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (versions, ""),
        (lambda lengths, dynamic: versions(np.unique(lengths).tolist(), dynamic), ""),
        (only(False, len), "you count cards"),
        (only(False, lambda lengths: len(set(lengths))), "gives up after 8"),
        (only(False, lambda lengths: min(9, len(set(lengths)))), "one more than the limit"),
        (only(False, lambda lengths: min(7, len(set(lengths)))), "one less than the limit"),
        (only(False, changes), "you count changes"),
        (only(False, lambda lengths: 1 + changes(lengths)), "you count changes"),
        (only(False, lambda lengths: min(8, 1 + changes(lengths))), "you count changes"),
        (lambda lengths, dynamic: versions(lengths, dynamic or None), "the number for dynamic=None"),
        (
            lambda lengths, dynamic: versions(lengths, dynamic or False),
            "dynamic=None: that is the number for dynamic=False",
        ),
        (only(None, lambda lengths: len(set(lengths))), "not every length"),
        (only(None, lambda lengths: 1), "is for one length only"),
        (only(None, lambda lengths: 2), "is there a second version"),
        (only(None, lambda lengths: 1 if lengths[0] == lengths[1] else 2), "only compare the first two cards"),
        (only(None, lambda lengths: 1 if lengths[0] == lengths[-1] else 2), "the first card with the last"),
        (lambda *given: 2 * versions(*given), "dynamic=False: you count two per version"),
        (only(None, lambda lengths: 2 * versions(lengths, None)), "dynamic=None: you count two per version"),
        (only(True, lambda lengths: 2), "dynamic=True: you count two per version"),
        (only(True, lambda lengths: versions(lengths, None)), "does not need to wait"),
        (only(True, lambda lengths: versions(lengths, False)), "dynamic=True: that is the number for dynamic=False"),
        (only(True, lambda lengths: 0), "images and dynamic=True: 0 is not right"),
        (only(None, lambda lengths: 0), "images and dynamic=None: 0 is not right"),
    ],
)
def test_how_often_torch_compiles(answer: Callable[..., Any], words: str) -> None:
    expect("11.4", words, answer)


@pytest.fixture
def notebook() -> dict[str, Any]:
    """The cells of the notebook up to the picture, which is not drawn."""
    names = models() | {"np": np, "pd": pd}
    exec(cell_with("def morning(").partition("def picture")[0], names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("lengths", lab_11.LENGTHS)
def test_torch_compiles_as_often_as_the_check_wants(
    notebook: dict[str, Any], lengths: tuple[int, ...], dynamic: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    counts = notebook["morning"](notebook["Reader"](), dynamic, lengths)

    assert counts["compiled"].sum() == lab_11.versions(lengths, dynamic)


@pytest.mark.deep
@pytest.mark.slow
def test_tuesday_is_what_the_lab_tells(notebook: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Eight jumps of two graphs each, and the last four villages uncompiled; on Wednesday two jumps of one graph."""
    lengths = notebook["lengths"]
    assert len(lengths) == 1200
    assert len(set(lengths.tolist())) == 12

    some = lengths[::50]
    tuesday = notebook["morning"](notebook["Checked"](), False, some)
    wednesday = notebook["morning"](rewritten(f"self.head(x), {ABS}")(), None, some)

    assert tuesday["compiled"].tolist() == [2, 0] * 8 + [0] * 8
    assert tuesday["ran"].tolist() == [2] * 16 + [0] * 8
    assert wednesday["compiled"].tolist() == [1, 0, 1] + [0] * 21
    assert wednesday["ran"].tolist() == [1] * 24
