"""Documents of `gpu`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from perfnb.draw.document import Document
from perfnb.gpu.tab import gpu_document
from tests.gpu import gpu_samples as samples
from tests.written_traces import Written


@cache
def _of(made: Callable[[], Written]) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        return gpu_document(samples.gpu_of(made(), Path(folder)))


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "two GPUs": lambda: _of(samples.two_gpus),
    "hostile kernels": lambda: _of(samples.hostile),
    "kernels without launches": lambda: _of(samples.unlaunched),
}
