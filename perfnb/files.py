"""Writing whole or not at all: into a hidden folder beside the target, then moved into place.

A writer can be killed at any instant. A lock that ends with its process tells what it left from the work of a writer
that is alive. An earlier folder that it had just moved away is still found, and the next writer puts it back.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".perfnb-"
_LOCK, _NEW, _OLD, _DONE = "lock", "new", "old", "done"
#: Where no lock tells whether a writer lives, its work is removed after so many seconds: none takes as long.
_STALE_S = 3600.0
_TRIES = 10


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A new hidden folder beside what stands in `folder`, to write in; it is gone afterwards.

    What killed writers left in `folder` is cleared away first.
    """
    sweep(folder)
    work, lock = _locked(folder)
    try:
        (work / _NEW).mkdir()
        yield work / _NEW
    finally:
        try:
            with suppress(OSError):  # the next writer will try again
                _clear(work, folder)
        finally:
            if lock is not None:
                os.close(lock)


def put_folder(fresh: Path, target: Path) -> None:
    """Move a folder that was written in a `workplace` beside `target` there; an earlier one is replaced.

    At every instant the earlier or the new one stands at `target`, or `standing` finds the earlier one. If the new one
    cannot be moved, the workplace puts the earlier one back.
    """
    old = fresh.parent / _OLD
    if target.exists():
        old.mkdir()
        os.replace(target, old / target.name)
    os.replace(fresh, target)


def put_file(fresh: Path, target: Path) -> None:
    """Move a file that was written in a `workplace` to `target`, where a file may stand and nothing else.

    Raises
    ------
    OSError
        If a device, a pipe or a folder stands there: moving a file there would take it from everyone.
    """
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is no file but a folder, a pipe or a device")
    os.replace(fresh, target)


def standing(path: Path) -> Path:
    """`path`, or where the folder lies that a writer moved away from there when it was killed."""
    with suppress(OSError, ValueError):
        if not os.path.lexists(path):
            for work in _workplaces(path.parent):
                if (work / _OLD / path.name).is_dir():
                    return work / _OLD / path.name
    return path


def sweep(folder: Path) -> None:
    """Put back what killed writers had moved away in `folder`, and remove what else they left."""
    with suppress(OSError):
        for work in _workplaces(folder):
            with suppress(OSError):
                _sweep(work, folder)


def _workplaces(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [
            Path(each.path) for each in entries if each.name.startswith(_PREFIX) and each.is_dir(follow_symlinks=False)
        ]


def _sweep(work: Path, folder: Path) -> None:
    try:
        lock = os.open(work / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(work)  # nothing is lost: a writer that just made it makes another
            return
        if time.time() - work.stat().st_mtime > _STALE_S:
            _clear(work, folder)
        return
    try:
        taken = _take(lock)
        if taken or (taken is None and time.time() - work.stat().st_mtime > _STALE_S):
            _clear(work, folder)
    finally:
        os.close(lock)


def _clear(work: Path, folder: Path) -> None:
    """Put back what was moved away and nothing has replaced, and remove a workplace, its lock last."""
    old = work / _OLD
    if old.exists():
        for one in old.iterdir():
            if not os.path.lexists(folder / one.name):
                os.replace(one, folder / one.name)
        os.replace(old, work / _DONE)  # so that it is not found while it is being removed
    for name in (_NEW, _DONE):
        if (work / name).exists():
            shutil.rmtree(work / name)
    (work / _LOCK).unlink(missing_ok=True)
    shutil.rmtree(work)


def _locked(folder: Path) -> tuple[Path, int | None]:
    """A new workplace, and its lock, which is held until it is closed; ``None`` where there are no locks."""
    for _ in range(_TRIES):
        work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        try:
            lock = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        # Another writer may have seen it in the moment before it was locked, and swept it.
        if _take(lock) is not False and (work / _LOCK).exists():
            return work, lock
        os.close(lock)
    raise OSError(f"something removes what is written to {folder}")


def _take(lock: int) -> bool | None:
    """Lock a file; ``False`` where somebody holds it, ``None`` where that cannot be told."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # a file system or a platform without locks
        return None
    return True
