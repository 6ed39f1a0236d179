"""``perfnb run``: profile some steps of a script that knows nothing of perfnb."""

from __future__ import annotations

import argparse
import atexit
import itertools
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.command.output import columns
from perfnb.command.script import require_program, run_as_main
from perfnb.command.sub_command import SubCommand, WrongUse
from perfnb.files import require_writable

if TYPE_CHECKING:
    from perfnb.loop.driver import LoopProfiler
    from perfnb.loop.record import RunRecorder
    from perfnb.loop.script_steps import ScriptSteps

_MORE = """\
Runs SCRIPT as python would, unchanged, and profiles 27 of its training steps in the middle of
the run, each executed once. Its output, arguments, exit code, tracebacks and Ctrl-C are those of
python SCRIPT. The report follows on standard error when the script has ended, or was interrupted.

A step ends when the first optimizer that stepped has stepped again, and the next one starts where
the loop asks its DataLoader for the next batch; without a DataLoader, right there. With one, what
the loop does after optimizer.step(), such as logging, is in no step. --steps-by last
ends it with the optimizer that came last, as a GAN with two needs; --steps-by batch with the next
batch, as a loop without an optimizer needs.

examples:
  perfnb run train.py --epochs 3
  perfnb run --at 500 --save runs/big train.py
  perfnb run --every 1000 -m package.train --lr 0.1
  perfnb run --steps-by last gan.py

exit codes: SCRIPT's own; 2 also if there is no such script"""


def _options(parser: argparse.ArgumentParser) -> None:
    from perfnb.loop.script_steps import BY

    parser.add_argument(
        "--at",
        metavar="N",
        type=_numbers,
        default=[100],
        help="Steps before the profiled ones (default: 100); several with commas: 100,5000.",
    )
    parser.add_argument("--every", metavar="N", type=int, help="Profile again after this many steps, over and over.")
    parser.add_argument(
        "--save", metavar="DIR", help="Folder for the profiles (default: runs/SCRIPT_DATE_TIME, in this folder)."
    )
    parser.add_argument(
        "--steps-by", metavar="WHAT", choices=BY, default=BY[0], help=f"What ends a step: {', '.join(BY)}."
    )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_numbers.__name__ = "number"  # as argparse names it in its error


def _run(options: argparse.Namespace) -> int | BaseException:
    from perfnb.loop.script_steps import ScriptSteps

    program: list[str] = options.program
    require_program(program)
    _require_windows(options)
    name = Path(program[0]).stem if program[0] != "-m" else program[1]
    if options.save is None:
        made = _new_folder(Path("runs"), f"{name}_{time.strftime('%Y%m%d_%H%M%S')}")
    else:
        made = []
        require_writable(Path(options.save))
    report = _Report(made[0] if made else Path(options.save), name, made)
    steps = ScriptSteps(lambda loader: report.start(loader, options), options.steps_by)
    atexit.register(report.tell)  # first, so that what the script has registered runs before it
    try:
        with steps.installed():
            ended = run_as_main(program)
    except WrongUse:
        report.remove_empty_folder()
        raise
    report.finish(steps, options)
    return 0 if ended is None else ended


def _new_folder(parent: Path, name: str) -> list[Path]:
    """Make a folder for this run alone, also if another one starts in the same second; ranks of a job share one.

    Return what was made: the folder, and its parent if that was not there.
    """
    require_writable(parent / name)
    made = [] if parent.exists() else [parent.absolute()]
    parent.mkdir(parents=True, exist_ok=True)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}_{number}")
        try:
            folder.mkdir(exist_ok=not alone)
        except FileExistsError:
            continue
        return [folder.absolute(), *made]
    raise AssertionError


def _require_windows(options: argparse.Namespace) -> None:
    if any(not 0 <= one <= 10**9 for one in options.at):
        raise WrongUse("--at must be a number of steps, 0 or more.")
    if options.every is not None and not 1 <= options.every <= 10**9:
        raise WrongUse("--every must be a number of steps, 1 or more.")


