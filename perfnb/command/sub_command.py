"""`SubCommand`: the parts of a sub-command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perfnb.errors import PerfnbError

#: Exit codes: the requested check failed; wrong use, or something that cannot be read.
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
        Its purpose in one line.
    usage : str
        Its usage line, as shown in the help.
    more : str or None
        Its module's docstring. The text after the first line follows the options in the help.
    add_options : callable
        Adds its options to a parser.
    run : callable
        Runs it with the given options, and returns the exit code or the exception that ended a program. It imports
        everything it needs itself, so that help is shown immediately.
    starts_a_program : bool
        Whether its own options are followed by a program and its arguments, which are not parsed: ``options.program``.
    """

    name: str
    summary: str
    usage: str
    more: str | None
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | BaseException]
    starts_a_program: bool = False


def end_by(signum: int) -> int:
    """End this process as the signal would, so that it looks like any other program to a shell."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    return 128 + signum  # a signal that does not end a process
