"""What a sub-command consists of."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perfnb.errors import PerfnbError

#: Exit codes: the check that was asked for failed; wrong use, or something that cannot be read.
FAILED, WRONG = 1, 2


class WrongUse(PerfnbError):
    """The words on the command line make no sense; the message has the reason."""


@dataclass(frozen=True)
class SubCommand:
    """One sub-command.

    Attributes
    ----------
    name : str
    summary : str
        What it does, in one line.
    usage : str
        Its words, as the help shows them.
    more : str or None
        Its module's docstring: what is below the first line follows the options in the help.
    add_options : callable
        Adds its options to its parser.
    run : callable
        Does it, given the options; returns the exit code, or the exception that ended a program. Imports what it needs
        itself, so that help comes at once.
    starts_a_program : bool
        Whether what follows its own options is a program and its arguments, which are left alone: ``options.program``.
    """

    name: str
    summary: str
    usage: str
    more: str | None
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | BaseException]
    starts_a_program: bool = False


def end_by(signum: int) -> int:
    """End this process as the signal would, so that a shell sees it as for any other program."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    return 128 + signum  # a signal that does not end a process
