"""The folder where the processes of a job meet: the files that they leave there, and leftovers of killed processes."""

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

#: Files in it: the order for the ranks, their progress, and the request to end; and the folder of the profiles.
ORDER, PROGRESS, STOP, PROFILES = "order", "progress", "stop", "profiles"
#: A folder's name; the file that its owner locks as long as its process lives; and the file that shows that it has been
#: locked.
_PREFIX, _LOCK, _OWNED = "perfnb-job-", "lock", "owner"
#: Seconds between two checks for a value of another rank.
_LOOK_S = 0.001


@contextmanager
def job_folder() -> Iterator[Path]:
    """Provide a new folder, which is removed afterwards, as are those that killed processes of this user have left."""
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
    """Return whether a job's folder is gone, or its owner has ended; without a lock to tell, it has not."""
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
    """Remove the folders of jobs whose owners have ended, but only folders of this user, and no links."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            with suppress(OSError):
                facts, folder = entry.stat(follow_symlinks=False), Path(entry.path)
                mine = stat.S_ISDIR(facts.st_mode) and (not hasattr(os, "getuid") or facts.st_uid == os.getuid())
                # One without that mark may not be locked yet.
                if entry.name.startswith(_PREFIX) and mine and (folder / _OWNED).exists() and is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def tell(path: Path, text: str | bytes) -> None:
    """Write a file of the job's folder, all at once, only for this user, because the reader runs the pickles in it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text.encode() if isinstance(text, str) else text)
    os.replace(fresh, path)


class Meeting:
    """Messages between ranks, as files in the folder of their job, which only its user can read.

    Unlike torch's stores, it needs no port, and waiting ends with an interrupt or when `stopping` is set.
    """

    def __init__(self, folder: Path, stopping: threading.Event | None = None) -> None:
        self._folder, self._stopping = folder, stopping or threading.Event()

    def set(self, key: str, value: str) -> None:
        """Give a key a value."""
        tell(self._folder / f"told_{key}", value)

    def get(self, key: str) -> str:
        """Wait for a key's value.

        Raises
        ------
        CaptureError
            If the job is stopped meanwhile.
        """
        path = self._folder / f"told_{key}"
        while not path.exists():
            if self._stopping.wait(_LOOK_S):
                raise CaptureError("The job was stopped.")
        return path.read_text()
