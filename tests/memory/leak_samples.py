"""What many steps leave behind, with a sample of each reason for a verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from perfnb.memory.leaks.find import Leaks
from perfnb.stats.slope import Slope
from tests.summaries import HOSTILE

MIB = 2**20
KEPT = Slope(MIB, MIB, MIB, 40)
FLAT = Slope(0.0, 0.0, 0.0, 40)
PROCESS = Slope(1.02 * MIB, 0.98 * MIB, 1.07 * MIB, 40)
NOISY = Slope(0.0, -700.0, 900.0, 40)


def survivors(*rows: tuple[object, ...]) -> pd.DataFrame:
    columns = ["device", "layer", "phase", "op", "bytes_per_step", "count_per_step", "steps", "kind"]
    return pd.DataFrame(list(rows), columns=columns)


TWO = survivors(
    ("cpu", "encoder.layers.0", "forward", "aten::add", MIB - 4096.0, 1.0, 32, "kept"),
    ("cpu", pd.NA, pd.NA, pd.NA, 4096.0, 2.0, 32, "kept"),
)
GROWING = survivors(("cpu", pd.NA, "loss", "aten::cat", float(MIB), 1.0, 40, "growing"))
SOME = survivors(*[("cpu", f"h.{i}", "forward", "aten::mm", 1000.0 - i, 1.0, 32, "kept") for i in range(20)])
STRANGE = survivors(
    *[("cpu", name, "backward", name, 1024.0, 1.0, 32, "kept") for name in HOSTILE]
)  # fmt: skip


def leaks(verdict: str, reason: str, allocator: Slope | None, process: Slope | None, **changes: Any) -> Leaks:
    steps = np.arange(40)
    levels = steps * int(allocator.bytes_per_step) if allocator else pd.array([pd.NA] * 40)
    resident = 500 * MIB + steps * int(process.bytes_per_step) if process else pd.array([pd.NA] * 40)
    frame = pd.DataFrame({"step": steps, "allocated_bytes": levels, "process_bytes": resident})
    return Leaks(verdict, reason, allocator, process, **{"survivors": survivors(), "steps": frame} | changes)


LEAKS = {
    "kept": leaks("leak", "kept", KEPT, PROCESS, survivors=TWO, after=130),
    "more": leaks("leak", "kept", KEPT, Slope(3.0 * MIB, 2.9 * MIB, 3.1 * MIB, 40), survivors=SOME, beyond_bytes=2e6),
    "growing": leaks("leak", "growing", KEPT, None, survivors=GROWING),
    "outside": leaks("leak", "outside", FLAT, PROCESS),
    "settled": leaks("no leak seen", "settled", FLAT, NOISY, early=PROCESS),
    "shapes": leaks("inconclusive", "shapes", FLAT, PROCESS),
    "garbage": leaks("no leak seen", "garbage", KEPT, NOISY, garbage_bytes=float(MIB)),
    "collected": leaks("no leak seen", "garbage", Slope(0.56 * MIB, -MIB, 2.0 * MIB, 40), NOISY, garbage_bytes=6e5),
    "unseen": leaks("inconclusive", "unseen", KEPT, NOISY, survivors=TWO),
    "unexplained": leaks("inconclusive", "unexplained", KEPT, NOISY),
    "hidden": leaks("inconclusive", "hidden", Slope(9e6, -2e6, 2e7, 40), PROCESS, survivors=TWO),
    "few": leaks("inconclusive", "few", Slope(MIB, None, None, 8), None),
    "steady": leaks("no leak seen", "steady", FLAT, NOISY),
    "small": leaks("no leak seen", "steady", FLAT, Slope(8000.0, 7000.0, 9000.0, 40)),
    "hostile": leaks("leak", "kept", KEPT, PROCESS, survivors=STRANGE),
}
