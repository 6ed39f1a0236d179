"""Levers tried inside a trainer's run: the right one is kept, and its setting saves what the trial promised."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from perfnb.remedies import levers
from perfnb.remedies.lever import Lever, always
from perfnb.stats.comparisons import compare_with_first
from tests.accuracy.judging import Figures, Unsettled
from tests.integrations.trainings import fitted, for_lightning, for_transformers, made_trainer

ROWS, LENGTH, STEPS, BUDGET_S = 8, 64, 60, 40.0
#: Seconds for trying levers that do nothing, in each of 20 runs.
IDLE_S = 8
#: Runs with and without the change, one after the other: the fewest for an interval.
ALTERNATIONS = 6
#: By so much the ends of the interval from these runs may differ for a truth.
DISAGREE = 1.25


class Tokens(Dataset[dict[str, Tensor]]):
    """Random tokens, each sample of which takes some time to make."""

    def __init__(self, wait_s: float = 0.0, length: int = LENGTH) -> None:
        self._wait_s, self._tokens = wait_s, torch.randint(0, 50, (STEPS * ROWS, length))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        time.sleep(self._wait_s)
        return {"input_ids": self._tokens[place], "labels": self._tokens[place]}


def gpt(layers: int = 2, length: int = LENGTH, **options: Any) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"vocab_size": 50, "n_positions": length, "n_embd": 64, "n_layer": layers, "n_head": 4}
        known = {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM"}
        return GPT2LMHeadModel(GPT2Config(**{**sizes, **known, **options}))

    return made


class Planted(NamedTuple):
    """A slow training, the lever that answers it, and the training with the setting that the trial prints."""

    lever: str
    slow: Callable[..., Any]
    cured: Callable[[str], dict[str, Any]]
    threads: int = 2


def in_trainer(**planted: Any) -> Callable[..., Any]:
    def train(folder: Path, *callbacks: Any, **more: Any) -> None:
        options = {"model": gpt(), "batches": Tokens(), "logging_strategy": "no", "optim": "adamw_torch"}
        made_trainer(folder, *callbacks, steps=STEPS, **{**options, **planted, **more}).train()

    return train


def deep(**how: Any) -> Any:
    """Return a class of many small layers, whose optimizer by default loops over their parameters."""
    import lightning

    class Deep(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(60)))

        def training_step(self, batch: Any, _: int) -> Tensor:
            result: Tensor = self.net(batch["input_ids"].float()[:, :16]).square().mean()
            return result

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3, **(how or {"foreach": False}))

    return Deep


def in_lightning(**planted: Any) -> Callable[..., Any]:
    def train(folder: Path, *callbacks: Any, workers: int = 0, wait_s: float = 0.0, **more: Any) -> None:
        given = {**planted, **more}
        tokens = Tokens(given.pop("wait_s", wait_s))
        loader = DataLoader(tokens, batch_size=ROWS, num_workers=given.pop("workers", workers))
        fitted(folder, *callbacks, steps=STEPS, loader=loader, **{"module": deep(), **given})

    return train


def _number(code: str) -> int:
    return int("".join(filter(str.isdigit, code)))


PLANTED = {
    "Trainer, slow samples": Planted(
        "loader_workers",
        in_trainer(batches=Tokens(0.003)),
        lambda code: {"dataloader_num_workers": _number(code)},
    ),
    "Trainer, loop optimizer": Planted(
        "fused_optimizer", in_trainer(model=gpt(12), batches=Tokens(length=8)), lambda _: {"optim": "adamw_torch_fused"}
    ),
    "Trainer, 16 threads": Planted("threads", in_trainer(), lambda code: {"threads": _number(code)}, 16),
    "Trainer, eager attention": Planted(  # of so many heads that it is a third of the step
        "attention",
        in_trainer(model=gpt(1, 384, n_head=8, attn_implementation="eager"), batches=Tokens(length=384)),
        lambda _: {"model": gpt(1, 384, n_head=8, attn_implementation="sdpa")},
    ),
    "Lightning, slow samples": Planted(
        "loader_workers",
        in_lightning(wait_s=0.003),
        lambda code: {"workers": _number(code.partition(",")[0])},
    ),
    "Lightning, loop optimizer": Planted("fused_optimizer", in_lightning(), lambda _: {"module": deep(fused=True)}),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", PLANTED)
def test_the_right_setting_is_printed_and_saves_what_was_promised(name: str, figure: Figures, tmp_path: Path) -> None:
    planted = PLANTED[name]
    torch.set_num_threads(planted.threads)
    callback = for_transformers if name.startswith("Trainer") else for_lightning
    trial = callback(at=5, steps=6, try_levers=[planted.lever], levers_budget_s=BUDGET_S)
    planted.slow(tmp_path, trial)
    assert trial.levers is not None

    kept = planted.lever in trial.levers.best
    figure(f"trainers: {name}: {planted.lever} kept (1 = yes)", kept, at_least=1)
    row = trial.levers.table.loc[planted.lever]
    changed = planted.cured(row["code"])
    threads = changed.pop("threads", planted.threads)

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ALTERNATIONS):
        for cured, seconds in times.items():
            torch.set_num_threads(threads if cured else planted.threads)
            watched = callback(at=10**6, memory=False, flops=False)
            with pytest.warns(RuntimeWarning, match="no profile was made"):
                planted.slow(tmp_path, watched, **(changed if cured else {}))
            assert watched.run is not None
            seconds.append(float(watched.run.mean_ms + watched.run.between_ms))
    [by_hand] = compare_with_first(np.array([times[False], times[True]]))
    least, most = by_hand.ratio_ci or (0.0, math.inf)
    if most > DISAGREE * least:
        raise Unsettled(f"{name}: runs by hand disagree: {least:.2f} to {most:.2f} × the time without the change")
    # The trial times the step alone. A step of the run has its wait for data and the trainer's own work too.
    figures, run = trial.levers.figures, trial.run
    confirmed = next(one for one in figures.trials if one.lever == planted.lever)
    assert run is not None
    assert confirmed.ratio_ci is not None
    alone = figures.own_ms(planted.lever == "loader_workers") / (run.mean_ms + run.between_ms)
    low, high = (1 - alone * (1 - end) for end in confirmed.ratio_ci)
    figure(f"trainers: {name}: time of a step by hand / without", by_hand.ratio, at_most=1.0)
    figure(f"trainers: {name}: least by hand / upper end of the promised interval", least / high, at_most=1.0)
    figure(f"trainers: {name}: most by hand / lower end of the promised interval", most / low, at_least=1.0)


@pytest.mark.parametrize("trainer", ["Trainer", "Lightning"])
def test_idle_levers_are_not_kept(
    trainer: str, figure: Figures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [f"idle {number}" for number in range(4)]
    idle = [Lever(name, "does nothing", lambda _: "", always(lambda _: nullcontext()), lambda _: []) for name in names]
    monkeypatch.setattr(levers, "LEVERS", (*levers.LEVERS, *idle))
    tried = []
    for _ in range(20):
        callback = (for_transformers if trainer == "Trainer" else for_lightning)(
            at=3, steps=2, try_levers=names, levers_budget_s=IDLE_S, memory=False, flops=False
        )
        if trainer == "Trainer":
            made_trainer(tmp_path, callback, steps=24, model=gpt(), batches=Tokens(), logging_strategy="no").train()
        else:
            fitted(tmp_path, callback, steps=24, module=deep(), loader=DataLoader(Tokens(), batch_size=ROWS))
        assert callback.levers is not None
        tried.append(callback.levers)
    called = sum(bool((trials.table["verdict"] == "faster").any()) for trials in tried)
    confirmed = sum(bool(trials.best) for trials in tried)
    figure(f"trainers: {trainer}: 20 runs of four that do nothing: confirmed", confirmed, at_most=0)
    figure(f"trainers: {trainer}: 20 runs of four that do nothing: called faster", called, at_most=3)
    if missing := sum(not bool(trials.figures.rounds) for trials in tried):
        raise Unsettled(f"nothing was timed in {missing} of 20 runs")


def test_a_trial_takes_no_longer_than_was_said_in_advance(
    figure: Figures, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """200 steps that wait for 100 ms, without and with four levers."""

    class Waits(deep()):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> Tensor:
            time.sleep(0.1)
            result: Tensor = super().training_step(batch, number)
            return result

    def seconds(*callbacks: Any) -> float:
        tokens = torch.randint(0, 50, (200 * ROWS, LENGTH))
        loader = DataLoader([{"input_ids": row} for row in tokens], batch_size=ROWS)  # type: ignore[arg-type]
        begin = time.perf_counter()
        fitted(tmp_path, *callbacks, steps=200, module=Waits, loader=loader)
        return time.perf_counter() - begin

    alone = seconds()
    callback = for_lightning(try_levers=["fused_optimizer", "foreach_optimizer", "gc_freeze", "set_to_none"])
    more = seconds(callback) - alone
    assert "perfnb: trying levers for 60.0 s at most" in capsys.readouterr().err
    assert callback.levers is not None
    figure("trainers: 200 steps of 100 ms with four levers: more time", more, at_most=60, unit="s")
    figure("trainers: 200 steps of 100 ms with four levers: timed", callback.levers.figures.rounds, at_least=6)
