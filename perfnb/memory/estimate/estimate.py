"""Provide `estimate_memory`, which estimates how much memory a step will need before it runs."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.step_output import StepOutput
from perfnb.errors import CaptureError
from perfnb.memory.estimate.view import estimate_document, step_words
from perfnb.memory.fits import options_to_fit
from perfnb.recording.schema import CATEGORIES

if TYPE_CHECKING:
    import torch
    from torch import nn

    from perfnb.memory.estimate.step_simulation import Simulation

#: If an estimate took longer than this many seconds, it is not repeated for other batch sizes unless the user asks.
_PATIENT_S = 5.0
#: The largest batch size that is tried.
_MOST = 2**40


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Documented):
    """The estimated memory of a step.

    Notebooks display the estimate. When it is first displayed, a few more batch sizes are estimated to find the largest
    batch that fits, unless an estimate takes more than 5 seconds.

    Attributes
    ----------
    model : str
        The model's class.
    device : str
        The device whose allocator is simulated.
    batch_size : int or None
        The number of samples in the batch, or ``None`` if they cannot be counted.
    training : bool
        Whether this is a training step.
    optimizer : str or None
        The optimizer's class.
    parameters, gradients, optimizer_state, activations, inputs, temporaries : int
        The maximum number of bytes in each category that are alive at the same time. Parameters include buffers.
    buffers : int
        The number of bytes in the parameters that belong to buffers.
    by_category : mapping of str to int
        The bytes in each category at the peak. They add up to `peak_bytes`.
    peak_bytes : int
        The maximum number of bytes that are alive at the same time, in a step other than the first.
    peak_phase : str
        The phase where the peak occurs.
    peak_op : str or None
        The operator whose allocation causes the peak.
    caveat : str or None
        A sentence about the limitations of the estimate.
    options : DataFrame
        Changes that would free memory at the peak: ``option``, ``frees_bytes``, ``basis`` (computed or estimated),
        ``detail``.
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
    options: pd.DataFrame = field(compare=False)
    _again: Callable[[int], MemoryEstimate] = field(compare=False)
    _took_s: float = field(compare=False)

    def largest_batch(self, bytes: int | float | None = None) -> int:
        """Return the largest batch whose step fits into a number of bytes, or 0 if not even one sample fits.

        Parameters
        ----------
        bytes : int or float, optional
            The available memory, for example ``8 * 2**30``. The default is the memory that is available to this process
            on this machine's device. On a GPU, this is the memory that is free or already reserved by torch. On the
            CPU, it is the installed memory or the container's limit.

        Raises
        ------
        CaptureError
            If memory does not depend on the batch size, or if the device's memory is unknown.
        """
        from perfnb.arguments import finite, shown

        if bytes is None:
            bytes = _capacity_of(self.device)
            if bytes is None:
                kind = self.device.partition(":")[0]
                raise CaptureError(
                    f"This machine's {kind} memory is unknown: pass the number of bytes, such as 8 * 2**30."
                )
        room = math.inf if bytes == math.inf else finite(bytes)
        if room is None or room < 0:
            raise ValueError(f"bytes must be a non-negative number, not {shown(bytes)}.")
        if self.batch_size is None:
            raise CaptureError(
                "The step does not have a batch whose size could be changed: pass a batch, and write a step that "
                "accepts it."
            )
        found = _largest_fitting(self._need, bytes, self.batch_size)
        if found is None:
            raise CaptureError(
                f"Every batch fits into {fmt.size(bytes)}: this step's memory does not depend on the batch."
            )
        return found

    def with_batch_size(self, batch_size: int) -> MemoryEstimate:
        """Return an estimate for a different number of samples."""
        return self if batch_size == self.batch_size else self._again(batch_size)

    @cached_property
    def _capacity(self) -> int | None:
        return _capacity_of(self.device)

    @cached_property
    def _largest(self) -> int | None:
        """The largest batch that fits on this machine, if it can be determined quickly enough."""
        if self._took_s > _PATIENT_S:
            return None
        with suppress(Exception), redirect_stdout(io.StringIO()):
            return self.largest_batch()
        return None

    def _need(self, batch_size: int) -> float:
        try:
            return self.with_batch_size(batch_size).peak_bytes
        except OverflowError:
            return float("inf")
        except CaptureError:
            raise
        except Exception:
            # Some layers, such as batch normalization, raise an error for a batch of one.
            if self.batch_size is not None and batch_size < self.batch_size:
                return float("inf")
            raise

    def _line(self) -> str:
        peak = f"peak {fmt.size(self.peak_bytes)} in {escape.plain(self.peak_phase, 20)}"
        return f"{escape.plain(self.model, 40)}: {peak}, {escape.plain(step_words(self))}"

    def _document(self) -> Document:
        return estimate_document(self, self._capacity, self._largest)


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
    """Estimate how much memory a step needs, without running it.

    Nothing is computed, and the estimated memory is not allocated.

    Pass either a model or the step that you use for training. For a model, the step consists of ``zero_grad``, forward,
    loss, backward and the optimizer's step. It is not the first step, so the optimizer's state already exists. The
    model and the optimizer may be on any device, including ``meta``, and are not changed.

    ``estimate_memory(step=step, batch=batch)`` simulates your own step and everything that it keeps alive. Its Python
    code is executed twice for each batch size, on fake tensors that have a shape but no data. If the step accumulates
    gradients over several calls, it is called until each of its optimizers has been called twice, and the peak is the
    maximum over the calls from the first to the second update. For each update, the step is called at most 16 times,
    and `caveat` names any optimizer that was never called. Afterwards, perfnb restores parameters, buffers, gradients,
    optimizers, schedulers, random number generators, and the variables, lists and dicts that the step uses. It cannot
    undo changes to files or data that the step sends elsewhere.

    The estimate only covers tensors. The process itself, the CUDA context and library workspaces need additional
    memory.

    Parameters
    ----------
    model : Module, optional
        The model, which is required if no `step` is given.
    batch : tensor, tuple, mapping or DataLoader
        The batch. A tensor is used as the model's input. The last element of a tuple is the target, and the other
        elements are the model's inputs. A mapping contains the model's keyword arguments. A small batch is sufficient,
        even on the device ``meta``. If you pass a DataLoader, perfnb uses its first batch. If a `step` is given, it is
        called with the unmodified batch.
    optimizer : str, Optimizer, callable, optional
        A name from ``torch.optim`` (such as ``"adam"``), an optimizer for this model, or a class or function that
        creates an optimizer from parameters.
    step : callable, optional
        Your own step, which is called as ``step(batch)``, or as ``step()`` without a batch, like in `profile_step`. It
        uses its own model, loss, optimizer and autocast, which perfnb detects when they are called.
    loss : callable, optional
        A function that is called as ``loss(output, target)``, as ``loss(output, batch)`` if the batch is a mapping, or
        as ``loss(output)`` if the batch is a single tensor. The default is ``output.loss`` if it exists, and the sum of
        the outputs otherwise. With ``output.loss``, the output stays alive until the next step replaces it, as in a
        training loop. If you pass a `loss`, the output is not kept alive, as in ``loss(model(x), y).backward()``. If
        your loop keeps the output, pass `step` instead.
    training : bool
        Whether to simulate training. If ``False``, only the forward pass is simulated, without gradients.
    batch_size : int, optional
        The number of samples in the batch. The default is the number of samples in `batch`.
    device : str or device, optional
        The device to simulate, ``cpu`` or ``cuda``. The default is the device of the parameters.
    autocast : dtype, optional
        The dtype that ``torch.autocast`` uses for forward and loss. By default, autocast is disabled.

    Returns
    -------
    MemoryEstimate

    Raises
    ------
    TypeError
        If `step` is given together with an argument that it would replace, or if an argument has the wrong type.
    CaptureError
        If the step depends on the values in a tensor, or uses an op that cannot be simulated.
    Exception
        Any exception raised by the model, the loss or the step.
    """
    import torch

    from perfnb.arguments import require_flag, shown
    from perfnb.memory.estimate.batches import one_batch, samples_in
    from perfnb.memory.estimate.model_step import ModelStep, chosen_optimizer
    from perfnb.memory.estimate.step_simulation import simulate_step
    from perfnb.step.checks import require_loss, require_steps

    __tracebackhide__ = True
    modelled: Any = model
    given: Any = autocast
    require_flag("training", training)
    if autocast is not None and not isinstance(given, torch.dtype):
        raise TypeError(f"autocast must be a dtype such as torch.bfloat16, not {shown(given)}.")
    if step is not None:
        own = {"model": model, "optimizer": optimizer, "loss": loss, "autocast": autocast}
        for name in [name for name, value in own.items() if value is not None]:
            raise TypeError(f"A step uses its own {name}: omit {name}, or pass the model without a step.")
        require_steps({"step": step}, None if batch is None else [batch], "estimate_memory(step=step, batch=batch)")
    elif not hasattr(modelled, "named_parameters"):
        advice = "; pass a step as step=" if callable(modelled) else ""
        raise TypeError(f"model must be a torch module, not {type(model).__name__}{advice}.")
    if step is None and batch is None:
        raise TypeError("The batch is missing: call estimate_memory(model, batch).")
    batch = one_batch(batch)
    if step is None and (training or not callable(loss)):  # inference does not call it
        require_loss(loss, batch)
    samples = samples_in(batch)
    if batch_size is not None and samples is None:
        raise ValueError("batch_size was given, but no tensor in the batch has a dimension for the samples.")
    chosen = chosen_optimizer(optimizer) if training else None

    def model_step() -> Callable[[Any], None]:
        run = ModelStep(modelled, loss, training=training, optimizer=chosen, autocast=autocast)

        def step(batch: Any) -> None:
            __tracebackhide__ = True
            if modelled.training != training:
                modelled.train(training)
            run(batch)

        return step

    @cache
    def estimate(size: int | None) -> MemoryEstimate:
        __tracebackhide__ = True
        began = time.perf_counter()
        with StepOutput():
            simulation, place = simulate_step(step or model_step(), batch, samples, size, device, model)
        return _estimated(simulation, place, samples if size is None else size, estimate, time.perf_counter() - began)

    return estimate(batch_size)


