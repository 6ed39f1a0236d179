"""Lines of Python that a finding proposes: shown only where each name in them is known."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

#: Modules that a line may use; where the user has not imported one, the line does.
MODULES = ("torch", "gc", "os")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PARTS = (ast.Expression, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.UnaryOp, ast.USub, ast.Load)


def root_of(name: object) -> str | None:
    """The variable with which a user's name for something begins: ``nets`` of ``nets['a'].body``.

    ``None`` where it is no name that may stand in a line of Python: only attributes and constant keys lead further.
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
    """A line with the imports that it needs; empty where it uses a name that is neither known nor bound in it."""
    missing = dict.fromkeys(_free(ast.parse(line), set(known)))
    if not missing.keys() <= set(MODULES):
        return ""
    return f"import {', '.join(missing)}; {line}" if missing else line


def _free(tree: ast.Module, bound: set[str]) -> Iterator[str]:
    """The names that a line of simple statements reads before they are bound."""
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
