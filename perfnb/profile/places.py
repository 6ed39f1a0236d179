"""Find the user's code, and the lines in its files that create an object."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from types import FrameType

from perfnb import quantities as fmt
from perfnb.step.namespace import is_installed

#: The maximum number of modules that are searched, and the maximum length of a line that is returned.
_MOST_MODULES, _LONGEST = 200, 160


def users_place() -> str:
    """Describe the line in the user's code that is currently running. The result is empty if there is none."""
    frame = _users_frame()
    return "" if frame is None else fmt.place(frame.f_code.co_filename, frame.f_lineno)


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_installed(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def users_files() -> list[str]:
    """Return the user's own files, which contain the running code and the modules that it has imported."""
    frame, files = _users_frame(), dict[str, None]()
    while frame is not None:
        files[frame.f_code.co_filename] = None
        frame = frame.f_back
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__file__", None), str) and len(files) < _MOST_MODULES:
            files[file] = None
    return [file for file in files if not is_installed(file)]


def rewritten(files: list[str], kind: str, name: str | None, **changed: int | None) -> str:
    """Return the line of code that creates an instance of a class, with some arguments changed, and its location.

    If several lines create instances, the one that assigns an instance to `name` is returned. The result is empty if
    the line cannot be determined.
    """
    made = [(file, *found) for file in files for found in _made(file, kind)]
    last = (name or "").rpartition(".")[2]
    own = [one for one in made if last in one[2]] if len(made) > 1 else made
    if len(own) != 1:
        return ""
    file, statement, _, call = own[0]
    for word, value in changed.items():
        call.keywords = [one for one in call.keywords if one.arg != word]
        if value is not None:
            call.keywords.append(ast.keyword(word, ast.Constant(value)))
    line = ast.unparse(statement)
    if len(line) > _LONGEST:
        given = ", ".join(f"{word}={value}" for word, value in changed.items() if value is not None)
        line = f"# {ast.unparse(call.func)}(..., {given})"
    return f"{line}  # {fmt.place(file, statement.lineno)}"


def _made(file: str, kind: str) -> Iterator[tuple[ast.stmt, list[str], ast.Call]]:
    """Yield the statements in a file that create an instance of a class, with the last part of each assigned name."""
    text = "".join(linecache.getlines(file))
    if kind not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)) and isinstance(value, ast.Call):
            function = value.func
            if (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) == kind:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
                yield node, [str(getattr(one, "attr", getattr(one, "id", ""))) for one in targets], value
