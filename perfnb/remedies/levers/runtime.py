"""Levers that set switches of the Python and torch runtimes."""

from __future__ import annotations

import gc

from perfnb.findings.proposed_code import lever_line
from perfnb.remedies.lever import Lever, always
from perfnb.remedies.levers.layout import without_convolutions
from perfnb.remedies.switches import COLLECTION, CUDNN, switched

GC_FREEZE = Lever(
    "gc_freeze",
    "no garbage collection inside the step",
    lambda _: "" if gc.isenabled() else "Python's garbage collector is already off",
    always(lambda _: switched(COLLECTION, False)),
    lambda _: [f"import gc; {lever_line('gc_freeze')}"],
    answers=("garbage collection",),
)
CUDNN_BENCHMARK = Lever(
    "cudnn_benchmark",
    "cuDNN tries its convolution algorithms and keeps the fastest",
    lambda subject: "the step does not run on CUDA" if "cuda" not in subject.kinds else without_convolutions(subject),
    always(lambda _: switched(CUDNN, True)),
    lambda _: ["torch.backends.cudnn.benchmark = True"],
    answers=("compute",),
)
