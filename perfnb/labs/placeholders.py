"""What stands for the result of a notebook's cell until that cell has run."""

from __future__ import annotations

from typing import Any, NoReturn

from perfnb.errors import LabError


class FromCell:
    """Stands for what a cell further down makes, and says which cell that is to whoever uses it too early.

    Its attributes, its items and what it returns are itself, so that a check gets it whatever it is asked for.

    Parameters
    ----------
    section : str
        The heading that the cell stands under.
    line : str
        A line of the cell, or as much of it as tells it from other cells.
    """

    def __init__(self, section: str, line: str) -> None:
        self._section, self._line = section, line

    def what_to_run(self) -> str:
        """The sentence for the reader."""
        return (
            f'First run the cell with "{self._line}" in the section "{self._section}", then this one again. If that '
            "cell failed, its error says why."
        )

    def __repr__(self) -> str:
        return self.what_to_run()

    def __getattr__(self, name: str) -> FromCell:
        if name.startswith("_"):  # asked by a notebook for a way to show this, or by Python for a protocol
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> FromCell:
        return self

    def __call__(self, *_: Any, **__: Any) -> FromCell:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __iter__(self) -> NoReturn:
        raise LabError(self.what_to_run())

    __len__ = __bool__ = __float__ = __iter__
