"""Start the ranks of a job, follow their progress, and make sure that all of them end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from perfnb.draw import escape
from perfnb.errors import CaptureError
from perfnb.launching.job_folder import ORDER, PROGRESS, tell
from perfnb.launching.order import Order
from perfnb.quantities import counted

#: The number of seconds between two checks of the ranks, the number of seconds to wait for a result that is due, and
#: the number of seconds that the launcher has to terminate the ranks.
_LOOK_S, _LAST_S, _PATIENCE_S = 0.05, 3.0, 30.0
#: Messages from torch's backends that are not shown.
_CHATTER = (b"[Gloo] Rank ",)
#: Words in the errors that a rank raises if it has lost its connection to another rank.
_LOST_PEER = ("connection", "gloo", "nccl", "peer")
_MOST_OF_A_LINE = 2000
#: The environment variables that launchers use to describe a rank.
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


class RankTraceback(Exception):
    """The traceback from a rank, which is shown as the cause of the rank's exception."""


class FollowedRanks:
    """The ranks of a job, regardless of how they are run. They write their results to `folder`."""

    def __init__(self, folder: Path, order: Order, ranks: int, note: str) -> None:
        self._folder, self._ranks, self._words = folder, ranks, f"{counted(ranks, 'rank')} · {note}"
        self._read = [0] * ranks
        self._started = False
        tell(folder / ORDER, pickle.dumps(order))

    def follow(self, progress: Callable[..., None], show: Callable[[str], None]) -> None:
        """Wait for all ranks while displaying their progress and their output.

        Raises
        ------
        CaptureError
            If a rank ends early.
        Exception
            The exception that the first failing rank raised.
        """
        __tracebackhide__ = True
        while True:
            ended = self._have_ended() or bool(self._missing())  # checked first, so that the files below are complete
            self._show_progress(progress)
            self._show_output(show)
            failed, done = self._files("failed"), len(self._files("done")) == self._ranks
            if failed or (ended and not done):
                break
            if done:
                self._wait_for(self._have_ended)
                return
            time.sleep(_LOOK_S)
        self._wait_for(self._have_ended, 4 * _LOOK_S)  # because another rank may have failed first
        time.sleep(_LOOK_S)
        self._show_output(show)
        self._fail()

    def end(self) -> None:
        """Terminate all ranks."""
        raise NotImplementedError

    def _have_ended(self) -> bool:
        """Check whether the ranks can no longer produce any results."""
        raise NotImplementedError

    def _wait_for(self, come: Callable[[], bool], most_s: float = _LAST_S) -> None:
        """Wait until a condition is true, for at most `most_s` seconds."""
        until = time.monotonic() + most_s
        while not come() and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def _how_it_ended(self) -> str:
        """Return a message about the rank that ended without raising an exception."""
        raise NotImplementedError

    def _files(self, kind: str) -> dict[int, Path]:
        """Return the files of a given kind that the ranks have written, keyed by rank."""
        paths = {rank: self._folder / f"{kind}_{rank}" for rank in range(self._ranks)}
        return {rank: path for rank, path in paths.items() if path.exists()}

    def _missing(self) -> list[int]:
        """Return the ranks that have ended without reporting success or failure."""
        gone = [rank for rank, path in self._files("pid").items() if not _runs(int(path.read_text()))]
        told = self._files("done").keys() | self._files("failed").keys()  # written before the rank ended
        return [rank for rank in gone if rank not in told]

    def _show_progress(self, progress: Callable[..., None]) -> None:
        with suppress(OSError, ValueError):
            pass_name, done, total, note = json.loads((self._folder / PROGRESS).read_text())
            progress(pass_name, done, total, note or self._words)
            self._started = True
        if not self._started:
            progress("starting ranks", 0, None, self._words)

    def _show_output(self, show: Callable[[str], None]) -> None:
        """Show the complete lines that the ranks have printed since the last call, prefixed with the rank number."""
        for rank, path in self._files("output").items():
            with path.open("rb") as file:
                file.seek(self._read[rank])
                new = file.read()
            if (last := self._files("done").get(rank)) is not None:  # output after the rank is done is not shown
                new = new[: int(last.read_text()) - self._read[rank]]
            whole = new[: new.rfind(b"\n") + 1]
            self._read[rank] += len(whole)
            for line in whole.splitlines():
                if not line.startswith(_CHATTER):
                    show(f"[rank {rank}] {line.decode(errors='replace')[:_MOST_OF_A_LINE]}\n")

    def _fail(self) -> NoReturn:
        """Raise the exception from the rank that failed first or, if there is none, describe how a rank ended."""
        __tracebackhide__ = True
        failures = [json.loads(path.read_text()) for path in self._files("failed").values()]
        if not failures:
            raise CaptureError(self._how_it_ended())
        first = min(failures, key=lambda failure: float(failure["at"]))
        if any(word in first["message"].lower() for word in _LOST_PEER):
            self._wait_for(lambda: bool(self._missing()) or len(self._files("failed")) == self._ranks)
            if self._missing():
                raise CaptureError(self._how_it_ended())
        rank = first["rank"]
        error: BaseException | None = None
        with suppress(Exception):  # some exceptions can be pickled but not unpickled
            error = pickle.loads((self._folder / f"raised_{rank}").read_bytes())
        if not isinstance(error, Exception):
            words = escape.plain(f"{first['kind']}: {first['message']}", 500)
            error = CaptureError(f"Rank {rank} of {self._ranks} ended with {words}")
        if not isinstance(error, CaptureError):
            error.add_note(f"perfnb: raised by rank {rank} of {self._ranks}; its traceback is above.")
        raise error from RankTraceback(f"\n{first['traceback']}")


