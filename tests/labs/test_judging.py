"""The helpers of the checks: where each of them begins to refuse an answer, and what it says then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perfnb.labs import rewritten, scored
from perfnb.labs.answers import ab_facts, as_fields, as_function, as_number, as_numbers, as_pair, outcome, tried
from perfnb.labs.exercise import Flag, Hint, flagged, is_false, quoted, shortened, what_was_raised
from perfnb.labs.judging import Lists, Number, Numbers, all_there, close, judge_checked, usual_slip
from perfnb.labs.workloads import Machine, agree, interleaved, one_thread, shortest_ms, time_ratio
from tests.labs.judging import an_ab_test


def told(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The hint that a function raises; empty where it raises none."""
    try:
        function(*arguments, **named)
    except Hint as hint:
        return str(hint)
    return ""


@pytest.mark.parametrize(
    ("cases", "count", "or_more", "complete"),
    [
        ([1, 2], 2, False, True),
        ([1], 2, False, False),
        ([1, 2, 3], 2, False, False),
        ([1, 2, 3], 2, True, True),
        ([1, 2], 2, True, True),
        ([1], 2, True, False),
        ({"a": 1, "b": 2}, 2, False, True),
        ({"a": 1}, 2, False, False),
        ((1, 2), 2, False, False),
        ("ab", 2, False, False),
    ],
)
def test_a_check_has_as_many_cases_as_it_measures(cases: Any, count: int, or_more: bool, complete: bool) -> None:
    assert told(all_there, cases, count, or_more=or_more) == ("" if complete else "The facts are incomplete.")
    assert not complete or all_there(cases, count, or_more=or_more) is cases


def test_a_test_of_two_steps_must_have_compared_their_results() -> None:
    assert told(judge_checked, "") == ""
    assert "pass check=1e-3" in told(judge_checked, None)
    assert "return different results: they differ. Do both" in told(judge_checked, "they differ.")


@pytest.mark.parametrize(
    ("value", "near"), [(101.0, True), (101.02, False), (99.0, True), (98.9, False), (-100.0, False)]
)
def test_a_relative_tolerance_ends_where_it_should(value: float, near: bool) -> None:
    """It is a share of the larger of the two numbers."""
    assert close(value, 100.0, 0.01) is near


def test_an_absolute_tolerance_is_for_numbers_near_zero() -> None:
    assert close(0.0004, 0.0, 0.01, 0.0005)
    assert not close(0.0006, 0.0, 0.01, 0.0005)
    assert close(0.0, 0.0, 0.0)
    assert not close(1e-9, 0.0, 0.01)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (100.0, "looks like percent"),
        (0.01, "looks like a fraction"),
        (2.0, "is twice"),
        (0.5, "is half"),
        (1e3, "a thousand times too large"),
        (1e-3, "a thousand times too small"),
        (1e6, "a million times too large"),
        (1e-6, "a million times too small"),
        (-1.0, "sign is wrong"),
    ],
)
def test_each_slip_is_named_within_the_tolerance_only(factor: float, says: str) -> None:
    assert says in usual_slip(1.009 * factor * 7.3, 7.3, 0.01)
    assert "7.3" not in usual_slip(factor * 7.3, 7.3, 0.01)
    assert says not in usual_slip(1.012 * factor * 7.3, 7.3, 0.01)
    assert usual_slip(1.012 * factor * 7.3, 7.3, 0.01, "Look again.") == "Look again."


def test_an_inverse_is_named_and_nothing_is_made_of_zero() -> None:
    assert "the inverse" in usual_slip(1 / 7.3, 7.3, 0.01)
    assert usual_slip(0.0, 7.3, 0.01).startswith("Check it")
    assert usual_slip(7.3, 0.0, 0.01).startswith("Check it")


def test_a_number_is_right_within_its_tolerance() -> None:
    assert Number(10.29, 10.0, 0.03).right
    assert not Number(10.4, 10.0, 0.03).right
    assert Number(0.019, 0.0, 0.03, absolute=0.02).right
    assert not Number(0.021, 0.0, 0.03, absolute=0.02).right
    assert Number(20.0, (10.0, 20.0), 0.03).right
    assert not Number(15.0, (10.0, 20.0), 0.03).right
    assert told(Number(10.29, 10.0, 0.03).wrong) == ""


