"""``perfnb system``: is the machine set up well?"""

from __future__ import annotations

import argparse

from perfnb.command.output import columns, say, say_json
from perfnb.command.sub_command import SubCommand, WrongUse

_MORE = """\
Checks what slows steps down or makes timings unsteady: clocks, threads, limits, memory, the disk
of the data, GPUs. Problems come first. Nothing is changed.

examples:
  perfnb system
  perfnb system --data data/train --json

exit codes: 0 checked, whatever was found; 2 there is no such data"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="PATH", default=".", help="What the loader reads (default: this folder).")
    parser.add_argument("--json", action="store_true", help="Print JSON instead.")


def _run(options: argparse.Namespace) -> int:
    from perfnb.command.as_json import facts_of
    from perfnb.system.system import system_check

    try:
        found = system_check(options.data)
    except FileNotFoundError as error:
        raise WrongUse(str(error)) from None
    if options.json:
        say_json(facts_of(found))
    else:
        say(found._text(columns()))
    return 0


COMMAND = SubCommand(
    name="system",
    summary="Check the machine for what slows steps down or makes timings unsteady.",
    usage="perfnb system [--data PATH] [--json]",
    more=_MORE,
    add_options=_options,
    run=_run,
)
