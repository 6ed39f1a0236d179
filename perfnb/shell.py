"""Find the running IPython shell, and whether it belongs to a notebook."""

from __future__ import annotations

import sys
from typing import Any


def running_shell() -> Any:
    """Return IPython's shell, or ``None`` outside it; IPython is not imported if it is not in use."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def in_notebook() -> bool:
    """Return whether this code runs in a Jupyter kernel."""
    return getattr(running_shell(), "kernel", None) is not None


def print_text(text: str) -> None:
    """Print `text`, with ``?`` for characters that the terminal's encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
