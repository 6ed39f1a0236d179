"""Read small system files, any of which may be missing or have unexpected content."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perfnb.telemetry.sampler.source import file_bytes

Reader = Callable[[], Any]


class Unread(NamedTuple):
    """Represents a fact that could not be read."""

    why: str


class Unreadable(Exception):
    """Raised if a fact cannot be read. The message contains the reason."""


def read_all(readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return each reader's result, or the reason why it failed. A failure does not affect the other readers."""
    facts: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            facts[name] = read()
        except Exception as error:  # drivers and libraries fail in many ways, and each of them is a valid reason
            facts[name] = Unread(reason(error))
    return facts


def reason(error: Exception) -> str:
    """Return the reason why a fact could not be read."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower() + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class SystemTree:
    """The files below `root` that describe a Linux system. On other platforms, nothing can be read."""

    def __init__(self, root: str, platform: str) -> None:
        self.root, self.platform = root, platform

    @property
    def is_linux(self) -> bool:
        """Whether such files exist."""
        return self.platform.startswith("linux")

    def path(self, name: str) -> str:
        """Return a file's path, for example for ``proc/meminfo``.

        Raises
        ------
        Unreadable
            If this is not Linux.
        """
        if not self.is_linux:
            system = {"darwin": "macOS", "win32": "Windows"}.get(self.platform, self.platform)
            raise Unreadable(f"perfnb cannot read this on {system}")
        return os.path.join(self.root, name)

    def text(self, name: str) -> str:
        """Return a file's content, stripped.

        Raises
        ------
        Unreadable
            If the file cannot be read, or is empty.
        """
        try:
            text = file_bytes(self.path(name))
        except OSError as error:
            raise Unreadable(f"{(error.strerror or 'error').lower()}: /{name}") from None
        if not text.strip():
            raise Unreadable(f"/{name} is empty")
        return text.decode(errors="replace").strip()

    def whole(self, name: str) -> int:
        """Return the integer in a file."""
        text = self.text(name)
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise Unreadable(f"/{name} contains {text[:40]!r}, which is not a number")
        return int(text)

    def word(self, name: str) -> str:
        """Return the single word in a file."""
        text = self.text(name)
        if len(text) > 60 or not text.replace("-", "").replace("_", "").isalnum():
            raise Unreadable(f"/{name} contains {text[:40]!r}, which is not a word")
        return text

    def chosen(self, name: str) -> str:
        """Return the word in brackets in a file, as in ``always [madvise] never``."""
        text = self.text(name)
        before, _, after = text.partition("[")
        word, bracket, _ = after.partition("]")
        if bracket and word:
            return word
        if before.strip() and " " not in text and len(text) < 40:
            return text  # there is only one option
        raise Unreadable(f"/{name} contains {text[:40]!r}, with no option in brackets")

    def folders(self, name: str, prefix: str) -> list[str]:
        """Return the entries of a folder that are named `prefix` plus a number, ordered by number.

        There is at least one.
        """
        try:
            entries = os.listdir(self.path(name))
        except OSError as error:
            raise Unreadable(f"{(error.strerror or 'error').lower()}: /{name}") from None
        found = [entry for entry in entries if entry.startswith(prefix) and entry[len(prefix) :].isdecimal()]
        if not found:
            raise Unreadable(f"there is no {prefix}0 in /{name}")
        return [f"{name}/{entry}" for entry in sorted(found, key=lambda entry: int(entry[len(prefix) :]))]


def numbers_of(text: str) -> frozenset[int]:
    """Return the numbers in a list such as ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or len(first + last) > 10:
            raise Unreadable(f"{text[:40]!r} is not a list of numbers")
        if int(last or first) - int(first) > 1 << 16:
            raise Unreadable(f"{text[:40]!r} has too many numbers")
        numbers |= set(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
