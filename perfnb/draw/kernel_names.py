"""Names of kernels, cut to what tells them apart at a glance."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfnb.draw import escape

_NAMELESS = re.compile(r"\(anonymous namespace\)::|at::native::|^void |^_ZN?[A-Za-z0-9_]*?\d+(?=[a-z])")
#: What stands where a compiler wrote arguments, at whatever depth.
_OPENERS = re.compile(r"[<(]")


def short_kernel(name: object, width: int = 40) -> str:
    """A kernel's name without what it returns, where it comes from, and its arguments; not yet safe for HTML.

    A template whose name says little (``Kernel``, ``Kernel2``) keeps the begin of what is in it.
    """
    text = _NAMELESS.sub("", str(name)).strip()
    head, *rest = _OPENERS.split(text, maxsplit=1)
    last = head.rpartition("::")[2]
    if rest and last.startswith("Kernel"):
        last = _OPENERS.split(rest[0], maxsplit=1)[0].rstrip(">,")
    if str(name).startswith(("Memcpy", "Memset")):
        last = text
    return escape.plain(last or text, width)


def kernel_list(names: Sequence[str], most: int = 2, width: int = 40) -> str:
    """The first of several kernels' short names, and how many more there are; ``none`` without any."""
    shown = list(dict.fromkeys(short_kernel(name, width) for name in names[:most]))
    more = len(names) - most
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "") if names else "none"
