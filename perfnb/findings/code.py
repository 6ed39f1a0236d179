"""Lines of Python that a finding proposes, and torch.compile among them: shown only if every name in them is known."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from perfnb.findings.hardware import NEEDS, has_units
from perfnb.recording.text import TEXT

if TYPE_CHECKING:
    from perfnb.findings.facts import Facts

#: Modules that a line may use; it imports those that the user has not.
MODULES = ("torch", "gc", "os")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PARTS = (ast.Expression, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.UnaryOp, ast.USub, ast.Load)


def root_of(name: object) -> str | None:
    """The variable that a user's name for something starts with: ``nets`` of ``nets['a'].body``.

    ``None`` if the name may not stand in a line of Python: it may hold nothing but attributes and constant keys.
    """
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return None
    try:
        tree = ast.parse(name, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    plain = all(isinstance(node, _PARTS) for node in ast.walk(tree)) and not isinstance(tree.body, ast.Constant)
    return found[0] if plain and len(found) == 1 else None


def shown(line: str, known: Collection[str]) -> str:
    """A line with the imports that it needs; empty if it uses a name that is neither known nor bound in it."""
    missing = dict.fromkeys(_free(ast.parse(line), set(known)))
    if not missing.keys() <= set(MODULES):
        return ""
    return f"import {', '.join(missing)}; {line}" if missing else line


def _free(tree: ast.Module, bound: set[str]) -> Iterator[str]:
    """The names that a line of simple statements reads before binding them."""
    for statement in tree.body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        inner = [node for node in ast.walk(statement) if isinstance(node, _COMPREHENSIONS)]
        targets = {
            node.id
            for one in inner
            for part in one.generators
            for node in ast.walk(part.target)
            if isinstance(node, ast.Name)
        }
        yield from (node.id for node in names if isinstance(node.ctx, ast.Load) and node.id not in bound | targets)
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)} - targets


def compiling(facts: Facts, layers: Sequence[str], mode: str = "") -> tuple[str, str]:
    """What to know before compiling the model that the first of some layers belongs to, and the line that compiles it.

    The line is empty if it would not apply, because torch.compile replaces only a model's own call, or if no variable
    is known to hold the model.
    """
    modules = facts.recording.modules
    layer = layers[0] if layers else None
    root = facts.root(layer)
    compiled = modules.loc[modules["compiled"].fillna(False).astype(bool), "name"].astype(TEXT)
    if any(name == root or name.startswith(f"{root}.") for name in compiled):
        return " The model is already compiled, at least in part: look at what is left outside.", ""
    if facts.gpu is not None and has_units(facts.recording, "torch.compile") is False:
        need = ".".join(map(str, NEEDS["torch.compile"]))
        return f" torch.compile does not work on this GPU: it needs compute capability {need} or higher.", ""
    name = facts.variable(layer)
    if name is None:
        return "", ""
    if not facts.is_called(layer):
        return (
            f" torch.compile({name}) alone would compile nothing, because the step does not call {name} itself but one "
            "of its methods or layers: compile the modules it does call in place (module.compile()).",
            "",
        )
    how = f', mode="{mode}"' if mode else ""
    return "", f"{name} = torch.compile({name}{how})"
