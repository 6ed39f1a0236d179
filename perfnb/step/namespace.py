"""Find the variables that a step uses.

These include its models, optimizers and loader, along with the names of their variables, and other reachable objects.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

from perfnb.step.optimizers import cannot_foreach, cannot_fuse, has_sparse_gradients, tensors_of
from perfnb.step.refusals import refused_levers

#: The locations of code that was not written by the user.
_INSTALLED = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen ",
)
#: The maximum number of functions called by a step, directly or indirectly, whose variables are searched for names.
_MOST_FUNCTIONS = 50


def namespace_of(step: Any) -> dict[str, Any]:
    """Return the globals and closure variables of a function.

    The result includes the variables of nested functions and of functions that are called by name. For a method, it
    also includes the object, under the name ``self``.
    """
    seen: dict[str, Any] = {}
    functions = [getattr(step, "__func__", step)]
    for function in functions:  # the list grows; variables closer to the step take precedence
        if type(function) is FunctionType:
            new = {name: value for name, value in _variables(function).items() if name not in seen}
            seen |= new
            if len(functions) < _MOST_FUNCTIONS:
                functions += [value for value in new.values() if type(value) is FunctionType]
    owner = getattr(step, "__self__", None)
    return seen if owner is None else {**seen, "self": owner}


def step_variables(step: Any, given: Mapping[str, Any], batches: Any = None) -> dict[str, Any]:
    """Return the variables that a step's parts are named after. The user's names for models come first."""
    return {**given, **name_of_batches(step, batches), **namespace_of(step), **given}


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function's code refers to, and its closure variables."""
    seen = {name: function.__globals__[name] for name in names_in(function.__code__) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return seen | {name: cell.cell_contents for name, cell in cells if not is_empty(cell)}


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables that the code running in a frame uses.

    These are its local variables, its globals, and the variables of the functions that it calls by name.
    """
    names = names_in(frame.f_code)
    own = {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
    seen = own | {name: frame.f_globals[name] for name in names if name in frame.f_globals and name not in own}
    for function in [value for value in seen.values() if type(value) is FunctionType][:_MOST_FUNCTIONS]:
        seen = {**namespace_of(function), **seen}
    return seen


def names_in(code: CodeType) -> list[str]:
    """Return the names of global variables in a code object and in the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in names_in(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def is_empty(cell: CellType) -> bool:
    """Check whether a closure variable does not have a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def is_installed(file: str) -> bool:
    """Check whether code belongs to the standard library, an installed package or perfnb rather than to the user."""
    return file.startswith(_INSTALLED)


def chosen_models(model: Any) -> tuple[list[nn.Module] | None, dict[str, nn.Module]]:
    """Return the models that the user passed as a module, a sequence or a mapping, and a mapping with their names.

    `TypeError` is raised for anything else, except for ``None``.
    """
    if model is None:
        return None, {}
    names = dict(model) if isinstance(model, Mapping) else {}
    models = list(names.values()) or ([model] if isinstance(model, nn.Module) else model)
    if not isinstance(models, (list, tuple)) or not all(isinstance(entry, nn.Module) for entry in models):
        raise TypeError(
            "model must be a torch module, a list of modules or a dict of names to modules, "
            f"not {type(model).__name__}."
        )
    return list(models), names


def named_modules(namespace: Mapping[str, Any]) -> list[tuple[str, nn.Module]]:
    """Return the modules in variables, followed by modules one level inside an object, list or dict in a variable."""
    return named_values(namespace, nn.Module)


def named_values(namespace: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """Return the instances of a class, which are found in the same way as in `named_modules`."""
    public = [(name, value) for name, value in namespace.items() if _is_public(name)]
    nested: list[tuple[str, Any]] = []
    for name, value in public:
        if issubclass(type(value), (nn.Module, FunctionType, ModuleType, type)):
            continue
        if issubclass(type(value), dict):
            nested += [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif issubclass(type(value), (list, tuple)):
            nested += [(f"{name}[{place}]", item) for place, item in enumerate(value)]
        else:
            with suppress(Exception):  # the attributes do not exist or cannot be read
                nested += [(f"{name}.{key}", item) for key, item in vars(value).items()]
    # The type is checked because isinstance may run a proxy's code.
    return [(name, value) for name, value in (*public, *nested) if issubclass(type(value), kind)]


def names_of(namespace: Mapping[str, Any], kind: type) -> dict[int, str]:
    """Return the first name that `named_values` finds for each instance of a class, keyed by ``id``."""
    return {id(value): name for name, value in reversed(named_values(namespace, kind))}


def _is_public(name: Any) -> bool:
    return isinstance(name, str) and not name.startswith("_") and name not in ("In", "Out")


#: The maximum number of levels inside a variable, entries of a container, and values in total.
_MOST_LEVELS, _MOST_ENTRIES, _MOST_VALUES = 4, 1000, 20_000

#: Values that are not searched.
_CLOSED = (str, bytes, bytearray, int, float, complex, type, ModuleType, Tensor, Optimizer, LRScheduler, type(None))


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the roots, followed by the values inside them, starting with the nearest. Each value is yielded once.

    The search covers containers, objects, methods, partial functions, iterators and the variables of functions, but not
    classes or Python modules. The depth and the number of values are limited because a dataset may contain millions of
    values.
    """
    waiting = deque((value, 0) for value in roots)
    seen: dict[int, Any] = {}  # values are kept alive to prevent an id from being reused
    while waiting and len(seen) < _MOST_VALUES:
        value, level = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if level < _MOST_LEVELS:
            waiting.extend((inner, level + 1) for inner in islice(_inside(value), _MOST_ENTRIES))


def _inside(value: Any) -> Iterable[Any]:
    kind = type(value)  # isinstance may run a proxy's code
    if issubclass(kind, _CLOSED):
        return ()
    if issubclass(kind, dict):
        return list(islice(dict.values(value), _MOST_ENTRIES))
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
        return list(islice(iter(value), _MOST_ENTRIES))
    if kind is FunctionType:
        return namespace_of(value).values()
    if kind is MethodType:
        return value.__self__, value.__func__
    if issubclass(kind, partial):
        return value.func, *value.args, *value.keywords.values()
    try:
        parts = vars(value)
    except Exception:  # the attributes do not exist or cannot be read
        # The iterable of a generator's loop is not in any of its variables.
        return gc.get_referents(value) if hasattr(kind, "__next__") else ()
    if issubclass(kind, nn.Module):  # its tensors and submodules are found by other means
        return [part for name, part in parts.items() if not name.startswith("_")]
    return list(parts.values())


#: The loader settings that are recorded. The optimizer settings follow below.
_OF_LOADER = ("num_workers", "prefetch_factor", "batch_size")
#: The arguments, with their defaults, that must be repeated to create another loader for the same samples.
_LOADER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "num_workers": (0,),
    "collate_fn": (default_collate, default_convert),
    "pin_memory": (False,),
    "timeout": (0,),
    "worker_init_fn": (None,),
    "multiprocessing_context": (None,),
    "generator": (None,),
    "prefetch_factor": (None, 2),
    "persistent_workers": (False,),
    "in_order": (True,),
}
_OF_OPTIMIZER = ("foreach", "fused", "capturable")
#: Modules that a recommended line may use.
_IMPORTS = ("torch", "gc", "os")
#: The arguments that make torch's optimizers update all parameters at once, starting with the fastest, and functions
#: that return why an argument cannot be used.
_AT_ONCE = {"fused": cannot_fuse, "foreach": cannot_foreach}


def name_of_batches(step: Any, batches: Any) -> dict[str, Any]:
    """Return the name of the global variable in the step's module that refers to the batches, and the batches."""
    places = getattr(getattr(step, "__func__", step), "__globals__", {})
    if batches is None or isinstance(batches, (int, str)):
        return {}
    return next(({name: batches} for name, value in list(places.items()) if value is batches), {})


def named_parts(namespace: Mapping[str, Any], batches: Any, called: Iterable[nn.Module]) -> dict[str, Any]:
    """Return the names and settings of a step's optimizers and loader, ready for JSON.

    Parameters
    ----------
    namespace : mapping
        The variables that the parts are named after.
    batches : object
        The source of the batches, or ``None`` if there are no batches.
    called : iterable of Module
        The modules that the step calls. Optimizers of other parameters are ignored.

    Returns
    -------
    dict
        A dictionary with the following keys:

        - ``optimizers``: for each optimizer, its ``name``, ``class``, ``tensors`` (the number of parameters),
          ``elements`` (the number of elements in the parameters), ``groups``, ``at_once`` (the arguments that it
          accepts and that make it update all parameters at once), and its settings.
        - ``loader``: the loader's ``name`` (``None`` if it is not in a variable), its ``class``, ``direct`` (whether
          the step iterates over the loader itself), its settings, and the result of `loader_facts`. This is ``None`` if
          there are no batches.
        - ``refused``: the levers of `perfnb.try_levers` that do not apply.
        - ``imports``: the modules that the namespace contains under their own names.
    """
    modules = list(called)
    used = {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}
    sparse = has_sparse_gradients([], modules)
    found: dict[int, tuple[str, Optimizer]] = {}
    for name, value in named_values(namespace, Optimizer):
        if any(id(tensor) in used for tensor in tensors_of(value)):
            found.setdefault(id(value), (name, value))
    optimizers = [
        {
            "name": name,
            "class": type(value).__name__,
            "tensors": len(tensors_of(value)),
            "elements": sum(tensor.numel() for tensor in tensors_of(value)),
            "groups": len(value.param_groups),
            "at_once": [word for word, why_not in _AT_ONCE.items() if not why_not(value, sparse)],
            **{key: value.defaults[key] for key in _OF_OPTIMIZER if _plain(value.defaults.get(key))},
        }
        for name, value in found.values()
    ]
    return {
        "optimizers": optimizers,
        "loader": None if batches is None else _loader(namespace, batches),
        "refused": refused_levers(modules, batches),
        "imports": [name for name in _IMPORTS if namespace.get(name) is sys.modules.get(name, _IMPORTS)],
    }


def _loader(namespace: Mapping[str, Any], batches: Any) -> dict[str, Any]:
    given = batches
    name = names_of(namespace, type(batches)).get(id(batches))
    if not isinstance(batches, DataLoader):
        # For enumerate(loader) or zip(loader), use the loader if there is only one.
        loaders = list({id(value): (name, value) for name, value in named_values(namespace, DataLoader)}.values())
        if name is not None or len(loaders) != 1 or isinstance(batches, (list, tuple)):
            return {"name": name, "class": type(batches).__name__}
        name, batches = loaders[0]
    settings = {key: getattr(batches, key, None) for key in _OF_LOADER}
    settings = {key: value for key, value in settings.items() if _plain(value)}
    known = {"name": name, "class": type(batches).__name__, "direct": batches is given}
    return known | settings | loader_facts(batches)


def loader_facts(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the information needed to write a line of code that creates the same loader with other settings.

    Returns
    -------
    dict
        A dictionary with the keys ``dataset`` (the dataset's class), ``iterable`` (whether it is an iterable-style
        dataset), ``indexed`` (whether indexing the dataset once with a list returns the same batch as fetching its
        samples one by one) and ``same`` (the arguments to repeat, which are attributes of the loader). ``same`` is
        empty for a subclass of torch's loader, because it may do more than the base class.
    """
    dataset, batched = loader.dataset, loader.batch_sampler is not None
    facts = {"dataset": type(dataset).__name__, "iterable": isinstance(dataset, IterableDataset)}
    if type(loader) is not DataLoader:
        return facts | {"indexed": False, "same": []}
    if facts["iterable"]:
        shape = ["batch_size", *["drop_last"] * bool(loader.drop_last)]
    else:
        shape = ["batch_sampler"] if batched else ["batch_size", "sampler"]
    usual = _LOADER_DEFAULTS | {"collate_fn": (default_collate if batched else default_convert,)}
    rest = [
        word for word, values in usual.items() if not any(getattr(loader, word, values[0]) is value for value in values)
    ]
    plain = type(dataset) is TensorDataset and type(loader.batch_sampler) is BatchSampler
    return facts | {"indexed": plain and "collate_fn" not in rest, "same": [*shape, *rest]}


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
