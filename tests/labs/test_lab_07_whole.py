"""Lab 7, equal work, compiling, int8 and the whole: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import ast
import copy
import json
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from notebooks.labs import build
from perfnb.labs import lab_07
from perfnb.labs.exercise import Facts
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect_of, hint, said_of
from tests.labs.lab_07_answers import GIVEN, REPORT, Fused, FusedAndQuicker, FusedBf16, Script

Learn = Callable[[Any, Any, int], Any]


def learn(training: Any, samples: Any, size: int) -> None:
    for batch in zip(*(each.split(size) for each in samples), strict=True):
        training.step(batch)


def by_places(order: Callable[[int, int], Iterator[slice]]) -> Learn:
    def learning(training: Any, samples: Any, size: int) -> None:
        x, y = samples
        for place in order(len(x), size):
            training.step((x[place], y[place]))

    return learning


def mismatched(training: Any, samples: Any, size: int) -> None:
    x, y = samples
    learn(training, (x, y.flip(0)), size)


def test_learning_from_all_samples_is_accepted() -> None:
    by_range = by_places(lambda n, size: (slice(at, at + size) for at in range(0, n, size)))
    for answer in (learn, by_range):
        facts = exercise_of("7.5").measure(answer, reports={})

        assert said_of("7.5", facts | {"report": REPORT}) == ""
        assert "cell that makes it" in said_of("7.5", facts)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_places(lambda n, size: (slice(at * size, (at + 1) * size) for at in range(n // size))), "only 96"),
        (by_places(lambda n, size: (slice(0, size) for _ in range(0, n, size))), "repeated"),
        (by_places(lambda n, size: (slice(at, at + size) for at in range(0, n, max(1, size // 2)))), "repeated"),
        (by_places(lambda n, size: (slice(at, at + 32) for at in range(0, n, 32))), "8 steps"),
        (mismatched, "do not match"),
        (
            by_places(lambda n, size: reversed([slice(at, at + size) for at in range(0, n, size)])),
            "not in the given order",
        ),
        (lambda training, samples, size: None, "no step yet"),
    ],
)
def test_other_work_is_not(answer: Learn, says: str) -> None:
    assert says in hint("7.5", answer, reports={})


def pays_after(first_s: float, before_ms: float, ratio: float, verdict: str) -> float:
    return 1000 * first_s / (before_ms * (1 - ratio)) if verdict == "faster" else math.inf


class Compiled(Script):
    def make_model(self, net: Any) -> Any:
        return torch.compile(net, backend="eager")  # what compiling takes is not the question here


COMPILED: dict[str, Any] = {**GIVEN, "training": Compiled, "first": {"seconds": 9.0}, "reports": {}}


@pytest.mark.slow
def test_a_compiled_training_is_accepted_when_it_has_a_report() -> None:
    facts = exercise_of("7.6").measure(pays_after, **COMPILED)

    assert "cell that makes it" in said_of("7.6", facts)
    assert said_of("7.6", facts | {"report": REPORT, "trial": 0.8}) == ""
    assert "is too short for a compilation. Had this kernel" in said_of(
        "7.6", facts | {"report": REPORT, "trial": 0.8, "first_s": 0.02}
    )


def test_a_model_is_compiled_in_place_or_wrapped() -> None:
    in_place, wrapped = Script(), Script()
    in_place.net._compiled_call_impl = in_place.net._call_impl  # as after net.compile()
    vars(wrapped.net)["_orig_mod"] = wrapped.net  # as torch.compile(net) has it
    plain = Script()

    found = [lab_07._factors(each, GIVEN["batches"][0])["compiled"] for each in (plain, in_place, wrapped)]
    assert found == [False, True, True]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda s, ms, ratio, verdict: 1e3 * s / (ms * (1 - ratio)), "no gain was shown"),
        (lambda *given: math.inf, "pays off eventually"),
        (lambda *given: None, "The result of pays_after(30.0, 10.0, 0.8, 'faster')"),
        (3000, "function itself"),
    ],
)
def test_another_time_of_paying_back_is_not(answer: Any, says: str) -> None:
    assert says in hint("7.6", answer, **COMPILED | {"training": Fused})


def test_what_is_not_compiled_is_not() -> None:
    assert "change compiled" in hint("7.6", pays_after, **COMPILED | {"training": Fused})
    assert "Nothing that the check compares" in hint("7.6", pays_after, **COMPILED | {"training": Script})


def test_the_time_of_the_first_step_is_needed() -> None:
    assert "Pass the time of the first step" in hint("7.6", pays_after, **COMPILED | {"first": 9.0})


class NoModel(Script):
    def make_model(self, net: Any) -> Any:
        torch.compile(net)


def test_a_model_that_is_not_returned_is_not_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_07, "_compiles", lambda: True)
    found = hint("7.6", pays_after, **COMPILED | {"training": NoModel, "first": {"seconds": None}})

    assert "make_model returned None; is `return` missing?" in found


@pytest.mark.parametrize(("can", "says"), [(True, "torch.compile works here"), (False, "")])
def test_no_compiler_is_believed_after_a_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], can: bool, says: str
) -> None:
    def compiling(function: Any, **_: Any) -> Any:
        if not can:
            raise RuntimeError("no C++ compiler")
        return function

    monkeypatch.setattr(torch, "compile", compiling)
    found = hint("7.6", pays_after, **COMPILED | {"first": {"seconds": None}})

    assert "this may take a while" in capsys.readouterr().out
    assert says in found
    assert bool(says) == bool(found)


def quantised(net: nn.Module) -> Any:
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)


def in_place(net: nn.Module) -> Any:
    with torch.no_grad():
        for each in net.parameters():
            each.mul_(0.99)
    return quantised(net)


class CopiedToBf16(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).bfloat16()

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x.bfloat16()).float()


def half_left_out(net: Any) -> Any:
    return quantised(nn.Sequential(*net[:2], nn.Linear(256, 4)))


def remembering(net: Any) -> Any:
    known: list[Any] = []
    small = quantised(net)

    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = small

        def forward(self, x: torch.Tensor) -> Any:
            known.append(self.small(x))
            return known[0]

    return Once()


@pytest.fixture
def trained() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).eval()
    return net, torch.randn(20, 64)


def test_int8_is_accepted_when_it_has_a_report(trained: tuple[nn.Module, torch.Tensor]) -> None:
    facts = exercise_of("7.7").measure(quantised, net=trained[0], x=trained[1], reports={})

    assert "cell that makes it" in said_of("7.7", facts)
    assert said_of("7.7", facts | {"report": REPORT}) == ""


def test_a_model_spoilt_in_the_check_is_a_copy(trained: tuple[nn.Module, torch.Tensor]) -> None:
    hint("7.7", in_place, net=trained[0], x=trained[1], reports={})

    assert [type(each) for each in trained[0]] == [nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (CopiedToBf16, "about a quarter"),
        (in_place, "changed the model"),
        (lambda net: net.bfloat16(), "raised"),
        (half_left_out, "differ from the original model's"),
        (remembering, "differ from the original model's"),
        (lambda net: None, "Return the model"),
        (lambda net: 1 / 0, "ZeroDivisionError"),  # raised where int8 works
    ],
)
def test_another_model_is_not(trained: tuple[nn.Module, torch.Tensor], answer: Any, says: str) -> None:
    assert says in hint("7.7", answer, net=trained[0], x=trained[1], reports={})


def test_no_int8_is_believed_after_a_trial(
    trained: tuple[nn.Module, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_07, "_quantises", lambda: False)

    assert hint("7.7", lambda net: 1 / 0, net=trained[0], x=trained[1], reports={}) == ""


REJECTED = REPORT | {"decision": "inconclusive", "ratio": 0.97, "ratio_ci": [0.9, 1.05]}


BEST = REPORT | {"ratio": 0.75, "ratio_ci": [0.7, 0.8]}


def best_facts(training: Any, **said: float) -> Facts:
    facts = exercise_of("7.8").measure(said, training=training, **GIVEN, reports={})
    return facts | {"reports": {"fused": REPORT, "bf16": REJECTED, "best": BEST}, "trial": 0.75}


@pytest.mark.parametrize(
    ("training", "product", "speedup", "says"),
    [
        (Fused, 1.25, 1.333, ""),
        (FusedBf16, 1.25, 1.333, "'inconclusive', not 'accept'"),
        (FusedAndQuicker, 1.25, 1.333, "not tested on its own: rate"),
    ],
)
def test_the_best(training: Any, product: float, speedup: float, says: str) -> None:
    expect_of("7.8", says, best_facts(training, product=product, speedup=speedup))


def test_the_night_is_what_the_planted_figures_make() -> None:
    """The first picture and the table of the last one; by the rules of the text, one change is left."""
    cells = json.loads(build.built()[build.HERE / "07_the_optimisation_loop.ipynb"])["cells"]
    known: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code" and any(
            name in "".join(cell["source"]) for name in ("all_at_once =", "one_by_one =")
        ):
            for node in ast.parse("".join(cell["source"])).body:
                if isinstance(node, ast.Assign) and not any(
                    isinstance(each, ast.Call) for each in ast.walk(node.value)
                ):
                    names = ast.unparse(node.targets[0]).strip("()").split(", ")
                    value = ast.literal_eval(node.value)
                    known |= dict(zip(names, value if len(names) > 1 else [value], strict=True))
    before, at_once, changes = known["before_tom"], known["all_at_once"], known["one_by_one"]
    hours = known["SHAPES"] * known["STEPS"] * known["STEP_MS"] / 3.6e6

    assert before["steps"] == pytest.approx(hours, abs=0.01)
    assert at_once["steps"] == pytest.approx(hours * math.prod(each["ratio"] for each in changes.values()), abs=0.01)
    assert at_once["compiling"] == pytest.approx(known["SHAPES"] * 35 / 3600, abs=0.01)
    assert at_once["wrong"] == pytest.approx(before["wrong"] + sum(each["added"] for each in changes.values()))
    assert known["LIMIT"] == pytest.approx(before["wrong"] + 0.03)
    assert sum(at_once[name] for name in ("steps", "compiling")) > before["steps"]
    pays = {name: each["first_s"] * 1000 / (known["STEP_MS"] * (1 - each["ratio"])) for name, each in changes.items()}
    kept = [name for name, each in changes.items() if 0 <= pays[name] <= known["STEPS"] and each["added"] <= 0.03]
    assert [name for name in kept if changes[name]["ratio"] < 1] == ["fused"]
    assert before["steps"] * (1 - changes["fused"]["ratio"]) > 1
