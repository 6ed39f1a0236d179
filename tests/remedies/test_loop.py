"""Trials within a budget, for time and for memory, with the user's own test of quality."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb import quantities as fmt
from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, UNCHECKED, Values
from perfnb.errors import CaptureError
from perfnb.remedies import lever as lever_module
from perfnb.remedies import loop, measuring, try_levers, values
from perfnb.remedies.budget import TrialBudget
from perfnb.remedies.lever import Compiled, Lever, PreparedLever, Switch, prepared
from perfnb.remedies.levers import by_name
from perfnb.remedies.levers.compiling import compiled
from perfnb.remedies.loop import LeverLoop
from perfnb.remedies.measuring import peak_bytes
from perfnb.remedies.state import digest
from perfnb.remedies.subject import Subject, find_subject
from perfnb.remedies.try_levers import LeverRequest, run_trials
from perfnb.remedies.values import Yardstick, check, measure_yardstick
from perfnb.remedies.verdicts import LeverFigures, LeverTrial
from perfnb.step.namespace import namespace_of
from tests.fake_clock import FakeClock
from tests.remedies.hard_steps import plant, switched


def training(width: int = 16, pause: Callable[[], Any] = lambda: None, middle: nn.Module | None = None) -> Any:
    """Return a step with its model; `pause` is called in it."""
    model = nn.Sequential(nn.Linear(width, width), middle or nn.ReLU(), nn.Linear(width, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    x = torch.randn(8, width)

    def step() -> None:
        pause()
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    return step, model


def nothing(_: Subject) -> str:
    """Return an empty reason, which refuses nothing."""
    return ""


class Waiting:
    """A step's waiting, which levers make shorter."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0
        self._clock = clock

    def __call__(self) -> None:
        self.calls += 1
        self._clock.sleep(self.seconds)

    def shorter(self, factor: float) -> Callable[[Subject], Any]:
        @contextmanager
        def on(_: Subject) -> Iterator[None]:
            before, self.seconds = self.seconds, self.seconds * factor
            try:
                yield
            finally:
                self.seconds = before

        return on


@pytest.mark.parametrize("step_s", [0.05, 2.0])
def test_the_budget_holds(step_s: float, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waiting(clock, step_s)
    plant(monkeypatch, switched("half", wait.shorter(0.5)))
    step, _ = training(pause=wait)
    begin = clock.now_ns
    found = perfnb.try_levers(step, levers=["half", "gc_freeze", "foreach_optimizer"], budget_s=120)
    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 120
    assert found.best == ("half",)
    assert found.table["ratio"].notna().sum() >= (3 if step_s < 1 else 1)


def test_all_figures_of_a_kept_lever_come_from_one_measurement(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, switched("half", wait.shorter(0.5)))
    found = perfnb.try_levers(training(pause=wait)[0], levers=["half"], budget_s=30)
    row, confirmed, step_ms = found.table.loc["half"], found.figures.confirmed, found.figures.step_ms
    assert confirmed is found.figures.trials[0]
    assert row["saves_ms"] == pytest.approx(step_ms * (1 - row["ratio"]), rel=1e-12)
    said, ratio = str(found), fmt.with_interval(fmt.ratio(row["ratio"]), row["ratio"], confirmed.ratio_ci)
    saved = f"{fmt.duration(row['saves_ms'])} saved ({fmt.share(1 - row['ratio'])} less)"
    assert f"step {fmt.duration(step_ms)}" in said
    assert f"Keep half: {saved}" in said
    assert ratio in said


@pytest.mark.parametrize(("settles", "verdict"), [(True, "faster"), (False, "slower")])
def test_a_lever_that_settles_is_timed_in_blocks_after_its_first_step(
    settles: bool, verdict: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)

    @contextmanager
    def on(_: Subject) -> Iterator[None]:
        factors = iter([1.5])
        plain = wait.seconds

        def pause() -> None:
            clock.sleep(plain * next(factors, 0.5))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Waiting, "__call__", lambda self: pause())
            yield

    plant(monkeypatch, switched("compiled", on, settles=settles))
    step, _ = training(pause=lambda: wait())
    found = perfnb.try_levers(step, levers=["compiled"], budget_s=60)
    row = found.table.loc["compiled"]
    assert row["verdict"] == verdict
    assert row["ratio"] == pytest.approx(0.5 if settles else 1.5, rel=0.05)
    assert found.best == (("compiled",) if settles else ())


def test_levers_that_could_not_be_timed_have_a_sufficient_budget(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)

    @contextmanager
    def switching_slowly(subject: Subject) -> Iterator[None]:
        with wait.shorter(0.5)(subject):
            clock.sleep(4.0 if timing else 0.0)
            yield

    timing = False

    def told(_: object, words: str, *rest: object) -> None:
        nonlocal timing
        timing = words.startswith(("try ", "confirm "))

    monkeypatch.setattr("perfnb.draw.progress.Progress.__call__", told)
    plant(monkeypatch, switched("half", switching_slowly))
    step, _ = training(pause=wait)
    short = perfnb.try_levers(step, levers=["half"], budget_s=10)
    assert short.table.loc["half", "verdict"] == "not timed"
    said = re.search(
        r"Nothing could be timed within the budget: about ([\d,]+) s would be enough$", str(short), re.MULTILINE
    )
    assert said is not None, str(short)
    need_s = float(said[1].replace(",", ""))
    assert need_s > 10
    assert f"raise budget_s (about {said[1]} s would be enough for all)" in str(short.table.loc["half", "why_not"])
    timing = False
    assert perfnb.try_levers(step, levers=["half"], budget_s=need_s).table.loc["half", "verdict"] == "faster"


