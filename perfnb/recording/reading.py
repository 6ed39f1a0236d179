"""What `perfnb.load` reads; and trace files read into recordings, several at once in other processes if that pays.

A kind of file or folder is one `Loader` in the room it belongs to, and one line in `LOADERS`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from typing import Any, TypeVar

from perfnb.errors import TraceError
from perfnb.recording import storage
from perfnb.recording.from_trace import recording_of_trace
from perfnb.recording.recording import Recording
from perfnb.trace.columns import TraceColumns
from perfnb.trace.step_ranges import with_steps
from perfnb.trace.trace_file import FORMATS_ARE, QUIET_S, Limits, OnProgress, looks_like, reader_of, readers
from perfnb.trace.trace_steps import refuse_odd_layers, refuse_odd_trace

Thing = TypeVar("Thing")

#: Asked in this order: put a specific kind before a general one.
LOADERS = (
    "perfnb.profile.loading:LOADER",
    "perfnb.watching.saved:LOADER",
    "perfnb.flame.reading:SAVED",
    "perfnb.watching.gpu_logs:LOADER",
    "perfnb.experiments.report_files:LOADER",
    "perfnb.profile.timing:LOADER",
    "perfnb.loop.run:LOADER",
    "perfnb.loop.rank_runs:LOADER",
    "perfnb.ranks.ranks:LOADER",
    "perfnb.ranks.ranks:FOLDER_OF_TRACES",
    "perfnb.memory.snapshot.snapshot:LOADER",
    "perfnb.flame.reading:LOADER",
    "perfnb.profile.loading:TRACE",
)
#: Reads a list of traces or saved profiles, given their paths, `Limits` and the executor: the ranks of one job.
SEVERAL = "perfnb.ranks.ranks:load_several"
#: Makes the public object of several recordings: the ranks that one file holds.
OF_RECORDINGS = "perfnb.ranks.ranks:of_recordings"
#: Bytes of files from which processes of their own read them.
_PAYS = 16 * 2**20
_XSPACE = ".xplane.pb"
_RANK = re.compile(r"rank[^0-9A-Za-z]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_FAILED = 3


@dataclass(frozen=True)
class Loader:
    """Something that `perfnb.load` reads.

    Attributes
    ----------
    what : str
        As errors list it: ``saved watches``.
    recognise : callable
        Whether a path is one, by its content.
    load : callable
        Makes the public object from the path, `Limits`, and the executor for several files, if the user gave one.
    has_steps : bool
        Whether `load` also takes the name of the range that marks the steps, or ``None``.
    """

    what: str
    recognise: Callable[[Path], bool]
    load: Callable[..., Any]
    has_steps: bool = False


def loaders() -> Iterator[Loader]:
    """Every loader, in the order in which they are asked; its room is imported when its turn comes."""
    return map(resolve_name, LOADERS)


def read_file(
    path: str | Path,
    limits: Limits,
    rank: int | None = None,
    progress: OnProgress | None = None,
    steps: str | None = None,
) -> list[Recording]:
    """Read a trace file as recordings without layers: one, or one for each rank that it holds.

    Parameters
    ----------
    path : str or Path
    limits : Limits
    rank : int, optional
        Used if the trace has none.
    progress : callable, optional
        As `perfnb.trace.trace_file.Reader.read` takes it.
    steps : str, optional
        Name of the range that marks the steps.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
    source = Path(path)
    reader = reader_of(source)
    if reader is None:
        raise TraceError(f"{source} is not a trace that perfnb can read{looks_like(source)}; {FORMATS_ARE}.")
    found = reader.read(source, limits, progress)
    traces = [found] if isinstance(found, TraceColumns) else found
    recordings = []
    while traces:
        trace = with_steps(traces.pop(0), steps, str(source), reader.guess_steps)
        refuse_odd_trace(trace, str(source))
        recordings.append(recording_of_trace(trace, source.name, rank, reader.caveats))
        refuse_odd_layers(recordings[-1].modules["depth"].tolist(), 0, str(source))
    return recordings


def read_recording(
    path: str | Path, limits: Limits, rank: int | None = None, progress: OnProgress | None = None
) -> Recording:
    """Read a trace file of one rank; see `read_file`."""
    recordings = read_file(path, limits, rank, progress)
    if len(recordings) != 1:
        raise TraceError(f"{path} holds {len(recordings):,} ranks, not one.")
    return recordings[0]


