"""Verify that trying levers left everything unchanged, by comparing fingerprints before and after."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from perfnb.bench.restored import PLAIN, bits, contents, has_numbers, plain_attributes
from perfnb.errors import CaptureError
from perfnb.remedies.subject import Subject
from perfnb.remedies.switches import SWITCHES
from perfnb.step.device import random_state


@contextmanager
def untouched(subject: Subject) -> Iterator[Callable[[str], None]]:
    """Verify that the model, the optimizer, random numbers and switches are unchanged.

    Yields a function that verifies this in between; its argument describes what ran before. Exceptions from the user's
    code are passed on, with a note if something has changed.

    Raises
    ------
    CaptureError
        If something has changed; the message names it. Switches are restored first.
    """
    __tracebackhide__ = True
    before = fingerprint(subject)

    def differing() -> list[str]:
        after = fingerprint(subject)
        return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))

    def changed(what: str) -> str:
        if not (names := differing()):
            return ""
        for name in names:
            if name in SWITCHES:
                SWITCHES[name][1](before[name])
        ending = "restart from a checkpoint" if differing() else "perfnb has restored it"
        return f"After {what}, {names[0]} has changed: {ending}."

    def prove(what: str) -> None:
        if why := changed(what):
            raise CaptureError(why)

    try:
        yield prove
    except CaptureError:
        raise
    except BaseException as error:
        if why := changed("trying levers"):
            error.add_note(why)
        raise
    prove("trying levers")


def fingerprint(subject: Subject) -> dict[str, Any]:
    """Return everything that must not change, by name: the digests of tensors and the values of switches."""
    seen: dict[str, Any] = {name: read() for name, (read, _) in SWITCHES.items()}
    seen |= {"inference mode": torch.is_inference_mode_enabled(), "the random state": digest(random_state())}
    for root, model in subject.models.items():
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            seen[f"{root}.{name}"] = (digest(tensor), tensor.requires_grad, id(tensor), _address(tensor))
            seen[f"the gradient of {root}.{name}"] = digest(tensor.grad if tensor.is_leaf else None)
        for name, module in model.named_modules():
            hooks = [tuple(held) for kind, held in vars(module).items() if kind.endswith("_hooks")]
            seen[f"the mode, attributes and hooks of {root}.{name}"] = (module.training, sorted(vars(module)), hooks)
            for word, value in plain_attributes(module).items():
                inside = [digest(one) if _is_plain(one) else id(one) for one in contents([value])]
                seen[f"the attribute {word} of {'.'.join(filter(None, [root, name]))}"] = inside
    for name, optimizer in subject.optimizers.items():
        seen[f"the state of {name}"] = digest(list(optimizer.state.values()))
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        seen[f"the groups of {name}"] = digest(groups)
        seen[f"the methods of {name}"] = [vars(optimizer).get(word) for word in ("step", "zero_grad")]
    return seen


def _is_plain(value: Any) -> bool:
    return issubclass(type(value), (Tensor, *PLAIN))


def _address(tensor: Tensor) -> int | None:
    """Return the memory address of a tensor's values; ``None`` if they are not in one place."""
    return tensor.data_ptr() if tensor.layout is torch.strided else None


def digest(value: Any) -> str:
    """Return a digest of nested tensors and plain values.

    If a tensor cannot be copied, the digest depends only on its identity.
    """
    digest = hashlib.blake2b(digest_size=16)
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            digest.update(str((item.dtype, tuple(item.shape)) if has_numbers(item) else id(item)).encode())
            for part in bits(item) if has_numbers(item) else ():
                # The digest is computed from a copy, because torch never resizes memory again once NumPy has seen it.
                digest.update(part.cpu().clone().numpy().tobytes())
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += [len(item), *item]
        elif hasattr(item, "tobytes"):
            digest.update(item.tobytes())
        else:
            digest.update(repr(item).encode())
    return digest.hexdigest()
