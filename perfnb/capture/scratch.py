"""Memory that CPU kernels take beside their results, which fake kernels do not show.

A convolution by oneDNN holds copies of its tensors in blocked layouts; many backward kernels first copy a gradient
that is not contiguous. The sizes here were found by watching torch's CPU allocator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: Kernels that work on contiguous copies of the arguments that are not.
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
#: What oneDNN keeps of an LSTM layer for backward, as a multiple of the layer's output; within 5 % of it.
_LSTM_KEPT = 15.4
_KEEPS_SQUARES = {"mse_loss"}
#: Kernels that hold so many buffers of their first argument's size.
_BUFFERS = {"mse_loss": 1, "binary_cross_entropy_with_logits": 2, "huber_loss": 1, "smooth_l1_loss": 1}


def scratch_bytes(op: str, args: Sequence[Any], results: Sequence[Tensor]) -> int:
    """Bytes that a CPU kernel holds at its own peak beside its results.

    Parameters
    ----------
    op : str
        Name of the operator without namespace and overload: ``convolution``.
    args : sequence
        What it was called with.
    results : sequence of Tensor
        What it made.
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
    extra = _attention(op, args)
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
    """Bytes of the last result that the fake kernel does not tell.

    An LSTM layer keeps more for backward; a mean squared error stays in the memory of the squares that it sums.
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
    if not op.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        return 0
    query, key = (args[1], args[2]) if op.endswith("backward") else (args[0], args[1])
    length, keys, width = query.shape[-2], min(512, key.shape[-2]), query.shape[-1]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    held = 2 * rows * keys if op.endswith("backward") else rows * (keys + 2 + width)
    return int(4 * held * torch.get_num_threads())


def _block() -> int:
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _blocked(t: Tensor, *, first: bool = False) -> int:
    """Bytes of `t` in oneDNN's layout: channels in full blocks; few input channels (`first`) stay as they are."""
    block, channels = _block(), t.shape[1]
    if first and channels < block:
        return 0
    return math.ceil(channels / block) * block * (t.nbytes // max(1, channels))


def _blocked_weight(weight: Tensor, groups: int) -> int:
    block, (out, into) = _block(), weight.shape[:2]
    out = math.ceil(out / block) * block if groups == 1 else out
    into = math.ceil(into / block) * block if groups == 1 and into >= block else into
    return int(out * into * math.prod(weight.shape[2:]) * weight.element_size())


def _plan(x: Tensor, weight: Tensor, call: Mapping[str, Any]) -> str:
    """How torch computes this convolution: ``blocked``, ``dense`` (channels last), ``columns`` or ``transposed``."""
    if call["transposed"]:
        return "transposed"
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if not torch.backends.mkldnn.is_available() or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return "columns"
    strided = any(s != 1 for s in (*call["stride"], *call["dilation"]))
    kernel = weight.shape[2:]
    point = all(k == 1 for k in kernel)
    fast = strided or x.shape[0] >= 16 or not point or torch.get_num_threads() > 1
    large = call["groups"] > 1 or min(kernel[-2:]) > 3 or x.shape[0] > 1 or x.numel() > 20480
    if x.dtype == torch.float32 and x.dim() == 4 and not (fast and large):
        return "columns"
    if last is not None and any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)):
        return "dense"
    return "blocked"


def _convolution(args: Sequence[Any], y: Tensor) -> int:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    plan = _plan(x, weight, {"stride": stride, "dilation": dilation, "transposed": transposed, "groups": groups})
    if plan == "transposed":
        return int(3 * y.nbytes)
    if plan == "columns":
        return int(y.nbytes) + _columns(x, weight, y)
    packed = _blocked_weight(weight, groups)
    if plan == "dense":
        return int(y.nbytes) + packed
    return max(_blocked(x, first=True) + packed + _blocked(y), _blocked(y) + y.nbytes)


def _convolution_backward(args: Sequence[Any], results: Sequence[Tensor]) -> int:
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
    plan = _plan(x, weight, {"stride": stride, "dilation": dilation, "transposed": transposed, "groups": groups})
    into = x.nbytes if wanted[0] else 0
    held = int(sum(t.nbytes for t in results))
    if plan == "transposed":
        return int(2 * grad.nbytes + x.nbytes) + held
    if plan == "columns":
        return held + _columns(x, weight, grad)
    packed = _blocked_weight(weight, groups)
    if plan == "dense":
        return held + 2 * packed
    data = max(_blocked(grad) + packed + _blocked(x), _blocked(x) + into) if wanted[0] else 0
    weights = into + _blocked(grad) + _blocked(x, first=True) + 2 * packed if wanted[1] else 0
    return max(data, weights)


def _columns(x: Tensor, weight: Tensor, y: Tensor) -> int:
    """Bytes of the input unfolded into columns."""
    kernel = math.prod(weight.shape[2:])
    if kernel == 1:
        return 0
    return int(x.shape[0] * x.shape[1] * kernel * math.prod(y.shape[2:]) * x.element_size())
