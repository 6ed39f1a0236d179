"""Lab 9: what its tests share."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from notebooks.labs import build


def cell_with(words: str) -> str:
    """The cell of the solved notebook that has these words."""
    (path,) = [path for path in build.built() if path.name.startswith("09") and path.parent.name == "solutions"]
    (found,) = [cell for cell in json.loads(build.built()[path])["cells"] if words in "".join(cell["source"])]
    return "".join(found["source"])


def a_reader() -> Any:
    """The Reader of the notebook, with other weights and images of characters."""
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn}
    exec(cell_with("class Reader").partition("digits = load_digits()")[0], names)
    torch.manual_seed(3)
    return names["Reader"](torch.rand(10, 64)).eval()


def queue(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Latencies, by the definition: a card starts when it is there and all before it are done."""
    ends: list[float] = []
    for arrived, service in zip(arrivals, services, strict=True):
        ends.append(max([arrived, *ends]) + service)
    return [end - arrived for end, arrived in zip(ends, arrivals, strict=True)]


def load_test(service: Any, due: Sequence[float]) -> list[float]:
    found = []
    for moment in due:
        service.wait_until(moment)
        service.serve()
        found.append(service.now() - moment)
    return found


def sent(service: Any, due: Sequence[float]) -> list[float]:
    """Coordinated omission."""
    found = []
    for moment in due:
        service.wait_until(moment)
        began = service.now()
        service.serve()
        found.append(service.now() - began)
    return found


def lateness(service: Any, due: Sequence[float]) -> list[float]:
    found = []
    for moment in due:
        service.wait_until(moment)
        found.append(service.now() - moment)
        service.serve()
    return found


def too_early(service: Any, due: Sequence[float]) -> list[float]:
    """The clock starts before the wait."""
    found = []
    for moment in due:
        began = service.now()
        service.wait_until(moment)
        service.serve()
        found.append(service.now() - began)
    return found


def by_own_clock(service: Any, due: Sequence[float]) -> list[float]:
    """Times on the clock of this computer."""
    found = []
    for moment in due:
        service.wait_until(moment)
        began = time.perf_counter()
        service.serve()
        found.append(time.perf_counter() - began)
    return found


def since_own_start(service: Any, due: Sequence[float]) -> list[float]:
    found = []
    for moment in due:
        service.wait_until(moment)
        service.serve()
        found.append(time.perf_counter() - moment)
    return found


def unpaced(service: Any, due: Sequence[float]) -> list[float]:
    found = []
    for moment in due:
        service.serve()
        found.append(service.now() - moment)
    return found


def moments(service: Any, due: Sequence[float]) -> list[float]:
    found = []
    for moment in due:
        service.wait_until(moment)
        service.serve()
        found.append(service.now())
    return found


@torch.inference_mode()
def cached(reader: Any, card: Any, count: int) -> Iterator[int]:
    new, cache = card, None
    for _ in range(count):
        scores, cache = reader(new, cache)
        character = int(scores[0, -1].argmax())
        yield character
        new = reader.printed[character].reshape(1, 1, 64)


@torch.inference_mode()
def first_place(reader: Any, card: Any, count: int) -> Iterator[int]:
    new, cache = card, None
    for _ in range(count):
        scores, cache = reader(new, cache)
        character = int(scores[0, 0].argmax())
        yield character
        new = reader.printed[character].reshape(1, 1, 64)


#: Without ``inference_mode``.
with_gradients = inspect.unwrap(cached)


@torch.inference_mode()
def as_tensors(reader: Any, card: Any, count: int) -> Iterator[Any]:
    """The characters as tensors; the card and the cache by name."""
    new, cache = card, None
    for _ in range(count):
        scores, cache = reader(images=new, cache=cache)
        character = scores[0, -1].argmax()
        yield character
        new = reader.printed[character][None, None]


def largest(model: Any, other: Any, inputs: Sequence[Any]) -> Any:
    before, after = torch.stack([model(x) for x in inputs]), torch.stack([other(x) for x in inputs])
    return (after - before).abs().max() / before.abs().max()
