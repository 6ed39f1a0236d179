"""FLOPs and bytes of every operator of a step, counted as torch dispatches it.

Each operator runs in a span ``pf_op#<n>``, so that its layer and direction are found as for any other event of the
trace. Under a dispatch mode torch runs compiled regions uncompiled, so the operators of their layers are counted too.
"""

from __future__ import annotations

import itertools
import sys
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from perfnb.step.formulas import flops_of, operator_name
from perfnb.step.layers import function_span
from perfnb.step.traffic import bytes_moved
from perfnb.trace_names import OP_SPAN

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
#: Tensors of compilers and of tensor-parallel planning, which hold no data.
_SHADOWS = ("FakeTensor", "FunctionalTensor")


class OpCall(NamedTuple):
    """A call of an operator."""

    #: As in the label of its span.
    number: int
    #: Name as in the trace: ``aten::addmm``.
    op: str
    #: A multiply-add counts as two; ``None`` if there is no formula.
    flops: int | None
    #: Lower bound of the bytes moved.
    bytes: int
    #: Of the arithmetic: ``float32``.
    dtype: str


class OpCounter(TorchDispatchMode):
    """Context manager that counts each operator of this thread and of its backward passes.

    It keeps no tensor alive, and errors pass through unchanged. Kernels launched without an operator, such as a Triton
    function called in an `autograd.Function`, are not counted.

    Attributes
    ----------
    calls : list of OpCall
        In the order in which they ended.
    """

    #: Receive operators that take functions, such as `flex_attention`, too.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OpCall] = []
        self._numbers = itertools.count()
        #: One per nested entry: the mode re-enters itself for the parts of composite operators.
        self._stances: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch loads its compiler, which takes seconds, only to disable it in the dispatch below.
        return False

    def __enter__(self) -> OpCounter:
        # Under a mode torch runs compiled regions eagerly, but refuses those with `fullgraph` unless asked to.
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
        # A user's range opens and closes by operators of its own, and no span may cut it.
        if getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs)
        subclasses = [kind for kind in types if _dispatches(kind)]
        if any(kind.__name__ in _SHADOWS for kind in subclasses):
            return func(*args, **kwargs)
        if subclasses:
            return NotImplemented  # the subclass handles it; its operators on plain tensors come here again
        if _is_composite(func) and all(map(_is_plain, _tensors([*args, *kwargs.values()]))):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        number = next(self._numbers)
        with function_span(f"{OP_SPAN}{number}"):
            out = func(*args, **kwargs)
        self._note(number, func, args, kwargs, out)
        return out

    def _note(self, number: int, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        try:
            moved = bytes_moved(func, args, kwargs, out)
        except Exception:  # a kind of tensor without a size
            moved = 0
        flops = 0 if _only_views(func) else flops_of(func, args, kwargs, out)
        self.calls.append(OpCall(number, operator_name(func), flops, moved, _dtype(args, kwargs, out)))


def _register_with_each_operator() -> None:
    """Register the counter with operators that take functions: an older torch refuses modes that it does not know."""
    for op in torch._ops._higher_order_ops.values():
        if OpCounter not in op.python_key_table:
            op.python_key_table[OpCounter] = partial(_dispatched, op)


def _dispatched(op: Any, counter: OpCounter, *args: Any, **kwargs: Any) -> Any:
    return counter.__torch_dispatch__(op, (), args, kwargs)


def _dispatches(kind: type) -> bool:
    """Whether tensors of this class handle their operators themselves."""
    return getattr(kind, "__torch_dispatch__", None) not in (
        Tensor.__torch_dispatch__,
        torch._C._disabled_torch_dispatch_impl,
    )


@lru_cache(maxsize=4096)
def _is_composite(func: Any) -> bool:
    """Whether an operator consists of others; it arrives whole only without autograd, as in inference mode."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE))


@lru_cache(maxsize=4096)
def _only_views(func: Any) -> bool:
    """Whether an operator changes no argument and returns only views of its arguments, or no tensor."""
    schema = getattr(func, "_schema", None)
    if schema is None or any(entry.alias_info and entry.alias_info.is_write for entry in schema.arguments):
        return False
    return all(entry.alias_info is not None or "Tensor" not in str(entry.type) for entry in schema.returns)


def _is_plain(tensor: Tensor) -> bool:
    """Whether composite operators have no special kernels for a tensor."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _tensors(values: Any) -> list[Tensor]:
    found = [value for value in values if isinstance(value, Tensor)]
    return found + [item for value in values if isinstance(value, (list, tuple)) for item in _tensors(value)]


def _dtype(args: Any, kwargs: Any, out: Any) -> str:
    """The first floating-point dtype among inputs and outputs, else the first dtype."""
    dtypes = [tensor.dtype for tensor in _tensors([*args, *kwargs.values(), out])]
    fractions = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return str(next(iter(fractions or dtypes), "")).removeprefix("torch.")
