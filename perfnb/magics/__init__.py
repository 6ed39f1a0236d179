"""IPython magics: parse, call, display."""

from __future__ import annotations

from typing import Any


def register(shell: Any) -> None:
    """Put perfnb's magics and their completion into an IPython shell."""
    from perfnb.magics.profile_step import ProfileStepMagics, match_options

    unregister(shell)
    shell.register_magics(ProfileStepMagics)
    shell.Completer.custom_matchers.append(match_options)


def unregister(shell: Any) -> None:
    """Take them out again."""
    from perfnb.magics.profile_step import match_options

    for magics in shell.magics_manager.magics.values():
        magics.pop("profile_step", None)
    shell.Completer.custom_matchers[:] = [m for m in shell.Completer.custom_matchers if m is not match_options]
