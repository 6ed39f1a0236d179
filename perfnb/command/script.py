"""Run a script or module in this process, in the same way as ``python``."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from perfnb.command.sub_command import WrongUse
from perfnb.failures import with_causes

#: Frames in these files do not belong to the user's code.
_OWN = (str(Path(__file__).resolve().parents[1]) + os.sep, str(Path(__file__).parents[1]) + os.sep, "<frozen runpy>")


def run_as_main(program: Sequence[str]) -> BaseException | None:
    """Run ``FILE ARGS`` or ``-m MODULE ARGS`` as ``__main__``, and return the exception that ended it, if any.

    If you raise this exception and let Python handle it, the exit code and the traceback are the same as without
    perfnb.
    """
    try:
        if program[0] == "-m":
            _run_module(program[1], program[2:])
        else:
            _run_file(program)
    except WrongUse:
        raise
    except BaseException as error:
        _leave_out_own_frames()
        return error
    return None


def require_program(program: Sequence[str]) -> None:
    """Raise an error unless the program is a script or a module.

    Raises
    ------
    WrongUse
    """
    if not program or program == ["-m"]:
        raise WrongUse("there is no script to run: perfnb run SCRIPT ARGS, or perfnb run -m MODULE ARGS.")
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise WrongUse(f"{program[0]} does not exist or is not a file: use a Python script, or -m MODULE.")


def _run_module(name: str, args: Sequence[str]) -> None:
    _set_first_path(os.getcwd())
    sys.argv[:] = [name, *args]  # runpy replaces the first entry with the file
    _require_module(name)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _require_module(name: str) -> None:
    """Raise an error if a module does not exist. Other errors in its package are raised when it runs."""
    try:
        found = find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        found = False
    except ValueError:  # the module has no specification; running it reports the error
        found = True
    if not found:
        raise WrongUse(f"there is no module {name}: use a name that works with python -m, or a Python script.")


def _run_file(program: Sequence[str]) -> None:
    """Run a file in the same way as Python runs a script.

    The module remains ``__main__`` until the process ends, because workers and exit functions may need it.
    """
    path = os.path.abspath(program[0])
    sys.argv[:] = list(program)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main = ModuleType("__main__")
    own: dict[str, Any] = vars(main)
    own.update(__file__=path, __builtins__=builtins, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), own)


def _set_first_path(folder: str) -> None:
    """Replace the folder at the front of the import path, which Python added for ``perfnb`` itself."""
    if sys.flags.safe_path:
        return
    sys.path[:1] = [folder]


def _leave_out_own_frames() -> None:
    """Make Python print the next traceback without perfnb's frames."""
    hook = sys.excepthook

    def without_own_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for one in with_causes(error):
            one.__traceback__ = _stripped(one.__traceback__)
        hook(kind, error, error.__traceback__)

    sys.excepthook = without_own_frames


def _stripped(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback starting at the script's first frame, and without any of perfnb's frames."""
    entries = []
    while trace is not None:
        entries.append(trace)
        if trace.tb_frame.f_code in (_run_file.__code__, _run_module.__code__):
            entries.clear()
        trace = trace.tb_next
    rest = None
    for entry in reversed(entries):
        file = entry.tb_frame.f_code.co_filename
        if not file.startswith(_OWN):
            rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest
