"""Scratch memory of CUDA kernels, next to what torch 2.11 requested on an NVIDIA H200."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perfnb.memory.estimate import cuda_scratch
from perfnb.memory.estimate.cuda_scratch import cuda_scratch_bytes
from perfnb.memory.estimate.estimate import estimate_memory


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the GPU have the multiprocessors of an H200."""
    monkeypatch.setattr(cuda_scratch, "_processors", lambda: (132, 2048))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "requested"),
    [
        (512, 768, 0),
        (1000, 1024, 0),
        (1024, 256, 2_097_160),
        (2048, 768, 12_582_936),
        (4096, 255, 522_272),
        (16384, 3072, 138_412_128),
        (100000, 3, 608),
        (100000, 256, 138_412_040),
        (100000, 3072, 154_140_768),
        (100000, 10000, 250_880_316),  # in halves
    ],
)
def test_a_sum_of_rows(rows: int, columns: int, requested: int) -> None:
    """The blocks also need a few bytes to wait for each other."""
    assert requested * 0.98 - 1 <= cuda_scratch_bytes("sum", (ones(rows, columns), [0])) <= requested
    assert cuda_scratch_bytes("sum", (ones(rows // 2, 2, columns), [-3, 1])) == cuda_scratch_bytes(
        "sum", (ones(rows // 2 * 2, columns), [0])
    )


@pytest.mark.parametrize("args", [([1],), ([0, 1],), ([],), (None,), ()])
def test_other_sums_need_no_buffer_worth_counting(args: tuple[object, ...]) -> None:
    assert cuda_scratch_bytes("sum", (ones(2048, 768), *args)) == 0
    assert cuda_scratch_bytes("sum", (ones(768, 2048).t(), [0])) == 0
    assert cuda_scratch_bytes("sum", (ones(), *args)) == 0
    assert cuda_scratch_bytes("relu", (ones(2048, 768),)) == 0
    assert cuda_scratch_bytes("sum", (ones(1900, 280_000), [0])) == 0  # the columns alone fill the GPU


@pytest.mark.parametrize(
    ("backend", "shape", "requested"),
    [
        ("efficient", (8, 4, 256, 32), 2_131_968),
        ("efficient", (2, 4, 1000, 96), 4_227_328),
        ("efficient", (2, 4, 64, 64), 133_248),
        ("flash", (8, 4, 256, 64), 4_227_072),
        ("flash", (2, 4, 1000, 96), 6_250_496),
        ("flash", (2, 4, 512, 256), 8_404_992),
        ("flash", (2, 4, 64, 64), 397_312),
        ("cudnn", (2, 4, 1000, 64), 2_080_256),
        ("cudnn", (2, 4, 64, 64), 133_376),
    ],
)
def test_backward_passes_of_attention(backend: str, shape: tuple[int, ...], requested: int) -> None:
    q = ones(*shape, dtype=torch.bfloat16)
    name = f"_scaled_dot_product_{backend}_attention_backward"
    assert cuda_scratch_bytes(name, [q] * 5) == pytest.approx(requested, rel=0.002)


@pytest.mark.parametrize(("width", "columns"), [(1, 32), (32, 32), (33, 64), (192, 192), (193, 256), (256, 256)])
def test_flash_attention_sums_in_rows_and_columns_of_whole_tiles(width: int, columns: int) -> None:
    for length, rows in ((1, 128), (128, 128), (129, 256)):
        q = ones(2, length, 3, width).transpose(1, 2)
        name = "_scaled_dot_product_flash_attention_backward"
        assert cuda_scratch_bytes(name, [q] * 5) == 2 * 3 * rows * (columns + 1) * 4


def test_flash_attention_copies_only_what_is_in_another_order() -> None:
    q = ones(8, 4, 256, 64, dtype=torch.bfloat16)
    ordered = ones(8, 256, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
    both, one, none = (
        cuda_scratch_bytes("_scaled_dot_product_flash_attention_backward", [gradient, q, q, q, output])
        for gradient, output in ((q, q), (ordered, q), (ordered, ordered))
    )
    assert both - one == one - none == q.nbytes


def test_an_estimate_includes_the_buffer_of_a_bias_gradient() -> None:
    def peak(bias: bool) -> int:
        model = torch.nn.Sequential(torch.nn.Linear(64, 256, bias=bias))
        return estimate_memory(model, torch.zeros(2048, 64), device="cuda").peak_bytes

    assert peak(bias=True) - peak(bias=False) > 4 * 256 * 32 * 128 - 2 * 4 * 2048 * 256
