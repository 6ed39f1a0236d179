"""Define `SubCommand`, which describes a sub-command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perfnb.errors import PerfnbError

#: The exit codes if a requested check failed, and if the command was used incorrectly or a file cannot be read.
FAILED, WRONG = 1, 2


class WrongUse(PerfnbError):
    """Raised if the command line is invalid. The message contains the reason."""


@dataclass(frozen=True)
class SubCommand:
    """One sub-command.

    Attributes
    ----------
    name : str
    summary : str
        A one-line description for the help.
    usage : str
        The usage line for the help.
    more : str or None
        The docstring of the module. In the help, the text after the first line follows the options.
    add_options : callable
        A function that adds the options to a parser.
    run : callable
        A function that runs the sub-command with the parsed options, and returns the exit code or the exception that
        ended a program. It imports everything that it needs, so that the help is shown without delay.
    starts_a_program : bool
        Whether the options are followed by a program and its arguments. These are not parsed, but stored in
        ``options.program``.
    """

    name: str
    summary: str
    usage: str
    more: str | None
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | BaseException]
    starts_a_program: bool = False


def end_by(signum: int) -> int:
    """End this process with a signal, so that it looks to a shell like a program that the signal has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    return 128 + signum  # the signal does not end processes
