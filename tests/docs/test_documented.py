"""The documentation is complete: it has every public name, and every name in it exists."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pkgutil import resolve_name
from types import FunctionType

import pytest

import perfnb
from perfnb import errors, labs, results
from perfnb.command.main import SUB_COMMANDS
from perfnb.command.sub_command import SubCommand
from perfnb.magics import MAGICS, parser_of
from perfnb.magics.line import option_names
from perfnb.recording.schema import SCHEMA
from tests.docs.pages import DOCS, PAGES, README, prose

REFERENCE = (DOCS / "reference.md").read_text("utf-8")
ENTRY = re.compile(r"^\.\. auto(function|class|exception):: (\S+)((?:\n   :\S+:.*)*)", re.MULTILINE)
ENTRIES = {match[2]: match for match in ENTRY.finditer(REFERENCE)}
CLASSES = [name for name, match in ENTRIES.items() if match[1] == "class"]

#: Code on the pages, except what Sphinx generates from docstrings.
_SPHINX = re.compile(r"^```\{.*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$|`[^`]+`", re.DOTALL | re.MULTILINE)
WORDS = {
    word
    for path in PAGES.values()
    if path.name != "changelog.md"
    for code in _CODE.findall(_SPHINX.sub("", path.read_text("utf-8")))
    for word in re.findall(r"\w+", code)
}

#: The page that describes the options of each magic.
PAGE_OF = {
    "profile_step": "profile.md",
    "gpuwatch": "magics.md",
    "try_levers": "magics.md",
    "latency": "magics.md",
}

_TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)


def named(path: str) -> object:
    """Return the object with a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the public properties and methods of a class, its bases' included."""
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        if not name.startswith("_") and isinstance(value, (property, cached_property, FunctionType)):
            yield name, value


def test_every_public_name_is_in_the_reference() -> None:
    modules = {"perfnb": perfnb, "perfnb.results": results, "perfnb.labs": labs}
    names = {f"{module}.{name}" for module, its in modules.items() for name in its.__all__}
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)} - set(perfnb.__all__)
    assert (names | {f"perfnb.errors.{name}" for name in raised}) - set(ENTRIES) == set()


def test_the_face_of_the_package_fits_on_one_screen() -> None:
    assert dir(perfnb) == sorted([*perfnb.__all__, "integrations", "labs", "results"])
    assert len(dir(perfnb)) < 30
    classes = [name for name in perfnb.__all__ if isinstance(getattr(perfnb, name), type)]
    assert classes == ["PerfnbError", "Profile", "Timing", "Watch"]
    assert all(isinstance(getattr(results, name), type) for name in results.__all__)
    assert dir(results) == results.__all__


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("report", "perfnb.ab_test(..., quality=..., limits=..., profile=True)"),
        ("PerformanceReport", "perfnb.results.ABTest"),
        ("selfcheck", "perfnb.system_check(resolution=True)"),
        ("SelfCheck", "perfnb.results.Resolution"),
        ("levers", "the magic %try_levers --list"),
        ("Ranks", "perfnb.results.Ranks"),
    ],
)
def test_an_old_name_says_what_to_write_instead(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"^{re.escape(f'perfnb.{name} is now {instead}.')}$"):
        getattr(perfnb, name)
    with pytest.raises(AttributeError, match="has no attribute 'reports'"):
        perfnb.reports  # noqa: B018


def test_the_reference_names_what_there_is() -> None:
    for name, match in ENTRIES.items():
        kind = {"function": FunctionType, "class": type, "exception": type}[match[1]]
        assert isinstance(named(name), kind), name


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_attribute_is_in_the_reference(name: str) -> None:
    cls = named(name)
    assert isinstance(cls, type)
    assert ":members:" in ENTRIES[name][3], f"the members of {name} are left out"

    # The page omits what has no docstring; fields are described in the docstring of their class.
    assert [attribute for attribute, value in public(cls) if not inspect.getdoc(value)] == []
    bases = "".join(inspect.cleandoc(base.__doc__ or "") for base in cls.__mro__[:-1])
    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    assert [field for field in fields if not field.startswith("_") and not re.search(rf"\b{field}\b", bases)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_attribute_stands_on_some_page(name: str) -> None:
    cls = named(name)
    assert isinstance(cls, type)

    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    names = [*(attribute for attribute, _ in public(cls)), *(field for field in fields if not field.startswith("_"))]
    assert [attribute for attribute in names if attribute not in WORDS] == []


@pytest.mark.parametrize("frame", SCHEMA)
def test_every_column_of_a_frame_stands_on_some_page(frame: str) -> None:
    # For columns of both profiles, the page says that names end in `_a` and `_b`.
    columns = [re.sub("_[ab]$", "", column) for column in SCHEMA[frame]]
    assert [column for column in columns if column not in WORDS] == []


@pytest.mark.parametrize("magic", MAGICS)
def test_every_option_of_a_magic_is_described(magic: str) -> None:
    text = prose((DOCS / PAGE_OF[magic]).read_text("utf-8"))

    assert [option for option in option_names(parser_of(magic)) if option not in text] == []


@pytest.mark.parametrize("command", [*map(resolve_name, SUB_COMMANDS)], ids=lambda command: command.name)
def test_every_option_of_a_sub_command_is_described(command: SubCommand) -> None:
    sections = prose((DOCS / "command_line.md").read_text("utf-8")).split("\n## ")
    (text,) = (section for section in sections if section.startswith(f"`perfnb {command.name}`"))
    parser = argparse.ArgumentParser()
    command.add_options(parser)

    assert [option for option in option_names(parser) if option not in f"{text} --help"] == []


def test_every_argument_of_profile_step_is_described() -> None:
    text = prose((DOCS / "profile.md").read_text("utf-8"))

    arguments = set(inspect.signature(perfnb.profile_step).parameters) - {"step"}
    assert [argument for argument in sorted(arguments) if f"`{argument}" not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_names_on_a_page_exist(page: str) -> None:
    text = PAGES[page].read_text("utf-8")

    functions = set(re.findall(r"\bperfnb\.([A-Za-z]\w*)", text))
    assert {name for name in functions if not hasattr(perfnb, name)} - {
        "scaling",
        "analysis",
        "errors",
        "integrations",
        "labs",
    } == set()
    tables = set(re.findall(r"(?<![\w.])p\.([a-z]\w*)", text))
    assert {name for name in tables if not hasattr(perfnb.Profile, name)} == set()


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    lines = "".join(_TOCTREE.findall(index)).splitlines()
    listed = [line.strip() for line in lines if line.strip()[:1].isalpha()]

    pages = {path.stem for path in PAGES.values() if path not in (README, DOCS / "index.md")}
    assert sorted(listed) == sorted(pages)


def test_the_page_on_magics_has_all_of_them() -> None:
    opening = (DOCS / "magics.md").read_text("utf-8").partition("\n## ")[0]
    names = [line.split("|")[1] for line in opening.splitlines() if line.startswith("| `%")]

    assert set(re.findall(r"`%%?(\w+)`", " ".join(names))) == set(MAGICS)
    assert len(MAGICS) == len(names) == 4
    assert "`%load_ext perfnb` loads four magics" in opening


def test_what_is_missing_is_noticed() -> None:
    class Undocumented:
        @property
        def table(self) -> int:
            return 1

    assert [name for name, value in public(Undocumented) if not inspect.getdoc(value)] == ["table"]
