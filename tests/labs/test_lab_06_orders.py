"""Lab 6, one index for a batch: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from perfnb.labs import lab_06
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import hint
from tests.labs.lab_06_answers import at_once
from tests.labs.planted import plant


class ByHand:
    """Batches from a permutation of the rows."""

    def __init__(self, dataset: Any, batch_size: int, *, anew: bool = True, last: bool = True) -> None:
        self.dataset, self.batch_size, self.last = dataset, batch_size, last
        self.order = None if anew else torch.randperm(len(dataset))

    def rows(self) -> torch.Tensor:
        return torch.randperm(len(self.dataset)) if self.order is None else self.order

    def __iter__(self) -> Iterator[Any]:
        for rows in self.rows().split(self.batch_size):
            if self.last or len(rows) == self.batch_size:
                yield self.dataset[rows]


class FixedBatches(ByHand):
    """The batches are shuffled, and the rows in each, but their rows are the same."""

    def rows(self) -> torch.Tensor:
        full = len(self.dataset) // self.batch_size
        batches = torch.arange(len(self.dataset)).split(self.batch_size)
        order = [*torch.randperm(full).tolist(), *range(full, len(batches))]
        return torch.cat([batches[each][torch.randperm(len(batches[each]))] for each in order])


class Torn(ByHand):
    """Shuffles rows and labels each for itself."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield x, y[torch.randperm(len(y))]


class InOrder(ByHand):
    def rows(self) -> torch.Tensor:
        return torch.arange(len(self.dataset))


@pytest.mark.slow
def test_orders_drawn_anew_are_taken_for_that() -> None:
    """Many times over: a right answer must not be refused by chance."""
    generator = torch.Generator().manual_seed(0)
    for rows, size in (lab_06.TAKEN, (lab_06.ASKED, lab_06.ASKED_BATCH)):
        for _ in range(50):
            epochs = [torch.randperm(rows, generator=generator).tolist() for _ in range(lab_06.DRAWN)]
            lab_06.judge_orders(epochs, rows, size)


@pytest.fixture(autouse=True)
def _a_fifth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes a fifth of the usual loader's time."""
    plant(monkeypatch, 10.0, 2.0)
    monkeypatch.setattr(lab_06, "TIMED", (64, 16))


@pytest.mark.parametrize("answer", [at_once, ByHand])
def test_one_index_for_a_batch(answer: Any) -> None:
    assert hint("6.5", answer) == ""


def test_rows_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, 10.0, 10.0)

    assert "still taken one by one" in hint("6.5", lambda data, size: DataLoader(data, size, shuffle=True))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (InOrder, "shuffle them"),
        (lambda data, size: ByHand(data, size, anew=False), "same order as an earlier one"),
        (FixedBatches, "share a batch again"),
        (lambda data, size: ByHand(data, size, last=False), "224 samples, 224 of them different; each of the 250"),
        (lambda data, size: ByHand(data, 2 * size), "batch_size was 32"),
        (Torn, "match"),
        (lambda data, size: iter(ByHand(data, size)), "later epoch is empty"),
        (lambda data, size: [data.tensors[0]], "pair of tensors"),
        (lambda data, size: [(data.tensors[0], data.tensors[0])], "needs one row per sample"),
        (lambda data, size: None, "Return a loader"),
    ],
)
def test_batches_that_are_not_the_same(answer: Any, says: str) -> None:
    assert says in hint("6.5", answer)


@pytest.mark.parametrize("answer", [Torn, lambda data, size: ByHand(data, size, last=False)])
def test_a_loader_with_wrong_rows_is_not_timed(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(lab_06, "time_ratio", lambda *_: pytest.fail("It was timed."))
    assert "ratio" not in exercise_of("6.5").measure(answer)
