"""The IPython magics: parse the line, run what the public function runs, display."""

from __future__ import annotations

from typing import Any

from IPython.core import completer

_NAMES = ("profile_step", "gpuwatch", "try_levers", "latency")


def register(shell: Any) -> None:
    """Add perfnb's magics and their completion to an IPython shell."""
    from perfnb.magics.gpuwatch import GpuWatchMagics
    from perfnb.magics.latency import LatencyMagics
    from perfnb.magics.profile_step import ProfileStepMagics
    from perfnb.magics.try_levers import TryLeversMagics

    unregister(shell)
    shell.register_magics(ProfileStepMagics, GpuWatchMagics, TryLeversMagics, LatencyMagics)
    if hasattr(completer, "context_matcher"):  # IPython 7, as on Colab, completes no options
        from perfnb.magics.completion import match_options

        shell.Completer.custom_matchers.append(match_options)


def unregister(shell: Any) -> None:
    """Remove them again, and end what they started."""
    watching = shell.magics_manager.registry.pop("GpuWatchMagics", None)
    if watching is not None:
        watching.end()
    for magics in shell.magics_manager.magics.values():
        for name in _NAMES:
            magics.pop(name, None)
    matchers = getattr(shell.Completer, "custom_matchers", [])
    matchers[:] = [each for each in matchers if getattr(each, "__module__", None) != "perfnb.magics.completion"]
