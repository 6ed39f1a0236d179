"""``%%profile_step`` and ``%profile_step``."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from perfnb.magics.cell import compile_body, compile_clause, step_of
from perfnb.magics.line import can_be_silenced, refuse_short, require_name, split_line


@magics_class
class ProfileStepMagics(Magics):
    """The magics for `perfnb.profile_step`."""

    shell: Any

    @can_be_silenced
    @no_var_expand
    @line_cell_magic
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
    @argument("--watch", action="store_true", help="Record hardware telemetry during the run: GPUs, CPU, memory, disk.")
    @argument("--quiet", action="store_true", help="Show no progress bar and, in a cell with --into, no report.")
    @argument(
        "code", nargs="*", help="Cell magic: for TARGET in ITERABLE, or nothing. Line magic: the statement to profile."
    )
    def profile_step(self, line: str, cell: str | None = None) -> Any:
        """Run a step repeatedly and show where its time goes, layer by layer, forward and backward.

        As a cell magic, the cell is one step. ``for TARGET in ITERABLE`` on the magic's line feeds it batches and
        measures the wait for data as a phase of its own:

            %%profile_step --steps 20 --into p for x, y in loader
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

        As a line magic, the statement is the step:

            %profile_step train_step(batch)

        The profile is the cell's value; a trailing ; silences it. The code runs in this notebook and changes its
        variables; the report says how often it ran.
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
            )
        except ValueError as error:
            raise UsageError("--" + str(error).replace("budget_s", "budget")) from None
        require_name(options.into)
        if options.quiet and cell is not None and options.into is None:
            raise UsageError("--quiet shows no report, so a cell also needs --into NAME.")
        profile = self._profile(rest, cell, options, plan)
        if options.into is not None:
            self.shell.user_ns[options.into] = profile
        return None if options.quiet and cell is not None else profile

    def _profile(self, rest: str, cell: str | None, options: Any, plan: Any) -> Any:
        __tracebackhide__ = True
        from perfnb.profile.kept import kept_cell
        from perfnb.profile.profiling import run_profile
        from perfnb.step.namespace import namespace_of

        namespace, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        assign, batches = None, None
        if cell is None and not rest:
            raise UsageError("there is nothing to profile: write a statement after %profile_step.")
        if cell is not None and rest:
            refuse_short(rest, ProfileStepMagics.profile_step.parser)
            assign, batches = compile_clause(self.shell, rest)
        models, body = self._models(options.model), compile_body(self.shell, rest if cell is None else cell)
        variables = {name: value for name, value in namespace.items() if name not in hidden}  # without IPython's own
        step, chosen = step_of(body, namespace, assign), list(models.values()) or None
        return run_profile(
            step,
            batches,
            used=namespace_of(FunctionType(body, namespace)),
            plan=plan,
            models=chosen,
            namespace={**models, **variables, **models},  # the names in --model come first
            watch=options.watch,
            name=options.name or "step",
            quiet=options.quiet,
            kept=kept_cell(step, body, namespace, batches, chosen, "line" if cell is None else "cell"),
        )

    def _models(self, text: str | None) -> dict[str, Any]:
        """The modules that ``--model`` names."""
        from perfnb.step.namespace import chosen_models

        models: dict[str, Any] = {}
        for name in [] if text is None else [part.strip() for part in text.split(",")]:
            try:
                value = self.shell.ev(name)
                chosen, _ = chosen_models(value)
                if not chosen:
                    raise TypeError("it is empty")
            except SyntaxError:
                raise UsageError(f"--model {text!r} cannot be read: write names separated by commas, as a,b.") from None
            except Exception as error:  # whatever the user's expression raises
                words = str(error).rstrip(".") or type(error).__name__
                raise UsageError(f"--model {name!r} is not a torch module in this notebook: {words}.") from None
            if len(chosen) == 1 and chosen[0] is value:
                models[name] = value
            else:
                keys = value if isinstance(value, dict) else range(len(chosen))
                models |= {f"{name}[{key!r}]": model for key, model in zip(keys, chosen, strict=True)}
        return models