class Job(FollowedRanks):
    """A job whose ranks run in their own processes."""

    def __init__(self, folder: Path, order: Order, ranks: int, env: Mapping[str, str], note: str) -> None:
        super().__init__(folder, order, ranks, note)
        with (folder / "launcher").open("wb") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "perfnb.launching.agent", str(folder), str(ranks), str(os.getpid())],
                env=_environment(order.threads, env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only this process receives Ctrl-C, and it terminates the ranks
            )

    def _have_ended(self) -> bool:
        return self._launcher.poll() is not None

    def end(self) -> None:
        """Request that the launcher terminate every process of the job."""
        self._launcher.terminate()
        try:
            self._launcher.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()

    def _how_it_ended(self) -> str:
        missing = set(self._missing())
        self._wait_for(lambda: bool(missing & self._files("exit").keys()))
        exits = {rank: path for rank, path in self._files("exit").items() if rank in missing}
        if not exits:
            log = (self._folder / "launcher").read_text(errors="replace").strip().splitlines()
            return "The ranks could not be started" + (f": {escape.plain(log[-1], 500)}" if log else "")
        rank = min(exits, key=lambda rank: exits[rank].stat().st_mtime_ns)  # the others may have ended because of it
        code = int(exits[rank].read_text())
        if code >= 0:
            return f"Rank {rank} of {self._ranks} ended before its profile was complete."
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        memory = ". The system sends this signal if memory runs out" if name == "SIGKILL" else ""
        return f"Rank {rank} of {self._ranks} was terminated by {name}{memory}."


def of_loopback() -> dict[str, str]:
    """Return the variables that make gloo and NCCL connect the ranks over the machine's loopback interface.

    The ranks can then only be reached by processes on this machine.
    """
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo" if sys.platform == "linux" else "lo0")


def _environment(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the ranks.

    It is this process's environment, with gloo set to the loopback interface and with the number of threads.
    """
    # This process may itself be a rank of another job, with the settings of another launcher.
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_A_RANK and not name.startswith(("TORCHELASTIC_", "PERFNB_JOB_"))
    }
    here = str(Path(__file__).parents[2])
    own["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [own.get("PYTHONPATH")])])
    own |= of_loopback()  # overrides an interface that is set on a cluster
    own |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return own | dict(given)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
