"""`load`: whatever perfnb saved, and what other programs wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from perfnb.arguments import shown
from perfnb.draw.progress import Progress
from perfnb.errors import RecordingError, TraceError
from perfnb.experiments.report import PerformanceReport, load_report
from perfnb.files import standing, usable
from perfnb.memory.snapshot.snapshot import MemorySnapshot, load_snapshot, looks_like_snapshot
from perfnb.profile.profile import Profile
from perfnb.profile.timing import Timing, load_timing
from perfnb.ranks.ranks import Ranks
from perfnb.recording import measurements, storage
from perfnb.recording.module_layers import with_module_layers
from perfnb.recording.reading import rank_of_name, read_recording, read_recordings, trace_files
from perfnb.recording.saved import SavedProfile
from perfnb.watching.watch import Watch, load_watch


def load(
    path: str | Path | Sequence[str | Path],
    *,
    max_bytes: int | None = None,
    max_events: int | None = None,
    max_depth: int | None = None,
    max_packed_bytes: int | None = None,
    max_event_bytes: int | None = None,
    max_ratio: int | None = None,
    executor: Executor | None = None,
) -> Profile | MemorySnapshot | Watch | Ranks | PerformanceReport | Timing:
    """Load a profile, watch, report or timing that was saved, traces of torch.profiler, or a snapshot of CUDA's memory.

    A trace may be from any program, plain or compressed with gzip (``.json``, ``.json.gz``, ``.pt.trace.json``), from
    CUDA, ROCm or a CPU. Its steps are the ranges named ``ProfilerStep#<n>``; without any, all of it is one step. It has
    layers where it holds the calls of modules (``with_stack=True``). Nothing in a snapshot
    (``torch.cuda.memory._dump_snapshot``, a pickle) is run.

    Parameters
    ----------
    path : str, Path, or list of these
        A list of traces, or a folder of several, is of several ranks of one job. A rank is what the trace says, else
        the file's name (``rank3``), else the place in the list. A list or folder of one trace is one rank's `Ranks`.
    max_bytes, max_events, max_depth : int, optional
        Of a trace: bytes of text, unpacked, number of events, and values inside values, beyond which it is refused. A
        small file can unpack to more than the memory holds.
    max_packed_bytes, max_event_bytes, max_ratio : int, optional
        Also of a trace: bytes of a compressed file, bytes of one event or of what stands around them all, and how many
        times its size a compressed file may unpack to (200, counted once that is more than 32 MiB).
    executor : concurrent.futures.Executor, optional
        Reads the traces of several ranks. By default processes of perfnb's own do where there is much to read.

    Raises
    ------
    RecordingError
        If there is nothing at `path`, or what was saved there is damaged or of a newer form.
    TraceError
        If a trace or snapshot is damaged, too large, or none.
    TypeError, ValueError
        If an argument is none of the above.
    """
    given: dict[str, Any] = {
        "max_bytes": max_bytes,
        "max_events": max_events,
        "max_depth": max_depth,
        "max_packed_bytes": max_packed_bytes,
        "max_event_bytes": max_event_bytes,
        "max_ratio": max_ratio,
    }
    limits = {name: value for name, value in given.items() if value is not None}
    _check(limits, executor)
    if not isinstance(path, str | Path):
        return _ranks(_paths(path), limits, executor)
    source = standing(usable(path))
    if storage.is_watch(source):
        return load_watch(source)
    if measurements.is_report(source):
        return load_report(source)
    if measurements.is_timing(source):
        return load_timing(source)
    if storage.is_ranks(source):
        return Ranks([Profile(saved) for saved in storage.load_ranks(source)])
    if source.is_dir() and not storage.is_profile(source):
        if files := trace_files(source):
            return _ranks(files, limits, executor)
        raise RecordingError(
            f"{source} is no saved perfnb profile: it is not a folder with a profile.json. It holds no traces "
            "(*.json, *.json.gz) either."
        )
    if not source.is_file():
        return Profile(SavedProfile(source))
    if looks_like_snapshot(source):
        return load_snapshot(source)
    with Progress() as progress:
        recording = read_recording(source, limits, rank_of_name(source.name), progress.of_file(source.name))
    return Profile(with_module_layers(recording))


def _check(limits: dict[str, Any], executor: object) -> None:
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, not {shown(value)}.")
        if value <= 0:
            raise ValueError(f"{name} must be a number above 0, not {shown(value)}.")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor must be one of concurrent.futures, such as ThreadPoolExecutor(), not {shown(executor)}."
        )


def _paths(path: object) -> list[Path]:
    """The paths of a list of them."""
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise TypeError(f"path must be a path or a list of paths, not {shown(path)}.")
    found = []
    for one in path:
        if not isinstance(one, str | Path):
            raise TypeError(f"path must be a list of paths; one in it is {shown(one)}.")
        found.append(usable(one))
    return found


def _ranks(paths: list[Path], limits: dict[str, int], executor: Executor | None) -> Ranks:
    if not paths:
        raise TraceError("There is no trace to load: the list is empty.")
    for one in paths:
        if not one.exists():
            raise RecordingError(f"{one} does not exist.")
    with Progress() as progress:
        recordings = read_recordings(paths, limits, executor, progress.of_file(f"{len(paths):,} files"))
    return Ranks([Profile(with_module_layers(recording)) for recording in recordings])