def test_only_a_wrong_number_gets_a_hint() -> None:
    wrong = Number(20.5, 10.0, 0.03, "share:")
    assert told(wrong.slip, 20.0, "both are counted.") == "share: both are counted."
    assert told(wrong.slip, (3.0, 20.0), "both are counted.") == "share: both are counted."
    assert told(wrong.slip, 20.0, "both are counted.", 0.01) == ""
    assert told(wrong.slip, 21.5, "both are counted.") == ""
    assert told(Number(10.0, 10.0, 0.03).slip, 10.1, "both are counted.") == ""
    assert told(Number(20.0, 10.0, 0.03).slip, 20.0, "No.") == "No."


def test_a_wrong_number_is_explained_by_its_slip() -> None:
    assert told(Number(20.5, 10.0, 0.03, "time").wrong, "is off.").startswith("time is off. It is twice")
    assert told(Number(13.0, 10.0, 0.03, "time").wrong, "is off.") == (
        "time is off. Check it against what the question asks for."
    )
    assert told(Number(13.0, 10.0, 0.03, "time").wrong, "is off.", "Why?") == "time is off. Why?"
    assert told(Number(13.0, 10.0, 0.03, "time").wrong, "is off.", " ") == "time is off."
    assert told(Number(20.5, 10.0, 0.03).wrong, "No.", "Why?", 0.01) == "No. Why?"
    assert "percent" in told(Number(100.0, 1.01, 0.0, absolute=1e-3).wrong, within=0.02)


def cases(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"said": said, "wanted": wanted} for said, wanted in pairs]


def test_numbers_are_right_if_each_of_them_is() -> None:
    assert Numbers(cases((1.0, 1.0), (2.01, 2.0)), 2, 0.01).right
    assert not Numbers(cases((1.0, 1.0), (2.1, 2.0)), 2, 0.01).right
    assert Numbers(cases((1.0, 1.0), (0.04, 0.0)), 2, 0.01, 0.05).right
    assert not Numbers(cases((1.0, 1.0), (0.06, 0.0)), 2, 0.01, 0.05).right
    with pytest.raises(Hint, match="incomplete"):
        Numbers(cases((1.0, 1.0)), 2, 0.01)


def test_a_slip_has_to_explain_all_numbers() -> None:
    def doubled(case: Any) -> float:
        return 2 * case["wanted"]

    assert told(Numbers(cases((2.0, 1.0), (4.0, 2.0)), 2, 0.01).slip, doubled, "Twice.") == "Twice."
    assert told(Numbers(cases((2.0, 1.0), (3.0, 2.0)), 2, 0.01).slip, doubled, "Twice.") == ""
    assert told(Numbers(cases((0.0, 0.0), (0.0, 0.0)), 2, 0.01).slip, doubled, "Twice.") == ""


def lists(*said: list[float]) -> list[dict[str, Any]]:
    return [{"said": each} for each in said]


def test_lists_are_right_if_each_number_is() -> None:
    def wanted(case: Any) -> list[float]:
        return [1.0, 2.0]

    def turned(case: Any) -> list[float]:
        return [2.0, 1.0]

    right = Lists(lists([1.0, 2.0], [1.009, 2.0]), 2, wanted, 0.01)
    assert right.right
    assert told(right.wrong, "No.") == told(right.slip, turned, "Turned.") == ""
    for said in ([1.0, 2.03], [1.0], [1.0, 2.0, 3.0], []):
        other = Lists(lists([1.0, 2.0], said), 2, wanted, 0.01)
        assert not other.right
        assert told(other.wrong, "No.") == "No."
        assert told(other.slip, turned, "Turned.") == ""
    assert told(Lists(lists([2.0, 1.0], [2.0, 1.0]), 2, wanted).slip, turned, "Turned.") == "Turned."
    assert not Lists(lists([]), 1, lambda case: []).right
    with pytest.raises(Hint, match="incomplete"):
        Lists(lists([1.0, 2.0]), 2, wanted)


