"""IPython 7 lacks what completes options and what heeds a trailing semicolon: the magics work without."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import IPython.core.completer, IPython.core.magic
del IPython.core.completer.context_matcher, IPython.core.magic.output_can_be_silenced
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for _ in range(2):
    shell.run_line_magic("load_ext", "perfnb")
    print([kind for kind, magics in sorted(shell.magics_manager.magics.items()) if "profile_step" in magics])
    print(shell.run_line_magic("gpuwatch", "status"))
    shell.run_line_magic("unload_ext", "perfnb")
    print([kind for kind, magics in shell.magics_manager.magics.items() if "profile_step" in magics])
"""


@pytest.mark.slow
def test_the_magics_come_and_go() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)

    lines = done.stdout.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert (lines[0], lines[len(lines) // 2 - 1]) == ("['cell', 'line']", "[]")
