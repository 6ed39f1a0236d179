"""Implement ``perfnb system``: check whether the machine is set up well.

The checks look for anything that slows steps down or makes timings unsteady: clocks, threads,
limits, memory, the disk that contains the data, and GPUs. Problems are listed first. This command
does not change anything.

examples:
  perfnb system
  perfnb system --data data/train --json

exit codes: 0 checked, even if there are problems; 2 the data path does not exist
"""

from __future__ import annotations

import argparse

from perfnb.command.output import say_result
from perfnb.command.sub_command import SubCommand, WrongUse


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="PATH",
        default=".",
        help="Path of the data that the loader reads (default: the current folder).",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead.")
    parser.set_defaults(html=None)


def _run(options: argparse.Namespace) -> int:
    from perfnb.system.system import system_check

    try:
        found = system_check(options.data)
    except FileNotFoundError as error:
        raise WrongUse(str(error)) from None
    say_result(found, options)
    return 0


COMMAND = SubCommand(
    name="system",
    summary="Check the machine for anything that slows steps down or makes timings unsteady.",
    usage="perfnb system [--data PATH] [--json]",
    more=__doc__,
    add_options=_options,
    run=_run,
)