def test_lists_near_zero_have_an_absolute_tolerance() -> None:
    assert Lists(lists([0.009]), 1, lambda case: [0.0], 0.01).right
    assert not Lists(lists([0.011]), 1, lambda case: [0.0], 0.01).right


@pytest.mark.parametrize(
    ("returned", "count", "says"),
    [
        ([1, 2.5], 2, ""),
        (np.array([1.0, 2.0]), 2, ""),
        ([1], 2, "Return 2 times, one each; yours are 1."),
        ([], 2, "yours are 0."),
        ([1, 2, 3], 2, "yours are more."),
        (None, 2, "returns nothing yet"),
        ("12", 2, "Return a list of 2 times, not a str."),
        ({1: 2}, None, "Return a list of times, not a dict."),
        (3.0, None, "Return a list of times, not a float."),
        ([1], None, ""),
        ([0.0] * 1000, None, ""),
        ([0.0] * 1001, None, "yours has more than 1000"),
        ([], None, "yours has none"),
        ([1, "a"], 2, "A number in the list must be a number"),
    ],
)
def test_a_list_of_numbers(returned: Any, count: int | None, says: str) -> None:
    found = told(as_numbers, returned, count, "times")

    assert says in found
    assert bool(says) == bool(found)
    assert says or as_numbers(returned, count, "times") == [float(each) for each in returned]


def test_an_endless_list_is_read_as_far_as_needed() -> None:
    def endless() -> Any:
        while True:
            yield 1.0

    assert "yours are more" in told(as_numbers, endless(), 3, "times")
    assert "more than 1000" in told(as_numbers, endless(), None, "times")


def test_a_pair_is_two_numbers() -> None:
    assert as_pair((1, np.float64(2.5)), "low and high") == [1.0, 2.5]
    for returned in (1.0, [1], [1, 2, 3], None):
        assert told(as_pair, returned, "low and high") == "Return two numbers: low and high."
    assert "your function returns" in told(as_pair, [1, None], "low and high")


def test_fields_of_each_kind() -> None:
    kinds = {"name": str, "size": float, "seen": bool}
    answer = {"name": "a", "size": 3, "seen": np.bool_(True), "more": None}

    assert as_fields(answer, **kinds) == {"name": "a", "size": 3.0, "seen": True}
    assert "must be a dictionary with the keys name, size, seen" in told(as_fields, [1], **kinds)
    assert "missing size, seen" in told(as_fields, {"name": "a"}, **kinds)
    assert "name must be text in quotes" in told(as_fields, answer | {"name": 1}, **kinds)
    assert "seen must be True or False" in told(as_fields, answer | {"seen": 1}, **kinds)
    assert "size must be a number" in told(as_fields, answer | {"size": True}, **kinds)


def test_a_number_may_come_from_a_library() -> None:
    for value in (3, 3.0, np.float32(3), torch.tensor(3), np.array([3.0])[0]):
        assert as_number(value, "It") == 3.0
    assert told(as_number, None, "It") == told(as_number, ..., "It") == "It has no value yet."
    assert "too large" in told(as_number, 10**400, "It")
    assert "must be one number, not a list" in told(as_number, [1, 2], "It")
    assert "is inf" in told(as_number, float("inf"), "It")


def test_a_function_is_asked_for_by_how_it_is_called() -> None:
    assert as_function(abs, "f(x)") is abs
    assert "the check calls f(x)" in told(as_function, 3, "f(x)")


def test_what_the_readers_code_raises_is_quoted() -> None:
    def fails(value: int) -> float:
        return 1 / value

    assert outcome(fails, 2) == 0.5
    found = told(outcome, fails, 0)
    assert found.startswith("Your code raised ZeroDivisionError: division by zero (line ")
    assert found.endswith("of its cell: return 1 / value)")

    def hints() -> None:
        raise Hint("As it is.")

    def stops() -> None:
        raise SystemExit(3)

    assert told(outcome, hints) == "As it is."
    assert "SystemExit: 3" in told(outcome, stops)


