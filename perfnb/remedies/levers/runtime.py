"""Switches of Python's and torch's runtime."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfnb.findings.code import lever_line
from perfnb.remedies.lever import Lever, always, nothing, without_cuda
from perfnb.remedies.levers.layout import without_convolutions
from perfnb.remedies.subject import Subject


@contextmanager
def _without_collections(_: Subject) -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _cudnn(_: Subject) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


GC_FREEZE = Lever(
    "gc_freeze",
    "no garbage collection inside the step",
    lambda _: nothing(_) if gc.isenabled() else "Python's garbage collector is off already",
    always(_without_collections),
    lambda _: [f"import gc; {lever_line('gc_freeze')}"],
    answers=("garbage collection",),
)
CUDNN_BENCHMARK = Lever(
    "cudnn_benchmark",
    "cuDNN tries its convolution algorithms and keeps the fastest",
    lambda subject: without_cuda(subject) or without_convolutions(subject),
    always(_cudnn),
    lambda _: ["torch.backends.cudnn.benchmark = True"],
    answers=("compute",),
)
