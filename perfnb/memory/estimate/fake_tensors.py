"""Run a step on fake tensors.

This module has the tensor mode, fake tensors that replace a model's own tensors, and the reasons why a step cannot run
on them. Everything that is replaced is put back, so that nothing has changed afterwards.
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
#: Messages of torch's plain RuntimeErrors when code reads values from a fake tensor.
_ASKS_FOR_NUMBERS = ("data pointer", ".numpy() is not supported", ".tolist() is not supported", "data-dependent")
#: Code that reads a single value.
_ASKS_FOR_ONE = ".item(), float() or an if"
_TOO_LARGE = ("Storage size calculation overflowed", "overflow", "numel: integer multiplication")
#: Nesting depth to which containers in variables and attributes are searched for tensors.
_NESTING = 6

_ABSENT = object()


@contextmanager
def pretending() -> Iterator[None]:
    """Make operators create fake tensors in this context. Random number generators are restored when it ends."""
    log, layers = logging.getLogger("torch._subclasses.fake_tensor"), torch.backends.mha
    with ExitStack() as stack:
        stack.enter_context(room_to_nest())
        stack.callback(set_random_state, random_state())
        # The exception is enough: torch need not log errors of fake kernels too.
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        # The fake kernel of a fused transformer layer shows only its result.
        stack.callback(layers.set_fastpath_enabled, layers.get_fastpath_enabled())
        layers.set_fastpath_enabled(False)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


@contextmanager
def explained(model: nn.Module | None) -> Iterator[None]:
    """Explain in one sentence why a step cannot be simulated. Any other error was caused by the user's own code.

    Without a `model`, the location is given as a line of user code.
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
            raise OverflowError("A tensor in this batch would have more bytes than can be counted.") from None
        if any(words in text for words in _ASKS_FOR_NUMBERS):
            raise CaptureError(_needs_numbers("its code", _where(error.__traceback__, model))) from None
        raise


def _needs_numbers(what: str, where: str) -> str:
    return (
        f"Memory cannot be estimated: {what} in {where} depends on the values in a tensor, which an estimate does not "
        "compute; estimate without that part, or measure a small batch with profile_step."
    )


def _where(traceback: TracebackType | None, model: nn.Module | None) -> str:
    """Return the model's innermost module that was running when an error was raised.

    Without a model, return the innermost line of user code, and the library module that was running in it, if any.
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
    """Makes one fake tensor for each real tensor. Tensors that share memory get fake tensors that share memory.

    It must be used within a fake tensor mode.

    Parameters
    ----------
    device : torch.device
        The device on which the fake tensors pretend to be.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by the real tensor's id, kept alive here
        self._copies: Copies = {}
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}

    def all(self) -> list[Tensor]:
        """Return all stand-ins made so far."""
        return [fake for _, fake in self._made.values()]

    def of(self, real: Tensor) -> Tensor:
        """Return the stand-in for `real`.

        A fake tensor represents itself, as does a tensor that cannot have a stand-in.
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
        """Return `value` with its tensors replaced by stand-ins.

        Plain containers are copied once, and other objects are kept.
        """
        return with_tensors(value, self.of, _NESTING, self._copies)

    def _make(self, real: Tensor, storage: torch.UntypedStorage, stride: tuple[int, ...], offset: Any) -> Tensor:
        # Tensors on "meta" have no address, but their storage has an identity.
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
    """Make modules and their submodules use stand-ins in this context.

    Attributes that are set on them in the meantime are undone at the end. Scripted modules are left alone, because
    their tensors live outside Python. A step that calls a scripted module is refused.
    """
    inside = {id(m): m for module in modules for m in module.modules()}.values()
    with ExitStack() as stack:
        for module in inside:
            if not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(_stood_in(vars(module), None, stand_ins))
        yield


@contextmanager
def stepping(optimizer: Any, stand_ins: StandIns) -> Iterator[None]:
    """Make the optimizer update stand-ins in this context."""
    with _stood_in(vars(optimizer), None, stand_ins):
        of_parameters = [
            (stand_ins.of(key) if isinstance(key, Tensor) else key, kept) for key, kept in optimizer.state.items()
        ]
        optimizer.state = defaultdict(dict, of_parameters)
        yield


@contextmanager
def variables_replaced(values: Iterable[Any], stand_ins: StandIns) -> Iterator[None]:
    """Make functions' variables (globals and closures) and objects' attributes refer to stand-ins in this context.

    Plain containers in them are copied, so that items that a step appends to a list are gone afterwards.
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
    """Make some or all names in a namespace refer to stand-ins in this context."""
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
