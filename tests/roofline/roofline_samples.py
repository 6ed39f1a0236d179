"""Made-up rooflines with known figures, for the tests of the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from perfnb.roofline.levels import POINTS, RooflineLevels
from tests.memory.memory_samples import BROKEN_FORMULA
from tests.summaries import HOSTILE


def roofline(
    blocks: int = 4, *, peaks: Mapping[str, float] | None = None, bandwidth: float | None = 21e9
) -> RooflineLevels:
    """Return products and element-wise layers of a transformer on a small machine."""
    peaks = {"float32": 118e9} if peaks is None else peaks
    peak = next(iter(peaks.values()), None)
    kinds = [("attn.qkv", 4.83e9, 32e6, 0.82, "layer"), ("attn.proj", 1.61e9, 15e6, 0.74, "layer")]
    kinds += [
        ("mlp.up", 6.44e9, 41e6, 0.88, "layer"),
        ("mlp.gelu", 3.1e7, 25e6, 0.6, "layer"),
        ("mlp.down", 6.44e9, 41e6, 0.79, "layer"),
    ]
    kinds += [("ln_1", 1.1e7, 12.6e6, 0.42, "layer"), ("ln_2", 1.2e7, 12.6e6, 0.47, "layer")]
    named = [(f"model.blocks.{b}.{n}", f * (1 + 0.03 * b), *rest) for b in range(blocks) for n, f, *rest in kinds]
    named += [("model.head", 1.2e10, 160e6, 0.9, "layer"), ("aten::addmm", 5.1e10, 420e6, 0.81, "op")]
    named += [
        ("aten::bmm", 2.1e9, 190e6, 0.55, "op"),
        ("aten::gelu", 1.2e8, 100e6, 0.6, "op"),
        ("aten::add", 4e6, 48e6, 0.7, "op"),
    ]
    rows = []
    for name, flops, size, efficiency, kind in named:
        intensity = flops / size
        roof = None if bandwidth is None or peak is None else min(peak, intensity * bandwidth)
        reached = efficiency * (roof or 80e9)
        bound = pd.NA if roof is None else "compute" if roof == peak else "memory"
        rows.append(
            (
                kind,
                name,
                int(flops),
                int(size),
                1e3 * flops / reached,
                intensity,
                reached,
                roof,
                roof and efficiency,
                bound,
                next(iter(peaks), "float32"),
            )
        )
    columns = ["kind", "name", "flops", "bytes", "ms", "intensity", "achieved_flops_per_s", "attainable_flops_per_s"]
    points = pd.DataFrame(rows, columns=[*columns, "efficiency", "bound", "dtype"])
    points = points.astype({column: kind for column, kind in POINTS.items() if kind != "str"})
    uncounted = pd.DataFrame(
        {
            "op": ["aten::native_layer_norm", "aten::_foreach_addcdiv_"],
            "calls": [16.0, 1.0],
            "ms": [8.2, 5.1],
            "share": [0.021, 0.013],
        }
    )
    dtype = next(iter(peaks), None)
    return RooflineLevels(
        "CPU, 2 threads (no GPU)", peaks, bandwidth, points, 0.62, int(1.6e11), uncounted, dtype=dtype
    )


def two_roofs(blocks: int = 4) -> RooflineLevels:
    """Return a machine with a ceiling of its own for half precision."""
    return roofline(blocks, peaks={"bfloat16": 612e12, "float32": 51e12}, bandwidth=2.9e12)


def hostile_roofline(blocks: int = 4) -> RooflineLevels:
    """Return the names of every kind that a stranger could choose."""
    made = roofline(blocks)
    names = [HOSTILE[i % len(HOSTILE)] for i in range(len(made.points))]
    names[list(made.points["name"]).index("model.head")] = BROKEN_FORMULA
    uncounted = made.uncounted.assign(op=[HOSTILE[0], HOSTILE[7]])
    return replace(
        made,
        device=HOSTILE[0],
        points=made.points.assign(name=names),
        peaks={BROKEN_FORMULA: 118e9},
        uncounted=uncounted,
    )


def unknown_roofline() -> RooflineLevels:
    """Return a roofline without ceilings, where one layer moves nothing."""
    made = roofline(1, peaks={}, bandwidth=None)
    points = made.points.copy()
    points.loc[0, "intensity"] = pd.NA
    return replace(made, points=points, utilisation=None, flops=None, uncounted=made.uncounted.iloc[:0])
