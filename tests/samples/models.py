"""Documents of `models`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfnb.draw.document import Document
from perfnb.models.scaling import ScalingStudy
from perfnb.models.size_laws import measured_sizes
from tests.models import architecture_samples as samples
from tests.samples import HOSTILE


def study(*exponents: float, sizes: Sequence[int] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)) -> ScalingStudy:
    """Return a study where time grows with the first exponent up to 512, and with the last from there on."""
    noise = np.random.default_rng(0)
    samples = {}
    for size in sizes:
        grown = 1e-3 * 512 ** exponents[0] * (size / 512) ** exponents[0 if size <= 512 else -1]
        samples[size] = (grown * np.exp(noise.normal(0, 0.01, 20))).tolist()
    measured = measured_sizes(samples, {size: 4 * size**2 for size in sizes}, {size: 2 * size**3 for size in sizes})
    return ScalingStudy(**measured, device="CPU, 2 threads (no GPU)")


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "architectures": lambda: samples.three()._document(),
    "architectures of strange names": lambda: samples.hostile()._document(),
    "architectures of which little is known": lambda: samples.unknown()._document(),
    "scaling study": lambda: study(1.98)._document(),
    "scaling study without a law": lambda: study(0.83, 1.5)._document(),
    "scaling study of two sizes": lambda: replace(study(2.0, sizes=(8, 16)), device=HOSTILE)._document(),
    "one architecture": lambda: samples.one()._document(),
}
