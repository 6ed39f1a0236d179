"""Three whole scripts, each profiled in every way there is: the same step, wait, throughput, verdict and bound."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.utils.data import DataLoader
from traitlets.config import Config

import perfnb
from perfnb.stats.intervals import interval_of_median
from tests.accuracy.judging import Figures
from tests.accuracy.scripts.data import ACCUMULATED, ROWS, Slow
from tests.integrations.trainings import for_lightning, for_transformers

pytestmark = pytest.mark.usefixtures("nothing_left")

_ROOT = Path(__file__).parents[2]
_STEPS, _AT = 80, 20
_WINDOW: dict[str, Any] = {"at": _AT, "steps": 20}
#: What the ways may differ by beyond their intervals, of the step: `perfnb run` ends it where the optimizer has
#: stepped, the others where the next one begins, with the trainer's own work after it.
_APART = 0.04

_CELL = """
optimizer.zero_grad()
for _ in range({accumulated}):
    batch = next(batches)
    work(model, batch)
optimizer.step()
"""


class Row(NamedTuple):
    """What a way says of a script."""

    script: str
    way: str
    step_ms: tuple[float, float, float]
    share: tuple[float, float, float]
    per_s: float
    verdict: str
    bound_ms: float
    bound_of_run_ms: float | None


def row(script: str, way: str, profile: Any, run: Any) -> Row:
    steps = profile.steps[profile.steps["pass"] == "timed"]
    timing, first = profile.timing, profile.findings.iloc[0]
    shares = (steps["data_ms"] / steps["wall_ms"]).to_numpy(float)
    found = interval_of_median(shares)
    assert found is not None
    return Row(
        script,
        way,
        (timing.median_ms, *timing.ci_ms),
        (statistics.median(shares), *found[:2]),
        timing.throughput_per_s,
        str(first["bottleneck"]),
        float(first["bound_ms"]),
        None if run is None else float(run.findings.iloc[0]["bound_ms"]),
    )


def by_run(script: str, folder: Path) -> tuple[Any, Any]:
    words = ["-m", "perfnb", "run", "--at", str(_AT), "--save", str(folder), "-m", f"tests.accuracy.scripts.{script}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return perfnb.load(folder / f"step_{_AT:06d}"), perfnb.load(folder / "run")


def by_profiled(main: Callable[..., None]) -> tuple[Any, Any]:
    loops = []

    def wrapped(loader: Any) -> Any:
        loops.append(perfnb.profiled(loader, **_WINDOW))
        return loops[-1]

    main(_STEPS, wrapped=wrapped)
    return loops[0].profiles[0], loops[0].run


def by_callback(main: Callable[..., None], callback: Any, folder: Path) -> tuple[Any, Any]:
    profiler = callback(**_WINDOW)
    main(_STEPS, callbacks=[profiler], folder=str(folder))
    return profiler.profiles[0], profiler.run


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, work: Callable[[Any, Any], None]) -> tuple[Any, None]:
    """Run the cell that somebody writes who has only the parts of the script."""

    def forever() -> Iterator[Any]:
        while True:
            yield from DataLoader(Slow(), batch_size=ROWS)

    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.run_line_magic("load_ext", "perfnb")
    shell.user_ns |= {"model": model.train(), "optimizer": optimizer, "work": work, "batches": forever()}
    shell.run_cell_magic("profile_step", "--warmup 5 --steps 20 --into p", _CELL.format(accumulated=ACCUMULATED))
    return shell.user_ns["p"], None


def hf_work(model: Any, batch: Any) -> None:
    (model(**batch).loss / ACCUMULATED).backward()


def lit_work(model: Any, batch: Any) -> None:
    (model.training_step(batch, 0) / ACCUMULATED).backward()


def rows_of(script: str, folder: Path) -> Iterator[Row]:
    """Yield each way of profiling a script."""
    yield row(script, "perfnb run", *by_run(script, folder / "kept"))
    module = importlib.import_module(f"tests.accuracy.scripts.{script}")
    yield row(script, "profiled", *by_profiled(module.main))
    if script == "hf":
        yield row(script, "callback", *by_callback(module.main, for_transformers, folder))
        model: nn.Module = module.model()
        parts: tuple[Any, ...] = (model, torch.optim.AdamW(model.parameters()), hf_work)
    elif script == "lit":
        yield row(script, "callback", *by_callback(module.main, for_lightning, folder))
        model = module.Classifier()
        parts = (model, model.configure_optimizers(), lit_work)
    else:
        model, optimizer, _ = module.parts()
        parts = (model, optimizer, module.work)
    yield row(script, "%%profile_step", *by_hand(*parts))


def truth_ms() -> float:
    """Return what the batches of a step take to make, by a loop that does nothing else."""
    batches, times = iter(DataLoader(Slow(), batch_size=ROWS)), []
    for _ in range(15):
        begin = time.perf_counter()
        assert len(list(islice(batches, ACCUMULATED))) == ACCUMULATED
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def apart(intervals: list[tuple[float, float, float]]) -> float:
    """Return how far intervals are from having a value in common, of the median of their centres."""
    middle = statistics.median(centre for centre, _, _ in intervals)
    return max(0.0, max(low for _, low, _ in intervals) - min(high for _, _, high in intervals)) / middle


def as_text(rows: list[Row], truth: float) -> str:
    """Return all of it in one table."""
    lines = [
        f"{'script':<7}{'way':<16}{'step':>26}{'data share':>22}{'samples/s':>11}  {'verdict':<16}{'bound':>9}"
        f"{'run':>9}"
    ]
    for one in rows:
        step = "{:.1f} ms [{:.1f}, {:.1f}]".format(*one.step_ms)
        share = "{:.1%} [{:.1%}, {:.1%}]".format(*one.share)
        run = "" if one.bound_of_run_ms is None else f"{one.bound_of_run_ms:.1f}"
        lines.append(
            f"{one.script:<7}{one.way:<16}{step:>26}{share:>22}{one.per_s:>11.0f}  {one.verdict:<16}"
            f"{one.bound_ms:>9.1f}{run:>9}"
        )
    return "\n".join([*lines, f"The batches of a step take {truth:.1f} ms to make."])


@pytest.mark.parametrize("script", ["plain", "hf", "lit"])
def test_every_way_says_the_same(
    script: str, tmp_path: Path, figure: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    before = truth_ms()
    with redirect_stdout(StringIO()):
        rows = list(rows_of(script, tmp_path))
    truth = (before + truth_ms()) / 2
    with capsys.disabled():
        print(f"\n{as_text(rows, truth)}")
    name = {"plain": "an accumulating loop", "hf": "a script with Trainer", "lit": "a Lightning module"}[script]
    figure(f"{name}: ways with another verdict", sum(one.verdict != "input pipeline" for one in rows), at_most=0)
    figure(
        f"{name}: step, ways apart beyond their intervals",
        apart([one.step_ms for one in rows]),
        at_most=_APART,
        unit="%",
    )
    figure(
        f"{name}: data share, ways apart beyond their intervals",
        apart([one.share for one in rows]),
        at_most=_APART,
        unit="%",
    )
    rates = [one.per_s * one.step_ms[0] / 1e3 for one in rows]  # samples of a median step
    figure(f"{name}: samples of a step by throughput, least", min(rates), at_least=0.95 * ROWS * ACCUMULATED)
    figure(f"{name}: samples of a step by throughput, most", max(rates), at_most=1.05 * ROWS * ACCUMULATED)
    bounds = [bound for one in rows for bound in (one.bound_ms, one.bound_of_run_ms) if bound is not None]
    figure(f"{name}: least bound / what the batches take to make", min(bounds) / truth, at_least=0.97)
    figure(f"{name}: largest bound / what the batches take to make", max(bounds) / truth, at_most=1.1)
