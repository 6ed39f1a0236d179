"""The house keeps its shape: imports point one way, each room knows only its own matters, rooms stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST, TESTS

PACKAGE = Path(__file__).parents[1] / "perfnb"

# A room may import itself and the rooms before it. "public" is every module directly in perfnb/, such as profile.py;
# "face" is perfnb/__init__.py, which hands out the public names and loads the magics.
ORDER = ("capture", "traces", "frames", "analysis", "views", "public", "magics", "labs")
FACE_MAY_IMPORT = {"errors", "public", "magics", "face"}
FACE_IS_FOR = {"public", "magics", "labs"}

FILES = {"glob", "gzip", "io", "os", "pathlib", "pyarrow", "shutil", "sqlite3", "tempfile", "zipfile"}
DRAWING = {"matplotlib", "plotly", "seaborn"}
NOTEBOOK = {"IPython", "anywidget", "ipywidgets"}
UNKNOWN = {
    "capture": {"pandas"} | DRAWING | NOTEBOOK,
    "traces": {"torch"} | DRAWING,
    "frames": {"scipy"} | DRAWING,
    "analysis": {"torch"} | DRAWING | NOTEBOOK | FILES,
    "views": {"torch"},
}
FILE_CALLS = re.compile(r"open|(read|write)_(text|bytes|parquet|json|csv|pickle)|to_(parquet|csv|pickle|feather)")
TAG = re.compile(
    r"</?(html|head|body|style|script|svg|div|span|p|pre|code|br|img|a|b|i|em|strong|h[1-6]|ul|ol|li"
    r"|table|thead|tbody|tr|th|td|details|summary)(\s+[\w-]+=|\s*/?>)"
)

SAYS_NOTHING = re.compile(r"_*(utils?|common|helpers?|misc)")

Check = Callable[[Path], list[str]]


def sources(package: Path, *endings: str) -> Iterator[Path]:
    for path in sorted(package.rglob("*")):
        if path.suffix in (endings or (".py",)) and "__pycache__" not in path.parts:
            yield path


def room_of(module: str) -> str:
    """The room of a module given by its dotted name below the package: "" is the package itself."""
    first = module.partition(".")[0]
    if not first:
        return "face"
    return first if first in (*ORDER, "errors") else "public"


def module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Each imported dotted name with its line: at the top, in a function or for the type checker alike."""
    here = [package.name, *filter(None, module_of(path, package).split("."))]
    if path.name != "__init__.py":
        here.pop()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute("." * node.level + (node.module or ""), here)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, absolute(name.value, here)


def absolute(name: str, here: list[str]) -> str:
    """A dotted name as imported in the package `here`: one leading dot is that package, each further one above it."""
    rest = name.lstrip(".")
    level = len(name) - len(rest)
    above = here[: len(here) - level + 1] if level else []
    return ".".join([*above, *filter(None, [rest])])


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def exists(module: str, package: Path) -> bool:
    path = package.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def arrows(package: Path) -> list[str]:
    """Imports inside the package that point the wrong way."""
    wrong = []
    for path in sources(package):
        source = room_of(module_of(path, package))
        for line, name in imports(path, package):
            top, _, module = name.partition(".")
            if top != package.name:
                continue
            # `from perfnb import profile_step` asks the face for a name; `from perfnb import views` asks for a room.
            target = room_of(module) if module and exists(module.partition(".")[0], package) else "face"
            if not may_import(source, target):
                wrong.append(f"{path.relative_to(package.parent)}:{line}: {source} may not import {name}")
    return wrong


def may_import(source: str, target: str) -> bool:
    if target in (source, "errors"):
        return True
    if source == "errors":
        return False
    if source == "face":
        return target in FACE_MAY_IMPORT
    if target == "face":
        return source in FACE_IS_FOR
    return ORDER.index(target) < ORDER.index(source)


def unknown(package: Path) -> list[str]:
    """Things that a room uses and should not know of."""
    wrong = []
    for path in sources(package):
        room, where = room_of(module_of(path, package)), path.relative_to(package.parent)
        for line, name in imports(path, package):
            if name.partition(".")[0] in UNKNOWN.get(room, ()):
                wrong.append(f"{where}:{line}: {room} may not know {name.partition('.')[0]}")
        if room == "analysis":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and FILE_CALLS.fullmatch(called(node)):
                    wrong.append(f"{where}:{node.lineno}: analysis may not touch files: {called(node)}()")
    return wrong


def html(package: Path) -> list[str]:
    """HTML written outside views: tags in strings that are not docstrings, and the html module."""
    wrong = []
    for path in sources(package):
        if room_of(module_of(path, package)) == "views":
            continue
        where = path.relative_to(package.parent)
        wrong += [f"{where}:{line}: only views know HTML: {name}" for line, name in imports(path, package)
                  if name.partition(".")[0] == "html"]  # fmt: skip
        tree = ast.parse(path.read_text("utf-8"))
        loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        tags = {}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in loose else None
            if isinstance(text, str) and (tag := TAG.search(text)):
                tags.setdefault(node.lineno, tag[0])
        wrong += [f"{where}:{line}: only views know HTML: {tag}" for line, tag in tags.items()]
    return wrong


def names_that_say_nothing(package: Path) -> list[str]:
    paths = [path.relative_to(package.parent) for path in sources(package, ".py", ".js", ".css")]
    return [f"{path}: a name that says nothing" for path in paths
            if any(SAYS_NOTHING.fullmatch(part) for part in path.with_suffix("").parts)]  # fmt: skip


CHECKS: tuple[Check, ...] = (arrows, unknown, html, names_that_say_nothing)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_in_order(check: Check) -> None:
    assert list(sources(PACKAGE)), f"no sources in {PACKAGE}"
    assert check(PACKAGE) == []


