"""IPython magics: parse, call, display."""

from __future__ import annotations

from typing import Any


def register(shell: Any) -> None:
    """Put perfnb's magics and their completion into an IPython shell."""
    from perfnb.magics.profile_step import OPTIONS_OF, ProfileStepMagics, complete

    shell.register_magics(ProfileStepMagics)
    shell.set_hook("complete_command", complete, re_key=OPTIONS_OF)


def unregister(shell: Any) -> None:
    """Take them out again."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("profile_step", None)
