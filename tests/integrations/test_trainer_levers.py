"""Levers tried inside a trainer's run: the run stays the same, and the answer is in the trainer's words."""

from __future__ import annotations

import dataclasses
import inspect
import math
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import perfnb
from perfnb.bench import restored
from perfnb.bench.restored import random_state
from perfnb.integrations import trainer_levers
from perfnb.integrations.trainer_levers import try_on
from perfnb.remedies import levers, measuring, verdicts
from perfnb.remedies.lever import Lever
from perfnb.remedies.state import digest
from tests.fake_clock import FakeClock
from tests.integrations.trainings import (
    ROWS,
    Sentences,
    classifier,
    fitted,
    for_lightning,
    for_transformers,
    language_model,
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
@pytest.mark.parametrize(
    ("steps", "accumulate"),
    [(26, 1), pytest.param(26, 3, marks=pytest.mark.deep), pytest.param(300, 1, marks=pytest.mark.deep)],
)
def test_every_file_of_a_training_is_that_of_one_without_a_trial(
    callback: Any, train: Train, steps: int, accumulate: int, tmp_path: Path
) -> None:
    """Weights, optimizer, schedule, random numbers and logs, over shuffled epochs with checkpoints in their middle."""

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
        made = train(folder, *callbacks, steps=steps, accumulate=accumulate, **options)
        return made, digest(random_state())

    profiler = callback(try_levers=FREE, **SHORT)
    tried, random = run(tmp_path / "tried", profiler)
    plain, as_plain = run(tmp_path / "plain")

    assert len(profiler.levers.figures.trials[0].times_ms) == 8
    assert same(tried, plain)
    assert random == as_plain
    kept = files_of(tmp_path / "tried")
    assert kept == files_of(tmp_path / "plain")
    assert any(name.endswith(("scheduler.pt", ".ckpt")) for name in kept)


@EACH
def test_callbacks_and_loggers_are_not_told_of_the_trial(callback: Any, train: Train, tmp_path: Path) -> None:
    import lightning
    from transformers import TrainerCallback

    told = Counter[str]()

    class Listens(TrainerCallback if callback is for_transformers else lightning.Callback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            told["steps"] += 1

        on_before_optimizer_step = on_pre_optimizer_step

        def on_log(self, *_: Any, **__: Any) -> None:
            told["logs"] += 1

    counts = []
    for profiler in ([callback(try_levers=FREE, **SHORT)], []):
        told.clear()
        options = {} if callback is for_lightning else {"logging_steps": 1}
        train(tmp_path, *profiler, Listens(), steps=24, **options)
        counts.append(dict(told))
    assert counts[0] == counts[1]
    assert counts[0]["steps"] == 24


class SlowSentences(Sentences):
    def __getitem__(self, place: int) -> dict[str, Tensor]:
        time.sleep(0.003)
        return super().__getitem__(place)


class SlowPoints(torch.utils.data.Dataset[Any]):
    def __init__(self, batches: int) -> None:
        self._points = points(batches)

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, place: int) -> Any:
        time.sleep(0.003)
        return self._points[place]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("callback", "setting"),
    [
        (for_transformers, "TrainingArguments(dataloader_num_workers="),
        pytest.param(for_lightning, "num_workers=", marks=pytest.mark.deep),
    ],
)
def test_a_starving_loader_gets_workers_in_the_words_of_its_trainer(
    callback: Any, setting: str, tmp_path: Path
) -> None:
    profiler = callback(try_levers=["loader_workers"], **SHORT, save=tmp_path / "run")
    if callback is for_transformers:
        trained(tmp_path, profiler, steps=26, batches=SlowSentences(26 * ROWS))
    else:
        fitted(tmp_path, profiler, steps=26, loader=DataLoader(SlowPoints(26), batch_size=ROWS))

    row = profiler.levers.table.loc["loader_workers"]
    assert row["code"].startswith(setting)
    assert row["values"] == "exact"
    [tried] = [one for one in profiler.run.tried if one["lever"] == "loader_workers"]
    assert tried["left"] == 26 - 14
    loaded = perfnb.load(tmp_path / "run")
    assert [one["lever"] for one in loaded.tried] == [one["lever"] for one in profiler.run.tried]
    assert "Tried during the run" in str(loaded)


