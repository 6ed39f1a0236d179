"""Define `profile_ranks`, which starts the ranks of a job and profiles each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfnb.arguments import require_count, require_flag, shown
from perfnb.draw.progress import Progress
from perfnb.errors import CaptureError, PerfnbError
from perfnb.interrupts import InterruptGate
from perfnb.launching.engines import EngineJob, chosen_engines
from perfnb.launching.job import FollowedRanks, Job
from perfnb.launching.job_folder import PROFILES, job_folder
from perfnb.launching.order import Order, pack_function
from perfnb.profile.loading import load
from perfnb.profile.profile import Profile
from perfnb.quantities import counted
from perfnb.ranks.ranks import Ranks
from perfnb.recording.job import rank_folder
from perfnb.recording.saved_profile import SavedProfile
from perfnb.shell import print_text

#: The number of ranks that can be started on any machine, and the number of ranks per core.
_MANY, _MANY_PER_CORE = 64, 4
_BACKENDS = ("gloo", "nccl", "mpi", "xccl")
#: The backends if there is a GPU for each rank. They support tensors on both kinds of devices.
_BOTH = "cpu:gloo,cuda:nccl"


def profile_ranks(
    target: Callable[[], Any] | str | Path,
    ranks: int = 2,
    *,
    backend: str | None = None,
    threads: int | None = None,
    env: Mapping[str, str] | None = None,
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    ddp: bool = False,
    split: bool = False,
    args: Sequence[str] = (),
    at: int = 100,
    executor: Any = None,
    warmup: int | None = None,
    steps: int | None = None,
    traced: int = 3,
    budget_s: float = 30.0,
    memory: bool = True,
    flops: bool = True,
    name: str | None = None,
) -> Ranks:
    """Run a job of several ranks on this machine, and profile each of them.

    Each rank is a new Python process, and all ranks run the same number of steps. When this function returns or raises
    an exception, all ranks have ended. If the target is a function, the ranks connect over the loopback interface,
    which only processes on this machine can reach. A script must set up its own process group.

    Parameters
    ----------
    target : callable, str or Path
        A function that sets up the job and returns the step, or ``(step, batches)``. Each rank calls it once, after
        perfnb has created torch's process group. The function is sent to the ranks with cloudpickle, together with the
        variables that it uses. Alternatively, pass the path of a training script, which each rank runs in the same way
        as ``perfnb run``.
    ranks : int
    backend : str, optional
        The backend of the process group. The default is gloo for the CPU and, if there is a GPU for each rank, nccl for
        the GPUs.
    threads : int, optional
        The number of threads per rank. The default is the number of cores available to this process, divided by the
        number of ranks.
    env : mapping of str to str, optional
        Environment variables for the ranks, in addition to this process's variables.
    batches : iterable or callable, optional
        The batches for the step, which are the same for each rank. If this is a callable, each rank calls it to get its
        batches.
    ddp : bool
        Whether to wrap the models that the step uses in DistributedDataParallel, with its default options. Otherwise,
        `target` must wrap them if necessary.
    split : bool
        Whether to split each batch among the ranks, along the first dimension of all tensors. Otherwise, every rank
        gets the whole batch.
    args : sequence of str
        Command-line arguments for a script.
    at : int
        The number of steps that a script runs before the profiled steps.
    executor : optional
        Existing engines on this machine to use instead of new processes, with one rank per engine. This is only
        possible if the target is a function. Pass an ipyparallel ``Client`` (perfnb uses its first engines) or
        ``DirectView``. Other objects must have ``ids``, and ``executor[id]`` must have ``apply_async(function,
        *args)``, which calls the function in the engine's main thread and returns an object with ``ready()`` and
        ``get()``. The engines must not have a process group. Afterwards, the process group is destroyed and the
        environment of the engines is restored.
    warmup, steps, traced, budget_s, memory, flops, name
        The same as for `profile_step`.

    Returns
    -------
    Ranks
        The profiles of all ranks. For example, ``ranks[0]`` is the `Profile` of the first rank.

    Raises
    ------
    CaptureError
        If an object cannot be sent to the ranks, if the ranks do not start, or if a rank ends early.
    Exception
        The exception from the rank that failed first, with its traceback. It is raised after all ranks have ended.
    """
    from perfnb.step.budget import Plan
    from perfnb.step.checks import require_name

    __tracebackhide__ = True
    require_name(name)
    plan = {"warmup": warmup, "steps": steps, "traced": traced, "budget_s": budget_s, "memory": memory, "flops": flops}
    Plan(**plan)  # type: ignore[arg-type]  # checks them
    what: dict[str, Any] = {}
    if isinstance(target, str | Path):
        script = Path(target)
        if not script.is_file():
            raise CaptureError(f"{script} does not exist or is not a file: pass a script or a function.")
        given = {"batches": batches, "ddp": ddp or None, "split": split or None, "executor": executor}
        for option, value in given.items():
            if value is not None:
                raise TypeError(f"{option} only applies to functions: a script sets up its own job.")
        require_count("at", at, 0)
        kind, what = "script", {"program": (str(script.resolve()), *map(str, args)), "at": at}
    elif callable(target):
        if tuple(args):
            raise TypeError("args only apply to scripts: a function can use variables directly.")
        kind, what = "function", {"payload": pack_function(target, batches)}
    else:
        raise TypeError(f"target must be a function that returns the step, or a script's path, not {shown(target)}.")
    order = order_for(kind, ranks, plan, name, backend=backend, threads=threads, ddp=ddp, split=split, **what)
    return run_ranks(order, ranks, env, executor=executor)


def order_for(
    kind: str,
    ranks: int,
    plan: Mapping[str, Any],
    name: str | None = None,
    *,
    backend: str | None = None,
    threads: int | None = None,
    **others: Any,
) -> Order:
    """Check the options of a job, and choose values for missing options. `others` are fields of `Order`."""
    from perfnb.launching.rank import gpu_count
    from perfnb.step.environment import usable_cpus

    require_ranks(ranks)
    require_flag("ddp", others.get("ddp", False))
    require_flag("split", others.get("split", False))
    if threads is None:
        threads = max(1, int(usable_cpus()) // ranks)
    require_count("threads", threads, 1)
    gpus = gpu_count()
    if backend is None:
        backend = _BOTH if gpus >= ranks else "gloo"
    elif not isinstance(backend, str):
        raise TypeError(f"backend must be a string, such as 'gloo', not {shown(backend)}.")
    elif backend not in (*_BACKENDS, _BOTH):
        raise ValueError(f"backend {shown(backend)} is unknown: use {', '.join(_BACKENDS)}.")
    if "nccl" in backend and gpus < ranks:
        have = counted(gpus, "GPU") if gpus else "no GPU"
        raise CaptureError(
            f"With nccl, each of the {ranks} ranks needs its own GPU, but this machine has {have}: "
            "use backend='gloo', or fewer ranks."
        )
    gpus = gpus if gpus >= ranks else 0
    return Order(kind, plan=plan, name=name, backend=backend, threads=threads, gpus=gpus, **others)


def require_ranks(ranks: int) -> None:
    """Raise an error if the number of ranks is invalid or too high for this machine.

    Each rank is a process that imports torch, so too many ranks would overwhelm the machine.
    """
    from perfnb.step.environment import usable_cpus

    require_count("ranks", ranks, 1)
    most = max(_MANY, _MANY_PER_CORE * int(usable_cpus()))
    if ranks > most:
        raise ValueError(
            f"ranks must be at most {most:,} on this machine with {counted(max(1, int(usable_cpus())), 'core')}, not "
            f"{ranks:,}."
        )


def run_ranks(
    order: Order,
    ranks: int,
    env: Mapping[str, str] | None = None,
    *,
    executor: Any = None,
    quiet: bool = False,
    note: str = "",
    show: bool = True,
) -> Ranks:
    """Start the ranks of a job, wait until all of them have ended, and return their profiles.

    If `executor` is given, its engines run the ranks. `note` is displayed with the progress, and `show` specifies
    whether to display the output of the ranks.
    """
    __tracebackhide__ = True
    if env is not None and not all(isinstance(text, str) for pair in env.items() for text in pair):
        raise TypeError("env must be a mapping of strings to strings.")
    if executor is not None:
        chosen_engines(executor, ranks)
    with (
        InterruptGate() as gate,
        job_folder() as folder,
        Progress(enabled=not quiet) as progress,
    ):
        start = Job if executor is None else functools.partial(EngineJob, executor=executor)
        job: FollowedRanks = start(folder, order, ranks, env or {}, note or f"{counted(order.threads, 'thread')} each")
        try:
            with gate.opened():
                job.follow(progress, functools.partial(print, end="", flush=True) if show else lambda _: None)
        finally:
            job.end()
        profiles = _loaded(folder / PROFILES, order, ranks)
    if show and len(profiles) > 1 and all(len(profile.collectives) == 0 for profile in profiles):
        print_text(_silence(order.ddp))
    return profiles


def _loaded(folder: Path, order: Order, ranks: int) -> Ranks:
    if order.kind != "script":
        return Ranks([Profile(SavedProfile(folder / rank_folder(rank))) for rank in range(ranks)])
    windows = sorted(path for path in folder.glob("step_*") if path.is_dir())
    if not windows:
        raise CaptureError(
            f"The script ended before perfnb profiled a step, because it skips the first {order.at:,} steps. Pass a "
            "smaller value for at."
        )
    saved = load(windows[-1])
    if not isinstance(saved, Profile | Ranks):
        raise PerfnbError(f"The ranks saved a {type(saved).__name__} instead of profiles.")
    return Ranks([saved]) if isinstance(saved, Profile) else saved


def _silence(ddp: bool) -> str:
    question = "Does the step use a model wrapped in DDP? To wrap it, use ddp=True for a function or --ddp for a cell."
    if ddp:
        question = "DDP sends gradients during the backward pass. Does the step call backward?"
    return f"perfnb: the ranks did not communicate. {question}"
