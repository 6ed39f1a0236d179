"""The magics ``%%try_levers`` and ``%try_levers``."""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from perfnb.failures import keeps_nothing
from perfnb.magics.cell import step_in
from perfnb.magics.line import can_be_silenced, require_name, split_line


@magics_class
class TryLeversMagics(Magics):
    """The magics for `perfnb.try_levers`."""

    shell: Any

    @can_be_silenced
    @no_var_expand
    @line_cell_magic
    @keeps_nothing
    @magic_arguments("%try_levers")
    @argument("--into", metavar="NAME", help="Assign the result to this variable.")
    @argument("--levers", metavar="NAMES", help="Try only these levers, separated by commas.")
    @argument(
        "--list",
        action="store_true",
        help="Only list all levers, with the effect and the bottleneck of each.",
    )
    @argument(
        "--budget",
        metavar="SECONDS",
        type=float,
        default=120.0,
        help="Time limit for all trials together (default 120).",
    )
    @argument("--goal", choices=("time", "memory"), default="time", help="What to reduce (default time).")
    @argument("--quiet", action="store_true", help="Hide the progress bar.")
    @argument(
        "code", nargs="*", help="Cell magic: for TARGET in ITERABLE, or nothing. Line magic: the statement to speed up."
    )
    def try_levers(self, line: str, cell: str | None = None) -> Any:
        """Try levers that could make a step faster, check its results, and restore everything.

        As a cell magic, the cell is one step, as in %%profile_step:

            %%try_levers --into found for x, y in loader
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

        As a line magic, the statement is the step:

            %try_levers train_step(batch)

        %try_levers --list lists all levers.

        The result is the cell's value. A trailing semicolon suppresses its display. Variables that the code assigns
        keep their last values.
        """
        __tracebackhide__ = True
        from perfnb.remedies.try_levers import LeverRequest, levers, run_trials
        from perfnb.step.namespace import namespace_of

        parser = TryLeversMagics.try_levers.parser
        options, rest = split_line(line, parser)
        if options.list:
            return levers()
        if not 0 < options.budget < 1e9:
            raise UsageError(f"--budget must be a number of seconds above 0, not {options.budget}.")
        require_name(options.into)
        if cell is None and not rest:
            raise UsageError("there is nothing to speed up: write a statement after %try_levers.")
        names = None if options.levers is None else [name.strip() for name in options.levers.split(",")]
        if names is not None and "" in names:
            raise UsageError("--levers requires names separated by commas, without spaces between them.")
        step, batches, body = step_in(self.shell, rest, cell, parser)
        namespace = self.shell.user_ns
        # The cell does not use the loader that its clause names.
        fed = (
            {} if batches is None else {name: namespace[name] for name in re.findall(r"\w+", rest) if name in namespace}
        )
        try:
            found = run_trials(
                step,
                batches,
                LeverRequest("auto" if names is None else names, options.goal, options.budget),
                namespace={**fed, **namespace_of(FunctionType(body, namespace))},
                quiet=options.quiet,
            )
        except ValueError as error:
            if names is None or not str(error).startswith("levers must be"):
                raise
            raise UsageError(f"--{error}") from None
        if options.into is not None:
            namespace[options.into] = found
        return found
