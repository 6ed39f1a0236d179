"""`load`: open files that perfnb saved, and files that other programs wrote.

A kind of file or folder is one `perfnb.recording.loadable.Loadable` in the room it belongs to, and one line in
`FOLDERS` or `FILES` of `perfnb.profile.registry`.
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

if TYPE_CHECKING:  # what the rooms above register; the import contracts name these exceptions
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

#: Entries of a folder that are examined.
_MOST_INSIDE = 1000


def kind_of(path: Path) -> Loadable | None:
    """Return the first kind of folder or file that recognises a path.

    The room of each is imported when its turn comes.
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
    """Load results that perfnb saved, traces of torch.profiler, a CUDA memory snapshot, or a host profile.

    A trace can come from any program, from CUDA, ROCm or a CPU, plain or compressed with gzip (``.json``,
    ``.json.gz``, ``.pt.trace.json``). Its steps are the ranges named ``ProfilerStep#<n>``; without any, the whole trace
    is one step. It has layers if it recorded module calls (``with_stack=True``). Nothing in a snapshot
    (``torch.cuda.memory._dump_snapshot``, a pickle) or in cProfile's statistics is executed. Collapsed stacks,
    speedscope profiles, cProfile's statistics and the text of ``perf script`` give a `HostProfile`, logs of
    ``nvidia-smi`` a `Watch`. Exports of Nsight Systems, profiles of JAX, TensorFlow and rocprofv3,
    Perfetto's and other Chrome traces are traces; a file where several processes work on GPUs gives `Ranks`.

    Parameters
    ----------
    path : str, Path, or list of these
        A list of traces or of saved profiles, a folder of traces, or a folder where each rank of a job saved its
        profile, is taken as the ranks of one job. A rank is the number in the trace or profile, else in the file name
        (``rank3``), else the position in the list. A list or folder of one trace is one rank's `Ranks`.
    steps : str, optional
        Name of the range that marks the steps of a trace, such as ``"iteration"``; a number may follow it.
    provenance : str, Path, or list of these, optional
        Files that describe the kernels of compiled code in a trace. A file that `compile_for_profiling` wrote names
        their layers. Files of torch (``inductor_provenance_tracking_node_mappings.json`` and
        ``..._kernel_stack_traces.json``) name only operations and source lines.
    executor : object, optional
        Reads several traces: an executor of concurrent.futures, a client of Dask, a view of ipyparallel, or anything
        else with their ``submit`` or ``map``. By default, perfnb starts its own processes for the ranks of a job if
        there is much to read.
    journal : str or Path, optional
        A folder for the tables of many traces, each of a separate run: returns the `Journal` of that folder. Each
        trace is reduced to its tables where the executor reads it (by default here, one after the other), so that no
        process needs more memory than its largest trace does, and is saved when it arrives. A folder of traces is one
        job, and so are files of one folder whose names differ only in their rank. A trace that cannot be read becomes
        an entry with the reason. One that was reduced after it was last written is not read again.
    max_bytes, max_events : int, optional
        The limits beyond which a file is refused: bytes of its unpacked content, and events. The defaults are 8 GiB
        and 25,000,000 events for traces of torch.profiler and Nsight Systems; for all other formats 256 MiB and
        4,000,000 events, names and values, so that no file takes more than 2 GiB of memory.

    Raises
    ------
    RecordingError
        If nothing is at `path`, or if the saved result is damaged or comes from a newer version.
    TraceError
        If a trace, snapshot or provenance file is damaged or too large, or of a kind that perfnb does not read, or if
        a provenance file does not belong to the trace.
    TypeError, ValueError
        If an argument is none of the above.
    """
    limits = Limits(_require_limit("max_bytes", max_bytes), _require_limit("max_events", max_events))
    if executor is not None and not is_executor(executor):
        raise TypeError(
            f"executor must be one of concurrent.futures, such as ThreadPoolExecutor(), not {shown(executor)}."
        )
    _require_name(steps)
    if isinstance(provenance, str | Path):
        provenance = [provenance]
    told = [] if provenance is None else _paths(provenance, "provenance")
    if told and (journal is not None or not isinstance(path, str | Path)):
        raise TraceError("A provenance file belongs to one trace: load that one alone.")
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
        raise TraceError(f"Steps can be named in traces only, and {source} is not one.")
    if told and kind is not TRACE:
        raise TraceError(f"A provenance file belongs to one trace, and {source} is not one.")
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
    """Return the paths of a list of them."""
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise TypeError(f"{name} must be a path or a list of paths, not {shown(path)}.")
    found = []
    for one in path:
        if not isinstance(one, str | Path):
            raise TypeError(f"{name} must be a list of paths; one in it is {shown(one)}.")
        found.append(usable(one))
    return found


def _unknown(source: Path) -> RecordingError | TraceError:
    """Explain that nothing reads a path, and where the formats are listed."""
    if not source.exists():
        return RecordingError(f"{source} does not exist.")
    if source.is_file():
        return TraceError(f"{source} is not a file that perfnb can read{looks_like(source)}; {FORMATS_ARE}.")
    if source.is_dir():
        if inside := _inside(source):
            return RecordingError(f"{source} is a folder with {', '.join(inside)}: give one of them.")
        return RecordingError(f"{source} holds neither a saved profile (no {PROFILE.file}) nor traces; {FORMATS_ARE}.")
    return RecordingError(f"{source} is a pipe or a device, which perfnb cannot read.")


def _inside(source: Path) -> list[str]:
    """Return the names of a few folders inside a folder that `load` reads."""
    names = [escape.plain(one.name, 60) for one in _folders_in(source)]
    return [*names[:5], "others"] if len(names) > 5 else names


def _folders_in(source: Path) -> list[Path]:
    """Return the folders inside a folder that `load` reads."""
    with suppress(OSError):
        folders = [one for one in sorted(source.iterdir())[:_MOST_INSIDE] if one.is_dir()]
        return [one for one in folders if kind_of(one)]
    return []


def several_in(path: str | Path) -> list[Path]:
    """Return the paths that `load` reads inside a folder that it does not read itself; nothing for anything else."""
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
