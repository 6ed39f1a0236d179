"""``perfnb watch``: telemetry while a command runs, which sees and does what it would without."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from perfnb.command.output import columns
from perfnb.command.sub_command import SubCommand, WrongUse, end_by
from perfnb.errors import PerfnbError

_MORE = """\
CPU, memory, disk, network and GPUs while COMMAND runs, and what it and the processes below it use.
Its output, its input and its exit code are its own; the summary follows on standard error. Ctrl-C
and other signals reach COMMAND. The history is saved to a folder: perfnb show shows it again.

examples:
  perfnb watch -- python train.py --epochs 3
  perfnb watch --interval 0.1 --save train.perfnb -- torchrun --nproc-per-node 2 train.py

exit codes: COMMAND's own; 127 there is no such command; 126 it cannot be run; 2 wrong use"""

#: What a terminal or a scheduler sends to end a program; a terminal sends the first two to all processes in front.
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_OF_TERMINAL, signal.SIGTERM, signal.SIGHUP)
_NOT_FOUND, _NOT_RUN = 127, 126


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=0.5, help="Seconds between readings (default: 0.5)."
    )
    parser.add_argument(
        "--save", metavar="FILE", help="Where the history is saved (default: watch_DATE_TIME.perfnb, in this folder)."
    )


def _run(options: argparse.Namespace) -> int:
    if not options.program:
        raise WrongUse("there is no command to watch: perfnb watch -- COMMAND ARGS.")
    program = _held(options.program)  # forked before anything starts threads here
    with _passed_on_to(program.pid):
        try:
            return _watched(program, options)
        finally:
            program.let_go(run=False)


def _watched(program: _Held, options: argparse.Namespace) -> int:
    """Watch a program from its start to its end; save and show the history, and end as it did."""
    from perfnb.files import usable
    from perfnb.telemetry.watcher import Watcher
    from perfnb.watching.saved import WATCH
    from perfnb.watching.watch import Watch

    target = usable(options.save or time.strftime("watch_%Y%m%d_%H%M%S.perfnb"))
    if target.exists() and not WATCH.is_at(target):
        raise WrongUse(f"{target} exists and is no saved watch: choose another name for --save.")
    try:
        watcher = Watcher(options.interval, program.pid)
        watch = Watch(watcher)
    except ValueError as error:
        raise WrongUse(str(error).replace("interval_s", "--interval")) from None
    with watch:
        failed = program.let_go(run=True)
        code = program.wait()
        watcher.stop()
        # That the command has ended is no news; the watch keeps what it knows when it ends.
        watcher.notes[:] = [note for note in watcher.notes if f"process {program.pid} has ended" not in note]
    if failed:
        why = "there is no such command" if failed == errno.ENOENT else f"it cannot be run: {os.strerror(failed)}"
        print(f"perfnb watch: {options.program[0]}: {why}.", file=sys.stderr)
        return _NOT_FOUND if failed == errno.ENOENT else _NOT_RUN
    with suppress(BrokenPipeError):
        print(f"\n{watch._text(columns())}", file=sys.stderr)
        try:
            print(f"Saved to {watch.save(target)}: perfnb show {target} shows it again.", file=sys.stderr)
        except PerfnbError as error:  # the command has run: its exit code counts
            print(f"perfnb watch: {error}", file=sys.stderr)
    return code if code >= 0 else end_by(-code)


@dataclass
class _Held:
    """A process that waits to become a program, so that it can be watched from its first instruction."""

    pid: int
    gate: int
    answer: int
    _code: int | None = None

    def let_go(self, *, run: bool) -> int:
        """Let the process start the program, or end it; return the error number if the program could not be started."""
        if self.gate < 0:
            return 0
        gate, self.gate = self.gate, -1
        if run:
            with suppress(BrokenPipeError):  # it was ended while it waited
                os.write(gate, b"!")
        os.close(gate)
        with open(self.answer, "rb") as answer:
            failed = answer.read()
        if not run:
            self.wait()
        return int(failed or b"0")

    def wait(self) -> int:
        """Wait for its end; its exit code, negative for the signal that ended it."""
        if self._code is None:
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _held(command: Sequence[str]) -> _Held:
    """Fork a process for a command."""
    gate, go = os.pipe()
    answer, failed = os.pipe()
    pid = os.fork()
    if pid:
        os.close(gate)
        os.close(failed)
        return _Held(pid, go, answer)
    try:
        os.close(go)
        os.close(answer)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, not by whoever started it
            signal.signal(ignored, signal.SIG_DFL)
        if os.read(gate, 1):
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(failed, str(error.errno).encode())
    finally:
        os._exit(_NOT_FOUND)


@contextmanager
def _passed_on_to(pid: int) -> Iterator[None]:
    """Signals to this process are for the command, which decides what they mean."""

    def handle(signum: int, _: object) -> None:
        if signum not in _OF_TERMINAL or not _in_front():
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    # What is ignored stays so, as under nohup.
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
    """Whether this process is in the foreground of a terminal, and so whether the command got its Ctrl-C too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


COMMAND = SubCommand(
    name="watch",
    summary="Record CPU, memory, disk, network and GPUs while a command runs.",
    usage="perfnb watch [--interval SECONDS] [--save FILE] -- COMMAND ARGS",
    more=_MORE,
    add_options=_options,
    run=_run,
    starts_a_program=True,
)
