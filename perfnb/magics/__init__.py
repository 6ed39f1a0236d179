"""The IPython magics. Each parses its line, runs the same code as the public function, and displays the result."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from IPython.core import completer

#: The magics by name, each with its module and its class. Everything else is derived from this mapping.
MAGICS = {
    "profile_step": ("perfnb.magics.profile_step", "ProfileStepMagics"),
    "gpuwatch": ("perfnb.magics.gpuwatch", "GpuWatchMagics"),
    "try_levers": ("perfnb.magics.try_levers", "TryLeversMagics"),
    "latency": ("perfnb.magics.latency", "LatencyMagics"),
}


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a magic's options."""
    parser: argparse.ArgumentParser = getattr(_holder(name), name).parser
    return parser


def register(shell: Any) -> None:
    """Add perfnb's magics and their completion to an IPython shell."""
    unregister(shell)
    shell.register_magics(*map(_holder, MAGICS))
    if hasattr(completer, "context_matcher"):  # IPython 7, which Colab uses, does not complete options
        from perfnb.magics.completion import match_options

        shell.Completer.custom_matchers.append(match_options)


def unregister(shell: Any) -> None:
    """Remove the magics and stop everything that they started."""
    watching = shell.magics_manager.registry.pop("GpuWatchMagics", None)
    if watching is not None:
        watching.end()
    for magics in shell.magics_manager.magics.values():
        for name in MAGICS:
            magics.pop(name, None)
    matchers = getattr(shell.Completer, "custom_matchers", [])
    matchers[:] = [each for each in matchers if getattr(each, "__module__", None) != "perfnb.magics.completion"]


def _holder(name: str) -> Any:
    module, holder = MAGICS[name]
    return getattr(importlib.import_module(module), holder)