def test_the_tests_are_as_plainly_named() -> None:
    assert names_that_say_nothing(TESTS) == []


def test_the_files_to_begin_with_are_there() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []


PLANTED: list[tuple[Check, str, str, str]] = [
    (arrows, "analysis/a.py", "from perfnb.views import theme", "analysis may not import perfnb.views.theme"),
    (arrows, "analysis/a.py", "from perfnb import views", "analysis may not import perfnb.views"),
    (arrows, "analysis/a.py", "from ..views.theme import RED", "analysis may not import perfnb.views.theme.RED"),
    (arrows, "analysis/__init__.py", "from .. import views", "analysis may not import perfnb.views"),
    (arrows, "capture/a.py", "def f():\n    import perfnb.frames.io", "capture may not import perfnb.frames.io"),
    (arrows, "traces/a.py", "if TYPE_CHECKING:\n    import perfnb.frames", "traces may not import perfnb.frames"),
    (arrows, "views/a.py", "from perfnb import Profile", "views may not import perfnb.Profile"),
    (arrows, "views/a.py", "from perfnb.profile.profile import Profile", "views may not import perfnb.profile.profile.Profile"),
    (arrows, "frames/a.py", "import_module('perfnb.analysis')", "frames may not import perfnb.analysis"),
    (arrows, "frames/a.py", "importlib.import_module('..views', __package__)", "frames may not import perfnb.views"),
    (arrows, "profile.py", "from perfnb.magics import register", "public may not import perfnb.magics.register"),
    (arrows, "magics/a.py", "import perfnb.labs", "magics may not import perfnb.labs"),
    (arrows, "errors.py", "from perfnb.frames import schema", "errors may not import perfnb.recording.schema"),
    (arrows, "__init__.py", "from perfnb.analysis import timing", "face may not import perfnb.stats.step_times"),
    (unknown, "capture/a.py", "import pandas as pd", "capture may not know pandas"),
    (unknown, "capture/a.py", "from IPython.display import display", "capture may not know IPython"),
    (unknown, "traces/a.py", "def f():\n    import torch.nn", "traces may not know torch"),
    (unknown, "frames/a.py", "from scipy import stats", "frames may not know scipy"),
    (unknown, "analysis/a.py", "import ipywidgets", "analysis may not know ipywidgets"),
    (unknown, "analysis/a.py", "from pathlib import Path", "analysis may not know pathlib"),
    (unknown, "analysis/a.py", "text = open('x').read()", "analysis may not touch files: open()"),
    (unknown, "analysis/a.py", "frame.to_parquet('x')", "analysis may not touch files: to_parquet()"),
    (unknown, "views/a.py", "import torch", "views may not know torch"),
    (html, "profile.py", "text = f'<b>{name}</b>'", "only views know HTML: <b>"),
    (html, "magics/a.py", "text = '<div class=x>'", "only views know HTML: <div class="),
    (html, "frames/a.py", "from html import escape", "only views know HTML: html.escape"),
    (names_that_say_nothing, "views/_utils.py", "", "a name that says nothing"),
    (names_that_say_nothing, "common/a.py", "", "a name that says nothing"),
]  # fmt: skip


def plant(tmp_path: Path, where: str, text: str) -> Path:
    package = tmp_path / "perfnb"
    for room in ORDER:
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    for module in ("__init__", "errors", "profile"):
        (package / f"{module}.py").touch()
    path = package / where
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return package


@pytest.mark.parametrize(("check", "where", "text", "complaint"), PLANTED)
def test_a_fault_is_found(tmp_path: Path, check: Check, where: str, text: str, complaint: str) -> None:
    package = plant(tmp_path, where, text)

    (found,) = check(package)

    assert found.startswith(f"perfnb/{where}:")
    assert found.endswith(complaint)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("views/a.py", "from perfnb import errors, analysis\nfrom . import theme\nhtml = '<b>bold</b>'"),
        ("capture/a.py", "import torch\nfrom ..errors import CaptureError"),
        ("profile.py", "from perfnb.views import theme\nfrom perfnb.capture import layers"),
        ("magics/a.py", "from perfnb import profile_step"),
        ("labs/a.py", "import perfnb\nimport perfnb.magics"),
        (
            "__init__.py",
            "def __getattr__(name):\n    import_module('perfnb.profile.profile')\n    import perfnb.magics",
        ),
        ("analysis/a.py", '"""Draws no <b>HTML</b>."""\nname = "<module> <b"\nframe.read("x")'),
    ],
)
def test_what_is_right_passes(tmp_path: Path, where: str, text: str) -> None:
    package = plant(tmp_path, where, text)

    assert [complaint for check in CHECKS for complaint in check(package)] == []


def loaded_by(statement: str, before: str = "") -> set[str]:
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys\n{before}\nold = set(sys.modules)\n{statement}\nprint('loaded', *(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split("loaded", 1)[1].split()}


def test_import_is_light() -> None:
    loaded = loaded_by("import perfnb; assert perfnb.__file__, 'no package: perfnb/__init__.py is missing'")

    assert "perfnb" in loaded
    assert not loaded & {"torch", "pandas", "matplotlib", "IPython", "ipywidgets", "anywidget"}


def test_loading_the_extension_is_light() -> None:
    shell = "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()"
    load = "shell.run_line_magic('load_ext', 'perfnb'); assert shell.find_cell_magic('profile_step'), 'no magic'"
    loaded = loaded_by(load, before=shell)

    assert "perfnb" in loaded
    assert not loaded & {"torch", "pandas", "matplotlib", "ipywidgets", "anywidget"}
