"""Run a step on fake tensors.

This module provides the tensor mode, the fake tensors that replace a model's own tensors, and explanations of why a
step cannot run on them. Everything that is replaced is restored afterwards.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from perfnb.errors import CaptureError
from perfnb.memory.estimate.batches import Copies, with_tensors
from perfnb.step.device import random_state, set_random_state
from perfnb.step.namespace import is_empty, is_installed, names_in
from perfnb.step.tracer import room_to_nest

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
_UNSUPPORTED = (UnsupportedOperatorException, UnsupportedFakeTensorException)
#: Messages of the plain RuntimeErrors that torch raises when code reads values from a fake tensor.
_ASKS_FOR_NUMBERS = ("data pointer", ".numpy() is not supported", ".tolist() is not supported", "data-dependent")
#: Code that reads a single value.
_ASKS_FOR_ONE = ".item(), float() or an if"
_TOO_LARGE = ("Storage size calculation overflowed", "overflow", "numel: integer multiplication")
#: The nesting depth to which containers in variables and attributes are searched for tensors.
_NESTING = 6

_ABSENT = object()


@contextmanager
def pretending() -> Iterator[None]:
    """Make operators create fake tensors inside this context, and restore random number generators when it ends."""
    log, layers = logging.getLogger("torch._subclasses.fake_tensor"), torch.backends.mha
    with ExitStack() as stack:
        stack.enter_context(room_to_nest())
        stack.callback(set_random_state, random_state())
        # The exception is sufficient, so torch does not need to log errors in fake kernels.
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        # The fake kernel of a fused transformer layer allocates only the result.
        stack.callback(layers.set_fastpath_enabled, layers.get_fastpath_enabled())
        layers.set_fastpath_enabled(False)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


@contextmanager
def explained(model: nn.Module | None) -> Iterator[None]:
    """Explain in one sentence why a step cannot be simulated. Errors caused by the user's own code are not changed.

    Without a `model`, the explanation contains a line of user code as the location.
    """
    __tracebackhide__ = True
    try:
        yield
    except _DATA_DEPENDENT as error:
        asked = str(getattr(error, "func", "")).replace("aten.", "", 1) or "an operator"
        asked = _ASKS_FOR_ONE if asked.startswith("_local_scalar_dense") else asked
        raise CaptureError(_needs_numbers(asked, _where(error.__traceback__, model))) from None
    except _UNSUPPORTED as error:
        op = getattr(error, "func", error)
        raise CaptureError(
            f"{_where(error.__traceback__, model)} uses {op}, which has no fake kernel, so its memory cannot be "
            "estimated: register one with torch.library.register_fake, or estimate without this layer."
        ) from None
    except RuntimeError as error:
        text = str(error)
        if any(words in text for words in _TOO_LARGE):
            raise OverflowError("A tensor in this batch would contain more bytes than can be counted.") from None
        if any(words in text for words in _ASKS_FOR_NUMBERS):
            raise CaptureError(_needs_numbers("its code", _where(error.__traceback__, model))) from None
        raise


def _needs_numbers(what: str, where: str) -> str:
    return (
        f"Memory cannot be estimated: {what} in {where} depends on the values in a tensor, but an estimate does not "
        "compute values. Estimate the step without that part, or measure a small batch with profile_step."
    )


def _where(traceback: TracebackType | None, model: nn.Module | None) -> str:
    """Return the innermost module of the model that was running when an error was raised.

    Without a model, return the innermost line of user code and, if the line called a library module, that module.
    """
    names = {} if model is None else {id(module): name for name, module in model.named_modules()}
    where, inside = "the step" if model is None else type(model).__name__, ""
    while traceback is not None:
        code, running = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
        if id(running) in names:
            kind, name = type(running).__name__, names[id(running)]
            where = f"{name} ({kind})" if name else kind
        elif model is None and not is_installed(code.co_filename):
            where, inside = f"line {traceback.tb_lineno} of {code.co_name}", ""
        elif model is None and isinstance(running, nn.Module):
            inside = f"{type(running).__name__}, which is called in "
        traceback = traceback.tb_next
    return inside + where


class StandIns:
    """Creates a fake tensor for each real tensor. If tensors share memory, their fake tensors share memory as well.

    This class must be used within a fake tensor mode.

    Parameters
    ----------
    device : torch.device
        The device that the fake tensors pretend to be on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # keyed by the id of the real tensor, which is kept alive
        self._copies: Copies = {}
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}

    def all(self) -> list[Tensor]:
        """Return all stand-ins created so far."""
        return [fake for _, fake in self._made.values()]

    def of(self, real: Tensor) -> Tensor:
        """Return the stand-in for `real`.

        If `real` is already a fake tensor or cannot have a stand-in, return it unchanged.
        """
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._made:
            try:
                layout = real.untyped_storage(), real.stride(), real.storage_offset()
            except (NotImplementedError, RuntimeError, ValueError):  # sparse, or uninitialized in a lazy module
                return real
            self._made[id(real)] = real, self._make(real, *layout)
        return self._made[id(real)][1]

    def within(self, value: Any) -> Any:
        """Return `value` with its tensors replaced with stand-ins.

        Plain containers are copied once, and other objects are kept.
        """
        return with_tensors(value, self.of, _NESTING, self._copies)

    def _make(self, real: Tensor, storage: torch.UntypedStorage, stride: tuple[int, ...], offset: Any) -> Tensor:
        # Tensors on "meta" have no address, but their storage can be identified.
        key = storage._cdata, real.dtype
        with torch.no_grad():
            if key not in self._memory:
                length = storage.nbytes() // real.element_size()
                self._memory[key] = torch.empty(length, dtype=real.dtype, device=self._device)
            fake = self._memory[key].as_strided(real.shape, stride, offset)
        if isinstance(real, nn.Parameter):
            return nn.Parameter(fake, requires_grad=real.requires_grad)
        return fake.detach().requires_grad_(real.requires_grad) if real.requires_grad else fake


