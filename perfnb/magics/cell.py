"""A cell's body as a step: compiled once, run in the user's namespace, as IPython's ``%%time`` runs it."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

_BATCH = "__perfnb_batch__"
#: An option behind a clause, where none belongs.
_OPTION = re.compile(r"\s--[a-z]")


def compile_body(shell: Any, source: str) -> CodeType:
    """Compile a cell's body; IPython syntax in it (``!``, ``%time``, ``?``) means what it means in a cell.

    Raises
    ------
    UsageError
        If the body is empty, is no Python, or awaits at its top level, which a synchronous magic cannot run.
    """
    code: CodeType = _compiled(shell, source, ("step", "profile"), lambda tree, name: shell.compile(tree, name, "exec"))
    return code


def run_body(shell: Any, source: str) -> Callable[[], Any]:
    """Compile a cell's body to a function that runs it once, as a cell, and returns its last expression's value.

    Raises
    ------
    UsageError
        As `compile_body`.
    """

    def parts(tree: ast.Module, name: str) -> tuple[CodeType, CodeType | None]:
        last = tree.body[-1]
        if not isinstance(last, ast.Expr):
            return shell.compile(tree, name, "exec"), None
        value = shell.compile(ast.Expression(last.value), name, "eval")
        return shell.compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec"), value

    body, value = _compiled(shell, source, ("cell", "watch"), parts)

    def run() -> Any:
        __tracebackhide__ = True
        exec(body, shell.user_ns)
        return None if value is None else eval(value, shell.user_ns)

    return run


def _compiled(shell: Any, source: str, words: tuple[str, str], compiled: Callable[[ast.Module, str], Any]) -> Any:
    """What `compiled` makes of a cell's body, given its tree and the name of its file; `words` say what it is for."""
    what, verb = words
    try:
        transformed = shell.transform_cell(source)
        name = shell.compile.cache(transformed, _cell_number(shell), raw_code=source)
        tree = shell.transform_ast(shell.compile.ast_parse(transformed, filename=name))
        if not tree.body:
            raise UsageError(f"the {what} is empty: there is nothing to {verb}.")
        if any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in _top_level(tree)):
            raise UsageError(f"the {what} cannot use await at its top level: put the call that awaits into a function.")
        return compiled(tree, name)
    except SyntaxError as error:
        # As a UsageError: IPython would list the frames of the magic above the one line that matters.
        error.filename = f"Cell In[{_cell_number(shell)}]"
        said = "".join(traceback.format_exception_only(error)).rstrip()
        raise UsageError(f"the {what} is no Python.\n{said}") from None


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


def compile_clause(shell: Any, clause: str) -> tuple[CodeType, Callable[[], Iterable[Any]]]:
    """``for TARGET in ITERABLE`` as code that binds a batch to the target, and a function that evaluates the iterable.

    The iterable is evaluated anew each time the batches begin again, so that ``enumerate(loader)`` can.

    Raises
    ------
    UsageError
        If the clause is no such thing.
    """
    how = "options go before for" if _OPTION.search(clause) else "write for TARGET in ITERABLE, as in a for loop"
    refusal = UsageError(f"cannot read {clause!r}: {how}.")
    name = shell.compile.cache(clause, _cell_number(shell))  # so that an error in it shows the clause
    try:
        tree = ast.parse(f"{clause.strip().rstrip(':')}: pass")
        loop = tree.body[0] if len(tree.body) == 1 else None
        if not isinstance(loop, ast.For):
            raise refusal
        value = ast.Name(id=_BATCH, ctx=ast.Load())
        binding = ast.Module([ast.Assign(targets=[loop.target], value=value)], type_ignores=[])
        assign = compile(ast.fix_missing_locations(binding), name, "exec")
        iterable = compile(ast.Expression(loop.iter), name, "eval")
    except SyntaxError:
        raise refusal from None

    def batches() -> Iterable[Any]:
        __tracebackhide__ = True
        result: Iterable[Any] = eval(iterable, shell.user_ns)
        if not hasattr(type(result), "__iter__") and not hasattr(type(result), "__getitem__"):
            raise UsageError(f"{clause!r} gives no batches: {type(result).__name__} is not iterable.")
        return result

    return assign, batches


def _cell_number(shell: Any) -> int:
    """The number of the cell that runs now, also where it is not kept in the history."""
    running = shell.displayhook.exec_result
    return int(getattr(running, "execution_count", None) or shell.execution_count)


def _top_level(tree: ast.AST) -> Iterable[ast.AST]:
    """The nodes of a tree that run when it runs, not inside functions that it defines."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _top_level(child)
