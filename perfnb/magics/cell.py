"""Compile a cell's body once as a step, and run it in the user's namespace, like IPython's ``%%time``."""

from __future__ import annotations

import argparse
import ast
import re
import traceback
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

from perfnb.magics.line import refuse_short
from perfnb.step.cells import BATCH, Clause, batches_of, step_of

#: An option after a clause, where options are not allowed.
_OPTION = re.compile(r"\s--[a-z]")


def compile_body(shell: Any, source: str) -> CodeType:
    """Compile a cell's body. IPython syntax (``!``, ``%time``, ``?``) works as in any cell.

    Raises
    ------
    UsageError
        If the body is empty, is not valid Python, or uses ``await`` at its top level, which a synchronous magic does
        not support.
    """
    code: CodeType = _compiled(shell, source, ("step", "profile"), lambda tree, name: shell.compile(tree, name, "exec"))
    return code


def run_body(shell: Any, source: str) -> Callable[[], Any]:
    """Return a function that runs a cell's body once and returns its last expression's value.

    It raises the same errors as `compile_body`.
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
    """Return the result of `compiled` for a cell's body, given its tree and file name.

    `words` describes the body and its purpose in error messages.
    """
    what, verb = words
    try:
        transformed = shell.transform_cell(source)
        name = shell.compile.cache(transformed, _cell_number(shell), raw_code=source)
        tree = shell.transform_ast(shell.compile.ast_parse(transformed, filename=name))
        if not tree.body:
            raise UsageError(f"the {what} is empty, so there is nothing to {verb}.")
        if any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in _top_level(tree)):
            raise UsageError(f"the {what} cannot use await at its top level: put it into a function.")
        return compiled(tree, name)
    except SyntaxError as error:
        # With any other exception, IPython would list the magic's frames above the one line that matters.
        error.filename = f"Cell In[{_cell_number(shell)}]"
        said = "".join(traceback.format_exception_only(error)).rstrip()
        raise UsageError(f"the {what} is not valid Python.\n{said}") from None


def step_in(
    shell: Any, rest: str, cell: str | None, parser: argparse.ArgumentParser
) -> tuple[Callable[..., Any], Callable[[], Iterable[Any]] | None, CodeType]:
    """Return a magic's step, a function that evaluates the iterable of its clause, and the compiled body.

    For a cell magic, the step is the cell, and `rest` may provide its batches with a clause ``for TARGET in ITERABLE``.
    For a line magic, the step is `rest`.

    Raises
    ------
    UsageError
        If the body is invalid, or if the clause has a different form.
    """
    clause = None
    if cell is not None and rest:
        refuse_short(rest, parser)
        clause = clause_of(shell, rest)
    body, namespace = compile_body(shell, rest if cell is None else cell), shell.user_ns
    if clause is None:
        return step_of(body, namespace, None), None, body
    return step_of(body, namespace, clause.assign), batches_of(clause, namespace, UsageError), body


def clause_of(shell: Any, clause: str) -> Clause:
    """Compile ``for TARGET in ITERABLE``.

    Raises
    ------
    UsageError
        If the clause has a different form.
    """
    how = "options go before for" if _OPTION.search(clause) else "write for TARGET in ITERABLE, as in a for loop"
    refusal = UsageError(f"cannot read {clause!r}: {how}.")
    name = shell.compile.cache(clause, _cell_number(shell))  # an error in the clause then shows its text
    try:
        tree = ast.parse(f"{clause.strip().rstrip(':')}: pass")
        loop = tree.body[0] if len(tree.body) == 1 else None
        if not isinstance(loop, ast.For):
            raise refusal
        value = ast.Name(id=BATCH, ctx=ast.Load())
        binding = ast.Module([ast.Assign(targets=[loop.target], value=value)], type_ignores=[])
        assign = compile(ast.fix_missing_locations(binding), name, "exec")
        return Clause(assign, compile(ast.Expression(loop.iter), name, "eval"), clause)
    except SyntaxError:
        raise refusal from None


def _cell_number(shell: Any) -> int:
    """Return the number of the running cell, even if it is not stored in the history."""
    running = shell.displayhook.exec_result
    return int(getattr(running, "execution_count", None) or shell.execution_count)


def _top_level(tree: ast.AST) -> Iterable[ast.AST]:
    """Return the nodes of a syntax tree that are outside the functions it defines."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _top_level(child)
