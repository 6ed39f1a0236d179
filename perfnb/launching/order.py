"""Create the order that is sent to the ranks of a job: a function, a script, or a cell with the variables it uses."""

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
    """The work that every rank must do. All values are plain data, except the pickled `payload`."""

    #: ``function``, ``cell`` or ``script``.
    kind: str
    payload: bytes = b""
    #: The script and its arguments.
    program: Sequence[str] = ()
    #: The number of steps that a script runs before the profiled steps.
    at: int = 0
    #: The arguments of `Plan`.
    plan: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    backend: str = "gloo"
    threads: int = 1
    ddp: bool = False
    #: Whether to unwrap models from DistributedDataParallel, for a comparison.
    plain: bool = False
    split: bool = False
    #: The number of GPUs, which is either one for each rank or 0.
    gpus: int = 0
    #: The import path and the arguments of this process.
    path: Sequence[str] = field(default_factory=lambda: [str(entry) for entry in sys.path])
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    #: The source lines of cells by file name, for tracebacks.
    lines: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """The step in a cell, in a form that can be sent to the ranks."""

    body: CodeType
    clause: Clause | None
    variables: Mapping[str, Any]
    #: A function from the notebook. Its globals are shared by all functions among the variables.
    anchor: FunctionType
    #: The names of the models to break down, or ``None`` for all models.
    models: Sequence[str] | None


def pack_function(target: Any, batches: Any) -> bytes:
    """Pickle a function that sets up a job, and its batches, to send them to another process.

    Raises
    ------
    CaptureError
        If one of them cannot be pickled. The message contains the name of the object that causes this.
    """
    return _packed((target, batches), {"target": target, "batches": batches})


def pack_cell(
    body: CodeType, clause: Clause | None, namespace: dict[str, Any], names: Sequence[str], models: Sequence[str] | None
) -> bytes:
    """Pickle a cell together with the notebook variables that it uses.

    Raises
    ------
    CaptureError
        If a variable cannot be pickled. The message contains the name of the variable.
    """
    if "get_ipython" in names:
        raise CaptureError(
            "The cell uses IPython's own syntax (a magic, ! or ?), which does not work in ranks: write plain Python."
        )
    variables = {name: namespace[name] for name in names if name in namespace}
    # The anchor is pickled by value, with the notebook's globals. The copies of all functions share its dictionary.
    anchor = FunctionType((lambda: None).__code__, namespace, "anchor")
    anchor.__module__ = "__main__"
    return _packed(Cell(body, clause, variables, anchor, models), variables)


def lines_of(*codes: CodeType) -> dict[str, list[str]]:
    """Return the source lines of code that does not belong to a file, if they are known."""
    files = [code.co_filename for code in codes]
    return {file: lines for file in files if not Path(file).exists() and (lines := linecache.getlines(file))}


def _packed(value: Any, parts: Mapping[str, Any]) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        name, why = _culprit(parts) or ("The step", error)
    raise CaptureError(
        f"{escape.plain(name, _MOST_WORDS)} cannot be sent to the ranks, which are separate processes "
        f"({escape.plain(f'{type(why).__name__}: {why}', _MOST_WORDS)}). Create it inside the function or the cell "
        "that the ranks run."
    ) from None


def _culprit(parts: Mapping[str, Any]) -> tuple[str, Exception] | None:
    """Return the name of the first part that cannot be pickled, and the error.

    If the part is a function, return the name of the variable in it that cannot be pickled.
    """
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
