"""The house keeps its shape: what import-linter's contracts in pyproject.toml cannot say, and that they can fail."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONGEST, TESTS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfnb"

#: More modules than this in one folder are a heap.
MOST_MODULES = 25
#: Folders that hold one module per lab, and so grow with their subject.
MAY_GROW = ("labs",)
#: Public objects that are handed tensors or models by the user and show what they made of them.
BINDS: tuple[str, ...] = (
    "inference/compare_inference.py",
    "memory/estimate/estimate.py",
    "models/architectures.py",
    "remedies/try_levers.py",
    "system/resolution.py",
)

#: Rooms that only parse, call and display.
TOP = ("command", "magics", "integrations", "labs")

#: Pictures that no section of a document can show, which bring their own text and HTML.
OPAQUE = ("flame/picture.py", "memory/tab.py", "ranks/lanes_view.py", "timeline/tab.py")
#: Public objects and outputs that hand a document to a renderer.
DISPLAYS = (
    "command/output.py",
    "experiments/ab_test.py",
    "experiments/journal.py",
    "profile/widget.py",
    "watching/watch.py",
    "watching/widget.py",
)
#: What a file that describes a result may use of `draw` next to the vocabulary: words and colours; what binds it;
#: the progress and the output of the steps behind it.
DESCRIBES = {"document", "documented", "tab", "palette", "escape", "progress", "step_output"}
#: A format such as ``<20`` or ``>{width}``, as `ast.unparse` writes it.
ALIGNED = re.compile(r"f['\"].?[<>^]")

DRAWING = {"matplotlib", "IPython", "anywidget", "ipywidgets"}
TAG = re.compile(
    r"</?(html|head|body|style|script|svg|div|span|p|pre|code|br|img|a|b|i|em|strong|h[1-6]|ul|ol|li"
    r"|table|thead|tbody|tr|th|td|details|summary)(\s+[\w-]+=|\s*/?>)"
)
#: A tag or a format that aligns, anywhere in a source.
MAYBE_LAYOUT = re.compile(rf"{TAG.pattern}|:.?[<>^]")
SAYS_NOTHING = re.compile(r"_*(utils?|common|helpers?|misc)")

Check = Callable[[Path], list[str]]


def sources(package: Path, *endings: str) -> Iterator[Path]:
    for path in sorted(package.rglob("*")):
        if path.suffix in (endings or (".py",)) and "__pycache__" not in path.parts:
            yield path


@functools.cache
def imports(text: str) -> frozenset[str]:
    """Return every dotted name that a source imports, also inside functions, except what only the type checker
    imports.
    """
    found: set[str] = set()
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def _statements(node: Any) -> Iterator[ast.AST]:
    """Yield a node and the statements in it, but no expressions, and nothing that only the type checker sees."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, part, ())
        for each in inner if isinstance(inner, list) else ():
            yield from _statements(each)


def kinds(package: Path) -> list[str]:
    """Return files that measure (they import torch) and also compute with frames or draw."""
    wrong = []
    for path in sources(package):
        name = path.relative_to(package).as_posix()
        imported = imports(path.read_text("utf-8"))
        tops = {one.partition(".")[0] for one in imported}
        if "torch" not in tops or name in BINDS or name.startswith("labs/") or name == "demo.py":
            continue
        does = (tops & ({"pandas"} | DRAWING)) | {one for one in imported if one.startswith("perfnb.draw")}
        wrong += [f"{name}: measures with torch and uses {other}" for other in sorted(does)]
    return wrong


def computing_that_draws(package: Path) -> list[str]:
    """Return files that compute with numbers or frames and, without drawing, import code that draws."""
    files = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in sources(package)}
    modules = {name.removesuffix(".__init__"): imports(path.read_text("utf-8")) for name, path in files.items()}
    loaded = {name: set(_modules_of(imported, modules)) for name, imported in modules.items()}
    draws = {name for name in modules if name.startswith("perfnb.draw")}
    wrong = []
    for name, imported in sorted(modules.items()):
        computes = {one.partition(".")[0] for one in imported} & {"numpy", "pandas", "scipy"}
        if not computes or name.split(".")[1] in TOP or loaded[name] & draws | {name} & draws:
            continue
        if _reaches(name, draws, loaded):
            by = sorted(one for one in loaded[name] if _reaches(one, draws, loaded))
            wrong.append(f"{name.removeprefix('perfnb.')}: computes, and loads what draws by way of {by[0]}")
    return wrong


