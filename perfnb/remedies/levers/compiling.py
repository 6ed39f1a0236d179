"""Levers that compile the models with the modes of torch.compile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shutil import which
from typing import Any

import torch
from torch import nn

from perfnb.findings.proposed_code import lever_line
from perfnb.remedies.lever import Lever, Switch, forwards, without_models
from perfnb.remedies.lines import for_models
from perfnb.remedies.subject import Subject
from perfnb.step.refusals import compiled_already


def _refuses(subject: Subject) -> str:
    if why := without_models(subject) or compiled_already(subject.modules(nn.Module)):
        return why
    if subject.kinds == {"cpu"} and not _compiler():
        return "torch.compile needs a C++ compiler (g++ or clang++) here, but none was found"
    return ""


def _refuses_off_cuda(subject: Subject) -> str:
    if "cuda" not in subject.kinds:
        return "this mode is for CUDA: on other devices, it does the same as torch.compile's default mode"
    return _refuses(subject)


def _compiler() -> bool:
    return any(which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def compiled(mode: str | None = None, **options: Any) -> Callable[[Subject], Any]:
    """Return the preparation for a lever that compiles the models' forward."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        recursion = sys.getrecursionlimit()
        fast = {name: torch.compile(model.forward, mode=mode, **options) for name, model in subject.models.items()}

        @contextmanager
        def on() -> Iterator[None]:
            if mode is not None:  # CUDA graphs reuse the memory of the last step's outputs
                torch.compiler.cudagraph_mark_step_begin()
            with forwards((model, fast[name]) for name, model in subject.models.items()):
                yield

        try:
            yield on
        finally:
            sys.setrecursionlimit(recursion)  # an interrupted compilation leaves the limit raised
            for model in subject.models.values():
                with suppress(
                    Exception
                ):  # a private function; without it, the compiled code remains until the process ends
                    torch._dynamo.eval_frame.remove_from_cache(model.forward)

    return prepared


def _lever(name: str, words: str, mode: str | None, *answers: str) -> Lever:
    return Lever(
        name,
        words,
        _refuses_off_cuda if mode else _refuses,
        compiled(mode),
        for_models(lever_line(name, "{0}")),
        answers=answers,
        costly=True,
        reorders=True,
        in_order=None if mode else compiled(options={"fallback_random": True}),
        family="compile",
        settles=True,
        autotunes=mode == "max-autotune",
    )


COMPILE = _lever(
    "compile",
    "torch.compile of the models that the step calls",
    None,
    *("dispatch overhead", "launch overhead", "memory bandwidth"),
)
REDUCE_OVERHEAD = _lever(
    "compile_reduce_overhead",
    "torch.compile that replays each graph as a CUDA graph, which keeps the GPU from waiting for launches",
    "reduce-overhead",
    "launch overhead",
)
MAX_AUTOTUNE = _lever(
    "compile_max_autotune",
    "torch.compile that times several kernels for each matrix product and convolution; takes minutes to compile",
    "max-autotune",
    *("launch overhead", "compute"),
)
