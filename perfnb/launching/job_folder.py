"""Create the folder through which a job's processes exchange files, and remove folders left by killed processes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfnb.errors import CaptureError
from perfnb.files import take_lock

#: The names of the files with the order for the ranks, their progress and the request to end, and of the folder with
#: the profiles.
ORDER, PROGRESS, STOP, PROFILES = "order", "progress", "stop", "profiles"
#: The prefix of a job folder's name, the file that its owner's process keeps locked, and the file that shows that it
#: has been locked.
_PREFIX, _LOCK, _OWNED = "perfnb-job-", "lock", "owner"
#: The number of seconds between two checks for a value from another rank.
_LOOK_S = 0.001


@contextmanager
def job_folder() -> Iterator[Path]:
    """Create a new folder for a job, and remove it afterwards.

    Folders that were left behind by killed processes of this user are also removed.
    """
    base = Path(tempfile.gettempdir())
    remove_abandoned(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        take_lock(lock)
        (folder / _OWNED).touch()
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Check whether a job's folder no longer exists, or its owner has ended.

    If the system does not support locks, the folder does not count as abandoned.
    """
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return take_lock(lock) is True
    finally:
        os.close(lock)


def remove_abandoned(base: Path) -> None:
    """Remove the folders of jobs whose owners have ended.

    Only folders that belong to this user are removed. Links are ignored.
    """
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            with suppress(OSError):
                facts, folder = entry.stat(follow_symlinks=False), Path(entry.path)
                mine = stat.S_ISDIR(facts.st_mode) and (not hasattr(os, "getuid") or facts.st_uid == os.getuid())
                # A folder without this file may not have been locked yet.
                if entry.name.startswith(_PREFIX) and mine and (folder / _OWNED).exists() and is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def tell(path: Path, text: str | bytes) -> None:
    """Write a file to the job's folder atomically.

    Only this user can access the file. This is important because the reader loads the pickles in it.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text.encode() if isinstance(text, str) else text)
    os.replace(fresh, path)


class Meeting:
    """Messages between ranks, stored as files in the job's folder, which only this user can read.

    Unlike torch's stores, this does not require a port, and `get` stops waiting when it is interrupted or when
    `stopping` is set.
    """

    def __init__(self, folder: Path, stopping: threading.Event | None = None) -> None:
        self._folder, self._stopping = folder, stopping or threading.Event()

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""
        tell(self._folder / f"told_{key}", value)

    def get(self, key: str) -> str:
        """Wait until a key has a value, and return the value.

        Raises
        ------
        CaptureError
            If the job is stopped while waiting.
        """
        path = self._folder / f"told_{key}"
        while not path.exists():
            if self._stopping.wait(_LOOK_S):
                raise CaptureError("The job was stopped.")
        return path.read_text()
