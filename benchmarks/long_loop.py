"""Profile a loop of many tiny steps repeatedly, and measure the growth of the process and the size of the profiles.

The script prints the resident memory after the fifth profile and at the end. The increase must be at most 20 MiB.

    python -m benchmarks.long_loop                       # 20,000 steps, every=50
    python -m benchmarks.long_loop --steps 5000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil
import torch
from torch import nn

import perfnb

MIB = 2**20
#: The number of profiles before the first reading, and the growth that is allowed afterwards.
SETTLED, MOST_MIB = 5, 20


def main() -> int:
    """Run the loop and print the figures. Return 1 if the process grew too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=50)
    asked = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(100)]
    resident = psutil.Process().memory_info
    readings: list[int] = []
    begin = time.perf_counter()

    def read(_: perfnb.Profile) -> None:
        readings.append(resident().rss)
        if len(readings) % 25 == 0 or len(readings) == SETTLED:
            spent = time.perf_counter() - begin
            print(f"{len(readings):5} profiles  {readings[-1] / MIB:7.1f} MiB  {spent:6.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        loop = perfnb.profiled(
            (batches[step % len(batches)] for step in range(asked.steps)),
            at=asked.every,
            every=asked.every,
            save=folder,
            on_done=read,
        )
        for x, y in loop:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        sizes = [file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()]
    grown = (readings[-1] - readings[SETTLED - 1]) / MIB
    print(
        f"{asked.steps:,} steps, {len(readings)} profiles in {time.perf_counter() - begin:.0f} s: grew by "
        f"{grown:.1f} MiB from the fifth on (at most {MOST_MIB}), {sum(sizes) / MIB:.1f} MiB on disk, "
        f"{sum(sizes) / len(readings) / 1024:.0f} KiB each"
    )
    return int(grown > MOST_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
