"""`estimate_memory`: what a step will take, before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfnb.draw.shown import Shown
from perfnb.draw.step_output import StepOutput
from perfnb.errors import CaptureError
from perfnb.memory.estimate.largest_batch import largest_fitting
from perfnb.memory.estimate.view import estimate_html, estimate_line, estimate_text
from perfnb.recording.schema import CATEGORIES

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Shown):
    """The memory of one step, foretold. Shows itself in a notebook.

    Attributes
    ----------
    model : str
        Class of the model.
    device : str
        Whose allocator this is for.
    batch_size : int or None
        Samples in the batch; ``None`` where the batch has none that can be counted.
    training : bool
        Whether this is a training step.
    optimizer : str or None
        Class of the optimizer.
    parameters, gradients, optimizer_state, activations, inputs, temporaries : int
        The most bytes of each category that are alive at once. Parameters include buffers.
    buffers : int
        Bytes of buffers among the parameters.
    by_category : mapping of str to int
        Bytes of each category at the step's peak; they add up to `peak_bytes`.
    peak_bytes : int
        The most bytes alive at once, in a step after the first.
    peak_phase : str
        The phase in which that is.
    peak_op : str or None
        The operator that makes the allocation with which the peak is reached.
    caveat : str or None
        What the estimate cannot know, in a sentence.
    """

    model: str
    device: str
    batch_size: int | None
    training: bool
    optimizer: str | None
    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int
    inputs: int
    temporaries: int
    by_category: Mapping[str, int]
    peak_bytes: int
    peak_phase: str
    peak_op: str | None
    caveat: str | None
    _again: Callable[[int], MemoryEstimate] = field(compare=False)

    def largest_batch(self, bytes: int | float) -> int:
        """The largest batch whose step fits into so many bytes; 0 where not even one sample does.

        Raises
        ------
        CaptureError
            Where the need of memory does not depend on the batch.
        """
        from perfnb.arguments import finite, shown

        room = math.inf if bytes == math.inf else finite(bytes)
        if room is None or room < 0:
            raise ValueError(f"bytes must be a number that is not negative, not {shown(bytes)}.")
        if self.batch_size is None:
            raise CaptureError(
                "there is no batch whose first dimension could be made larger or smaller: give one, and let your step "
                "take it."
            )
        found = largest_fitting(self._need, bytes, self.batch_size)
        if found is None:
            raise CaptureError(
                f"every batch fits into {bytes:,.0f} bytes: the memory of this step does not depend on the batch."
            )
        return found

    def with_batch_size(self, batch_size: int) -> MemoryEstimate:
        """The estimate for another number of samples."""
        return self if batch_size == self.batch_size else self._again(batch_size)

    def _need(self, batch_size: int) -> float:
        try:
            return self.with_batch_size(batch_size).peak_bytes
        except OverflowError:
            return float("inf")
        except CaptureError:
            raise
        except Exception:
            # Some layers refuse a batch of one, such as a normalisation over the batch.
            if self.batch_size is not None and batch_size < self.batch_size:
                return float("inf")
            raise

    def _text(self) -> str:
        return estimate_text(self)

    def __repr__(self) -> str:
        return f"<perfnb.MemoryEstimate {estimate_line(self)}>"

    def _html(self) -> str:
        return estimate_html(self)


def estimate_memory(
    model: nn.Module | None = None,
    batch: Any = None,
    optimizer: str | torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    *,
    step: Callable[..., Any] | None = None,
    loss: Callable[..., Any] | None = None,
    training: bool = True,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    autocast: torch.dtype | None = None,
) -> MemoryEstimate:
    """Foretell the memory of one step without running it: nothing is computed, nothing of its size allocated.

    Give either a model, or the step that you train with. Of a model the step is ``zero_grad``, forward, loss, backward
    and the optimizer's step, and not the first one, so that the optimizer's state is there. The model and the optimizer
    may be on any device, ``meta`` too, and stay as they are.

    ``estimate_memory(step=step, batch=batch)`` simulates a step of your own, with all that it keeps alive. Its Python
    really runs, twice for each size of batch, on fake tensors, which have a shape and no data. If it accumulates
    gradients over several calls, it runs until its optimizers have stepped twice, and the peak is the highest of the
    calls up to the second time. Each time it runs at most 16 times, and `caveat` tells which optimizer never stepped.
    Afterwards parameters, buffers, gradients, optimizers, schedulers, random numbers, and the variables, lists and
    dicts that it uses are as they were. What it writes to files or sends to other programs stays written.

    Parameters
    ----------
    model : Module, optional
        Required without a `step`.
    batch : tensor, tuple, mapping or DataLoader
        A tensor is the model's input. Of a tuple the last is the target and the rest are the model's inputs. A mapping
        holds the model's keyword arguments. A small batch will do, also one on the device ``meta``. Of a DataLoader the
        first batch is taken. A `step` gets the batch whatever it is.
    optimizer : str, Optimizer, callable, optional
        A name from ``torch.optim`` (``"adam"``), an optimizer of this model, or a class or function that makes one from
        parameters.
    step : callable, optional
        Your own step: ``step(batch)``, or ``step()`` without a batch, as for `profile_step`. It brings its model, loss,
        optimizer and autocast, which are found as the profiler finds them: as they are called.
    loss : callable, optional
        ``loss(output, target)``; after a mapping ``loss(output, batch)``, after a lone tensor ``loss(output)``. By
        default ``output.loss`` where there is one, and then the output is held until the next step has its own, as a
        training loop does; else the sum of the outputs. With a `loss` nothing holds the output, as in
        ``loss(model(x), y).backward()``: where yours does, pass `step`.
    training : bool
        ``False``: only forward, without gradients.
    batch_size : int, optional
        How many samples to estimate for; by default as many as `batch` holds.
    device : str or device, optional
        ``cpu`` or ``cuda``; by default where the parameters are.
    autocast : dtype, optional
        Run forward and loss under ``torch.autocast`` with this type.

    Returns
    -------
    MemoryEstimate

    Raises
    ------
    TypeError
        Where `step` and what it brings itself are given, or one thing stands in the place of another.
    CaptureError
        Where the step depends on the numbers in a tensor, or uses an operator that cannot be simulated.
    Exception
        Whatever the model, the loss or the step raise.
    """
    import torch

    from perfnb.arguments import require_flag, shown
    from perfnb.memory.estimate.allocator import device_of
    from perfnb.memory.estimate.batches import one_batch, resized, samples_in
    from perfnb.memory.estimate.model_simulation import StepPlan, simulate
    from perfnb.memory.estimate.step_simulation import OwnStep, simulate_step
    from perfnb.step.given import require_loss, require_step

    __tracebackhide__ = True
    modelled: Any = model
    given: Any = autocast
    require_flag("training", training)
    if autocast is not None and not isinstance(given, torch.dtype):
        raise TypeError(f"autocast must be a type such as torch.bfloat16, not {shown(given)}.")
    if step is not None:
        own = {"model": model, "optimizer": optimizer, "loss": loss, "autocast": autocast}
        for name in [name for name, value in own.items() if value is not None]:
            raise TypeError(f"a step brings its own {name}: leave out {name}, or give the model and no step.")
        require_step(step, batch is not None, "estimate_memory(step=step, batch=batch)")
    elif not hasattr(modelled, "named_parameters"):
        advice = ": give a step as step=" if callable(modelled) else ""
        raise TypeError(f"model must be a torch module, not {type(model).__name__}{advice}.")
    if step is None and batch is None:
        raise TypeError("there is no batch: estimate_memory(model, batch).")
    batch = one_batch(batch)
    if step is None and (training or not callable(loss)):  # only forward, and it is not called
        require_loss(loss, batch)
    samples = samples_in(batch)
    if batch_size is not None and samples is None:
        raise ValueError("batch_size was given, but the batch holds no tensor whose first dimension it could be.")

    def estimate(size: int | None) -> MemoryEstimate:
        __tracebackhide__ = True
        if step is not None:
            with StepOutput():
                simulation, place = simulate_step(OwnStep(step, batch, samples, size, device))
        else:
            scaled = batch if size is None or samples is None else resized(batch, samples, size)
            place = device_of(modelled, device)
            simulation = simulate(StepPlan(modelled, scaled, batch, optimizer, loss, training, place, autocast))
        return _read(simulation, place, samples if size is None else size, estimate)

    return estimate(batch_size)


def _read(simulation: Any, place: Any, samples: int | None, again: Callable[[int], MemoryEstimate]) -> MemoryEstimate:
    now = dict.fromkeys(CATEGORIES, 0) | simulation.resident
    most, peak, phase, op = dict(now), dict(now), "forward", None
    total = highest = sum(now.values())
    for change in simulation.changes:
        kind = simulation.category[change.allocation]
        now[kind] += change.size
        total += change.size
        most[kind] = max(most[kind], now[kind])
        if total > highest:
            highest, peak, phase, op = total, dict(now), change.phase, change.op or None
    return MemoryEstimate(
        model=simulation.model,
        device=str(place),
        batch_size=samples,
        training=simulation.training,
        optimizer=simulation.optimizer,
        buffers=simulation.buffers,
        by_category=peak,
        peak_bytes=highest,
        peak_phase=phase,
        peak_op=op,
        caveat=_caveat(simulation.never_stepped),
        _again=again,
        **{name: most[name] for name in CATEGORIES if name != "other"},
    )


def _caveat(never_stepped: str | None) -> str | None:
    if never_stepped is None:
        return None
    from perfnb.memory.estimate.step_simulation import MOST_CALLS

    return (
        f"{never_stepped} did not step in any of {MOST_CALLS} simulated calls: what its step takes, and state that it "
        "does not have yet, is missing here."
    )
