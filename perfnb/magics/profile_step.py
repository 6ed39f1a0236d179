"""The magics ``%%profile_step`` and ``%profile_step``."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from perfnb.failures import keeps_nothing
from perfnb.magics.cell import clause_of, compile_body, step_in
from perfnb.magics.line import can_be_silenced, refuse_short, require_name, split_line


@magics_class
class ProfileStepMagics(Magics):
    """The magics for `perfnb.profile_step`."""

    shell: Any

    @can_be_silenced
    @no_var_expand
    @line_cell_magic
    @keeps_nothing
    @magic_arguments("%profile_step")
    @argument("--into", metavar="NAME", help="Assign the profile to this variable.")
    @argument("--name", metavar="TITLE", help="Title of the profile, in quotes if it has spaces.")
    @argument("--steps", metavar="N", type=int, help="Steps to time; by default as many as their variation requires.")
    @argument("--warmup", metavar="N", type=int, help="Warm-up steps; by default until the step time is steady.")
    @argument(
        "--budget", metavar="SECONDS", type=float, default=30.0, help="Time limit for all steps together (default 30)."
    )
    @argument("--model", metavar="MODELS", help="Break down only these models into layers: names separated by commas.")
    @argument("--no-memory", action="store_true", help="Skip the steps that record every allocation.")
    @argument("--no-flops", action="store_true", help="Skip the step that counts every operator's FLOPs.")
    @argument("--stacks", action="store_true", help="Record Python code: a flame graph, and time by line of code.")
    @argument("--no-stacks", action="store_true", help="Never sample Python code, however long it takes.")
    @argument(
        "--recompile", action="store_true", help="Recompile models for the trace so that their layers are visible."
    )
    @argument("--watch", action="store_true", help="Record hardware telemetry during the run: GPUs, CPU, memory, disk.")
    @argument("--ranks", metavar="N", type=int, help="Run the cell in N new processes, the ranks of a job.")
    @argument("--ddp", action="store_true", help="With --ranks: wrap the cell's models in DistributedDataParallel.")
    @argument("--split", action="store_true", help="With --ranks: split each batch among the ranks.")
    @argument("--quiet", action="store_true", help="Hide the progress bar and, in a cell with --into, the report.")
    @argument(
        "code", nargs="*", help="Cell magic: for TARGET in ITERABLE, or nothing. Line magic: the statement to profile."
    )
    def profile_step(self, line: str, cell: str | None = None) -> Any:
        """Run a step repeatedly and show where its time goes, layer by layer, forward and backward.

        As a cell magic, the cell is one step. ``for TARGET in ITERABLE`` on the magic's line provides its batches and
        measures the wait for data as a separate phase:

            %%profile_step --steps 20 --into p for x, y in loader
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

        As a line magic, the statement is the step:

            %profile_step train_step(batch)

        With ``--ranks``, the cell runs in new processes, with copies of the variables that it uses. torch's process
        group is already set up in them. The cell's value is then a `Ranks` object.

        The profile is the cell's value. A trailing semicolon suppresses its display. The code runs in this notebook and
        changes its variables; the report shows how often it ran.
        """
        __tracebackhide__ = True
        from perfnb.step.budget import Plan

        options, rest = split_line(line, ProfileStepMagics.profile_step.parser)
        try:
            plan = Plan(
                warmup=options.warmup,
                steps=options.steps,
                budget_s=options.budget,
                memory=not options.no_memory,
                flops=not options.no_flops,
                recompile=options.recompile,
            )
        except ValueError as error:
            raise UsageError("--" + str(error).replace("budget_s", "budget")) from None
        require_name(options.into)
        if options.stacks and options.no_stacks:
            raise UsageError("--stacks and --no-stacks cannot be combined.")
        if options.ranks is None and (options.ddp or options.split):
            raise UsageError(f"--{'ddp' if options.ddp else 'split'} requires --ranks N.")
        if options.quiet and cell is not None and options.into is None:
            raise UsageError("with --quiet, there is no report, so a cell also requires --into NAME.")
        profile = (self._profile if options.ranks is None else self._ranks)(rest, cell, options, plan)
        if options.into is not None:
            self.shell.user_ns[options.into] = profile
        return None if options.quiet and cell is not None else profile

    def _profile(self, rest: str, cell: str | None, options: Any, plan: Any) -> Any:
        __tracebackhide__ = True
        from perfnb.profile.kept_step import kept_cell
        from perfnb.profile.profiling import run_profile
        from perfnb.step.namespace import namespace_of

        namespace, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        if cell is None and not rest:
            raise UsageError("there is nothing to profile: write a statement after %profile_step.")
        step, batches, body = step_in(self.shell, rest, cell, ProfileStepMagics.profile_step.parser)
        models = self._models(options.model)
        variables = {name: value for name, value in namespace.items() if name not in hidden}  # not IPython's own
        chosen = list(models.values()) or None
        return run_profile(
            step,
            batches,
            used=namespace_of(FunctionType(body, namespace)),
            plan=plan,
            models=chosen,
            namespace={**models, **variables, **models},  # the names in --model come first
            stacks=True if options.stacks else False if options.no_stacks else "auto",
            watch=options.watch,
            name=options.name or "step",
            quiet=options.quiet,
            kept=kept_cell(step, body, namespace, batches, chosen, "line" if cell is None else "cell"),
        )

    def _ranks(self, rest: str, cell: str | None, options: Any, plan: Any) -> Any:
        """Run the cell in new processes, and return their profiles."""
        __tracebackhide__ = True
        from dataclasses import asdict

        from perfnb.launching.order import lines_of, pack_cell
        from perfnb.launching.profile_ranks import order_for, run_ranks
        from perfnb.step.namespace import names_in

        if cell is None:
            raise UsageError("--ranks requires a cell: write %%profile_step --ranks N, with the step below it.")
        for name in ("watch", "stacks"):
            if getattr(options, name):
                raise UsageError(f"--{name} applies to this process, but --ranks runs the cell in other processes.")
        clause = None
        if rest:
            refuse_short(rest, ProfileStepMagics.profile_step.parser)
            clause = clause_of(self.shell, rest)
        body, models = compile_body(self.shell, cell), list(self._models(options.model))
        codes = [body, *([] if clause is None else [clause.assign, clause.iterable])]
        names = list(dict.fromkeys([name for code in codes for name in names_in(code)] + models))
        if any(not name.isidentifier() for name in models):
            raise UsageError("with --ranks, --model accepts only names of variables.")
        payload = pack_cell(body, clause, self.shell.user_ns, names, models or None)
        try:
            order = order_for(
                "cell",
                options.ranks,
                asdict(plan),
                options.name,
                backend=None,
                threads=None,
                ddp=options.ddp,
                split=options.split,
                payload=payload,
                lines=lines_of(*codes),
            )
        except ValueError as error:
            raise UsageError(f"--{error}") from None
        return run_ranks(order, options.ranks, quiet=options.quiet)

    def _models(self, text: str | None) -> dict[str, Any]:
        """Return the modules that ``--model`` specifies."""
        from perfnb.step.namespace import chosen_models

        models: dict[str, Any] = {}
        for name in [] if text is None else [part.strip() for part in text.split(",")]:
            try:
                value = self.shell.ev(name)
                chosen, _ = chosen_models(value)
                if not chosen:
                    raise TypeError("it is empty")
            except SyntaxError:
                raise UsageError(
                    f"--model {text!r} cannot be read: write names separated by commas, such as a,b."
                ) from None
            except Exception as error:  # the user's expression can raise anything
                words = str(error).rstrip(".") or type(error).__name__
                raise UsageError(f"--model {name!r} is not a torch module in this notebook: {words}.") from None
            if len(chosen) == 1 and chosen[0] is value:
                models[name] = value
            else:
                keys = value if isinstance(value, dict) else range(len(chosen))
                models |= {f"{name}[{key!r}]": model for key, model in zip(keys, chosen, strict=True)}
        return models
