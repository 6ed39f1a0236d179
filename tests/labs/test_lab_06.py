"""Lab 6: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from perfnb import profile_step
from perfnb.labs import lab_06
from tests.labs.judging import expect, hint
from tests.labs.lab_06_answers import Loader, Parsed, Text
from tests.labs.planted import Clock, Pool, plant

CLOCK = Clock()


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders and steps of make-believe sleep by a clock that the stopwatches read too."""
    monkeypatch.setattr(lab_06, "time", CLOCK)
    monkeypatch.setattr(lab_06, "ThreadPoolExecutor", Pool(CLOCK))


def timed_ms(work: Callable[[], Any], count: int) -> float:
    began = CLOCK.perf_counter()
    work()
    return (CLOCK.perf_counter() - began) * 1e3 / count


def three_times(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    count, kept = len(loader), next(iter(loader))
    return {
        "together": timed_ms(lambda: [step(batch) for batch in loader], count),
        "loader": timed_ms(lambda: list(loader), count),
        "model": timed_ms(lambda: [step(kept) for _ in range(count)], count),
    }


def holding_on(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    """The batch that is kept comes from an iterator that is kept as well."""
    batches = iter(loader)
    kept = next(batches)
    model = timed_ms(lambda: [step(kept) for _ in range(len(loader))], len(loader))
    return three_times(loader, step) | {"model": model}


def by_difference(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    times = three_times(loader, step)
    return times | {"loader": times["together"] - times["model"]}


def by_halves(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    """One pass, with a stopwatch around each half of its loop, which never asks for the end of the pass."""
    times = {"loader": 0.0, "model": 0.0}
    batches = iter(loader)
    for _ in range(len(loader)):
        began = CLOCK.perf_counter()
        batch = next(batches)
        between = CLOCK.perf_counter()
        step(batch)
        times["model"] += (CLOCK.perf_counter() - between) * 1e3 / len(loader)
        times["loader"] += (between - began) * 1e3 / len(loader)
    return times | {"together": sum(times.values())}


def half_a_pass(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    for _, batch in zip(range(len(loader) // 2), loader, strict=False):
        step(batch)
    return {"together": 17.0, "loader": 5.0, "model": 12.0}


def to_the_last_batch(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
    """The time of `together` ends with the last step, and the iterator is kept."""
    times, batches = three_times(loader, step), iter(loader)
    together = timed_ms(lambda: [step(next(batches)) for _ in range(len(loader))], len(loader))
    return times | {"together": together}


def remembering() -> Callable[..., Any]:
    """Measures once, and says the same of every loader and step."""
    known: list[dict[str, float]] = []

    def answer(loader: Loader, step: Callable[[Any], Any]) -> dict[str, float]:
        known.append(three_times(loader, step))
        return known[0]

    return answer


@pytest.mark.usefixtures("_clock")
def test_a_sleep_is_timed() -> None:
    assert lab_06.slept(30.0) == pytest.approx(30.001, abs=1e-4)  # a look at the clock takes 1 µs


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("answer", [three_times, holding_on, to_the_last_batch])
def test_three_stopwatches(answer: Any) -> None:
    assert hint("6.1", answer) == ""


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_difference, "loader is wrong"),
        (by_halves, "loader is wrong for a loader that prepares the next batch during the step"),
        (half_a_pass, "the step did not run once for each batch in a pass of the loader"),
        (remembering(), "is wrong for a loader that prepares the next batch during the step"),
    ],
)
def test_other_stopwatches(answer: Any, says: str) -> None:
    assert says in hint("6.1", answer)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda loader, step: {"together": 17, "loader": 5, "model": 12}, "together was not measured"),
        ({"together": 17, "loader": 5, "model": 12}, "function itself"),
    ],
)
def test_code_that_is_not_a_stopwatch_gets_a_hint(answer: Any, says: str) -> None:
    assert says in hint("6.1", answer)


def input_bound(**times: float) -> Any:
    medians = {"together": 10.0, "loader": 9.0, "model": 2.0, "rest": 0.5, "iteration": 8.0} | times
    return SimpleNamespace(saved_ms=8.0, times=pd.DataFrame({"median_ms": medians}))


@pytest.mark.parametrize(
    ("perfect_loader", "perfect_model", "says"),
    [(5.0, 1.111, ""), (8.0, 1.111, "perfect_loader seems to be how many ms would be saved")],
)
def test_a_perfect_loader(perfect_loader: float, perfect_model: float, says: str) -> None:
    answer = {"perfect_loader": perfect_loader, "perfect_model": perfect_model}
    expect("6.2", says, answer, test=input_bound())


def test_a_test_is_needed() -> None:
    assert "confirm_input_bound" in hint("6.2", {"perfect_loader": 5, "perfect_model": 1}, test=3)


class Lazy(Text):
    """Parses a line when it is first asked for."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines)
        self.known: dict[int, tuple[torch.Tensor, int]] = {}

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if place not in self.known:
            label, *numbers = self.lines[place].split(",")
            self.known[place] = torch.tensor([float(number) for number in numbers]), int(label)
        readings, label = self.known[place]
        return torch.roll(readings, int(torch.randint(len(readings), ()))), label


class Unshifted(Parsed):
    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return self.readings[place], self.labels[place]


class Shared(Parsed):
    """One memory for all data sets."""

    known: list[Any] = []  # noqa: RUF012

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines)
        self.known.extend(self.readings)
        self.readings = self.known


class NoLabel(Parsed):
    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(place)[0]  # type: ignore[return-value]


class Half(Parsed):
    def __len__(self) -> int:
        return super().__len__() // 2


@pytest.mark.parametrize("answer", [Parsed, Lazy])
def test_parsed_once(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    plant(monkeypatch, 10.0, 4.9)

    assert hint("6.3", answer, slow=Text) == ""


def test_parsed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, 10.0, 9.7)

    assert "take 97 % of the original time; get below 50 %" in hint("6.3", Text, slow=Text)


@pytest.mark.parametrize(
    ("answer", "says"), [(Unshifted, "random each time"), (Shared, "other numbers"), (NoLabel, "pair"), (Half, "len()")]
)
def test_samples_that_are_not_the_same(monkeypatch: pytest.MonkeyPatch, answer: Any, says: str) -> None:
    plant(monkeypatch, 10.0, 1.0)
    Shared.known.clear()

    assert says in hint("6.3", answer, slow=Text)


@pytest.mark.slow
def test_copies() -> None:
    """A batch of 4 samples that a loader makes from readings in text is written three times."""
    lines = lab_06.text_lines(32, 256, seed=0)
    model = torch.nn.Linear(256, 1)
    loader = DataLoader(Text(lines), batch_size=4)
    fed = profile_step(lambda batch: model(batch[0]).sum().backward(), loader, model=model, steps=1, flops=False)

    assert hint("6.4", {"batch_bytes": 4096, "written": 3}, profile=fed) == ""


def test_an_order_drawn_meanwhile_is_not_a_copy() -> None:
    """Nor is the batch of the step before."""
    sizes = [4096, 1024, 1024, 2048, 2048, 512, *[1024] * 6, 4096]
    frame = pd.DataFrame({"bytes": sizes, "phase": "data", "start_ns": [-5, *range(len(sizes) - 1)]})

    assert hint("6.4", {"batch_bytes": 4096, "written": 3}, profile=SimpleNamespace(allocations=frame)) == ""


def test_copies_need_a_profile_of_memory() -> None:
    answer = {"batch_bytes": 4096, "written": 3}
    nothing = SimpleNamespace(allocations=pd.DataFrame(columns=["bytes", "phase", "start_ns"]))

    assert "--no-memory" in hint("6.4", answer, profile=nothing)
    assert "--no-memory" in hint("6.4", answer, profile=3)