def test_an_error_within_torch_is_quoted_by_the_line_that_called_it() -> None:
    def multiplies() -> Any:
        model = nn.Linear(3, 2)
        return model(torch.zeros(4, 5))

    assert told(outcome, multiplies).endswith("of its cell: return model(torch.zeros(4, 5)))")


def test_the_line_is_the_innermost_of_the_same_cell() -> None:
    def inner() -> None:
        raise ValueError("here")

    def outer() -> None:
        inner()

    assert told(outcome, outer).endswith('of its cell: raise ValueError("here"))')


def test_a_function_is_compared_with_the_right_one() -> None:
    assert tried(lambda a, b: a * b, [(2, 3), (4, 5)], lambda a, b: a + b) == [
        {"sizes": [2, 3], "said": 6.0, "wanted": 5},
        {"sizes": [4, 5], "said": 20.0, "wanted": 9},
    ]


def test_a_test_without_a_result_is_reported() -> None:
    known = an_ab_test(ratio=0.5, ratio_ci=(0.4, 0.6))

    assert ab_facts(known) == {"ratio": 0.5, "ratio_ci": [0.4, 0.6], "check": ""}
    assert ab_facts(an_ab_test(ratio=0.5, ratio_ci=(0.4, 0.6), check=None))["check"] is None
    assert "too few pairs" in told(ab_facts, an_ab_test(ratio_ci=None))
    assert "test=NAME" in told(ab_facts, 0.5)


def test_true_and_false_of_a_file_are_no_numbers() -> None:
    facts = flagged({"a": [True, {"b": False}], "c": 1, "d": "x"})

    assert facts["a"][0] == True  # noqa: E712
    assert facts["a"][0] == Flag(True) != Flag(False)
    assert facts["a"][0] != 1
    assert bool(facts["a"][1]["b"]) is False
    assert (facts["c"], facts["d"]) == (1, "x")
    assert len({Flag(True), Flag(True), Flag(False)}) == 2
    with pytest.raises(TypeError):
        facts["a"][0] + 1
    assert is_false(False)
    assert is_false(Flag(False))
    assert not any(map(is_false, (True, Flag(True), 0, None, "", [])))


class Unprintable(Exception):
    """An exception whose message cannot be read."""

    def __str__(self) -> str:
        raise SystemExit


def test_a_quotation_is_cut() -> None:
    assert quoted("x" * 78) == repr("x" * 78)
    assert quoted("x" * 79) == "'" + "x" * 76 + "..."
    assert shortened("ab\tc\nd", 6) == "ab?c\nd"
    assert what_was_raised(ValueError()) == "ValueError"
    assert what_was_raised(Unprintable()) == "Unprintable"
    assert what_was_raised(ValueError("x" * 288)) == "ValueError: " + "x" * 288
    assert what_was_raised(ValueError("x" * 289)) == "ValueError: " + "x" * 285 + "..."


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([1.0, 100.0], [1.0, 100.009], True),
        ([1.0, 100.0], [1.0, 100.02], False),
        ([1.0, 100.0], [1.009, 100.0], True),
        ([1.0, -100.0], [1.02, -100.0], False),
        ([1, 2], [1, 2], True),
        ([1, 2], [[1, 2]], False),
        ([0.0], [0.0], True),
        ([0.0], [1e-3], False),
        ([True], [True], True),
        (["a"], ["a"], False),
        ([1.0], ["a"], False),
        ([1.0], [float("nan")], False),
        ([], [], True),
    ],
)
def test_two_results_agree_apart_from_rounding(first: Any, second: Any, same: bool) -> None:
    """The tolerance is a ten-thousandth of the largest value."""
    assert agree(first, second) is same
    assert agree(torch.tensor(first).requires_grad_(), second) is same if isinstance((first or [0])[0], float) else True


def test_a_machine_is_as_fast_as_its_weather() -> None:
    def times(weather: str, runs: int) -> np.ndarray[Any, Any]:
        machine = Machine(weather, seed=4)
        step = machine.step(10.0, "a")
        taken = np.array([step() for _ in range(runs)])
        assert machine.runs == {"a": runs}
        return taken

    steady = times("steady", 2000)
    assert np.median(steady) == pytest.approx(10.0, rel=0.01)
    assert np.log(steady).std() == pytest.approx(0.05, rel=0.1)
    runs = np.arange(2000)
    assert times("slower and slower", 2000) / steady == pytest.approx(1 + 0.0002 * runs)
    assert times("every second run slow", 2000) / steady == pytest.approx(np.where(runs % 2, 1.08, 1.0))


