"""Define the entry point of a rank, and functions that a job's processes use before importing anything large.

The processes end when the process that started them ends, and write their results to the job's folder. Every rank is
started with ``python -c``, so that ``__main__`` is empty and can contain the objects that were sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from perfnb.launching.job_folder import tell

#: The environment variables for the job's folder and for the id of the process that started a rank.
FOLDER, STARTED_BY = "PERFNB_JOB_FOLDER", "PERFNB_JOB_STARTED_BY"
#: The number of seconds between two checks of the parent process.
_LOOK_S = 0.2
#: The option of Linux's prctl that requests a signal when the parent process ends.
_SET_PDEATHSIG = 1
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def main() -> None:
    """Carry out the job's order as one of its ranks."""
    _end_with(int(os.environ[STARTED_BY]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder, rank = Path(os.environ[FOLDER]), int(os.environ["RANK"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        from perfnb.launching.rank import run

        run(folder, rank)
    except BaseException as error:
        tell_failure(folder, rank, error)
        # The other ranks notice that their connections are closed. The finalizers of a broken job may wait forever.
        sys.stdout.flush()
        os._exit(1)
    # Record how much has been printed so far. Later output, such as a report, is not shown in the notebook.
    sys.stdout.flush()
    tell(folder / f"done_{rank}", str(os.fstat(1).st_size))


def variables_of(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment variables that describe a rank on a single machine, named as in torchrun."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in own.items()}


def set_process_option(option: int, value: int) -> None:
    """Set an option of this process with Linux's prctl. On other systems, do nothing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _end_with(parent: int) -> None:
    """Make this process end when the process that started it ends."""
    set_process_option(_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    elif os.getppid() != parent:  # the parent has already ended
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def tell_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Write an exception with its traceback, starting at the user's first line.

    Only a rank's first exception is kept.
    """
    path = folder / f"failed_{rank}"
    if path.exists():
        return
    at = time.monotonic()
    trace = _users(error.__traceback__)
    words = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    facts = {"at": at, "rank": rank, "kind": type(error).__name__, "message": str(error), "traceback": words}
    with suppress(Exception):
        import cloudpickle

        tell(folder / f"raised_{rank}", cloudpickle.dumps(error))
    with suppress(OSError):  # if the folder no longer exists, no process is interested in the exception
        tell(path, json.dumps(facts))


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback starting at its first frame outside perfnb, or the whole traceback if there is none."""
    inner = trace
    while inner is not None:
        file = inner.tb_frame.f_code.co_filename
        if not file.startswith((_PACKAGE, "<frozen", "<string>")) and os.path.basename(file) != "runpy.py":
            return inner
        inner = inner.tb_next
    return trace
