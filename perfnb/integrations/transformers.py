"""`ProfileCallback` for Hugging Face's ``Trainer`` and its subclasses."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from perfnb.bench.restored import kept_attributes, rebuilt
from perfnb.errors import PerfnbError
from perfnb.integrations.patches import replaced
from perfnb.integrations.trainer_levers import TrainerStep
from perfnb.integrations.trainer_profiler import TrainerProfiler

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise PerfnbError(
        "perfnb.integrations.transformers needs transformers, which is not installed here: pip install transformers."
    ) from None

#: The method that runs the training itself.
_LOOP = "_inner_training_loop"
#: The objects and names of methods that may fail. They are guarded if the callback was added too late to guard the
#: whole training.
_FAILING = {
    "": ("training_step", "get_batch_samples"),
    "callback_handler": ("call_event",),
    "accelerator": ("clip_grad_norm_",),
    "optimizer": ("step",),
    "lr_scheduler": ("step",),
}


class ProfileCallback(TrainerProfiler, TrainerCallback):
    """Profile a few steps in the middle of ``Trainer.train``, each of which runs only once.

    A step is one optimizer step with all batches whose gradients it accumulates, from the request for its first batch
    to the request for the next step's first batch. Evaluation and checkpoints are not part of any step.
    """

    _guarded: weakref.ref[Trainer] | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = _trainer()
        if trainer is not None and not self._guards(trainer):
            setattr(trainer, _LOOP, self._removed_on_failure(getattr(trainer, _LOOP)))
            self._guarded = weakref.ref(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._remove()
        model, optimizer, loader = (kwargs.get(name) for name in ("model", "optimizer", "train_dataloader"))
        trainer = _trainer()
        self._prepare(
            name=type(model).__name__,
            trainer="transformers",
            namespace=lambda: {
                "model": getattr(trainer, "model_wrapped", model),
                "optimizer": getattr(optimizer, "optimizer", optimizer),  # the object that accelerate wrapped
            },
            loader=loader,
            left=lambda: _left(args, state, loader),
        )
        if trainer is not None:
            self._install(trainer)
        else:
            self._refuse_levers("this callback was not called by a transformers Trainer")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.pause()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            self._finish()
        finally:
            self._remove()

    def _install(self, trainer: Any) -> None:
        steps, batches_of = self._steps, trainer.get_batch_samples
        self._step = lambda: _step(trainer, batches_of, list(self._seen))  # type: ignore[method-assign]

        @functools.wraps(batches_of)
        def get_batch_samples(iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
            fetched = batches_of(_Waited(iterator, self), *args, **kwargs)
            for batch in fetched[0]:
                steps.get(batch)
            self._has(rebuilt(fetched[0]))  # a step may remove values from them
            return fetched

        install = self._installed.enter_context
        install(replaced(trainer, "get_batch_samples", get_batch_samples))
        for name, first in (("evaluate", steps.validate), ("_save_checkpoint", steps.pause)):
            install(replaced(trainer, name, _after(first, getattr(trainer, name))))
        if self._guards(trainer):
            return
        for where, names in _FAILING.items():
            owner = getattr(trainer, where, None) if where else trainer
            for name in names:
                if callable(getattr(owner, name, None)):
                    install(replaced(owner, name, self._removed_on_failure(getattr(owner, name))))

    def _guards(self, trainer: Trainer) -> bool:
        return self._guarded is not None and self._guarded() is trainer

    def _removed_on_failure(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            try:
                return function(*args, **kwargs)
            except BaseException:
                self._remove()
                raise

        return guarded


class _Waited:
    """An iterator over batches whose waits are counted as part of the steps."""

    def __init__(self, batches: Iterator[Any], callback: ProfileCallback) -> None:
        self._batches, self._callback = batches, callback

    def __iter__(self) -> _Waited:
        return self

    def __next__(self) -> Any:
        self._callback._ask()
        try:
            return next(self._batches)
        finally:
            self._callback._steps.get()


def _after(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return function(*args, **kwargs)

    return both


def _trainer() -> Any:
    """Return the trainer that sent this event, which events do not include; ``None`` for other callers."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), Trainer):
            return owner
        frame = frame.f_back
    return None


def _step(trainer: Any, batches_of: Callable[..., Any], seen: Sequence[Sequence[Any]]) -> TrainerStep:
    """Return the step of the Trainer's loop as a function.

    `batches_of` is the Trainer's own `get_batch_samples`.
    """
    model, optimizer, scheduler = trainer.model_wrapped, trainer.optimizer, trainer.lr_scheduler
    accelerator, args, state = trainer.accelerator, trainer.args, trainer.accelerator.gradient_state
    scaler = getattr(accelerator, "scaler", None)  # part of the step, and therefore restored

    def run(batches: Sequence[Any]) -> Any:
        samples, items = batches_of(iter(rebuilt(batches)), len(batches), args.device)
        losses = []
        for number, batch in enumerate(samples, start=1):
            state._set_sync_gradients(number == len(samples))
            with accelerator.no_sync(model=model) if number < len(samples) else nullcontext():
                losses.append(trainer.training_step(model, batch, items))
        if args.max_grad_norm is not None and args.max_grad_norm > 0:
            accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        skipped = scaler is not None and accelerator.optimizer_step_was_skipped
        if not skipped and not isinstance(scheduler, ReduceLROnPlateau):  # which is stepped by evaluations
            scheduler.step()
        model.zero_grad()
        return sum(losses)

    def no_event(_event: str, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
        return control

    handler = trainer.callback_handler
    alike = [batches for batches in seen if len(batches) == len(seen[-1])]

    @contextmanager
    def silent() -> Iterator[None]:
        before = state.sync_gradients, trainer.current_gradient_accumulation_steps
        try:
            with (
                kept_attributes(trainer),
                replaced(trainer, "log", lambda *_, **__: None),
                replaced(handler, "call_event", no_event),
            ):
                trainer.current_gradient_accumulation_steps = len(alike[0]) if alike else 1
                yield
        finally:
            state._set_sync_gradients(before[0])
            trainer.current_gradient_accumulation_steps = before[1]

    given = handler.train_dataloader
    loader = getattr(given, "base_dataloader", given)  # the object that accelerate wrapped
    own = getattr(optimizer, "optimizer", optimizer)
    return TrainerStep(
        *(run, alike, model, own, loader if isinstance(loader, DataLoader) else None, silent()),
        prepared=lambda batch: batch,
        trainer="transformers",
        unsettable=() if type(own) is torch.optim.AdamW else ("fused_optimizer",),
        left=trainer.state.max_steps - trainer.state.global_step,
    )


def _left(args: Any, state: Any, loader: Any) -> int | None:
    """Return the number of steps before the next evaluation or the end of training, if this is known."""
    strategy = getattr(args.eval_strategy, "value", args.eval_strategy)
    ahead: list[int] = [state.max_steps - state.global_step]
    if strategy == "steps" and state.eval_steps:
        ahead.append(state.eval_steps - state.global_step % state.eval_steps)
    elif strategy == "epoch" and hasattr(loader, "__len__"):
        steps = math.ceil(len(loader) / args.gradient_accumulation_steps)
        ahead.append(steps - state.global_step % steps)
    return min(ahead)
