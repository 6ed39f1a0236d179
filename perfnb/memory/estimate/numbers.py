"""The whole numbers behind some fake tensors: masks and ids that a model looks into before it decides what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

#: Tensors with more elements than this are not followed.
_MOST = 2**20
#: What makes numbers out of nothing.
_MAKERS = {"arange", "full", "zeros", "ones", "scalar_tensor"}


class KnownNumbers:
    """Follows whole numbers and truth values from the inputs through the operators, at the size of the user's batch."""

    def __init__(self) -> None:
        self._of: Any = WeakIdKeyDictionary()
        self._sizes: tuple[int, int] | None = None  # samples that are simulated, and that the numbers are of

    def __contains__(self, fake: Tensor) -> bool:
        return fake in self._of

    def item(self, fake: Tensor) -> Any:
        """The one number in a tensor."""
        with unset_fake_temporarily():
            return self._of[fake].item()

    def tell(self, fake: Any, real: Any) -> None:
        """`fake` stands for `real`."""
        if isinstance(real, Tensor) and real.device.type != "meta" and _small(real):
            with unset_fake_temporarily():
                self._of[fake] = real.detach().cpu()
            if real.dim() and fake.shape[0] != real.shape[0]:
                self._sizes = int(fake.shape[0]), int(real.shape[0])

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Compute for the known numbers what the operator did with their stand-ins."""
        if not self._of:
            return
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func._schema.is_mutable:
            for changed in tensors:
                self._forget(changed)
            return
        maker = not tensors and func._schema.name.rpartition("::")[2] in _MAKERS
        if not isinstance(result, Tensor) or not _small(result) or not (maker or tensors):
            return
        if any(t not in self._of for t in tensors):
            return
        real_args, real_kwargs = tree_map_only(Tensor, self._of.__getitem__, (args, dict(kwargs)))
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        for arguments in ((real_args, real_kwargs), self._at_size_held((real_args, real_kwargs))):
            try:
                with unset_fake_temporarily():
                    numbers = func(*arguments[0], **arguments[1])
            except (RuntimeError, IndexError, NotImplementedError):
                continue  # sizes of the estimated batch where those of the user's are held
            if self._corresponds(result, numbers):
                self._of[result] = numbers
                return

    def _at_size_held(self, arguments: Any) -> Any:
        """Arguments with the number of samples that is held where the simulated one stands, as in ``x.view(n, -1)``."""
        simulated, held = self._sizes or (None, None)
        return tree_map_only(int, lambda n: held if n == simulated and type(n) is int else n, arguments)

    def _corresponds(self, fake: Tensor, numbers: Tensor) -> bool:
        """Whether numbers have the shape of what they stand behind, the number of samples apart."""
        pairs = zip(fake.shape, numbers.shape, strict=False)
        return fake.dim() == numbers.dim() and all(a == b or (a, b) == self._sizes for a, b in pairs)

    def _forget(self, changed: Tensor) -> None:
        memory = changed.untyped_storage()._cdata
        for fake in [fake for fake in self._of if fake.untyped_storage()._cdata == memory]:
            del self._of[fake]


def _small(tensor: Tensor) -> bool:
    return tensor.numel() <= _MOST and not (tensor.is_floating_point() or tensor.is_complex())
