"""Count the FLOPs and bytes of every operator in a step as torch dispatches it.

Each operator runs in a span named ``pf_op#<n>``, which allows its layer and direction to be found like those of any
other event in the trace. torch runs compiled regions uncompiled under a dispatch mode, so the operators in their layers
are also counted.

FLOPs are computed with torch's formulas, or with perfnb's where torch has none. As in torch, a multiply-add counts as
two FLOPs, and masked and causal attention are counted in full. Users can add formulas to torch's registry, which does
not contain perfnb's formulas. The number of bytes is a lower bound: each input is read once and each output is written
once, ignoring caches and repeated reads. The operator's schema shows which results are views and which arguments are
written to. Operators that use only part of an argument are listed below.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from perfnb.step.layers import function_span
from perfnb.trace_names import COLLECTIVE_OP, OP_SPAN

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
#: Tensor classes without data, used by compilers and tensor-parallel planning.
_SHADOWS = ("FakeTensor", "FunctionalTensor")


class OpCall(NamedTuple):
    """A call to an operator."""

    #: The number in the label of its span.
    number: int
    #: The operator's name in the trace, such as ``aten::addmm``.
    op: str
    #: The number of FLOPs, where a multiply-add counts as two; ``None`` if there is no formula.
    flops: int | None
    #: A lower bound on the bytes moved or, for a collective, the size of its largest argument in bytes.
    bytes: int
    #: The dtype of the arithmetic, such as ``float32``.
    dtype: str
    #: The kind of device that it ran on.
    device: str = "cpu"


class OpCounter(TorchDispatchMode):
    """Context manager that counts each operator that this thread and its backward passes run.

    The counter does not keep tensors alive, and it does not change errors. Kernels launched without an operator, for
    example by a Triton function called in an `autograd.Function`, are not counted.

    Attributes
    ----------
    calls : list of OpCall
        The calls, sorted by the time when they ended.
    """

    #: Also receive operators that take functions as arguments, such as `flex_attention`.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OpCall] = []
        self._numbers = itertools.count()
        #: One stance per nested entry, because the mode re-enters itself for the parts of composite operators.
        self._stances: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise, torch would spend seconds loading its compiler, only to disable it in the dispatch below.
        return False

    def __enter__(self) -> OpCounter:
        # Under a mode, torch runs compiled regions eagerly, but regions with `fullgraph` raise an error without this.
        compiles = not self._stances and "torch._dynamo" in sys.modules
        self._stances.append(torch.compiler.set_stance("force_eager") if compiles else None)
        if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            _register_with_each_operator()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        stance = self._stances.pop()
        if stance is not None:
            stance.__exit__(*exc_info)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        # The user's own ranges are opened and closed by operators, and a span must not overlap them.
        if getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs)
        subclasses = [kind for kind in types if _dispatches(kind)]
        if any(kind.__name__ in _SHADOWS for kind in subclasses):
            return func(*args, **kwargs)
        if subclasses:
            return NotImplemented  # the subclass handles it, and its operators on plain tensors are dispatched here
        if operator_of(func).composite and all(map(_is_plain, tensors_in([*args, *kwargs.values()]))):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        number = next(self._numbers)
        with function_span(f"{OP_SPAN}{number}"):
            out = func(*args, **kwargs)
        self._note(number, func, args, kwargs, out)
        return out

    def _note(self, number: int, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        operator = operator_of(func)
        try:
            collective = COLLECTIVE_OP.match(operator.name) is not None
            moved = message_bytes(args) if collective else bytes_moved(operator, args, kwargs, out)
        except Exception:  # some kinds of tensors have no size
            moved = 0
        flops = 0 if operator.only_views else flops_of(func, args, kwargs, out)
        values = sorted([*args, *kwargs.values(), out], key=lambda value: not isinstance(value, Tensor))
        tensors = list(tensors_in(values))  # tensors in lists come last
        self.calls.append(OpCall(number, operator.name, flops, moved, _dtype(tensors), _device(tensors)))


def _register_with_each_operator() -> None:
    """Register the counter with operators that take functions, because older versions of torch reject unknown modes."""
    for op in torch._ops._higher_order_ops.values():
        if OpCounter not in op.python_key_table:
            op.python_key_table[OpCounter] = partial(_dispatched, op)


def _dispatched(op: Any, counter: OpCounter, *args: Any, **kwargs: Any) -> Any:
    return counter.__torch_dispatch__(op, (), args, kwargs)


def _dispatches(kind: type) -> bool:
    """Check whether a tensor class implements its own operators."""
    return getattr(kind, "__torch_dispatch__", None) not in (
        Tensor.__torch_dispatch__,
        torch._C._disabled_torch_dispatch_impl,
    )


class _Argument(NamedTuple):
    name: str
    written: bool
    #: Whether this is an `out=` argument, which is written but not read.
    only: bool


class _Operator(NamedTuple):
    """Properties of an operator that follow from its name and schema."""

    #: The name in the trace, without the overload, such as ``aten::addmm``.
    name: str
    #: Whether it is made up of other operators. It is dispatched as a whole only without autograd, for example in
    #: inference mode.
    composite: bool
    #: The arguments, or ``None`` if the operator has no schema.
    arguments: tuple[_Argument, ...] | None = None
    #: Whether each result is one of the arguments or a view of one.
    results: tuple[bool, ...] = ()
    #: Whether it leaves its arguments unchanged and returns no tensors other than views of them.
    only_views: bool = False
    #: Whether it neither computes anything nor moves data.
    free: bool = False


@lru_cache(maxsize=4096)
def operator_of(func: Any) -> _Operator:
    """Return the properties of an operator that follow from its name and schema."""
    full = str(func.name() if callable(getattr(func, "name", None)) else func)
    name = full.partition(".")[0] if "::" in full else full
    own = isinstance(func, torch._ops.OpOverload)
    composite = own and bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, _COMPOSITE))
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _Operator(name, composite)
    arguments = tuple(
        _Argument(each.name, each.alias_info is not None and each.alias_info.is_write, each.is_out)
        for each in schema.arguments
    )
    results = tuple(each.alias_info is not None for each in schema.returns)
    writes = any(argument.written for argument in arguments)
    returned = [each for each in schema.returns if "Tensor" in str(each.type)]
    only_views = not writes and all(each.alias_info is not None for each in returned)
    free = name in FREE or (not writes and bool(results) and all(results))
    return _Operator(name, composite, arguments, results, only_views, free)


def _is_plain(tensor: Tensor) -> bool:
    """Check that composite operators have no special kernels for this kind of tensor."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _dtype(tensors: list[Tensor]) -> str:
    """Return the first floating-point dtype among the inputs and outputs, or the first dtype if there is none."""
    dtypes = [tensor.dtype for tensor in tensors]
    fractions = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return str(next(iter(fractions or dtypes), "")).removeprefix("torch.")


