"""Implement ``perfnb run``: profile some steps of an unmodified script.

This command runs the unmodified SCRIPT and profiles 27 of its training steps in the middle of the
run. Each step runs only once. Output, arguments, exit code, tracebacks and Ctrl-C work in the same
way as with python SCRIPT. When the script has ended or was interrupted, the report is printed to
standard error.

A step ends when the optimizer that stepped first steps again. The next step starts when the loop
requests the next batch from its DataLoader, or immediately if there is no DataLoader. With a
DataLoader, work after optimizer.step(), such as logging, is not part of any step. Use --steps-by
last if a step ends with the last of several optimizers, as in a GAN with two optimizers. Use
--steps-by batch if the loop has no optimizer. Each step then ends with the next batch.

After the profile, --try switches remedies on and off for random blocks of the script's own steps,
and compares neighbouring blocks. Each step runs only once. The run remains valid, but it is not
bit-identical. Before the trial starts, a message announces how many steps it takes. All changes are
undone at the end, and the report contains the lines to add to your code. The available levers are
threads, compile, channels_last, fused_optimizer, foreach_optimizer, gc_freeze, cudnn_benchmark and
loader_workers.

examples:
  perfnb run train.py --epochs 3
  perfnb run --at 500 --save runs/big train.py
  perfnb run --every 1000 -m package.train --lr 0.1
  perfnb run --steps-by last gan.py
  perfnb run --try train.py
  perfnb run --try=threads,compile train.py
  perfnb run torchrun --nproc-per-node 2 train.py
  perfnb run accelerate launch train.py

exit codes: the exit code of SCRIPT; 2 also if SCRIPT does not exist
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfnb.command.launchers import is_launched, launched
from perfnb.command.output import sentences
from perfnb.command.script import require_program, run_as_main
from perfnb.command.sub_command import SubCommand, WrongUse
from perfnb.files import require_writable

if TYPE_CHECKING:
    from perfnb.loop.driver import LoopProfiler
    from perfnb.loop.script_steps import ScriptSteps

#: The trackers whose open runs perfnb can find. They are listed here because importing the module that finds them is
#: slow.
_TRACKERS = ("mlflow", "wandb")


def _options(parser: argparse.ArgumentParser) -> None:
    from perfnb.loop.script_steps import BY

    parser.add_argument(
        "--at",
        metavar="N",
        type=_numbers,
        default=[100],
        help="Number of steps before profiling (default: 100), or several numbers such as 100,5000.",
    )
    parser.add_argument("--every", metavar="N", type=int, help="Profile again every N steps.")
    parser.add_argument(
        "--save", metavar="DIR", help="Folder for the profiles (default: runs/SCRIPT_DATE_TIME in the current folder)."
    )
    parser.add_argument(
        "--log",
        metavar="TRACKER",
        choices=_TRACKERS,
        help=f"Log the results to the script's {' or '.join(_TRACKERS)} run.",
    )
    parser.add_argument(
        "--steps-by", metavar="WHAT", choices=BY, default=BY[0], help=f"The event that ends a step: {', '.join(BY)}."
    )
    parser.add_argument(
        "--try",
        metavar="LEVERS",
        dest="levers",
        nargs="?",
        const="auto",
        help="After profiling, try the remedies that the profile suggests, or those in --try=A,B.",
    )


def _levers(names: str) -> list[str] | None:
    """Parse the levers on the command line."""
    from perfnb.remedies.blocks import (
        levers_for_loops,
    )  # imported here because it loads pandas, which not all scripts need

    try:
        return levers_for_loops(names if names == "auto" else names.split(","))
    except ValueError as error:
        raise WrongUse(f"--try: {error}") from error


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_numbers.__name__ = "number"  # argparse uses this name in its error message


def _run(options: argparse.Namespace) -> int | BaseException:
    from perfnb.loop.script_steps import ScriptSteps

    if any(not 0 <= steps <= 10**9 for steps in options.at):
        raise WrongUse("--at must be a number of steps that is at least 0.")
    if options.every is not None and not 1 <= options.every <= 10**9:
        raise WrongUse("--every must be a number of steps that is at least 1.")
    if options.levers is not None:
        options.levers = _levers(options.levers)
    if is_launched(options.program):
        program = launched(options.program, _for_each(options))
        sys.stdout.flush()
        os.execv(
            sys.executable, [sys.executable, *program]
        )  # a launcher runs as a separate process and handles its own signals
    require_program(options.program)
    report = _Report(options)
    steps = ScriptSteps(report.start, options.steps_by)
    atexit.register(report.tell)  # registered first, so that the script's own exit functions run before it
    with steps.installed():
        ended = run_as_main(options.program)
    report.finish(steps)
    return 0 if ended is None else ended


def _for_each(options: argparse.Namespace) -> list[str]:
    """Return the options for each process that a launcher starts. All processes use the same folder."""
    given = ["--at", ",".join(map(str, options.at)), "--steps-by", options.steps_by]
    given += [] if options.every is None else ["--every", str(options.every)]
    given += [] if options.levers is None else [f"--try={','.join(options.levers) or 'auto'}"]
    given += [] if options.log is None else ["--log", options.log]
    folder = Path(options.save or _dated(Path(options.program[0]).name))
    return [*given, "--save", str(folder.absolute())]


def _dated(name: str) -> Path:
    return Path("runs", f"{name}_{time.strftime('%Y%m%d_%H%M%S')}")


def _new_folder(folder: Path) -> Path:
    """Create a folder for this run that no other run uses, even if it starts in the same second.

    The ranks of a job share a folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    shared = os.environ.get("WORLD_SIZE", "1") != "1"
    for name in itertools.chain([folder.name], (f"{folder.name}_{number}" for number in itertools.count(2))):
        with suppress(FileExistsError):
            folder.with_name(name).mkdir(exist_ok=shared)
            break
    return folder.with_name(name)


