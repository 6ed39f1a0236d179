"""Lab 7: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perfnb import ab_test, journal
from perfnb.labs import lab_07
from perfnb.labs.exercise import Facts
from perfnb.labs.lab_07 import LOSS, earlier_decisions, same_code
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect_of, hint, said_of
from tests.labs.lab_07_answers import (
    BATCHES,
    GIVEN,
    REPORT,
    Bf16,
    Fused,
    FusedAndQuicker,
    FusedBf16,
    HalfTheBatch,
    Idle,
    Script,
)

GUESSES = {"fused": 1.2, "bf16": 0.8, "larger batches": 3, "compile": 1.0, "int8": 2.0}


def test_a_prediction_may_be_wrong_but_not_misformed() -> None:
    assert hint("7.1", GUESSES) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (GUESSES | {"bf16": -20}, "above 0"),
        (GUESSES | {"bf16": 120}, "percent"),
        (GUESSES | {"bf16": ...}, "no value"),
        ({"fused": 1.2}, "missing bf16"),
        ([1.2, 0.8, 3, 1, 2], "dictionary"),
    ],
)
def test_a_prediction_misformed(answer: Any, says: str) -> None:
    assert says in hint("7.1", answer)


def wrong(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    mode = model.training
    model.eval()
    with torch.no_grad():
        share = (model(x).argmax(1) != y).float().mean().item()
    model.train(mode)
    return share


def left_in_eval(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    share = wrong(model.eval(), x, y)
    return share


def always_trains(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    share = wrong(model, x, y)
    model.train()
    return share


def in_its_mode(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return (model(x).argmax(1) != y).float().mean().item()


def never_restored(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) != y).float().mean().item()


def always_wrong(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    wrong(model, x, y)
    return 1.0


def score_for_answer(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Compares the largest score, instead of its place, with the label."""
    mode = model.training
    with torch.no_grad():
        share = (model.eval()(x).max(1)[0] != y).float().mean().item()
    model.train(mode)
    return share


def with_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model(x).sum().backward()
    return wrong(model, x, y)


def in_inference_mode(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    mode = model.training
    with torch.inference_mode():
        share = sum(int(each.argmax() != digit) for each, digit in zip(model.eval()(x), y, strict=True)) / len(y)
    model.train(mode)
    return share


def recording(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    mode = model.training
    share = (model.eval()(x).argmax(1) != y).float().mean().item()
    model.train(mode)
    return share


def one_index(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    mode = model.training
    with torch.no_grad():
        share = (model.eval()(x).argmax() != y).float().mean().item()
    model.train(mode)
    return share


@pytest.mark.parametrize("answer", [wrong, in_inference_mode, lambda *given: torch.tensor(wrong(*given))])
def test_a_quality_is_accepted(answer: Any) -> None:
    assert hint("7.2", answer) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: 1 - wrong(*given), "right answers"),
        (lambda *given: 60 * wrong(*given), "number of wrong"),
        (lambda *given: 100 * wrong(*given), "percent"),
        (lambda *given: wrong(*given) * 60 / 10, "divided by 10. How many images"),
        (lambda *given: wrong(*given) / 2, "divided by 120"),
        (lambda *given: wrong(*given) * 60 / 64, "divided by 64"),
        (lambda model, x, y: wrong(model, x[:30], y[:30]), "share"),
        (lambda *given: 0.34, "did not call model(x)"),
        (lambda *given: 0.34 + 0 * wrong(*given), "was in evaluation mode, but"),
        (lambda *given: 1.0, "did not call model(x)"),
        (always_wrong, "was in evaluation mode, but this is not the share of wrong digits. Is each answer"),
        (score_for_answer, "was in evaluation mode, but this is not the share of wrong digits. Is each answer"),
        (in_its_mode, "answers in training mode"),
        (left_in_eval, "was in training mode and is left in evaluation mode"),
        (never_restored, "was in training mode and is left in evaluation mode"),
        (always_trains, "was in evaluation mode and is left in training mode"),
        (with_gradients, "leaves statistics or gradients"),
        (recording, "where is no_grad"),
        (one_index, "without a dimension"),
        (lambda *given: None, "no value"),
        (lambda model: 0.1, "TypeError"),
    ],
)
def test_another_quality_is_not(answer: Any, says: str) -> None:
    torch.manual_seed(0)

    assert says in hint("7.2", answer)


