"""Temporarily replace a model's tensors with fake ones; afterwards everything is as it was."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from perfnb.errors import CaptureError
from perfnb.step.namespace import is_empty, names_in

#: Nesting depth to which a module's containers are searched for tensors.
_NESTING = 3
#: Containers with more entries are copied without searching them.
_MOST_ENTRIES = 10_000

_ABSENT = object()


class StandIns:
    """Makes one fake tensor per real one; tensors that share memory get stand-ins that share it.

    Use under a fake tensor mode.

    Parameters
    ----------
    device : torch.device
        Device that the stand-ins pretend to be on.
    strict : bool
        Whether to refuse tensors that cannot have a stand-in, such as sparse ones; otherwise they are kept.
    """

    def __init__(self, device: torch.device, *, strict: bool = True) -> None:
        self.strict = strict
        self._device = device
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by the real tensor's id, kept alive here
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}

    def all(self) -> list[Tensor]:
        """All stand-ins made so far."""
        return [fake for _, fake in self._made.values()]

    def of(self, real: Tensor) -> Tensor:
        """The stand-in for `real`; a fake tensor stands for itself."""
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._made:
            try:
                self._made[id(real)] = real, self._make(real)
            except CaptureError:
                if self.strict:
                    raise
                return real
        return self._made[id(real)][1]

    def within(self, value: Any, depth: int = 2 * _NESTING, known: dict[int, Any] | None = None) -> Any:
        """`value` with its tensors replaced by stand-ins; plain containers are copied, anything else is kept."""
        known = {} if known is None else known
        if isinstance(value, Tensor):
            return self.of(value)
        if not depth or type(value) not in (dict, OrderedDict, defaultdict, list, tuple):
            return value
        if id(value) not in known:
            copied: Any
            if len(value) > _MOST_ENTRIES:  # a data set's index, or a history
                copied = copy(value)
            elif isinstance(value, Mapping):
                copied = copy(value)
                known[id(value)] = value, copied  # it may contain itself
                for key, item in value.items():
                    copied[key] = self.within(item, depth - 1, known)
            else:
                copied = type(value)(self.within(item, depth - 1, known) for item in value)
            known[id(value)] = value, copied
            known[id(copied)] = copied, copied  # a copy met again stands for itself
        return known[id(value)][1]

    def _make(self, real: Tensor) -> Tensor:
        try:
            storage = real.untyped_storage()
            stride, offset = real.stride(), real.storage_offset()
        except (NotImplementedError, RuntimeError, ValueError):  # sparse, or uninitialized in a lazy module
            raise CaptureError(
                f"Memory can be estimated only for dense tensors, and this model holds a {real.layout} "
                f"{type(real).__name__}."
            ) from None
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
def replaced(
    modules: Iterable[nn.Module],
    stand_ins: StandIns,
    training: bool | None,
    known: dict[int, Any] | None = None,
) -> Iterator[None]:
    """Within this context the modules hold stand-ins; anything set on them is undone at its end.

    Parameters
    ----------
    modules : list of Module
        Submodules included.
    training : bool or None
        Training mode within the context; ``None`` keeps each module's own.
    known : dict, optional
        Copies of containers made so far, which modules and variables may share.
    """
    inside = {id(m): m for module in modules for m in module.modules()}.values()
    kept = [(m, dict(m.__dict__)) for m in inside]
    known = {} if known is None else known
    try:
        for module, attributes in kept:
            if isinstance(module, torch.jit.ScriptModule):
                if not stand_ins.strict:
                    continue
                raise CaptureError(
                    f"{type(module).__name__} is a scripted module, whose memory cannot be estimated: pass the "
                    "original model."
                )
            faked = {name: stand_ins.within(value, _NESTING, known) for name, value in attributes.items()}
            module.__dict__.update(faked)
            if training is not None:
                module.training = training
        yield
    finally:
        for module, attributes in kept:
            module.__dict__.clear()
            module.__dict__.update(attributes)


@contextmanager
def stepping(optimizer: Any, stand_ins: StandIns, foreach: bool) -> Iterator[None]:
    """Within this context the optimizer steps stand-ins; afterwards it is as it was.

    Parameters
    ----------
    foreach : bool
        Whether an optimizer that may choose updates all parameters at once, as on CUDA.
    """
    kept = dict(optimizer.__dict__)
    try:
        groups = [stand_ins.within(group) for group in optimizer.param_groups]
        for group in groups:
            if foreach and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        state: defaultdict[Any, Any] = defaultdict(dict)
        for parameter, values in optimizer.state.items():
            key = stand_ins.of(parameter) if isinstance(parameter, Tensor) else parameter
            state[key] = stand_ins.within(values)
        optimizer.__dict__.update({"param_groups": groups, "state": state})
        yield
    finally:
        optimizer.__dict__.clear()
        optimizer.__dict__.update(kept)


@contextmanager
def variables_replaced(values: Iterable[Any], stand_ins: StandIns, known: dict[int, Any]) -> Iterator[None]:
    """Within this context the variables of functions and the attributes of objects hold stand-ins.

    Plain containers in them are copied, so that anything a step appends to a list is gone afterwards.

    Parameters
    ----------
    values : iterable
        Functions (their globals and closures) and objects.
    known : dict
        Copies of containers made so far.
    """
    with ExitStack() as stack:
        for value in values:
            if type(value) is FunctionType:
                stack.enter_context(_stood_in(value.__globals__, names_in(value.__code__), stand_ins, known))
                for cell in value.__closure__ or ():
                    stack.enter_context(_cell_stood_in(cell, stand_ins, known))
            else:
                stack.enter_context(_stood_in(vars(value), None, stand_ins, known))
        yield


@contextmanager
def _stood_in(
    space: dict[str, Any], names: Iterable[str] | None, stand_ins: StandIns, known: dict[int, Any]
) -> Iterator[None]:
    """Within this context some names of a namespace, or all, hold stand-ins."""
    kept = {name: space[name] for name in (list(space) if names is None else names) if name in space}
    try:
        for name, value in kept.items():
            faked = stand_ins.within(value, known=known)
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


@contextmanager
def _cell_stood_in(cell: CellType, stand_ins: StandIns, known: dict[int, Any]) -> Iterator[None]:
    empty = is_empty(cell)
    kept = None if empty else cell.cell_contents
    try:
        if not empty:
            cell.cell_contents = stand_ins.within(kept, known=known)
        yield
    finally:
        if not empty:
            cell.cell_contents = kept
        elif not is_empty(cell):
            del cell.cell_contents
