"""Small system files that are read over and over."""

from __future__ import annotations

import os


class KeptFiles:
    """At most `most` files that stay open: reading one is then twice as cheap, and stays tied to the same process."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._open: dict[str, int] = {}

    def text(self, path: str, size: int = 8192) -> bytes:
        """The first `size` bytes of a file as it is now.

        Raises
        ------
        OSError
            If it cannot be read, or what it describes is gone.
        """
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if len(self._open) >= self._most:
                try:
                    return _text(descriptor, size)
                finally:
                    os.close(descriptor)
            self._open[path] = descriptor
        try:
            return _text(descriptor, size)
        except OSError:
            self.forget(path)
            raise

    def forget(self, path: str) -> None:
        """Close a file if it is open."""
        if (descriptor := self._open.pop(path, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self.forget(path)


def _text(descriptor: int, size: int) -> bytes:
    text = part = os.pread(descriptor, size, 0)
    # The kernel generates some files a page at a time, in whole rows; one that fills less than half a page is complete.
    while len(part) > 2048 and len(text) < size:
        part = os.pread(descriptor, size - len(text), len(text))
        text += part
    return text
