"""Describe the subject of a trial: a step with its models, optimizers and loader, under the user's names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from perfnb.arguments import shown
from perfnb.bench.restored import Restored
from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.step.data_waits import tensors_in
from perfnb.step.namespace import name_of_batches, named_values, names_of, reachable
from perfnb.step.optimizers import tensors_of
from perfnb.step.steps import BatchSource

_IDLE = (
    "the step computed gradients but called no optimizer when perfnb ran it: if it updates only every few calls, pass "
    "a step that makes all of them, up to the update"
)


@dataclass
class Subject:
    """A step and its parts.

    Models and optimizers that are not in any variable are named after their class; such loaders have no name.
    """

    step: Callable[..., Any]
    batches: Any  # as passed by the user: an iterable, a function that returns one, or None
    models: dict[str, nn.Module]  # the outermost models that the step calls
    optimizers: dict[str, Optimizer]  # the optimizers whose step methods the step calls
    loader: tuple[str | None, DataLoader[Any]] | None
    trains: bool = False  # whether gradients were computed
    kinds: set[str] = field(default_factory=set)  # of the devices with parameters and batches
    sample: tuple[Any, ...] = ()  # the arguments of one step
    #: Values that levers found or chose for this step, such as a number of threads, by key.
    chosen: dict[str, Any] = field(default_factory=dict)
    gate: InterruptGate = field(default_factory=InterruptGate)  # lets interrupts through while the step runs
    #: The reason why the optimizer of a training step is unknown; empty if it is known.
    idle: str = ""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The models' parameters, without duplicates."""
        every = itertools.chain.from_iterable(model.parameters() for model in self.models.values())
        return list({id(parameter): parameter for parameter in every}.values())

    @property
    def kind(self) -> str:
        """The kind of device that computes the step."""
        return next((kind for kind in sorted(self.kinds) if kind != "cpu"), "cpu")

    def modules(self, *kinds: type[nn.Module]) -> Iterator[nn.Module]:
        """Yield the models' modules that are instances of the given classes."""
        for model in self.models.values():
            yield from (module for module in model.modules() if isinstance(module, kinds))

    def once(self, word: str, find: Callable[[Subject], Any]) -> Any:
        """Return the result of `find`, which is cached in `chosen` under a key."""
        __tracebackhide__ = True
        if word not in self.chosen:
            self.chosen[word] = find(self)
        return self.chosen[word]

    def restored(self) -> Restored:
        """Return a context that prevents lasting effects of the step."""
        return Restored(self.models.values(), [self.step, *self.optimizers.values(), self.batches, self.loader])

    def run(self) -> Any:
        """Run the step once on the sample, with the gate open."""
        __tracebackhide__ = True
        return self.step(*self.sample)

    def fed(self, stack: ExitStack) -> Callable[[], Any]:
        """Return a function that runs the step on its own batches; the stack ends their iteration."""
        source = BatchSource(self.batches)
        stack.callback(source.close)
        return lambda: self.step(source.next())


def find_subject(
    step: Callable[..., Any],
    batches: Any,
    namespace: Mapping[str, Any],
    *,
    models: Sequence[nn.Module] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    loader: DataLoader[Any] | None = None,
    gate: InterruptGate | None = None,
) -> Subject:
    """Run the step once, restore everything, and determine the objects that the step uses.

    Raises
    ------
    CaptureError
        If the batches are empty, if a part that was passed does not belong to the step, or if the step's changes could
        not be undone.
    Exception
        Any exception that the step raises.
    """
    __tracebackhide__ = True
    given: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if optimizer is not None and not all(isinstance(one, Optimizer) for one in given):
        raise TypeError(f"optimizer must be a torch optimizer or a list of them, not {shown(optimizer)}.")
    if loader is not None and not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a torch DataLoader, not {shown(loader)}.")
    named = dict(_modules(step, namespace))
    if models is not None:
        names = {id(model): name for name, model in reversed(named.items())}
        named = {names.get(id(model), type(model).__name__): model for model in models}
    candidates = _outermost(named)
    subject = Subject(step, batches, candidates, {}, None, gate=gate or InterruptGate())
    loader = loader if loader is not None else batches if isinstance(batches, DataLoader) else None
    if batches is not None:
        source = BatchSource(batches)
        try:
            with subject.restored(), subject.gate.opened():  # a loader that shuffles draws random numbers
                subject.sample = (source.next(),)
            if loader is None and isinstance(source.made, DataLoader):  # a function returned it
                subject.batches = loader = source.made
        finally:
            source.close()
    if loader is not None:
        of_loaders = names_of(namespace, DataLoader)
        # A step that receives batches does not use their loader itself.
        subject.loader = (of_loaders.get(id(loader)) or next(iter(name_of_batches(step, loader)), None), loader)

    stepped, called, hidden = _watch(subject, parts=models is not None)
    subject.models = {name: model for name, model in candidates.items() if models is not None or name in called}
    if models is not None and not called:
        raise CaptureError(
            f"The step does not call any part of model= ({', '.join(candidates)}): pass the model that it calls."
        )
    if hidden and not subject.models:
        raise CaptureError(
            f"try_levers found no model that the step calls, and the step {hidden}: keep the model in a variable that "
            "the step uses, or pass model=."
        )
    if optimizer is not None:
        held = {id(parameter) for parameter in subject.parameters}
        for one in given:
            if one not in stepped and held.isdisjoint(map(id, tensors_of(one))):
                raise CaptureError(
                    f"optimizer=: this {type(one).__name__} does not update any parameter of the step's models."
                )
    elif subject.trains and not stepped:
        subject.idle = _IDLE
    of_optimizers = names_of(namespace, Optimizer)
    used = stepped if optimizer is None else given
    subject.optimizers = {of_optimizers.get(id(one), type(one).__name__): one for one in used}
    tensors: list[Tensor] = [*subject.parameters, *tensors_in(subject.sample)]
    subject.kinds = {tensor.device.type for tensor in tensors} or {"cpu"}
    return subject


