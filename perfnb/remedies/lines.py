"""The lines that keep a lever, in the user's names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from perfnb.findings.proposed_code import root_of
from perfnb.remedies.lever import Lever
from perfnb.remedies.subject import Subject


def is_named(name: str | None, value: Any) -> bool:
    """Whether a name is an expression of the user's: a variable, an attribute, or an item; not just the class."""
    return name != type(value).__name__ and root_of(name) is not None


def for_models(*lines: str) -> Callable[[Subject], list[str]]:
    """Code with these lines for each model, whose name ``{0}`` stands for; a line without it comes once, at the end.

    Comments where a model is in no variable.
    """

    def written(line: str, name: str, model: Any) -> str:
        kind = type(model).__name__
        return line.format(name) if is_named(name, model) else f"# with your {kind}: {line.format(kind.lower())}"

    def code(subject: Subject) -> list[str]:
        each = [written(line, name, model) for name, model in subject.models.items() for line in lines if "{0}" in line]
        return each + [line for line in lines if "{0}" not in line and subject.models]

    return code


def lines_of(lever: Lever, subject: Subject) -> list[str]:
    """The lines that keep a lever, under a comment that says where its names exist, unless they are global."""
    lines = lever.code(subject)
    function = getattr(subject.step, "__func__", subject.step)
    known = getattr(function, "__globals__", None)
    if known is None or str(getattr(function, "__module__", "")).startswith("perfnb."):
        return lines
    named = [*subject.models, *subject.optimizers, None if subject.loader is None else subject.loader[0]]
    words = {word for line in lines if not line.startswith("#") for word in re.findall(r"\w+", line)}
    roots = {root for name in named if (root := root_of(name)) is not None}
    local = sorted(root for root in roots & words if root not in known)
    if not local:
        return lines
    owner, _, own = str(getattr(function, "__qualname__", "")).rpartition(".<locals>.")
    where = f"inside {owner}, where {own} finds" if owner else f"where {own} finds"
    return [f"# {where} {' and '.join(local)}:", *lines]