def test_all_steps_of_a_machine_share_its_weather() -> None:
    machine, alone = Machine("every second run slow", seed=1), Machine("steady", seed=1)
    a, b = machine.step(10.0, "a"), machine.step(10.0, "b")
    same = alone.step(10.0)

    assert [a() / same(), b() / same(), a() / same()] == pytest.approx([1.0, 1.08, 1.0])
    assert machine.runs == {"a": 2, "b": 1}


def test_two_functions_are_timed_by_the_clock() -> None:
    """The warm-up and what lies between two calls are not counted."""
    now = [0.0]

    def takes(seconds: float) -> Callable[[float], None]:
        def run(more: float) -> None:
            now[0] += seconds + more

        return run

    times = interleaved(takes(1.0), takes(2.0), [(9.0,), (0.0,), (0.5,), (0.25,)], clock=lambda: now[0])

    assert times == ([1000.0, 1500.0, 1250.0], [2000.0, 2500.0, 2250.0])


def test_a_ratio_of_times_is_that_of_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def planted(a: Any, b: Any, inputs: Any) -> tuple[list[float], list[float]]:
        threads.append(torch.get_num_threads())
        return ([8.0, 4.0, 9.0], [2.0, 5.0, 1.0]) if a(*inputs[0]) == "old" else ([2.0, 5.0, 1.0], [8.0, 4.0, 9.0])

    monkeypatch.setattr("perfnb.labs.workloads.interleaved", planted)

    assert time_ratio(lambda: "new", lambda: "old", [()]) == 0.25
    assert threads == [1]
    assert shortest_ms([lambda: 1, lambda: 2]) == [1.0, 4.0]


def test_two_steps_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"a": 0, "b": 0}

    def step(name: str) -> Callable[[], None]:
        def run() -> None:
            calls[name] += 1

        return run

    assert len(shortest_ms((step("a"), step("b")))) == 2
    assert calls == {"a": 13, "b": 13}
    for steps in (None, [step("a")], [step("a")] * 3, {"a": step("a"), "b": step("b")}):
        assert "needs the two steps" in told(shortest_ms, steps)
    assert "the check calls step()" in told(shortest_ms, [step("a"), 3])