def _watch(subject: Subject, parts: bool) -> tuple[list[Optimizer], set[str], str]:
    """Run the step once, and restore everything.

    Return the optimizers that it uses, the names of the models that it calls, and a description of hidden changes that
    cannot be undone, which is empty if there are none.

    With `parts`, a model also counts as called if only part of it is called. This also records whether the step trains.
    """
    __tracebackhide__ = True
    stepped: list[Optimizer] = []
    called: set[str] = set()
    unknown: set[str] = set()
    known = {id(part) for model in subject.models.values() for part in model.modules()}
    plain = [one for one in reachable([subject.step]) if type(one) is Tensor and not one.is_inference()]
    versions = [one._version for one in plain]
    with subject.restored() as restored, ExitStack() as stack:

        def note_unknown(module: nn.Module, _: Any) -> None:
            if id(module) not in known and any(True for _ in module.parameters()):
                unknown.add(type(module).__name__)
                known.update(id(part) for part in module.modules())
                restored.save_model(module)

        def note_step(optimizer: Optimizer, *_: Any) -> None:
            if optimizer not in stepped:
                stepped.append(optimizer)

        for name, model in subject.models.items():
            for part in model.modules() if parts else [model]:
                hook = part.register_forward_pre_hook(lambda *_, name=name: called.add(name))
                stack.callback(hook.remove)
        stack.callback(register_optimizer_step_post_hook(note_step).remove)
        stack.callback(register_module_forward_pre_hook(note_unknown).remove)
        before = [_version(parameter.grad) for parameter in subject.parameters]
        with subject.gate.opened():
            subject.run()
        subject.trains = bool(stepped) or before != [_version(parameter.grad) for parameter in subject.parameters]
    if unknown:
        return stepped, called, f"calls a {min(unknown)} that is not in any of its variables"
    optimized = {id(tensor) for one in stepped for tensor in tensors_of(one)}
    changed = any(
        one._version != version for one, version in zip(plain, versions, strict=True) if id(one) not in optimized
    )
    return stepped, called, "changes a tensor in place that is not part of any model" if changed else ""


def _version(grad: Tensor | None) -> tuple[int, int] | None:
    """Return a version that changes when a gradient is replaced or when another gradient is added to it."""
    return None if grad is None else (id(grad), grad._version)


def _outermost(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the models that are not part of another model, each under its first name.

    Modules without parameters, such as losses and activations, are excluded.
    """
    inner = {id(part) for model in models.values() for part in model.modules() if part is not model}
    first = {id(model): name for name, model in reversed(list(models.items()))}
    return {
        name: model
        for name, model in models.items()
        if id(model) not in inner and first[id(model)] == name and any(True for _ in model.parameters())
    }


def _modules(step: Callable[..., Any], namespace: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Yield named modules, then modules that the step reaches in other ways, named after their classes."""
    named = named_values(namespace, nn.Module)
    yield from named
    seen, counts = {id(part) for _, model in named for part in model.modules()}, Counter[str]()
    for value in reachable([step]):
        if issubclass(type(value), nn.Module) and id(value) not in seen:
            kind = type(value).__name__
            counts[kind] += 1
            yield kind if counts[kind] == 1 else f"{kind} {counts[kind]}", value
