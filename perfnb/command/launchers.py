"""Support launchers in ``perfnb run``: each process that a launcher starts runs the script under ``perfnb run``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perfnb.command.sub_command import WrongUse


class Launcher(NamedTuple):
    """A command that starts scripts, with its module and the location of its parser."""

    module: str
    words: tuple[str, ...]  # the launcher's own words, which precede its options
    parser: tuple[str, str]


_LAUNCHERS = {
    "torchrun": Launcher("torch.distributed.run", (), ("torch.distributed.run", "get_args_parser")),
    "accelerate": Launcher(
        "accelerate.commands.accelerate_cli", ("launch",), ("accelerate.commands.launch", "launch_command_parser")
    ),
}
_MODULE = ("-m", "--module")


def is_launched(program: Sequence[str]) -> bool:
    """Check whether a command line starts with a launcher."""
    return bool(program) and Path(program[0]).name in _LAUNCHERS


def launched(program: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command line to run instead of ``LAUNCHER OPTIONS SCRIPT ARGS``.

    Parameters
    ----------
    options : list of str
        The options of ``perfnb run`` that are passed to each process.

    Raises
    ------
    WrongUse
        If the launcher is not installed, or if its command line contains no script.
    """
    name = Path(program[0]).name
    launcher = _LAUNCHERS[name]
    given = list(program[1:])
    if tuple(given[: len(launcher.words)]) != launcher.words:
        raise WrongUse(f"perfnb run requires a script after {' '.join((name, *launcher.words))}.")
    given = given[len(launcher.words) :]
    parsed = _parsed(launcher, given, name)
    if getattr(parsed, "no_python", False):
        raise WrongUse("perfnb run only profiles Python scripts: omit --no-python.")
    if getattr(parsed, "run_path", False):
        raise WrongUse("perfnb run profiles scripts in separate processes: omit --run-path.")
    at = len(given) - len(parsed.training_script_args) - 1
    while given[at] != parsed.training_script:  # argparse drops a "--" after the script
        at -= 1
    own = [word for word in given[:at] if word not in _MODULE]
    script = ["-m", parsed.training_script] if parsed.module else [parsed.training_script]
    return [
        *("-m", launcher.module, *launcher.words, *own),
        *("-m", "perfnb", "run", *options, *script, *parsed.training_script_args),
    ]


def _parsed(launcher: Launcher, given: Sequence[str], name: str) -> Any:
    module, function = launcher.parser
    try:
        parser: argparse.ArgumentParser = getattr(importlib.import_module(module), function)()
    except ModuleNotFoundError as error:
        raise WrongUse(f"{name} is not installed in this environment: {error}.") from None
    return parser.parse_args(list(given))
