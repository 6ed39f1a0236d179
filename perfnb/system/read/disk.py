"""Read the facts about the disk with the data, and measure a short read from it."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from perfnb.system.read.reading import Reader, SystemTree, Unreadable

#: The read test ends after this many bytes or seconds, whichever comes first.
MOST_BYTES, MOST_S = 32 << 20, 1.0
#: The number of entries to search for files, the time limit for this in seconds, and the number of files to read.
_MOST_ENTRIES, _LOOK_S, _MOST_FILES = 2000, 0.2, 64
_TEMPORARY_BYTES = 8 << 20
_CHUNK = 1 << 20
#: If fewer bytes than this were read from the disk, a temporary file is read as well.
_FEWEST_BYTES = 1 << 20


def disk_readers(tree: SystemTree, data: str) -> dict[str, Reader]:
    """Return a reader for each fact."""
    return {
        "data": lambda: os.path.abspath(data),
        "mount": lambda: mount_of(tree, data),
        "block_device": lambda: block_device(tree, mount_of(tree, data)),
        "read_test": lambda: read_test(data),
    }


def mount_of(tree: SystemTree, data: str) -> dict[str, str]:
    """Return the file system that contains a path: its mount point, kind, source and device number."""
    place = os.path.realpath(data)
    best: dict[str, str] | None = None
    for line in tree.text("proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(" "), after.split(" ")
        if len(words) < 6 or len(kind) < 2:
            continue
        folder = re.sub(r"\\([0-3][0-7]{2})", lambda code: chr(int(code[1], 8)), words[4])
        inside = folder == "/" or f"{place}/".startswith(f"{folder.rstrip('/')}/")
        # If there are several mounts at one place, the last one is on top.
        if inside and (best is None or len(folder) >= len(best["folder"])):
            best = {"folder": folder, "kind": kind[0], "source": kind[1], "device": words[2]}
    if best is None:
        raise Unreadable("/proc/self/mountinfo lists no file system that contains the path")
    return best


def block_device(tree: SystemTree, mount: dict[str, str]) -> dict[str, Any]:
    """Return the disk below a file system: its name, and whether it is rotational (``None`` if this is unknown)."""
    folder = _block_folder(tree, mount)
    if folder is None:
        raise Unreadable(f"a {mount['kind']} file system is not on a visible disk of this machine")
    for _ in range(8):  # from a partition to its disk, from a mapped volume to the device below
        below = os.path.join(folder, "slaves")
        if os.path.exists(os.path.join(folder, "partition")):
            folder = os.path.dirname(folder)
        elif os.path.isdir(below) and os.listdir(below):
            folder = os.path.realpath(os.path.join(below, sorted(os.listdir(below))[0]))
        else:
            break
    name, queue = os.path.basename(folder), os.path.relpath(os.path.join(folder, "queue"), os.path.realpath(tree.root))
    facts: dict[str, Any] = {"name": name, "turns": None}
    with suppress(Unreadable):
        facts["turns"] = tree.whole(f"{queue}/rotational") != 0
    return facts


def _block_folder(tree: SystemTree, mount: dict[str, str]) -> str | None:
    """Return the system folder that describes the block device below a file system."""
    places = [os.path.join("sys/dev/block", mount["device"])] if re.fullmatch(r"\d+:\d+", mount["device"]) else []
    source = mount["source"]
    if source.startswith("/dev/"):  # btrfs has its own device number
        behind = os.path.realpath(tree.path(source.lstrip("/")))  # a mapped volume is a link
        places += [os.path.join("sys/class/block", os.path.basename(name)) for name in (behind, source)]
    found = (os.path.realpath(tree.path(place)) for place in places if os.path.exists(tree.path(place)))
    return next(found, None)


def read_test(data: str, most_bytes: int = MOST_BYTES, most_s: float = MOST_S) -> dict[str, Any]:
    """Read files for a short time and measure the read rate.

    Linux can recognise reads from the page cache, which do not show how fast the disk is. Existing files are only read.
    If they are too small or cached, an unnamed temporary file is written, read and deleted. The page cache is not
    emptied, because this requires root and would slow down all other programs.

    Returns
    -------
    dict
        ``files`` (how many were read), ``temporary`` (whether a temporary file was read), ``disk_bytes``, ``disk_s``
        and ``disk_requests`` (of at most 1 MiB each), ``cached_bytes``, ``cached_s``, ``cache_known`` (whether the
        system distinguishes the cache from the disk), ``failed`` (files that could not be read).

    Raises
    ------
    Unreadable
        If no file could be read.
    """
    if not os.path.exists(data):
        raise Unreadable(f"there is no {data!r}")
    if not hasattr(os, "pread"):
        raise Unreadable("perfnb cannot test reads on this system")
    result: dict[str, Any] = {"files": 0, "temporary": False, "failed": 0, "cache_known": hasattr(os, "RWF_NOWAIT")}
    result |= {"disk_bytes": 0, "disk_s": 0.0, "disk_requests": 0, "cached_bytes": 0, "cached_s": 0.0}
    until = time.perf_counter() + most_s
    for path in _files(data):
        left = most_bytes - result["disk_bytes"] - result["cached_bytes"]
        if result["files"] >= _MOST_FILES or left <= 0 or time.perf_counter() > until:
            break
        try:
            descriptor = _open(path)
            try:
                _read(descriptor, left, until, result)
            finally:
                os.close(descriptor)
            result["files"] += 1
        except OSError:
            result["failed"] += 1
    read = result["disk_bytes"] + (0 if result["cache_known"] else result["cached_bytes"])
    if read < _FEWEST_BYTES and time.perf_counter() < until:
        try:
            _read_temporary(data, until, result)
        except OSError as error:
            if not result["files"]:
                words = (error.strerror or "error").lower()
                raise Unreadable(f"no file could be read or written there ({words})") from None
    if not result["files"] and not result["temporary"]:
        raise Unreadable("no file could be read there")
    return result


def _files(data: str) -> Iterator[str]:
    """Yield the files to read: the path itself, or the files below a folder, largest first."""
    if not os.path.isdir(data):
        yield data
        return
    found: list[tuple[int, str]] = []
    folders, seen, until = deque([data]), 0, time.perf_counter() + _LOOK_S
    while folders and seen < _MOST_ENTRIES and time.perf_counter() < until:
        with suppress(OSError), os.scandir(folders.popleft()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MOST_ENTRIES or time.perf_counter() > until:
                    break
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif stat.S_ISREG((status := entry.stat()).st_mode) and status.st_size:
                        found.append((status.st_size, entry.path))
    yield from (path for _, path in sorted(found, reverse=True))


def _open(path: str) -> int:
    """Open a file for reading, without changing its access time if the system allows this."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def _read(descriptor: int, most_bytes: int, until: float, result: dict[str, Any]) -> None:
    buffer, place = bytearray(_CHUNK), 0
    if hasattr(os, "posix_fadvise"):  # data that is read ahead would look cached
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    while place < most_bytes and time.perf_counter() < until:
        start = time.perf_counter()
        count, cached = _chunk(descriptor, buffer, place, result)
        taken = time.perf_counter() - start
        if not count:
            return
        kind = "cached" if cached else "disk"
        result[f"{kind}_bytes"] += count
        result[f"{kind}_s"] += taken
        result["disk_requests"] += not cached
        place += count


def _chunk(descriptor: int, buffer: bytearray, place: int, result: dict[str, Any]) -> tuple[int, bool]:
    """Read a chunk, and return its size and whether it was cached.

    Linux can refuse to wait for data that is not cached.
    """
    if result["cache_known"]:
        try:
            count = os.preadv(descriptor, [buffer], place, os.RWF_NOWAIT)
            if count:
                return count, True
        except BlockingIOError:
            pass
        except OSError:  # the file system does not support this
            result["cache_known"] = False
    data = os.pread(descriptor, len(buffer), place)
    return len(data), False


def _read_temporary(data: str, until: float, result: dict[str, Any]) -> None:
    """Write an unnamed file, drop it from the page cache, and read it."""
    folder = data if os.path.isdir(data) else os.path.dirname(os.path.abspath(data))
    with tempfile.TemporaryFile(dir=folder, prefix="perfnb-") as file:
        for _ in range(_TEMPORARY_BYTES // _CHUNK):
            file.write(os.urandom(_CHUNK))
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # only for our own file
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        _read(file.fileno(), _TEMPORARY_BYTES, max(until, time.perf_counter() + 0.1), result)
        result["temporary"] = True
