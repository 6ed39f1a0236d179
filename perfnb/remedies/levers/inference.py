"""Levers for steps without a backward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from perfnb.remedies.lever import Lever, Switch, always, forwards, without_models
from perfnb.remedies.lines import for_models
from perfnb.remedies.subject import Subject
from perfnb.step.refusals import without_dtype

_CONFIG = "Int8DynamicActivationInt8WeightConfig"


def _trains(subject: Subject) -> str:
    return "the step computes gradients" if subject.trains else ""


def _inference_code(subject: Subject) -> list[str]:
    name = getattr(subject.step, "__name__", "")
    known = getattr(subject.step, "__globals__", {})
    if name.isidentifier() and known.get(name) is subject.step:
        return [f"{name} = torch.inference_mode()({name})"]
    return ["# with torch.inference_mode():  around the step"]


def _cannot_quantize(subject: Subject) -> str:
    if why := _trains(subject) or without_models(subject):
        return why
    if not any(True for _ in subject.modules(nn.Linear)):
        return "the model has no linear layers"
    if why := without_dtype(torch.float32, subject.parameters):
        return why
    return "" if find_spec("torchao") else "int8 needs torchao, which is not installed: pip install torchao"


@contextmanager
def _quantized(subject: Subject) -> Iterator[Switch]:
    quantization: Any = __import__("torchao.quantization", fromlist=["quantize_"])
    copies = copy.deepcopy(subject.models)
    for model in copies.values():
        quantization.quantize_(model, getattr(quantization, _CONFIG)())
    yield lambda: forwards((model, copies[name].forward) for name, model in subject.models.items())


def _quantize_code(subject: Subject) -> list[str]:
    lines = for_models(f"quantize_({{0}}, {_CONFIG}())")(subject)
    return [f"from torchao.quantization import {_CONFIG}, quantize_", *lines]


INFERENCE_MODE = Lever(
    "inference_mode",
    "torch.inference_mode around a step without a backward pass",
    _trains,
    always(lambda _: torch.inference_mode()),
    _inference_code,
)
QUANTIZE_DYNAMIC = Lever(
    "quantize_dynamic",
    "linear layers in int8 with torchao, on a copy of the model (steps without a backward pass)",
    _cannot_quantize,
    _quantized,
    _quantize_code,
    lowers="int8",
    costly=True,
)
