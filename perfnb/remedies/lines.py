"""Write the lines of code that make a lever permanent, using the user's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.findings.proposed_code import root_of
from perfnb.remedies.subject import Subject


def is_named(name: str | None, value: Any) -> bool:
    """Return whether a name is an expression in the user's code rather than just a class name.

    It can be a variable, an attribute or an item.
    """
    return name != type(value).__name__ and root_of(name) is not None


def for_models(*lines: str) -> Callable[[Subject], list[str]]:
    """Return a function that writes these lines for each model, with the model's name for ``{0}``.

    Lines without ``{0}`` appear once, at the end. If a model is not in any variable, its lines are comments.
    """

    def written(line: str, name: str, model: Any) -> str:
        kind = type(model).__name__
        return line.format(name) if is_named(name, model) else f"# with your {kind}: {line.format(kind.lower())}"

    def code(subject: Subject) -> list[str]:
        each = [written(line, name, model) for name, model in subject.models.items() for line in lines if "{0}" in line]
        return each + [line for line in lines if "{0}" not in line and subject.models]

    return code