class Sgd(Script):
    def make_optimizer(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=self.rate, fused=True)


class Decaying(Script):
    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate, weight_decay=0.0, fused=True)


class Fp16(Bf16):
    kind = torch.float16


class Bf16Weights(Script):
    def make_model(self, net: Any) -> Any:
        return net.bfloat16()

    def predict(self, x: torch.Tensor) -> Any:
        return self.model(x.bfloat16()).float()


class NoOptimizer(Script):
    def make_optimizer(self) -> Any:
        torch.optim.AdamW(self.net.parameters(), lr=self.rate, fused=True)


class NoModel(Script):
    def make_model(self, net: Any) -> Any:
        torch.compile(net)


class NoScores(Script):
    def predict(self, x: torch.Tensor) -> Any:
        self.model(x)


class NoModule(Script):
    def make_model(self, net: Any) -> Any:
        return net.forward


class NoneOfTorch(Script):
    def make_optimizer(self) -> Any:
        return "AdamW"


class Foreach(Script):
    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate, foreach=True)


class NotFused(Script):
    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate)


class Misspelt(Script):
    def make_optimiser(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate, fused=True)


class AroundStep(Script):
    def step(self, batch: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().step(batch)


class FusedAtOnce(Script):
    """Fused, but by no method that another class could take over."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = Fused.make_optimizer(self)  # type: ignore[arg-type]


class Bf16Above(Script):
    def predict(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().predict(x).float()


class Remembering(Fused):
    """Learns from the first batch, and says the same ever after."""

    known: Any = None

    def step(self, batch: Any) -> Any:
        self.known = super().step(batch) if self.known is None else self.known
        return self.known


def test_one_factor_is_accepted_when_it_has_a_report() -> None:
    for number, change in (("7.3", Fused), ("7.4", Bf16)):
        facts = exercise_of(number).measure(change, **GIVEN, reports={})

        assert "cell that makes it" in said_of(number, facts)
        assert said_of(number, facts | {"report": REPORT, "trial": 0.8}) == ""


@pytest.mark.parametrize(
    ("number", "answer", "says"),
    [
        ("7.3", lambda: 3, "A training needs"),
        ("7.3", Fused(), "the class Fused itself, not Fused()"),
        ("7.3", NoOptimizer, "make_optimizer returned None; is `return` missing?"),
        ("7.3", NoneOfTorch, "must return an optimizer, not a str"),
        ("7.4", NoModel, "make_model returned None; is `return` missing?"),
        ("7.4", NoModule, "must return a model, not a method"),
    ],
)
def test_what_is_no_training(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer, **GIVEN, reports={})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer", "says"),
    [
        ("7.3", Script, "Nothing that the check compares"),
        ("7.3", Bf16, "change fused"),
        ("7.3", FusedBf16, "More than one thing"),
        ("7.3", FusedAndQuicker, "(fused, rate)"),
        ("7.3", Sgd, "More than one thing"),
        ("7.3", Decaying, "other settings"),
        ("7.3", Remembering, "trains differently"),
        ("7.3", Idle, "do not change"),
        ("7.3", HalfTheBatch, "trains differently"),
        ("7.3", Foreach, "You changed foreach"),
        ("7.3", NotFused, "is overridden, but the optimizer's setting"),
        ("7.3", Misspelt, "Script has no method make_optimiser"),
        ("7.3", Script, "No method of Script is overridden"),
        ("7.3", FusedAtOnce, "make_optimizer is still the script's"),
        ("7.4", Bf16Above, "calls super()"),
        ("7.4", NoScores, "predict returned None; is `return` missing?"),
        ("7.4", AroundStep, "You overrode step; override predict"),
        ("7.4", Script, "Nothing that the check compares"),
        ("7.4", Fused, "change autocast"),
        ("7.4", FusedBf16, "More than one thing"),
        ("7.4", Bf16Weights, "More than one thing"),
        ("7.4", Fp16, "65504"),
    ],
)
def test_another_change_is_not(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer, **GIVEN, reports={})


@pytest.fixture(scope="module")
def fused_facts() -> Facts:
    facts: Facts = exercise_of("7.3").measure(Fused, **GIVEN, reports={})
    return facts


@pytest.mark.parametrize(
    ("change", "trial", "says"),
    [
        ({}, 0.8, ""),
        ({}, 1.1, ""),
        ({"decision": "reject", "ratio": 1.3, "ratio_ci": [1.2, 1.4]}, 1.3, ""),
        ({"ratio": 0.5, "ratio_ci": [0.48, 0.52]}, 2.0, "script first"),
        ({"ratio": 2.0, "ratio_ci": [1.9, 2.1]}, 0.5, "script first"),
        ({"quality": False}, 0.8, "check quality"),
        ({"ratio_ci": None}, 0.8, "too few pairs"),
    ],
)
def test_a_report_that_fits(fused_facts: Facts, real: Any, change: Facts, trial: float, says: str) -> None:
    assert set(REPORT | change) <= set(lab_07.report_facts({"fused": real}, "fused") or {})
    expect_of("7.3", says, fused_facts | {"report": REPORT | change, "trial": trial})


@pytest.fixture(scope="module")
def real() -> Any:
    """A real report, of two steps that do the same."""
    steps = [Script().step, Script().step]
    return ab_test(*steps, batches=BATCHES, quality=lambda: {LOSS: 0.0}, budget_s=0.5,
                   limits={LOSS: 0.01}, change="fused")  # fmt: skip


@pytest.mark.slow
def test_facts_of_a_report(real: Any) -> None:
    facts = lab_07.report_facts({"fused": real}, "fused")

    assert facts is not None
    assert facts["quality"]
    assert facts["ratio"] == real.ratio
    assert facts["decision"] == real.decision
    assert "not a str" in hint("7.3", Fused, **GIVEN, reports={"fused": "accept"})


def test_a_report_of_another_class_is_told(real: Any, fused_facts: Facts) -> None:
    for tried, says in ((Script, "tested code that differs"), (Fused, ""), (None, "")):
        found = lab_07.report_facts({"fused": real}, "fused", {"fused": tried}, Fused)

        assert found is not None
        assert says in said_of("7.3", fused_facts | {"report": found | {"ratio_ci": [0.5, 2.0]}, "trial": 1.0})
        assert found["of_this"] == {Script: False, Fused: True, None: None}[tried]


FIRST = """
class Fused(Script):
    \"\"\"Words.\"\"\"
    def make_optimizer(self):
        return AdamW(self.net.parameters(), fused=True)
"""


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (FIRST, True),
        ("\n# a comment\n" + FIRST.replace("Words", "Other words"), True),
        (FIRST.replace("True", "False"), False),
        (FIRST.replace("AdamW", "SGD"), False),
        (FIRST.replace("make_optimizer", "make_optimiser"), False),
        ("class Fused(Script):\n    ...\n", False),
        (FIRST.replace("(Script)", "(Other)"), False),
    ],
)
def test_a_cell_that_was_run_again_is_the_same(second: str, same: bool) -> None:
    kinds = []
    for text in (FIRST, second):
        names: dict[str, Any] = {"Script": Script, "Other": Bf16}
        exec(text, names)
        kinds.append(names["Fused"])

    assert same_code(*kinds) == same


def test_functions_are_the_same_by_what_they_do() -> None:
    assert same_code(lambda x: [y + 1 for y in x], lambda x: [y + 1 for y in x])
    assert not same_code(lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x])
    assert not same_code(wrong, recording)


def test_earlier_reports_are_those_before_the_last(real: Any, tmp_path: Path) -> None:
    kept = journal(tmp_path / "journal")
    assert earlier_decisions(None, "fused") == earlier_decisions(kept, "fused") == []
    kept.add(real)
    assert earlier_decisions(kept, "fused") == []
    kept.add(real)

    assert earlier_decisions(kept, "fused") == [real.decision]
    assert earlier_decisions(kept, "bf16") == []
