"""FLOPs of operators: torch's formulas, and those that torch lacks.

A multiply-add counts as two. torch's formulas are in a registry to which users can add; perfnb's are not added to it.
As in torch, masked and causal attention count in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

#: FLOPs from an operator's arguments and its result.
Formula = Callable[[tuple[Any, ...], Mapping[str, Any], Any], int]


def flops_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """FLOPs of a call of an operator; ``None`` if there is no formula, or it does not fit the call."""
    name = operator_name(func)
    if name in MOVING:
        return 0
    if name in _MAY_ADD and not adds(name, args, kwargs):
        return 0
    if any(isinstance(value, torch.Tensor) and value.layout in _SPARSE for value in args):
        return None  # formulas use shapes, which do not tell the number of stored values
    own = _FIRST.get(name)
    try:
        if own is not None:
            return int(own(args, kwargs, out))
        known = flop_registry.get(getattr(func, "_overloadpacket", func))
        if known is not None:
            return int(known(*args, **kwargs, out_val=out))
        own = _LACKING.get(name)
        return None if own is None else int(own(args, kwargs, out))
    except Exception:  # a formula that fails on unexpected arguments must not fail the step
        return None


def operator_name(func: Any) -> str:
    """An operator's name as in the trace, without its overload: ``aten::addmm``."""
    name = func.name() if callable(getattr(func, "name", None)) else str(func)
    return str(name).partition(".")[0] if "::" in str(name) else str(name)


def aten(names: str) -> frozenset[str]:
    """Full names of torch's operators from a list of short ones."""
    return frozenset(f"aten::{name}" for name in names.split())


def _size(value: Any) -> int:
    return int(value.numel())


def _count(lengths: Any) -> int:
    return int(prod(lengths))


def _product(a: Any, b: Any) -> int:
    """A product of matrices or of batches of matrices."""
    return 2 * int(a.numel()) * int(b.shape[-1])


def _per_output(position: int) -> Formula:
    """Each output element is a dot product along the last dimension of an argument."""
    return lambda args, kwargs, out: 2 * _size(out) * int(args[position].shape[-1])


