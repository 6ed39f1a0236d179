"""Lab 7: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perfnb import ab_test, journal
from perfnb.labs import lab_07
from perfnb.labs.lab_07 import LOSS, earlier_decisions, same_code
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import hint, said_of
from tests.labs.lab_07_answers import BATCHES, GIVEN, REPORT, Bf16, Fused, FusedAndQuicker, Idle, Script


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
        (lambda *given: 1.0, "did not call model(x)"),
        (score_for_answer, "was in evaluation mode, but this is not the share of wrong digits. Is each answer"),
        (in_its_mode, "answers in training mode"),
        (left_in_eval, "was in training mode and is left in evaluation mode"),
        (always_trains, "was in evaluation mode and is left in training mode"),
        (with_gradients, "leaves statistics or gradients"),
        (recording, "where is no_grad"),
        (one_index, "without a dimension"),
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
def test_functions_that_do_not_train_get_a_hint(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer, **GIVEN, reports={})


@pytest.mark.parametrize(
    ("number", "answer", "says"),
    [
        ("7.3", Bf16, "change fused"),
        ("7.3", FusedAndQuicker, "(fused, rate)"),
        ("7.3", Idle, "do not change"),
        ("7.3", Sgd, "More than one thing"),
        ("7.3", Decaying, "other settings"),
        ("7.3", Remembering, "trains differently"),
        ("7.3", Foreach, "You changed foreach"),
        ("7.3", NotFused, "is overridden, but the optimizer's setting"),
        ("7.3", FusedAtOnce, "make_optimizer is still the script's"),
        ("7.4", Bf16Above, "calls super()"),
        ("7.4", NoScores, "predict returned None; is `return` missing?"),
        ("7.4", AroundStep, "You overrode step; override predict"),
        ("7.4", Bf16Weights, "More than one thing"),
        ("7.4", Fp16, "65504"),
    ],
)
def test_another_change_is_not(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer, **GIVEN, reports={})


@pytest.mark.slow
def test_facts_of_a_report(tmp_path: Path) -> None:
    """A real one, of two steps that do the same."""
    steps = [Script().step, Script().step]
    real = ab_test(*steps, batches=BATCHES, quality=lambda: {LOSS: 0.0}, budget_s=0.1, limits={LOSS: 0.01},
                   change="fused")  # fmt: skip
    kept = journal(tmp_path / "journal")
    kept.add(real)
    kept.add(real)

    facts = lab_07.report_facts({"fused": real}, "fused")

    assert facts is not None
    assert set(facts) >= set(REPORT)
    assert (facts["quality"], facts["ratio"], facts["decision"]) == (True, real.ratio, real.decision)
    assert earlier_decisions(kept, "fused") == [real.decision]
    assert "not a str" in hint("7.3", Fused, **GIVEN, reports={"fused": "accept"})


def test_a_trial_compares_the_usual_times_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first two turns; and what watched the answer is removed."""
    made: list[Any] = []
    turns: list[Any] = []

    class Kept(Fused):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    def interleaved(a: Any, b: Any, inputs: Any, clock: Any) -> tuple[list[float], list[float]]:
        for each in inputs:
            a(*each)
            b(*each)
            turns.append(each)
        return [9.0, 9.0, 0.4, 0.2, 0.8], [9.0, 9.0, 0.2, 0.3, 0.1]

    monkeypatch.setattr(lab_07, "interleaved", interleaved)
    facts = exercise_of("7.3").measure(Kept, **GIVEN, reports={})

    assert facts["trial"] == 0.5
    assert len(turns) == lab_07.ROUNDS + 3
    assert [len(series) for series in facts["losses"]] == [lab_07.KEPT] * 2
    assert not any(part._forward_hooks for part in made[0].net)


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
