"""Simulate an allocator to find out what operators on fake tensors allocate, who owns it, and when it is freed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.memory.estimate.cuda_scratch import cuda_scratch_bytes
from perfnb.memory.estimate.scratch import scratch_bytes, untold_bytes
from perfnb.step.namespace import is_installed

#: CUDA's caching allocator rounds up to multiples of this many bytes.
CUDA_GRAIN = 512
#: The step count returned to an optimizer that reads it from a fake tensor.
_SOME_STEP = 1000.0


class Change(NamedTuple):
    """An allocation, if ``size`` is positive, or the end of one, if it is negative."""

    allocation: int
    size: int
    phase: str
    op: str


class Allocation(NamedTuple):
    """Where an allocation came from."""

    size: int
    phase: str
    recorded: bool  # whether autograd was recording
    scratch: bool


class SimulatedAllocator(TorchDispatchMode):
    """Tracks the storages that operators create until they are freed, in the same way as a device's allocator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cuda = device.type == "cuda"
        # The device of the simulated tensors. Without CUDA, autograd has no CUDA queue, and sizes come from CPU
        # kernels.
        self.place = device if not self.cuda or torch.cuda.is_available() else torch.device("cpu")
        self.phase = "before"  # the current activity of the step
        self.used: set[int] = set()  # the allocations that were passed to ops
        self.changes: list[Change] = []  # in order
        self.made: dict[int, Allocation] = {}  # every allocation by number
        self.known = KnownNumbers()  # the values of the inputs, for code that reads them
        self._grain = CUDA_GRAIN if self.cuda else 1
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._reusable: int | None = None  # the allocation that the sum just computed may replace
        self.saved: set[int] = set()  # allocations alive when a backward pass started
        self.gradients: set[int] = set()  # allocations that contained the gradient of a parameter
        self.trained: set[int] = set()  # allocations that contain parameters with a gradient
        self.alive_at_begin: set[int] = set()  # allocations alive when the counted calls started
        self.first_change = 0  # the index of the first change in those calls
        self.models: list[nn.Module] = []  # the outermost modules that were called
        self.optimizers: list[Optimizer] = []  # the optimizers that were called
        self.trains = False  # whether there was a backward pass
        self.casts = False  # whether a model was called under autocast
        self._called: list[nn.Module] = []
        self._stepping = 0
        self._first_step = 0
        self._between = "other"  # the phase while no module, backward pass or optimizer is running

    def numbers(self, tensors: Iterable[Any]) -> set[int]:
        """Return the allocations that contain these tensors."""
        found = (self._alive.get(id(_storage(t))) for t in tensors if isinstance(t, Tensor))
        return {entry[0] for entry in found if entry is not None}

    def alive(self) -> set[int]:
        """Return the allocations that are currently alive."""
        return {number for number, _ in self._alive.values()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the op on fake tensors and record what it allocated."""
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        given = tree_leaves((args, kwargs))
        for leaf in given:
            if isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, FakeTensor):
                raise CaptureError(
                    f"The step uses a tensor of {_shape(leaf)} that requires a gradient, but the tensor is sparse or "
                    "cannot be reached from any variable: make it a dense parameter of a model."
                )
        self.before_op()
        self.used |= self.numbers(given)
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            if args[0] in self.known:
                return self.known.item(args[0])
            if (number := self.number_asked_for()) is None:
                raise
            return number if args[0].is_floating_point() else int(number)
        self.known.follow(func, args, kwargs, result)
        op = func._schema.name.rpartition("::")[2]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        untold = untold_bytes(op, args, made) if not self.cuda else 0
        new = [t for t in made if self.see(t, op, untold if t is made[-1] else 0)]
        if new:
            self._reusable = None
            if self.phase == "backward" and op == "add" and not torch.is_grad_enabled():
                # The engine accumulates gradients in place, but with fake tensors, it allocates a new sum.
                self._reusable = next(iter(self.numbers(args[:1])), None)
            scratch = self._rounded(cuda_scratch_bytes(op, args) if self.cuda else scratch_bytes(op, args, new))
            if scratch > 0:
                number = self._new(scratch, op, scratch=True)
                self.changes.append(Change(number, -scratch, self.phase, op))
        return result

    def see(self, tensor: Tensor, op: str = "", untold: int = 0) -> bool:
        """Check whether a tensor, created inside or outside an op, is a new allocation, and track it from now on."""
        storage = _storage(tensor)
        key = id(storage)
        if key in self._alive or tensor.device.type != self.place.type:
            return False
        size = self._rounded(storage.nbytes() + untold)
        number = self._new(size, op)
        self._alive[key] = number, weakref.ref(storage, self._when_freed(key, number, size))
        return True

    def _new(self, size: int, op: str, *, scratch: bool = False) -> int:
        number = len(self.made)
        # The gradient of the loss itself is created before the first backward node runs.
        inside = self.phase != "backward" or torch._C._current_autograd_node() is not None
        self.made[number] = Allocation(size, self.phase, torch.is_grad_enabled() and inside, scratch)
        self.changes.append(Change(number, size, self.phase, op))
        return number

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

    def listening(self) -> ExitStack:
        """Add hooks to module calls and optimizer steps until this context ends."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._call_begins).remove)
            stack.callback(register_module_forward_hook(self._call_ends, always_call=True).remove)
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._optimizer_ends).remove)
            return stack.pop_all()

    def steps_again(self) -> None:
        """Record that the next call is the first one that is counted."""
        self.alive_at_begin, self.first_change, self._between = self.alive(), len(self.changes), "other"
        self._first_step = len(self.optimizers)

    def late(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """Return the optimizers that have not been called yet, although their parameters have gradients."""
        stepped: set[int] = set()
        for optimizer in self.optimizers[self._first_step :]:
            stepped |= self.numbers(stepped_by(optimizer))
        return [each for each in optimizers if (self.numbers(stepped_by(each)) & self.trained) - stepped]

    def accumulated(self, parameter: Tensor) -> None:
        """Record that a parameter has received its gradient."""
        self.gradients |= self.numbers([parameter.grad])
        self.trained |= self.numbers([parameter])

    def before_op(self) -> None:
        """Determine the phase of the op."""
        if torch._C._current_autograd_node() is not None:
            if self._between != "backward":
                self._between, self.trains = "backward", True
                self.saved |= self.alive()
            self.phase = "backward"
        elif self._called:
            self.phase = "loss" if isinstance(self._called[0], _Loss) else "forward"
        else:
            self._between = "other" if self._between == "backward" else self._between
            self.phase = "optimizer" if self._stepping else self._between

    def number_asked_for(self) -> float | None:
        """Return a value for code that reads an unknown value, or ``None`` if no value can be provided.

        The value is a step count for an optimizer, and it tells a gradient scaler that no gradient overflowed.
        """
        asker = _asker()
        if asker.endswith("grad_scaler.py"):
            return 0.0
        return _SOME_STEP if self.phase == "optimizer" and is_installed(asker) else None

    def _call_begins(self, module: nn.Module, _: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule):  # its tensors are stored outside Python
            raise CaptureError(
                f"{type(module).__name__} is a scripted module, whose memory cannot be estimated: use the original one."
            )
        if any(map(is_lazy, module.parameters(recurse=False))):
            raise CaptureError(
                f"{type(module).__name__} has no parameters yet, so its memory cannot be estimated: call it once."
            )
        if not self._called and torch._C._current_autograd_node() is None:
            self.models.append(module)
            self.casts |= torch.is_autocast_enabled(self.place.type)
        self._called.append(module)

    def _call_ends(self, module: nn.Module, *_: Any) -> None:
        while self._called and self._called.pop() is not module:
            pass
        if not self._called:
            self._between = "loss"

    def _optimizer_begins(self, optimizer: Optimizer, *_: Any) -> None:
        self.gradients |= self.numbers(parameter.grad for parameter in stepped_by(optimizer))
        self.optimizers.append(optimizer)
        self._stepping += 1
        for group in optimizer.param_groups:  # update all parameters at once by default, as on CUDA
            if self.cuda and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def _optimizer_ends(self, *_: Any) -> None:
        self._stepping -= 1


def stepped_by(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def device_among(tensors: Iterable[Tensor], wanted: str | torch.device | None) -> torch.device:
    """Return the device to simulate, which is `wanted`, the first device that contains data, or the CPU."""
    if wanted is None:
        device = next((t.device for t in tensors if t.device.type != "meta"), torch.device("cpu"))
    else:
        try:
            device = torch.device(wanted)
        except (RuntimeError, TypeError):
            raise ValueError(f"device must be cpu or cuda, not {shown(wanted)}.") from None
    if device.type not in ("cpu", "cuda"):
        raise CaptureError(
            f"Memory can be estimated for cpu and cuda, not {device.type}: pass device='cpu' for a step without "
            f"{device.type}'s rounding."
        )
    return device


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # fake sparse tensors have no elements, so their size is unknown
        raise CaptureError(
            f"Memory cannot be estimated: the step creates or uses a sparse tensor of {_shape(tensor)}. Estimate it "
            "with dense gradients (sparse=False), or measure a small batch with profile_step."
        ) from None


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))


