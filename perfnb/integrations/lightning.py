"""`ProfileCallback` for Lightning's Trainer, from ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from perfnb.bench.restored import rebuilt
from perfnb.errors import PerfnbError
from perfnb.integrations.patches import replaced
from perfnb.integrations.trainer_levers import TrainerStep
from perfnb.integrations.trainer_profiler import TrainerProfiler

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callbacks() -> tuple[type, ...]:
    """Return the base classes from the packages that are in use or, if there are none, from the first one installed."""
    if used := [sys.modules[name].Callback for name in _PACKAGES if hasattr(sys.modules.get(name), "Callback")]:
        return tuple(used)
    for name in _PACKAGES:
        try:
            return (importlib.import_module(name).Callback,)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise PerfnbError(
        "perfnb.integrations.lightning needs Lightning, which is not installed here: pip install lightning."
    )


class ProfileCallback(TrainerProfiler, *_callbacks()):  # type: ignore[misc]
    """Profile a few steps in the middle of ``Trainer.fit``, each of which runs only once.

    A step is one optimizer step with all batches whose gradients it accumulates, from the request for its first batch
    to the request for the next step's first batch. With manual optimization, a step ends with a batch after which an
    optimizer has stepped. If none of Lightning's optimizers ever steps, each batch is a step. Validation and
    checkpoints are not part of any step.
    """

    _optimizer_steps = 0
    _batches: list[Any]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._remove()
        self._batches = []
        self._prepare(
            optimizers_end_steps=pl_module.automatic_optimization,
            name=type(pl_module).__name__,
            trainer="lightning",
            namespace=lambda: {"model": pl_module, **_optimizers(trainer)},
            loader=trainer.train_dataloader,
            left=lambda: _left(trainer),
        )
        self._optimizer_steps = trainer.global_step
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            self._refuse_levers("without automatic optimization by one optimizer, only your module can run a step")
        self._step = lambda: _step(trainer, pl_module, list(self._seen))  # type: ignore[method-assign]
        # The epoch's loop passes these functions to the object that fetches the batches.
        loop, steps = trainer.fit_loop.epoch_loop, self._steps
        before, after = loop._on_before_fetch, loop._on_after_fetch

        def fetches() -> None:
            before()
            self._ask()

        def fetched() -> None:
            steps.get()
            after()

        self._installed.enter_context(replaced(loop, "_on_before_fetch", fetches))
        self._installed.enter_context(replaced(loop, "_on_after_fetch", fetched))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.get(batch)
        if self._to_try:
            self._batches.append(rebuilt(batch))  # a step may remove values from it

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        optimizer_steps = trainer.global_step  # this is not cheap
        if optimizer_steps != self._optimizer_steps:
            self._optimizer_steps = optimizer_steps
            self._steps.step()
            self._has(self._batches)
            self._batches = []
        self._steps.use()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.validate()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self._steps.pause()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        try:
            self._finish()
        finally:
            self._remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._remove()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._remove()


def _optimizers(trainer: Any) -> dict[str, Any]:
    several = trainer.optimizers
    return {"optimizer": several[0]} if len(several) == 1 else {"optimizers": several}


def _left(trainer: Any) -> int | None:
    """Return the number of steps before the next validation or the end of training, whichever comes first.

    The result is ``None`` if neither is known.
    """
    loop, ahead = trainer.fit_loop.epoch_loop, []
    done, every = loop.batch_progress.current.ready, trainer.check_val_every_n_epoch
    if trainer.enable_validation and (every is None or (trainer.current_epoch + 1) % every == 0):
        between = getattr(trainer, "val_check_batch", None)
        if between is not None and math.isfinite(between):
            ahead.append(between - (loop.total_batch_idx + 1 if every is None else done) % between)
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch + 1 >= trainer.max_epochs:
        ahead.append(trainer.num_training_batches - done)
    steps = [math.ceil(batches / trainer.accumulate_grad_batches) for batches in ahead if math.isfinite(batches)]
    if trainer.max_steps != -1:
        steps.append(trainer.max_steps - trainer.global_step)
    return min(steps, default=None)


def _step(trainer: Any, module: Any, seen: Sequence[Sequence[Any]]) -> TrainerStep:
    """Return the step of Lightning's loop as a function, if it uses automatic optimization."""
    loop, [optimizer] = trainer.fit_loop.epoch_loop, trainer.optimizers
    automatic, accumulates = loop.automatic_optimization, trainer.accumulate_grad_batches
    progress = automatic.optim_progress
    configs = [config for config in trainer.lr_scheduler_configs if config.interval == "step"]
    made_by = {kind.__module__ for kind in type(trainer).__mro__}
    package = next(sys.modules[name] for name in _PACKAGES if f"{name}.trainer.trainer" in made_by)
    more_come = False

    def run(batches: Sequence[Any]) -> Any:
        nonlocal more_come
        losses = []
        for number, batch in enumerate(batches):
            more_come = number + 1 < len(batches)
            arguments = loop._build_kwargs(OrderedDict(), rebuilt(batch), loop.batch_idx)
            losses.append(automatic.run(optimizer, loop.batch_idx, arguments).get("loss"))
        for config in configs:
            if not isinstance(config.scheduler, ReduceLROnPlateau):
                config.scheduler.step()
        return losses

    def prepared(batch: Any) -> Any:
        batch = trainer.precision_plugin.convert_input(batch)
        return trainer.strategy.batch_to_device(module._on_before_batch_transfer(batch, dataloader_idx=0))

    @contextmanager
    def silent() -> Iterator[None]:
        counted = copy.deepcopy(progress.state_dict())
        silenced = (
            *((module, name, lambda *_, **__: None) for name in ("log", "log_dict")),
            (trainer, "callbacks", []),
            (trainer, "_loggers", [package.loggers.logger.DummyLogger() for _ in trainer.loggers]),
            (trainer, "profiler", package.profilers.PassThroughProfiler()),
            (trainer.fit_loop, "_should_accumulate", lambda: more_come),
        )
        try:
            with ExitStack() as stack:
                for owner, name, value in silenced:
                    stack.enter_context(replaced(owner, name, value))
                yield
        finally:
            progress.load_state_dict(counted)

    alike = [batches for batches in seen if len(batches) == accumulates]
    loader = trainer.train_dataloader
    return TrainerStep(
        *(run, alike, module, optimizer, loader if isinstance(loader, DataLoader) else None, silent()),
        prepared=prepared,
        trainer="lightning",
        unsettable=(),
        left=_steps_left(trainer),
    )


def _steps_left(trainer: Any) -> int | None:
    """Return the number of steps before the end of training; ``None`` if this is unknown."""
    planned = trainer.estimated_stepping_batches
    return int(planned) - trainer.global_step if 0 <= planned < math.inf else None
