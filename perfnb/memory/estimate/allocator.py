"""A simulated allocator: who allocates what, and when it is freed, while operators run on fake tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perfnb.errors import CaptureError
from perfnb.memory.estimate.numbers import KnownNumbers
from perfnb.memory.estimate.scratch import scratch_bytes, untold_bytes

#: CUDA's caching allocator hands out multiples of so many bytes.
CUDA_GRAIN = 512
#: What an optimizer is told where it asks for a number that fake tensors do not hold: how often it stepped.
_SOME_STEP = 1000.0


class Change(NamedTuple):
    """An allocation (``size`` above 0) or its end (below 0)."""

    allocation: int
    size: int
    phase: str
    op: str


class Made(NamedTuple):
    """How an allocation came to be."""

    size: int
    phase: str
    recorded: bool  # while a graph for backward was being recorded
    scratch: bool


class SimulatedAllocator(TorchDispatchMode):
    """Follows the storages that operators make, until they die.

    Attributes
    ----------
    phase : str
        What the step is doing; set by whoever runs it.
    changes : list of Change
        In the order in which they happen.
    made : dict of int to Made
        Every allocation by its number.
    used : set of int
        The allocations that operators were given.
    """

    def __init__(self, device: torch.device, *, grain: int = 1, scratch: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "before"
        self.used: set[int] = set()
        self.changes: list[Change] = []
        self.made: dict[int, Made] = {}
        self._device, self._grain, self._scratch = device, grain, scratch
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._known = KnownNumbers()
        self._reusable: int | None = None  # the allocation that the sum just made may stand for

    def numbers(self, tensors: Iterable[Any]) -> set[int]:
        """The allocations that hold these tensors."""
        found = (self._alive.get(id(_storage(t))) for t in tensors if isinstance(t, Tensor))
        return {entry[0] for entry in found if entry is not None}

    def alive(self) -> set[int]:
        """The allocations that are alive now."""
        return {number for number, _ in self._alive.values()}

    def numbers_known(self, fake: Any, real: Any) -> None:
        """Tell the numbers behind an input, for code that asks for them."""
        self._known.tell(fake, real)

    def before_op(self) -> None:
        """Called before each operator."""

    def number_asked_for(self) -> float | None:
        """What is told where code asks for a number that nobody knows; ``None``: it cannot be told."""
        return _SOME_STEP if self.phase == "optimizer" else None

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor that was made outside an operator."""
        self._see(tensor, "")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator on fake tensors and note what it made."""
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        given = tree_leaves((args, kwargs))
        _refuse_strangers(given)
        self.before_op()
        self.used |= self.numbers(given)
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            if args[0] in self._known:
                return self._known.item(args[0])
            number = self.number_asked_for()
            if number is None:
                raise
            return number if args[0].is_floating_point() else int(number)
        self._known.follow(func, args, kwargs, result)
        op = func._schema.name.rpartition("::")[2]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        untold = untold_bytes(op, args, made) if self._scratch else 0
        new = [t for t in made if self._see(t, op, untold if t is made[-1] else 0)]
        if new:
            self._reusable = None
            if self.phase == "backward" and op == "add" and not torch.is_grad_enabled():
                # The engine adds gradients up in place; for fake tensors it makes a new sum.
                first = self.numbers(args[:1])
                self._reusable = next(iter(first), None)
            if self._scratch:
                self._hold_for_a_moment(scratch_bytes(op, args, new), op)
        return result

    def _see(self, tensor: Tensor, op: str, untold: int = 0) -> bool:
        storage = _storage(tensor)
        key = id(storage)
        if key in self._alive or tensor.device.type != self._device.type:
            return False
        size = self._rounded(storage.nbytes() + untold)
        number = self._new(size, op)
        self._alive[key] = number, weakref.ref(storage, self._when_freed(key, number, size))
        return True

    def _new(self, size: int, op: str, *, scratch: bool = False) -> int:
        number = len(self.made)
        # The gradient of the loss itself is made before the first node of backward runs.
        inside = self.phase != "backward" or torch._C._current_autograd_node() is not None
        self.made[number] = Made(size, self.phase, torch.is_grad_enabled() and inside, scratch)
        self.changes.append(Change(number, size, self.phase, op))
        return number

    def _hold_for_a_moment(self, size: int, op: str) -> None:
        if size > 0:
            number = self._new(self._rounded(size), op, scratch=True)
            self.changes.append(Change(number, -self._rounded(size), self.phase, op))

    def _when_freed(self, key: int, number: int, size: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            self._alive.pop(key, None)
            end = Change(number, -size, self.phase, "")
            if number == self._reusable and self.changes[-1].size > 0:
                self.changes.insert(len(self.changes) - 1, end)
            else:
                self.changes.append(end)

        return freed

    def _rounded(self, size: int) -> int:
        return -(-size // self._grain) * self._grain


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # fake sparse tensors lose their elements on the way, so they cannot be counted
        shape = " × ".join(map(str, tensor.shape))
        raise CaptureError(
            f"memory cannot be estimated: the step makes or uses a sparse tensor of {shape}; estimate with dense "
            "gradients (sparse=False), or measure a small batch with profile_step."
        ) from None


def _refuse_strangers(arguments: list[Any]) -> None:
    for leaf in arguments:
        if isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, FakeTensor):
            shape = " × ".join(map(str, leaf.shape))
            raise CaptureError(
                f"the step uses a tensor of {shape} that requires a gradient and belongs neither to the model nor to "
                "the loss: make it a parameter of the model, or pass the loss as a module that holds it."
            )
