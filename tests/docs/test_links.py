"""Links in the README, the documentation and the notebooks work."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, prose

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
FILES = {path.relative_to(ROOT).as_posix(): path for path in [
    *PAGES.values(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *NOTEBOOKS
]}  # fmt: skip

_LINK = re.compile(
    r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:a|img)\b[^>]*\b(?:href|src)=\"([^\"]+)\"|<(https?://[^>\s]+)>"
)
_HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)
_CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_EXTERNAL = ("https://", "http://", "mailto:")


def text_of(path: Path) -> str:
    """Return the prose of a page, or of a notebook's cells."""
    if path.suffix != ".ipynb":
        return prose(path.read_text("utf-8"))
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return prose("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))


def links(text: str) -> list[str]:
    """Return the targets of the links in a text, except in code."""
    return [next(filter(None, found)) for found in _LINK.findall(_CODE.sub("", text))]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page as GitHub and MyST name them, and of a notebook as JupyterLab does."""
    heads = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", head) for head in _HEADING.findall(text_of(path))]
    if path.suffix == ".ipynb":
        return {head.replace(" ", "-") for head in heads}
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def broken(path: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist."""
    found = []
    for link in links(text_of(path)):
        target, _, place = link.partition("#")
        if link.startswith(_EXTERNAL):
            continue
        file = (path.parent / target).resolve() if target else path
        inside = file.is_relative_to(ROOT) or file.is_relative_to(path.parent)
        if not inside or not file.exists() or (place and place not in anchors(file)):
            found.append(link)
    return found


@pytest.mark.parametrize("name", FILES)
def test_links_lead_somewhere(name: str) -> None:
    assert broken(FILES[name]) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What it `is`\n\n<!-- [no](hidden.md) -->\n\n```python\na[0](b)\n```\n\n`[no](code.md)` [here](#what-it-is)\n"
        '![a\npicture](there.png) [titled](page.md "A page") [out](https://example.org) [up](../../../../etc/hosts)\n'
        '[one](nowhere.md) [two](#not-here) [three](page.md#nor-here) <img src="lost.png"> [four](book.ipynb#a-Name)\n'
        "[a notebook](book.ipynb#What-it-is,-here)\n"
    )
    (tmp_path / "there.png").touch()
    cells = [{"cell_type": "markdown", "source": ["## What it is, here\n", "[p](page.md) [q](gone.ipynb)"]},
             {"cell_type": "code", "source": ["[x](y)"]}]  # fmt: skip
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": cells}))

    assert broken(page) == [
        "../../../../etc/hosts", "nowhere.md", "#not-here", "page.md#nor-here", "lost.png", "book.ipynb#a-Name"
    ]  # fmt: skip
    assert broken(tmp_path / "book.ipynb") == ["gone.ipynb"]


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize(
    "url", sorted({link.partition("#")[0] for path in FILES.values() for link in links(text_of(path)) if "://" in link})
)
def test_an_address_outside_answers(url: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "perfnb's test of its links"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200
