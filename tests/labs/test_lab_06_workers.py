"""Lab 6, workers and files: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from notebooks.labs import build
from perfnb.labs import lab_06
from perfnb.labs.exercise import Facts
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import an_ab_test, expect, hint, said_of
from tests.labs.lab_06_answers import Loader, Parsed, Text, at_once
from tests.labs.planted import Clock, plant


def make_loader(dataset: Any, batch_size: int, make_ms: float, use_ms: float, **options: Any) -> Loader:
    usual = {"shuffle": True, "num_workers": math.ceil(make_ms / use_ms), "persistent_workers": True}
    return DataLoader(dataset, batch_size, **usual | options)


HELD: list[Any] = []


def held(*given: Any) -> Loader:
    HELD.append(make_loader(*given))
    return HELD[-1]


def with_options(**options: Any) -> Callable[..., Loader]:
    return lambda *given: make_loader(*given, **options)


@pytest.mark.slow
def test_enough_workers() -> None:
    assert hint("6.6", make_loader) == ""
    assert lab_06.processes() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"), [(with_options(persistent_workers=False), "What keeps them"), (held, "still running")]
)
def test_workers_too_few_too_many_or_left(monkeypatch: pytest.MonkeyPatch, answer: Any, says: str) -> None:
    monkeypatch.setattr(lab_06, "PACES", ((11.0, 6.0),))
    monkeypatch.setattr(lab_06, "TO_END_S", 0.3 if answer is held else 10.0)

    assert says in hint("6.6", answer)

    HELD.clear()
    gc.collect()
    monkeypatch.setattr(lab_06, "TO_END_S", 10.0)
    assert lab_06.processes_left(set()) == 0


def test_what_is_measured_of_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processes: what two workers would make, in another order in the second epoch."""
    epochs: list[int] = []
    me = os.getpid()

    class TwoWorkers:
        def __init__(self, dataset: Any, batch_size: int, make_ms: float, use_ms: float) -> None:
            assert (len(dataset), batch_size) == (72, 8)
            assert dataset[5] == (5, me)

        def __iter__(self) -> Iterator[Any]:
            epochs.append(0)
            first = len(epochs) % 2
            return iter([(torch.tensor([place, 7]), torch.tensor([pid, me])) for place, pid in ((first, 12), (4, 11))])

    alive = [{1}, {1, 2, 3}, {1, 3}, {1, 3}, {1, 3}, {1, 3}]
    monkeypatch.setattr(lab_06, "PACES", ((11.0, 6.0),))
    monkeypatch.setattr(lab_06, "time", Clock())
    monkeypatch.setattr(lab_06, "TO_END_S", 0.12)
    monkeypatch.setattr(lab_06, "processes", lambda: alive.pop(0))

    (case,) = exercise_of("6.6").measure(TwoWorkers)["cases"]

    assert case == {
        "pace": [11.0, 6.0],
        "rows": [[1, 7, 4, 7], [0, 7, 4, 7]],
        "batches": [2, 2],
        "workers": [[11, 12], [11, 12]],
        "left": 1,  # looked for at 0, 0.05, 0.1 and 0.15 s
    }
    assert len(alive) == 1


def test_what_makes_no_loader() -> None:
    assert "Return a loader" in hint("6.6", lambda *given: None)
    assert "pair of tensors" in hint("6.6", lambda *given: [1, 2])


class FromFile:
    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return len(np.load(self.path, mmap_mode="r"))

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.tensor(np.load(self.path, mmap_mode="r")[place])


class OpenedLater(FromFile):
    """Opens the file at the first sample."""

    rows: Any = None

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.rows is None:
            self.rows = np.load(self.path, mmap_mode="r")
        return torch.tensor(self.rows[place])


class ReadWhole(FromFile):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.rows = np.load(path)

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.tensor(self.rows[place])


class HeldMap(ReadWhole):
    def __init__(self, path: str) -> None:
        super(ReadWhole, self).__init__(path)
        self.rows = np.load(path, mmap_mode="r")


class InTheMap(FromFile):
    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.path, mmap_mode="r")[place])


class InTheFile(FromFile):
    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.path, mmap_mode="r+")[place])


class Remembered(FromFile):
    """Gives the same tensor again."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.known: dict[int, torch.Tensor] = {}

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.known.setdefault(place, super().__getitem__(place))


class Halves(FromFile):
    def __getitem__(self, place: int) -> torch.Tensor:
        return super().__getitem__(place).half()


class Locked(FromFile):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.lock = threading.Lock()


class Unlengthy:
    def __init__(self, path: str) -> None:
        self.path = path

    def __getitem__(self, place: int) -> None:
        return None


@pytest.fixture
def _a_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_06, "FILE", (2048, 512))
    monkeypatch.setattr(lab_06, "MOST_BYTES", 1 << 20)


@pytest.mark.slow
def test_out_of_a_file() -> None:
    assert hint("6.7", OpenedLater) == ""


@pytest.mark.usefixtures("_a_small_file")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ReadWhole, "by default"),
        (HeldMap, "is pickled with all"),
        (InTheMap, "read-only"),
        (InTheFile, "memory of its own"),
        (Remembered, "memory of its own"),
        (Halves, "float32 tensor"),
        (Locked, "pickle"),
        (Unlengthy, "no length yet"),
        (FromFile("x"), "function itself"),
    ],
)
def test_what_takes_too_much_or_gives_something_else(answer: Any, says: str) -> None:
    assert says in hint("6.7", answer)


@pytest.mark.usefixtures("_a_small_file")
def test_a_read_only_map_is_noticed_each_time() -> None:
    """Although torch usually warns of it only once."""
    for _ in range(2):
        assert "read-only" in hint("6.7", InTheMap)


def a_test(**facts: Any) -> Any:
    return an_ab_test(**{"ratio": 0.6, "ratio_ci": (0.55, 0.65), "turns": 4} | facts)


@pytest.mark.parametrize(
    ("speedup", "shown", "test", "says"),
    [
        (1.667, True, a_test(), ""),
        (1.667, True, a_test(turns=1), "single turns"),
        (1.667, True, 0.6, "Pass the test"),
        ("fast", True, a_test(), "must be a number"),
        (1.667, "yes", a_test(), "True or False"),
    ],
)
def test_a_speed_up_in_blocks(speedup: Any, shown: Any, test: Any, says: str) -> None:
    expect("6.8", says, {"speedup": speedup, "shown": shown}, test=test)


def test_facts_hold_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a teacher can judge them again."""
    plant(monkeypatch, 10.0, 2.0)

    def facts_of(number: str, answer: Any, **evidence: Any) -> Facts:
        return exercise_of(number).measure(answer, **evidence)

    every: Iterable[tuple[str, Facts]] = (
        ("6.3", facts_of("6.3", Parsed, slow=Text)),
        ("6.5", facts_of("6.5", at_once)),
        ("6.7", facts_of("6.7", FromFile)),
    )
    assert {number: said_of(number, facts) for number, facts in every} == {"6.3": "", "6.5": "", "6.7": ""}


def test_the_picture_of_the_night_is_as_the_text_has_it() -> None:
    """Planted: 60 ms to fetch a batch and 25 ms to use it; the law of 6.6 holds in what is drawn."""
    text = build.built()[build.HERE / "06_feeding_the_model.ipynb"]
    (cell,) = [
        "".join(cell["source"]) for cell in json.loads(text)["cells"] if "def at_work(" in "".join(cell["source"])
    ]
    names: dict[str, Any] = {"plt": SimpleNamespace(subplots=lambda **_: (None, MagicMock()), show=lambda: None)}
    with suppress(ValueError):  # a picture that is not drawn has no legend
        exec(cell, names)
    at_work = names["at_work"]

    def ends(workers: int, make_ms: float = 60, use_ms: float = 25) -> list[float]:
        return [end for who, what, _, end in at_work(workers, make_ms, use_ms, 8) if (who, what) == ("model", "use")]

    assert ends(0) == [85.0 * number for number in range(1, 9)]
    assert ends(3) == ends(4) == [60 + 25.0 * number for number in range(1, 9)]
    for workers in (1, 2, 3):
        times = ends(workers, make_ms=40, use_ms=10)
        assert times[-1] - times[-1 - workers] == pytest.approx(max(40, 10 * workers))