@contextmanager
def replaced(modules: Iterable[nn.Module], stand_ins: StandIns) -> Iterator[None]:
    """Make modules and their submodules use stand-ins inside this context.

    Attributes that are set on them in the meantime are restored at the end. Scripted modules are skipped, because their
    tensors are stored outside Python. A step that calls a scripted module is rejected.
    """
    inside = {id(m): m for module in modules for m in module.modules()}.values()
    with ExitStack() as stack:
        for module in inside:
            if not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(_stood_in(vars(module), None, stand_ins))
        yield


@contextmanager
def stepping(optimizer: Any, stand_ins: StandIns) -> Iterator[None]:
    """Make the optimizer update stand-ins inside this context."""
    with _stood_in(vars(optimizer), None, stand_ins):
        of_parameters = [
            (stand_ins.of(key) if isinstance(key, Tensor) else key, kept) for key, kept in optimizer.state.items()
        ]
        optimizer.state = defaultdict(dict, of_parameters)
        yield


@contextmanager
def variables_replaced(values: Iterable[Any], stand_ins: StandIns) -> Iterator[None]:
    """Make variables of functions (globals and closures) and attributes of objects refer to stand-ins in this context.

    Plain containers in variables are copied, so items that a step appends to a list do not remain afterwards.
    """
    with ExitStack() as stack:
        for value in values:
            if type(value) is FunctionType:
                stack.enter_context(_stood_in(value.__globals__, names_in(value.__code__), stand_ins))
                for cell in value.__closure__ or ():
                    stack.callback(_refill, cell, *(() if is_empty(cell) else (cell.cell_contents,)))
                    if not is_empty(cell):
                        cell.cell_contents = stand_ins.within(cell.cell_contents)
            else:
                stack.enter_context(_stood_in(vars(value), None, stand_ins))
        yield


@contextmanager
def _stood_in(space: dict[str, Any], names: Iterable[str] | None, stand_ins: StandIns) -> Iterator[None]:
    """Make some or all names in a namespace refer to stand-ins inside this context."""
    kept = {name: space[name] for name in (list(space) if names is None else names) if name in space}
    try:
        for name, value in kept.items():
            faked = stand_ins.within(value)
            if faked is not value:
                space[name] = faked
        yield
    finally:
        for name in list(space) if names is None else names:
            if name not in kept:
                space.pop(name, None)
        for name, value in kept.items():
            if space.get(name, _ABSENT) is not value:
                space[name] = value


def _refill(cell: CellType, *contents: Any) -> None:
    if contents:
        (cell.cell_contents,) = contents
    elif not is_empty(cell):
        del cell.cell_contents
