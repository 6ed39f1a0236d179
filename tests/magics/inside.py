"""What a test asks of the kernel it drives; imported there, so that nothing enters the user's namespace."""

from __future__ import annotations

import gc
import math
import os
import sys
from types import TracebackType
from typing import Any

from tests.surroundings import Surroundings

_remembered: dict[str, Any] = {}


def tidy() -> None:
    """Remove the variables that have come since the first call."""
    known = _remembered.setdefault("first", set(names()))
    for name in set(names()) - known:
        del sys.modules["IPython"].get_ipython().user_ns[name]


def set_apart() -> None:
    """Set apart what imports have made, some 500,000 objects: a profile, and each `look`, walk over all that are not.

    What is set apart no profile finds: a model or optimizer to be profiled must be made afterwards.
    """
    gc.collect()
    gc.freeze()


def look() -> None:
    """Remember what there is now."""
    gc.collect()
    _remembered.update(surroundings=Surroundings.now(), hooks=module_hooks(), names=set(names()))


def left() -> list[str]:
    """Return what is there now and was not when `look` was called, in words."""
    changed = Surroundings.now().changed_since(_remembered["surroundings"])
    hooks = module_hooks() - _remembered["hooks"]
    levels = [name for name in os.environ if name == "KINETO_LOG_LEVEL"]
    return changed + [f"module hook {hook}" for hook in sorted(hooks)] + levels


def names() -> list[str]:
    """Return the user's variables, without those that IPython adds for each cell."""
    shell = sys.modules["IPython"].get_ipython()
    numbered = {"_", "__", "___", "_i", "_ii", "_iii", "_exit_code", "__warningregistry__"}
    return [
        name
        for name in shell.user_ns
        if name not in numbered and not name.lstrip("_i").isdecimal() and name not in shell.user_ns_hidden
    ]


def new_names() -> list[str]:
    """Return the variables that have come since `look`."""
    return sorted(set(names()) - _remembered["names"])


def module_hooks() -> set[str]:
    """Return every hook on the user's modules."""
    torch = sys.modules.get("torch")
    shell = sys.modules["IPython"].get_ipython()
    models = [value for value in shell.user_ns.values() if torch and isinstance(value, torch.nn.Module)]
    return {
        f"{kind} of {type(part).__name__} {id(part)}: {key}"
        for model in models
        for part in model.modules()
        for kind, hooks in vars(part).items()
        if "_hooks" in kind and hooks
        for key in hooks
    }


def unwhole(profile: Any, model: str = "model") -> list[str]:
    """Return what is wrong with a profile of a step that runs `model` forward and backward and updates it."""
    wrong = []
    user = sys.modules["IPython"].get_ipython().user_ns
    wanted = [f"{model}.{path}" if path else model for path, _ in user[model].named_modules()]
    layers, phases = profile.layers, profile.phases
    rows = [name for name in layers.index if not name.startswith("(")]
    if rows != wanted:
        wrong.append(f"layers {rows}, not {wanted}")
    own = layers.loc[rows]
    if not math.isclose(own["self_ms"].sum(), own.loc[model, "total_ms"], rel_tol=1e-6):
        wrong.append(f"the layers' own times add up to {own['self_ms'].sum()}, not {own.loc[model, 'total_ms']}")
    if not (own[["forward_ms", "backward_ms", "calls"]] > 0).all(axis=None):
        wrong.append(f"a layer without forward, backward or calls: {own.to_dict()}")
    if not math.isclose(phases["share"].sum(), 1.0, rel_tol=1e-6):
        wrong.append(f"the phases' shares add up to {phases['share'].sum()}")
    marks = profile.events[profile.events["category"] == "step"]
    traced_ms = float(marks["duration_ns"].mean()) / 1e6
    if not math.isclose(phases["ms"].sum(), traced_ms, rel_tol=1e-6):
        wrong.append(f"the phases add up to {phases['ms'].sum()} ms, a traced step took {traced_ms} ms")
    if not (phases.loc[["forward", "backward", "optimizer"], "ms"] > 0).all():
        wrong.append(f"a phase took no time: {phases['ms'].to_dict()}")
    return wrong


def interrupted_in() -> list[str]:
    """Return the functions that the last error in a cell passed through, outermost first."""
    trace: TracebackType | None = sys.last_traceback
    functions = []
    while trace is not None:
        functions.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return functions


def size() -> dict[str, int]:
    """Resident memory, open files and threads of this process, and the hooks that torch holds."""
    import psutil

    gc.collect()
    process = psutil.Process()
    now = Surroundings.now()
    return {
        "rss": process.memory_info().rss,
        "files": process.num_fds(),
        "threads": len(now.threads),
        "hooks": sum(len(hooks) for hooks in now.hooks.values()),
    }
