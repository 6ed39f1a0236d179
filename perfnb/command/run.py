"""``perfnb run``: profile some steps of an unmodified script.

Runs SCRIPT like python, unmodified, and profiles 27 of its training steps in the middle of the
run, each of which runs only once. Output, arguments, exit code, tracebacks and Ctrl-C are the same
as with python SCRIPT. The report is printed to standard error when the script has ended or was
interrupted.

A step ends when the first optimizer that stepped has stepped again, and the next step starts when
the loop requests the next batch from its DataLoader; without a DataLoader, it starts immediately.
With a DataLoader, work after optimizer.step(), such as logging, is not part of any step. Use
--steps-by last if a step ends with the last of several optimizers, as in a GAN with two. Use
--steps-by batch if the loop has no optimizer: each step then ends with the next batch.

--try switches remedies on and off after the profile, over random blocks of the script's own steps,
and compares neighbouring blocks. Each step runs only once. The run remains valid, but it is not
bit-identical. A message announces beforehand how many steps this takes. No change remains at the
end, and the report contains the lines to add to your code. The available levers are threads,
compile, channels_last, fused_optimizer, foreach_optimizer, gc_freeze, cudnn_benchmark and
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

exit codes: SCRIPT's own; 2 also if SCRIPT does not exist
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

#: The trackers whose open run is found; the module that finds it takes long to import.
_TRACKERS = ("mlflow", "wandb")


def _options(parser: argparse.ArgumentParser) -> None:
    from perfnb.loop.script_steps import BY

    parser.add_argument(
        "--at",
        metavar="N",
        type=_numbers,
        default=[100],
        help="Steps before the profiled ones (default: 100); several with commas: 100,5000.",
    )
    parser.add_argument("--every", metavar="N", type=int, help="Profile again after this many steps, repeatedly.")
    parser.add_argument(
        "--save", metavar="DIR", help="Folder for the profiles (default: runs/SCRIPT_DATE_TIME, in this folder)."
    )
    parser.add_argument(
        "--log",
        metavar="TRACKER",
        choices=_TRACKERS,
        help=f"Log the results to the script's run of {' or '.join(_TRACKERS)}.",
    )
    parser.add_argument(
        "--steps-by", metavar="WHAT", choices=BY, default=BY[0], help=f"What ends a step: {', '.join(BY)}."
    )
    parser.add_argument(
        "--try",
        metavar="LEVERS",
        dest="levers",
        nargs="?",
        const="auto",
        help="Then try remedies on the script's own steps: those that the profile suggests, or --try=A,B.",
    )


def _levers(names: str) -> list[str] | None:
    """Return the levers given on the command line."""
    from perfnb.remedies.blocks import levers_for_loops  # this loads pandas, which other scripts should not pay for

    try:
        return levers_for_loops(names if names == "auto" else names.split(","))
    except ValueError as error:
        raise WrongUse(f"--try: {error}") from error


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_numbers.__name__ = "number"  # as argparse names it in its error


def _run(options: argparse.Namespace) -> int | BaseException:
    from perfnb.loop.script_steps import ScriptSteps

    if any(not 0 <= steps <= 10**9 for steps in options.at):
        raise WrongUse("--at must be a number of steps, 0 or more.")
    if options.every is not None and not 1 <= options.every <= 10**9:
        raise WrongUse("--every must be a number of steps, 1 or more.")
    if options.levers is not None:
        options.levers = _levers(options.levers)
    if is_launched(options.program):
        program = launched(options.program, _for_each(options))
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *program])  # a launcher is a separate process with its own signals
    require_program(options.program)
    report = _Report(options)
    steps = ScriptSteps(report.start, options.steps_by)
    atexit.register(report.tell)  # first, so that the script's own functions run before it
    with steps.installed():
        ended = run_as_main(options.program)
    report.finish(steps)
    return 0 if ended is None else ended


def _for_each(options: argparse.Namespace) -> list[str]:
    """Return the options for each process of a launcher; the processes share a folder."""
    given = ["--at", ",".join(map(str, options.at)), "--steps-by", options.steps_by]
    given += [] if options.every is None else ["--every", str(options.every)]
    given += [] if options.levers is None else [f"--try={','.join(options.levers) or 'auto'}"]
    given += [] if options.log is None else ["--log", options.log]
    folder = Path(options.save or _dated(Path(options.program[0]).name))
    return [*given, "--save", str(folder.absolute())]


def _dated(name: str) -> Path:
    return Path("runs", f"{name}_{time.strftime('%Y%m%d_%H%M%S')}")


def _new_folder(folder: Path) -> Path:
    """Create a folder for this run only, even if another one starts in the same second; a job's ranks share it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    shared = os.environ.get("WORLD_SIZE", "1") != "1"
    for name in itertools.chain([folder.name], (f"{folder.name}_{number}" for number in itertools.count(2))):
        with suppress(FileExistsError):
            folder.with_name(name).mkdir(exist_ok=shared)
            break
    return folder.with_name(name)


