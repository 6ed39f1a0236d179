"""The extension comes and goes in a shell of its own, with and without what IPython 7 lacks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: What completes options, and what heeds a trailing semicolon.
NEWER = """
import IPython.core.completer, IPython.core.magic
del IPython.core.completer.context_matcher, IPython.core.magic.output_can_be_silenced
"""
COMES_AND_GOES = """
import contextlib, io, json
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
found = []

def look():
    with contextlib.redirect_stderr(io.StringIO()) as wrong:
        done = shell.run_cell("%profile_step --steps 0 f()")
        status = shell.run_cell("%gpuwatch status") if "gpuwatch" in shell.magics_manager.magics["line"] else None
    matchers = [one.__name__ for one in getattr(shell.Completer, "custom_matchers", ())]
    kinds = [kind for kind, magics in sorted(shell.magics_manager.magics.items()) if "profile_step" in magics]
    found.append([kinds, matchers, str(done.error_in_exec), wrong.getvalue().splitlines()[:1]])

for what in ("load", "reload", "unload", "load", "unload"):
    shell.run_line_magic(f"{what}_ext", "perfnb")
    look()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("newer", [True, False])
def test_the_extension_comes_and_goes(newer: bool) -> None:
    code = COMES_AND_GOES if newer else NEWER + COMES_AND_GOES
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded, reloaded, gone, again, gone_again = json.loads(done.stdout.splitlines()[-1])
    kinds, matchers, error, _ = loaded
    assert (kinds, len(matchers)) == (["cell", "line"], 1 if newer else 0)
    assert error == "--steps must be a whole number of at least 1, not 0."
    assert loaded == reloaded == again
    assert gone[:2] == gone_again[:2] == [[], []]
