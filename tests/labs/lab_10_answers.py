"""Lab 10: what its tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from tests.labs import solved

cell_with = partial(solved.cell_with, lab=10)


def a_reader() -> Any:
    """The Reader of the notebook."""
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(cell_with("class Reader").partition("digits = load_digits()")[0], names)
    torch.manual_seed(3)
    return names["Reader"]()


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def sent_by_ddp(model: nn.parallel.DistributedDataParallel) -> list[int]:
    """A list that gets the bytes of each bucket that DDP sends, in their order."""
    sent: list[int] = []

    def note(_: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    note.__annotations__.clear()  # DDP accepts none that are text
    model.register_comm_hook(None, note)
    return sent


Scaled = tuple[float, float, float]


def efficiency(one: Scaled, several: Scaled, ranks: int, mode: str) -> list[float]:
    work = {"strong": 1, "weak": ranks}[mode]
    ends = ((0, 0), (1, 2), (2, 1))
    return [work * one[mine] / several[other] / ranks for mine, other in ends]


def crossed(one: Scaled, several: Scaled, ranks: int, mode: str) -> list[float]:
    """Low by low and high by high."""
    work = {"strong": 1, "weak": ranks}[mode]
    return [work * mine / other / ranks for mine, other in zip(one, several, strict=True)]


def ring(parameters: int, ranks: int, times: int) -> float:
    """By following the pieces: in both rounds, each rank passes on all pieces but one."""
    piece = 4 * parameters / ranks
    return times * sum(piece for _ in range(2) for _ in range(ranks - 1))


def buckets(sizes: Sequence[float], full: float) -> list[float]:
    found: list[list[float]] = [[]]
    for size in sizes[::-1]:
        if sum(found[-1]) >= full:
            found.append([])
        found[-1].append(size)
    return [sum(each) for each in found]


def never_above(sizes: Sequence[float], full: float) -> list[float]:
    found: list[float] = [0]
    for size in sizes[::-1]:
        if found[-1] and found[-1] + size > full:
            found.append(0)
        found[-1] += size
    return found


def only_above(sizes: Sequence[float], full: float) -> list[float]:
    return buckets(sizes, full + 1e-9)


def without_rest(sizes: Sequence[float], full: float) -> list[float]:
    return [each for each in buckets(sizes, full) if each >= full]


def loss_of(model: Any, images: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(model(images).flatten(0, 1), targets.flatten())


def a_step(
    *,
    forward: Callable[[int, int], bool] = lambda place, count: place < count - 1,
    divided: bool = True,
    zeroed: bool = True,
    updates: Callable[[int, int], bool] = lambda place, count: place == count - 1,
    backward: bool = False,
) -> Callable[..., None]:
    """A step with `no_sync` around the passes of these parts, or with ``backward`` around the backward passes only."""

    def step(model: Any, optimizer: Any, parts: Any) -> None:
        if zeroed:
            optimizer.zero_grad()
        for place, part in enumerate(parts):
            quiet = forward(place, len(parts))
            with model.no_sync() if quiet and not backward else nullcontext():
                loss = loss_of(model, *part) / (len(parts) if divided else 1)
                with model.no_sync() if quiet and backward else nullcontext():
                    loss.backward()
            if updates(place, len(parts)):
                optimizer.step()

    return step


def zeroed_at_the_end(model: Any, optimizer: Any, parts: Any) -> None:
    a_step(zeroed=False)(model, optimizer, parts)
    optimizer.zero_grad()


def summed(model: Any, optimizer: Any, parts: Any) -> None:
    """One backward pass for all parts."""
    optimizer.zero_grad()
    (sum(loss_of(model, *part) for part in parts) / len(parts)).backward()
    optimizer.step()


def early(model: Any, optimizer: Any, parts: Any) -> None:
    """The update before the last backward pass."""
    optimizer.zero_grad()
    for place, part in enumerate(parts):
        if place == len(parts) - 1:
            optimizer.step()
        with model.no_sync() if place < len(parts) - 1 else nullcontext():
            (loss_of(model, *part) / len(parts)).backward()


Spans = Sequence[tuple[float, float]]


def exposed(computing: Spans, sending: Spans) -> float:
    """By looking at each moment between two ends."""
    ends = sorted({end for span in (*computing, *sending) for end in span})

    def inside(spans: Spans, at: float) -> bool:
        return any(start < at < end for start, end in spans)

    pairs = [(a, b, (a + b) / 2) for a, b in itertools.pairwise(ends)]
    return sum(b - a for a, b, at in pairs if inside(sending, at) and not inside(computing, at))


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)