def _modules_of(imported: Iterable[str], modules: Container[str]) -> Iterator[str]:
    """Yield the modules of the package, with the packages around them, that these imported names load."""
    for name in imported:
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            if (module := ".".join(parts[:end])) in modules:
                yield module


def _reaches(name: str, targets: set[str], loaded: dict[str, set[str]]) -> bool:
    reached, waiting = {name}, [name]
    while waiting:
        more = loaded[waiting.pop()] - reached
        reached |= more
        waiting += more
    return bool(reached & targets)


def layout(package: Path) -> list[str]:
    """Return tags and alignment outside the renderers and the few pictures that no section of a document can show."""
    wrong = {}
    for path in sources(package):
        name = path.relative_to(package).as_posix()
        if path.parent.name == "draw" or name in OPAQUE:
            continue
        text = path.read_text("utf-8")
        if not MAYBE_LAYOUT.search(text):  # most files, which need not be parsed
            continue
        nodes = [*ast.walk(ast.parse(text))]
        loose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            string = node.value if isinstance(node, ast.Constant) and id(node) not in loose else None
            if isinstance(string, str) and (tag := TAG.search(string)):
                wrong.setdefault(f"{name}:{node.lineno}", f"writes HTML: {tag[0]}")
            if (
                isinstance(node, ast.FormattedValue)
                and node.format_spec
                and ALIGNED.match(ast.unparse(node.format_spec))
            ):
                wrong.setdefault(f"{name}:{node.lineno}", "aligns text")
    return [f"{where}: {what}" for where, what in wrong.items()]


def rendering(package: Path) -> list[str]:
    """Return files that describe a result in a document and also use its renderers."""
    wrong = []
    for path in sources(package):
        name = path.relative_to(package).as_posix()
        used = {one.split(".")[2] for one in imports(path.read_text("utf-8")) if one.startswith("perfnb.draw.")}
        if path.parent.name != "draw" and "document" in used and name not in (*OPAQUE, *DISPLAYS):
            wrong += [f"{name}: describes a result and uses draw.{other}" for other in sorted(used - DESCRIBES)]
    return wrong


def heaps(package: Path) -> list[str]:
    """Return folders with too many modules."""
    folders = {path.parent for path in sources(package)}
    counts = {folder: len([*folder.glob("*.py")]) - 1 for folder in folders if folder.name not in MAY_GROW}
    return [f"{folder.name}: {count} modules" for folder, count in sorted(counts.items()) if count > MOST_MODULES]


def names_that_say_nothing(package: Path) -> list[str]:
    paths = [path.relative_to(package) for path in sources(package, ".py", ".js", ".css")]
    return [f"{path.as_posix()}: a name that says nothing" for path in paths
            if any(SAYS_NOTHING.fullmatch(part) for part in path.with_suffix("").parts)]  # fmt: skip


def names_of(assignment: ast.Assign) -> list[str]:
    return [target.id for target in assignment.targets if isinstance(target, ast.Name)]


def public_rooms(package: Path) -> list[str]:
    """Return rooms that would replace a public function of their name once they are imported."""
    text = (package / "__init__.py").read_text("utf-8")
    (listed,) = (
        node.value for node in ast.parse(text).body if isinstance(node, ast.Assign) and "__all__" in names_of(node)
    )
    names = set(ast.literal_eval(listed))
    return [f"{path.parent.name}: a room named like something public" for path in package.glob("*/__init__.py")
            if path.parent.name in names]  # fmt: skip


