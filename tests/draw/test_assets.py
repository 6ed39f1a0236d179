"""Scripts are ES modules that are joined into one: each imports everything it uses, and no name is defined twice."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

import perfnb
from perfnb.draw import assets
from perfnb.draw.document import Document, Picture
from perfnb.draw.live import assets_of

PACKAGE = Path(perfnb.__file__).parent
SCRIPTS = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.js"))
PICTURES = ["findings/js/try.js", "timeline/js/timeline.js", "flame/js/view.js", "memory/js/memory.js"]
PICTURES += ["watching/js/machine.js"]
ENTRIES = {
    "documentWidget": [*PICTURES, "draw/js/document.js"],
    "watch": ["watching/js/machine.js", "watching/js/panel.js"],
}

_DEFINED = re.compile(r"^(export )?(?:async )?(?:function|class|const|let) (\w+|\[[^\]]*\]|\{[^}]*\})", re.M)
_IMPORTED = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.M)


def defined(path: str, *, exported: bool = False) -> list[str]:
    """Return what a script defines at its top level, or exports."""
    found = _DEFINED.findall(assets.read(path))
    return list(chain.from_iterable(re.findall(r"\w+", names) for export, names in found if export or not exported))


@pytest.mark.parametrize("view", ENTRIES)
def test_no_name_is_defined_twice_in_what_is_joined(view: str) -> None:
    names = [name for path in assets.in_order(*ENTRIES[view]) for name in defined(path)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("view", ENTRIES)
def test_the_joined_script_imports_nothing_and_exports_one_thing(view: str) -> None:
    script = assets.script(*ENTRIES[view])
    expected = [] if view == "documentWidget" else [f"export default {view};"]
    assert re.findall(r"^(?:import|export)\b.*", script, re.M) == expected


def test_every_script_belongs_to_a_view_and_finds_what_it_imports() -> None:
    used = {path for entries in ENTRIES.values() for path in assets.in_order(*entries)}
    assert sorted(used) == SCRIPTS
    for path in SCRIPTS:
        for names, other in _IMPORTED.findall(assets.read(path)):
            target = (PACKAGE / path).parent.joinpath(other).resolve().relative_to(PACKAGE).as_posix()
            assert set(re.findall(r"\w+", names)) <= set(defined(target, exported=True)), (path, other)
        assert assets.read(path).count("import {") == len(_IMPORTED.findall(assets.read(path))), path


def test_a_view_holds_the_scripts_and_styles_of_its_pictures_alone() -> None:
    flame = Picture("flame", "", lambda width: [], lambda: "", None, "flame/js/view.js", "flame/js/flame.css")
    (plain, plain_style), (drawn, drawn_style) = (
        assets_of(Document("profile", sections=sections)) for sections in ((), (flame,))
    )
    assert "flameView" not in plain
    assert "flameView" in drawn
    assert len(plain.encode()) < 60_000 < len(drawn.encode()) < 100_000
    assert "pf-fl" not in plain_style
    assert "pf-fl" in drawn_style


def test_no_script_writes_markup_or_asks_for_anything() -> None:
    forbidden = re.compile(
        r"(?:inner|outer)HTML *=|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(|</script", re.I
    )
    assert [path for path in SCRIPTS if forbidden.search(assets.read(path))] == []
