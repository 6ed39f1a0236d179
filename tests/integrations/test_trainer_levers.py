"""Levers tried inside a trainer's run: the run stays the same, and the answer is in the trainer's words."""

from __future__ import annotations

import inspect
import math
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from perfnb.bench import restored
from perfnb.bench.restored import random_state
from perfnb.integrations.trainer_levers import try_on
from perfnb.remedies import levers, measuring, verdicts
from perfnb.remedies.lever import Lever
from perfnb.remedies.state import digest
from tests.integrations.trainings import (
    ROWS,
    Sentences,
    classifier,
    fitted,
    for_lightning,
    for_transformers,
    made_trainer,
    points,
    same,
    trained,
)

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

#: A window of eleven steps, then a trial of a lever that costs nothing; its rounds are limited instead of its time.
SHORT: dict[str, Any] = {"at": 3, "steps": 4, "levers_budget_s": 3600.0}
FREE = ["foreach_optimizer"]
EACH = pytest.mark.parametrize(("callback", "train"), [(for_lightning, fitted), (for_transformers, trained)])
Train = Callable[..., nn.Module]


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_MOST_ROUNDS", 8)
    monkeypatch.setattr(measuring, "_MOST_BLOCKS", 8)
    monkeypatch.setattr(verdicts, "HOPELESS", math.inf)  # a busy machine makes a lever look so


def scheduled() -> Any:
    """Return a class with a learning rate that falls in every step, an optimizer that loops, and batch statistics."""

    class Scheduled(classifier()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net.insert(1, nn.BatchNorm1d(32))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 1e-2, foreach=False)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Scheduled


def options_of(callback: Any) -> dict[str, Any]:
    """Return an optimizer that loops over the parameters, and a learning rate that changes."""
    return {"module": scheduled()} if callback is for_lightning else {"optim": "adamw_torch", "warmup_steps": 5}


def files_of(folder: Path) -> dict[str, str]:
    """Return a digest of every file of a training, but for the folder's name, which its arguments hold too."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "training_args.bin"):
        if path.suffix in (".pt", ".pth", ".ckpt"):
            value = without(torch.load(path, weights_only=False), str(folder))
        else:
            value = path.read_bytes().replace(str(folder).encode(), b"")
        found[str(path.relative_to(folder))] = digest(value)
    return found


def without(value: Any, folder: str) -> Any:
    """Return a value of a checkpoint without the folder's name."""
    if isinstance(value, dict):
        return {without(name, folder): without(inner, folder) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without(inner, folder) for inner in value]
    return value.replace(folder, "") if isinstance(value, str) else value


