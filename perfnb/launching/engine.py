"""Run one rank of a job in a process that continues afterwards, such as an ipyparallel engine.

Such a process must not be killed, so the rank is stopped from inside the process. An interrupt stops Python code, but
not a collective that waits for another rank. To stop a collective, its connections are closed on both sides.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from perfnb.errors import CaptureError
from perfnb.launching.child import tell_failure, variables_of
from perfnb.launching.job_folder import ORDER, STOP, Meeting, is_abandoned, tell

#: The number of seconds between two checks of the folder, and between two interrupts.
_LOOK_S, _AGAIN_S = 0.1, 1.0
#: The process group of a failed job, which is kept until the next job. Freeing a group waits for its threads, which may
#: in turn wait for the interpreter to free the data that they were sending.
_KEPT: list[Any] = []


def run_on_engine(job: str, rank: int, ranks: int, env: Mapping[str, str]) -> None:
    """Carry out the order in a job's folder as one of its ranks, and restore everything afterwards."""
    folder = Path(job)
    if not (folder / ORDER).is_file():
        raise CaptureError(
            "An engine cannot access the job's folder. Engines must run on the machine that calls profile_ranks."
        )
    if threading.current_thread() is not threading.main_thread():
        raise CaptureError("The executor runs functions in a thread, where ranks cannot be interrupted.")
    output_file = folder / f"output_{rank}"
    with (
        output_file.open("w", encoding="utf-8", errors="backslashreplace", buffering=1) as output,
        redirect_stdout(output),
        redirect_stderr(output),
        _Stopper(folder) as stopper,
    ):
        tell(folder / f"pid_{rank}", str(os.getpid()))
        try:
            with _as_rank(rank, ranks, env):
                _run(folder, rank, ranks, stopper)
            tell(folder / f"done_{rank}", str(output_file.stat().st_size))
        except BaseException as error:  # the caller raises it, and the engine continues
            stopper.armed = False
            tell_failure(folder, rank, error)
            traceback.clear_frames(error.__traceback__)  # they refer to the models, which refer to the process group
        gc.collect()
    if is_abandoned(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, rank: int, ranks: int, stopper: _Stopper) -> None:
    import torch

    from perfnb.launching.rank import profile_in_group, settled

    distributed: Any = torch.distributed
    if distributed.is_initialized():
        raise CaptureError(
            "An engine already has a process group: call torch.distributed.destroy_process_group() on all engines."
        )
    order = settled(folder)
    if order.gpus:
        torch.cuda.set_device(rank)
    _KEPT.clear()
    meeting = Meeting(folder, stopper.stopping)
    stopper.armed = True
    try:
        profile_in_group(order, folder, rank, ranks, meeting, stopper.hang_up, stopper.watched_connections())
    except BaseException as error:
        stopper.armed = False
        tell_failure(folder, rank, error)  # before the other ranks lose their connections and also fail
        stopper.hang_up()
        _KEPT.append(distributed.group.WORLD)
        raise
    finally:
        stopper.armed = False
        if distributed.is_initialized():
            distributed.destroy_process_group()


class _Stopper:
    """Stops a rank if the end of its job was requested, or if the owner of the job has ended.

    A separate thread checks for this and interrupts the main thread.

    Attributes
    ----------
    armed : bool
        Whether the main thread may be interrupted. It is true while the job runs, and false while the engine's state is
        being restored.
    stopping : threading.Event
        Set when the rank must stop.
    """

    def __init__(self, folder: Path) -> None:
        self.armed = False
        self.stopping = threading.Event()
        self._folder = folder
        self._connections: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perfnb-stopper", daemon=True)

    def __enter__(self) -> _Stopper:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.armed = False
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, *_: object) -> None:
        if self.armed:
            raise KeyboardInterrupt

    @contextmanager
    def watched_connections(self) -> Iterator[None]:
        """Record the connections that are opened in this block."""
        before = _connections()
        yield
        self._connections = {number: node for number, node in _connections().items() if before.get(number) != node}

    def hang_up(self) -> None:
        """Shut down the process group's connections, so that collectives that use them fail instead of waiting."""
        now = _connections()
        for number, node in self._connections.items():
            if now.get(number) == node:
                with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                    connection.getpeername()  # fails for listening sockets; without these, gloo ends the process
                    connection.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            if is_abandoned(self._folder) or (self._folder / STOP).exists():
                break
        self.stopping.set()
        while not self._over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.hang_up()
            self._over.wait(_AGAIN_S)  # an interrupt can be lost, for example in a finalizer


def _connections() -> dict[int, int]:
    """Return the descriptors and inodes of this process's open sockets."""
    sockets = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            facts = os.fstat(int(name))
            if stat.S_ISSOCK(facts.st_mode):
                sockets[int(name)] = facts.st_ino
    return sockets


@contextmanager
def _as_rank(rank: int, ranks: int, env: Mapping[str, str]) -> Iterator[None]:
    """Set a rank's environment variables in this context.

    Afterwards, restore the variables, paths, arguments, number of threads and current GPU.
    """
    import torch

    variables, path, argv, threads = dict(os.environ), list(sys.path), list(sys.argv), torch.get_num_threads()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    os.environ |= {**variables_of(rank, ranks), **env}
    try:
        yield
    finally:
        sys.path[:], sys.argv[:] = path, argv
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ |= variables
        torch.set_num_threads(threads)
        if gpu is not None:
            torch.cuda.set_device(gpu)