class _Report:
    """Writes the report when the script has ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        program = options.program
        self._options, self._name = options, program[1] if program[0] == "-m" else Path(program[0]).stem
        given = options.save or _dated(self._name)
        require_writable(Path(given))
        self._start, self._folder = Path.cwd(), Path(given).absolute()  # the script may go elsewhere
        self._driver: LoopProfiler | None = None
        self._process, self._text = os.getpid(), ""
        self._is_first = os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"

    def start(self, loader: Any) -> LoopProfiler:
        """Create the driver; called at the first step, when torch is loaded."""
        from perfnb.loop.driver import LoopProfiler
        from perfnb.loop.script_steps import script_variables

        options = self._options
        if options.save is None:
            with suppress(OSError):  # saving itself reports what cannot be saved
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
        """Close the driver and write the report. Whatever happens here, the script's exit code is preserved."""
        try:
            self._text = "\n\n".join(self._parts(steps))
        except Exception as error:
            self._text = f"perfnb run: there is no report: {type(error).__name__}: {error}"
        if self._options.save is None:
            with suppress(OSError):  # it has contents, or was never made
                self._folder.rmdir()
                self._folder.parent.rmdir()

    def _parts(self, steps: ScriptSteps) -> Iterator[str]:
        driver, by = self._driver, self._options.steps_by
        if driver is None:
            yield sentences(
                "perfnb run: no step was seen: the main thread used neither a torch optimizer nor a DataLoader."
            )
            return
        driver.close()
        if driver.trial is not None:
            driver.trial.close()
        driver.on_demand.end()
        # Only now: they load torch, which a script without it should not pay for, and which can end the process.
        from perfnb.loop.kept_run import keep_run
        from perfnb.loop.run import summarise
        from perfnb.profile.trackers import log_at_once, open_runs

        if steps.optimizers > 1 and by == "first":
            yield sentences(
                f"{steps.optimizers} optimizers stepped; each step here ends with the first. Work after it, before "
                "the next batch, is in no step: --steps-by last ends steps with the other."
            )
        notes = []
        if (run := summarise(driver.recorder)) is not None:
            yield str(run)
            saved = self._short(keep_run(run, self._folder))
            notes.append(f"The whole run is saved to {saved}: perfnb show {saved} shows it again.")
        if len(driver.profiles):
            yield str(driver.profiles[-1])
            paths = [self._short(path) for path in driver.profiles.paths]
            more = f" (and {len(paths) - 1:,} before it)" if len(paths) > 1 else ""
            notes.append(f"The profile above is saved to {paths[-1]}{more}.")
        elif not steps.optimizers and by != "batch":
            notes.append(
                "perfnb run: no profile: a step ends where an optimizer steps, and none did. --steps-by batch ends it "
                "with the next batch."
            )
        elif driver.planned_at is not None:
            sooner = min(max(driver.done - driver.length, 0), 10)
            notes.append(f"perfnb run: no profile: the script {driver.why_no_profile('its end')}. Try --at {sooner}.")
        if self._options.log is not None and self._is_first:
            results = [(profile, profile.meta["loop"]["step"]) for profile in driver.profiles]
            logged = [*results, *([] if run is None else [(run, None)])]
            notes += log_at_once(logged, open_runs([self._options.log]))
        yield sentences(*notes)

    def _short(self, path: Path) -> Path:
        return path.relative_to(self._start) if path.is_relative_to(self._start) else path

    def tell(self) -> None:
        """Print the report.

        If there are several ranks, only the first one prints. Processes that the script has forked do not print.
        """
        if self._text and os.getpid() == self._process and self._is_first:
            with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
                print(f"\n{self._text}", file=sys.stderr, flush=True)


COMMAND = SubCommand(
    name="run",
    summary="Run a training script unchanged, and profile some of its steps.",
    usage="perfnb run [OPTIONS] [LAUNCHER] SCRIPT ARGS",
    more=__doc__,
    add_options=_options,
    run=_run,
    starts_a_program=True,
)
