"""Help, wrong use, and what the command line loads."""

from __future__ import annotations

import argparse
import errno
import functools
import io
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb as package
from perfnb.command.main import SUB_COMMANDS, main, split_program
from perfnb.command.output import say
from perfnb.command.sub_command import WrongUse
from tests.command.processes import ROOT, called, environment

COMMANDS = {one.name: one for one in map(resolve_name, SUB_COMMANDS)}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_says(name: str, golden: Callable[[str, str], None]) -> None:
    done = called(*name.split(), "--help")

    assert (done.returncode, done.stderr) == (0, "")
    golden(f"help_{name or 'perfnb'}.txt", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_without_a_command_it_shows_the_help_and_fails() -> None:
    done = called()

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
        (("run", "--at", "soon", "a.py"), "invalid number value: 'soon'"),
        (("run", "--steps-by", "luck", "a.py"), "invalid choice: 'luck'"),
        (("watch",), "perfnb watch: there is no command to watch"),
        (("watch", "--interval", "0", "--", "true"), "perfnb watch: --interval must be between 0.02 and 3600 seconds"),
        (("system", "--data", "nowhere"), "perfnb system: there is no 'nowhere'"),
    ],
)
def test_wrong_use_has_exit_code_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
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
    (tmp_path / "x.json").write_text("buy milk")
    done = called(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_program_ends_this_process_as_it_would_end_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: ended.append((pid == os.getpid(), signum)))
    monkeypatch.setattr(signal, "signal", lambda signum, handler: ended.append((signum, handler)))
    for stream in ("stdout", "stderr"):
        flush = functools.partial(ended.append, stream)
        monkeypatch.setattr(sys, stream, SimpleNamespace(flush=flush))

    def run(options: argparse.Namespace) -> int | BaseException:
        if options.program == ["interrupt"]:
            raise KeyboardInterrupt
        return KeyError("mine") if options.program == ["fail"] else 7

    command = replace(COMMANDS["watch"], run=run)
    monkeypatch.setattr("perfnb.command.main.resolve_name", lambda name: command)
    assert main(["watch", "x"]) == 7
    with pytest.raises(KeyError, match="mine"):
        main(["watch", "--", "fail"])
    assert ended == []
    assert main(["watch", "interrupt"]) == 130
    assert ended == ["stdout", "stderr", (signal.SIGINT, signal.SIG_DFL), (True, signal.SIGINT)]


@pytest.mark.parametrize(("error", "said"), [(BrokenPipeError(), None), (OSError(errno.ENOSPC, ""), "No space left")])
def test_output_that_nobody_reads_is_given_up(
    error: OSError, said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise error

        def fileno(self) -> int:
            return file.fileno()

    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Full())
        with nullcontext() if said is None else pytest.raises(WrongUse, match=f"could not be written: {said}"):
            say("text")
        file.write("more")
    assert (tmp_path / "out").read_text() == ""  # later output goes nowhere


def test_the_version_is_printed() -> None:
    assert called("--version").stdout == f"perfnb {package.__version__}\n"


def test_the_console_script_is_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    loaded = EntryPoint("perfnb", project["scripts"]["perfnb"], "console_scripts").load()
    assert loaded is resolve_name("perfnb.command.main:main")


LOADED = """
import sys
from contextlib import suppress
from perfnb.command.main import main
for words in ("--help", "show --help", "run --help", "watch --save w.perfnb -- true", "show nothing.json"):
    with suppress(SystemExit):
        main(words.split())
    heavy = {"torch", "pandas", "matplotlib", "IPython", "ipywidgets"}
    print("loaded", *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.slow
def test_little_is_loaded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )

    loaded = [line for line in done.stderr.splitlines() if line.startswith("loaded")]
    assert loaded == ["loaded"] * 3 + ["loaded pandas"] * 2


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        ("--every 1 -- a --every 2", "--every 1", "a --every 2"),
        ("--every 1 a -- b", "--every 1", "a -- b"),
        ("--every=1 a.py --save x", "--every=1", "a.py --save x"),
        ("--try a.py --try --at", "--try", "a.py --try --at"),
        ("-m pkg.train -- x", "", "-m pkg.train -- x"),
        ("--unknown a", "--unknown", "a"),
        ("--help", "--help", ""),
    ],
)
def test_a_program_keeps_its_own_options(words: str, own: str, program: str) -> None:
    parser = argparse.ArgumentParser()
    COMMANDS["run"].add_options(parser)

    assert split_program(parser, words.split()) == (own.split(), program.split())
