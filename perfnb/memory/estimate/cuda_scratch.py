"""Estimate the scratch memory that CUDA kernels allocate in addition to their results. Fake kernels do not allocate it.

The formulas restate how torch's kernels choose the sizes of their buffers (``Reduce.cuh``, and the workspaces of the
backward passes of attention). They were compared with the bytes that torch 2.11 requested on an NVIDIA H200. The
following memory is not included: workspaces of cuBLAS and of cuDNN's convolutions, buffers for the forward pass of
flash attention with a small batch, whose keys it splits, and the copies that memory-efficient attention makes of heads
wider than 128.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: The threads per block of a reduction, and the fewest and the most values that a thread reduces before blocks share
#: an output.
_THREADS, _FEW, _MANY = 512, 16, 256
#: torch halves a sum until the offsets of its input fit into 32 bits.
_OFFSETS = 2**31 - 1
#: The streaming multiprocessors of an A100 and the threads of each, for estimates without a GPU.
_A100 = 108, 2048
#: The rows and columns of a tile of the query's gradient, and the bytes of its counter and its lock.
_TILE, _LOCK = 64, 16


def cuda_scratch_bytes(op: str, args: Sequence[Any]) -> int:
    """Return the number of bytes that a CUDA kernel uses at its peak in addition to its results.

    `op` is the name of the op without the namespace, such as ``sum``.
    """
    if op == "sum" and len(args) > 1 and args[0].dim() and not args[0].is_nested:
        return _sum_of_rows(args[0], args[1])
    if op in _ATTENTION and args[1].dim() == 4:
        return _ATTENTION[op](*args[:5])
    return 0


def _sum_of_rows(x: Tensor, dims: Any) -> int:
    """Return the size of the buffer for the partial sums of blocks of threads, if several blocks share an output.

    The buffer has room for every thread of these blocks, although each block only writes one sum. The bias gradient of
    a linear layer is such a sum.
    """
    reduced = sorted(dim % x.dim() for dim in dims or ())
    if not reduced or reduced != list(range(len(reduced))) or len(reduced) == x.dim() or not x.is_contiguous():
        return 0
    rows, columns = math.prod(x.shape[: len(reduced)]), math.prod(x.shape[len(reduced) :])
    while rows * columns * x.element_size() > _OFFSETS:
        rows, columns = (math.ceil(rows / 2), columns) if rows >= columns else (rows, math.ceil(columns / 2))
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    threads, wide = _THREADS // vector, columns // vector
    width = min(_power_of_2(wide, threads), 32)
    height = min(_power_of_2(rows, threads), threads // width)
    width = min(_power_of_2(wide, threads), threads // height)
    per_thread = math.ceil(rows / height)
    if rows < min(height * _FEW, _MANY) or per_thread < _MANY:
        return 0
    processors, resident = _processors()
    target, grid = processors * (resident // (width * height)), math.ceil(wide / width)
    if grid > target:
        return 0
    blocks = max(min(math.ceil(target / grid), math.ceil(per_thread / _FEW)), math.ceil(per_thread / _MANY))
    return max(4, x.element_size()) * columns * blocks * width * vector if blocks > 1 else 0


def _power_of_2(size: int, most: int) -> int:
    return int(min(1 << (max(size, 1).bit_length() - 1), most))


def _processors() -> tuple[int, int]:
    if not torch.cuda.is_available():
        return _A100
    found = torch.cuda.get_device_properties()
    return found.multi_processor_count, found.max_threads_per_multi_processor


def _efficient_backward(_: Tensor, query: Tensor, *others: Any) -> int:
    """Return the size of the tiles of the query's gradient that blocks add up, and of a sum per row, in float32."""
    batch, heads, length, width = query.shape
    tiles = math.ceil(length / _TILE) * math.ceil(width / _TILE)
    return int(batch * heads * (tiles * (4 * _TILE * _TILE + _LOCK) + 4 * length))


def _flash_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> int:
    """Return the size of the query's gradient and of a sum per row in float32, with their sizes rounded up.

    The gradient and the output of the attention are copied unless the heads of each row are next to each other.
    """
    batch, heads, length, width = query.shape
    rows = math.ceil(length / 128) * 128
    columns = math.ceil(width / 32) * 32 if width <= 192 else 256
    copied = sum(t.nbytes for t in (gradient, output) if not t.transpose(1, 2).is_contiguous())
    return int(batch * heads * rows * (columns + 1) * 4 + copied)


def _cudnn_backward(_: Tensor, query: Tensor, *others: Any) -> int:
    """Return the size of the query's gradient and of a sum per row in float32."""
    batch, heads, length, width = query.shape
    return int(batch * heads * length * (width + 1) * 4)


_ATTENTION: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
