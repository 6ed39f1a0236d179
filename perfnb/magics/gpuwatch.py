"""The magics ``%gpuwatch`` and ``%%gpuwatch``."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from perfnb.magics.cell import run_body
from perfnb.magics.line import can_be_silenced, require_name, split_line

_WORDS = ("start", "stop", "status")


@magics_class
class GpuWatchMagics(Magics):
    """The magics for `perfnb.watch`."""

    shell: Any
    _running: Any = None

    @can_be_silenced
    @no_var_expand
    @line_cell_magic
    @magic_arguments("%gpuwatch")
    @argument("--interval", metavar="SECONDS", type=float, default=0.5, help="Seconds between readings (default 0.5).")
    @argument(
        "--metrics",
        metavar="WORDS",
        help="Show only these metrics, separated by commas: cpu, throttled, memory, gpu, gpu-memory, power, "
        "temperature, clocks, pcie, disk, network.",
    )
    @argument("--into", metavar="NAME", help="Assign the watch to this variable.")
    @argument("command", nargs="*", help="start (the default), stop or status.")
    def gpuwatch(self, line: str, cell: str | None = None) -> Any:
        """Show hardware telemetry live and record it: GPUs, CPU, memory, disk, network.

        As a line magic, it opens a panel below the cell, which keeps recording until you stop it:

            %gpuwatch --into w
            %gpuwatch status
            %gpuwatch stop

        As a cell magic, it watches the cell from start to end:

            %%gpuwatch --interval 0.1 --into w
            train(model, loader)

        The history is available as a DataFrame in w.samples; see also w.summary() and w.plot(). Cells are marked with
        their numbers.
        """
        __tracebackhide__ = True
        first, _, behind = line.strip().partition(" ")
        options, rest = split_line(f"{behind} {first}" if first in _WORDS else line, GpuWatchMagics.gpuwatch.parser)
        require_name(options.into)
        if cell is not None:
            if rest:
                raise UsageError(f"%%gpuwatch accepts only options, not {rest!r}.")
            return self._watch_cell(cell, options)
        command = rest or "start"
        if command not in _WORDS:
            raise UsageError(f"%gpuwatch accepts start, stop or status, not {rest!r}; %%gpuwatch watches a cell.")
        if command == "start":
            watch = self._start(options)
            if self._stop() is not None:
                print("The previous watch was stopped.")
            self._running = watch
            self._bind(options, watch)
            watch._ipython_display_()
        elif command == "stop":
            watch = self._stop()
            if watch is None:
                raise UsageError("no watch is running. To start one, use %gpuwatch.")
            self._bind(options, watch)
            print(f"{watch!r} Its history is displayed below the cell that started it.")
        else:
            self._status()
        return None

    def end(self) -> None:
        """Stop the running watch; called when the extension is unloaded."""
        self._stop()

    def _watch_cell(self, cell: str, options: Any) -> Any:
        __tracebackhide__ = True
        run = run_body(self.shell, cell)
        with self._start(options) as watch:
            self._bind(options, watch)
            watch._ipython_display_()
            return run()

    def _start(self, options: Any) -> Any:
        from perfnb.watching.watch import watch

        try:
            return watch(options.interval, metrics=options.metrics)
        except ValueError as error:
            raise UsageError(str(error).replace("interval_s", "--interval")) from None

    def _bind(self, options: Any, watch: Any) -> None:
        if options.into is not None:
            self.shell.user_ns[options.into] = watch

    def _stop(self) -> Any:
        watch, self._running = self._running, None
        if watch is not None:
            watch.stop()
        return watch

    def _status(self) -> None:
        from perfnb.telemetry.watcher import running

        watch = self._running
        own = watch is not None and watch.running
        others = running() - own
        more = f" {others} started by perfnb.watch() {'is' if others == 1 else 'are'} running." if others else ""
        print((repr(watch) if own else "No watch started by %gpuwatch is running.") + more)