class _Report:
    """Writes the report after the script has ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        program = options.program
        self._options, self._name = options, program[1] if program[0] == "-m" else Path(program[0]).stem
        given = options.save or _dated(self._name)
        require_writable(Path(given))
        self._start, self._folder = Path.cwd(), Path(given).absolute()  # the script may change the current folder
        self._driver: LoopProfiler | None = None
        self._process, self._text = os.getpid(), ""
        self._is_first = os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"

    def start(self, loader: Any) -> LoopProfiler:
        """Create the driver. This is called at the first step, when torch is loaded."""
        from perfnb.loop.driver import LoopProfiler
        from perfnb.loop.script_steps import script_variables

        options = self._options
        if options.save is None:
            with suppress(OSError):  # if results cannot be saved, saving them reports an error
                self._folder = _new_folder(self._folder)
        self._driver = LoopProfiler(
            *(options.at, options.every, self._folder),
            name=self._name,
            namespace=script_variables,
            loader=loader,
            try_levers=False if options.levers is None else options.levers or True,
        )
        self._driver.on_demand.begin()
        return self._driver

    def finish(self, steps: ScriptSteps) -> None:
        """Close the driver and write the report, preserving the script's exit code even if this fails."""
        try:
            self._text = "\n\n".join(self._parts(steps))
        except Exception as error:
            self._text = f"perfnb run: the report could not be created: {type(error).__name__}: {error}"
        if self._options.save is None:
            with suppress(OSError):  # the folder is not empty, or was never created
                self._folder.rmdir()
                self._folder.parent.rmdir()

    def _parts(self, steps: ScriptSteps) -> Iterator[str]:
        driver, by = self._driver, self._options.steps_by
        if driver is None:
            yield sentences(
                "perfnb run: there are no steps: the main thread used neither a torch optimizer nor a DataLoader."
            )
            return
        driver.close()
        if driver.trial is not None:
            driver.trial.close()
        driver.on_demand.end()
        # Imported here because these modules load torch, which not all scripts need and which can end the process.
        from perfnb.loop.kept_run import keep_run
        from perfnb.loop.run import summarise
        from perfnb.profile.trackers import log_at_once, open_runs

        if steps.optimizers > 1 and by == "first":
            yield sentences(
                f"{steps.optimizers} optimizers stepped, and each step ends with the first of them. Work between this "
                "and the next batch is not part of any step. To end steps with the last optimizer, use --steps-by last."
            )
        notes = []
        if (run := summarise(driver.recorder)) is not None:
            yield str(run)
            saved = self._short(keep_run(run, self._folder))
            notes.append(f"The whole run was saved to {saved}. To show it again, use perfnb show {saved}.")
        if len(driver.profiles):
            yield str(driver.profiles[-1])
            paths = [self._short(path) for path in driver.profiles.paths]
            more = f" (and {len(paths) - 1:,} earlier ones next to it)" if len(paths) > 1 else ""
            notes.append(f"The profile above was saved to {paths[-1]}{more}.")
        elif not steps.optimizers and by != "batch":
            notes.append(
                "perfnb run: there is no profile, because a step ends when an optimizer steps, and none did. To end "
                "steps with the next batch instead, use --steps-by batch."
            )
        elif driver.planned_at is not None:
            sooner = min(max(driver.done - driver.length, 0), 10)
            notes.append(
                f"perfnb run: no profile, because the script {driver.why_no_profile('its end')}. Try --at {sooner}."
            )
        if self._options.log is not None and self._is_first:
            results = [(profile, profile.meta["loop"]["step"]) for profile in driver.profiles]
            logged = [*results, *([] if run is None else [(run, None)])]
            notes += log_at_once(logged, open_runs([self._options.log]))
        yield sentences(*notes)

    def _short(self, path: Path) -> Path:
        return path.relative_to(self._start) if path.is_relative_to(self._start) else path

    def tell(self) -> None:
        """Print the report.

        If there are several ranks, only the first rank prints. Processes forked by the script do not print anything.
        """
        if self._text and os.getpid() == self._process and self._is_first:
            with suppress(OSError, ValueError, AttributeError):  # the script may have closed the stream
                print(f"\n{self._text}", file=sys.stderr, flush=True)


COMMAND = SubCommand(
    name="run",
    summary="Run an unmodified training script, and profile some of its steps.",
    usage="perfnb run [OPTIONS] [LAUNCHER] SCRIPT ARGS",
    more=__doc__,
    add_options=_options,
    run=_run,
    starts_a_program=True,
)