@EACH
def test_a_trial_that_fails_warns_and_the_training_continues(
    callback: Any, train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        torch.manual_seed(99)
        raise RuntimeError("something\nelse")

    monkeypatch.setattr(trainer_levers, "run_trials", fails)
    profiler = callback(try_levers=FREE, **SHORT)
    with pytest.warns(RuntimeWarning, match="perfnb: no levers were tried: RuntimeError: something$"):
        train(tmp_path, profiler, steps=20)
    assert profiler.levers is None
    assert profiler.run.count == 20


@EACH
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
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
            for at in random.Random(2).sample(range(1, passes.passed), 20):
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
    assert [outcome for kind, outcome in outcomes if kind == "interrupted"] == ["interrupted"] * 20
    others = [outcome for kind, outcome in outcomes if kind != "interrupted"]
    assert len(others) == 40
    stopped = [outcome for outcome in others if isinstance(outcome, str)]
    assert set(stopped) == {"RuntimeError: broken", "OutOfMemoryError: CUDA out of memory"}
    assert len(stopped) < len(others)  # with the lever on, only the lever fails


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
    tried = for_lightning(try_levers=FREE, **SHORT)
    loading = for_lightning(try_levers=["loader_workers"], **SHORT)
    run("plain")
    run("tried", tried)
    run("loading", loading)
    assert tried.levers is not None
    assert loading.levers is not None
    assert rates == {1e-2}
    assert len(sums) == 20  # a trial sees no other batches than the run
    assert collected[0] == collected[1] == collected[2]
    assert collected[0][0] == 20
    assert counts[0] == counts[1] == counts[2]
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

    profiler = for_transformers(try_levers=FREE, **SHORT)
    trainer = made_trainer(tmp_path, profiler, steps=20, trainer=Collects)
    trainer.train()
    assert profiler.levers is not None
    assert trainer.count == len(trainer.metrics["train"]["rows"]) == 20


@EACH
@pytest.mark.deep
def test_a_trial_costs_no_more_than_was_said_in_advance(
    callback: Any,
    train: Train,
    clock: FakeClock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """200 steps of 100 ms, with four levers, by a clock that only the steps move."""
    monkeypatch.setattr(measuring, "_MOST_ROUNDS", 200)
    names = [f"idle {number}" for number in range(4)]
    monkeypatch.setattr(levers, "LEVERS", [dataclasses.replace(Points().lever(), name=name) for name in names])

    def slow(*_: Any) -> None:
        clock.pass_exactly(100)

    class Slow(classifier()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net.register_forward_pre_hook(slow)

    def model() -> nn.Module:
        made = language_model()
        made.register_forward_pre_hook(slow)
        return made

    own: dict[str, Any] = {"module": Slow} if callback is for_lightning else {"model": model}
    profiler = callback(at=20, try_levers=names)
    begin = clock.now_ns
    train(tmp_path, profiler, steps=200, **own)
    assert 30 < (clock.now_ns - begin) / 1e9 - 200 * 0.1 <= 60
    assert "trying levers for 60.0 s at most; the training then continues" in capsys.readouterr().err
    assert profiler.levers.table["ratio"].notna().sum() == 4


@pytest.mark.deep
def test_steps_that_are_left_are_unknown_for_an_endless_loader(tmp_path: Path) -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(points(20))

    profiler = for_lightning(try_levers=FREE, **SHORT, save=tmp_path / "run")
    fitted(tmp_path, profiler, module=scheduled(), loader=DataLoader(Endless(), batch_size=ROWS))
    loaded: Any = perfnb.load(tmp_path / "run")
    assert [one["left"] for one in loaded.tried] == [None]


@pytest.mark.deep
def test_a_schedule_that_only_evaluations_step_stays_where_it_is(tmp_path: Path) -> None:
    profiler = for_transformers(try_levers=FREE, **SHORT)
    schedule = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 19}
    trained(tmp_path, profiler, steps=20, **schedule)
    assert profiler.levers is not None