def _convolution(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """A convolution, not transposed, under the name of a library's implementation."""
    return 2 * _size(out) * _count(args[1].shape[1:])


def _convolution_backward(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """Each of the two gradients takes as many multiply-adds as the forward pass.

    torch's formula wrongly multiplies the weight's gradient by the number of groups.
    """
    gradient, inputs, weight = args[:3]
    transposed, mask = args[7], args[10]
    places = _count((inputs if transposed else gradient).shape[2:]) * int(inputs.shape[0])
    return 2 * places * _size(weight) * (int(mask[0]) + int(mask[1]))


def _attention(tensors: tuple[Any, ...], by_key: int, by_value: int) -> int:
    """Products of the size of the attention scores: `by_key` along the keys' width, `by_value` along the values'."""
    query, key, value = tensors
    scores = _count(query.shape[:-1]) * int(key.shape[-2])
    return 2 * scores * (by_key * int(query.shape[-1]) + by_value * int(value.shape[-1]))


def _grouped(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """A grouped product: the groups together make up the rows, the columns or the inner dimension."""
    a, b = args[:2]
    groups = int(a.shape[0]) if a.dim() == 3 and b.dim() == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


def _recurrent_step_flops(inputs: Any, weights: Any) -> int:
    """Each weight matrix is multiplied with each row of the input."""
    rows = _size(inputs) // int(inputs.shape[-1])
    return 2 * rows * sum(_size(weight) for weight in weights if weight.dim() == 2)


def _encoder_layer(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """A transformer layer in one operator: four projections, and attention over all pairs of positions."""
    source = args[0]
    batch, length, width = map(int, source.shape)
    weights = sum(_size(args[place]) for place in (3, 5, 14, 16))
    return 2 * batch * length * weights + 4 * batch * length * length * width


def _self_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """`_native_multi_head_attention`, self or cross."""
    query, key, width = args[0], args[1], int(args[3])
    batch, length = int(query.shape[0]), int(query.shape[1])
    other = int(key.shape[1])
    projections = 2 * batch * width * width * (2 * length + 2 * other)
    return projections + 4 * batch * length * other * width


_bare_attention: Formula = lambda args, kwargs, out: _attention(args[:3], 1, 1)  # noqa: E731
#: Recomputed scores, their gradient, and the gradients of query, key and value.
_attention_backward: Formula = lambda args, kwargs, out: _attention(args[1:4], 3, 2)  # noqa: E731

#: perfnb's formulas that replace torch's, because torch's are wrong for some calls.
_FIRST: Mapping[str, Formula] = MappingProxyType({"aten::convolution_backward": _convolution_backward})

#: perfnb's formulas for what torch has none for.
_LACKING: Mapping[str, Formula] = MappingProxyType(
    {
        "aten::_scaled_dot_product_flash_attention_for_cpu": _bare_attention,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
        "aten::_scaled_dot_product_fused_attention_overrideable": _bare_attention,
        "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
        "aten::_scaled_dot_product_attention_math_for_mps": _bare_attention,
        "aten::_native_multi_head_attention": _self_attention,
        "aten::_transformer_encoder_layer_fwd": _encoder_layer,
        **dict.fromkeys(aten("dot vdot mv"), lambda args, kwargs, out: 2 * _size(args[0])),
        **dict.fromkeys(aten("addmv addmv_"), lambda args, kwargs, out: 2 * _size(args[1])),
        **dict.fromkeys(aten("addr addr_"), lambda args, kwargs, out: 2 * _size(args[1]) * _size(args[2])),
        **dict.fromkeys(
            aten("addmm_ addbmm addbmm_ baddbmm_ _addmm_activation"),
            lambda args, kwargs, out: _product(args[1], args[2]),
        ),
        "aten::_int_mm": lambda args, kwargs, out: _product(args[0], args[1]),
        **dict.fromkeys(aten("_grouped_mm _scaled_grouped_mm"), _grouped),
        **dict.fromkeys(
            {
                *aten("linear matmul mkldnn_linear _weight_int8pack_mm _weight_int4pack_mm _scaled_mm_v2"),
                *("aten::_weight_int4pack_mm_for_cpu", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"),
                *("quantized::linear", "quantized::linear_relu"),
                *("quantized::linear_dynamic", "quantized::linear_relu_dynamic"),
            },
            _per_output(0),
        ),
        **dict.fromkeys(
            {
                *aten("cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution"),
                *aten("mkldnn_convolution _conv_depthwise2d conv_depthwise3d slow_conv3d_forward"),
                "mkldnn::_convolution_pointwise",
            },
            _convolution,
        ),
        "aten::conv_tbc": lambda args, kwargs, out: 2 * _size(out) * _count(args[1].shape[:2]),
        "aten::mkldnn_rnn_layer": lambda args, kwargs, out: _recurrent_step_flops(args[0], args[1:3]),
        "aten::mkldnn_rnn_layer_backward": lambda args, kwargs, out: 2 * _recurrent_step_flops(args[0], args[1:3]),
        "aten::_cudnn_rnn": lambda args, kwargs, out: _recurrent_step_flops(args[0], args[1]),
        "aten::_cudnn_rnn_backward": lambda args, kwargs, out: (
            (1 + int(args[-1][3])) * _recurrent_step_flops(args[0], args[1])
        ),
    }
)

#: Operators that neither compute nor move data, other than views by their schema.
FREE = aten("""
    empty empty_like empty_strided new_empty new_empty_strided empty_permuted _empty_affine_quantized
    _efficientzerotensor t_ transpose_ squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ detach_ rename_
    requires_grad_ resize_ resize_as_ set_ _unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk lift
    lift_fresh _fused_sdp_choice
""")

#: Operators that create or move data without arithmetic.
MOVING = FREE | aten("""
    zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full zero zero_ fill fill_ scalar_tensor eye
    arange tril_indices triu_indices _foreach_zero_
    clone copy copy_ _to_copy _copy_from _copy_from_and_resize _foreach_copy_ lift_fresh_copy _reshape_copy _pin_memory
    split_copy split_with_sizes_copy _conj_physical _to_dense _to_sparse _to_sparse_csr to_mkldnn
    cat _cat stack repeat repeat_interleave flip roll rot90 tril triu tril_ triu_ constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    pixel_shuffle pixel_unshuffle channel_shuffle im2col
    index index_select gather take embedding masked_select nonzero _unsafe_index select_backward slice_backward
    diagonal_backward select_scatter slice_scatter diagonal_scatter as_strided_scatter index_copy index_copy_
    index_fill index_fill_ masked_fill masked_fill_ masked_scatter masked_scatter_ where _local_scalar_dense
""")

#: Operators that move data unless they are asked to accumulate.
_MAY_ADD = aten("index_put index_put_ _index_put_impl_ _unsafe_index_put put put_ scatter scatter_")


def adds(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that writes into a tensor accumulates."""
    if name in _MAY_ADD:
        by_position = "scatter" not in name and len(args) > 3 and bool(args[3])
        return by_position or bool(kwargs.get("accumulate", False)) or "reduce" in kwargs
    return name in ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_")
