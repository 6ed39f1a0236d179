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

from perfnb.errors import CaptureError
from perfnb.remedies.float32 import float32_precisions
from perfnb.remedies.subject import Subject
from perfnb.step.device import random_state


@contextmanager
def untouched(subject: Subject) -> Iterator[Callable[[str], None]]:
    """Prove that everything is as before: model, optimizer, random numbers, switches.

    Gives a function that proves it in between; its argument says after what. An exception of the user's goes its way,
    with a note if something has changed.

    Raises
    ------
    CaptureError
        If something is not, with what changed.
    """
    __tracebackhide__ = True
    before = fingerprint(subject)

    def changed(what: str) -> str:
        after = fingerprint(subject)
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        return f"After {what}, {names[0]} is not as it was before: restart from a checkpoint." if names else ""

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
    cuda, autocasts = torch.backends.cuda, ("cpu", "cuda")
    found: dict[str, Any] = {
        "torch's number of threads": torch.get_num_threads(),
        "the float32 precision": float32_precisions(),
        "the default dtype": torch.get_default_dtype(),
        "cuDNN's benchmark": torch.backends.cudnn.benchmark,
        "cuDNN": (torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic),
        "oneDNN (mkldnn)": torch.backends.mkldnn.enabled,
        "the choice of attention": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in autocasts],
        "gradient mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "garbage collection": gc.isenabled(),
        "torch.Tensor.backward": Tensor.backward,
        "the random state": digest(random_state()),
    }
    for root, model in subject.models.items():
        named = itertools.chain(model.named_parameters(), model.named_buffers())
        for name, tensor in named:
            found[f"{root}.{name}"] = (digest(tensor), tensor.requires_grad, id(tensor), tensor.data_ptr())
            found[f"the gradient of {root}.{name}"] = digest(tensor.grad if tensor.is_leaf else None)
        for name, module in model.named_modules():
            hooks = [tuple(held) for kind, held in vars(module).items() if kind.endswith("_hooks")]
            found[f"the mode, attributes and hooks of {root}.{name}"] = (module.training, sorted(vars(module)), hooks)
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
