"""Estimate the scratch memory that CPU kernels use in addition to their results. Fake kernels do not allocate it.

A oneDNN convolution copies its tensors to its own layouts, and many backward kernels first copy a gradient that is not
contiguous. The sizes in this module were determined by observing torch's CPU allocator. Memory that a convolution uses
regardless of the batch, up to about 0.2 MiB per thread, is not included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: Kernels that copy any arguments that are not contiguous.
_COPY = {
    "gelu_backward",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "embedding_dense_backward",
    "max_pool2d_with_indices_backward",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
    "upsample_bilinear2d_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}
_PRODUCTS = {"mm", "addmm"}
#: The memory that oneDNN keeps for an LSTM layer's backward pass, as a multiple of the layer's output (within 5 %).
_LSTM_KEPT = 15.4
_KEEPS_SQUARES = {"mse_loss"}
#: The number of buffers that a kernel allocates, each as large as its first argument.
_BUFFERS = {"mse_loss": 1, "binary_cross_entropy_with_logits": 2, "huber_loss": 1, "smooth_l1_loss": 1}


def scratch_bytes(op: str, args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Return the number of bytes that a CPU kernel uses at its peak in addition to its results.

    `op` is the name of the op without the namespace, such as ``convolution``.
    """
    held = sum(t.nbytes for t in results)
    if op == "convolution":
        return max(0, _convolution(args, results[0]) - held)
    if op == "convolution_backward":
        return max(0, _convolution_backward(args, results) - held)
    if op.startswith("mkldnn_rnn_layer"):
        weights = sum(t.nbytes for t in args[1:3])
        gates = 4 * (args[7] if op.endswith("backward") else results[0]).nbytes
        return int(gates + weights * (2 if op.endswith("backward") else 1))
    extra = _attention(op, args) if op.startswith("_scaled_dot_product_flash_attention_for_cpu") else 0
    if op in _COPY:
        tensors = {id(a): a for a in args if isinstance(a, Tensor)}.values()
        return extra + sum(t.nbytes for t in tensors if not _dense(t))
    if op == "native_batch_norm_backward":
        return int(args[0].nbytes) if _same_order(args[0], args[1]) else 0
    if op in _PRODUCTS:
        return sum(a.nbytes for a in args if isinstance(a, Tensor) and a.dim() == 2 and not _is_matrix(a))
    if op in _BUFFERS:
        return _BUFFERS[op] * int(args[0].nbytes)
    if op == "upsample_bilinear2d":
        return held + int(args[0].nbytes)
    return extra


def untold_bytes(op: str, args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Return the number of bytes in the last result that the fake kernel does not allocate.

    An LSTM layer keeps additional data for the backward pass, and a mean squared error keeps the memory of the squares
    that are summed.
    """
    if op in _KEEPS_SQUARES:
        return max(0, int(args[0].nbytes) - results[-1].nbytes)
    return int(_LSTM_KEPT * results[0].nbytes) if op == "mkldnn_rnn_layer" and args[15] else 0


def _dense(t: Tensor) -> bool:
    return t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))


def _same_order(a: Tensor, b: Tensor) -> bool:
    return (a.is_contiguous() and b.is_contiguous()) or (_dense(a) and _dense(b) and a.stride() == b.stride())


def _is_matrix(t: Tensor) -> bool:
    (rows, columns), (down, right) = t.shape, t.stride()
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))


def _attention(op: str, args: Sequence[Any]) -> int:
    query, key = (args[1], args[2]) if op.endswith("backward") else (args[0], args[1])
    length, keys, width = query.shape[-2], min(512, key.shape[-2]), query.shape[-1]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    held = 2 * rows * keys if op.endswith("backward") else rows * (keys + 2 + width)
    return int(4 * held * torch.get_num_threads())


def _block() -> int:
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _blocked(t: Tensor, block: int, *, first: bool = False) -> int:
    """Return the number of bytes that `t` occupies in oneDNN's layout, which consists of full blocks of channels.

    If there are only a few input channels (`first`), they are not divided into blocks.
    """
    channels = t.shape[1]
    if first and channels < block:
        return 0
    return math.ceil(channels / block) * block * (t.nbytes // max(1, channels))


def _blocked_weight(weight: Tensor, groups: int) -> int:
    block, (out, into) = _block(), weight.shape[:2]
    out = math.ceil(out / block) * block if groups == 1 else out
    into = math.ceil(into / block) * block if groups == 1 and into >= block else into
    return int(out * into * math.prod(weight.shape[2:]) * weight.element_size())


class _Call:
    """The properties of a convolution that determine its memory."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.x, self.weight, _, stride, _, dilation, self.transposed, _, self.groups = args
        weight, groups = self.weight, self.groups
        self.strided, self.dilated = any(s != 1 for s in stride), any(d != 1 for d in dilation)
        self.into, self.out = int(weight.shape[1]), int(weight.shape[0]) // groups
        self.depthwise = groups > 1 and self.into == self.out == 1
        self.packed = _blocked_weight(weight, groups)

    @property
    def last(self) -> torch.memory_format | None:
        """The channels-last format, if it exists for tensors with this number of dimensions."""
        return {4: torch.channels_last, 5: torch.channels_last_3d}.get(self.x.dim())

    @property
    def plan(self) -> str:
        """How torch computes the convolution: ``blocked``, ``dense`` (channels last), ``columns`` or ``transposed``."""
        x, weight, last = self.x, self.weight, self.last
        if self.transposed:
            return "transposed"
        if not _onednn_takes(x.dtype):
            return "columns"
        point = all(k == 1 for k in weight.shape[2:])
        fast = self.strided or self.dilated or x.shape[0] >= 16 or not point or torch.get_num_threads() > 1
        large = self.groups > 1 or min(weight.shape[2:][-2:]) > 3 or x.shape[0] > 1 or x.numel() > 20480
        if x.dtype == torch.float32 and x.dim() == 4 and not (fast and large):
            return "columns"
        if last is not None and any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)):
            return "dense"
        return "blocked"

    @property
    def block(self) -> int:
        """The number of channels per block, or 0 if oneDNN accepts tensors without blocks."""
        if self.groups == 1 or self.depthwise:
            return _block()
        return next((size for size in (_block(), 8, 4) if self.into % size == self.out % size == 0), 0)


