"""Settings that only a new process takes: the step is timed in new processes, with and without one, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perfnb.bench.design import SEED, random_orders
from perfnb.errors import CaptureError
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import fewest_rounds
from perfnb.stats.intervals import Floats
from perfnb.step.namespace import name_of_batches

_MOST_ROUNDS = 20
#: Share of a budget by which rounds may outlast it.
_SLACK = 0.2
#: Seconds after which a process is given up.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Setting:
    """How a process starts."""

    #: Environment variables.
    env: Mapping[str, str] = field(default_factory=dict)
    #: ``torch.set_num_interop_threads`` as its first call; 0 for none.
    interop: int = 0


def order_for(subject: Subject) -> dict[str, Any] | None:
    """How a new process finds the step: in an imported module or by running the script again; ``None`` if it cannot."""
    step = subject.step
    name, module = getattr(step, "__qualname__", ""), sys.modules.get(getattr(step, "__module__", "") or "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not step:
        return None
    order = {"step": name, "module": module.__name__, "script": "", "batches": "", "path": sys.path, "argv": sys.argv}
    if module.__name__ != "__main__":
        order["batches"] = next(iter(name_of_batches(step, subject.batches)), "")
        return order if subject.batches is None or order["batches"] else None
    file = getattr(module, "__file__", None)  # none in a notebook
    if not file or step.__code__.co_filename != file or not Path(file).is_file():
        return None
    return {**order, "script": str(Path(file).resolve())}


def time_fresh(
    setting: Setting,
    subject: Subject,
    _: object,
    budget_s: float,
    progress: Callable[..., None],
    what: str,
    seed: int = SEED,
) -> Floats:
    """Milliseconds of a step in new processes, as it is (first row) and with a setting, a column per round.

    In each round both run once, in random order. Each process warms up by itself and gives the median of its steps.

    Raises
    ------
    CaptureError
        If the step does not run in a new process, or if the budget is too short.
    """
    __tracebackhide__ = True
    order = order_for(subject)
    if order is None:
        raise CaptureError("The step cannot be imported in a new process.")
    settings = (Setting(), setting)
    begin = time.perf_counter()
    fewest = fewest_rounds(1)
    # A script runs again in each process, for as long as it takes; none may take more than its share.
    patience_s = (1 + _SLACK) * budget_s / (2 * fewest)
    try:
        columns = [[_milliseconds(each, order, subject, patience_s) for each in settings]]
    except subprocess.TimeoutExpired:
        words = " ".join(f"{name}={value}" for name, value in setting.env.items())
        raise CaptureError(
            f"a new process takes more than {patience_s:.1f} s to get to the step, too long for {2 * fewest} of them "
            f"in the budget: raise budget_s{words and f', or try it yourself: start Python with {words}'}"
        ) from None
    round_s = time.perf_counter() - begin
    if fewest * round_s > (1 + _SLACK) * budget_s:
        raise CaptureError(
            f"{fewest} pairs of new processes take about {fewest * round_s:.0f} s, more than the budget leaves: raise "
            "budget_s, or try it yourself."
        )
    count = max(fewest, min(_MOST_ROUNDS, int(budget_s / max(round_s, 1e-9))))
    late = begin + (1 + _SLACK) * budget_s
    for done, turns in enumerate(random_orders(count - 1, len(settings), seed), start=2):
        if time.perf_counter() > late:
            break
        progress(what, done, count)
        found = {turn: _milliseconds(settings[turn], order, subject) for turn in turns}
        columns.append([found[place] for place in range(len(settings))])
    return np.array(columns).T


def _milliseconds(
    setting: Setting, order: Mapping[str, Any], subject: Subject, patience_s: float = _PATIENCE_S
) -> float:
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="perfnb-") as folder:
        result = Path(folder) / "result.json"
        words = [sys.executable, "-m", "perfnb.remedies.fresh_child"]
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with subject.gate.opened():
            done = subprocess.run(
                [*words, json.dumps({**order, "interop": setting.interop}), str(result)],
                env={**os.environ, **setting.env, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=patience_s,
                check=False,
            )
        if not result.exists():
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
            raise CaptureError(f"The step does not run in a new process: {said[-1][:200]}")
        return float(json.loads(result.read_text(encoding="utf-8")))
