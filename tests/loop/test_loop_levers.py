"""Levers tried in a loop that is profiled: after its window, on its own steps, with the answer in the run's summary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

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