def _device(tensors: list[Tensor]) -> str:
    """Return the kind of device on which an operator ran.

    This is the first accelerator among the inputs and outputs. The CPU is returned only if there is no accelerator,
    because scalars stay on the CPU.
    """
    return next((tensor.device.type for tensor in tensors if tensor.device.type != "cpu"), "cpu")


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

#: Computes FLOPs from an operator's arguments and result.
Formula = Callable[[tuple[Any, ...], Any], Any]


def message_bytes(args: Iterable[Any]) -> int:
    """Return the size in bytes of a collective's message, which is its largest tensor or list of tensors."""
    return max((sum(tensor.nbytes for tensor in tensors_in([one])) for one in args), default=0)


def flops_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """Return the number of FLOPs in a call to an operator, or ``None`` if no formula applies to the call."""
    name = operator_of(func).name
    if name in MOVING or (name in _MAY_ADD and not adds(name, args, kwargs)):
        return 0
    if any(isinstance(value, Tensor) and value.layout in _SPARSE for value in args):
        return None  # formulas are based on shapes, which do not show how many values are stored
    try:
        known = flop_registry.get(getattr(func, "_overloadpacket", func))
        if known is not None and name not in _WRONG_IN_TORCH:
            return int(known(*args, **kwargs, out_val=out))
        return int(_FORMULAS[name](args, out)) if name in _FORMULAS else None
    except Exception:  # the step must not fail because a formula does not expect these arguments
        return None


