"""Read trace files into recordings, using other processes for several files if that is faster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from perfnb.errors import TraceError
from perfnb.recording import saved_profile
from perfnb.recording.compiled_layers import CompiledCode, region_ids, with_compiled_regions
from perfnb.recording.executors import answers
from perfnb.recording.from_trace import recording_of_trace, with_module_layers
from perfnb.recording.provenance import graphs_of_files
from perfnb.recording.recording import Recording
from perfnb.recording.saved_profile import SavedProfile
from perfnb.trace.columns import TraceColumns
from perfnb.trace.step_ranges import with_steps
from perfnb.trace.trace_file import FORMATS_ARE, Limits, OnProgress, Reports, looks_like, reader_of, readers
from perfnb.trace.trace_steps import refuse_odd_layers, refuse_odd_trace

#: The total file size in bytes above which files are read in separate processes.
_PAYS = 16 * 2**20
_XSPACE = ".xplane.pb"
#: The rank in a file's name.
RANK = re.compile(r"rank[^0-9A-Za-z]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_FAILED = 3


def read_file(
    path: str | Path,
    limits: Limits,
    rank: int | None = None,
    progress: OnProgress | None = None,
    steps: str | None = None,
    provenance: Sequence[Path] = (),
) -> list[Recording]:
    """Read a trace file as recordings: a single recording, or one for each rank in the file.

    Parameters
    ----------
    path : str or Path
    limits : Limits
    rank : int, optional
        The rank to use if the trace does not contain one.
    progress : callable, optional
        As in `perfnb.trace.trace_file.Reader.read`.
    steps : str, optional
        The name of the range that marks the steps.
    provenance : sequence of Path
        Files that map the kernels in compiled code to operations.

    Raises
    ------
    TraceError
        If a file cannot be read, or describes a different trace.
    """
    source = Path(path)
    reader = reader_of(source)
    if reader is None:
        raise TraceError(f"{source} is not a trace that perfnb can read{looks_like(source)}; {FORMATS_ARE}.")
    held = reader.read(source, limits, progress)
    traces = [held] if isinstance(held, TraceColumns) else held
    recordings = []
    while traces:
        trace = traces.pop(0)
        caveats = () if trace.of_torch else reader.caveats
        trace = with_steps(trace, steps, str(source), reader.guess_steps and not trace.of_torch)
        refuse_odd_trace(trace, str(source))
        recording = recording_of_trace(trace, source.name, rank, caveats)
        refuse_odd_layers(recording.modules["depth"].tolist(), 0, str(source))
        recording = with_module_layers(recording)
        code = [CompiledCode(region) for region in region_ids(recording.events)]
        recordings.append(with_compiled_regions(recording, graphs_of_files(provenance, recording, str(source)), code))
    return recordings


def read_recordings(
    paths: Sequence[Path],
    limits: Limits,
    executor: Any,
    progress: OnProgress | None = None,
    steps: str | None = None,
) -> list[Recording]:
    """Read the trace files of one job as recordings, in rank order (see `in_rank_order`).

    Parameters
    ----------
    executor : object, optional
        The executor that reads the files, as described in `perfnb.recording.executors.answers`. By default, large files
        are read in separate processes.
    progress : callable, optional
        As in `perfnb.trace.trace_file.Reader.read`, but for all files together.
    steps : str, optional
        As for `read_file`.

    Raises
    ------
    TraceError
        If a file cannot be read.
    """
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]  # reading the file reports the error
    total = sum(sizes)
    report = Reports(progress, total)
    questions = [(str(path), limits, rank_of_name(path.name), steps) for path in paths]
    if executor is not None:
        recordings = _gathered(answers(executor, _read_or_say, questions), sizes, report)
    elif len(paths) > 1 and total >= _PAYS and (os.cpu_count() or 1) > 1:
        with _Processes() as processes:
            recordings = _gathered(answers(processes, processes.read, questions), sizes, report)
    else:
        recordings, done = [], 0
        for (path, _, rank, _), length in zip(questions, sizes, strict=True):
            recordings += read_file(path, limits, rank, _further(report, done), steps)
            done += length
            report(done)
    return in_rank_order(recordings)


def in_rank_order(recordings: Sequence[Recording]) -> list[Recording]:
    """Number the recordings of one job as `numbered` does, and sort them by rank.

    A recording's rank is taken from the trace, or otherwise from the file's name (``rank3``).
    """
    ranks = numbered([read.rank if read.meta["trace"]["rank_known"] else None for read in recordings])
    named = [replace(read, meta={**read.meta, "rank": rank}) for read, rank in zip(recordings, ranks, strict=True)]
    return sorted(named, key=lambda recording: recording.rank)


def numbered(ranks: Sequence[int | None]) -> list[int]:
    """Return a number for each rank of a job: its rank, or its position in the list if the rank is unknown.

    If two ranks would receive the same number, all ranks are numbered by position.
    """
    numbers = [place if rank is None else rank for place, rank in enumerate(ranks)]
    return numbers if len(set(numbers)) == len(numbers) else list(range(len(numbers)))


def trace_files(folder: Path) -> list[Path]:
    """List the trace files in a folder, ordered by the numbers in their names. Hidden files are left out."""
    endings = tuple(ending for reader in readers() for ending in reader.endings)
    shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
    files = [path for path in shown if path.is_file() and path.name.lower().endswith(endings)]
    # JAX writes the same profile in up to three formats. Only the first one is complete.
    whole = {path.name.removesuffix(_XSPACE) for path in files if path.name.endswith(_XSPACE)}
    copies = {"perfetto_trace.json.gz" if whole else "", *(f"{name}.trace.json.gz" for name in whole)}
    files = [path for path in files if path.name not in copies]
    # Other programs also use SQLite files, which may be in the same folder as traces.
    exports = [path for path in files if path.name.lower().endswith((".sqlite", ".sqlite.gz"))]
    files = [path for path in files if path not in exports] or [path for path in exports if reader_of(path) is not None]
    return sorted(
        files, key=lambda path: [(len(n), n) if n.isdigit() else (0, n) for n in re.split(r"(\d+)", path.name)]
    )


def rank_of_name(name: str) -> int | None:
    """Return the rank in a file's name: 3 for ``job_rank3.json.gz``."""
    match = RANK.search(name)
    return int(match[1]) if match else None


