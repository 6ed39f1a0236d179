"""Parse a magic's line, which consists of options followed by unmodified Python code."""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
from typing import Any

from IPython.core import magic
from IPython.core.error import UsageError

_OPTION = re.compile(r"(--[A-Za-z][\w-]*)(=?)")
_SHORT = re.compile(r"-[A-Za-z][\w-]*")
_VALUE = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")

#: A decorator for magics whose value is suppressed by a trailing semicolon. It has no effect in IPython 7, which Colab
#: uses.
can_be_silenced: Any = getattr(magic, "output_can_be_silenced", lambda function: function)

#: The kinds of option values, in words.
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}


def split_line(line: str, parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, str]:
    """Parse the options at the beginning of a line, and return the rest unchanged.

    Raises
    ------
    UsageError
        If an option is unknown, or if its value is missing or invalid.
    """
    words: list[str] = []
    rest = line.strip()
    while match := _OPTION.match(rest):
        action = _action(match[1], parser)
        words.append(match[1])
        rest = rest[match.end() :]
        if action.nargs != 0:
            value = _VALUE.match(rest)
            if value is None or value[1].startswith("--"):
                raise UsageError(f"{match[1]} requires a value: {match[1]} {action.metavar or action.dest.upper()}")
            words[-1] += f"={_checked(_unquoted(value[1], match[1]), match[1], action.type)}"
            rest = rest[value.end() :]
        elif match[2] or (rest and not rest[0].isspace()):
            raise UsageError(f"{match[1]} does not take a value.")
        rest = rest.lstrip()
    if rest == "-h":
        raise UsageError(f"there is no option -h: {parser.prog}? shows the help.")
    return parser.parse_args(words), rest


def refuse_short(clause: str, parser: argparse.ArgumentParser) -> None:
    """Raise a UsageError if a clause starts with a single-dash option."""
    if match := _SHORT.match(clause):
        meant = [name for name in option_names(parser) if name.startswith(f"-{match[0]}")]
        hint = f"did you mean {meant[0]}?" if len(meant) == 1 else _listed(parser)
        raise UsageError(f"there is no option {match[0]}: {hint}")


def require_name(name: str | None) -> None:
    """Raise a UsageError if the value of ``--into`` is not a variable name."""
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"--into requires a variable name, not {name!r}.")


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return a parser's long options."""
    return sorted(name for name in parser._option_string_actions if name.startswith("--"))


def _action(name: str, parser: argparse.ArgumentParser) -> Any:
    actions = parser._option_string_actions
    if name in actions:
        return actions[name]
    near = difflib.get_close_matches(name, option_names(parser), n=1)
    if name == "--help":
        hint = f"{parser.prog}? shows the help."
    else:
        hint = f"did you mean {near[0]}?" if near else _listed(parser)
    raise UsageError(f"there is no option {name}: {hint}")


def _listed(parser: argparse.ArgumentParser) -> str:
    return f"the options are {', '.join(option_names(parser))}."


def _checked(value: str, option: str, kind: Any) -> str:
    """Return the text of an option's value after checking its type."""
    if kind in _KINDS:
        try:
            kind(value)
        except ValueError:
            raise UsageError(f"{option} must be {_KINDS[kind]}, not {value!r}.") from None
    return value


def _unquoted(value: str, option: str) -> str:
    if value[0] not in "\"'":
        return value
    if len(value) == 1 or value[0] != value[-1]:
        raise UsageError(f"the value of {option} has no closing quote: {value}")
    return value[1:-1]
