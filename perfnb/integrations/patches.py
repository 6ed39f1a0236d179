"""Replace attributes of a trainer's objects for as long as it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object its own attribute in place of its class's, or of the one that it has."""
    own, had = vars(owner).get(name), name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if vars(owner).get(name) is value:  # otherwise somebody else has replaced it since
            if had:
                setattr(owner, name, own)
            else:
                delattr(owner, name)
