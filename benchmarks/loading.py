"""Compare ``%load_ext perfnb`` with ``import torch``, each in a new process."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

_RUNS = 7
_TIMED = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
begin = time.perf_counter()
{action}
print(time.perf_counter() - begin)
"""
_LOAD = "shell.run_line_magic('load_ext', 'perfnb')"


def run() -> Iterator[str]:
    """Yield one line with the ratio of the medians."""
    extension, torch = [], []
    for _ in range(_RUNS):
        extension.append(_fresh(_LOAD))
        torch.append(_fresh("import torch"))
    load, whole = statistics.median(extension), statistics.median(torch)
    yield f"loading: %load_ext perfnb / import torch: {load / whole:.3f} ({load * 1e3:.0f} ms / {whole * 1e3:.0f} ms)"


def _fresh(action: str) -> float:
    code = _TIMED.format(action=action)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
