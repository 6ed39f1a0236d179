"""A cell's body as a step: compiled once, run in the user's namespace, as IPython's ``%%time`` runs it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

_BATCH = "__perfnb_batch__"


def compile_body(shell: Any, source: str) -> CodeType:
    """Compile a cell's body; IPython syntax in it (``!``, ``%time``, ``?``) means what it means in a cell.

    Raises
    ------
    UsageError
        If the body awaits at its top level, which a synchronous magic cannot run.
    SyntaxError
        If it is no Python.
    """
    transformed = shell.transform_cell(source)
    number = len(shell.history_manager.input_hist_parsed) - 1  # of the cell that runs now
    name = shell.compile.cache(transformed, number, raw_code=source)
    tree = shell.transform_ast(shell.compile.ast_parse(transformed, filename=name))
    if any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in _top_level(tree)):
        raise UsageError("a profiled step cannot use await at its top level: put the call that awaits into a function.")
    code: CodeType = shell.compile(tree, name, "exec")
    return code


def step_of(body: CodeType, namespace: dict[str, Any], assign: CodeType | None) -> Callable[..., None]:
    """The step: run `body` in `namespace`, after `assign` has bound the batch to the clause's target."""

    def step(*batch: Any) -> None:
        __tracebackhide__ = True
        if assign is not None:
            # The batch's own name never enters the user's namespace.
            bound = {_BATCH: batch[0]}
            exec(assign, namespace, bound)
            del bound[_BATCH]
            namespace.update(bound)
        exec(body, namespace)

    return step


def compile_clause(clause: str, namespace: dict[str, Any]) -> tuple[CodeType, Callable[[], Iterable[Any]]]:
    """``for TARGET in ITERABLE`` as code that binds a batch to the target, and a function that evaluates the iterable.

    The iterable is evaluated anew each time the batches begin again, so that ``enumerate(loader)`` can.

    Raises
    ------
    UsageError
        If the clause is no such thing.
    """
    try:
        tree = ast.parse(f"{clause.strip().rstrip(':')}: pass")
    except SyntaxError as error:
        raise UsageError(f"cannot read {clause!r}: write for TARGET in ITERABLE, as in a for loop.") from error
    loop = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(loop, ast.For):
        raise UsageError(f"cannot read {clause!r}: write for TARGET in ITERABLE, as in a for loop.")
    value = ast.Name(id=_BATCH, ctx=ast.Load())
    binding = ast.Module([ast.Assign(targets=[loop.target], value=value)], type_ignores=[])
    assign = compile(ast.fix_missing_locations(binding), "<the target of %%profile_step>", "exec")
    iterable = compile(ast.Expression(loop.iter), "<the iterable of %%profile_step>", "eval")

    def batches() -> Iterable[Any]:
        __tracebackhide__ = True
        result: Iterable[Any] = eval(iterable, namespace)
        return result

    return assign, batches


def _top_level(tree: ast.AST) -> Iterable[ast.AST]:
    """The nodes of a tree that run when it runs, not inside functions that it defines."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _top_level(child)