def _onednn_takes(kind: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if kind == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if kind == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return kind == torch.float32


def has_tiles(kind: torch.dtype) -> bool:
    """Check whether the CPU can multiply tiles of this dtype (AMX).

    If it can, oneDNN has dilated kernels with strides.
    """
    known = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return kind == torch.bfloat16 and known is not None and bool(known())


def _convolution(args: Sequence[Any], y: Tensor) -> int:
    call = _Call(args[:9])
    if call.plan == "transposed":
        return int(3 * y.nbytes)
    if call.plan == "columns":
        return int(y.nbytes) + _columns(call, y)
    if call.plan == "dense":
        return int(y.nbytes) + call.packed + _weight_copy(call)
    if not call.block:
        return int(2 * y.nbytes)
    source = _blocked(call.x, call.block, first=call.groups == 1)
    result = _blocked(y, call.block)
    return max(source + call.packed + result, result + y.nbytes)


def _convolution_backward(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    grad, call, wanted = args[0], _Call(args[1:10]), args[10]
    into = int(call.x.nbytes) if wanted[0] else 0
    held = int(sum(t.nbytes for t in results))
    if call.plan == "transposed":
        return int(2 * grad.nbytes + call.x.nbytes) + held
    if call.plan == "columns":
        return held + _columns(call, grad)
    if call.plan == "dense":
        return held + 2 * call.packed + _weight_copy(call)
    return max(_data(call, grad) if wanted[0] else 0, into + _weights(call, grad) if wanted[1] else 0)


def _data(call: _Call, grad: Tensor) -> int:
    """Return the number of bytes in use while oneDNN computes the input gradient, including the gradient itself."""
    into = int(call.x.nbytes)
    wide = call.groups == 1 or call.out > _block() or (call.depthwise and call.x.dtype != torch.float32)
    if call.strided and wide and (not call.dilated or has_tiles(call.x.dtype)):
        # The channels of the result are last, so it is copied again to put them first.
        alike = call.x.shape[1] == 1 or math.prod(call.x.shape[2:]) == 1
        return max(int(grad.nbytes) + call.packed + into, (2 if alike else 3) * into)
    if (call.strided and call.dilated) or not call.block:
        return 2 * into
    blocked = _blocked(call.x, call.block)
    return max(_blocked(grad, call.block) + call.packed + blocked, blocked + into)


def _weights(call: _Call, grad: Tensor) -> int:
    """Return the number of bytes in use while oneDNN computes the weight gradient, including the gradient itself."""
    if call.block < 8 or (call.strided and call.dilated):
        return 2 * int(call.weight.nbytes)
    source = _blocked(call.x, call.block, first=call.groups == 1)
    return max(_blocked(grad, call.block) + source + call.packed, 2 * call.packed)


def _weight_copy(call: _Call) -> int:
    """Return the size of the weight's copy, which is needed if only the input's channels are last."""
    last = call.last
    return 0 if last is None or call.weight.is_contiguous(memory_format=last) else int(call.weight.nbytes)


def _columns(call: _Call, y: Tensor) -> int:
    """Return the size of the input unfolded into columns, in bytes."""
    kernel = math.prod(call.weight.shape[2:])
    if kernel == 1 and not call.strided:
        return 0
    return int(call.x.shape[0] * call.x.shape[1] * kernel * math.prod(y.shape[2:]) * call.x.element_size())
