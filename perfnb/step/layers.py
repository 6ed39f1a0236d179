"""Record the layers that a step calls as spans in the trace, and find the user's names for them.

Global forward hooks open a span for every module call. The span's label is ``pf#<n>``, where n is the number of the
call, and `Calls` records the module that was called. Labels must be unique because torch merges nested spans with the
same name, and they must be ASCII because torch's exporter loses other characters. Backward hooks are not used, because
they break in-place operations and fire early. Instead, attribution uses autograd's sequence numbers to find a layer's
backward pass in the trace.

torch's profiler records the thread that started it and the threads where autograd runs its backward passes. Calls on
any other thread can happen at any time and do not get a span. `Calls` only records their modules.
"""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import unwrap
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.compiler import is_compiling
from torch.jit import ScriptModule
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import (
    _global_forward_hooks,
    _global_forward_hooks_always_called,
    _global_forward_pre_hooks,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.parameter import is_lazy

from perfnb.step.compiler import IN_PLACE, compiled_modules, is_in_place, recompiled_for_hooks, run_uncompiled
from perfnb.step.installed import Installed
from perfnb.step.namespace import named_modules, names_of
from perfnb.step.refusals import COMPILED_CHILD, is_compiled, is_compiled_in_place, wrapped_by_compiler
from perfnb.trace_names import LAYER_SPAN

#: A span that costs a third as much as `record_function`. The trace puts it in the same category as operators, unlike a
#: `record_function` range.
function_span: Any = torch._C._profiler._RecordFunctionFast

#: torch's functions between a module's caller and its hooks. Their first argument is the module that is called.
_CALLING = ("_call_impl", "_wrapped_call_impl", "__call__")
#: The module that runs the step. Frames outside it are not part of the step.
_RUNNER = "perfnb.step.steps"

#: The methods that a class may define to copy its instances.
_COPYING = ("__copy__", "__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")

Stack = list[tuple[nn.Module, int, Any]]


@dataclass
class Calls:
    """The module calls in all passes that record layer spans."""

    #: The number of each call, its module, and the number of the enclosing call.
    records: list[tuple[int, nn.Module, int | None]] = field(default_factory=list)
    #: The numbers of the calls that computed a loss.
    loss: set[int] = field(default_factory=set)
    #: The number of the first call of each step.
    begins: list[int] = field(default_factory=list)
    #: Whether the step called an outermost module directly, not through a module's method, keyed by ``id``.
    called_whole: dict[int, bool] = field(default_factory=dict)
    #: The modules that were called on threads that the profiler does not record, keyed by ``id``.
    elsewhere: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    #: The outermost modules that were called only in a step that ran uncompiled. In the other steps, they are part of
    #: compiled functions.
    hidden: list[nn.Module] = field(default_factory=list)

    def begin_step(self) -> None:
        """Record that subsequent calls belong to the next step."""
        self.begins.append(len(self.records))

    def unseen(self) -> list[nn.Module]:
        """Return the modules that were called only on threads that the profiler does not record, except losses."""
        seen = {id(module) for _, module, _ in self.records}
        alive = [reference() for reference in list(self.elsewhere.values())]
        return [m for m in alive if m is not None and id(m) not in seen and not isinstance(m, _Loss)]


class LayerSpans(Installed):
    """Context manager that opens a span for each module call in the trace.

    Parameters
    ----------
    only : list of Module or None
        Restrict the spans to these modules, their submodules, and outermost calls.
    calls : Calls, optional
        The calls from earlier passes. Calls in this pass are added to them.
    outermost : callable, optional
        Called with the positional arguments of each outermost call.
    uncompiled : bool
        Whether compiled code runs uncompiled, so that hooks see the modules inside it.
    """

    def __init__(
        self,
        only: list[nn.Module] | None = None,
        calls: Calls | None = None,
        outermost: Callable[[Any], None] | None = None,
        *,
        uncompiled: bool = False,
    ) -> None:
        self._uncompiled = uncompiled
        self.calls = Calls() if calls is None else calls
        self._outermost = outermost
        self._wanted = None if only is None else {id(module) for model in only for module in model.modules()}
        self._numbers = itertools.count(len(self.calls.records))
        self._local = threading.local()
        self._own_stack: Stack = []
        self._own_thread = 0
        self._hooks: list[tuple[dict[int, Any], int]] = []

    def _install(self, stack: ExitStack) -> None:
        run_uncompiled(_HOOKS)
        self._own_thread = threading.get_ident()
        self._local.stack = self._own_stack
        # An interrupt skips even the hooks. A span can be closed only on the thread that opened it.
        stack.callback(_close_down_to, self._own_stack, 0)
        stack.enter_context(warnings.catch_warnings())
        # The warning says that hooks see a compiled model as one more module.
        warnings.filterwarnings("ignore", message="Using `torch.compile.* when there are global hooks")
        before = register_module_forward_pre_hook(self._open)
        stack.callback(before.remove)
        # always_call is needed because the span must be closed even if forward raises an exception.
        behind = register_module_forward_hook(self._close, always_call=True)
        stack.callback(behind.remove)
        self._hooks = [
            (_global_forward_pre_hooks, before.id),
            (_global_forward_hooks, behind.id),
            (_global_forward_hooks_always_called, behind.id),
        ]
        stack.callback(self._hooks.clear)
        compiled = compiled_modules()  # one search through all live objects
        in_place = [module for module in compiled if is_in_place(module)]
        inside = [part for whole in in_place for part in whole.modules() if not _copies_itself(part)]
        for module in {id(module): module for module in (*in_place, *inside)}.values():
            self._span_around(module, vars(module), IN_PLACE, stack)
        for wrapper, original in () if self._uncompiled else recompiled_for_hooks(compiled):
            self._span_around(original, vars(wrapper), "forward", stack)

    def _span_around(self, module: nn.Module | None, own: dict[str, Any], name: str, stack: ExitStack) -> None:
        """Make the function `name` in `own`, which calls a module, open a span and hide the hooks while it runs.

        Hooks are called neither in compiled code nor, if the module was compiled in place, in the uncompiled code at
        its graph breaks. The compiler still sees the original call. Without a module, only the hooks are hidden.
        """
        plain = own.get(name)
        compiled: Any = module._call_impl if plain is None and module is not None else plain

        def call(*args: Any, **kwargs: Any) -> Any:
            if module is not None:
                self._open(module, args)
            output = None
            try:
                with self._without_hooks():
                    output = compiled(*args, **kwargs)
            finally:
                if module is not None:
                    self._close(module, args, output)
            return output

        call._torchdynamo_inline = getattr(compiled, "_torchdynamo_inline", compiled)  # type: ignore[attr-defined]
        run_uncompiled([call])  # the code that it calls stays compiled
        had = name in own
        own[name] = call

        def restore() -> None:
            if own.get(name) is not call:
                return  # compiled in the meantime
            if had:
                own[name] = plain
            else:
                del own[name]

        stack.callback(restore)

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """Hide the hooks from the guards of compiled code, which would otherwise be recompiled with the hooks."""
        hidden = [(hooks, key, hooks.pop(key)) for hooks, key in self._hooks if key in hooks]
        try:
            yield
        finally:
            if self._hooks:  # on another thread, the call may end after the hooks were removed
                for hooks, key, hook in hidden:
                    hooks[key] = hook

    def call(self, module: nn.Module, argument: Any) -> Any:
        """Call a module inside a span, without running any other hooks."""
        self._open(module, (argument,))
        output = module.forward(argument)
        self._close(module, (argument,), output)
        return output

    def _open(self, module: nn.Module, args: Any) -> None:
        # This method runs for every module call, so it must be fast.
        if is_compiling():
            return
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        if not stack and not self._is_recorded():
            self.calls.elsewhere[id(module)] = weakref.ref(module)
            return
        # An outermost call always gets a span, because it is part of forward even if its model was not requested.
        if stack and self._wanted is not None and id(module) not in self._wanted:
            return
        if not stack:
            if id(module) not in self.calls.called_whole:
                self.calls.called_whole[id(module)] = not _inside_a_method(sys._getframe(1))
            if self._outermost is not None:
                self._outermost(args)
        number = next(self._numbers)
        span = function_span(f"{LAYER_SPAN}{number}")
        self.calls.records.append((number, module, stack[-1][1] if stack else None))
        stack.append((module, number, span))
        span.__enter__()

    def _close(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_compiling():  # checked first because the compiler would otherwise compile the stack
            return
        stack: Stack | None = getattr(self._local, "stack", None)
        if not stack:
            return
        if stack[-1][0] is not module:
            # Either a span inside this call is still open, or no span was opened for this module.
            open_at = [place for place, entry in enumerate(stack) if entry[0] is module]
            if not open_at:
                return
            _close_down_to(stack, open_at[-1] + 1)
        _, number, span = stack.pop()
        span.__exit__(None, None, None)
        if not stack and computes_loss(module, output):
            self.calls.loss.add(number)

    def _is_recorded(self) -> bool:
        """Check whether the profiler records this thread.

        It does if the profiler was started on this thread or if autograd is running a recorded backward pass on it.
        """
        return threading.get_ident() == self._own_thread or profiler_active()


def _copies_itself(module: nn.Module) -> bool:
    """Check whether a module's class defines how to copy or pickle its instances.

    A copy might then keep the attribute that perfnb adds to the module.
    """
    return not isinstance(module, ScriptModule) and any(
        getattr(type(module), name, None) is not getattr(nn.Module, name, None) for name in _COPYING
    )


def profiler_active() -> bool:
    """Check whether torch's profiler is recording this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def others_listen() -> bool:
    """Check whether there are other global hooks that see every module call."""
    hooks = (*_global_forward_pre_hooks.values(), *_global_forward_hooks.values())
    return any(not isinstance(getattr(hook, "__self__", None), LayerSpans) for hook in hooks)


def _inside_a_method(frame: FrameType | None) -> bool:
    """Check whether the outermost module call in this frame was made by a module's method, such as ``generate``."""
    while frame is not None and frame.f_globals.get("__name__") != _RUNNER:
        code = frame.f_code
        if code.co_name not in _CALLING and code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            # The type is checked because isinstance would query a proxy for its class. The code must also be a method,
            # because the first argument of a function can be a model as well.
            if issubclass(type(first), nn.Module) and _is_method(code, first):
                return True
        frame = frame.f_back
    return False


def _is_method(code: CodeType, module: Any) -> bool:
    """Check whether a code object belongs to one of a module's methods."""
    owners = (vars(module), *map(vars, type(module).__mro__))
    methods = (owner[code.co_name] for owner in owners if code.co_name in owner)
    return any(getattr(unwrap(method), "__code__", None) is code for method in methods)


def _close_down_to(stack: Stack, height: int) -> None:
    while len(stack) > height:
        stack.pop()[2].__exit__(None, None, None)


def computes_loss(module: nn.Module, output: Any) -> bool:
    """Check whether an outermost call computed a loss.

    It did if the module is one of torch's loss classes, or if it has no parameters and returns a scalar.
    """
    if isinstance(module, _Loss):
        return True
    scalar = isinstance(output, torch.Tensor) and output.dim() == 0
    return scalar and next(module.parameters(), None) is None


#: The functions that run inside the hooks.
_HOOKS = (
    *(LayerSpans._open, LayerSpans._close, LayerSpans._is_recorded, unwrap(LayerSpans._without_hooks)),
    *(profiler_active, _inside_a_method, _is_method, _close_down_to, computes_loss),
)


@dataclass(frozen=True)
class Layer:
    """A module as a layer of a model."""

    #: The qualified name, which starts with the model's variable or class.
    name: str
    #: The module's class.
    module: str
    #: The index of the enclosing layer, or ``None`` for a model.
    parent: int | None
    #: The number of parameters in the module and its submodules. Shared parameters are counted once.
    parameters: int
    parameter_bytes: int
    #: Whether the layer is a region compiled by ``torch.compile`` or TorchScript, which hides the layers inside it.
    compiled: bool


def name_layers(
    calls: Calls, namespace: Mapping[str, Any], only: list[nn.Module] | None = None
) -> tuple[list[Layer], dict[int, int]]:
    """Return all layers of the models that were called, in model order, and each module's layer index, keyed by ``id``.

    A model is an outermost module that was called or, if a variable in `namespace` contains that module inside another
    one, the module in the variable. Modules that the step creates are not part of any model, so they become layers
    below the enclosing call. A module that every step creates again is a single layer. If `only` is given, the result
    is restricted to these models.
    """
    modules = {number: module for number, module, _ in calls.records}
    twins = _made_anew(calls, namespace)
    outermost = [module for number, module, around in calls.records if around is None and number not in calls.loss]
    unseen = calls.unseen()
    inner = {id(part) for module in unseen for part in module.modules() if part is not module}
    outermost += [module for module in unseen if id(module) not in inner]
    owned = {id(part) for _, model in named_modules(namespace) for part in model.modules()}
    hidden = [module for module in calls.hidden if id(module) in owned]  # other modules may be created in each step
    outermost += hidden
    layers: list[Layer] = []
    places: dict[int, int] = {}
    taken: set[str] = set()
    for name, model in _models(outermost, namespace, twins):
        _add_model(_free(name, taken), model, layers, places)
    for number, module, around in calls.records:
        if id(module) in twins:
            for first, part in zip(twins[id(module)].modules(), module.modules(), strict=True):
                if id(first) in places:
                    places[id(part)] = places[id(first)]
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
    for place in {places[id(module)] for module in hidden if id(module) in places}:
        layers[place] = replace(layers[place], compiled=True)
    order = _depth_first(layers)
    if only is not None:
        wanted = {places[id(part)] for model in only for part in model.modules() if id(part) in places}
        order = [place for place in order if place in wanted]
    new: dict[int | None, int] = {old: place for place, old in enumerate(order)}
    # The models in `only` become roots and keep their qualified names.
    moved = [replace(layers[old], parent=new.get(layers[old].parent)) for old in order]
    return moved, {key: new[old] for key, old in places.items() if old in new}


def known_models(
    calls: Calls, namespace: Mapping[str, Any], layers: list[Layer], places: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return the models in the user's variables, ready for JSON.

    Returns
    -------
    list of dict
        Each entry contains ``name`` (of the layer and the variable) and ``called``, which is true if the step calls the
        model itself rather than layers inside it or a method such as ``generate``.
    """
    known: list[dict[str, Any]] = []
    for name, module in named_modules(namespace):
        place = places.get(id(module))
        if place is not None and layers[place].parent is None and layers[place].name == name:
            known.append({"name": name, "called": calls.called_whole.get(id(module), False)})
    return known


def parallel_models(
    layers: list[Layer], places: Mapping[int, int], called: Iterable[nn.Module]
) -> list[dict[str, Any]]:
    """Return the DistributedDataParallel modules that were called, and their settings, ready for JSON.

    Returns
    -------
    list of dict
        Each entry contains ``name`` (of the layer), ``find_unused_parameters``, ``static_graph``, ``bucket_bytes`` (the
        maximum) and ``unused_bytes``, which is the size of the parameters that DDP found to be unused, or ``None`` if
        DDP does not report it.
    """
    found = {id(module): module for module in called if isinstance(module, nn.parallel.DistributedDataParallel)}
    return [
        {
            "name": layers[places[key]].name,
            "find_unused_parameters": bool(module.find_unused_parameters),
            "static_graph": bool(module.static_graph),
            "bucket_bytes": int(module.bucket_bytes_cap),
            "unused_bytes": _unused_bytes(module),
        }
        for key, module in found.items()
        if key in places
    ]


def _unused_bytes(module: nn.parallel.DistributedDataParallel) -> int | None:
    try:
        told = module._get_ddp_logging_data().get("unused_parameter_size")
    except Exception:  # the method is private, and it fails before the first step
        return None
    return told if isinstance(told, int) else 0


def own_tables(
    layers: list[Layer], places: Mapping[int, int], called: Iterable[nn.Module], namespace: Mapping[str, Any]
) -> list[str]:
    """Return the names of embedding layers that have a dense gradient and do not share their weight."""
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
    """Map the ``id`` of each module that a step created again to the corresponding module of an earlier step.

    A module was created by a step if it is not part of any named model and was called in only one step. Modules of
    different steps correspond if they have the same class, structure and caller, and the same position among such
    modules in their steps.
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


def _models(
    outermost: list[nn.Module], namespace: Mapping[str, Any], twins: Mapping[int, nn.Module]
) -> list[tuple[str, nn.Module]]:
    """Return the models that contain the outermost modules, along with their names. Each model is returned once."""
    named = named_modules(namespace)
    by_id = names_of(namespace, nn.Module)
    found: dict[int, tuple[str, nn.Module]] = {}
    for module in {id(each): each for each in outermost if id(each) not in twins}.values():
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
            places[id(module)] = by_path[path] = above  # the compiled model and the original are the same layer
            continue
        own = name if not path or above is None else f"{layers[above].name}.{last}"
        places[id(module)] = by_path[path] = len(layers)
        layers.append(_layer(own, module, above))


def _depth_first(layers: list[Layer]) -> list[int]:
    below: dict[int | None, list[int]] = {}
    for place, layer in enumerate(layers):
        below.setdefault(layer.parent, []).append(place)
    order: list[int] = []
    waiting = below.get(None, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += below.get(order[-1], [])[::-1]
    return order


def _layer(name: str, module: nn.Module, parent: int | None) -> Layer:
    wrapped = wrapped_by_compiler(module)
    parameters: list[Any] = list(module.parameters())
    made = [parameter for parameter in parameters if not is_lazy(parameter)]
    sizes = [(parameter.numel(), parameter.element_size()) for parameter in made]
    return Layer(
        name=name,
        module=type(module if wrapped is None else wrapped).__name__,
        parent=parent,
        parameters=sum(count for count, _ in sizes),
        parameter_bytes=sum(count * size for count, size in sizes),
        compiled=is_compiled(module) or is_compiled_in_place(module),
    )


def _free(name: str, taken: set[str]) -> str:
    """Return `name`, and append a number if the name is already in use."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name} ({count})"
    taken.add(candidate)
    return candidate
