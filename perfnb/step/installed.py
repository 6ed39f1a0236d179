"""Base class for everything that a measurement installs temporarily."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class Installed(ABC):
    """Context manager that removes everything it has installed, even if the installation fails halfway."""

    _installed: ExitStack

    @abstractmethod
    def _install(self, stack: ExitStack) -> None:
        """Install everything, and register its removal with `stack`."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._install(stack)
            self._installed = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._installed.close()
