"""Resolve the user's paths, read regular files only, and write files atomically.

Files are written into a hidden folder next to the target and then moved into place. A writer can be killed at any time.
Each writer therefore holds a lock that is released when its process ends, so leftovers can be distinguished from files
that are still being written. If a writer is killed just after it has moved a folder aside, readers still find that
folder, and the next writer puts it back.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perfnb.arguments import shown
from perfnb.errors import RecordingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Longer paths are shortened in the middle of an error message.
_LONGEST_SHOWN = 120
_PREFIX = ".perfnb-"
_LOCK, _NEW, _OLD, _DONE = "lock", "new", "old", "done"
#: Without locks, perfnb cannot tell whether a writer is still running. Its leftovers are then removed after this many
#: seconds, because no writer takes that long.
_STALE_S = 3600.0
_TRIES = 10


def require_writable(folder: Path) -> None:
    """Raise an error if nothing can be written in a folder, whether or not the folder exists.

    Raises
    ------
    RecordingError
    """
    try:
        nearest = usable(folder).absolute()
    except FileNotFoundError:
        raise RecordingError(f"Nothing can be saved in {_short(folder)}: the working folder is gone.") from None
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise RecordingError(f"Nothing can be saved in {_short(folder)}: {_short(nearest)} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RecordingError(f"Nothing can be saved in {_short(folder)}: {_short(nearest)} cannot be written to.")


def usable(path: str | os.PathLike[str]) -> Path:
    """Return the path with ``~`` expanded, whether or not anything exists there.

    Raises
    ------
    RecordingError
        If the path is invalid: its user is unknown, it is too long, or it contains a forbidden character.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path, not {shown(path)}.")
    try:
        expanded = Path(path).expanduser()
        os.lstat(expanded)
    except RuntimeError:
        raise RecordingError(f"{_short(path)} cannot be found: its home folder is unknown. Pass a full path.") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise RecordingError(f"{_short(path)} is not a valid path: it contains a forbidden character.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RecordingError(f"{_short(path)} is not a valid path: it is too long for this system.") from None
    return expanded


def _short(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]}…{text[-half:]}"


def open_regular(path: str | Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, or a link to one. Pipes and devices are rejected because they may block.

    Raises
    ------
    OSError
        If the file cannot be opened, or if it is a pipe, a device or a socket.
    """
    file: BinaryIO = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115 the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is a pipe or a device, not a file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe without a writer would block forever


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raises the same errors as `open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"it is larger than {most:,} bytes")
        return file.read(size)  # Python allocates the requested size up front


def write_text(text: str, path: str | Path) -> Path:
    """Write a text file atomically; raises the same errors as `write_parts`."""
    return write_parts([text.encode("utf-8")], path)


def write_parts(parts: Iterable[bytes], path: str | Path) -> Path:
    """Write a file atomically, part by part; missing folders are created.

    Raises
    ------
    RecordingError
        If it cannot be written.
    """
    target = usable(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(parts, target)
    except OSError as error:
        raise RecordingError(f"{target} cannot be written: {error}.") from error
    return target


def write_file(parts: Iterable[bytes], target: Path) -> None:
    """Write a file atomically in an existing folder.

    Raises
    ------
    OSError
        If the file cannot be written, or if the path is a device, a pipe or a folder, which must not be replaced.
    """
    with workplace(target.parent) as work:
        fresh = work / "file"
        with fresh.open("wb") as file:
            file.writelines(parts)
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file")
        os.replace(fresh, target)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Provide an empty folder that replaces `target` when the block ends.

    At any time, either the old or the new folder is at `target`, or `locate` can find the old folder. If the block
    fails or the new folder cannot be moved, the old folder is kept or restored.
    """
    with workplace(target.parent) as fresh:
        yield fresh
        if target.exists():
            old = fresh.parent / _OLD
            old.mkdir()
            os.replace(target, old / target.name)
        os.replace(fresh, target)


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Create a hidden folder inside `folder` to write in, and remove it afterwards.

    Leftovers from killed writers in `folder` are removed first.
    """
    sweep(folder)
    work, lock = _locked(folder)
    try:
        (work / _NEW).mkdir()
        yield work / _NEW
    finally:
        try:
            with suppress(OSError):  # the next writer tries again
                _clear(work, folder)
        finally:
            if lock is not None:
                os.close(lock)


def locate(path: Path) -> Path:
    """Return `path`, or the path to which a killed writer had moved the folder."""
    with suppress(OSError, ValueError):
        if not os.path.lexists(path):
            for work in _workplaces(path.parent):
                if (work / _OLD / path.name).is_dir():
                    return work / _OLD / path.name
    return path


def sweep(folder: Path) -> None:
    """Restore folders that killed writers had moved aside in `folder`, and remove their other leftovers."""
    with suppress(OSError):
        for work in _workplaces(folder):
            with suppress(OSError):
                _sweep(work, folder)


def _workplaces(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
        ]


def _sweep(work: Path, folder: Path) -> None:
    try:
        lock = os.open(work / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(work)  # nothing is lost, because a writer that has just created it will create another one
            return
        if time.time() - work.stat().st_mtime > _STALE_S:
            _clear(work, folder)
        return
    try:
        taken = take_lock(lock)
        if taken or (taken is None and time.time() - work.stat().st_mtime > _STALE_S):
            _clear(work, folder)
    finally:
        os.close(lock)


def _clear(work: Path, folder: Path) -> None:
    """Restore a folder that was moved aside but not replaced, then remove the workplace and finally its lock."""
    old = work / _OLD
    if old.exists():
        for moved in old.iterdir():
            if not os.path.lexists(folder / moved.name):
                os.replace(moved, folder / moved.name)
        os.replace(old, work / _DONE)  # so that it is not found while it is being removed
    for name in (_NEW, _DONE):
        if (work / name).exists():
            shutil.rmtree(work / name)
    (work / _LOCK).unlink(missing_ok=True)
    shutil.rmtree(work)


def _locked(folder: Path) -> tuple[Path, int | None]:
    """Create a workplace and lock it until the descriptor is closed, if the file system supports locks."""
    for _ in range(_TRIES):
        work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            lock = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        # Another writer may have seen it just before it was locked, and swept it.
        if take_lock(lock) is not False and (work / _LOCK).exists():
            return work, lock
        os.close(lock)
    raise OSError(f"another program keeps removing files from {folder}")


def take_lock(lock: int) -> bool | None:
    """Lock an open file. Return ``False`` if another process holds the lock, and ``None`` if that is unknown."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # a file system or platform without locks
        return None
    return True