@EACH
@pytest.mark.parametrize(("steps", "accumulate"), [(26, 1), pytest.param(26, 3, marks=pytest.mark.deep)])
def test_every_file_of_a_training_is_that_of_one_without_a_trial(
    callback: Any, train: Train, steps: int, accumulate: int, tmp_path: Path
) -> None:
    """Weights, optimizer, schedule, random numbers, events and logs, over shuffled epochs with checkpoints in them."""
    import lightning
    from transformers import TrainerCallback

    told = Counter[str]()

    class Listens(TrainerCallback if callback is for_transformers else lightning.Callback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            told["steps"] += 1

        on_before_optimizer_step = on_pre_optimizer_step

        def on_log(self, *_: Any, **__: Any) -> None:
            told["logs"] += 1

    def run(folder: Path, *callbacks: Any) -> tuple[nn.Module, str]:
        torch.manual_seed(3)
        options, saved = options_of(callback), steps // 2 + 3
        rows = steps * accumulate // 2 * ROWS
        if callback is for_lightning:
            from lightning.pytorch.callbacks import ModelCheckpoint
            from lightning.pytorch.loggers import CSVLogger

            callbacks = (*callbacks, ModelCheckpoint(folder / "kept", every_n_train_steps=saved, save_top_k=-1))
            options |= {"enable_checkpointing": True, "logger": CSVLogger(folder, name="log"), "log_every_n_steps": 1}
            shuffled = DataLoader(points(rows // ROWS), batch_size=ROWS, shuffle=True)
            options |= {"epochs": 2, "loader": shuffled}
        else:
            options |= {"save_strategy": "steps", "save_steps": saved, "logging_steps": 1, "batches": Sentences(rows)}
        told.clear()
        made = train(folder, *callbacks, Listens(), steps=steps, accumulate=accumulate, **options)
        return made, digest((random_state(), dict(told)))

    profiler = callback(try_levers=FREE, **SHORT)
    tried, random = run(tmp_path / "tried", profiler)
    plain, as_plain = run(tmp_path / "plain")
    assert told["steps"] == steps

    assert len(profiler.levers.figures.trials[0].times_ms) == 8
    assert same(tried, plain)
    assert random == as_plain
    kept = files_of(tmp_path / "tried")
    assert kept == files_of(tmp_path / "plain")
    assert any(name.endswith(("scheduler.pt", ".ckpt")) for name in kept)


@pytest.mark.parametrize(
    ("callback", "train", "error"),
    [(for_lightning, fitted, KeyboardInterrupt), (for_transformers, trained, MemoryError)],
)
def test_an_error_in_the_middle_of_a_trial_leaves_the_state_as_it_was(
    callback: Any, train: Train, error: type[BaseException], tmp_path: Path
) -> None:
    """An interrupt ends the training, as without perfnb; anything else lets it continue."""
    from transformers import Trainer

    calls, seen = [0], list[Any]()

    def mine(module: nn.Module) -> None:
        calls[0] += 1
        if calls[0] == 16:  # in the trial, after fourteen steps of the run and one of the trial
            raise error("mine")

    class Fails(classifier()):  # type: ignore[misc]
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            mine(self)
            return super().training_step(batch, batch_idx)

    class FailingTrainer(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            mine(self.model)
            return super().training_step(*args, **kwargs)

    def step_of(profiler: Any) -> Any:
        own = profiler._step

        def made() -> Any:
            step = own()
            seen.extend([step, digest([*step.model.state_dict().values()]), digest(random_state())])
            return step

        return made

    class Watched(type(callback())):  # type: ignore[misc]
        def _try(self) -> None:
            self._step = step_of(self)
            try:
                super()._try()
            finally:
                step, weights, numbers = seen
                assert digest([*step.model.state_dict().values()]) == weights
                assert digest(random_state()) == numbers
                seen.append("checked")

    profiler = Watched(try_levers=FREE, **SHORT)
    own = {"module": Fails} if callback is for_lightning else {"trainer": FailingTrainer}
    if error is KeyboardInterrupt:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(tmp_path, profiler, steps=20, **own)
    else:
        with pytest.warns(RuntimeWarning, match="no levers were tried: MemoryError: mine"):
            train(tmp_path, profiler, steps=20, **own)
    assert seen[-1] == "checked"


def test_a_lightning_step_has_the_batches_hooks_and_loggers_of_the_run(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.profilers import SimpleProfiler

    sums, rates = set[float](), set[float]()
    collected = []

    class Own(classifier()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[Tensor] = []
            self.by_kind = {"train": list[float]()}

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return {"x": batch[0], "y": batch[1]}

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return {**batch, "x": batch["x"] / 2}

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch.pop("x"), batch.pop("y")
            sums.add(round(float(x.sum()), 3))  # not exactly: a trial computes in float64 too
            rates.add(self.optimizers().param_groups[0]["lr"])
            self.logger.log_metrics({"sum": float(x.sum())}, step=self.global_step)
            loss: Tensor = super().training_step([x, y], batch_idx)
            self.losses.append(loss.detach())
            self.by_kind["train"].append(float(loss))
            return loss

        def on_train_epoch_end(self) -> None:
            collected.append((len(self.losses), self.by_kind))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 1e-2, foreach=False)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def run(name: str, *callbacks: Any) -> None:
        profiler = SimpleProfiler()
        logger = CSVLogger(tmp_path / name, name="log")
        fitted(tmp_path, *callbacks, steps=20, module=Own, logger=logger, profiler=profiler)
        counts.append({place: len(times) for place, times in profiler.recorded_durations.items() if "[Light" in place})

    counts: list[dict[str, int]] = []
    tried = for_lightning(try_levers=[*FREE, "loader_workers"], **SHORT)
    run("plain")
    run("tried", tried)
    assert tried.levers is not None
    assert rates == {1e-2}
    assert len(sums) == 20  # a trial sees no other batches than the run
    assert collected[0] == collected[1]
    assert collected[0][0] == 20
    assert counts[0] == counts[1]
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "tried")


def test_what_a_trainer_of_transformers_collects_is_put_back(tmp_path: Path) -> None:
    from transformers import Trainer

    class Collects(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.count, self.metrics = 0, {"train": defaultdict[str, list[int]](list)}

        def training_step(self, model: Any, inputs: Any, *args: Any) -> Any:
            self.count += 1
            self.metrics["train"]["rows"].append(len(inputs["labels"]))
            taken = {name: inputs.pop(name) for name in ("input_ids", "labels")}
            return super().training_step(model, taken, *args)

    profiler, options = for_transformers(try_levers=FREE, **SHORT), options_of(for_transformers)
    trainer = made_trainer(tmp_path, profiler, steps=20, trainer=Collects, **options)
    trainer.train()
    assert [(one["lever"], one["left"]) for one in profiler.run.tried] == [(FREE[0], 20 - 14)]
    assert "Tried during the run" in str(profiler.run)
    assert trainer.count == len(trainer.metrics["train"]["rows"]) == 20


class Points:
    """Points in a training and in a trial, one of which fails."""

    def __init__(self) -> None:
        self.passed, self._at, self._fail = 0, -1, lambda: None

    def plan(self, at: int, fail: Callable[[], Any]) -> None:
        self.passed, self._at, self._fail = 0, at, fail

    def __call__(self, *_: Any, **__: Any) -> None:
        self.passed += 1
        if self.passed == self._at:
            self._fail()

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **kwargs: Any) -> Any:
            self()
            return function(*args, **kwargs)

        return both

    def plant(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Before each forward, in its backward, and around the optimizer's step."""
        model.register_forward_pre_hook(self)
        next(model.parameters()).register_hook(self)
        optimizer.register_step_pre_hook(self)
        optimizer.register_step_post_hook(self)

    def lever(self) -> Lever:
        """Return one that does nothing, with points in its parts."""

        @contextmanager
        def prepared(_: Any) -> Iterator[Any]:
            self()
            yield switch

        @contextmanager
        def switch() -> Iterator[None]:
            self()
            yield
            self()

        return Lever("planted", "does nothing", lambda _: "", prepared, lambda _: [])


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def broken() -> None:
    raise RuntimeError("broken")


def interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


@EACH
@pytest.mark.deep
def test_a_run_continues_unharmed_whatever_fails_in_a_trial_and_when(
    callback: Any, train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import lightning
    from transformers import TrainerCallback

    passes, outcomes = Points(), list[tuple[str, Any]]()
    monkeypatch.setattr(levers, "LEVERS", (*levers.LEVERS, passes.lever()))
    monkeypatch.setattr(restored, "_copy", passes.before(restored._copy))  # an allocation of perfnb's own
    for schedule in (torch.optim.lr_scheduler.ExponentialLR, torch.optim.lr_scheduler.LambdaLR):
        monkeypatch.setattr(schedule, "get_lr", passes.before(schedule.get_lr))

    class Plants(TrainerCallback if callback is for_transformers else lightning.Callback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, model: Any, optimizer: Any, **__: Any) -> None:
            passes.plant(model, optimizer.optimizer)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            passes.plant(module.net, trainer.optimizers[0])

    class Fails(type(callback())):  # type: ignore[misc]
        """Tries again and again, and fails at another point each time."""

        def _try(self) -> None:
            self._to_try = False
            driver, step = self._steps.driver, self._step()
            found = inspect.getclosurevars(step.run).nonlocals
            schedules = [found["scheduler"]] if "scheduler" in found else [one.scheduler for one in found["configs"]]

            def state() -> list[str]:
                known = [one.state_dict() for one in (step.model, step.optimizer, *schedules)]
                counted = found["loop"].state_dict() if "loop" in found else vars(found["trainer"].state)
                return [digest(one) for one in (*known, random_state(), counted)]

            def attempt() -> Any:
                try:
                    return try_on(self._step(), driver.profiles[0], ["planted"], 3600.0, "training")
                except KeyboardInterrupt:
                    return "interrupted"

            before = state()
            passes.plan(-1, broken)
            assert attempt().table.loc["planted", "verdict"] != "not tried"
            for at in random.Random(2).sample(range(1, passes.passed), 5):
                for fail in (interrupted, broken, out_of_memory):
                    passes.plan(at, fail)
                    outcomes.append((fail.__name__, attempt()))
                    assert passes.passed >= at
                    assert state() == before, (at, fail)
            passes.plan(-1, broken)

    def run(*callbacks: Any) -> nn.Module:
        return train(tmp_path, Plants(), *callbacks, steps=24, **options_of(callback))

    tried, plain = run(Fails(try_levers=True, **SHORT)), run()
    assert same(tried, plain)
    assert [outcome for kind, outcome in outcomes if kind == "interrupted"] == ["interrupted"] * 5
    others = [outcome for kind, outcome in outcomes if kind != "interrupted"]
    assert len(others) == 10
    stopped = [outcome for outcome in others if isinstance(outcome, str)]
    assert set(stopped) == {"RuntimeError: broken", "OutOfMemoryError: CUDA out of memory"}
