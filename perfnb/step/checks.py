"""Validate the user's steps, batches and losses before anything runs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.step.data_waits import tensors_in
from perfnb.step.namespace import named_modules

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def require_steps(steps: Mapping[str, Any], batches: Any, how: str) -> None:
    """Raise `TypeError` if a step cannot be called, has the wrong signature, or if `batches` is a single batch.

    Parameters
    ----------
    steps : mapping of str to object
        The steps, keyed by argument name.
    batches : object
        The batches, or ``None`` if there are none.
    how : str
        The correct call with batches, which is quoted in error messages; empty if batches are not supported.
    """
    __tracebackhide__ = True
    for name, step in steps.items():
        _require_step(step, name, how)
    _require_many(batches)
    for name, step in steps.items():
        _require_arguments(step, name, batches is not None, how)


def require_name(name: object) -> None:
    """Raise `TypeError` unless the name of a result is a string or ``None``."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be text, not {shown(name)}.")


def require_loss(loss: Any, batch: Any) -> None:
    """Raise `TypeError` unless the loss is ``None`` or can be called with a model's output and this kind of batch."""
    __tracebackhide__ = True
    if loss is None:
        return
    if not callable(loss):
        raise TypeError(f"loss must be a function such as torch.nn.functional.cross_entropy, not {shown(loss)}.")
    if isinstance(batch, Mapping):
        call, why = "loss(output, batch)", "the batch is a mapping"
    elif isinstance(batch, (tuple, list)):
        call, why = "loss(output, target)", "the last item of the batch is the target"
    else:
        call, why = "loss(output)", "the batch contains only the input"
    given, (least, most) = call.count(",") + 1, _arguments_of(loss)
    if least <= given <= most:
        return
    advice = "pass (x, y) as batch, where y is the target" if given < least == 2 else "pass a function that takes these"
    raise TypeError(f"loss takes {_how_many(least, most)}, but it is called as {call} because {why}: {advice}.")


def refuse_meta(arguments: Any) -> None:
    """Raise `CaptureError` if a call has tensors on the ``meta`` device, because they take no time and no memory."""
    __tracebackhide__ = True
    if any(tensor.device.type == "meta" for tensor in tensors_in(arguments)):
        raise CaptureError(f"The step runs on the meta device, where tensors have no data. {_NOT_ON_META}")


def note_on_meta(used: Mapping[str, Any]) -> str | None:
    """Return a note for a failed step that uses a model on the ``meta`` device, or ``None`` if there is no such model.

    Models dispatched by accelerate are ignored, because their weights are loaded when they are called.
    """
    for name, module in named_modules(used):
        devices = {parameter.device.type for parameter in module.parameters()}
        if devices == {"meta"} and not any(hasattr(inner, "_hf_hook") for inner in module.modules()):
            return f"perfnb: {name} is on the meta device, where tensors have no data. {_NOT_ON_META}"
    return None


_NOT_ON_META = "Call model.to_empty(device='cpu') and load the weights first. Only estimate_memory works without data."


def _require_step(step: Any, name: str, how: str) -> None:
    __tracebackhide__ = True
    if not callable(step):
        feeds = how and not _is_array(step) and hasattr(type(step), "__iter__") and not isinstance(step, str)
        advice = f"write {how}" if feeds else f"pass {name}, not {name}()"
        raise TypeError(f"{name} must be a function that runs one step, not {type(step).__name__}: {advice}.")
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        raise TypeError(f"{name} must run when it is called, which a coroutine or generator function does not.")


def _require_many(batches: Any) -> None:
    """Raise `TypeError` if `batches` is a single batch, because its rows or items would be used as batches."""
    __tracebackhide__ = True
    if isinstance(batches, tuple) and any(map(_is_array, batches)):
        raise TypeError(
            "batches is a tuple of tensors, each of which would be used as a batch: pass [(x, y)] for one batch, and "
            "[x, y] or a loader for several batches."
        )
    if isinstance(batches, Mapping):
        raise TypeError(
            f"batches is a {type(batches).__name__}, whose keys would be used as batches: pass [batch] for one batch, "
            "or a loader."
        )
    if _is_array(batches):
        kind = {"Tensor": "tensor", "ndarray": "numpy array"}.get(type(batches).__name__, type(batches).__name__)
        raise TypeError(
            f"batches is a {kind}, whose rows would be used as batches: pass [x] for one batch, or a loader for "
            "several batches."
        )


def _require_arguments(step: Callable[..., Any], name: str, fed: bool, how: str) -> None:
    __tracebackhide__ = True
    least, most = _arguments_of(step)
    if least <= fed <= most:
        return
    if most < fed:
        said = f"{name} does not accept a batch, but batches were given: add a parameter for the batch, or omit batches"
    elif least > 1:
        said = f"{name} takes {_how_many(least, most)}, but a step is called with at most one, which is the batch"
        is_model = isinstance(step, nn.Module)
        said += f": {'pass lambda batch: model(*batch)' if is_model else 'unpack it in the step with x, y = batch'}"
    elif how:
        said = f"{name} requires a batch, but no batches were given: write {how}"
    else:
        said = f"{name} requires an argument, but is called without arguments: wrap it with lambda: step(batch)"
    raise TypeError(f"{said}.")


def _arguments_of(function: Any) -> tuple[int, float]:
    """Return the minimum and maximum number of positional arguments that a function takes.

    If its signature is unknown, return 0 and infinity.
    """
    unknown = 0, math.inf
    try:
        if isinstance(function, nn.Module) and type(function).__call__ is nn.Module.__call__:
            function = function.forward
        # A wrapper may take different arguments than the function that it wraps.
        parameters: Iterable[inspect.Parameter] = inspect.signature(function, follow_wrapped=False).parameters.values()
    except Exception:  # a built-in function, or one without a readable signature
        return unknown
    parameters = list(parameters)
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return unknown
    placed = [each for each in parameters if each.kind in _BY_POSITION]
    endless = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return sum(each.default is each.empty for each in placed), math.inf if endless else len(placed)


def _how_many(least: int, most: float) -> str:
    """Describe a number of arguments in words."""
    number = least if least > 1 or most == math.inf else most
    return "1 argument" if number == 1 else f"{number:.0f} arguments"


def _is_array(value: Any) -> bool:
    """Check whether a value is a tensor or an array, or can be converted to an array, like a pandas DataFrame."""
    return isinstance(value, Tensor) or (hasattr(type(value), "__array__") and hasattr(type(value), "__iter__"))
