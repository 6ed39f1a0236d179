"""From modules to layers: which modules are models, what the user calls them, and each layer's qualified name."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from perfnb.step.layers import Calls
from perfnb.step.namespace import named_modules

#: Attribute in which a compiled model keeps the original one.
COMPILED_CHILD = "_orig_mod"


@dataclass(frozen=True)
class Layer:
    """A module as a layer of a model."""

    #: Qualified name, starting with the model's variable or class.
    name: str
    #: Class of the module.
    module: str
    #: Index of the enclosing layer; ``None`` for a model.
    parent: int | None
    #: Of the module and its submodules, shared parameters counted once.
    parameters: int
    parameter_bytes: int
    #: Whether the layer is a region of ``torch.compile`` or TorchScript, which hide the layers inside.
    compiled: bool


def name_layers(
    calls: Calls, namespace: Mapping[str, Any], only: list[nn.Module] | None = None
) -> tuple[list[Layer], dict[int, int]]:
    """All layers of the models that were called, in model order, and the layer index of each module (by ``id``).

    A model is an outermost called module, or the module in a variable of `namespace` that contains it. Modules outside
    all models, created by the step, become layers below the enclosing call; one that each step creates anew is one
    layer. `only` restricts the layers to these models.
    """
    modules = {number: module for number, module, _ in calls.records}
    twins = _made_anew(calls, namespace)
    outermost = [module for number, module, around in calls.records if around is None and number not in calls.loss]
    outermost += _without_inner(calls.unseen())
    layers: list[Layer] = []
    places: dict[int, int] = {}
    taken: set[str] = set()
    for name, model in _models(_unique(outermost), namespace, twins):
        _add_model(_free(name, taken), model, layers, places)
    for number, module, around in calls.records:
        if id(module) in twins:
            _place_as(twins[id(module)], module, places)
        if id(module) in places or number in calls.loss or around is None:
            continue
        parent = places.get(id(modules[around]))
        if parent is None:
            continue
        if isinstance(module, fx.GraphModule) and layers[parent].compiled:
            places[id(module)] = parent
        else:
            name = _free(f"{layers[parent].name}.({type(module).__name__})", taken)
            _add_model(name, module, layers, places, parent)
    return _restricted(*_in_order(layers, places), only)


def known_models(
    calls: Calls, namespace: Mapping[str, Any], layers: list[Layer], places: Mapping[int, int]
) -> list[dict[str, Any]]:
    """The models in variables of the user; JSON-able.

    Returns
    -------
    list of dict
        ``name`` (of the layer and the variable) and ``called``: whether the step calls the model itself, not a method
        such as ``generate`` or layers inside it.
    """
    known: dict[str, bool] = {}
    for name, module in named_modules(namespace):
        place = places.get(id(module))
        if place is not None and layers[place].parent is None and layers[place].name == name:
            known[name] = calls.called_whole.get(id(module), False)
    return [{"name": name, "called": called} for name, called in known.items()]


def own_tables(
    layers: list[Layer], places: Mapping[int, int], called: Iterable[nn.Module], namespace: Mapping[str, Any]
) -> list[str]:
    """The embedding layers with a dense gradient whose weight no other module shares."""
    held: dict[int, set[int]] = {}
    embeddings: dict[int, Any] = {}
    for model in [*called, *(module for _, module in named_modules(namespace))]:
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                held.setdefault(id(parameter), set()).add(id(module))
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and id(module) in places:
                embeddings[id(module)] = module
    return [
        layers[places[key]].name
        for key, module in embeddings.items()
        if not module.sparse and len(held[id(module.weight)]) == 1
    ]


def _made_anew(calls: Calls, namespace: Mapping[str, Any]) -> dict[int, nn.Module]:
    """For each module that a step created again, by ``id``: the corresponding module of an earlier step.

    A module created by a step is in no named model and is called in only one step. Corresponding modules have the same
    class, structure and caller, and the same position among such modules of their steps.
    """
    steps = [bisect_right(calls.begins, number) for number, _, _ in calls.records]
    seen: dict[int, set[int]] = {}
    for step, (_, module, _) in zip(steps, calls.records, strict=True):
        seen.setdefault(id(module), set()).add(step)
    if len(set(steps)) < 2:
        return {}
    modules = {number: module for number, module, _ in calls.records}
    firsts: dict[Any, nn.Module] = {}
    twins: dict[int, nn.Module] = {}
    count: Counter[Any] = Counter()
    known = {id(part) for _, model in named_modules(namespace) for part in model.modules()}
    for step, (_, module, around) in zip(steps, calls.records, strict=True):
        if id(module) in known:
            continue
        known |= {id(part) for part in module.modules()}
        if len(seen[id(module)]) > 1:
            continue
        inside = None if around is None else id(twins.get(id(modules[around]), modules[around]))
        structure = (type(module), inside, tuple(path for path, _ in module.named_modules()))
        count[step, structure] += 1
        first = firsts.setdefault((structure, count[step, structure]), module)
        if first is not module:
            twins[id(module)] = first
    return twins


def _place_as(first: nn.Module, module: nn.Module, places: dict[int, int]) -> None:
    """Give a module and its submodules the layers of its twin."""
    for one, other in zip(first.modules(), module.modules(), strict=True):
        if id(one) in places:
            places[id(other)] = places[id(one)]


def _restricted(
    layers: list[Layer], places: dict[int, int], only: list[nn.Module] | None
) -> tuple[list[Layer], dict[int, int]]:
    """The layers of the models in `only`, which become roots under their qualified names."""
    if only is None:
        return layers, places
    wanted = {id(module) for model in only for module in model.modules()}
    kept = sorted({place for key, place in places.items() if key in wanted})
    new: dict[int | None, int] = {old: place for place, old in enumerate(kept)}
    moved = [replace(layers[old], parent=new.get(layers[old].parent)) for old in kept]
    return moved, {key: new[old] for key, old in places.items() if old in new}


def _models(
    outermost: list[nn.Module], namespace: Mapping[str, Any], twins: Mapping[int, nn.Module]
) -> list[tuple[str, nn.Module]]:
    """The models that contain the outermost modules, each once, with their names."""
    named = named_modules(namespace)
    by_id = {id(module): name for name, module in reversed(named)}
    found: dict[int, tuple[str, nn.Module]] = {}
    for module in outermost:
        if id(module) in twins:
            continue
        if id(module) in by_id:
            found[id(module)] = (by_id[id(module)], module)
            continue
        around = [(name, model) for name, model in named if any(part is module for part in model.modules())]
        name, model = around[0] if around else (type(module).__name__, module)
        found[id(model)] = (name, model)
    contained = {id(part) for _, model in found.values() for part in model.modules() if part is not model}
    return [entry for key, entry in found.items() if key not in contained]


def _add_model(
    name: str, model: nn.Module, layers: list[Layer], places: dict[int, int], parent: int | None = None
) -> None:
    by_path: dict[str, int] = {}
    for path, module in model.named_modules():
        if id(module) in places:
            by_path[path] = places[id(module)]
            continue
        above = parent if not path else by_path.get(path.rpartition(".")[0], parent)
        last = path.rpartition(".")[2]
        if last == COMPILED_CHILD and above is not None and layers[above].compiled:
            places[id(module)] = by_path[path] = above  # the compiled model and the original are one layer
            continue
        own = name if not path or above is None else f"{layers[above].name}.{last}"
        places[id(module)] = by_path[path] = len(layers)
        layers.append(_layer(own, module, above))


def _in_order(layers: list[Layer], places: dict[int, int]) -> tuple[list[Layer], dict[int, int]]:
    """The layers in depth-first order, and their new indices."""
    below: dict[int | None, list[int]] = {}
    for place, layer in enumerate(layers):
        below.setdefault(layer.parent, []).append(place)
    order: list[int] = []
    waiting = below.get(None, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += below.get(order[-1], [])[::-1]
    new = {old: place for place, old in enumerate(order)}
    moved = [replace(layers[old], parent=None if (up := layers[old].parent) is None else new[up]) for old in order]
    return moved, {key: new[old] for key, old in places.items()}


def _layer(name: str, module: nn.Module, parent: int | None) -> Layer:
    children = module._modules  # not an attribute: __getattr__ may raise what it likes
    wrapped = children[COMPILED_CHILD] if COMPILED_CHILD in children else None  # noqa: SIM401 (TorchScript has no get)
    parameters: list[Any] = list(module.parameters())
    made = [parameter for parameter in parameters if not is_lazy(parameter)]
    sizes = [(parameter.numel(), parameter.element_size()) for parameter in made]
    return Layer(
        name=name,
        module=type(module if wrapped is None else wrapped).__name__,
        parent=parent,
        parameters=sum(count for count, _ in sizes),
        parameter_bytes=sum(count * size for count, size in sizes),
        compiled=wrapped is not None or isinstance(module, ScriptModule),
    )


def _without_inner(modules: list[nn.Module]) -> list[nn.Module]:
    """The modules that are not inside another one of them."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner]


def _unique(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return list({id(module): module for module in modules}.values())


def _free(name: str, taken: set[str]) -> str:
    """`name`, with a number if it is taken."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name} ({count})"
    taken.add(candidate)
    return candidate