def test_arguments_that_cannot_work_are_refused_at_once() -> None:
    step, _ = training()
    with pytest.raises(ValueError, match=r"Did you mean gc_freeze\?"):
        perfnb.try_levers(step, levers="gc_freze")
    with pytest.raises(TypeError, match="can be iterated only once"):
        perfnb.try_levers(lambda batch: step(), (batch for batch in range(3)))
    with pytest.raises(TypeError, match=r"try_levers\(step, loader\)"):
        perfnb.try_levers(lambda batch: step())
    assert list(perfnb.try_levers(step, levers="gc_freeze", budget_s=60).table.index) == ["gc_freeze"]


def test_a_leaked_switch_names_its_lever_and_is_put_back(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()

    @contextmanager
    def leaking(_: Subject) -> Iterator[None]:
        torch.set_num_threads(threads + 1)
        yield

    plant(monkeypatch, switched("leaks", leaking))
    step, _ = training(pause=Waiting(clock, 0.1))
    words = "After trying leaks, torch's number of threads has changed: perfnb has restored it"
    with pytest.raises(CaptureError, match=words):
        perfnb.try_levers(step, levers=["gc_freeze", "leaks"], budget_s=60)
    assert torch.get_num_threads() == threads


def test_a_step_that_only_accumulates_gradients_trains() -> None:
    model, x = nn.Linear(4, 1), torch.randn(2, 4)

    def step() -> None:
        model(x).sum().backward()

    step()
    assert find_subject(step, None, namespace_of(step)).trains


def test_a_model_that_is_compiled_in_place_is_not_compiled_again(clock: FakeClock) -> None:
    model, x, wait = nn.Linear(8, 1), torch.randn(4, 8), Waiting(clock, 0.1)
    model.compile(backend="eager", fullgraph=True)

    def step() -> None:
        wait()
        model(x).square().mean().backward()

    table = perfnb.try_levers(step, levers=["compile", "gc_freeze"], budget_s=20).table
    assert table.loc["compile", "why_not"] == "the model is already compiled"
    assert table.loc["gc_freeze", "values"] == SAME, table.loc["gc_freeze", "why_not"]


# Memory


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 256), nn.Linear(256, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.second(torch.relu(self.first(x)))
        return found


def deep(pause: Callable[[], Any] = lambda: None) -> Any:
    model = nn.Sequential(*[Block() for _ in range(4)])
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 32)

    def step() -> None:
        pause()
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    return step, model


def test_the_peak_of_memory_is_what_the_step_holds_at_once() -> None:
    step, model = deep()
    step()
    subject = find_subject(step, None, namespace_of(step))
    found = peak_bytes(subject)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    activations = 4 * 256 * 256 * 4  # relu keeps its result, which linear keeps too
    assert found is not None
    assert weights + activations < found < 3 * (2 * weights + activations)
    assert peak_bytes(subject) == pytest.approx(found, rel=0.01)


def test_memory_is_judged_without_times_where_steps_are_long(clock: FakeClock) -> None:
    step, _ = deep(Waiting(clock, 5.0))
    begin = clock.now_ns
    found = perfnb.try_levers(step, goal="memory", levers=["checkpointing", "gc_freeze"], budget_s=120)
    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 120
    assert found.table["verdict"].tolist() == ["not timed", "not timed"]
    assert found.best == ("checkpointing",)
    assert "time not measured" in str(found)


# Quality


@pytest.mark.parametrize(
    ("limits", "keeps", "says"),
    [
        (None, False, "quality: loss 2; loss above 1.001"),
        ({"loss": 2.5, "peak_memory_bytes": 10.0}, False, ""),
        ({"loss": 2.5, "p95_ms": 1e6, "median_ms": 1e6}, True, "quality: loss 2"),
    ],
)
def test_quality_and_limits_are_those_of_a_report(
    limits: Any, keeps: bool, says: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, switched("half", wait.shorter(0.5)))
    step, _ = training(pause=wait)
    quality = lambda: {"loss": 2.0 if wait.seconds < 0.1 else 1.0}  # noqa: E731
    judged: dict[str, Any] = {} if limits is not None and "loss" not in limits else {"quality": quality}
    found = perfnb.try_levers(step, levers=["half"], budget_s=50, limits=limits, **judged)
    assert (found.best == ("half",)) is keeps
    assert says in found.table["notes"]["half"]


def test_a_limit_on_a_loss_that_quality_does_not_return_is_refused() -> None:
    step, _ = training()
    with pytest.raises(ValueError, match="'los', which quality"):
        perfnb.try_levers(step, levers=["gc_freeze"], budget_s=60, quality=lambda: {"loss": 1.0}, limits={"los": 2.0})


# Compiling, and random numbers


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:  # a graph break
            return torch.relu(x)
        return torch.relu(x) + 0 * x


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_graphs_and_their_breaks_are_counted() -> None:
    step, _ = training(middle=Branching())
    subject = find_subject(step, None, namespace_of(step))
    eager = Lever("eager", "", nothing, compiled(backend="eager"), lambda _: [])
    with prepared(eager, subject, 0.0) as one:
        graphs, breaks = one.at_first
        assert graphs > 1
        assert breaks > 0
        assert one.notes == [f"{graphs} graphs, {breaks} graph break{'s' * (breaks > 1)}"]
    with prepared(by_name()["gc_freeze"], subject, 0.0) as plain:
        assert plain.notes == []


