"""A bench of two steps that does not run them, for studies whose measurements are replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class IdleBench:
    conditions = SimpleNamespace(facts="facts")

    def __init__(self, steps: list[Any], progress: object) -> None:
        assert len(steps) == 2

    def __enter__(self) -> IdleBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass
