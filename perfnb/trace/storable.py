"""Names as a frame or a file of text can hold them."""

from __future__ import annotations


def storable(name: str) -> str:
    """The name, with lone surrogates, which UTF-8 has no bytes for, written as ``\\udc80``."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
