"""The magic ``%%latency``."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from perfnb.failures import keeps_nothing
from perfnb.magics.cell import step_in
from perfnb.magics.line import can_be_silenced, require_name, split_line


@magics_class
class LatencyMagics(Magics):
    """The magic for `perfnb.latency`."""

    shell: Any

    @can_be_silenced
    @no_var_expand
    @cell_magic
    @keeps_nothing
    @magic_arguments("%%latency")
    @argument("--into", metavar="NAME", help="Assign the result to this variable.")
    @argument("--rate", metavar="PER_SECOND", type=float, help="Serve requests that arrive at this rate.")
    @argument(
        "--bound", metavar="MS", type=float, help="Find the highest rate at which latency stays within this bound."
    )
    @argument(
        "--quantile",
        metavar="Q",
        type=float,
        default=0.99,
        help="The share of requests that must stay within the bound (default 0.99).",
    )
    @argument(
        "--price", metavar="PER_HOUR", type=float, help="Price of the machine, for the cost of a thousand requests."
    )
    @argument(
        "--budget",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="Time limit for the whole measurement (default 30).",
    )
    @argument("code", nargs="*", help="for TARGET in REQUESTS")
    def latency(self, line: str, cell: str) -> Any:
        """Measure how long requests take, alone and under load.

        The cell serves one request, which is assigned to the loop variable:

            %%latency --rate 20 --bound 100 for image in images
            with torch.inference_mode():
                model(image)

        The result is the cell's value. A trailing semicolon suppresses its display.
        """
        __tracebackhide__ = True
        from perfnb.inference.latency import latency
        from perfnb.inference.serving import USES
        from perfnb.step.namespace import names_in

        parser = LatencyMagics.latency.parser
        options, rest = split_line(line, parser)
        require_name(options.into)
        if not rest:
            raise UsageError("%%latency needs requests: write for NAME in REQUESTS after it.")
        serve, requests, body = step_in(self.shell, rest, cell, parser)
        namespace, served = self.shell.user_ns, requests() if requests is not None else ()
        vars(serve)[USES] = lambda: [namespace.get(name) for name in names_in(body)]
        try:
            found = latency(
                serve,
                served,
                rate_per_s=options.rate,
                bound_ms=options.bound,
                quantile=options.quantile,
                price_per_hour=options.price,
                budget_s=options.budget,
            )
        except ValueError as error:
            if not str(error).startswith(("rate_per_s", "bound_ms", "quantile", "price_per_hour", "budget_s")):
                raise
            raise UsageError(str(error)) from None
        if options.into is not None:
            namespace[options.into] = found
        return found
