"""The folder in which the processes of a job meet, and what a process that was killed has left of one."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfnb.files import take_lock

#: A folder's name, and the file in it that its owner locks: the lock goes with the process, however that ends.
_PREFIX, _OWNER = "perfnb-job-", "owner"
_TRIES = 10


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder, which is gone afterwards, as are those that killed processes of this user have left."""
    base = Path(tempfile.gettempdir())
    remove_abandoned(base)
    folder, lock = _owned(base)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Whether a job's folder is gone, or its owner has ended; where no lock tells, it has not."""
    try:
        lock = os.open(folder / _OWNER, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return take_lock(lock) is True
    finally:
        os.close(lock)


def remove_abandoned(base: Path) -> None:
    """Remove the folders of jobs whose owners have ended; of this user, and no links."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            with suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                mine = stat.S_ISDIR(facts.st_mode) and (not hasattr(os, "getuid") or facts.st_uid == os.getuid())
                folder = Path(entry.path)
                # One without the file is just being made.
                if entry.name.startswith(_PREFIX) and mine and (folder / _OWNER).exists() and is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _owned(base: Path) -> tuple[Path, int]:
    """Make a folder, and lock it until the descriptor is closed."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        # Another job may have seen it just before it was locked, and removed it.
        if take_lock(lock) is not False and (folder / _OWNER).exists():
            return folder, lock
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
    raise OSError(f"something removes what is written to {base}")
