"""Levers that change how attention is computed."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from perfnb.remedies.lever import Lever, always, forward_within, without_models
from perfnb.remedies.lines import for_models
from perfnb.remedies.subject import Subject
from perfnb.step.refusals import attention_of, takes_switch, without_switch
from perfnb.step.tracer import Tracer, exclusive

_FUSED = "aten::scaled_dot_product_attention"
#: torch's warnings that a backend is not used or is switched off, without a reason in the inputs.
_ABOUT_BACKENDS = re.compile(r"kernel not used because:$|runtime disabled")
#: The backends by the word that occurs in the names of their ops and of the levers, and the devices that support them.
_BACKENDS: dict[str, tuple[SDPBackend, tuple[str, ...]]] = {
    "flash": (SDPBackend.FLASH_ATTENTION, ("cpu", "cuda")),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, ("cuda",)),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, ("cuda",)),
    "math": (SDPBackend.MATH, ("cpu", "cuda")),
}


def _attention_ops(subject: Subject) -> set[str]:
    """Return the names of the step's fused attention ops."""
    __tracebackhide__ = True
    with subject.restored(), exclusive(), Tracer() as tracer, subject.gate.opened():
        subject.run()
    return {name for name in tracer.read().names if "scaled_dot_product" in name}


def _refuses(backend: str, subject: Subject) -> str:
    __tracebackhide__ = True
    if why := without_models(subject):
        return why
    if not subject.kinds & set(_BACKENDS[backend][1]):
        return f"this backend is not available for {' or '.join(sorted(subject.kinds))}"
    used = subject.once("attention", _attention_ops)
    if _FUSED not in used:
        return "the step does not call torch's scaled_dot_product_attention"
    if any(f"_attention_{backend}" in name or f"_{backend}_attention" in name for name in used):
        return "torch already chooses this backend"
    return _without_kernel(_BACKENDS[backend][0], subject)


def _without_kernel(kind: SDPBackend, subject: Subject) -> str:
    """Return the reason why a backend has no kernel for the step's attention; empty if it has one.

    torch warns about each backend that it cannot use, so without this check the user would see warnings caused by
    perfnb's own trials.
    """
    __tracebackhide__ = True
    within = forward_within(subject, lambda: sdpa_kernel(kind))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with subject.restored(), within, subject.gate.opened():
                subject.run()
        except RuntimeError as error:
            if not str(error).startswith("No available kernel"):
                return ""  # the trial will report it
        else:
            return ""
    said = [str(one.message).split("(Triggered")[0].strip() for one in caught]
    reasons = [text for text in said if text and not _ABOUT_BACKENDS.search(text)]
    return "torch has no kernel of this backend for these inputs" + (f": {reasons[-1].rstrip('.')}" if reasons else "")


def _sdpa(backend: str, words: str) -> Lever:
    kind = _BACKENDS[backend][0]
    name = f"torch.nn.attention.SDPBackend.{kind.name}"
    return Lever(
        f"sdpa_{backend}",
        words,
        partial(_refuses, backend),
        always(lambda subject: forward_within(subject, lambda: sdpa_kernel(kind))),
        for_models("{0}.forward = torch.nn.attention.sdpa_kernel(" + name + ")({0}.forward)"),
        answers=("compute", "memory bandwidth"),
        family="sdpa",
    )


def _switchable(subject: Subject) -> dict[str, Any]:
    """Return the models whose attention can be switched.

    Models that choose their attention class when they are created ignore the switch.
    """
    models = {name: model for name, model in subject.models.items() if takes_switch(model)}
    with _with_sdpa(models):
        return {name: model for name, model in models.items() if attention_of(model) == "sdpa"}


def _cannot_switch(subject: Subject) -> str:
    __tracebackhide__ = True
    if why := without_switch(subject.models.values()):
        return why
    takes = subject.once("switchable", _switchable)
    if not takes:
        made = type(next(filter(takes_switch, subject.models.values()))).__name__
        return (
            f"{made} chooses its attention when it is created and cannot switch later: create it with "
            f'{made}.from_pretrained(..., attn_implementation="sdpa"), or {made}._from_config(config, '
            'attn_implementation="sdpa")'
        )
    with _with_sdpa(takes):
        fused = _FUSED in _attention_ops(subject)
    return "" if fused else "the models accept the switch, but the step still does not call fused attention"


@contextmanager
def _with_sdpa(models: Mapping[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        logger = logging.getLogger("transformers.modeling_utils")  # the library warns about models that cannot switch
        stack.callback(setattr, logger, "disabled", logger.disabled)
        logger.disabled = True
        for model in models.values():
            stack.callback(model.set_attn_implementation, attention_of(model))
            model.set_attn_implementation("sdpa")
        yield


def _switch_code(subject: Subject) -> list[str]:
    switchable = replace(subject, models=subject.once("switchable", _switchable))
    return for_models('{0}.set_attn_implementation("sdpa")')(switchable)


ATTENTION = Lever(
    "attention",
    "fused attention in Hugging Face models",
    _cannot_switch,
    always(lambda subject: _with_sdpa(subject.once("switchable", _switchable))),
    _switch_code,
    answers=("attention unfused",),
)
SDPA = (
    _sdpa("flash", "FlashAttention in calls to scaled_dot_product_attention"),
    _sdpa("efficient", "memory-efficient attention in calls to scaled_dot_product_attention (CUDA)"),
    _sdpa("cudnn", "cuDNN's attention in calls to scaled_dot_product_attention (CUDA)"),
    _sdpa(
        "math", "unfused attention in calls to scaled_dot_product_attention, which can be faster for short sequences"
    ),
)
