"""Find the running IPython shell, and whether it belongs to a notebook."""

from __future__ import annotations

import sys
from typing import Any


def running_shell() -> Any:
    """Return the running IPython shell, or ``None`` outside IPython. This never imports IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def in_notebook() -> bool:
    """Return whether this code runs in a Jupyter kernel."""
    return getattr(running_shell(), "kernel", None) is not None


def print_text(text: str) -> None:
    """Print `text`, replacing characters that the terminal's encoding does not support with ``?``."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
