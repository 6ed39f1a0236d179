"""The state that trying levers must leave as it was: a fingerprint before and after."""

from __future__ import annotations

import copy
import gc
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from perfnb.bench.restored import has_numbers, plain_attributes
from perfnb.errors import CaptureError
from perfnb.remedies.float32 import float32_precisions, set_float32_precisions
from perfnb.remedies.subject import Subject
from perfnb.step.device import random_state

_ATTENTIONS = ("flash", "mem_efficient", "math", "cudnn")
_AUTOCASTS = ("cpu", "cuda")


def _set_attentions(wanted: Iterable[bool]) -> None:
    for name, on in zip(_ATTENTIONS, wanted, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)


def _set_autocasts(wanted: Iterable[tuple[bool, torch.dtype]]) -> None:
    for kind, (on, dtype) in zip(_AUTOCASTS, wanted, strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


#: Global switches by name: how to read and how to set them.
_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the float32 precision": (float32_precisions, set_float32_precisions),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "cuDNN's benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "cuDNN": _attribute(torch.backends.cudnn, "enabled"),
    "cuDNN's determinism": _attribute(torch.backends.cudnn, "deterministic"),
    "oneDNN (mkldnn)": _attribute(torch.backends.mkldnn, "enabled"),
    "the choice of attention": (
        lambda: [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTIONS],
        _set_attentions,
    ),
    "autocast": (
        lambda: [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCASTS],
        _set_autocasts,
    ),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "torch.Tensor.backward": _attribute(Tensor, "backward"),
}


@contextmanager
def untouched(subject: Subject) -> Iterator[Callable[[str], None]]:
    """Prove that everything is as before: model, optimizer, random numbers, switches.

    Gives a function that proves it in between; its argument says after what. An exception of the user's goes its way,
    with a note if something has changed.

    Raises
    ------
    CaptureError
        If something is not, with what changed; switches are put back first.
    """
    __tracebackhide__ = True
    before = fingerprint(subject)

    def changed(what: str) -> str:
        if not (names := differing()):
            return ""
        for name in names:
            if name in _SWITCHES and name in before:
                _SWITCHES[name][1](before[name])
        ending = "restart from a checkpoint" if differing() else "perfnb has put it back"
        return f"After {what}, {names[0]} is not as it was before: {ending}."

    def differing() -> list[str]:
        after = fingerprint(subject)
        return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))

    def prove(what: str) -> None:
        if said := changed(what):
            raise CaptureError(said)

    try:
        yield prove
    except CaptureError:
        raise
    except BaseException as error:
        if said := changed("trying levers"):
            error.add_note(said)
        raise
    prove("trying levers")


@contextmanager
def kept_positions(loaders: Iterable[Any]) -> Iterator[None]:
    """Put loaders that know their position back to it."""
    stateful = [each for each in loaders if hasattr(each, "state_dict") and hasattr(each, "load_state_dict")]
    positions = [copy.deepcopy(each.state_dict()) for each in stateful]
    try:
        yield
    finally:
        for each, position in zip(stateful, positions, strict=True):
            each.load_state_dict(position)


def fingerprint(subject: Subject) -> dict[str, Any]:
    """What must be as before, by name: digests of tensors, and values of switches."""
    found: dict[str, Any] = {name: read() for name, (read, _) in _SWITCHES.items()}
    found |= {"inference mode": torch.is_inference_mode_enabled(), "the random state": digest(random_state())}
    for root, model in subject.models.items():
        named = itertools.chain(model.named_parameters(), model.named_buffers())
        for name, tensor in named:
            found[f"{root}.{name}"] = (digest(tensor), tensor.requires_grad, id(tensor), tensor.data_ptr())
            found[f"the gradient of {root}.{name}"] = digest(tensor.grad if tensor.is_leaf else None)
        for name, module in model.named_modules():
            hooks = [tuple(held) for kind, held in vars(module).items() if kind.endswith("_hooks")]
            found[f"the mode, attributes and hooks of {root}.{name}"] = (module.training, sorted(vars(module)), hooks)
            for word, value in plain_attributes(module).items():
                unreadable = isinstance(value, Tensor) and not has_numbers(value)
                said = f"the attribute {word} of {'.'.join(filter(None, [root, name]))}"
                found[said] = id(value) if unreadable else digest(value)
    for name, optimizer in subject.optimizers.items():
        found[f"the state of {name}"] = digest([list(state.items()) for state in optimizer.state.values()])
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        found[f"the groups of {name}"] = digest(groups)
        found[f"the methods of {name}"] = [vars(optimizer).get(word) for word in ("step", "zero_grad")]
    return found


def digest(value: Any) -> str:
    """A digest of nested tensors and plain values."""
    digest = hashlib.blake2b(digest_size=16)
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            dense = item.detach() if item.layout is torch.strided else item.detach().to_dense()
            digest.update(str((item.dtype, tuple(item.shape))).encode())
            digest.update(dense.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += [len(item), *item]
        elif hasattr(item, "tobytes"):
            digest.update(item.tobytes())
        else:
            digest.update(repr(item).encode())
    return digest.hexdigest()