#: Values of tensors with more elements than this are not tracked.
_MOST = 2**20
#: Ops that create values without using inputs.
_MAKERS = {"arange", "full", "zeros", "ones", "scalar_tensor"}


class KnownNumbers:
    """Tracks integer and boolean values from the inputs through the ops, at the size of the real batch."""

    def __init__(self) -> None:
        self._of: Any = WeakIdKeyDictionary()
        self._sizes: tuple[int, int] | None = (
            None  # the number of samples simulated, and the number that the values belong to
        )

    def __contains__(self, fake: Tensor) -> bool:
        return fake in self._of

    def item(self, fake: Tensor) -> Any:
        """Return the value of a tensor with a single element."""
        with unset_fake_temporarily():
            return self._of[fake].item()

    def tell(self, fake: Any, real: Any) -> None:
        """Record that `fake` represents `real`."""
        if isinstance(real, Tensor) and real.device.type != "meta" and _small(real):
            with unset_fake_temporarily():
                self._of[fake] = real.detach().cpu()
            if real.dim() and fake.shape[0] != real.shape[0]:
                self._sizes = int(fake.shape[0]), int(real.shape[0])

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Repeat an op on the known values after it has run on the fake tensors that represent them."""
        if not self._of:
            return
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func._schema.is_mutable:
            changed = {t.untyped_storage()._cdata for t in tensors}
            for fake in [fake for fake in self._of if fake.untyped_storage()._cdata in changed]:
                del self._of[fake]
            return
        maker = not tensors and func._schema.name.rpartition("::")[2] in _MAKERS
        if not isinstance(result, Tensor) or not _small(result) or not (maker or tensors):
            return
        if any(t not in self._of for t in tensors):
            return
        real_args, real_kwargs = tree_map_only(Tensor, self._of.__getitem__, (args, dict(kwargs)))
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        simulated, held = self._sizes or (None, None)
        # The user's batch size may replace the simulated one, as in x.view(n, -1).
        at_size_held = tree_map_only(
            int, lambda n: held if n == simulated and type(n) is int else n, (real_args, real_kwargs)
        )
        for positional, named in ((real_args, real_kwargs), at_size_held):
            try:
                with unset_fake_temporarily():
                    numbers = func(*positional, **named)
            except (RuntimeError, IndexError, NotImplementedError):
                continue  # the sizes belong to the simulated batch, not the real one
            pairs = zip(result.shape, numbers.shape, strict=False)
            if result.dim() == numbers.dim() and all(a == b or (a, b) == self._sizes for a, b in pairs):
                self._of[result] = numbers
                return


def _small(tensor: Tensor) -> bool:
    return tensor.numel() <= _MOST and not (tensor.is_floating_point() or tensor.is_complex())


def _asker() -> str:
    """Return the file with the code that reads a tensor's value."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename in _DISPATCHING:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_code.co_filename)


#: Files between the code that reads a value and the allocator.
_DISPATCHING = {
    __file__,
    *(str(Path(torch.__file__).parent / name) for name in ("_compile.py", "_dynamo/eval_frame.py")),
}