class _Report:
    """What is said when the script has ended."""

    def __init__(self, folder: Path, name: str, made: list[Path]) -> None:
        self._start: Path | None = None
        with suppress(OSError):  # it can be gone
            self._start = Path.cwd()  # the script may go elsewhere
        self._folder, self._name, self._made = folder.absolute(), name, made
        self._driver: LoopProfiler | None = None
        self._recorder: RunRecorder | None = None
        self._process = os.getpid()
        rank = os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        self._rank = int(rank) if rank.isdigit() else None
        self._text = ""

    def start(self, loader: Any, options: argparse.Namespace) -> LoopProfiler:
        """Make the driver; called at the first step, when torch is loaded."""
        from perfnb.loop.driver import LoopProfiler
        from perfnb.loop.record import RunRecorder
        from perfnb.loop.script_steps import script_variables

        self._recorder = RunRecorder(self._name)
        self._driver = LoopProfiler(
            options.at,
            options.every,
            self._folder,
            name=self._name,
            namespace=script_variables,
            loader=loader,
            recorder=self._recorder,
        )
        self._driver.by_batch = options.steps_by == "batch"
        return self._driver

    def finish(self, steps: ScriptSteps, options: argparse.Namespace) -> None:
        """Close the driver and write the report; the script's exit code stays, whatever happens here."""
        try:
            self._text = "\n\n".join(self._parts(steps, options))
        except Exception as error:
            self._text = f"perfnb run: there is no report: {type(error).__name__}: {error}"
        self.remove_empty_folder()

    def remove_empty_folder(self) -> None:
        """Leave nothing behind if nothing was saved."""
        with suppress(OSError):  # it has contents, or was never made
            for folder in self._made:
                folder.rmdir()

    def _parts(self, steps: ScriptSteps, options: argparse.Namespace) -> list[str]:
        from perfnb.draw import escape

        driver, width = self._driver, columns()
        if driver is None or self._recorder is None:
            said = "perfnb run: no step was seen: the main thread used no optimizer and no DataLoader of torch."
            return ["\n".join(escape.wrapped(said, width))]
        driver.close()
        # Only now: they load torch, which a script without it should not pay for, and which can end the process.
        from perfnb.loop.kept_run import keep_run
        from perfnb.loop.run import summarise

        parts, notes = [], []
        if (run := summarise(self._recorder)) is not None:
            parts.append(run._text(width))
            saved = self._short(keep_run(run, self._folder))
            notes.append(f"The whole run is saved to {saved}: perfnb show {saved} shows it again.")
        if len(driver.profiles):
            parts.append(driver.profiles[-1]._text(width))
            paths = [self._short(path) for path in driver.profiles.paths]
            more = f" (and {len(paths) - 1:,} before it)" if len(paths) > 1 else ""
            notes.append(f"The profile above is saved to {paths[-1]}{more}.")
        elif not steps.optimizers and options.steps_by != "batch":
            notes.append(
                "perfnb run: no profile: a step ends where an optimizer steps, and none did. --steps-by batch ends it "
                "with the next batch."
            )
        else:
            last = max(driver.done - driver.length, 0)
            notes.append(
                f"perfnb run: no profile: the script ended after {driver.done:,} steps, and the profiled ones are "
                f"{driver.length} after the first {min(options.at):,}. Try --at {min(last, 10)}."
            )
        if steps.optimizers > 1 and options.steps_by == "first":
            parts.insert(
                0,
                f"{steps.optimizers} optimizers stepped; each step here ends with the first. Work after it, before "
                "the next batch, is in no step: --steps-by last ends steps with the other.",
            )
            parts[0] = "\n".join(escape.wrapped(parts[0], width))
        parts.append("\n".join(line for note in notes for line in escape.wrapped(escape.plain(note, 2000), width)))
        return parts

    def _short(self, path: Path) -> Path:
        inside = self._start is not None and path.is_relative_to(self._start)
        return path.relative_to(self._start) if inside and self._start else path

    def tell(self) -> None:
        """Print the report: of several ranks the first one's, and none in a process that the script has forked."""
        if self._text and os.getpid() == self._process and not self._rank:
            with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
                print(f"\n{self._text}", file=sys.stderr, flush=True)


COMMAND = SubCommand(
    name="run",
    summary="Run a training script unchanged, and profile some of its steps.",
    usage="perfnb run [--at N] [--every N] [--save DIR] [--steps-by WHAT] SCRIPT ARGS",
    more=_MORE,
    add_options=_options,
    run=_run,
    starts_a_program=True,
)
