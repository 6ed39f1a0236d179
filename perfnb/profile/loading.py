"""Provide `load`, which opens files that were saved by perfnb or written by other programs.

Each kind of file or folder is defined by a `perfnb.recording.loadable.Loadable` in the package that it belongs to, and
by a line in `FOLDERS` or `FILES` in `perfnb.profile.registry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

from perfnb.arguments import shown
from perfnb.draw import escape
from perfnb.draw.progress import Progress
from perfnb.errors import RecordingError, TraceError
from perfnb.files import locate, usable
from perfnb.profile.profile import Profile
from perfnb.profile.registry import FILES, FLEET, FOLDERS, OF_RECORDINGS, SEVERAL
from perfnb.recording.executors import is_executor
from perfnb.recording.loadable import Loadable
from perfnb.recording.reading import rank_of_name, read_file
from perfnb.recording.saved_profile import PROFILE, SavedProfile
from perfnb.trace.trace_file import FORMATS_ARE, Limits, looks_like, reader_of

if TYPE_CHECKING:  # registered by higher-level packages; the import contracts list these exceptions
    from perfnb.experiments.ab_test import ABTest
    from perfnb.experiments.journal import Journal
    from perfnb.flame.host_profile import HostProfile
    from perfnb.loop.rank_runs import RankRuns
    from perfnb.loop.run import RunSummary
    from perfnb.memory.snapshot.snapshot import MemorySnapshot
    from perfnb.profile.timing import Timing
    from perfnb.ranks.ranks import Ranks
    from perfnb.watching.watch import Watch

    Loaded: TypeAlias = (
        Profile | HostProfile | MemorySnapshot | Watch | Ranks | ABTest | Timing | RunSummary | RankRuns | Journal
    )

#: The maximum number of entries that are examined in a folder.
_MOST_INSIDE = 1000


def kind_of(path: Path) -> Loadable | None:
    """Return the first kind of folder or file that matches a path.

    The kinds are tried in order, and the package of a kind is only imported when it is tried.
    """
    kinds: Iterator[Loadable] = map(resolve_name, FOLDERS if path.is_dir() else FILES)
    return next((kind for kind in kinds if kind.recognise(path)), None)


def load(
    path: str | Path | Sequence[str | Path],
    *,
    steps: str | None = None,
    provenance: str | Path | Sequence[str | Path] | None = None,
    executor: Any = None,
    journal: str | Path | None = None,
    max_bytes: int | None = None,
    max_events: int | None = None,
) -> Loaded:
    """Load results saved by perfnb, traces from torch.profiler, a CUDA memory snapshot, or a host profile.

    A trace can come from any program that ran on CUDA, ROCm or a CPU, either plain or compressed with gzip (``.json``,
    ``.json.gz``, ``.pt.trace.json``). Its steps are the ranges named ``ProfilerStep#<n>``. If there are no such ranges,
    the whole trace counts as one step. Layers are available if module calls were recorded (``with_stack=True``).

    Nsight Systems exports, profiles from JAX, TensorFlow and rocprofv3, and Perfetto or other Chrome traces are loaded
    as traces. If several processes in one file use GPUs, the result is a `Ranks` object. Collapsed stacks, speedscope
    profiles, cProfile statistics and ``perf script`` output are loaded as a `HostProfile`, and ``nvidia-smi`` logs as a
    `Watch`. Nothing in a memory snapshot (``torch.cuda.memory._dump_snapshot``, a pickle) or in cProfile statistics is
    executed.

    Parameters
    ----------
    path : str, Path, or list of these
        A list of traces or saved profiles, a folder of traces, or a folder where each rank of a job saved its profile
        is treated as one job with several ranks. The rank number is read from the trace or profile or, if it does not
        contain a number, from the file name (such as ``rank3``). Otherwise, the position in the list is used. A list or
        folder with a single trace results in a `Ranks` object with one rank.
    steps : str, optional
        The name of the range that marks the steps in a trace, such as ``"iteration"``. The name may be followed by a
        number.
    provenance : str, Path, or list of these, optional
        Files that describe the kernels of compiled code in a trace and their layers, written by
        `compile_for_profiling`.
    executor : object, optional
        An executor that reads several traces in parallel. This can be an executor from concurrent.futures, a Dask
        client, an ipyparallel view, or any other object with a compatible ``submit`` or ``map`` method. By default,
        perfnb starts its own processes to read the ranks of a job if the traces are large.
    journal : str or Path, optional
        A folder for the tables of many traces from separate runs. If it is given, `load` returns the `Journal` of that
        folder. Each trace is reduced to its tables in the process that reads it and is saved immediately, so no process
        needs more memory than its largest trace requires. By default, this process reads the traces one after the
        other. A folder of traces is treated as one job, as are files in the same folder whose names differ only in
        their rank. If a trace cannot be read, its journal entry contains the reason. Traces that have not changed since
        they were reduced are not read again.
    max_bytes, max_events : int, optional
        The maximum size of the uncompressed file, and the maximum number of events. Larger files are rejected. The
        defaults are 8 GiB and 25,000,000 events for traces from torch.profiler and Nsight Systems. For all other
        formats, they are 256 MiB and 4,000,000 events, names and values, which limits memory usage to 2 GiB.

    Raises
    ------
    RecordingError
        If `path` does not exist, or if the saved result is damaged or was written by a newer version.
    TraceError
        If a trace, snapshot or provenance file is damaged, too large or of an unknown format, or if a provenance file
        does not belong to the trace.
    TypeError, ValueError
        If an argument is invalid.
    """
    limits = Limits(_require_limit("max_bytes", max_bytes), _require_limit("max_events", max_events))
    if executor is not None and not is_executor(executor):
        raise TypeError(
            "executor must be an executor from concurrent.futures, such as ThreadPoolExecutor(), not "
            f"{shown(executor)}."
        )
    _require_name(steps)
    if isinstance(provenance, str | Path):
        provenance = [provenance]
    told = [] if provenance is None else _paths(provenance, "provenance")
    if told and (journal is not None or not isinstance(path, str | Path)):
        raise TraceError("A provenance file belongs to a single trace: load that trace by itself.")
    if journal is not None:
        paths = _paths([path] if isinstance(path, str | Path) else path)
        fleet: Journal = resolve_name(FLEET)(paths, journal, limits, executor, steps)
        return fleet
    if not isinstance(path, str | Path):
        ranks: Ranks = resolve_name(SEVERAL)(_paths(path), limits, executor, steps)
        return ranks
    source = locate(usable(path))
    if (kind := kind_of(source)) is None:
        raise _unknown(source)
    if steps is not None and not kind.has_steps:
        raise TraceError(f"Steps can be named only in traces, and {source} is not a trace.")
    if told and kind is not TRACE:
        raise TraceError(f"A provenance file belongs to a trace, and {source} is not a trace.")
    loaded: Loaded = kind.load(
        source, limits, executor, *([steps] if kind.has_steps else []), *([told] if told else [])
    )
    return loaded


def _require_name(steps: object) -> None:
    if steps is not None and not (isinstance(steps, str) and steps):
        raise TypeError(f"steps must be the name of a range, such as 'iteration', not {shown(steps)}.")


def _require_limit(name: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be a whole number, not {shown(value)}.")
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be a number above 0, not {shown(value)}.")
    limit: int | None = value
    return limit


def _paths(path: object, name: str = "path") -> list[Path]:
    """Convert a path or a list of paths to a list of `Path` objects."""
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise TypeError(f"{name} must be a path or a list of paths, not {shown(path)}.")
    found = []
    for one in path:
        if not isinstance(one, str | Path):
            raise TypeError(f"{name} must be a list of paths, but it contains {shown(one)}.")
        found.append(usable(one))
    return found


def _unknown(source: Path) -> RecordingError | TraceError:
    """Return an error for a path that perfnb cannot read, with the reason and a reference to the supported formats."""
    if not source.exists():
        return RecordingError(f"{source} does not exist.")
    if source.is_file():
        return TraceError(f"{source} is not a file that perfnb can read{looks_like(source)}; {FORMATS_ARE}.")
    if source.is_dir():
        if inside := _inside(source):
            return RecordingError(f"{source} is a folder that contains {', '.join(inside)}: choose one of them.")
        return RecordingError(
            f"{source} contains neither a saved profile (no {PROFILE.file}) nor traces; {FORMATS_ARE}."
        )
    return RecordingError(f"{source} is a pipe or a device, which perfnb cannot read.")


def _inside(source: Path) -> list[str]:
    """Return the names of a few subfolders that `load` can read."""
    names = [escape.plain(one.name, 60) for one in _folders_in(source)]
    return [*names[:5], "others"] if len(names) > 5 else names


def _folders_in(source: Path) -> list[Path]:
    """Return the subfolders of a folder that `load` can read."""
    with suppress(OSError):
        folders = [one for one in sorted(source.iterdir())[:_MOST_INSIDE] if one.is_dir()]
        return [one for one in folders if kind_of(one)]
    return []


def several_in(path: str | Path) -> list[Path]:
    """Return the paths inside a folder that `load` can read, if it cannot read the folder as a whole.

    The result is empty for any other path.
    """
    source = usable(path)
    if not source.is_dir() or kind_of(source):
        return []
    return _folders_in(source)


def _trace(
    path: Path, limits: Limits, _: Any, steps: str | None = None, provenance: Sequence[Path] = ()
) -> Profile | Ranks:
    with Progress() as progress:
        recordings = read_file(path, limits, rank_of_name(path.name), progress.of_file(path.name), steps, provenance)
    if len(recordings) == 1:
        return Profile(recordings[0])
    ranks: Ranks = resolve_name(OF_RECORDINGS)(recordings)
    return ranks


LOADABLE = Loadable(PROFILE.is_at, lambda path, *_: Profile(SavedProfile(path)))
TRACE = Loadable(
    lambda path: path.is_file() and reader_of(path) is not None,
    _trace,
    has_steps=True,
)
