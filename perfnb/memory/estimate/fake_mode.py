"""Why a step cannot be run on fake tensors, in one sentence that names the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from perfnb.errors import CaptureError
from perfnb.step.namespace import is_installed

_DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
_UNSUPPORTED = (UnsupportedOperatorException, UnsupportedFakeTensorException)
#: What torch says, as a plain RuntimeError, where code asks for the numbers in a fake tensor.
_ASKS_FOR_NUMBERS = ("data pointer", ".numpy() is not supported", ".tolist() is not supported", "data-dependent")
#: What asks for the number in one tensor.
_ASKS_FOR_ONE = ".item(), float() or an if"
_TOO_LARGE = ("Storage size calculation overflowed", "overflow", "numel: integer multiplication")


@contextmanager
def explained(model: nn.Module | None) -> Iterator[None]:
    """Says in one sentence why a step cannot be simulated; any other error is the user's own.

    Without a `model` the place is told by the line of the user's code.
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
            f"{_place(error.__traceback__, model)} uses {op}, which has no fake kernel, so that its memory cannot be "
            "estimated: register one with torch.library.register_fake, or estimate without this layer."
        ) from None
    except RuntimeError as error:
        text = str(error)
        if any(words in text for words in _TOO_LARGE):
            raise OverflowError("a tensor of this batch would have more bytes than can be counted.") from None
        if any(words in text for words in _ASKS_FOR_NUMBERS):
            raise CaptureError(_needs_numbers("its code", _place(error.__traceback__, model))) from None
        raise


def _needs_numbers(what: str, where: str) -> str:
    return (
        f"memory cannot be estimated: {what} in {where} depends on the numbers in a tensor, which an estimate does "
        "not compute; estimate without that part, or measure a small batch with profile_step."
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
    """The innermost line of the user's own code, and the module that was running in it if it is a library's."""
    place, inside = "the step", ""
    while traceback is not None:
        code, running = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
        if not is_installed(code.co_filename):
            place, inside = f"line {traceback.tb_lineno} of {code.co_name}", ""
        elif isinstance(running, nn.Module):
            inside = f"{type(running).__name__}, which is called in "
        traceback = traceback.tb_next
    return inside + place