def aten(names: str) -> frozenset[str]:
    """Return the full names of torch operators, given their short names separated by whitespace."""
    return frozenset(f"aten::{name}" for name in names.split())


def _convolution_backward(args: tuple[Any, ...], out: Any) -> Any:
    """Return the number of FLOPs in the backward pass of a convolution.

    Computing each of the two gradients takes as many multiply-adds as the forward pass. torch's formula is wrong: it
    multiplies the cost of the weight's gradient by the number of groups.
    """
    gradient, inputs, weight = args[:3]
    transposed, mask = args[7], args[10]
    places = prod((inputs if transposed else gradient).shape[2:]) * inputs.shape[0]
    return 2 * places * weight.numel() * (mask[0] + mask[1])


def _attention(tensors: tuple[Any, ...], by_key: int, by_value: int) -> Any:
    """Return the number of FLOPs in attention.

    It consists of matrix products that are as large as the attention scores: `by_key` products along the width of the
    keys, and `by_value` products along the width of the values.
    """
    query, key, value = tensors
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (by_key * query.shape[-1] + by_value * value.shape[-1])


def _grouped(args: tuple[Any, ...], out: Any) -> Any:
    """Return the number of FLOPs in a grouped matrix product.

    Together, the groups make up the rows, the columns or the inner dimension.
    """
    a, b = args[:2]
    groups = a.shape[0] if a.dim() == 3 and b.dim() == 3 else 1
    return 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _recurrent(inputs: Any, weights: Any) -> Any:
    """Return the number of FLOPs in a recurrent layer, which multiplies each weight matrix by each row of the input."""
    rows = inputs.numel() // inputs.shape[-1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _encoder_layer(args: tuple[Any, ...], out: Any) -> Any:
    """Return the number of FLOPs in a transformer layer that is implemented as a single operator.

    The layer has four projections and computes attention over all pairs of positions.
    """
    batch, length, width = args[0].shape
    weights = sum(args[place].numel() for place in (3, 5, 14, 16))
    return 2 * batch * length * weights + 4 * batch * length * length * width


def _multi_head_attention(args: tuple[Any, ...], out: Any) -> Any:
    """Return the number of FLOPs in `_native_multi_head_attention`, for self-attention or cross-attention."""
    query, key, width = args[0], args[1], args[3]
    batch, length, other = query.shape[0], query.shape[1], key.shape[1]
    return 4 * batch * width * width * (length + other) + 4 * batch * length * other * width


#: Operators whose formulas in torch are wrong for some calls.
_WRONG_IN_TORCH = aten("convolution_backward")

