"""Keep track of a live profile's step, on which remedies can be tried, without keeping the model alive."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

Ref = Callable[[], Any]


@dataclass(frozen=True)
class KeptStep:
    """Finds the step of a profile again.

    A profile often outlives its model, because it stays in the notebook's output history. If it contained a step whose
    closure refers to the model, the model would stay alive as well. For this reason, only weak references to steps,
    batches and models are stored. There are two exceptions: functions without a closure, which refer only to their
    module, and the code of a cell, which uses the variables that the notebook has when the code runs again.
    """

    #: Returns the arguments that `perfnb.remedies.try_levers.run_trials` needs, or ``None`` if any of them is gone.
    find: Callable[[], dict[str, Any] | None]
    #: How the profile was requested, which determines the line of code that tries a lever. See
    #: `perfnb.findings.proposed_code.trial_line`.
    call: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of a profile, for example in another process, has no step


def kept_call(step: Any, batches: Any, models: Sequence[Any] | None, names: Mapping[str, Any]) -> KeptStep:
    """Keep track of the arguments in a call to `perfnb.profile_step`.

    `names` are the names that were passed with the models.
    """
    from perfnb.step.namespace import name_of_batches, namespace_of

    places = getattr(getattr(step, "__func__", step), "__globals__", {})
    of_step = next((name for name, value in list(places.items()) if value is step), None)
    of_batches = next(iter(name_of_batches(step, batches)), None)
    # Lists do not support weak references, so they are looked up by name instead.
    found_batches = _ref(batches, lambda: places.get(of_batches))
    found_step, found_models = _ref(step), _refs(models)
    named = {name: _ref(value) for name, value in names.items()}

    def find() -> dict[str, Any] | None:
        parts = {"step": found_step(), "batches": found_batches(), "models": found_models()}
        gone = [parts["step"] is None, parts["batches"] is None and batches_given, parts["models"] is _GONE]
        if any(gone):
            return None
        own = {name: value() for name, value in named.items()}
        return parts | {"namespace": {**namespace_of(parts["step"]), **own}}

    batches_given = batches is not None
    known = of_step is not None and (of_batches is not None or not batches_given)
    call = {"step": of_step, "batches": of_batches, "imported": places.get("perfnb") is sys.modules.get("perfnb")}
    return KeptStep(find, call if known else {})


def kept_cell(
    step: Any, body: CodeType, variables: dict[str, Any], batches: Any, models: Sequence[Any] | None, magic: str
) -> KeptStep:
    """Keep a cell's code and the dictionary with the notebook's variables, which does not keep anything else alive."""
    from perfnb.step.namespace import namespace_of

    found_models = _refs(models)

    def find() -> dict[str, Any] | None:
        if (chosen := found_models()) is _GONE:
            return None
        namespace = namespace_of(FunctionType(body, variables))
        return {"step": step, "batches": batches, "models": chosen, "namespace": namespace}

    return KeptStep(find, {"magic": magic})


_GONE = object()


def _refs(models: Sequence[Any] | None) -> Ref:
    refs = None if models is None else [_ref(model) for model in models]

    def found() -> Any:
        if refs is None:
            return None
        alive = [ref() for ref in refs]
        return _GONE if any(model is None for model in alive) else alive

    return found


def _ref(value: Any, find_again: Ref = lambda: None) -> Ref:
    """Return a function that returns the value for as long as it exists, or `find_again` if that cannot be known."""
    if type(value) is FunctionType and not (value.__closure__ or value.__defaults__ or value.__kwdefaults__):
        return lambda: value
    if type(value) is MethodType:
        return weakref.WeakMethod(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return find_again
