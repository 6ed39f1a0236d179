"""Reading trace files into recordings, several at once in other processes where that pays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TypeVar

from perfnb.errors import TraceError
from perfnb.recording import storage
from perfnb.recording.from_trace import recording_of_trace
from perfnb.recording.recording import Recording
from perfnb.trace.readers import looks_like, reader_of, readers
from perfnb.trace.trace_file import QUIET_S, Limits, Progress
from perfnb.trace.trace_size import refuse_odd_layers, refuse_odd_trace

Thing = TypeVar("Thing")

#: Bytes of files from which on they are read by processes of their own.
_PAYS = 16 * 2**20
_RANK = re.compile(r"rank[^0-9A-Za-z]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_FAILED = 3


def read_recording(
    path: str | Path, limits: Limits, rank: int | None = None, progress: Progress | None = None
) -> Recording:
    """The recording of a trace file, without layers.

    Parameters
    ----------
    path : str or Path
    limits : Limits
    rank : int, optional
        Where the trace tells none.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
    source = Path(path)
    reader = reader_of(source)
    if reader is None:
        known = ", ".join(each.what for each in readers())
        raise TraceError(f"{source} is not a trace that perfnb can read ({looks_like(source)}): it reads {known}.")
    trace = reader.read(source, limits, progress)
    refuse_odd_trace(trace, str(source))
    recording = recording_of_trace(trace, source.name, rank, reader.caveats)
    refuse_odd_layers(recording.modules["depth"].tolist(), 0, str(source))
    return recording


def read_recordings(
    paths: Sequence[Path], limits: Limits, executor: Executor | None, progress: Progress | None = None
) -> list[Recording]:
    """The recordings of trace files of one job, in the order of their ranks.

    A rank is that of the trace, else that in the file's name (``rank3``), else the file's place. Where two files would
    have one rank, the places count for all.

    Parameters
    ----------
    executor : Executor, optional
        Reads the files. By default processes do if there is much to read.
    progress : callable, optional
        As `perfnb.trace.readers.Reader.read` takes it; of all files together.

    Raises
    ------
    TraceError
        If a file cannot be read.
    """
    ranks = [rank_of_name(path.name) for path in paths]
    together = _Together([_size(path) for path in paths], progress)
    if executor is not None:
        tasks = [
            executor.submit(_read_or_say, str(path), limits, rank) for path, rank in zip(paths, ranks, strict=True)
        ]
        try:
            found = [_or_raise(task.result()) for task in together.each(tasks)]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
    elif len(paths) > 1 and together.total >= _PAYS and (os.cpu_count() or 1) > 1:
        found = _read_apart(paths, limits, ranks, together)
    else:
        pairs = together.each(list(zip(paths, ranks, strict=True)))
        found = [read_recording(path, limits, rank, together.of_one) for path, rank in pairs]
    known = [
        recording.rank if recording.meta["trace"]["rank_known"] else place for place, recording in enumerate(found)
    ]
    if len(set(known)) < len(known):
        known = list(range(len(found)))
    named = [_with_rank(recording, rank) for recording, rank in zip(found, known, strict=True)]
    return sorted(named, key=lambda recording: recording.rank)


def trace_files(folder: Path) -> list[Path]:
    """The trace files in a folder, in the order of the numbers in their names."""
    endings = tuple(ending for reader in readers() for ending in reader.endings)
    files = [path for path in folder.iterdir() if path.is_file() and path.name.lower().endswith(endings)]
    return sorted(
        files, key=lambda path: [(len(n), n) if n.isdigit() else (0, n) for n in re.split(r"(\d+)", path.name)]
    )


def rank_of_name(name: str) -> int | None:
    """The rank that a file's name tells: 3 of ``job_rank3.json.gz``."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def _with_rank(recording: Recording, rank: int) -> Recording:
    return Recording(**{**vars(recording), "meta": {**recording.meta, "rank": rank}})


def _read_or_say(path: str, limits: Limits, rank: int | None) -> Recording | str:
    """`read_recording` for an executor. What is wrong is said: some make errors of their own of what is raised."""
    try:
        return read_recording(path, limits, rank)
    except TraceError as error:
        return str(error)


def _or_raise(answer: Recording | str) -> Recording:
    if isinstance(answer, str):
        raise TraceError(answer)
    return answer


class _Together:
    """How far the reading of several files has got, in bytes."""

    def __init__(self, sizes: Sequence[int], progress: Progress | None) -> None:
        self.total = sum(sizes)
        self._sizes = sizes
        self._progress = progress
        self._done = 0
        self._begin = time.monotonic()

    def each(self, things: Sequence[Thing]) -> Iterator[Thing]:
        """One thing a file, in their order; when the next is asked for, the file is done."""
        for thing, size in zip(things, self._sizes, strict=True):
            yield thing
            self._done += size
            if time.monotonic() - self._begin >= QUIET_S:
                self._tell(self._done)

    def of_one(self, done: int, size: int) -> None:
        """Take the progress of the file that is being read."""
        self._tell(self._done + done)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self.total)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will say what is wrong


def _read_apart(
    paths: Sequence[Path], limits: Limits, ranks: Sequence[int | None], together: _Together
) -> list[Recording]:
    """Read each file in a Python process of its own, which runs nothing of the caller's."""
    with tempfile.TemporaryDirectory(prefix="perfnb-") as work, ThreadPoolExecutor(os.cpu_count()) as threads:
        folders = [Path(work) / str(place) for place in range(len(paths))]
        asked = [
            json.dumps({"path": str(path), "limits": asdict(limits), "rank": rank, "folder": str(target)})
            for path, rank, target in zip(paths, ranks, folders, strict=True)
        ]
        processes = _Processes()
        tasks = [threads.submit(processes.read, str(path), one) for path, one in zip(paths, asked, strict=True)]
        try:
            pending = set(tasks)
            for task in together.each(tasks):
                while task in pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()  # what is wrong with any is told at once
        except BaseException:
            for task in tasks:
                task.cancel()
            processes.stop()
            raise
        return [storage.load(target) for target in folders]


class _Processes:
    """Processes that read a file each, until they are stopped."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def read(self, path: str, question: str) -> None:
        """Have one file read, and wait for it."""
        command = [sys.executable, "-m", "perfnb.recording.reading"]
        above = str(Path(__file__).parents[2])
        path_of_python = os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))
        with self._lock:
            if self._stopped:
                return
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path_of_python},
            )
            self._running.add(process)
        try:
            _, said = process.communicate(question)
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode == _FAILED:
            raise TraceError(said.strip())
        if process.returncode:
            raise TraceError(f"{path} was not read: the process that read it ended with code {process.returncode}.")

    def stop(self) -> None:
        """End what runs, and begin no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()  # it writes to a folder that is removed


def _answer() -> int:
    asked = json.loads(sys.stdin.read())
    try:
        storage.save(read_recording(asked["path"], Limits(**asked["limits"]), asked["rank"]), asked["folder"])
    except TraceError as error:
        print(error, file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(_answer())
