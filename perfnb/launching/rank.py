"""Run one rank of a job: set up the process group, create the step from the order, and profile it."""

from __future__ import annotations

import builtins
import json
import linecache
import os
import pickle
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from perfnb.errors import CaptureError
from perfnb.launching.agreement import AgreedPlan
from perfnb.launching.child import tell_failure
from perfnb.launching.job_folder import ORDER, PROFILES, PROGRESS, Meeting, tell
from perfnb.launching.order import Cell, Order
from perfnb.step.budget import Plan
from perfnb.step.cells import batches_of, step_of
from perfnb.step.namespace import is_empty, names_in, namespace_of

#: Ranks wait for each other practically without a limit, so the user must interrupt a job that hangs.
_PATIENCE = timedelta(days=7)


def run(folder: Path, rank: int) -> None:
    """Carry out the order in a job's folder."""
    order = settled(folder)
    for file, lines in order.lines.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    if order.kind == "script":
        sys.argv[:] = ["perfnb", "run", "--at", str(order.at), "--save", str(folder / PROFILES), *order.program]
        try:
            runpy.run_module("perfnb", run_name="__main__", alter_sys=True)
        except SystemExit as end:  # an exit without an error code means that the script was successful
            if end.code not in (None, 0):
                raise
        return
    ranks = int(os.environ["WORLD_SIZE"])
    if order.gpus:
        if order.kind == "cell":
            # Data from the notebook's GPU is loaded onto this rank's GPU, which is the only visible one.
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            os.environ["CUDA_VISIBLE_DEVICES"] = seen[rank] if rank < len(seen) and seen[0] else str(rank)
        else:
            torch.cuda.set_device(rank)
    profile_in_group(order, folder, rank, ranks, Meeting(folder), lambda: os._exit(1), nullcontext())
    torch.distributed.destroy_process_group()


def settled(folder: Path) -> Order:
    """Return the order in a job's folder, after applying its paths, arguments and threads to this process."""
    order: Order = pickle.loads((folder / ORDER).read_bytes())
    sys.path[:], sys.argv[:] = order.path, order.argv
    torch.set_num_threads(order.threads)
    return order


def gpu_count() -> int:
    """Return the number of CUDA or ROCm devices without initialising them."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def profile_in_group(
    order: Order,
    folder: Path,
    rank: int,
    ranks: int,
    meeting: Meeting,
    on_failure: Callable[[], None],
    connecting: AbstractContextManager[None],
) -> None:
    """Set up the process group, create the step, profile it, and save the profile in the job's folder.

    The ranks find each other through a file in the job's folder, so only their backend listens for connections.

    Parameters
    ----------
    on_failure : callable
        A function that is called immediately if the step fails, because the code that follows may wait for ranks that
        are waiting for this rank.
    connecting : context manager
        A context manager that is entered while the ranks connect.
    """
    from perfnb.profile.profile import Profile
    from perfnb.profile.profiling import profile_call, run_profile
    from perfnb.recording.job import rank_folder

    meeting.set(f"here_{rank}", "")
    for other in range(ranks):  # torch also waits for the other ranks, but this cannot be interrupted
        meeting.get(f"here_{other}")
    distributed: Any = torch.distributed
    store = distributed.FileStore(str(folder / "store"), ranks)
    store.set_timeout(_PATIENCE)
    with connecting:
        distributed.init_process_group(order.backend, store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)

    def guarded(step: Callable[..., Any]) -> Callable[..., None]:
        def run_step(*batch: Any) -> None:
            try:
                step(*batch)
            except BaseException as error:
                tell_failure(folder, rank, error)
                on_failure()
                raise

        return run_step

    plan = AgreedPlan(Plan(**order.plan), rank, meeting)
    line = _FileLine(folder, silent=rank != 0)
    sent = pickle.loads(order.payload)
    if isinstance(sent, Cell):
        namespace = sent.anchor.__globals__  # shared by the cell's functions
        namespace.update(sent.variables, __name__="__main__", __builtins__=builtins)
        vars(sys.modules["__main__"]).update(sent.variables)
        if order.ddp:
            values = {name: namespace[name] for name in sent.variables if not name.startswith("_")}
            wrapped = _wrapped(values)
            namespace |= {name: wrapped.get(id(value), value) for name, value in values.items()}
        clause = sent.clause
        batches: Any = None if clause is None else batches_of(clause, namespace, CaptureError)
        step = step_of(sent.body, namespace, None if clause is None else clause.assign)
        profile = run_profile(
            guarded(step),
            _Split(batches, rank, ranks) if order.split and batches is not None else batches,
            used=namespace_of(FunctionType(sent.body, namespace)),
            plan=plan,
            models=None if sent.models is None else [namespace[name] for name in sent.models],
            namespace={name: value for name, value in namespace.items() if not name.startswith("__")},
            name=order.name or "step",
            line=line,
        )
    else:
        target, given = sent
        step, batches = _set_up(target, given)
        if order.ddp:
            _replace_in(step, _wrapped(namespace_of(step)))
        elif order.plain:
            _replace_in(step, _unwrapped(namespace_of(step)))
        if batches is not None and order.split:
            batches = _Split(batches, rank, ranks)
        profile = profile_call(step, batches, plan=plan, name=order.name, guard=guarded, line=line)
    recording = profile._recording
    job = {"rank": rank, "world_size": ranks, "backend": order.backend}
    Profile(replace(recording, meta={**recording.meta, "job": job})).save(folder / PROFILES / rank_folder(rank))


def _set_up(target: Callable[[], Any], given: Any) -> tuple[Any, Any]:
    """Call a target, and return the step and its batches.

    The batches are either those that were passed as an argument or those that the target returns with the step.
    """
    returned = target()
    step, batches = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not callable(step):
        raise CaptureError(
            f"The function sent to the ranks returned {type(step).__name__} instead of a step. Return the function "
            "that runs one step, or (step, batches)."
        )
    if given is not None and batches is not None:
        raise CaptureError("batches were passed as an argument and also returned with the step: use only one of these.")
    return step, given if batches is None else batches


class _FileLine:
    """Writes a rank's progress to a file. The process that started the job displays it."""

    def __init__(self, folder: Path, silent: bool) -> None:
        self._path, self._silent = folder / PROGRESS, silent

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        if not self._silent:
            tell(self._path, json.dumps([pass_name, done, total, note]))

    def close(self) -> None:
        pass


