"""The IPython magics: parse the line, call the public function, display."""

from __future__ import annotations

from typing import Any

_NAMES = ("profile_step", "gpuwatch")


def register(shell: Any) -> None:
    """Add perfnb's magics and their completion to an IPython shell."""
    from perfnb.magics.gpuwatch import GpuWatchMagics
    from perfnb.magics.older_ipython import COMPLETES
    from perfnb.magics.profile_step import ProfileStepMagics

    unregister(shell)
    shell.register_magics(ProfileStepMagics, GpuWatchMagics)
    if COMPLETES:
        from perfnb.magics.completion import match_options

        shell.Completer.custom_matchers.append(match_options)


def unregister(shell: Any) -> None:
    """Remove them again, and end what they started."""
    from perfnb.magics.gpuwatch import GpuWatchMagics
    from perfnb.magics.older_ipython import COMPLETES

    watching = shell.magics_manager.registry.pop(GpuWatchMagics.__name__, None)
    if watching is not None:
        watching.end()
    for magics in shell.magics_manager.magics.values():
        for name in _NAMES:
            magics.pop(name, None)
    if COMPLETES:
        from perfnb.magics.completion import match_options

        shell.Completer.custom_matchers[:] = [m for m in shell.Completer.custom_matchers if m is not match_options]
