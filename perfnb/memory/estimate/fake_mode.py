"""Running a step on fake tensors, and saying in one sentence why that is impossible."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from perfnb.errors import CaptureError
from perfnb.step.device import random_state, set_random_state
from perfnb.step.guard import room_to_nest
from perfnb.step.namespace import is_installed

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
_UNSUPPORTED = (UnsupportedOperatorException, UnsupportedFakeTensorException)
#: Messages of torch's plain RuntimeErrors when code reads values from a fake tensor.
_ASKS_FOR_NUMBERS = ("data pointer", ".numpy() is not supported", ".tolist() is not supported", "data-dependent")
#: Code that reads a single value.
_ASKS_FOR_ONE = ".item(), float() or an if"
_TOO_LARGE = ("Storage size calculation overflowed", "overflow", "numel: integer multiplication")


@contextmanager
def pretending() -> Iterator[None]:
    """Within this context ops create fake tensors; random number generators are restored at its end."""
    with ExitStack() as stack:
        stack.enter_context(room_to_nest())
        stack.enter_context(_random_numbers_kept())
        stack.enter_context(_no_log())
        stack.enter_context(_no_fused_layers())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


@contextmanager
def explained(model: nn.Module | None) -> Iterator[None]:
    """Say in one sentence why a step cannot be simulated; any other error is the user's own.

    Without a `model`, the place is given as a line of the user's code.
    """
    __tracebackhide__ = True
    try:
        yield
    except _DATA_DEPENDENT as error:
        asked = f"{getattr(error, 'func', '')}".replace("aten.", "", 1) or "an operator"
        asked = _ASKS_FOR_ONE if asked.startswith("_local_scalar_dense") else asked
        raise CaptureError(_needs_numbers(f"{asked}", _place(error.__traceback__, model))) from None
    except _UNSUPPORTED as error:
        op = getattr(error, "func", error)
        raise CaptureError(
            f"{_place(error.__traceback__, model)} uses {op}, which has no fake kernel, so its memory cannot be "
            "estimated: register one with torch.library.register_fake, or estimate without this layer."
        ) from None
    except RuntimeError as error:
        text = str(error)
        if any(words in text for words in _TOO_LARGE):
            raise OverflowError("A tensor of this batch would have more bytes than can be counted.") from None
        if any(words in text for words in _ASKS_FOR_NUMBERS):
            raise CaptureError(_needs_numbers("its code", _place(error.__traceback__, model))) from None
        raise


def _needs_numbers(what: str, where: str) -> str:
    return (
        f"Memory cannot be estimated: {what} in {where} depends on the values in a tensor, which an estimate does not "
        "compute; estimate without that part, or measure a small batch with profile_step."
    )


def _place(traceback: TracebackType | None, model: nn.Module | None) -> str:
    """The innermost module of the model that was running when an error was raised."""
    if model is None:
        return _line(traceback)
    names = {id(module): name for name, module in model.named_modules()}
    place = type(model).__name__
    while traceback is not None:
        running = traceback.tb_frame.f_locals.get("self")
        if id(running) in names:
            name = names[id(running)]
            place = f"{name} ({type(running).__name__})" if name else type(running).__name__
        traceback = traceback.tb_next
    return place


def _line(traceback: TracebackType | None) -> str:
    """The innermost line of the user's own code, and the library module that was running in it, if any."""
    place, inside = "the step", ""
    while traceback is not None:
        code, running = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
        if not is_installed(code.co_filename):
            place, inside = f"line {traceback.tb_lineno} of {code.co_name}", ""
        elif isinstance(running, nn.Module):
            inside = f"{type(running).__name__}, which is called in "
        traceback = traceback.tb_next
    return inside + place


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def _no_fused_layers() -> Iterator[None]:
    """Disable torch's fused transformer inference, whose fake kernel shows only the result."""
    kept = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


@contextmanager
def _no_log() -> Iterator[None]:
    """Silence torch's log of fake kernel errors: the exception is enough."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    kept, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = kept
