"""Help, wrong use, and what the command line loads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import resolve_name

import pytest

import perfnb as package
from perfnb.command.main import SUB_COMMANDS, split_program
from tests.command.processes import ROOT, called, environment, perfnb

COMMANDS = {one.name: one for one in map(resolve_name, SUB_COMMANDS)}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_says(name: str, golden: Callable[[str, str], None]) -> None:
    done = called(*name.split(), "--help")

    assert (done.returncode, done.stderr) == (0, "")
    golden(f"help_{name or 'perfnb'}.txt", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.slow
def test_without_a_command_it_shows_the_help_and_fails() -> None:
    done = perfnb()

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: perfnb COMMAND")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shov", "x"), "there is no command 'shov': did you mean show?"),
        (("zzz", "x"), "invalid choice: 'zzz'"),
        (("show",), "perfnb show: error: the following arguments are required: FILE"),
        (("show", "a", "--htm", "b"), "perfnb show: error: unrecognized arguments: --htm b"),
        (("compare", "a", "b", "--fail-if-slower", "-3"), "--fail-if-slower"),
        (("compare", "a", "b", "--fail-if-slower", "much"), "invalid percentage value: 'much'"),
        (("show", "a", "--json", "--html", "b"), "error: argument --html: not allowed with argument --json"),
        (("run",), "perfnb run: there is no script to run"),
        (("run", "nothing.py"), "perfnb run: nothing.py does not exist or is not a file"),
        (("run", "--at", "soon", "a.py"), "invalid number value: 'soon'"),
        (("run", "--steps-by", "luck", "a.py"), "invalid choice: 'luck'"),
        (("watch",), "perfnb watch: there is no command to watch"),
        (("watch", "--interval", "0", "--", "true"), "perfnb watch: --interval must be between 0.02 and 3600 seconds"),
        pytest.param(
            ("system", "--data", "nowhere"), "perfnb system: there is no 'nowhere'", marks=pytest.mark.slow
        ),  # it imports torch
    ],
)
def test_wrong_use_is_told_with_exit_code_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = called(*words, cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", [("show", "x.json"), ("compare", "x.json", "y.json"), ("ranks", "x.json")])
def test_an_unknown_file_gives_one_sentence_and_exit_code_2(words: tuple[str, ...], tmp_path: Path) -> None:
    done = called(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"perfnb {words[0]}: x.json does not exist.\n"


def test_a_file_of_another_kind_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk")
    done = called("show", "notes.txt", cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "notes.txt is not a file that perfnb can read" in done.stderr


def test_the_version_is_told() -> None:
    assert called("--version").stdout == f"perfnb {package.__version__}\n"


def test_the_console_script_is_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    loaded = EntryPoint("perfnb", project["scripts"]["perfnb"], "console_scripts").load()
    assert loaded is resolve_name("perfnb.command.main:main")


LOADED = """
import sys
from perfnb.command.main import main
try:
    main({words!r})
except SystemExit:
    pass
heavy = {{"torch", "pandas", "matplotlib", "IPython", "ipywidgets"}}
print("loaded", *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], []),
        (["show", "--help"], []),
        (["run", "--help"], []),
        (["watch", "--save", "w.perfnb", "--", "true"], ["pandas"]),
        (["show", "nothing.json"], ["pandas"]),
    ],
)
def test_little_is_loaded(words: list[str], heavy: list[str], tmp_path: Path) -> None:
    code = LOADED.format(words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )

    assert done.stderr.splitlines()[-1].split() == ["loaded", *heavy], done.stderr


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        ("--interval 1 -- a --interval 2", "--interval 1", "a --interval 2"),
        ("--interval 1 a -- b", "--interval 1", "a -- b"),
        ("--interval=1 a.py --save x", "--interval=1", "a.py --save x"),
        ("-m pkg.train -- x", "", "-m pkg.train -- x"),
        ("--unknown a", "--unknown", "a"),
        ("--help", "--help", ""),
    ],
)
def test_a_program_keeps_its_own_options(words: str, own: str, program: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    COMMANDS["watch"].add_options(parser)

    assert split_program(parser, words.split()) == (own.split(), program.split())
