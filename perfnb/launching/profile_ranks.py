"""`profile_ranks`: start the ranks of a job, and profile each of them."""

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

#: The number of ranks that any machine may start, and the number that it may start for each core.
_MANY, _MANY_PER_CORE = 64, 4
_BACKENDS = ("gloo", "nccl", "mpi", "xccl")
#: The backends with as many GPUs as ranks: tensors on either kind of device.
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

    Each rank is a fresh Python process. All ranks run the same number of steps. When this function returns or raises,
    all of them have ended. Ranks of a function connect over the loopback interface, which only processes of this
    machine can reach. A script sets its process group up by itself.

    Parameters
    ----------
    target : callable, str or Path
        A function that each rank calls once: it sets the job up and returns the step, or ``(step, batches)``. torch's
        process group exists by then. The function is sent by cloudpickle, with the variables that it uses.
        Alternatively, the path of a training script, which each rank runs as ``perfnb run`` does.
    ranks : int
    backend : str, optional
        Backend of the process group. By default, gloo for the CPU, and nccl for GPUs if there is one for each rank.
    threads : int, optional
        Threads of each rank; by default this process's cores divided by the number of ranks.
    env : mapping of str to str, optional
        Environment variables of the ranks, on top of this process's.
    batches : iterable or callable, optional
        Batches for the step, the same for each rank; a callable is called in each rank.
    ddp : bool
        Wrap the models that the step uses in DistributedDataParallel, with its defaults. Otherwise this is up to
        `target`.
    split : bool
        Give each rank its part of each batch, along the first dimension of all tensors. Otherwise each batch is the
        batch of one rank.
    args : sequence of str
        Arguments of a script.
    at : int
        Steps of a script before the profiled ones.
    executor : optional
        Running engines that carry the ranks of a function, one each, instead of new processes: an ipyparallel
        ``Client`` (its first engines) or ``DirectView``, on this machine. Anything else needs ``ids`` and, for
        ``executor[id]``, ``apply_async(function, *args)``, which calls it in the engine's main thread and returns
        something with ``ready()`` and ``get()``. The engines must have no process group; afterwards they have none, and
        their environment is restored.
    warmup, steps, traced, budget_s, memory, flops, name
        As in `profile_step`.

    Returns
    -------
    Ranks
        ``ranks[0]`` is the first rank's `Profile`.

    Raises
    ------
    CaptureError
        If something cannot be sent to the ranks, if they do not start, or if one ends early.
    Exception
        What the first failing rank raised, with its traceback, after all ranks have ended.
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
            raise CaptureError(f"{script} does not exist, or is not a file: give a script, or a function.")
        given = {"batches": batches, "ddp": ddp or None, "split": split or None, "executor": executor}
        for option, value in given.items():
            if value is not None:
                raise TypeError(f"{option} is for functions: a script sets up its own job, in processes of its own.")
        require_count("at", at, 0)
        kind, what = "script", {"program": (str(script.resolve()), *map(str, args)), "at": at}
    elif callable(target):
        if tuple(args):
            raise TypeError("args are for scripts: a function finds its variables by itself.")
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
    """Check the options of a job, and choose those that are not given; `others` are those of `Order`."""
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
        raise TypeError(f"backend must be text, such as 'gloo', not {shown(backend)}.")
    elif backend not in (*_BACKENDS, _BOTH):
        raise ValueError(f"backend {shown(backend)} is unknown: use {', '.join(_BACKENDS)}.")
    if "nccl" in backend and gpus < ranks:
        have = counted(gpus, "GPU") if gpus else "no GPU"
        raise CaptureError(
            f"{ranks} ranks with nccl need a GPU each, but this machine has {have}: use backend='gloo', or fewer ranks."
        )
    gpus = gpus if gpus >= ranks else 0
    return Order(kind, plan=plan, name=name, backend=backend, threads=threads, gpus=gpus, **others)


def require_ranks(ranks: int) -> None:
    """Check a number of ranks: each is a process that imports torch, and too many stop a machine."""
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
    """Start the ranks of a job and return their profiles, when all of them have ended.

    `executor` has engines that carry them; `note` is shown with the progress; `show` is whether the ranks' output is
    shown.
    """
    __tracebackhide__ = True
    if env is not None and not all(isinstance(text, str) for pair in env.items() for text in pair):
        raise TypeError("env must be a mapping of text to text.")
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
            f"The script ended before a step was profiled: its first {order.at:,} steps are not. Pass a smaller at."
        )
    saved = load(windows[-1])
    if not isinstance(saved, Profile | Ranks):
        raise PerfnbError(f"The ranks saved {type(saved).__name__}, not profiles.")
    return Ranks([saved]) if isinstance(saved, Profile) else saved


def _silence(ddp: bool) -> str:
    question = "Does the step use a model under DDP? In a function ddp=True wraps it, in a cell --ddp."
    if ddp:
        question = "DDP sends gradients in backward: does the step call it?"
    return f"perfnb: the ranks did not communicate. {question}"
