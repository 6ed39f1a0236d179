"""The order that is sent to the ranks of a job: a function, a script, or a cell with the variables that it uses."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from perfnb.draw import escape
from perfnb.errors import CaptureError
from perfnb.step.cells import Clause

_MOST_WORDS = 300


@dataclass(frozen=True)
class Order:
    """The work that every rank has to do. All values are plain, except the pickled `payload`."""

    #: ``function``, ``cell`` or ``script``.
    kind: str
    payload: bytes = b""
    #: The script and its arguments.
    program: Sequence[str] = ()
    #: The number of steps before the profiled ones of a script.
    at: int = 0
    #: Arguments of `Plan`.
    plan: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    backend: str = "gloo"
    threads: int = 1
    ddp: bool = False
    #: Whether to take models out of DistributedDataParallel, to compare.
    plain: bool = False
    split: bool = False
    #: One for each rank, or none.
    gpus: int = 0
    #: The import path of this process, and its arguments.
    path: Sequence[str] = field(default_factory=lambda: [str(entry) for entry in sys.path])
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    #: Lines of code by file name, for tracebacks through cells.
    lines: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A cell's step, ready to be sent to the ranks."""

    body: CodeType
    clause: Clause | None
    variables: Mapping[str, Any]
    #: A function of the notebook, whose globals find the functions among the variables.
    anchor: FunctionType
    #: Names of the models to break down, or ``None`` for all.
    models: Sequence[str] | None


def pack_function(target: Any, batches: Any) -> bytes:
    """Pickle a function that sets up a job, and its batches, for another process.

    Raises
    ------
    CaptureError
        If they cannot be pickled. The message names the object that cannot.
    """
    return _packed((target, batches), {"target": target, "batches": batches})


def pack_cell(
    body: CodeType, clause: Clause | None, namespace: dict[str, Any], names: Sequence[str], models: Sequence[str] | None
) -> bytes:
    """Pickle a cell together with the notebook variables that it uses.

    Raises
    ------
    CaptureError
        If a variable cannot be pickled. The message names the variable.
    """
    if "get_ipython" in names:
        raise CaptureError(
            "The cell uses IPython's own syntax (a magic, ! or ?), which the ranks do not have: write plain Python."
        )
    variables = {name: namespace[name] for name in names if name in namespace}
    # Pickled by value, with the notebook's globals: its copy has the dictionary that all copies of functions share.
    anchor = FunctionType((lambda: None).__code__, namespace, "anchor")
    anchor.__module__ = "__main__"
    return _packed(Cell(body, clause, variables, anchor, models), variables)


def lines_of(*codes: CodeType) -> dict[str, list[str]]:
    """Return the source of code that does not belong to a file, if it is known."""
    files = [code.co_filename for code in codes]
    return {file: lines for file in files if not Path(file).exists() and (lines := linecache.getlines(file))}


def _packed(value: Any, parts: Mapping[str, Any]) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        name, why = _culprit(parts) or ("The step", error)
    raise CaptureError(
        f"{escape.plain(name, _MOST_WORDS)} cannot be sent to the ranks, which are processes of their own "
        f"({escape.plain(f'{type(why).__name__}: {why}', _MOST_WORDS)}): create it inside the function or the cell "
        "that they run."
    ) from None


def _culprit(parts: Mapping[str, Any]) -> tuple[str, Exception] | None:
    """Return the first part that cannot be pickled, and the reason. For a function, this is a variable that it uses."""
    import cloudpickle

    from perfnb.step.namespace import namespace_of

    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            inside = namespace_of(part) if isinstance(part, FunctionType) else {}
            used = {key: value for key, value in inside.items() if value is not part}
            return _culprit(used) or (name, error)
    return None