def other_dropout(shift: int) -> Callable[[Subject], Any]:
    """Return a lever that draws other random numbers."""

    @contextmanager
    def ready(_: Subject) -> Iterator[Switch]:
        @contextmanager
        def on() -> Iterator[None]:
            for _ in range(shift):
                torch.rand(1)
            yield

        yield on

    return ready


def test_a_lever_that_draws_otherwise_is_checked_with_random_numbers_in_order() -> None:
    step, _ = training(middle=nn.Dropout(0.5))
    subject = find_subject(step, None, namespace_of(step))
    yardstick = measure_yardstick(subject)
    for in_order, expected in ((None, UNCHECKED), (other_dropout(0), SAME), (other_dropout(2), UNCHECKED)):
        draws = Lever("draws", "", nothing, other_dropout(1), lambda _: [], reorders=True, in_order=in_order)
        with prepared(draws, subject, 0.0) as one:
            assert check([one], subject, yardstick).verdict == expected
    plain = Lever("draws", "", nothing, other_dropout(1), lambda _: [])
    with prepared(plain, subject, 0.0) as one:
        assert check([one], subject, yardstick).verdict == DIFFERENT


@pytest.mark.parametrize(
    ("peak", "free", "fails", "why_not"),
    [
        (50, 100, False, ""),
        (51, 100, False, "there is not enough memory for float64"),
        (None, 0, False, ""),
        (51, None, False, ""),
        (50, 100, True, "the step does not run in float64 (OSError: no kernel)"),
    ],
)
def test_the_truth_is_in_float64_or_else_with_another_number_of_threads(
    peak: int | None, free: int | None, fails: bool, why_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(_: Subject, **options: Any) -> dict[str, Any]:
        asked.append((options, torch.get_num_threads()))
        if fails and options.get("float64"):
            raise OSError("no kernel\nfor it")
        return {}

    asked, threads = list[Any](), torch.get_num_threads()
    monkeypatch.setattr(values, "results_of", results)
    monkeypatch.setattr(values, "free_bytes", lambda kind: free)
    subject = Subject(lambda: None, None, {}, {}, None)
    assert measure_yardstick(subject, peak).why_not == why_not
    *first, (last, count) = asked
    assert [options for options, _ in first[:3]] == [{"steps": 1}, {"steps": 1}, {"steps": 1, "seed_shift": 1}]
    assert (last.get("float64", False), count == threads) == ((False, False) if why_not else (True, True))
    idle = PreparedLever(switched("idle", lambda _: nullcontext()), nullcontext)
    assert check([idle], subject, Yardstick({}, {}, "", random=False, repeats=False, steps=1)).verdict == UNCHECKED


def test_results_are_outputs_by_call_first_gradients_and_the_state_after_all_steps() -> None:
    model, x = nn.Linear(2, 1), torch.ones(1, 2)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)

    def step() -> None:
        opt.zero_grad()
        (model(x) + model(2 * x)).sum().backward()
        opt.step()

    subject = find_subject(step, None, namespace_of(step))
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    for steps, when in ((1, "after the step"), (3, "after 3 steps")):
        found = values.results_of(subject, steps=steps)
        assert {name: value.flatten().tolist() for name, value in found.items() if value is not None} == {
            "output 0 of model, call 0": pytest.approx([float(weight.sum() + bias)]),
            "output 0 of model, call 1": pytest.approx([float(2 * weight.sum() + bias)]),
            "gradient of model.weight": [3.0, 3.0],
            "gradient of model.bias": [2.0],
            f"model.weight {when}": pytest.approx((weight - 3 * steps).flatten().tolist()),
            f"model.bias {when}": pytest.approx((bias - 2 * steps).tolist()),
        }
    assert torch.equal(model.weight, weight)
    plain = find_subject(lambda: model(x).sum().backward(), None, {"model": model})
    assert "gradient of model.weight" in values.results_of(plain, steps=1)  # without an optimizer
    silent = Subject(lambda: (torch.ones(2), torch.rand(3)), None, {}, {}, None)
    first, other = (dict[str, Any](values.results_of(silent, seed_shift=shift, steps=1)) for shift in (0, 1))
    assert list(first) == ["output 0 of the step, call 0", "output 1 of the step, call 0"]
    assert [torch.equal(one, other[name]) for name, one in first.items()] == [True, False]


def test_digests_differ_if_values_types_shapes_or_nesting_do() -> None:
    one = torch.arange(4.0)
    different = [
        *(one, one.double(), one.reshape(2, 2), one + 1, [one], [[one]], [one, one], {"a": one}, {"b": one}),
        *([1, 2], [2, 1], [[1], 2], (1,), 1, 1.5, "1", None, np.arange(4.0), np.arange(1.0, 5.0)),
    ]
    assert len({digest(each) for each in different}) == len(different)
    assert digest({"a": [one.clone(), (1, np.arange(4.0))]}) == digest({"a": (one.clone(), [1, np.arange(4.0)])})


# Loaders that know their position


class Stateful(DataLoader[Any]):
    """Goes on where it was."""

    place = 0

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.place += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_a_loader_goes_on_where_it_was() -> None:
    model = nn.Linear(4, 1)
    loader = Stateful(TensorDataset(torch.randn(40, 4)), batch_size=2)
    loader.place = 7
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        opt.zero_grad()
        model(batch[0]).sum().backward()
        opt.step()

    table = perfnb.try_levers(step, loader, levers=["gc_freeze", "loader_workers"], budget_s=60).table
    assert loader.place == 7
    assert "cannot copy a Stateful" in table["why_not"]["loader_workers"]


# Trials whose measurements are given


class Given:
    """A trial without a step: the levers that are on determine its time, memory and results."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        clock: FakeClock,
        ms: Callable[[frozenset[str]], float] = lambda on: 10.0,
        *,
        left_s: float = 1e6,
        rounds: int = 12,
        **request: Any,
    ) -> None:
        self.on: set[str] = set()
        self.ms, self.rounds, self.hopeless = ms, rounds, ""
        self.peaks: dict[str, int | None] = {}
        self.values: dict[str, Values | Exception] = {}
        self.asked: list[tuple[str, float, dict[str, Any]]] = []
        self._clock = clock
        subject = Subject(lambda: self.ms(frozenset(self.on)), None, {}, {}, None)
        wanted = LeverRequest(**request)
        budget = TrialBudget(left_s, wanted.goal)
        budget.step_s = 1.0
        figures = LeverFigures("step", goal=wanted.goal, step_ms=10.0)
        self.loop = LeverLoop(subject, wanted, budget, figures, self._tell, lambda what: self.proven.append(what))
        self.loop.yardstick = Yardstick({}, {}, "", random=False, repeats=True, steps=1)
        self.proven: list[str] = []
        for name in ("time_levers", "check", "peak_bytes"):
            monkeypatch.setattr(loop, name, getattr(self, f"_{name}"))

    def lever(self, name: str, ratio: float | None = None, **trial: Any) -> PreparedLever:
        """Return a prepared lever and put its trial among the figures."""
        traits = {word: trial.pop(word) for word in ("family", "settles", "in_blocks") if word in trial}

        @contextmanager
        def switch() -> Iterator[None]:
            one.on = True
            self.on.add(name)
            try:
                yield
            finally:
                self.on.remove(name)
            one.on = False

        one = PreparedLever(switched(name, lambda _: switch(), **traits), switch)
        one.trial = LeverTrial(name, "faster" if ratio else "not timed", ratio=ratio, **trial)
        self.loop.figures.trials.append(one.trial)
        return one

    def _tell(self, words: str, *_: Any) -> None:
        self.words = words

    def _time_levers(
        self, _: Subject, switches: Any, budget_s: float, progress: Callable[..., None], **options: Any
    ) -> Any:
        progress()
        self.asked.append((self.words, round(budget_s, 3), options))
        self._clock.pass_exactly(budget_s * 1e3)
        rows = []
        for place, switch in enumerate([nullcontext, *switches]):
            with switch():
                row = self.ms(frozenset(self.on)) * (1 + 0.001 * np.roll(np.arange(self.rounds), 5 * place))
                rows.append(row * float("nan") if self.hopeless in self.on else row)
        return np.array(rows)

    def _check(self, levers: Any, *_: Any, again: bool = True) -> Values:
        found = self.values.get("+".join(one.lever.name for one in levers), Values(SAME, 0.0))
        if isinstance(found, Exception):
            raise found
        return found

    def _peak_bytes(self, _: Subject, switch: Switch = nullcontext) -> int | None:
        with switch():
            return self.peaks["+".join(sorted(self.on))]


Trial = Callable[..., Given]


@pytest.fixture
def trial(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Trial:
    return partial(Given, monkeypatch, clock)


def factors(**each: float) -> Callable[[frozenset[str]], float]:
    """Return a step of 10 ms, times a factor for each lever that is on."""
    return lambda on: 10.0 * math.prod(each[name] for name in on)


def test_levers_are_confirmed_together_as_long_as_each_adds_something(trial: Trial) -> None:
    given = trial(factors(half=0.5, idle=1.0, most=0.7, slow=1.3), left_s=1000)
    half, idle, most, slow = (
        given.lever("half", 0.6, setup_s=2.0, peak_bytes=7, values=Values(REDUCED, 0.1)),
        given.lever("idle", 0.7, settles=True),
        given.lever("most", 0.8, setup_s=3.0, peak_bytes=9, values=Values(NOISE, 0.2), in_blocks=True),
        given.lever("slow", 0.9),
    )
    given.loop.figures.fed_ms = 20.0
    first = half.trial
    given.loop._confirm([half, idle, most, slow])

    figures, together = given.loop.figures, given.loop.figures.confirmed
    assert figures.kept == ("half", "most")
    assert together is not None
    assert (together.lever, together.verdict) == ("half and most", "faster")
    assert together.ratio == pytest.approx(0.35, rel=0.01)
    assert together.saves_ms == pytest.approx(20.0 * 0.65, rel=0.01)  # including the batch
    assert (together.setup_s, together.peak_bytes, together.values) == (5.0, 9, Values(REDUCED, 0.1))
    assert half.trial is figures.trials[0] is not first
    assert (first.ratio, half.trial.ratio, half.trial.saves_ms) == (
        0.6,
        pytest.approx(0.5, 0.01),
        pytest.approx(5, 0.01),
    )
    assert [one.trial.notes for one in (half, idle, most, slow)] == [
        [],
        ["adds nothing to half"],
        [],
        ["adds nothing to half and most"],
    ]
    assert not any(trial.unconfirmed for trial in figures.trials)
    assert [words for words, _, _ in given.asked] == [
        "confirm half",
        "confirm half + idle",
        "confirm half + most",
        "confirm half + most + slow",
    ]
    assert [budget_s for _, budget_s, _ in given.asked] == [250.0] * 4
    assert [(options["block"], options["ahead"]) for _, _, options in given.asked] == [
        (1, False),
        (3, False),
        (1, True),
        (1, True),
    ]
    assert len({options["seed"] for _, _, options in given.asked}) == 4


def test_a_lever_that_was_faster_by_chance_is_not_confirmed_and_the_next_one_is_tried_alone(trial: Trial) -> None:
    given = trial(factors(lucky=1.0, half=0.5))
    lucky, half = given.lever("lucky", 0.4), given.lever("half", 0.5)
    given.loop._confirm([lucky, half])
    assert given.loop.figures.kept == ("half",)
    assert lucky.trial.notes == ["not confirmed on fresh pairs"]
    assert given.asked[1][0] == "confirm half"


@pytest.mark.parametrize(
    ("other", "values", "why"),
    [
        ({"family": "kin"}, None, "only one lever of this kind can be on"),
        ({"smallest": 0.21}, None, "its saving is too small to be visible next to theirs"),
        ({"smallest": 0.19}, None, ""),
        ({}, OSError("no\nspace"), "the step fails: OSError: no"),
        ({}, Values(DIFFERENT), "results differ"),
        ({}, Values(DIFFERENT, None, "too far"), "too far"),
        ({}, Values(UNCHECKED, None, "random"), "random"),
        ({}, Values(REDUCED), ""),
    ],
)
def test_why_a_lever_is_not_combined_with_another(
    other: dict[str, Any], values: Values | Exception | None, why: str, trial: Trial
) -> None:
    given = trial(factors(half=0.5, other=0.8))
    half, one = given.lever("half", 0.5, family="kin"), given.lever("other", 0.8, **other)
    given.values = {} if values is None else {"half+other": values}
    given.loop._confirm([half, one])
    assert one.trial.notes == ([f"not together with half: {why}"] if why else [])
    assert given.loop.figures.kept == (("half",) if why else ("half", "other"))


@pytest.mark.parametrize(("listed", "kept"), [(["autocast"], ("half",)), (["threads"], ("half", "threads"))])
def test_unchecked_results_together_are_kept_only_for_a_lever_that_the_user_has_named(
    listed: list[str], kept: tuple[str, ...], trial: Trial
) -> None:
    given = trial(factors(half=0.5, threads=0.8), levers=listed)
    given.values = {"half+threads": Values(UNCHECKED)}
    given.loop._confirm([given.lever("half", 0.5), given.lever("threads", 0.8)])
    assert given.loop.figures.kept == kept


def test_quality_is_judged_again_with_all_levers_on(trial: Trial) -> None:
    def quality() -> dict[str, float]:
        return {"loss": 1.0 + len(given.on)}

    given = trial(factors(half=0.5, other=0.8), quality=quality, limits={"loss": 2.5})
    other = given.lever("other", 0.8)
    given.loop._confirm([given.lever("half", 0.5), other])
    assert other.trial.notes == ["not together with half: quality: loss 3; loss above 2.5"]


@pytest.mark.parametrize(
    ("left_s", "first", "confirmed"),
    [
        (14.5, {}, True),  # 0.4 of 2 variants with 18 steps of a second
        (14.3, {}, False),
        (57.7, {"settles": True}, True),  # blocks of 4 steps
        (57.5, {"settles": True}, False),
    ],
)
def test_a_lever_is_confirmed_only_if_there_is_time(
    left_s: float, first: dict[str, Any], confirmed: bool, trial: Trial
) -> None:
    given = trial(factors(half=0.5), left_s=left_s)
    one = given.lever("half", 0.5, **first)
    given.loop._confirm([one])
    assert given.loop.figures.kept == (("half",) if confirmed else ())
    assert one.trial.unconfirmed is not confirmed
    assert one.trial.notes == ([] if confirmed else ["no time was left to confirm it: raise budget_s"])
    assert [budget_s for _, budget_s, _ in given.asked] == [pytest.approx(left_s, abs=0.01)] * confirmed


def test_the_first_lever_gets_at_least_the_time_that_its_fewest_pairs_need(trial: Trial) -> None:
    given = trial(factors(half=0.5, most=0.7), left_s=30.0)
    half, most = given.lever("half", 0.5), given.lever("most", 0.7)
    given.loop._confirm([half, most])
    assert [budget_s for _, budget_s, _ in given.asked] == [pytest.approx(18.0, abs=0.01)]
    assert (half.trial.unconfirmed, most.trial.unconfirmed) == (False, True)


@pytest.mark.parametrize(("rounds", "hopeless", "confirmed"), [(6, "", True), (5, "", False), (6, "half", False)])
def test_too_few_pairs_confirm_nothing(rounds: int, hopeless: str, confirmed: bool, trial: Trial) -> None:
    given = trial(factors(half=0.5), rounds=rounds)
    given.hopeless = hopeless
    one = given.lever("half", 0.5)
    given.loop._confirm([one])
    assert (given.loop.figures.kept == ("half",)) is confirmed
    assert one.trial.unconfirmed is not confirmed


@pytest.mark.parametrize("own", [True, False])
def test_an_error_while_confirming_is_the_levers_or_the_steps(own: bool, trial: Trial) -> None:
    def ms(on: frozenset[str]) -> float:
        if "late" in on or own:
            raise OSError("the disk is full")
        return 5.0 if on else 10.0

    given = trial(ms)
    late, half = given.lever("late", 0.4), given.lever("half", 0.5)
    if own:
        with pytest.raises(OSError, match="disk is full"):
            given.loop._confirm([late, half])
    else:
        given.loop._confirm([late, half])
        assert late.trial.notes == ["not confirmed: the step fails: OSError: the disk is full"]
        assert given.loop.figures.kept == ("half",)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize(("peak", "adds"), [(989, True), (990, False), (None, False)])
def test_memory_is_saved_by_a_percent_or_the_lever_adds_nothing(
    peak: int | None, adds: bool, timed: bool, trial: Trial
) -> None:
    given = trial(factors(small=1.1, smaller=1.2), goal="memory", left_s=1e6 if timed else 5.0)
    given.peaks = {"small+smaller": peak}
    small, smaller = given.lever("small", peak_bytes=1000), given.lever("smaller", peak_bytes=1001)
    given.loop._confirm([small, smaller])
    figures = given.loop.figures
    assert figures.kept == (("small", "smaller") if adds and timed else ("small",))
    assert figures.confirmed is not None
    if timed:
        assert figures.confirmed.peak_bytes == (peak if adds else 1000)
        assert figures.confirmed.ratio == pytest.approx(1.32 if adds else 1.1, rel=0.01)
        assert smaller.trial.notes == ([] if adds else ["adds nothing to small"])
    else:  # memory hardly varies, so one lever needs no time
        assert (figures.confirmed, figures.confirmed.unconfirmed) == (small.trial, False)
        assert smaller.trial.unconfirmed


def test_levers_of_a_kind_are_timed_together_and_the_rest_of_the_time_is_shared(trial: Trial) -> None:
    given = trial(factors(a=0.5, b=2.0, c=1.5, d=0.8), left_s=100.0)
    given.loop.budget.kept_s = 10.0
    ahead = given.lever("d", in_blocks=True)
    a, settling, b = given.lever("a"), given.lever("c", settles=True), given.lever("b")
    assert given.loop._time([ahead, a, settling, b]) == 0.0
    assert [(words, budget_s) for words, budget_s, _ in given.asked] == [
        ("try 2 levers", pytest.approx(30.0, abs=0.01)),
        ("try c", pytest.approx(30.0, abs=0.01)),
        ("try d", pytest.approx(30.0, abs=0.01)),
    ]
    assert given.proven == ["timing a, b", "timing c", "timing d"]
    assert [one.trial.verdict for one in (a, b, settling, ahead)] == ["faster", "slower", "slower", "faster"]
    assert [one.trial.ratio for one in (a, b, settling, ahead)] == pytest.approx([0.5, 2.0, 1.5, 0.8], rel=0.01)
    figures = given.loop.figures
    assert (figures.rounds, figures.step_ms, figures.fed_ms) == (12, pytest.approx(10, 0.01), pytest.approx(10, 0.01))


def test_what_was_timed_in_too_few_rounds_says_how_long_a_step_takes(trial: Trial) -> None:
    given = trial(left_s=84.0, rounds=5)
    one, settling = given.lever("one"), given.lever("settling", settles=True)
    # 42 s each: 2 steps in each of 2 + 5 rounds take 3 s each; 8 steps, less than a second
    assert given.loop._time([one, settling]) == pytest.approx(3.0, abs=0.001)
    assert [each.trial.verdict for each in (one, settling)] == ["not timed"] * 2
    assert given.loop.figures.rounds == 0


def test_a_lever_that_breaks_the_step_while_it_is_timed_is_left_out_and_the_others_are_timed_again(
    trial: Trial,
) -> None:
    def ms(on: frozenset[str]) -> float:
        if "late" in on:
            raise OSError("the lever broke\nin two lines")
        return 5.0 if "half" in on else 10.0

    given = trial(ms, left_s=100.0)
    given.hopeless = "hopeless"
    half, late, hopeless = (given.lever(name) for name in ("half", "late", "hopeless"))
    given.loop._time([half, late, hopeless])
    assert [one.trial.verdict for one in (half, late, hopeless)] == ["faster", "not tried", "not timed"]
    assert late.trial.why_not == "the step fails with it: OSError: the lever broke"
    assert hopeless.trial.why_not.startswith("too slow to keep timing")
    assert half.trial.why_not == ""
    assert [budget_s for _, budget_s, _ in given.asked] == [pytest.approx(100.0, abs=0.01), pytest.approx(0, abs=0.01)]
    assert given.loop._time([late]) == 0.0
    given.ms = lambda on: (_ for _ in ()).throw(OSError("the disk is full"))
    with pytest.raises(OSError, match="disk is full"):
        given.loop._time([half])


@pytest.mark.parametrize(
    ("why_not", "repeats", "caveat"),
    [("", True, ""), ("slow", True, "number of threads: slow"), ("slow", False, "the step is not reproducible from")],
)
def test_what_measuring_the_step_itself_takes_and_leaves_open(
    why_not: str, repeats: bool, caveat: str, trial: Trial, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*asked: Any) -> Yardstick:
        clock.pass_exactly(30_000)
        assert asked[1:] == (77, False, 3)
        return Yardstick({}, {}, why_not, random=False, repeats=repeats, steps=3)

    def quality() -> dict[str, float]:
        clock.pass_exactly(2_000)
        return {"loss": 0.5}

    given = trial(quality=quality)
    given.peaks[""] = 77
    monkeypatch.setattr(loop, "measure_yardstick", measured)
    given.loop._measure_own()
    assert caveat in given.loop.figures.caveat
    assert (given.loop.figures.caveat == "") == (caveat == "")
    assert given.loop.budget.each_s == pytest.approx((30 - 14) / 2 + 2)  # without 14 steps of a second
    assert given.loop.own_losses == {"loss": 0.5}


FAILED = "the step fails with it: OSError:"


@pytest.mark.parametrize(
    ("traits", "plan", "graphs", "values", "expected"),
    [
        ({}, {}, 0, Values(SAME, 0.0), {"each_s": 3.0, "memory": "less"}),
        ({"settles": True}, {}, 2, Values(SAME, 0.0), {"each_s": 0.5, "compiling_s": 4.0, "memory": "less"}),
        ({"settles": True}, {}, 0, Values(SAME, 0.0), {"each_s": 0.5, "memory": "less"}),
        ({}, {"weighed": 0}, 0, Values(SAME, 0.0), {"each_s": 5.0}),
        ({"in_blocks": True}, {}, 0, Values(SAME, 0.0), {"each_s": 3.0}),
        ({}, {}, 0, OSError("no\nspace"), {"why_not": f"{FAILED} no"}),
        ({"settles": True}, {}, 0, OSError("no"), {"why_not": f"{FAILED} no", "compiling_s": 10.0}),
    ],
)
def test_what_preparing_and_checking_a_lever_takes_and_shows(
    traits: dict[str, Any], plan: dict[str, Any], graphs: int, values: Values | Exception, expected: dict[str, Any],
    trial: Trial, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It takes 10 s, of which 7 steps take a second each, and 4 s are its preparation."""
    given = trial(words=lambda name, _: [f"use {name}"])
    loop_, budget = given.loop, given.loop.budget
    budget.plan, budget.each_s = replace(budget.plan, **plan), 0.5
    loop_.figures.own_peak, given.peaks, given.values = 1000, {"a": 900}, {"a": values}
    one = given.lever("a", **traits)

    @contextmanager
    def ready(lever: Lever, subject: Subject, step_s: float, set_up: int) -> Iterator[PreparedLever]:
        clock.pass_exactly(10_000)
        assert (step_s, set_up) == (1.0, 2)
        one.setup_s, one.at_first = 4.0, Compiled(graphs, 0)
        yield one

    monkeypatch.setattr(loop, "prepared", ready)
    tried = LeverTrial("a", "not tried")
    with ExitStack() as stack:
        assert loop_._ready(stack, one.lever, tried) is (None if isinstance(values, Exception) else one)
        assert (given.words, given.proven) == ("prepare a", ["trying a"])
    assert given.proven[1:] == ["undoing a"]
    known = {"each_s": 0.5, "compiling_s": 0.0, "memory": "", "why_not": ""} | expected
    assert (budget.each_s, budget.compiling_s) == pytest.approx((known["each_s"], known["compiling_s"]), abs=1e-4)
    assert (tried.memory, tried.why_not) == (known["memory"], known["why_not"])
    if not isinstance(values, Exception):
        assert (tried.verdict, tried.setup_s, tried.code, one.trial) == ("not timed", 4.0, ["use a"], tried)


