"""Placeholder for the result of a notebook cell that has not run yet."""

from __future__ import annotations

from typing import Any, NoReturn

from perfnb.errors import LabError


class FromCell:
    """Stands in for the result of a later cell, and names that cell to whoever uses it too early.

    Its attributes, items and return values are itself, so a check receives it whatever it asks for.

    Parameters
    ----------
    section : str
        The heading above that cell.
    line : str
        A line of that cell, or enough of it to identify the cell.
    """

    def __init__(self, section: str, line: str) -> None:
        self._section, self._line = section, line

    def what_to_run(self) -> str:
        """Which cell to run, as a sentence."""
        return (
            f'First run the cell with "{self._line}" in the section "{self._section}", then this one again. If '
            "that cell failed, its error says why."
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