#: perfnb's formulas.
_FORMULAS: Mapping[str, Formula] = {
    "aten::convolution_backward": _convolution_backward,
    **dict.fromkeys(
        aten("""
            _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
            _scaled_dot_product_attention_math_for_mps
        """),
        lambda args, out: _attention(args[:3], 1, 1),
    ),
    **dict.fromkeys(
        aten("""
            _scaled_dot_product_flash_attention_for_cpu_backward
            _scaled_dot_product_fused_attention_overrideable_backward
        """),
        # The scores are recomputed, followed by their gradient and the gradients of the query, key and value.
        lambda args, out: _attention(args[1:4], 3, 2),
    ),
    "aten::_native_multi_head_attention": _multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    **dict.fromkeys(aten("dot vdot mv"), lambda args, out: 2 * args[0].numel()),
    **dict.fromkeys(aten("addmv addmv_"), lambda args, out: 2 * args[1].numel()),
    **dict.fromkeys(aten("addr addr_"), lambda args, out: 2 * args[1].numel() * args[2].numel()),
    **dict.fromkeys(
        aten("addmm_ addbmm addbmm_ baddbmm_ _addmm_activation"),
        lambda args, out: 2 * args[1].numel() * args[2].shape[-1],
    ),
    "aten::_int_mm": lambda args, out: 2 * args[0].numel() * args[1].shape[-1],
    **dict.fromkeys(aten("_grouped_mm _scaled_grouped_mm"), _grouped),
    # Each output element is a dot product along the last dimension.
    **dict.fromkeys(
        {
            *aten("linear matmul mkldnn_linear _weight_int8pack_mm _weight_int4pack_mm _scaled_mm_v2"),
            *("aten::_weight_int4pack_mm_for_cpu", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"),
            *("quantized::linear", "quantized::linear_relu"),
            *("quantized::linear_dynamic", "quantized::linear_relu_dynamic"),
        },
        lambda args, out: 2 * out.numel() * args[0].shape[-1],
    ),
    # Convolutions that are not transposed, named after the libraries that implement them.
    **dict.fromkeys(
        {
            *aten("cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution"),
            *aten("mkldnn_convolution _conv_depthwise2d conv_depthwise3d slow_conv3d_forward"),
            "mkldnn::_convolution_pointwise",
        },
        lambda args, out: 2 * out.numel() * prod(args[1].shape[1:]),
    ),
    "aten::conv_tbc": lambda args, out: 2 * out.numel() * prod(args[1].shape[:2]),
    "aten::mkldnn_rnn_layer": lambda args, out: _recurrent(args[0], args[1:3]),
    "aten::mkldnn_rnn_layer_backward": lambda args, out: 2 * _recurrent(args[0], args[1:3]),
    "aten::_cudnn_rnn": lambda args, out: _recurrent(args[0], args[1]),
    "aten::_cudnn_rnn_backward": lambda args, out: (1 + args[-1][3]) * _recurrent(args[0], args[1]),
}

#: Operators that neither compute anything nor move data, in addition to those whose schemas declare a view.
FREE = aten("""
    empty empty_like empty_strided new_empty new_empty_strided empty_permuted _empty_affine_quantized
    _efficientzerotensor t_ transpose_ squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ detach_ rename_
    requires_grad_ resize_ resize_as_ set_ _unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk lift
    lift_fresh _fused_sdp_choice
""")

#: Operators that create or move data without doing arithmetic.
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

#: Operators that only move data unless they are called with an option to accumulate.
_MAY_ADD = aten("index_put index_put_ _index_put_impl_ _unsafe_index_put put put_ scatter scatter_")


def adds(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Check whether an operator that writes into a tensor adds to the existing values."""
    if name in _MAY_ADD:
        by_position = "scatter" not in name and len(args) > 3 and bool(args[3])
        return by_position or bool(kwargs.get("accumulate", False)) or "reduce" in kwargs
    return name in ("aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_")


#: Identifies a tensor's memory. A tensor that is passed twice is counted once, even with permuted dimensions.
_Place = tuple[Any, ...]


def bytes_moved(operator: _Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return a lower bound on the bytes that a call to an operator reads and writes."""
    name, arguments = operator.name, operator.arguments
    if arguments is None:
        return sum(_extents([*args, *kwargs.values(), out]).values())
    if operator.free:
        return 0
    if name in _TOUCHED:
        return _putting(name, args, kwargs)
    skipped = _unread(name, args)
    picked = _PICKED[name](args, out) if name in _PICKED else None
    reads, writes = {}, {}
    named = [(argument, kwargs[argument.name]) for argument in arguments[len(args) :] if argument.name in kwargs]
    for place, (argument, value) in enumerate([*zip(arguments, args, strict=False), *named]):
        for tensor in tensors_in([value]):
            where, extent = _place(tensor), _extent(tensor)
            if argument.written:
                writes[where] = extent
            if place == 0 and picked is not None:
                extent = min(extent, picked * tensor.element_size())
            if place not in skipped and not (argument.written and (argument.only or name in _OVERWRITING)):
                reads[where] = extent
    for result, tensors in zip(operator.results, out if len(operator.results) > 1 else [out], strict=False):
        if not result:  # otherwise it is an argument or a view of one
            writes |= _extents([tensors])
    return sum(reads.values()) + sum(writes.values())


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the given values, including tensors inside containers."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _place(tensor: Tensor) -> _Place:
    try:
        steps = sorted(pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[0] != 0 and pair[1] > 1)
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, *steps)
    except (RuntimeError, NotImplementedError):  # sparse, nested or opaque
        return (id(tensor),)


def _extents(values: Iterable[Any]) -> dict[_Place, int]:
    """Return the sizes in bytes of the tensors among the given values, keyed by their location in memory."""
    return {_place(tensor): _extent(tensor) for tensor in tensors_in(values)}


def _extent(tensor: Tensor) -> int:
    """Return the number of bytes that a tensor's elements occupy in memory, without counting any of them twice."""
    size = tensor.element_size()
    if tensor.layout is torch.sparse_coo:
        return int(tensor._nnz()) * (size * prod(tensor.shape[tensor.sparse_dim() :]) + 8 * tensor.sparse_dim())
    if tensor.is_mkldnn:  # its strides do not mean anything
        return size * tensor.numel()
    try:
        steps = [pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[0] != 0]
    except (RuntimeError, NotImplementedError):  # compressed or nested
        return size * (tensor if tensor.layout is torch.strided else tensor.values()).numel()
    if tensor.numel() == 0:
        return 0
    spanned = 1 + sum(step * (length - 1) for step, length in steps)
    return size * min(prod(length for _, length in steps), spanned)


def _putting(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the number of bytes moved by an operator that writes only some elements of its first argument.

    If the operator accumulates, it also reads these elements.
    """
    sources = sum(_extents(args[1:]).values())
    touched = _TOUCHED[name](args) * int(args[0].element_size())
    return sources + touched * (2 if adds(name, args, kwargs) or "reduce" in name else 1)


def _put_places(args: tuple[Any, ...]) -> int:
    """Return the number of elements that `index_put_` writes.

    If the index is a mask, the number of true elements is unknown here, so the number of values is returned.
    """
    target, indices, values = args[:3]
    chosen = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in chosen):
        return int(values.numel())
    rest = prod(length for dim, length in enumerate(target.shape) if dim not in dict(chosen))
    return int(rest * prod(torch.broadcast_shapes(*(index.shape for _, index in chosen))))


def _unread(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of the arguments of which an operator uses only the shape."""
    if name == "aten::convolution_backward":
        mask = args[10]
        return tuple(place for place, needed in ((1, mask[1]), (2, mask[0])) if not needed)
    return _UNREAD.get(name, ())


#: In-place operators that do not read the previous values.
_OVERWRITING = aten("""
    copy_ fill_ zero_ _foreach_copy_ _foreach_zero_ uniform_ normal_ bernoulli_ random_ exponential_ cauchy_ geometric_
    log_normal_
""")

_UNREAD: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        aten("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full"), (0,)
    ),
    **dict.fromkeys(aten("nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward"), (1,)),
    **dict.fromkeys(aten("avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward"), (1,)),
}

_AS_MANY_AS_RETURNED = aten("embedding index index_select gather take masked_select _unsafe_index")
#: The number of elements that are read from the first argument.
_PICKED: Mapping[str, Callable[[tuple[Any, ...], Any], int]] = {
    **dict.fromkeys(_AS_MANY_AS_RETURNED, lambda args, out: int(out.numel())),
    **dict.fromkeys(aten("nll_loss_forward nll_loss2d_forward"), lambda args, out: int(args[1].numel())),
    "aten::_embedding_bag": lambda args, out: int(args[1].numel()) * int(args[0].shape[-1]),
    "aten::_embedding_bag_forward_only": lambda args, out: int(args[1].numel()) * int(args[0].shape[-1]),
}

#: The number of elements that are written to the first argument.
_TOUCHED: Mapping[str, Callable[[tuple[Any, ...]], int]] = {
    **dict.fromkeys(aten("index_put_ _index_put_impl_"), _put_places),
    **dict.fromkeys(aten("scatter_ scatter_add_ scatter_reduce_"), lambda args: int(args[2].numel())),
    **dict.fromkeys(aten("index_add_ index_copy_ index_reduce_"), lambda args: int(args[3].numel())),
}
