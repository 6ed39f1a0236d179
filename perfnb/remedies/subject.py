"""What a lever acts on: a step with the models, optimizers and loader that it uses, under the user's names."""

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
from perfnb.step.namespace import name_of_batches, named_values, reachable
from perfnb.step.steps import BatchSource, tensors_in

_IDLE = (
    "the step computed gradients but called no optimizer when perfnb ran it: if it updates only every few calls, pass "
    "a step that makes all of them, up to the update"
)


@dataclass
class Subject:
    """A step and what it uses; a part's name is ``None`` if no variable holds it."""

    step: Callable[..., Any]
    batches: Any  # as given: an iterable, a function that returns one, or None
    models: dict[str, nn.Module]  # outermost ones that the step calls
    optimizers: dict[str, Optimizer]  # those that it steps
    loader: tuple[str | None, DataLoader[Any]] | None
    trains: bool = False  # whether gradients were computed
    kinds: set[str] = field(default_factory=set)  # of the devices that parameters and batches are on
    sample: tuple[Any, ...] = ()  # the arguments of one step
    #: What levers found out or chose for this step, such as a number of threads, by their words.
    chosen: dict[str, Any] = field(default_factory=dict)
    gate: InterruptGate = field(default_factory=InterruptGate)  # lets interrupts through where the step runs
    #: Why nothing is known of the optimizer of a step that trains; empty if it is known.
    idle: str = ""
    #: Why the step cannot be put back without a model that perfnb knows; empty if it can.
    lasting: str = ""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The models' parameters, each once."""
        found = itertools.chain.from_iterable(model.parameters() for model in self.models.values())
        return list({id(parameter): parameter for parameter in found}.values())

    @property
    def kind(self) -> str:
        """The kind of device that it runs on."""
        return next((kind for kind in sorted(self.kinds) if kind != "cpu"), "cpu")

    def modules(self, *kinds: type[nn.Module]) -> Iterator[nn.Module]:
        """The modules of some classes in the models."""
        for model in self.models.values():
            yield from (module for module in model.modules() if isinstance(module, kinds))

    def restored(self) -> Restored:
        """A context in which the step may run without lasting effect."""
        return Restored(self.models.values(), [self.step, *self.optimizers.values(), self.batches, self.loader])

    def run(self) -> Any:
        """Run the step once, on the sample; open the gate around it."""
        __tracebackhide__ = True
        return self.step(*self.sample)


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
    """Run the step once, with everything put back, and see what it uses.

    Raises
    ------
    CaptureError
        If the batches are empty.
    Exception
        Whatever the step raises.
    """
    __tracebackhide__ = True
    given: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if optimizer is not None and not all(isinstance(each, Optimizer) for each in given):
        raise TypeError(f"optimizer must be a torch optimizer or a list of them, not {shown(optimizer)}.")
    if loader is not None and not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a torch DataLoader, not {shown(loader)}.")
    candidates = _outermost(
        dict(_modules(step, namespace)) if models is None else {_name_of(model, namespace): model for model in models}
    )
    loader = loader if loader is not None else batches if isinstance(batches, DataLoader) else None
    named_loaders = {id(value): name for name, value in named_values(namespace, DataLoader)}

    def name_of(one: DataLoader[Any]) -> str | None:  # a step that takes batches does not use their loader
        return named_loaders.get(id(one)) or next(iter(name_of_batches(step, one)), None)

    named = None if loader is None else (name_of(loader), loader)
    subject = Subject(step, batches, candidates, {}, named, gate=gate or InterruptGate())
    if batches is not None:
        source = BatchSource(batches)
        try:
            with subject.restored(), subject.gate.opened():  # a loader that shuffles draws random numbers
                subject.sample = (source.next(),)
            if loader is None and isinstance(source.made, DataLoader):  # a function gave it
                subject.batches, subject.loader = source.made, (name_of(source.made), source.made)
        finally:
            source.close()
    called: set[str] = set()
    unknown: set[str] = set()
    known = {id(part) for model in candidates.values() for part in model.modules()}
    versions = {
        id(one): (one, one._version) for one in reachable([step]) if type(one) is Tensor and not one.is_inference()
    }

    stepped: dict[int, Optimizer] = {}
    with subject.restored(), ExitStack() as stack:

        def note_unknown(module: nn.Module, _: Any) -> None:
            if id(module) not in known and any(True for _ in module.parameters()):
                unknown.add(type(module).__name__)
                known.update(id(part) for part in module.modules())
                stack.enter_context(Restored([module], []))

        before = [_version(parameter.grad) for parameter in subject.parameters]
        for name, model in candidates.items():
            for part in [model] if models is None else model.modules():  # a step may call a part of a given model
                hook = part.register_forward_pre_hook(lambda *_, name=name: called.add(name))
                stack.callback(hook.remove)
        stack.callback(register_optimizer_step_post_hook(lambda each, *_: stepped.update({id(each): each})).remove)
        stack.callback(register_module_forward_pre_hook(note_unknown).remove)
        with subject.gate.opened():
            subject.run()
        subject.trains = bool(stepped) or any(
            _version(parameter.grad) != earlier for parameter, earlier in zip(subject.parameters, before, strict=True)
        )
    subject.models = {name: model for name, model in candidates.items() if models is not None or name in called}
    if models is not None and not called:
        raise CaptureError(f"The step calls no part of model= ({', '.join(candidates)}): pass the model that it calls.")
    optimized = {id(one) for each in stepped.values() for group in each.param_groups for one in group["params"]}
    if unknown:
        subject.lasting = f"calls a {min(unknown)} that is in none of its variables"
    elif any(one._version != version for key, (one, version) in versions.items() if key not in optimized):
        subject.lasting = "changes a tensor in place that is part of no model"
    if subject.trains and not stepped and optimizer is None:
        subject.idle = _IDLE
    names = {id(value): name for name, value in named_values(namespace, Optimizer)}
    held = {id(parameter) for parameter in subject.parameters}
    for each in [] if optimizer is None else given:
        own = [id(parameter) for group in each.param_groups for parameter in group["params"]]
        if id(each) not in stepped and held.isdisjoint(own):
            raise CaptureError(f"optimizer=: this {type(each).__name__} updates no parameter of the step's models.")
    used = stepped.values() if optimizer is None else given
    subject.optimizers = {names.get(id(each), type(each).__name__): each for each in used}
    tensors: list[Tensor] = [*subject.parameters, *tensors_in(subject.sample)]
    subject.kinds = {tensor.device.type for tensor in tensors} or {"cpu"}
    return subject


