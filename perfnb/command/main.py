"""Implement ``perfnb`` and ``python -m perfnb``: parse the arguments, run a sub-command, and report errors.

examples:
  perfnb show trace.json.gz                      show the report about a trace
  perfnb compare before.perfnb after.perfnb      show the changes between two profiles
  perfnb run train.py --epochs 3                 profile some steps of an unmodified script
  perfnb watch -- python train.py                record CPU, memory and GPUs while a command runs

To see the options of a command, use perfnb COMMAND --help.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pkgutil import resolve_name

import perfnb
from perfnb.command.sub_command import WRONG, SubCommand, end_by
from perfnb.errors import PerfnbError

#: The sub-commands in the order of the help. To add one, add a module and a line here.
SUB_COMMANDS = (
    "perfnb.command.show:COMMAND",
    "perfnb.command.compare:COMMAND",
    "perfnb.command.ranks:COMMAND",
    "perfnb.command.journal:COMMAND",
    "perfnb.command.run:COMMAND",
    "perfnb.command.watch:COMMAND",
    "perfnb.command.system:COMMAND",
)

_WHAT = "Find out where the time and memory of PyTorch steps go, from a terminal."


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    words : sequence of str, optional
        The arguments after ``perfnb``. The default is the arguments of this process.

    Returns
    -------
    int
        The exit code: 0 on success, 1 if a requested check failed, and 2 for wrong usage or unreadable files.
        Sub-commands that start a program return the program's exit code.
    """
    given = list(sys.argv[1:] if words is None else words)
    commands: dict[str, SubCommand] = {command.name: command for command in map(resolve_name, SUB_COMMANDS)}
    command = commands.get(given[0]) if given else None
    if command is None:
        parser = _parser(commands.values())
        if given and (close := get_close_matches(given[0], commands)):
            parser.error(f"there is no command {given[0]!a}: did you mean {close[0]}?")
        parser.parse_args(given)
        parser.print_help(sys.stderr)
        return WRONG
    parser = _new_parser(f"perfnb {command.name}", command.usage, command.summary, command.more)
    command.add_options(parser)
    own, program = given[1:], list[str]()
    if command.starts_a_program:
        own, program = split_program(parser, own)
    options = parser.parse_args(own)
    options.program = program
    try:
        ended = command.run(options)
    except PerfnbError as error:
        print(f"perfnb {command.name}: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return end_by(signal.SIGINT)
    if isinstance(ended, BaseException):
        raise ended  # the program's exception; Python prints it and exits in the same way as without perfnb
    return ended


def split_program(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into perfnb's own options and the program that follows, which may have options of the same name.

    As in Python's own command line, the program starts at the first argument that is not an option, at ``-m``, or after
    ``--``.
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return list(words[:place]), list(words[place + 1 :])
        if word == "-m" or not word.startswith("-"):
            break
        option = parser._option_string_actions.get(word.partition("=")[0])
        place += 2 if option is not None and option.nargs not in (0, "?") and "=" not in word else 1
    return list(words[:place]), list(words[place:])


class _Help(argparse.RawDescriptionHelpFormatter):
    """A help formatter that uses at most 100 columns and preserves the line breaks of examples."""

    def __init__(self, prog: str) -> None:
        from perfnb.command.output import columns

        super().__init__(prog, max_help_position=28, width=columns())


def _parser(commands: Iterable[SubCommand]) -> argparse.ArgumentParser:
    """Return the parser for ``perfnb`` itself, whose help lists the sub-commands."""
    parser = _new_parser("perfnb", "perfnb COMMAND ...", _WHAT, __doc__)
    parser.add_argument("--version", action="version", version=f"perfnb {perfnb.__version__}")
    names = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in commands:
        names.add_parser(command.name, help=command.summary, add_help=False)
    return parser


def _new_parser(name: str, usage: str, summary: str, docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help includes the text after the first line of a docstring.

    If Python strips docstrings, the help does not include this text.
    """
    more = (docstring or "").partition("\n\n")[2].rstrip()
    return argparse.ArgumentParser(
        name, usage=usage, description=summary, epilog=more, formatter_class=_Help, allow_abbrev=False
    )