def read_recordings(
    paths: Sequence[Path],
    limits: Limits,
    executor: Executor | None,
    progress: OnProgress | None = None,
    steps: str | None = None,
) -> list[Recording]:
    """Read the trace files of one job as recordings, in rank order; see `in_rank_order`.

    Parameters
    ----------
    executor : Executor, optional
        Reads the files. By default, processes do if there is much to read.
    progress : callable, optional
        As `perfnb.trace.trace_file.Reader.read` takes it; of all files together.
    steps : str, optional
        As for `read_file`.

    Raises
    ------
    TraceError
        If a file cannot be read.
    """
    ranks = [rank_of_name(path.name) for path in paths]
    together = _Together([_size(path) for path in paths], progress)
    if executor is not None:
        tasks = [
            executor.submit(_read_or_say, str(path), limits, rank, steps)
            for path, rank in zip(paths, ranks, strict=True)
        ]
        try:
            found = [_or_raise(task.result()) for task in together.each(tasks)]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
    elif len(paths) > 1 and together.total >= _PAYS and (os.cpu_count() or 1) > 1:
        found = _read_apart(paths, limits, ranks, steps, together)
    else:
        pairs = together.each(list(zip(paths, ranks, strict=True)))
        found = [read_file(path, limits, rank, together.of_one, steps) for path, rank in pairs]
    return in_rank_order([one for of_file in found for one in of_file])


def in_rank_order(found: Sequence[Recording]) -> list[Recording]:
    """Number the recordings of one job, and put them in order.

    A rank is the number in the trace, else in the file's name (``rank3``), else the position. If two would have the
    same rank, all get their positions.
    """
    known = [one.rank if one.meta["trace"]["rank_known"] else place for place, one in enumerate(found)]
    if len(set(known)) < len(known):
        known = list(range(len(found)))
    named = [replace(one, meta={**one.meta, "rank": rank}) for one, rank in zip(found, known, strict=True)]
    return sorted(named, key=lambda recording: recording.rank)


def trace_files(folder: Path) -> list[Path]:
    """List the trace files in a folder, in the order of the numbers in their names."""
    endings = tuple(ending for reader in readers() for ending in reader.endings)
    files = [path for path in folder.iterdir() if path.is_file() and path.name.lower().endswith(endings)]
    # JAX writes the same profile up to three times; the first form is the whole one.
    whole = {path.name.removesuffix(_XSPACE) for path in files if path.name.endswith(_XSPACE)}
    copies = {"perfetto_trace.json.gz" if whole else "", *(f"{name}.trace.json.gz" for name in whole)}
    files = [path for path in files if path.name not in copies]
    # Other programs keep SQLite files, too, beside traces or not.
    exports = [path for path in files if path.name.lower().endswith((".sqlite", ".sqlite.gz"))]
    files = [path for path in files if path not in exports] or [path for path in exports if reader_of(path) is not None]
    return sorted(
        files, key=lambda path: [(len(n), n) if n.isdigit() else (0, n) for n in re.split(r"(\d+)", path.name)]
    )


def rank_of_name(name: str) -> int | None:
    """Return the rank in a file's name: 3 for ``job_rank3.json.gz``."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def _read_or_say(path: str, limits: Limits, rank: int | None, steps: str | None) -> list[Recording] | str:
    """`read_file` for an executor. An error is returned as text: some executors wrap what is raised."""
    try:
        return read_file(path, limits, rank, steps=steps)
    except TraceError as error:
        return str(error)


def _or_raise(answer: list[Recording] | str) -> list[Recording]:
    if isinstance(answer, str):
        raise TraceError(answer)
    return answer


class _Together:
    """Progress of reading several files, in bytes."""

    def __init__(self, sizes: Sequence[int], progress: OnProgress | None) -> None:
        self.total = sum(sizes)
        self._sizes = sizes
        self._progress = progress
        self._done = 0
        self._start = time.monotonic()

    def each(self, things: Sequence[Thing]) -> Iterator[Thing]:
        """Yield one thing per file, in order; asking for the next marks the file as done."""
        for thing, size in zip(things, self._sizes, strict=True):
            yield thing
            self._done += size
            if time.monotonic() - self._start >= QUIET_S:
                self._tell(self._done)

    def of_one(self, done: int, size: int) -> None:
        """Report progress in the current file."""
        self._tell(self._done + done)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self.total)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will report what is wrong


def _read_apart(
    paths: Sequence[Path], limits: Limits, ranks: Sequence[int | None], steps: str | None, together: _Together
) -> list[list[Recording]]:
    """Read each file in a Python process of its own, which runs none of the caller's code."""
    with tempfile.TemporaryDirectory(prefix="perfnb-") as work, ThreadPoolExecutor(os.cpu_count()) as threads:
        folders = [Path(work) / str(place) for place in range(len(paths))]
        same = {"limits": asdict(limits), "steps": steps}
        asked = [
            json.dumps({"path": str(path), "rank": rank, "folder": str(target), **same})
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
                        one.result()  # raise the first error at once
        except BaseException:
            for task in tasks:
                task.cancel()
            processes.stop()
            raise
        parts = ([target / str(place) for place in range(len(os.listdir(target)))] for target in folders)
        return [[storage.load(part) for part in each] for each in parts]


class _Processes:
    """Processes that each read a file, until they are stopped."""

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
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()  # it writes to a folder that is removed


def _answer() -> int:
    asked = json.loads(sys.stdin.read())
    try:
        limits = Limits(**asked["limits"])
        os.mkdir(asked["folder"])
        for place, recording in enumerate(read_file(asked["path"], limits, asked["rank"], steps=asked["steps"])):
            storage.save(recording, Path(asked["folder"], str(place)))
    except TraceError as error:
        print(error, file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(_answer())