def _version(grad: Tensor | None) -> tuple[int, int] | None:
    """Changes when another gradient takes its place, and when one is added to it."""
    return None if grad is None else (id(grad), grad._version)


def _outermost(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Models that are no part of another one, each under its first name; losses and activations have no parameters."""
    inner = {id(part) for model in models.values() for part in model.modules() if part is not model}
    seen: set[int] = set()
    kept = {}
    for name, model in models.items():
        if id(model) not in inner | seen and any(True for _ in model.parameters()):
            kept[name] = model
        seen.add(id(model))
    return kept


def _name_of(model: nn.Module, namespace: Mapping[str, Any]) -> str:
    names = (name for name, value in named_values(namespace, nn.Module) if value is model)
    return next(names, type(model).__name__)


def _modules(step: Callable[..., Any], namespace: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Modules by their names, then those that the step reaches otherwise, by their classes."""
    named = named_values(namespace, nn.Module)
    yield from named
    seen, counts = {id(part) for _, model in named for part in model.modules()}, Counter[str]()
    for value in reachable([step]):
        if issubclass(type(value), nn.Module) and id(value) not in seen:
            kind = type(value).__name__
            counts[kind] += 1
            yield kind if counts[kind] == 1 else f"{kind} {counts[kind]}", value


def require_models(subject: Subject) -> None:
    """Raise where what the step changes could not be put back, because perfnb cannot find its model."""
    if not subject.models and subject.lasting:
        raise CaptureError(
            f"try_levers found no model that the step calls, and the step {subject.lasting}: keep the model in a "
            "variable that the step uses, or pass model=."
        )
