"""Rates of a product: as profiled, and as torch's own benchmark measures it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.benchmark import Timer

from perfnb.attribution.arithmetic import work_by
from tests.accuracy.judging import Figures
from tests.step.counted import count
from tests.step.test_counted_layers import Product

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_the_rate_of_a_product_is_what_torchs_benchmark_measures(figure: Figures) -> None:
    size, least, benchmarked = 512, float("inf"), float("inf")
    model, left = Product(size), torch.rand(size, size)
    timer = Timer("model(left)", globals={"model": model, "left": left}, num_threads=1)
    for _ in range(30):  # in turn, the best of each: other work only adds, and the machine changes its pace
        benchmarked = min(benchmarked, *(timer.timeit(1).mean for _ in range(10)))
        counted = count(lambda: model(left), traced=10, model=model)
        products = counted.recording.events.query("name == 'aten::mm'")
        least = min(least, float(products["duration_ns"].min()) / 1e9)
        if benchmarked == pytest.approx(least, rel=0.02):
            break
    work = work_by(counted.ops, "op").loc["aten::mm"]

    ratio = (work["flops"] / least) / (2 * size**3 / benchmarked)
    figure("rate of a matmul, profile / torch.utils.benchmark", float(ratio), within=(0.95, 1.05))
