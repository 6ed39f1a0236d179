"""Keep a live profile's step, so that remedies can be tried on it, without keeping the model alive."""

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
    """Finds a profile's step again.

    A profile often outlives its model, because it stays in the notebook's output history. If it held a step whose
    closure refers to the model, the model would stay alive as well. Steps, batches and models are therefore kept as
    weak references. There are two exceptions: functions without a closure, which refer only to their module, and a
    cell's code, which later runs with the notebook's variables at that time.
    """

    #: The arguments of `perfnb.remedies.try_levers.run_trials` that the step needs; ``None`` if a part is gone.
    find: Callable[[], dict[str, Any] | None]
    #: How the profile was requested, for the line that tries a lever; see `perfnb.findings.proposed_code.trial_line`.
    call: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of a profile, as in another process, has no step


def kept_call(step: Any, batches: Any, models: Sequence[Any] | None, names: Mapping[str, Any]) -> KeptStep:
    """Keep the arguments of a call to `perfnb.profile_step`; `names` are the names that were passed with the models."""
    from perfnb.step.namespace import name_of_batches, namespace_of

    places = getattr(getattr(step, "__func__", step), "__globals__", {})
    of_step = next((name for name, value in list(places.items()) if value is step), None)
    of_batches = next(iter(name_of_batches(step, batches)), None)
    found_step, found_batches, found_models = _ref(step), _ref(batches, places, of_batches), _refs(models)
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
    """Keep a cell's code and the live dictionary of the notebook's variables, which keeps nothing else alive."""
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


def _ref(value: Any, places: Mapping[str, Any] | None = None, name: str | None = None) -> Ref:
    """Return a function that returns a value as long as the value exists.

    Lists do not support weak references, so they are looked up by name.
    """
    if type(value) is FunctionType and not (value.__closure__ or value.__defaults__ or value.__kwdefaults__):
        return lambda: value
    if type(value) is MethodType:
        return weakref.WeakMethod(value)
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None if places is None or name is None else places.get(name)
