"""Find the frames in a traceback that are perfnb's own, wherever the package is installed."""

from __future__ import annotations

import re
from pathlib import Path

import perfnb

PACKAGE = Path(perfnb.__file__).parent.resolve()
#: The formats that IPython (``File ~/x.py:12, in f()``) and Python (``File "x.py", line 12``) use for a frame's file.
_FILE = re.compile(r'^\s*File (?:"(?P<python>.+)", line \d+|(?P<ipython>.+?):\d+)', re.MULTILINE)


def frames_of_perfnb(traceback: str) -> list[str]:
    """Return perfnb's files that appear in a printed traceback."""
    files = [Path(found["python"] or found["ipython"]).expanduser() for found in _FILE.finditer(traceback)]
    return [str(file) for file in files if file.resolve().is_relative_to(PACKAGE)]
