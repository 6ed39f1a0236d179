"""Read the scripts and style sheets of live views from the packages' ``js`` folders."""

from __future__ import annotations

import functools
import posixpath
import re
from importlib.resources import files

#: The style sheets that every live view needs.
STYLE = ("draw/js/theme.css", "draw/js/report.css")

_IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.M)


@functools.cache
def script(*entries: str) -> str:
    """Join scripts and their imports, given as paths such as ``"memory/js/memory.js"``, into one ES module.

    Each file is included once, after the files that it imports. Import lines, the word ``export`` before a definition,
    comment lines and indentation are removed, because the result is stored in every saved notebook. All files share one
    scope, so two files must not define the same name.
    """
    text = "".join(_EXPORT.sub("", _IMPORT.sub("", read(path))) for path in in_order(*entries))
    return re.sub(r"^(\s+|//.*\n)", "", text, flags=re.M)


def in_order(*entries: str) -> list[str]:
    """Return the paths of scripts and all their imports. Each script comes after its own imports."""
    found: dict[str, None] = {}

    def visit(path: str) -> None:
        if path not in found:
            for other in _IMPORT.findall(read(path)):
                visit(posixpath.normpath(posixpath.join(posixpath.dirname(path), other)))
            found[path] = None

    for entry in entries:
        visit(entry)
    return list(found)


@functools.cache
def style(*names: str) -> str:
    """Join the style sheets of every live view and those in `names`, which are paths inside the package."""
    return "".join(map(read, (*STYLE, *names)))


@functools.cache
def static_style() -> str:
    """Return the style sheet of the static twin, without comments and line breaks."""
    text = re.sub(r"/\*.*?\*/", "", read("draw/js/theme.css") + read("draw/js/static.css"), flags=re.S)
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


@functools.cache
def read(path: str) -> str:
    """Return the text of a file in the package."""
    return files("perfnb").joinpath(path).read_text(encoding="utf-8")
