"""Trials within a budget, for time and for memory, with the user's own test of quality."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb import quantities as fmt
from perfnb.bench.values import DIFFERENT, NOISE, SAME, UNCHECKED
from perfnb.errors import CaptureError
from perfnb.remedies import levers as registered
from perfnb.remedies.lever import Lever, Switch, always, prepared
from perfnb.remedies.levers import by_name
from perfnb.remedies.levers.compiling import compiled
from perfnb.remedies.measuring import peak_bytes
from perfnb.remedies.subject import Subject, find_subject
from perfnb.remedies.values import check, measure_yardstick
from perfnb.step.namespace import namespace_of
from tests.fake_clock import FakeClock


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


def plant(monkeypatch: pytest.MonkeyPatch, *levers: Lever) -> None:
    monkeypatch.setattr(registered, "LEVERS", (*registered.LEVERS, *levers))


def nothing(_: Subject) -> str:
    """Return an empty reason, which refuses nothing."""
    return ""


def lever(name: str, on: Callable[[Subject], Any], **traits: Any) -> Lever:
    return Lever(name, "a lever of a test", nothing, always(on), lambda _: [f"# {name}"], **traits)


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


def test_a_long_step_gets_a_sensible_subset_within_the_budget(clock: FakeClock) -> None:
    wait = Waiting(clock, 5.0)
    step, _ = training(pause=wait)
    begin = clock.now_ns
    table = perfnb.try_levers(step, budget_s=120).table
    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 120
    tried = table[table["verdict"] != "not tried"]
    assert len(tried) == 1
    assert "no time left in the budget" in " ".join(table["why_not"])


@pytest.mark.parametrize("step_s", [0.05, 0.5, 2.0])
def test_the_budget_holds(step_s: float, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waiting(clock, step_s)
    plant(monkeypatch, lever("half", wait.shorter(0.5)))
    step, _ = training(pause=wait)
    begin = clock.now_ns
    found = perfnb.try_levers(step, levers=["half", "gc_freeze", "foreach_optimizer"], budget_s=120)
    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 120
    assert found.best == ("half",)
    assert found.table["ratio"].notna().sum() >= (3 if step_s < 1 else 1)


def test_everything_that_is_said_of_a_kept_lever_is_of_one_measurement(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, lever("half", wait.shorter(0.5)))
    found = perfnb.try_levers(training(pause=wait)[0], levers=["half"], budget_s=30)
    row, confirmed, step_ms = found.table.loc["half"], found.figures.confirmed, found.figures.step_ms
    assert confirmed is found.figures.trials[0]
    assert row["saves_ms"] == pytest.approx(step_ms * (1 - row["ratio"]), rel=1e-12)
    said, ratio = str(found), fmt.with_interval(fmt.ratio(row["ratio"]), row["ratio"], confirmed.ratio_ci)
    saved = f"{fmt.duration(row['saves_ms'])} saved ({fmt.share(1 - row['ratio'])} less)"
    assert f"step {fmt.duration(step_ms)}" in said
    assert f"Keep half: {saved}" in said
    assert ratio in said


@pytest.mark.deep
def test_what_adds_up_is_kept_and_what_does_not_go_together_is_told(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)

    @contextmanager
    def lonely(subject: Subject) -> Iterator[None]:
        if wait.seconds < 0.1:
            raise RuntimeError("not with another")
        with wait.shorter(0.8)(subject):
            yield

    plant(
        monkeypatch,
        lever("half", wait.shorter(0.5)),
        lever("most", wait.shorter(0.7)),
        lever("lonely", lonely),
        lever("kin", wait.shorter(0.75), family="kin"),
        lever("kin_of_kin", wait.shorter(0.76), family="kin"),
    )
    step, _ = training(pause=wait)
    names = ["half", "most", "lonely", "kin", "kin_of_kin"]
    found = perfnb.try_levers(step, levers=names, budget_s=120)
    notes = found.table["notes"]
    assert found.best == ("half", "most", "kin")
    assert "the step fails: RuntimeError: not with another" in notes["lonely"]
    assert "only one lever of this kind can be on" in notes["kin_of_kin"]


@pytest.mark.deep
def test_an_error_of_the_step_itself_while_confirming_reaches_the_user(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, lever("half", wait.shorter(0.5)))
    step, _ = training(pause=wait)
    told: list[str] = []

    def failing() -> None:
        if any(words.startswith("confirm") for words in told):
            raise OSError("the disk is full")
        step()

    monkeypatch.setattr("perfnb.draw.progress.Progress.__call__", lambda self, words, *rest: told.append(words))
    with pytest.raises(OSError, match="disk is full"):
        perfnb.try_levers(failing, levers=["half"], budget_s=120)
    assert "prepare half" in told
    assert "try half" in told


def failing_at(call: int) -> Callable[[Subject], Any]:
    """Return a lever that makes the step fail when it is on for the n-th time."""
    calls = 0

    @contextmanager
    def on(_: Subject) -> Iterator[None]:
        nonlocal calls
        calls += 1
        yield
        if calls >= call:
            raise OSError("the lever broke")

    return on


@pytest.mark.deep
def test_a_lever_that_fails_only_while_it_is_timed_says_why_and_the_others_are_timed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, lever("half", wait.shorter(0.5)), lever("late", failing_at(8)))
    step, _ = training(pause=wait)
    found = perfnb.try_levers(step, levers=["late", "half"], budget_s=60)
    assert found.table.loc["late", "why_not"] == "the step fails with it: OSError: the lever broke"
    assert found.table.loc["late", "verdict"] == "not tried"
    assert found.best == ("half",)


@pytest.mark.deep
def test_a_hopeless_lever_is_timed_no_further(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waiting(clock, 0.1)
    plant(
        monkeypatch,
        lever("half", wait.shorter(0.5)),
        lever("hopeless", wait.shorter(50.0)),
        lever("slow", wait.shorter(4.0)),
    )
    step, _ = training(pause=wait)
    begin = clock.now_ns
    found = perfnb.try_levers(step, levers=["half", "hopeless", "slow"], budget_s=120)
    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 120
    assert "too slow to keep timing" in found.table.loc["hopeless", "why_not"]
    assert found.table["verdict"].to_dict() == {"half": "faster", "hopeless": "not timed", "slow": "slower"}
    assert found.best == ("half",)
    alone = perfnb.try_levers(step, levers=["hopeless"], budget_s=120)
    assert "too slow to keep timing" in alone.table.loc["hopeless", "why_not"]


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

    plant(monkeypatch, lever("compiled", on, settles=settles))
    step, _ = training(pause=lambda: wait())
    found = perfnb.try_levers(step, levers=["compiled"], budget_s=60)
    row = found.table.loc["compiled"]
    assert row["verdict"] == verdict
    assert row["ratio"] == pytest.approx(0.5 if settles else 1.5, rel=0.05)
    assert found.best == (("compiled",) if settles else ())


def test_what_was_not_confirmed_is_not_called_no_help(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waiting(clock, 5.0)
    plant(monkeypatch, lever("half", wait.shorter(0.5)))
    step, _ = training(pause=wait)
    found = perfnb.try_levers(step, levers=["half"], budget_s=110)
    assert found.table.loc["half", "verdict"] == "faster"
    assert found.best == ()
    assert "half could not be confirmed within this budget: in one measurement, it makes the step faster" in str(found)
    once = perfnb.try_levers(step, levers=["half"], budget_s=300, confirm=False)
    assert "half: makes the step faster, but not confirmed (confirm=False)" in repr(once)
    assert once.best == ("half",)


def test_levers_that_could_not_be_timed_are_told_which_budget_would_do(
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
    plant(monkeypatch, lever("half", switching_slowly))
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


@pytest.mark.deep
def test_a_step_that_does_not_repeat_itself_blames_no_lever() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        (model(torch.ones(2, 4)) * (1 + time.perf_counter_ns() % 1000)).sum().backward()

    found = perfnb.try_levers(step, levers=["threads", "autocast"], budget_s=60)
    assert set(found.table["values"]) == {"not checked"}
    assert "the step is not reproducible" in str(found)
    assert measure_yardstick(find_subject(step, None, {"model": model})).repeats is False


def test_arguments_that_cannot_work_are_refused_at_once() -> None:
    step, _ = training()
    with pytest.raises(ValueError, match=r"Did you mean gc_freeze\?"):
        perfnb.try_levers(step, levers="gc_freze")
    with pytest.raises(TypeError, match="can be iterated only once"):
        perfnb.try_levers(lambda batch: step(), (batch for batch in range(3)))
    assert list(perfnb.try_levers(step, levers="gc_freeze", budget_s=60).table.index) == ["gc_freeze"]


@pytest.mark.deep
def test_a_short_step_is_tried_in_a_small_budget(clock: FakeClock) -> None:
    step, _ = training(pause=Waiting(clock, 0.001))
    table = perfnb.try_levers(step, budget_s=60).table
    assert (table["verdict"] != "not tried").sum() >= 3


@pytest.mark.deep
def test_the_budget_that_would_do_is_named(clock: FakeClock) -> None:
    step, _ = training(pause=Waiting(clock, 1.0))
    names = ["threads", "autocast", "fused_optimizer", "gc_freeze"]
    said = " ".join(perfnb.try_levers(step, levers=names, budget_s=40).table["why_not"])
    enough = int(re.search(r"about (\d+) s would be enough", said)[1])  # type: ignore[index]
    table = perfnb.try_levers(step, levers=names, budget_s=enough).table
    assert "no time left" not in " ".join(table["why_not"])


def test_a_leaked_switch_names_its_lever_and_is_put_back(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()

    @contextmanager
    def leaking(_: Subject) -> Iterator[None]:
        torch.set_num_threads(threads + 1)
        yield

    plant(monkeypatch, lever("leaks", leaking))
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


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_a_model_that_is_compiled_in_place_is_not_compiled_again(clock: FakeClock) -> None:
    model, x, wait = Two(), torch.randn(4, 8), Waiting(clock, 0.1)
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


@pytest.mark.deep
def test_a_model_that_is_too_big_is_judged_by_memory(clock: FakeClock) -> None:
    step, _ = deep(Waiting(clock, 0.1))
    names = ["checkpointing", "gc_freeze"]
    found = perfnb.try_levers(step, goal="memory", levers=names, budget_s=60)
    assert found.table.loc["checkpointing", "memory"] == "less"
    assert found.table["peak_change_bytes"]["checkpointing"] < 0
    assert found.table.loc["gc_freeze", "memory"] == "same"
    assert found.best == ("checkpointing",)
    assert "Keep checkpointing: peak memory " in str(found)
    by_time = perfnb.try_levers(step, levers=["checkpointing"], budget_s=60, confirm=False)
    assert by_time.table.loc["checkpointing", "memory"] == "less"
    assert by_time.best == ()
    assert "None of the levers that were tried makes the step faster" in str(by_time)


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
        ({"loss": 2.5}, True, "quality: loss 2"),
        ({"loss": 2.5, "peak_memory_bytes": 10.0}, False, ""),
        ({"median_ms": 0.001}, False, ""),
        ({"loss": 2.5, "p95_ms": 1e6, "median_ms": 1e6}, True, "quality: loss 2"),
    ],
)
def test_quality_and_limits_are_those_of_a_report(
    limits: Any, keeps: bool, says: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Waiting(clock, 0.1)
    plant(monkeypatch, lever("half", wait.shorter(0.5)))
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


@pytest.mark.deep
def test_dropout_is_checked_under_compile() -> None:
    step, _ = training(middle=nn.Dropout(0.5))
    subject = find_subject(step, None, namespace_of(step))
    compile_ = by_name()["compile"]
    if why := compile_.refuses(subject):
        pytest.skip(why)
    with prepared(compile_, subject, 0.0) as one:
        assert check([one], subject, measure_yardstick(subject)).verdict in (SAME, NOISE)


def test_without_memory_for_float64_the_yardstick_is_the_steps_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = training()
    monkeypatch.setattr("perfnb.remedies.values.free_bytes", lambda kind: 10)
    found = perfnb.try_levers(step, levers=["gc_freeze"], budget_s=60, confirm=False)
    assert "there is not enough memory for" in str(found)
    assert found.table.loc["gc_freeze", "values"] == SAME


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
