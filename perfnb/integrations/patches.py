"""Replace attributes of a trainer's objects during training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Temporarily replace an object's attribute, whether it comes from the object or its class."""
    own, had = vars(owner).get(name), name in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if vars(owner).get(name) is value:  # otherwise, other code has replaced it in the meantime
            if had:
                setattr(owner, name, own)
            else:
                delattr(owner, name)
