"""Run steps: fetch a batch, run the body, and time both. Passes request steps by yielding turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from perfnb.errors import BatchesExhaustedError
from perfnb.step.data_waits import ExecutedStep, Intake
from perfnb.step.loaders import see_loaders

_END = object()


class SkippedStep(Exception):
    """Raised inside `Turn.around` if the loop's batches have run out and the step therefore does not take place."""


class Turn(NamedTuple):
    """A pass's request for the next step."""

    pass_name: str
    #: Returns the context that the step runs in, including its wait for data.
    around: Callable[[], AbstractContextManager[None]]
    #: Returns a span for the wait for the batch.
    data: Callable[[], AbstractContextManager[Any]]
    #: Is called with the batch.
    seen: Callable[[Any], None] | None
    #: Whether to run the step again on the last batch.
    again: bool


_Result = TypeVar("_Result")

#: A generator that runs passes. It yields turns, receives each executed step (or ``None`` if the step did not take
#: place after all), and returns a result.
Passes: TypeAlias = Generator[Turn, ExecutedStep | None, _Result]


class BatchSource:
    """An endless supply of batches. Iteration restarts when the batches run out.

    Parameters
    ----------
    batches : iterable, or callable returning one
        The batches, or a function that is called whenever iteration starts. The function is needed to restart iterators
        such as ``enumerate(loader)``.

    Attributes
    ----------
    made : object
        The current iterable, or ``None`` before the first batch and after `close`.
    starts, taken : int
        The number of times the iteration was started, and the total number of batches taken.
    """

    def __init__(self, batches: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self._batches = batches
        self._iterator: Iterator[Any] | None = None
        self._own = False
        self.starts = self.taken = 0
        self.made: Any = None

    def next(self) -> Any:
        """Return the next batch. If the batches have run out, start again."""
        __tracebackhide__ = True
        batch = _END if self._iterator is None else next(self._iterator, _END)
        if batch is _END:
            self._iterator = None  # a loader's workers must exit before new ones start
            made = self._batches
            if callable(made) and not isinstance(made, Iterable):
                made = made()
            if not any(hasattr(type(made), way) for way in ("__iter__", "__getitem__")):
                kind = type(made).__name__
                raise TypeError(f"batches must be an iterable or a callable that returns one, not {kind}.")
            self._iterator, self.made = iter(made), made
            self._own = self._iterator is not made
            self.starts += 1
            batch = next(self._iterator, _END)
        if batch is _END and self.taken == 0:
            raise BatchesExhaustedError("batches is empty: a step needs at least one.")
        if batch is _END:
            raise BatchesExhaustedError(
                f"The batches ran out after {self.taken} and cannot start again, because they are an iterator or a "
                "generator: pass a list, a loader, or a function that returns new ones."
            )
        self.taken += 1
        return batch

    @property
    def starts_again(self) -> bool:
        """Whether the batches can start again. This is unknown, and therefore false, before the first batch."""
        return self._own or callable(self._batches)

    def close(self) -> None:
        """Release the iterator and shut down the loader's workers, which an error's traceback would keep alive."""
        iterator, self._iterator, self.made = self._iterator, None, None
        shut_down = getattr(iterator, "_shutdown_workers", None)
        if shut_down is not None and self._own and not getattr(iterator, "_persistent_workers", True):
            shut_down()


def after_optimizer_steps(note: Callable[..., None], optimizer: Any = None) -> Callable[[], None]:
    """Call a function after each step of one or all torch optimizers, and return a function that undoes this."""
    register = register_optimizer_step_post_hook if optimizer is None else optimizer.register_step_post_hook
    remove: Callable[[], None] = register(note).remove
    return remove


def taking_batches(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step to raise a clear error if it is a model that does not accept a whole batch as its input.

    Raises
    ------
    TypeError
        If the model fails because it uses a list, tuple or mapping as a tensor. This replaces the model's own error.
    """
    if not isinstance(step, torch.nn.Module):
        return step

    def call(*batch: Any) -> Any:
        __tracebackhide__ = True
        try:
            return step(*batch)
        except (TypeError, AttributeError) as error:
            words = _not_a_tensor(step, batch, str(error))
            if words is None:
                raise
        raise TypeError(words)

    return call


def _not_a_tensor(model: torch.nn.Module, given: tuple[Any, ...], said: str) -> str | None:
    """Return an explanation of why a model failed on its batch, with a suggestion to pass something else.

    Return ``None`` for any other error.
    """
    batch = given[0] if given else None
    kind, by_name = type(batch).__name__, isinstance(batch, Mapping)
    about_batch = not said or f"not {kind}" in said or f"'{kind}' object" in said
    if not about_batch or not (by_name or isinstance(batch, (list, tuple))):
        return None
    return (
        f"A step is a function that receives the whole batch, here a {kind}, but {type(model).__name__} cannot use it "
        f"as input{f' ({said})' if said else ''}: instead of the model, pass lambda batch: "
        f"model({'**batch' if by_name else 'batch[0]'}), or, for training, a function that also computes the loss and "
        "calls backward()."
    )


class StepRunner:
    """Runs the user's steps, and passes batches to them if there are any.

    If a step itself requests batches from torch's data loaders, the time it waits for them is counted as well. An
    example is a cell that accumulates gradients over the batches of an iterator. If no other batches are passed to the
    step, these count as the step's batches.
    """

    def __init__(self, step: Callable[..., Any], source: BatchSource | None) -> None:
        self._step = taking_batches(step)
        self._source = source
        self._last: Any = _END
        self._intake = Intake()

    def drive(self, passes: Passes[_Result]) -> _Result:
        """Run a step for each turn that the passes yield, and return the result of the passes.

        If a step raises an exception, it is raised inside the passes, which remove everything they installed and may
        continue.
        """
        __tracebackhide__ = True
        failure: BaseException | None = None
        executed: ExecutedStep | None = None
        undo = see_loaders(dataloader, self._intake.take)
        try:
            while True:
                turn = passes.send(executed) if failure is None else passes.throw(failure)
                failure = None
                try:
                    with turn.around():
                        executed = self._run(turn)
                except BaseException as error:
                    failure = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except RuntimeError as error:
            if isinstance(failure, StopIteration) and error.__cause__ is failure:
                raise failure from None  # a generator cannot raise it
            raise
        finally:
            del failure
            undo()
            passes.close()

    def _run(self, turn: Turn) -> ExecutedStep:
        __tracebackhide__ = True
        intake = self._intake
        intake.begin(turn.seen, wait_ns=0)
        try:
            if self._source is None:
                self._step()
                return intake.end(turn.pass_name)
            intake.wait()
            with turn.data():
                again = turn.again and self._last is not _END
                self._last = self._last if again else self._source.next()  # released when the step has ended
            intake.get(self._last)
            self._step(self._last)
            executed = intake.end(turn.pass_name)
            self._last = _END
            return executed
        finally:
            intake.reset()