def _read_or_say(path: str, limits: Limits, rank: int | None, steps: str | None) -> list[Recording] | str:
    """Call `read_file` for an executor.

    Errors are returned as text, because some executors wrap the exceptions that a function raises.
    """
    try:
        return read_file(path, limits, rank, steps=steps)
    except TraceError as error:
        return str(error)


def _further(report: Reports, before: int) -> OnProgress:
    """Report the progress in one of several files, including the files that have already been read."""
    return lambda done, _: report(before + done)


def _gathered(
    answered: Generator[tuple[int, Any], None, None], sizes: Sequence[int], report: Reports
) -> list[Recording]:
    """Return the results in the order of the files. The first error stops the remaining calls."""
    with closing(answered):
        read, done = {}, 0
        for place, answer in answered:
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, str):
                raise TraceError(answer)
            read[place] = answer
            done += sizes[place]
            report(done)
    return [recording for place in sorted(read) for recording in read[place]]


class _Processes(ThreadPoolExecutor):
    """Python processes that each read a file and do not run the caller's code.

    They are killed if the ``with`` block raises an exception.
    """

    def __init__(self) -> None:
        super().__init__(os.cpu_count())
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> bool | None:
        if kind is not None:
            with self._lock:
                self._stopped = True
                for process in self._running:
                    process.kill()  # its output folder is about to be removed
        return super().__exit__(kind, *rest)

    def read(self, path: str, limits: Limits, rank: int | None, steps: str | None) -> list[Recording] | str:
        """Let a process read a file, and wait for the result. Errors are handled as in `_read_or_say`."""
        places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
        with tempfile.TemporaryDirectory(prefix="perfnb-") as work:
            question = {"path": path, "limits": asdict(limits), "rank": rank, "steps": steps, "folder": work}
            with self._lock:
                if self._stopped:
                    return f"{path} was not read."
                process = subprocess.Popen(
                    [sys.executable, "-m", "perfnb.recording.reading"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
                )
                self._running.add(process)
            try:
                _, words = process.communicate(json.dumps(question))
            finally:
                with self._lock:
                    self._running.discard(process)
            if process.returncode == _FAILED:
                return words.strip()
            if process.returncode:
                return f"{path} was not read: the process that was reading it exited with code {process.returncode}."
            return [SavedProfile(Path(work, str(place))).recording() for place in range(len(os.listdir(work)))]


def _answer() -> int:
    """Read the file that is named on standard input, and save its contents as a recording."""
    asked = json.loads(sys.stdin.read())
    answer = _read_or_say(asked["path"], Limits(**asked["limits"]), asked["rank"], asked["steps"])
    if isinstance(answer, str):
        print(answer, file=sys.stderr)
        return _FAILED
    for place, recording in enumerate(answer):
        saved_profile.save(recording, Path(asked["folder"], str(place)))
    return 0


if __name__ == "__main__":
    sys.exit(_answer())
