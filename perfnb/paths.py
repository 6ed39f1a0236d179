"""Paths that the user gives."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from perfnb.arguments import shown
from perfnb.errors import RecordingError

#: A longer path is shortened in the middle of an error's sentence.
_LONGEST_SHOWN = 120


def usable(path: str | os.PathLike[str]) -> Path:
    """The path, with a home folder in the place of ``~``; whether anything is there does not matter.

    Raises
    ------
    RecordingError
        If nothing can be there: no such user, a name that is too long, or a character that no name may have.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path, not {shown(path)}.")
    try:
        found = Path(path).expanduser()
        os.lstat(found)
    except RuntimeError:
        raise RecordingError(
            f"{_shown(path)} cannot be found: no home folder is known for it; give the whole path."
        ) from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise RecordingError(
            f"{_shown(path)} cannot be a path: it holds a character that no file's name may have."
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RecordingError(f"{_shown(path)} cannot be a path: it is too long for this system.") from None
    return found


def _shown(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]}…{text[-half:]}"