def _estimated(
    found: Simulation, place: torch.device, samples: int | None, again: Callable[[int], MemoryEstimate], took_s: float
) -> MemoryEstimate:
    updating = found.by_category["temporaries"] if found.peak_phase == "optimizer" else 0
    known = {name: value for name, value in vars(found).items() if name not in ("most", "single", "half")}
    most: dict[str, Any] = {name: found.most[name] for name in CATEGORIES if name != "other"}
    return MemoryEstimate(
        **known,
        **most,
        device=str(place),
        batch_size=samples,
        peak_bytes=sum(found.by_category.values()),
        options=options_to_fit(
            found.by_category,
            of_optimizer=updating,
            samples=samples,
            single=found.single,
            half=found.half or not found.single,
        ),
        _again=again,
        _took_s=took_s,
    )


def _capacity_of(device: str) -> int | None:
    """Return the amount of memory on a device that is currently available to this process."""
    from perfnb.step.device import capacity_bytes

    return capacity_bytes(device.partition(":")[0])


def _largest_fitting(need: Callable[[int], float], limit: float, start: int) -> int | None:
    """Return the largest batch size whose memory does not exceed a limit, starting the search at a given size.

    Memory usage is nearly linear in the batch size and never decreases, so only a few sizes are tried. The result is 0
    if not even one sample fits, and ``None`` if every batch fits.
    """
    fits, too_large, size, known = 0, _MOST + 1, start, dict[int, float]()
    while too_large - fits > 1:
        known[size] = need(size)
        fits, too_large = (size, too_large) if known[size] <= limit else (fits, size)
        size = _next_size(known, limit, fits, too_large)
    return None if fits == _MOST else fits


def _next_size(known: dict[int, float], limit: float, fits: int, too_large: int) -> int:
    """Return the size at which the line through the two largest known sizes meets the limit.

    If the line is not informative, bisect the range or double the size instead.
    """
    *_, first, last = [0, 0, *sorted(size for size, bytes_ in known.items() if bytes_ < math.inf)]
    slope = (known[last] - known[first]) / (last - first) if first else 0.0
    if slope > 0 and limit < math.inf and len(known) % 3:
        meets = int(last + (limit - known[last]) // slope)
        meets += meets in known  # the search ends if the next larger size does not fit
        if fits < meets < too_large:
            return meets
    return (fits + too_large) // 2 if too_large <= _MOST else min(2 * fits, _MOST)