CHECKS: tuple[Check, ...] = (
    kinds,
    computing_that_draws,
    layout,
    rendering,
    heaps,
    names_that_say_nothing,
    public_rooms,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_in_order(check: Check) -> None:
    assert list(sources(PACKAGE)), f"no sources in {PACKAGE}"
    assert check(PACKAGE) == []


def test_the_tests_are_as_plainly_named() -> None:
    assert names_that_say_nothing(TESTS) == []


def test_the_files_to_start_with_are_there() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []


PLANTED: list[tuple[Check, str, str, str]] = [
    (kinds, "step/a.py", "import torch\nimport pandas as pd", "step/a.py: measures with torch and uses pandas"),
    (kinds, "gpu/a.py", "import torch\nfrom perfnb.draw import bars", "uses perfnb.draw.bars"),
    (kinds, "gpu/a.py", "def f():\n    import torch.nn\nfrom IPython.display import HTML", "uses IPython"),
    (layout, "step/a.py", "text = f'<b>{name}</b>'", "step/a.py:1: writes HTML: <b>"),
    (layout, "magics/a.py", "text = '<div class=x>'", "writes HTML: <div class="),
    (layout, "gpu/view.py", "text = f'{name:<20} {value:8.2f}'", "gpu/view.py:1: aligns text"),
    (layout, "gpu/view.py", "text = f'{name:>{width}}'", "gpu/view.py:1: aligns text"),
    (
        rendering,
        "gpu/view.py",
        "from perfnb.draw.document import Table\nfrom perfnb.draw.as_text import document_text",
        "gpu/view.py: describes a result and uses draw.as_text",
    ),
    (
        rendering,
        "gpu/view.py",
        "from perfnb.draw import document\ndef f():\n    from perfnb.draw import tables",
        "gpu/view.py: describes a result and uses draw.tables",
    ),
    (names_that_say_nothing, "draw/_utils.py", "", "a name that says nothing"),
    (names_that_say_nothing, "common/a.py", "", "a name that says nothing"),
    (public_rooms, "watch/__init__.py", "", "watch: a room named like something public"),
]


def plant(tmp_path: Path, where: str, text: str) -> Path:
    package = tmp_path / "perfnb"
    path = package / where
    path.parent.mkdir(parents=True)
    (package / "__init__.py").write_text('__all__ = ["watch"]\n')
    path.write_text(text)
    return package


@pytest.mark.parametrize(("check", "where", "text", "complaint"), PLANTED)
def test_a_fault_is_found(tmp_path: Path, check: Check, where: str, text: str, complaint: str) -> None:
    (found,) = check(plant(tmp_path, where, text))

    assert found.endswith(complaint)


def test_a_computing_module_that_loads_what_draws_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, "gpu/sums.py", "import numpy\nfrom perfnb.gpu import view")
    (package / "gpu" / "view.py").write_text("def f():\n    from perfnb.draw.bars import stacked")
    (package / "draw").mkdir()
    (package / "draw" / "bars.py").write_text("stacked = None")

    assert computing_that_draws(package) == ["gpu.sums: computes, and loads what draws by way of perfnb.gpu.view"]


def test_a_heap_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, "gpu/__init__.py", "")
    for number in range(MOST_MODULES + 1):
        (package / "gpu" / f"a{number}.py").touch()

    assert heaps(package) == [f"gpu: {MOST_MODULES + 1} modules"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("timeline/tab.py", "from perfnb.draw import document, picture\nhtml = '<b>bold</b>'"),
        ("gpu/a.py", "from perfnb.draw import document, escape\ntext = f'{share:.1f} {count:,}'"),
        ("step/a.py", "import torch\nfrom perfnb.errors import CaptureError\nif TYPE_CHECKING:\n    import pandas"),
        ("gpu/b.py", '"""Draws no <b>HTML</b>."""\nname = "<module> <b"\n'),
    ],
)
def test_what_is_right_passes(tmp_path: Path, where: str, text: str) -> None:
    package = plant(tmp_path, where, text)

    assert [complaint for check in CHECKS for complaint in check(package)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "text", "broken"),
    [
        ("step/session.py", "import perfnb.profile.profile", "perfnb.step is not allowed to import perfnb.profile"),
        ("stats/holm.py", "def f():\n    import torch", "perfnb.stats is not allowed to import torch"),
        ("gpu/__init__.py", "from perfnb import profile_step", "is not allowed to import perfnb:"),
        ("stray/__init__.py", "", "must be declared as a layer"),
        ("timeline/view.py", "import perfnb.roofline.tab", "perfnb.timeline is not allowed to import perfnb.roofline"),
        ("ranks/view.py", "import perfnb.bench.timing", "perfnb.ranks is not allowed to import perfnb.bench"),
    ],
)
def test_breaking_a_contract_fails(tmp_path: Path, where: str, text: str, broken: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "perfnb", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / where).parent.mkdir(exist_ok=True)
    path = tmp_path / "perfnb" / where
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert done.returncode == 1
    assert broken in " ".join((done.stdout + done.stderr).split())  # wrapped by the width of a terminal


def loaded_by(statement: str, before: str = "") -> set[str]:
    """Return the top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys\n{before}\nold = set(sys.modules)\n{statement}\nprint('loaded', *(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
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