@pytest.mark.parametrize(
    ("need_s", "too_slow_s", "enough"), [(100, 0.0, None), (101, 0.0, 101), (50, 2.0, 120), (130, 2.0, 130)]
)
def test_levers_without_time_have_a_sufficient_budget(
    need_s: int, too_slow_s: float, enough: int | None, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = trial(left_s=100.0)
    monkeypatch.setattr(given.loop.budget, "need_s", lambda levers, confirm, step_s: need_s if step_s else 0)
    waiting, untimed, refused = (given.lever(name) for name in ("waiting", "untimed", "refused"))
    waiting.trial.verdict = refused.trial.verdict = "not tried"
    refused.trial.why_not = "no model"
    given.loop._say_what_would_do([(one.lever, one.trial) for one in (waiting, untimed, refused)], too_slow_s)
    more = "" if enough is None else f" (about {enough} s would be enough for all)"
    words = f"no time left in the budget: raise budget_s{more}, or name fewer levers"
    told = [one.trial.why_not for one in (waiting, untimed, refused)]
    assert told == [words, words if too_slow_s else "", "no model"]
    assert given.loop.figures.need_s == (enough if too_slow_s else None)


def test_without_confirming_the_best_of_each_family_is_named(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    given = trial(confirm=False, limits={"median_ms": 9.0})
    times: dict[str, Any] = {"times_ms": (9.0,)}
    ready = [given.lever(name, ratio, family="kin", **times) for name, ratio in (("a", 0.8), ("b", 0.5))]
    ready += [given.lever("c", 0.9, **times), given.lever("d", 0.7, **times), given.lever("e", 0.3, times_ms=(9.1,))]
    monkeypatch.setattr(given.loop, "_prepare", lambda *_: [*ready, given.lever("f", **times)])
    monkeypatch.setattr(given.loop, "_time", lambda _: 0.0)
    given.loop.try_each([], {})
    assert [trial.lever for trial in given.loop.figures.trials if trial.unconfirmed] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("bounds", "listed", "step_s", "profiled_s", "reason"),
    [
        ({"optimizer": 2.0}, "auto", 0.1, None, "no finding suggests it"),
        (None, "auto", 0.1, 9.0, "no finding suggests it"),
        (None, "auto", 1.2, None, "no time in the budget for the profile"),  # 8 steps take more than 15 %
        (None, ["compile"], 0.1, None, None),
    ],
)
def test_levers_that_no_finding_suggests_are_listed_with_the_reason(
    bounds: Any, listed: Any, step_s: float, profiled_s: float | None, reason: str | None,
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def found(_: Subject, namespace: Any, goal: str, budget_s: float) -> dict[str, float]:
        asked.append(budget_s)
        return {"optimizer": 1.0}

    asked, tried = list[float](), list[str]()
    monkeypatch.setattr(try_levers, "_bounds", found)
    monkeypatch.setattr(LeverLoop, "try_each", lambda self, levers, _: tried.extend(one.name for one in levers))
    step, _ = training(pause=Waiting(clock, step_s))
    request = LeverRequest(listed, budget_s=60.0)
    trials = run_trials(step, None, request, namespace=namespace_of(step), bounds=bounds, quiet=True).figures.trials
    assert asked == ([] if profiled_s is None else [profiled_s])
    assert {trial.lever for trial in trials} == (by_name().keys() - set(tried) if reason else set())
    if reason:
        assert next(trial.why_not for trial in trials if trial.lever == "checkpointing").startswith(reason)
    else:
        assert tried == ["compile"]


def test_the_profile_before_a_trial_is_short_and_of_memory_only_where_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def profiled(step: Any, batches: Any, *, plan: Any, **_: Any) -> Any:
        plans.append((plan.budget_s, plan.memory))
        return SimpleNamespace(findings=pd.DataFrame({"bottleneck": ["a", "a", "b"], "bound_ms": [1.0, 3.0, None]}))

    plans = list[Any]()
    monkeypatch.setattr("perfnb.profile.profiling.run_profile", profiled)
    subject = Subject(lambda: None, None, {}, {}, None)
    for goal in ("time", "memory"):
        assert try_levers._bounds(subject, {}, goal, 4.0) == {"a": 3.0, "b": 0.0}
    assert plans == [(4.0, False), (4.0, True)]


@pytest.mark.parametrize(("most_s", "step_s", "left"), [(0.1005, 0.03, []), (0.0995, 0.1, [40, 30])])
def test_a_step_runs_two_more_times_if_the_first_one_was_short(
    most_s: float, step_s: float, left: list[int], clock: FakeClock
) -> None:
    ms = iter([100, 40, 30])
    subject = Subject(lambda: clock.pass_exactly(next(ms)), None, {}, {}, None)
    assert measuring.step_seconds(subject, most_s) == pytest.approx(step_s, rel=1e-3)
    assert list(ms) == left


def test_preparing_a_lever_takes_what_its_steps_take_longer(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, takes_s = [0], iter([1.0, 0.5])

    @contextmanager
    def switch() -> Iterator[None]:
        clock.pass_exactly(1000 * next(takes_s))
        yield

    def step() -> None:
        clock.pass_exactly(5000 if graphs[0] == 0 else 2000)
        graphs[0] += 1

    monkeypatch.setattr(lever_module, "_compiled", lambda: Compiled(graphs[0], 3 * graphs[0]))
    given = switched("a", lambda _: switch())
    with prepared(given, Subject(step, None, {}, {}, None), 2.0, 4) as one:
        # Four steps of 2 s; the first takes 3 s longer, and switching on 1 s.
        assert (one.setup_s, one.switching_s) == pytest.approx((4.0, 2.0), abs=1e-4)
        assert (one.at_first, one.on) == ((4, 12), False)
        with one.switch():
            assert one.on
            step()
        assert (one.at_first, one.until_now) == ((4, 12), (5, 15))
        assert one.switching_s == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("budget_s", "options", "blocks", "rounds"),
    [
        (43.0, {}, {}, 12),  # a round takes 3.5 s
        (10.0, {}, {}, 7),  # the fewest of two levers
        (1e5, {}, {}, 200),
        (106.0, {"block": 2}, {"lead": 1, "turns": 2}, 10),
        (1e5, {"ahead": True, "made": 3}, {"lead": 4, "turns": 4}, 40),
    ],
)
def test_levers_are_timed_in_as_many_rounds_as_the_rest_of_the_budget_allows(
    budget_s: float, options: dict[str, Any], blocks: dict[str, int], rounds: int, clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The step takes a second, and with levers 0.5, 9 and 2 s; the first rounds take no time."""

    class Bench:
        def __init__(self, steps: list[Any], batches: Any, *_: Any, switches: list[Any]) -> None:
            fed.append((len(steps), batches, len(switches), subject.gate._open))

        def __enter__(self) -> Bench:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def rounds(self, orders: list[Any], **asked: Any) -> Any:
            return self._run("rounds", orders, asked)

        def blocks(self, orders: list[Any], **asked: Any) -> Any:
            return self._run("blocks", orders, asked)

        def _run(self, kind: str, orders: list[Any], asked: dict[str, Any]) -> Any:
            until_s = asked.pop("until", None)
            left_s = None if until_s is None else round(until_s - clock.now_ns / 1e9, 3)
            ran.append((kind, [sorted(order) for order in orders], asked, left_s))
            return np.array([[1000.0], [500.0], [9000.0], [2000.0]]) * np.ones(len(orders))

        def prefetching(self) -> Any:
            return made and SimpleNamespace(ahead=made)

    made, ahead = options.get("made"), options.get("ahead", False)
    given = {"block": options.get("block", 1), "ahead": ahead}
    fed, ran = list[Any](), list[Any]()
    subject = Subject(lambda batch: None, [5], {}, {}, None)
    monkeypatch.setattr(measuring, "Bench", Bench)
    measuring.time_levers(subject, [nullcontext] * 3, budget_s, lambda *_: None, warm=3, **given)
    assert fed == [(4, None if ahead else [5], 4, True)]
    kind, everyone = "blocks" if blocks else "rounds", [0, 1, 2, 3]
    assert ran[:-2] == [("blocks", [everyone], {"lead": 0, "turns": 3}, None)] * ahead
    assert ran[-2] == (kind, [everyone] * (1 if ahead else 3), blocks, budget_s)
    assert ran[-1] == (kind, [[0, 1, 3]] * rounds, {"planned": rounds, **blocks}, round(1.15 * budget_s, 3))


def test_the_peak_is_unknown_inside_the_steps_own_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> Any:
        tracer = MagicMock()
        tracer.__enter__.side_effect = CaptureError("a profiler is active")
        return tracer

    monkeypatch.setattr(measuring, "Tracer", refused)
    assert peak_bytes(Subject(lambda: None, None, {}, {}, None)) is None
