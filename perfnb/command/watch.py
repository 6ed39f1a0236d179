"""Implement ``perfnb watch``: record telemetry while a command runs, without affecting the command.

This command records how much CPU, memory, disk, network and GPU is used while COMMAND runs, both in
total and by COMMAND and its child processes. The input, output and exit code of COMMAND are
unaffected, and Ctrl-C and other signals are passed on to it. The summary is printed to standard
error. The history is saved to a folder, and perfnb show displays it again.

examples:
  perfnb watch -- python train.py --epochs 3
  perfnb watch --interval 0.1 --save train.perfnb -- torchrun --nproc-per-node 2 train.py

exit codes: the exit code of COMMAND; 127 COMMAND does not exist; 126 COMMAND cannot be run;
2 the command line is invalid
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from perfnb.command.sub_command import SubCommand, WrongUse, end_by
from perfnb.errors import PerfnbError

#: The signals that terminals and schedulers use to end a program. A terminal sends the first two to all processes in
#: the foreground.
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_OF_TERMINAL, signal.SIGTERM, signal.SIGHUP)
_NOT_FOUND, _NOT_RUN = 127, 126
#: A shell command that waits before it becomes the user's command, so that this can be watched from the start.
_HELD = 'kill -STOP $$; exec "$@"'


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=0.5, help="Seconds between readings (default: 0.5)."
    )
    parser.add_argument(
        "--save", metavar="FILE", help="Folder for the history (default: watch_DATE_TIME.perfnb in the current folder)."
    )


def _run(options: argparse.Namespace) -> int:
    if not options.program:
        raise WrongUse("there is no command to watch: perfnb watch -- COMMAND ARGS.")
    command = options.program[0]
    if shutil.which(command) is None:
        there = os.path.exists(command)
        why = "it cannot be run" if there else "there is no such command"
        print(f"perfnb watch: {command}: {why}.", file=sys.stderr)
        return _NOT_RUN if there else _NOT_FOUND
    words = ["sh", "-c", _HELD, "sh", *options.program]
    # Python ignores these signals, regardless of how it was started.
    pid = os.posix_spawn("/bin/sh", words, os.environ, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    with _passed_on_to(pid):
        os.waitpid(pid, os.WUNTRACED)
        try:
            return _watched(pid, options)
        except BaseException:
            with suppress(ProcessLookupError, ChildProcessError):  # the program may have ended
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise


def _watched(pid: int, options: argparse.Namespace) -> int:
    """Watch a stopped program from start to end, save and show the history, and end in the same way as the program."""
    from perfnb.files import usable
    from perfnb.telemetry.watcher import Watcher
    from perfnb.watching.saved import WATCH
    from perfnb.watching.watch import Watch

    target = usable(options.save or time.strftime("watch_%Y%m%d_%H%M%S.perfnb"))
    if target.exists() and not WATCH.is_at(target):
        raise WrongUse(f"{target} exists and is not a saved watch: choose another name for --save.")
    try:
        watcher = Watcher(options.interval, pid)
        watch = Watch(watcher)
    except ValueError as error:
        raise WrongUse(str(error).replace("interval_s", "--interval")) from None
    with watch:
        os.kill(pid, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        watcher.stop()
        # The end of the command is not worth a note, because the watch still has its data.
        watcher.notes[:] = [note for note in watcher.notes if f"process {pid} has ended" not in note]
    with suppress(BrokenPipeError):
        print(f"\n{watch}", file=sys.stderr)
        try:
            print(f"Saved to {watch.save(target)}. To show it again, use perfnb show {target}.", file=sys.stderr)
        except PerfnbError as error:  # the command has run, so perfnb returns its exit code
            print(f"perfnb watch: {error}", file=sys.stderr)
    return code if code >= 0 else end_by(-code)


@contextmanager
def _passed_on_to(pid: int) -> Iterator[None]:
    """Pass the signals that this process receives on to the command, which decides how to handle them."""

    def handle(signum: int, _: object) -> None:
        if signum not in _OF_TERMINAL or not _in_front():
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    # Signals that are already ignored, for example because of nohup, remain ignored.
    before = {signum: signal.getsignal(signum) for signum in _PASSED_ON}
    handled = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}
    for signum in handled:
        signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in handled.items():
            signal.signal(signum, handler)


def _in_front() -> bool:
    """Check whether this process is in a terminal's foreground, so that the command has also received Ctrl-C."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


COMMAND = SubCommand(
    name="watch",
    summary="Record CPU, memory, disk, network and GPUs while a command runs.",
    usage="perfnb watch [--interval SECONDS] [--save FILE] -- COMMAND ARGS",
    more=__doc__,
    add_options=_options,
    run=_run,
    starts_a_program=True,
)
