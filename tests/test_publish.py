"""A published copy has buttons that open its own notebooks; one that is published nowhere has none."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from notebooks import publish
from notebooks.labs import build

ROOT = publish.ROOT
NAMED = ("README.md", "docs/online.md", "pyproject.toml", "CITATION.cff")
NOTEBOOKS = [path.relative_to(ROOT) for path in sorted((ROOT / "notebooks").rglob("*.ipynb"))]
BINDER = re.compile(r"\]\((https://mybinder\.org/v2/[^)]*)\)")
COLAB = re.compile(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return the files of the project that publishing may change."""
    for name in (*NAMED, *NOTEBOOKS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def test_this_copy_names_one_place_or_none(copy: Path) -> None:
    if place := publish.repository():
        assert publish.publish(place, copy) == []
        return
    text = "".join((ROOT / name).read_text("utf-8") for name in NAMED)
    assert BINDER.findall(text) + COLAB.findall(text) == []
    assert [path for path in NOTEBOOKS if any(cell["id"] == publish.COLAB_CELL for cell in cells_of(ROOT / path))] == []


def test_the_buttons_open_what_there_is(copy: Path) -> None:
    publish.publish("ada/perf.nb", copy)

    assert publish.repository(copy) == "ada/perf.nb"
    assert 'repository-code: "https://github.com/ada/perf.nb"' in (copy / "CITATION.cff").read_text("utf-8")
    link = "https://mybinder.org/v2/gh/ada/perf.nb/HEAD?urlpath=lab/tree/notebooks/index.ipynb"
    on_colab = "https://colab.research.google.com/github/ada/perf.nb/blob/HEAD/"
    readme, page = ((copy / name).read_text("utf-8") for name in NAMED[:2])
    assert BINDER.findall(readme) == BINDER.findall(page) == [link]
    assert COLAB.findall(readme) == [f"{on_colab}notebooks/quickstart.ipynb"]
    opened = {Path(each.removeprefix(on_colab)) for each in COLAB.findall(page)}
    assert opened == {path for path in NOTEBOOKS if path.stem != "index" and "solutions" not in path.parts}


def test_publishing_again_changes_nothing_and_elsewhere_all(copy: Path) -> None:
    changed = publish.publish("ada/a-test", copy)

    assert {path.relative_to(copy) for path in changed} >= {Path("pyproject.toml"), Path("README.md")}
    assert publish.publish("ada/a-test", copy) == []
    publish.publish("grace/other", copy)
    texts = [(copy / name).read_text("utf-8") for name in (*NAMED, *NOTEBOOKS)]
    assert sum("ada/a-test" in text for text in texts) == 0
    assert sum("grace/other" in text for text in texts) == len(texts)


def test_other_addresses_of_the_project_stay(copy: Path) -> None:
    project = copy / "pyproject.toml"
    project.write_text(project.read_text("utf-8").replace("[tool.hatch", '[project.urls]\nA = "b"\n\n[tool.hatch', 1))

    publish.publish("ada/a-test", copy)

    assert 'Repository = "https://github.com/ada/a-test"\nA = "b"\n' in project.read_text("utf-8")


def test_a_notebook_gets_one_cell_before_its_code(copy: Path) -> None:
    import nbformat

    publish.publish("ada/a-test", copy)

    for path in NOTEBOOKS:
        cells, before = cells_of(copy / path), cells_of(ROOT / path)
        nbformat.validate({**json.loads((copy / path).read_text("utf-8")), "cells": cells[:2]})
        assert publish.with_colab_cell(cells, "") == publish.with_colab_cell(before, "")
        code = [cell["id"] for cell in cells if cell["cell_type"] == "code"]
        assert code[:1] == ([publish.COLAB_CELL] if code else []), path


def test_the_labs_are_built_with_the_same_cell(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish.publish("ada/a-test", copy)
    monkeypatch.setattr(build, "repository", lambda: "ada/a-test")

    for path, text in build.built().items():
        assert (copy / path.relative_to(ROOT)).read_text("utf-8") == text


@pytest.mark.parametrize("on_colab", [False, True])
def test_the_cell_installs_on_colab_only(on_colab: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    if on_colab:
        output = types.SimpleNamespace(enable_custom_widget_manager=lambda: called.append("widgets"))
        colab = types.ModuleType("google.colab")
        colab.output = output  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
        monkeypatch.setitem(sys.modules, "google.colab", colab)
    shell = types.SimpleNamespace(run_line_magic=lambda name, line: called.append((name, line)))

    exec(TransformerManager().transform_cell(publish.colab_code("ada/a-test")), {"get_ipython": lambda: shell})

    install = ("pip", 'install --quiet "perfnb @ git+https://github.com/ada/a-test"')
    assert called == ([install, "widgets"] if on_colab else [])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://github.com/ada/a-test.git", "ada/a-test"),
        ("https://github.com/ada/perf.nb", "ada/perf.nb"),
        ("https://token@github.com/ada/a-test/", "ada/a-test"),
        ("git@github.com:ada/a-test.git", "ada/a-test"),
        ("ssh://git@github.com/ada/a-test.git", "ada/a-test"),
        ("https://gitlab.com/ada/a-test.git", None),
        ("https://example.org/github.com/ada/a-test", None),
        ("../perfnb", None),
        ("", None),
    ],
)
def test_the_origin_is_read(url: str, place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    done = types.SimpleNamespace(stdout=f"{url}\n")
    monkeypatch.setattr(publish.subprocess, "run", lambda *_, **__: done)
    published: list[str] = []
    monkeypatch.setattr(publish, "publish", lambda named: published.append(named) or [])  # type: ignore[func-returns-value]

    if place is None:
        with pytest.raises(SystemExit, match="is not a GitHub repository; name one as OWNER/REPO"):
            publish.main([])
    else:
        publish.main([])
    assert published == ([place] if place else [])
