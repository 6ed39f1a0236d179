"""Opening what a user names as a file: a pipe or a device would never end, or never begin."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path, buffering: int = -1) -> BinaryIO:
    """A file for reading, if it is a regular one or a link to one.

    Raises
    ------
    OSError
        If it cannot be opened, or is a pipe, a device or a socket.
    """
    file: BinaryIO = open(path, "rb", buffering, opener=_open_at_once)  # noqa: SIM115 the caller's to close
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise OSError("it is not a file but a pipe or a device")
    return file


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes; as `open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"it is larger than {most:,} bytes")
        return file.read(size)  # Python makes room at once for as much as it is asked for


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer would wait for ever
