"""Run the process that starts the ranks of a job: ``python -m perfnb.launching.agent``.

This is a separate process, which terminates the ranks even if the process that requested them is killed. It does not
load torch and does not listen on any port.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from perfnb.launching.child import FOLDER, STARTED_BY, set_process_option, variables_of
from perfnb.launching.job_folder import tell

#: The number of seconds between two checks of the ranks, and the number of seconds that a rank has for its own cleanup.
_LOOK_S, _GRACE_S = 0.05, 1.5
_RANK = "from perfnb.launching.child import main; main()"
#: The option of Linux's prctl that makes this process the parent of all orphans among its descendants.
_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Start the ranks and report how each of them ended.

    All ranks are terminated on request, or when the process that requested them no longer exists.
    """
    folder, ranks, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    set_process_option(_SET_CHILD_SUBREAPER, 1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    job = {FOLDER: str(folder), STARTED_BY: str(os.getpid())}
    running = {}
    try:
        for rank in range(ranks):
            own = address | os.environ | job | variables_of(rank, ranks)
            with (folder / f"output_{rank}").open("wb") as output:
                command = [sys.executable, "-c", _RANK]
                running[rank] = subprocess.Popen(command, env=own, stdout=output, stderr=subprocess.STDOUT)
            tell(folder / f"pid_{rank}", str(running[rank].pid))
        while running and not asked and os.getppid() == parent:
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    tell(folder / f"exit_{rank}", str(process.returncode))
                    del running[rank]
            time.sleep(_LOOK_S)
    finally:
        _end_all()
        if os.getppid() != parent:  # no other process remains that could remove the folder
            shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> str:
    """Return a free port for a script that sets up its own process group. The port is not reserved."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _end_all() -> None:
    """Terminate all descendants of this process until no new ones appear. Kill those that do not end in time."""
    left = _signalled(lambda process: process.send_signal(signal.SIGINT))
    psutil.wait_procs(left, timeout=_GRACE_S)
    while left := _signalled(psutil.Process.kill):
        psutil.wait_procs(left, timeout=1.0)


def _signalled(send: Callable[[psutil.Process], None]) -> list[psutil.Process]:
    processes: list[psutil.Process] = psutil.Process().children(recursive=True)
    for process in processes:
        with suppress(psutil.Error):
            send(process)
    return processes


if __name__ == "__main__":
    main()