def test_one_thread_computes_and_then_as_many_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Doubles(nn.Module):
    """Twice its input, and what is changed of that by a subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> Any:
        return self.factor * x


def compared(new: Any, *, parameters: bool = True) -> Any:
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(2, 5, 8, generator=generator)
    return rewritten.same_layer(Doubles(), new, x.requires_grad_(), weights, parameters=parameters)


def test_a_layer_that_computes_the_same() -> None:
    case = compared(Doubles())

    assert case == {
        "shape": [5, 8],
        "returned": "Tensor",
        "returned_shape": [5, 8],
        "forward": True,
        "off": {"largest": 0.0, "means": 0.0, "deviations": 0.0},
        "backward": True,
        "input_changed": False,
    }
    assert told(rewritten.judge_layer, case, "layer", "the gradient is missing.") == ""


def layer_of(function: Callable[..., Any]) -> nn.Module:
    """A layer with the parameter of `Doubles` that returns something else."""

    class Other(Doubles):
        def forward(self, x: torch.Tensor) -> Any:
            return function(self.factor, x)

    return Other()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda factor, x: None, "The layer returns nothing yet."),
        (lambda factor, x: 3.0, "returns a float, not a tensor"),
        (lambda factor, x: (factor * x)[:, 1:], "returns shape 5 x 7 on an input of 5 x 8."),
        (lambda factor, x: x.mul_(factor), "changes its input (on an input of 5 x 8)"),
        (lambda factor, x: (factor * x).detach(), "The output is right, but the gradient is missing."),
        (lambda factor, x: factor * x.detach(), "The output is right, but the gradient is missing."),
        (lambda factor, x: factor.detach() * x, "The output is right, but the gradient is missing."),
        (lambda factor, x: (factor * x) + (x - x.detach()), "The output is right, but the gradient is missing."),
        (lambda factor, x: factor * x * float("nan"), "It contains infinities or NaN."),
        (lambda factor, x: factor * x + 0.5, "means are off by up to 0.5, their standard deviations right."),
        (
            lambda factor, x: (y := factor * x) + 0.1 * (y - y.mean(1, keepdim=True)),
            "means are right, their standard deviations off by up to 10 %.",
        ),
        (lambda factor, x: factor * x.flip(1), "deviations right. Is every value in its place"),
        (lambda factor, x: factor * x + 0.5 + 0.1 * x, "standard deviations off by up to 5 %."),
    ],
)
def test_another_layer(function: Callable[..., Any], says: str) -> None:
    assert says in told(rewritten.judge_layer, compared(layer_of(function)), "layer", "the gradient is missing.")


def test_gradients_of_parameters_are_compared_on_request() -> None:
    left_out = layer_of(lambda factor, x: factor.detach() * x)

    assert compared(left_out, parameters=False)["backward"]
    assert not compared(left_out)["backward"]


@pytest.mark.parametrize(
    ("means", "deviations", "says"),
    [
        (1e-4, 1e-4, "means are right, their standard deviations right. Is every value"),
        (1.1e-4, 0.9e-4, "means are off by up to 0.00011, their standard deviations right."),
        (0.9e-4, 1.1e-4, "means are right, their standard deviations off by up to 0.011 %."),
        (1.1e-4, 1.1e-4, "means are off by up to 0.00011, their standard deviations off"),
    ],
)
def test_rounding_errors_are_no_differences(means: float, deviations: float, says: str) -> None:
    said = rewritten._how({"largest": 0.5, "means": means, "deviations": deviations})

    assert says in said
    assert ("Is every value" in said) == ("Is every value" in says)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def score_of(function: Callable[..., Any], training: bool = True) -> Any:
    return scored.scored(function, classifier(), torch.ones(6, 3), torch.zeros(6, dtype=torch.long), training)


def well(model: Any, x: Any, y: Any) -> float:
    mode = model.training
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
    model.train(mode)
    return float(right)


@pytest.mark.parametrize("training", [True, False])
def test_a_score_without_side_effects(training: bool) -> None:
    case = score_of(well, training)

    assert case["said"] in (0.0, 1.0)
    assert {**case, "said": 0} == {
        "said": 0,
        "calls": 1,
        "graded": False,
        "called_in_training": False,
        "training": [training, training],
        "unchanged": True,
    }
    assert told(scored.judge_effects, case) == ""


def test_each_side_effect_of_a_score_is_seen() -> None:
    def left_in_evaluation(model: Any, x: Any, y: Any) -> float:
        model.eval()
        return float((model(x) - model(x)).detach().sum())

    def with_gradients(model: Any, x: Any, y: Any) -> float:
        loss = model(x).sum()
        loss.backward()
        return float(loss.detach())

    case = score_of(left_in_evaluation)
    assert (case["calls"], case["graded"], case["called_in_training"]) == (2, True, False)
    assert case["training"] == [True, False]
    assert "was in training mode and is left in evaluation mode" in told(scored.judge_effects, case)
    case = score_of(with_gradients, False)
    assert (case["calls"], case["graded"], case["called_in_training"], case["unchanged"]) == (1, True, False, False)
    assert "leaves statistics or gradients" in told(scored.judge_effects, case)
    case = score_of(lambda model, x, y: float(model(x).detach().sum()))
    assert (case["called_in_training"], case["unchanged"]) == (True, False)


def test_states_are_the_same_bit_by_bit() -> None:
    one = [torch.ones(2), torch.zeros(3)]

    assert scored.same_state(one, [torch.ones(2), torch.zeros(3)])
    assert not scored.same_state(one, one[:1])
    assert not scored.same_state(one, [torch.ones(2), torch.full((3,), 1e-30)])