class _Split:
    """Batches that are split among the ranks. Together, the parts of all ranks form the whole batch."""

    def __init__(self, batches: Any, rank: int, ranks: int) -> None:
        self._batches, self._rank, self._ranks = batches, rank, ranks

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches
        if callable(batches) and not isinstance(batches, Iterable):
            batches = batches()
        return (self._part(batch) for batch in batches)

    def _part(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() > 0:
            if len(value) < self._ranks:
                raise CaptureError(f"A batch of {len(value)} cannot be split among {self._ranks} ranks.")
            return value.tensor_split(self._ranks)[self._rank]
        if isinstance(value, Mapping):
            return {key: self._part(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._part, value))
        return type(value)(map(self._part, value)) if isinstance(value, (list, tuple)) else value


def _replace_in(step: Any, new: Mapping[int, Any]) -> None:
    """Replace values in the closures and globals of a step and of the functions that it calls.

    `new` contains the replacement for each value, keyed by the value's ``id``.
    """
    seen: list[FunctionType] = []
    waiting = [getattr(step, "__func__", step)]
    while waiting:
        function = waiting.pop()
        if type(function) is not FunctionType or function in seen:
            continue
        seen.append(function)
        for cell in function.__closure__ or ():
            if not is_empty(cell):
                waiting.append(cell.cell_contents)
                cell.cell_contents = new.get(id(cell.cell_contents), cell.cell_contents)
        for name in names_in(function.__code__):
            if name in function.__globals__:
                value = function.__globals__[name]
                waiting.append(value)
                function.__globals__[name] = new.get(id(value), value)


def _unwrapped(values: Mapping[str, Any]) -> dict[int, nn.Module]:
    """Return the model in each DistributedDataParallel wrapper, keyed by the wrapper's ``id``."""
    parallel = nn.parallel.DistributedDataParallel
    return {id(value): value.module for value in values.values() if isinstance(value, parallel)}


def _wrapped(values: Mapping[str, Any]) -> dict[int, nn.Module]:
    """Wrap each model that has trainable parameters. Return the wrapped models, keyed by the ``id`` of the original.

    Models that are part of another model are not wrapped.
    """
    parallel = nn.parallel.DistributedDataParallel
    models = [value for value in values.values() if isinstance(value, nn.Module)]
    parts = {id(part) for model in models for part in list(model.modules())[1:]}
    chosen = [model for model in models if id(model) not in parts and not isinstance(model, parallel)]
    trained = {id(model): model for model in chosen if any(weight.requires_grad for weight in model.parameters())}
    if not trained:
        raise CaptureError(
            "ddp has nothing to wrap, because the step's model is already wrapped in DistributedDataParallel. Omit ddp."
            if any(isinstance(model, parallel) for model in models)
            else "ddp finds no model to wrap, because none of the step's variables is a model. Wrap the model in "
            "DistributedDataParallel in the function that sets up the job."
        )
    return {key: parallel(model) for key, model in trained.items()}
