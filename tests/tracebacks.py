"""Which of a traceback's frames are perfnb's own, wherever the package lies."""

from __future__ import annotations

import re
from pathlib import Path

import perfnb

PACKAGE = Path(perfnb.__file__).parent.resolve()
#: How IPython, ``File ~/x.py:12, in f()``, and Python, ``File "x.py", line 12``, name a frame's file.
_FILE = re.compile(r'^\s*File (?:"(?P<python>.+)", line \d+|(?P<ipython>.+?):\d+)', re.MULTILINE)


def frames_of_perfnb(traceback: str) -> list[str]:
    """Return the files of the package that a printed traceback goes through."""
    files = [Path(found["python"] or found["ipython"]).expanduser() for found in _FILE.finditer(traceback)]
    return [str(file) for file in files if file.resolve().is_relative_to(PACKAGE)]
