"""Levers tried on a plain loop's own steps: the right one is called faster, and the change saves what was promised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import perfnb
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Steps of a run with and without the change, one after the other, so many times.
STEPS, ALTERNATIONS = 120, 5
WINDOW: dict[str, Any] = {"at": 10, "steps": 10, "traced": 1, "memory": False, "flops": False}


class Points(Dataset[tuple[Tensor, int]]):
    """Random points, each of which takes some time to make."""

    def __init__(self, batches: int, each: int, wait_s: float) -> None:
        self._wait_s, made = wait_s, torch.Generator().manual_seed(2)
        self._x = torch.randn(batches * each, 64, generator=made)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        if self._wait_s:
            time.sleep(self._wait_s)
        return self._x[place], place % 10


class Loop:
    """A plain training loop with something slow planted, or with the change that cures it."""

    def __init__(self, planted: str, steps: int, *, cured: bool = False) -> None:
        wide = planted == "threads"
        each, width, layers = (256, 512, 4) if wide else (4, 64, 30)
        torch.set_num_threads((2 if cured else 16) if wide else 1)
        torch.manual_seed(1)
        sizes = [64, *[width] * layers]
        self.model = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes)))
        self.model.append(nn.Linear(width, 10))
        fused = True if cured and planted == "fused_optimizer" else None
        foreach = None if fused else False
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=fused, foreach=foreach)
        slow = planted == "loader_workers"
        workers = 2 if cured and slow else 0
        self.loader: Any = DataLoader(
            Points(steps, each, 0.003 if slow else 0.0), batch_size=each, shuffle=True, num_workers=workers
        )

    def train(self, loader: Any) -> list[float]:
        """Train over a loader; the loss of each step."""
        model, optimizer, losses = self.model, self.optimizer, []
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def seconds(self) -> float:
        """Return the median time from one step to the next, once workers have started."""
        stops: list[float] = []

        def timed() -> Iterator[Any]:
            for batch in self.loader:
                stops.append(time.perf_counter())
                yield batch

        self.train(timed())
        rest = stops[10:]
        return (rest[-1] - rest[0]) / (len(rest) - 1)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("planted", ["loader_workers", "fused_optimizer", "threads"])
def test_the_planted_lever_is_called_faster_and_saves_what_was_promised(planted: str, figure: Figures) -> None:
    slow = Loop(planted, 800)
    loop = perfnb.profiled(slow.loader, try_levers=[planted], **WINDOW)
    slow.train(loop)
    assert loop.run is not None
    [tried] = loop.run.tried
    figure(f"plain loop: {planted} called faster (1 = yes)", tried["verdict"] == "faster", at_least=1)
    low, high = tried["interval"]

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ALTERNATIONS):
        for cured, seconds in times.items():
            seconds.append(Loop(planted, STEPS, cured=cured).seconds())
    by_hand = statistics.median(times[True]) / statistics.median(times[False])
    figure(f"plain loop: {planted}: time of a step by hand / without", by_hand, at_most=1.0)
    figure(f"plain loop: {planted}: by hand / upper end of the promised interval", by_hand / high, at_most=1.0)
    figure(f"plain loop: {planted}: by hand / lower end of the promised interval", by_hand / low, at_least=1.0)


def test_losses_agree_as_closely_as_those_of_one_and_two_threads(figure: Figures) -> None:
    def losses(threads: int, *levers: str) -> Tensor:
        torch.manual_seed(3)
        run = Loop("", 700)
        torch.set_num_threads(threads)
        wanted: Any = list(levers) or False
        return torch.tensor(run.train(perfnb.profiled(run.loader, try_levers=wanted, **WINDOW)))

    one = losses(1)
    apart = {
        name: float((other - one).abs().max())
        for name, other in (("threads", losses(2)), ("levers", losses(1, "threads", "fused_optimizer")))
    }
    rounding = float(torch.finfo(torch.float32).eps * one.max())
    figure(
        "plain loop: losses apart with levers / with two threads",
        apart["levers"] / max(apart["threads"], rounding),
        at_most=10,
    )
