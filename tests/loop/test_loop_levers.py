"""Levers tried in a loop that is profiled: after its window, on its own steps, with the answer in the run's summary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import perfnb
from tests.loop import loops
from tests.loop.loops import Training

pytestmark = [pytest.mark.usefixtures("nothing_left", "clock"), pytest.mark.slow]

WINDOW: dict[str, Any] = {"at": 3, "steps": 2, "traced": 1, "memory": False, "flops": False}
#: Steps before the blocks: the window has four, and one shows which optimizers step.
BEFORE, EACH = 3 + 4 + 1, 2 * 12 * 5


def train(loop: Any, training: Training, *, helps: bool = True, until: int = 10**9) -> list[float]:
    """Train in a loop whose steps take 10 ms, less while the update is fused; the milliseconds of each."""
    model, optimizer, took = training.model, training.optimizer, []
    assert model is not None
    for batch in loop:
        training(batch)
        took.append(6.0 if helps and optimizer.param_groups[0]["fused"] else 10.0)
        time.sleep(took[-1] / 1e3)
        if len(took) == until:
            break
    return took


class Slow(Dataset[Any]):
    """Samples that take 3 ms to make; in a worker that is not the loop's time."""

    def __init__(self, batches: list[Any]) -> None:
        self._x, self._y = (torch.cat(part) for part in zip(*batches, strict=True))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, place: int) -> Any:
        if torch.utils.data.get_worker_info() is None:
            time.sleep(0.003)
        return self._x[place], self._y[place]


def test_the_answer_is_in_the_summary_the_saved_run_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.profile.places.users_files", lambda: [loops.__file__])  # whatever else is loaded
    training = Training(batches=BEFORE + EACH + 40)
    loop = perfnb.profiled(training.batches, try_levers=["fused_optimizer"], **WINDOW)
    took = train(loop, training)
    assert [took.count(6.0), took[-40:].count(10.0)] == [EACH // 2, 40]
    before, answer = capsys.readouterr().err.splitlines()
    assert before.startswith(
        "perfnb: in the next 120 steps, levers are switched on and off at random: fused_optimizer. Each step runs once."
    )
    assert answer.startswith("perfnb: fused_optimizer is faster by 40 % [")
    assert answer.endswith("; values unchecked here: check with try_levers")
    loop.run.save(tmp_path / "run")
    for run in (loop.run, perfnb.load(tmp_path / "run")):
        [tried] = run.tried
        assert (tried["lever"], tried["verdict"], tried["kept"], tried["left"]) == (
            "fused_optimizer",
            "faster",
            True,
            40,
        )
        saved = "worth keeping: it would have saved about 160 ms over the remaining 40 steps, 40 % of their time; "
        assert f"{saved}values unchecked here" in " ".join(str(run).split())
        assert run.profiled == 4 + 1 + EACH
        assert run.median_ms == pytest.approx(10.0, rel=0.1)
    [line] = tried["code"]
    made = "self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)  # loops.py:"
    assert line.startswith(made)


def test_an_error_in_the_body_reaches_the_user_with_all_levers_off() -> None:
    training = Training(batches=60)
    loop = perfnb.profiled(training.batches, try_levers=["fused_optimizer"], **WINDOW)

    def run() -> None:
        for batch in loop:
            training(batch)
            time.sleep(0.010)
            if training.optimizer.param_groups[0]["fused"]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert training.optimizer.param_groups[0]["fused"] is None


def test_a_slow_loader_gets_workers_for_the_rest_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.loop_trial.usable_cpus", lambda: 2)
    training = Training(batches=100)

    def batches() -> Iterator[list[float]]:
        torch.manual_seed(2)
        loader = DataLoader(Slow(training.batches), batch_size=8, shuffle=True)
        loop = perfnb.profiled(loader, try_levers=True, **WINDOW) if wrapped else loader
        for x, y in loop:
            training((x, y))
            time.sleep(0.010)
            yield x[:, 0].tolist()
        if wrapped:
            yield loop.run.tried

    wrapped = False
    expected = list(batches())
    wrapped = True
    *found, tried = list(batches())
    assert found == expected
    first = tried[0]
    assert (first["lever"], first["verdict"], first["kept"]) == ("loader_workers", "faster", True)
    assert first["interval"][0] < 10 / 34 < first["interval"][1]
    [line] = first["code"]
    assert line.startswith(
        "loader = DataLoader(Slow(training.batches), batch_size=8, shuffle=True, num_workers=2)  # test_loop_levers.py:"
    )
