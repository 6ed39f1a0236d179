"""`Loadable`: a kind of file or folder that `perfnb.load` opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Loadable:
    """A kind of file or folder that `perfnb.load` opens.

    Attributes
    ----------
    recognise : callable
        Function that checks whether a path is of this kind, based on its content.
    load : callable
        Function that returns the public object, given the path, the `Limits`, and the executor for reading several
        files if the user passed one.
    has_steps : bool
        Whether `load` also accepts the name of the range that marks the steps, or ``None``.
    """

    recognise: Callable[[Path], bool]
    load: Callable[..., Any]
    has_steps: bool = False
