"""Lab 12, the script and its cures: what is planted, what a finding names, and which cures are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from perfnb.labs.lab_12 import FAULTS
from perfnb.labs.ledger import exercise_of
from perfnb.labs.made_night import BOXES, MAYAS, Archive, Work, run_counted, work_of
from tests.labs.judging import expect, hint
from tests.labs.lab_12_answers import Cured, Nightly, OnePass, a_profile

pytestmark = pytest.mark.usefixtures("one_thread")


class Kept(Cured):
    """Keeps all cards, read once before the first step, and their brightness."""

    def __init__(self, archive: Any, seed: int = 0) -> None:
        super().__init__(archive, seed)
        every = [archive.read(number) for number in range(len(archive))]
        self.pixels, self.characters = (np.stack(part) for part in zip(*every, strict=True))
        self.pixels = ((self.pixels - self.pixels.mean()) / self.pixels.std()).astype(np.float32)

    def cards(self) -> Any:
        numbers = torch.randint(len(self.archive), (2,), generator=self.generator).numpy()
        return torch.from_numpy(self.pixels[numbers]), torch.from_numpy(self.characters[numbers])


class Lazy(Cured):
    """The brightness when it is first needed; and tensors in the log."""

    def brightness(self) -> Any:
        if not hasattr(self, "lazy"):
            self.lazy = Nightly.brightness(self)
        return self.lazy

    def step(self) -> Any:
        loss = super().step()
        self.log[-1] = [torch.tensor(loss, requires_grad=True), np.int64(self.log[-1][1])]
        return loss


class OfTheBatch(Cured):
    """The brightness of two cards instead of all."""

    def brightness(self) -> Any:
        pixels = np.stack([self.archive.read(number)[0] for number in range(2)])
        return pixels.mean(), pixels.std()


class Unclipped(Cured):
    def step(self) -> Any:
        pixels, characters = self.cards()
        boxes, wanted = self.padded(self.flickering(pixels), characters)
        loss = self.loss(boxes, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log.append((loss.item(), self.right(boxes, wanted)))
        return loss.item()


class Small:
    """A script whose step takes no time. It reads a card before its first step, and each step adds to the weights."""

    moved, reads, inputs = 1.0, 0, 64
    logged: Any = (1.5, 20)

    def __init__(self, archive: Any, seed: int = 0) -> None:
        self.archive = archive
        self.log: list[Any] = []
        self.reader = torch.nn.Linear(self.inputs, 2, bias=False)
        torch.nn.init.ones_(self.reader.weight)
        archive.read(0)

    @torch.no_grad()
    def step(self) -> None:
        for number in range(self.reads):
            self.archive.read(number)
        self.reader(torch.zeros(2, 5, self.inputs))
        self.reader.weight += self.moved
        self.log.append(self.logged)


class Faster(Small):
    moved, reads, logged = 1.1, 2, [torch.tensor(1.25), np.int64(19)]


class Still(Small):
    moved = 0.0


class Wider(Small):
    inputs, logged = 65, 2.5


def test_what_is_measured_of_two_small_scripts() -> None:
    facts = exercise_of("12.5").measure(Faster, script=Small)

    work = {"steps": 3, "passes": 3, "boxes": 3 * 2 * 5, "longest": 5, "float64": False}
    assert facts["before"] == work | {"reads": 1, "log": [[1.5, 20]] * 3}
    # It continues to 20 steps and keeps reading.
    assert facts["after"] == work | {"reads": 1 + 20 * 2, "log": [[1.25, 19]] * 3}
    assert facts["apart"] == pytest.approx(0.1)
    assert exercise_of("12.5").measure(Small, script=Faster)["apart"] == pytest.approx(0.3 / 3.3)
    assert exercise_of("12.5").measure(Still, script=Small)["apart"] == 1.0
    assert exercise_of("12.5").measure(Small, script=Still)["apart"] is None  # nothing was trained
    wider = exercise_of("12.5").measure(Wider, script=Small)
    assert wider["apart"] is None
    assert wider["after"]["log"] == [[2.5]] * 3
    assert "still Maya's script" in hint("12.5", Small, script=Small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Cured, ""),
        (Kept, ""),
        (Lazy, ""),
        (OfTheBatch, "your cure computes something else"),
        (Unclipped, "changes how it trains"),
    ],
)
def test_cures(answer: Any, words: str) -> None:
    expect("12.5", words, answer, script=Nightly)


@pytest.mark.slow
def test_what_is_planted() -> None:
    """In a step of Maya's script; all of it is gone in the cured one."""
    archive = Archive(400)
    _, work = run_counted(Nightly, archive, 1)
    assert work == MAYAS
    assert work_of(Cured, Archive(12), 3) == Work(3, 12 + 6, 3, 3 * 2 * BOXES, BOXES, float64=False)
    assert FAULTS["reads"][1][0] == work.reads / 2


def test_the_planted_night() -> None:
    """The wanted cards take all four cures."""

    def cards(**cured: Any) -> float:
        return 8 * 3600 / Work(**(vars(MAYAS) | cured)).step_s * 2

    reads, short = {"reads": 2}, {"longest": 128, "boxes": 512}
    once = {"passes": 1, "boxes": 512}
    assert 0.4e6 < cards() < 0.5e6
    assert cards(**reads, float64=False, **once) < 3.3e6
    assert cards(**reads, float64=False, **short) < 3.3e6
    assert cards(**reads, longest=128, passes=1, boxes=256) < 3.3e6
    assert cards(float64=False, longest=128, passes=1, boxes=256) < 3.3e6
    assert cards(**reads, float64=False, longest=128, passes=1, boxes=256) > 3.5e6


def test_the_archive() -> None:
    archive, other = Archive(3), Archive(3, seed=1)
    pixels, characters = archive.read(1)

    assert (len(archive), archive.reads, other.reads) == (3, 1, 0)
    assert (pixels.shape, pixels.dtype, characters.shape) == ((128, 64), np.uint8, (128,))
    assert (pixels == archive.read(1)[0]).all()
    assert (pixels != other.read(1)[0]).any()
    means = [archive.read(number)[0].mean() for number in range(3)]
    assert max(means) > 1.05 * min(means)


@pytest.mark.deep
@pytest.mark.slow
def test_no_rule_names_the_padding() -> None:
    """Whether or not everything else is cured. (What is named is in the notebook's accuracy test.)"""
    for make in (Nightly, OnePass):
        findings = a_profile(make, steps=6, flops=True, memory=True).findings
        said = " ".join(findings[["bottleneck", "evidence", "advice"]].astype(str).to_numpy().ravel())
        assert not any(word in said.casefold() for word in ("padding", "padded", "boxes"))
