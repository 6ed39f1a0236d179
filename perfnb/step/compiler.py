"""Read the results of torch.compile: each graph's kernels, and the modules whose operations they compute.

This information is available only for graphs that were compiled inside `CompilesForProfiling`. In that case, each
generated kernel is an event in the trace, Inductor records which operations it fused into which kernel, and a
description of the operations is attached to the compiled graph. Inductor's cache stores the description together with
the graph, and it does not return graphs that were compiled without a description.

This is the only module that uses private names from torch's compiler. `missing_names` lists the names that do not exist
in the installed version of torch.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import linecache
import math
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from functools import reduce, wraps
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn

from perfnb.recording.compiled_layers import RESUMED, CompiledCode, Graph
from perfnb.recording.kernel_work import Kernel, Operation
from perfnb.step.installed import Installed
from perfnb.step.refusals import is_compiled, wrapped_by_compiler

#: The module attribute that contains the code created by ``compile()``.
IN_PLACE = "_compiled_call_impl"
_CONFIG, _DEBUG = "torch._inductor.config", "torch._inductor.debug"
_OUTPUT, _PASSES = "torch._inductor.output_code", "torch._inductor.custom_graph_pass"
_GRAPH = "CompiledFxGraph"
#: The operations in each kernel of the graph that is being compiled. The graph itself stores them only if it belongs to
#: a forward pass.
_FUSED = "_inductor_triton_kernel_to_post_grad_node_info"
_DYNAMO = "torch._dynamo.utils"
#: The private names needed to attribute kernels to layers, by module.
PRIVATE_NAMES: Mapping[str, tuple[str, ...]] = {
    _CONFIG: ("cpp.enable_kernel_profile", "trace.provenance_tracking_level", "post_grad_custom_post_pass"),
    _DEBUG: (_FUSED,),
    _OUTPUT: (_GRAPH, f"{_GRAPH}._fx_graph_cache_key"),
    _PASSES: ("CustomGraphPass",),
}
#: The private names needed to report the reasons for recompilations and graph breaks.
REPORTED_NAMES: Mapping[str, tuple[str, ...]] = {_DYNAMO: ("get_compilation_metrics", "graph_break_reasons")}
#: The private names needed to recompile a model.
AGAIN_NAMES: Mapping[str, tuple[str, ...]] = {
    "torch": ("_TorchCompileInductorWrapper",),
    "torch._dynamo": ("optimize",),
    "torch._dynamo.eval_frame": ("innermost_backend",),
}
#: A kernel in Inductor's mapping, with its position in the generated code.
_NUMBERED = re.compile(r"(?P<kernel>.+):(?P<order>[0-9]{1,9})")
_EXTERN = ("extern_kernels.", "torch.ops.", "aten.")
_FILE = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>[0-9]{1,9}), in .*\n *(?P<text>.*)$', re.MULTILINE)
#: The start of the name of each function that compiled code calls after a graph break.
_RESUMING = "__resume_at_"
#: The guard of code that was compiled when there were no hooks for all modules.
_HOOK_GUARD = re.compile(r"DICT_LENGTH: not \S*\._global_forward_(?:pre_)?hooks\b")
#: The name that newer versions of torch use for a branch on a tensor's value.
_BRANCH = "Data-dependent branching"
#: The start of the path of every file of torch's own.
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
#: The reason and the place of each graph break, by the file, the name and the line of the function that was compiled.
_Breaks = dict[tuple[str, str, int], tuple[str, str]]
#: The end of the path to torch's own file that contains the function compiled instead of a torch.nn module's forward.
_WRAPPER = ("_dynamo", "external_utils.py")
#: The number of objects that the interpreter itself may freeze. Importing torch creates ten times as many.
_FROZEN = 10_000
#: The attribute of a compiled graph that contains the description. It ends with the version of its format.
_ATTRIBUTE = "_perfnb_operations_6"


def missing_names(needed: Mapping[str, tuple[str, ...]] | None = None) -> list[str]:
    """Return those of the `needed` private names that this version of torch lacks.

    By default, these are the names needed to find the layers of compiled regions.
    """
    wanted = PRIVATE_NAMES if needed is None else needed
    return [f"{module}.{name}" for module, names in wanted.items() for name in names if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    *outer, last = name.split(".")
    try:
        value = reduce(getattr, outer, importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    # A dataclass field without a default is not an attribute of the class.
    return hasattr(value, last) or last in getattr(value, "__annotations__", {})


class CompilesForProfiling(Installed):
    """Context manager that makes newly compiled code report the layers of its kernels.

    It does nothing if `missing_names` returns any names.
    """

    def _install(self, stack: ExitStack) -> None:
        if missing_names():
            return
        config: Any = importlib.import_module(_CONFIG)
        graph = getattr(importlib.import_module(_OUTPUT), _GRAPH)
        before: dict[str, tuple[str, ...]] = {}
        own = config.post_grad_custom_post_pass
        passes = own if isinstance(own, (list, tuple)) else [own] if own is not None else []
        new = {
            "cpp.enable_kernel_profile": True,
            "trace.provenance_tracking_level": max(1, config.trace.provenance_tracking_level),
            "post_grad_custom_post_pass": [*passes, _marker(before)] if passes else _marker(before),
        }
        stack.enter_context(config.patch(new))
        plain = graph.__init__
        stack.callback(setattr, graph, "__init__", plain)
        graph.__init__ = _describing(plain, before)


def why_not_again() -> str:
    """Return the reason why this version of torch cannot recompile a model separately for profiling.

    The result is empty if this version can.
    """
    missing = missing_names() + missing_names(AGAIN_NAMES)
    if not missing and "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        missing = ["torch.compile(isolate_recompiles=)"]
    return f"torch {torch.__version__} has no {missing[0]}" if missing else ""


class CompilesAgain(Installed):
    """Context manager that makes models run code that is recompiled with the settings of `CompilesForProfiling`.

    The new code is compiled when the models are called, and torch stores it separately. It does not count towards the
    recompilation limit. Outside the context, the models run the same code as before.

    Attributes
    ----------
    models : list of Module
        All live models that Inductor compiled as a whole, either with ``torch.compile(model)`` or in place.
    """

    models: list[nn.Module]

    def _install(self, stack: ExitStack) -> None:
        self.models = []
        stack.enter_context(CompilesForProfiling())
        for module in compiled_modules():
            own, name = vars(module), "forward" if is_compiled(module) else IN_PLACE
            compiled = own.get(name)
            again = _compiled_again(compiled)
            if again is not None:
                self.models.append(module)
                own[name] = again
                stack.callback(own.__setitem__, name, compiled)


def _compiled_again(compiled: Any) -> Any:
    """Call ``torch.compile`` again for the same function with the same settings, and return the result.

    Return ``None`` if the function was not compiled with Inductor.
    """
    dynamo, eval_frame = map(importlib.import_module, ("torch._dynamo", "torch._dynamo.eval_frame"))
    try:
        settings = inspect.getclosurevars(compiled).nonlocals["self"]
        backend = eval_frame.innermost_backend(settings.callback)
        if type(backend) is not torch._TorchCompileInductorWrapper:
            return None
        return dynamo.optimize(
            backend=_unlike(backend),
            nopython=settings.fullgraph,
            dynamic=settings._dynamic,
            guard_filter_fn=settings._hooks and settings._hooks.guard_filter_fn,
            shapes_spec=settings._shapes_spec,
            isolate_recompiles=True,
        )(compiled._torchdynamo_orig_callable)
    except (AttributeError, KeyError, TypeError):  # not a function that torch.compile created
        return None


def _unlike(backend: Any) -> Any:
    """Return a copy of a backend that does not compare equal to any other backend.

    Otherwise, torch would use the code that the original backend has compiled.
    """

    class Unlike(type(backend)):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = object.__hash__

    copied = copy(backend)
    copied.__class__ = Unlike
    return copied


def _fused() -> dict[str, tuple[str, ...]]:
    """Return the operations of each kernel that Inductor has recorded, for this graph and for some previous graphs."""
    fused = getattr(importlib.import_module(_DEBUG), _FUSED)
    return {str(kernel): tuple(map(str, names)) for kernel, names in fused.items()}


def _marker(before: dict[str, tuple[str, ...]]) -> Any:
    """Return a compiler pass that records which operations were fused before this graph was compiled.

    The pass also changes the graph's cache key, which otherwise ignores the modules of the graph's operations.
    """
    base: Any = importlib.import_module(_PASSES).CustomGraphPass

    class Marker(base):  # type: ignore[misc]
        def __call__(self, graph: fx.Graph) -> None:
            before.clear()
            with suppress(Exception):
                before.update(_fused())

        def uuid(self) -> str:
            return f"{_ATTRIBUTE} {_modules_in_caller(sys._getframe(1))}"

    return Marker()


def _modules_in_caller(frame: FrameType | None) -> str:
    """Return a digest of the modules in the graph whose cache key is being computed, or an empty string.

    torch does not pass the graph to the function that calls this one, so the graph is a variable of a caller.
    """
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, fx.GraphModule):
                return sha256(repr([_modules_of(node) for node in value.graph.nodes]).encode()).hexdigest()
        frame = frame.f_back
    return ""


def _modules_of(node: fx.Node) -> tuple[tuple[str, str], ...]:
    """Return the path and the class of each module that contains a node's operation, outermost first."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return tuple((str(path), _class_name(kind)) for path, kind in stack.values())


def _describing(plain: Any, before: Mapping[str, tuple[str, ...]]) -> Any:
    """Return a `CompiledFxGraph.__init__` that attaches a description of the graph's operations."""

    @wraps(plain)
    def described(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        with suppress(Exception):  # the user's compilation must not fail; without a description, the graph is one row
            module = next(value for value in (*args, *kwargs.values()) if isinstance(value, fx.GraphModule))
            if any(str(node.target) == "invoke_subgraph" for node in module.graph.nodes):
                return  # it contains code that several layers share, and does not show which of them runs it
            own = {kernel: names for kernel, names in _fused().items() if before.get(kernel) != names}
            kernels = [tuple(kernel) for kernel in _kernels_in_order(own)]
            setattr(self, _ATTRIBUTE, (kernels, [tuple(each) for each in _operations(module)]))

    return described


def _kernels_in_order(fused: Mapping[str, Iterable[str]]) -> Iterator[Kernel]:
    """Yield the kernel calls in Inductor's mapping to operations, in the order of the generated code."""
    calls = [(match, names) for key, names in fused.items() if (match := _NUMBERED.fullmatch(key)) is not None]
    for call, names in sorted(calls, key=lambda pair: int(pair[0]["order"])):
        name = call["kernel"]
        yield Kernel(name, name.startswith(_EXTERN), tuple(names))


def _source_of(trace: Any) -> tuple[str, int, str] | None:
    """Return the innermost line in the stack from an operation's metadata, outside torch if there is one.

    If the user has set a default device, the innermost line is in torch.
    """
    lines = list(_FILE.finditer(trace)) if isinstance(trace, str) else []
    lines = [line for line in lines if not line["file"].startswith(_TORCH)] or lines
    return (lines[-1]["file"], int(lines[-1]["line"]), lines[-1]["text"].strip()) if lines else None


@contextmanager
def not_imported() -> Iterator[None]:
    """Prevent checks for torch's compiler from importing it, because the import takes a second or two.

    If the compiler has not been imported, it cannot have compiled anything.
    """
    found: Any = vars(torch).get("__getattr__")
    if "torch._inductor" in sys.modules or found is None:
        yield
        return

    def without_compiler(name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return found(name)

    vars(torch)["__getattr__"] = without_compiler
    try:
        yield
    finally:
        vars(torch)["__getattr__"] = found


def modules_where(holds: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """Return the live compiled modules that satisfy a condition."""
    if "torch._dynamo" not in sys.modules:
        return []  # nothing has been compiled
    # torch does not keep a list of these modules.
    modules = (candidate for candidate in gc.get_objects() if issubclass(type(candidate), nn.Module))
    return [module for module in modules if holds(module)]


def compiled_modules() -> list[nn.Module]:
    """Return the live modules that ``torch.compile`` created, and those whose ``compile()`` method was called."""
    return modules_where(lambda module: wrapped_by_compiler(module) is not None or is_in_place(module))


def is_in_place(module: nn.Module) -> bool:
    """Check whether the ``compile()`` method of this module was called, without asking a proxy for the attribute."""
    return vars(module).get(IN_PLACE) is not None


def recompiled_for_hooks(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, nn.Module | None]]:
    """Return those of the compiled modules that torch compiles again when a hook for all modules is added.

    With torch 2.11, these are modules that ``torch.compile`` created, if one of their submodules defines ``__call__``,
    as the blocks of models from transformers do. With torch 2.13, there are none. A module whose graph breaks is left
    out, because only hooks see the layers that run between its graphs. The second element of each pair is the original
    module, or ``None`` if its call is part of the compiled code.
    """
    found: list[tuple[nn.Module, nn.Module | None]] = []
    for wrapper in modules:
        original: Any = wrapped_by_compiler(wrapper)
        if original is None:
            continue
        called = getattr(vars(wrapper).get("forward"), "_torchdynamo_orig_callable", None)
        outside = called == original.__call__
        code = getattr(original.forward if outside else called, "__code__", None)
        if code is not None and _is_whole_but_guarded(code):
            found.append((wrapper, original if outside else None))
    return found


def _is_whole_but_guarded(code: CodeType) -> bool:
    """Check whether a function was compiled without graph breaks, and only for the case that there are no hooks."""
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
    if not any(_HOOK_GUARD.search(str(entry.guard_manager)) for entry in entries):
        return False
    if any(name.startswith(_RESUMING) for entry in entries for name in entry.code.co_names):
        return False
    # Nothing is resumed after a break in the last line.
    lines = {line for *_, line in code.co_lines() if line}
    breaks = {} if missing_names(REPORTED_NAMES) else _breaks(importlib.import_module(_DYNAMO))
    return not any((file, name) == (code.co_filename, code.co_name) and line in lines for file, name, line in breaks)


def run_uncompiled(functions: Iterable[Callable[..., Any]]) -> None:
    """Make Dynamo ignore these functions when compiled code calls them after a graph break.

    Versions of torch without the required private names compile these functions, which do nothing in compiled code.
    """
    if "torch._dynamo" in sys.modules:
        with suppress(AttributeError):
            for function in functions:
                sys.modules["torch._dynamo"].eval_frame.skip_code(function.__code__)


_in_force: list[CompilesForProfiling] = []
#: One entry for each open `profiling_block`.
_blocks: list[None] = []


def begin_for_profiling() -> None:
    """Make all code that torch compiles from now on report the layers of its kernels."""
    if not _in_force:
        _in_force.append(CompilesForProfiling().__enter__())


def end_for_profiling() -> None:
    """Undo `begin_for_profiling` if it is in effect and no block is open."""
    while _in_force and not _blocks:
        _in_force.pop().__exit__()


@contextmanager
def profiling_block() -> Iterator[None]:
    """Keep `begin_for_profiling` in effect inside the block. Blocks can be nested and can overlap across threads."""
    begin_for_profiling()
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()
        end_for_profiling()


def objects_are_frozen() -> bool:
    """Check whether `gc.freeze` hides objects, including compiled code, from searches through live objects."""
    return gc.get_freeze_count() > _FROZEN


def compiled_graphs(keys: Iterable[str] | None = None) -> list[Graph]:
    """Return the compiled graphs that report the layers of their kernels, optionally only those with the given keys."""
    wanted, found = None if keys is None else set(keys), dict[str, Graph]()
    if (wanted is not None and not wanted) or missing_names():
        return []
    kind = getattr(importlib.import_module(_OUTPUT), _GRAPH)
    for compiled in gc.get_objects():  # torch does not keep a list of compiled graphs
        if type(compiled) is not kind:
            continue
        key = compiled._fx_graph_cache_key
        if isinstance(key, str) and (wanted is None or key in wanted) and key not in found:
            kernels, operations = getattr(compiled, _ATTRIBUTE, ((), ()))
            if kernels:
                known = [Operation(*each) for each in operations]
                found[key] = Graph(key, tuple(Kernel(*each) for each in kernels), {each.name: each for each in known})
    return list(found.values())


def compiled_code(regions: Iterable[str], called: Iterable[CodeType] = ()) -> list[CompiledCode]:
    """Return torch's information about the functions of compiled regions.

    The name of a region is, for example, ``1/0``: the first version of the second function. The result contains the
    given regions first, then other versions of their functions, and finally those of the `called` functions that torch
    has not compiled because their graph breaks where torch cannot resume, unless a region ends at the same break.
    """
    wanted = dict.fromkeys(regions)
    if "torch._dynamo" not in sys.modules or missing_names(REPORTED_NAMES):
        return [CompiledCode(region) for region in wanted]
    utils: Any = sys.modules[_DYNAMO]
    known, failed, backward_s = dict[str, Any](), dict[tuple[str, int], Any](), defaultdict[str, float](float)
    for each in _since_reset(utils):
        region, place = str(each.compile_id), (each.co_filename, each.co_firstlineno)
        failed.pop(place, None)
        if not each.co_name:
            backward_s[region] += (getattr(each, "duration_us", None) or 0) / 1e6
        elif not each.fail_type:
            known[region] = each
        elif each.fail_type == "Unsupported":
            failed[place] = each
    functions = {_function(each) for each in wanted}
    wanted |= dict.fromkeys(region for region in known if _function(region) in functions)
    breaks = _breaks(utils)
    code = [
        _code(region, facts, _broke(facts, known.values(), breaks), backward_s[region])
        if (facts := known.get(region)) is not None
        else CompiledCode(region)
        for region in wanted
    ]
    met, places = {each.broke_at for each in code}, {(each.co_filename, each.co_firstlineno) for each in called}
    for place, each in failed.items():
        file, line = each.fail_user_frame_filename or "", each.fail_user_frame_lineno or 0
        found = _break_at(each.fail_reason, file, line, linecache.getline(file, line))
        if place in places and found[1] not in met:
            own = CompiledCode(str(each.compile_id), str(each.co_name), f"{each.co_filename}:{each.co_firstlineno}")
            code.append(own._replace(broke=found[0], broke_at=found[1]))
    return code


def _breaks(utils: Any) -> _Breaks:
    """Return all graph breaks that torch has recorded."""
    breaks: _Breaks = {}
    for reason in utils.graph_break_reasons:
        if reason.graph_break and reason.user_stack:
            outer, inner = reason.user_stack[0], reason.user_stack[-1]
            broke = _break_at(reason.reason, inner.filename, inner.lineno, inner.line or "")
            breaks[outer.filename, RESUMED.sub(r"\1", outer.name), outer.lineno or 0] = broke
    return breaks


def _function(region: str) -> str:
    """Return the number that torch has assigned to a region's function."""
    return region.partition("/")[0]


def _since_reset(utils: Any) -> list[Any]:
    """Return everything that torch has compiled since it last began to number functions from zero."""
    metrics = list(utils.get_compilation_metrics())
    first = (at for at, each in enumerate(metrics) if str(each.compile_id) == "0/0" and each.co_name)
    return metrics[max(first, default=0) :]


def compilations(steps: Sequence[tuple[int, int]]) -> list[list[Any]]:
    """Return the compilations that took place during the given steps.

    Each step is specified by its start and end (`time.perf_counter_ns`). A compilation is described by the index of its
    step, the function, the function's file and line, the guard that failed (empty if the code had not been compiled
    before), and the duration in milliseconds.
    """
    if "torch._dynamo" not in sys.modules or missing_names(REPORTED_NAMES):
        return []
    utils: Any = importlib.import_module(_DYNAMO)
    epoch_ns, known = time.time_ns() - time.perf_counter_ns(), list(utils.get_compilation_metrics())
    code = {str(each.compile_id): _code(str(each.compile_id), each, ("", "")) for each in known if each.co_name}
    found = []
    for each in known:
        begin_us, took_us = getattr(each, "start_time_us", None), getattr(each, "duration_us", None)
        begin_ns = (begin_us or 0) * 1000 - epoch_ns
        step = next((number for number, (begin, end) in enumerate(steps) if begin <= begin_ns < end), None)
        if step is not None and took_us:
            own = code.get(str(each.compile_id), CompiledCode(""))
            found.append([step, own.function, own.line, own.recompiled, took_us / 1e3])
    return found


def _broke(facts: Any, known: Iterable[Any], breaks: _Breaks) -> tuple[str, str]:
    """Return the reason and the place of the graph break that ends a region; both are empty if there is none.

    This is the first break after the line where the region begins, and before another function of the same name.
    """
    resumed = RESUMED.fullmatch(facts.co_name)
    name, begins = (facts.co_name, facts.co_firstlineno) if resumed is None else (resumed[1], int(resumed[2]) + 1)
    function = facts.co_filename, name
    others = (each.co_firstlineno for each in known if (each.co_filename, each.co_name) == function)
    until = min((line for line in others if line > begins), default=math.inf)
    behind = [line for *of, line in breaks if tuple(of) == function and begins <= line < until]
    return breaks[(*function, min(behind))] if behind else ("", "")


def _break_at(why: Any, file: str, line: int | None, text: str) -> tuple[str, str]:
    reason = _first_line(why)
    reason = _BRANCH if reason.startswith("generic_jump") else reason
    return ": ".join(filter(None, (reason, text.strip().rstrip(":")))), f"{file}:{line}"


def _code(region: str, facts: Any, broke: tuple[str, str], backward_s: float = 0.0) -> CompiledCode:
    wraps = Path(facts.co_filename).parts[-2:] == _WRAPPER
    return CompiledCode(
        region,
        "" if wraps else str(facts.co_name),
        "" if wraps else f"{facts.co_filename}:{facts.co_firstlineno}",
        facts.guard_count,
        None if facts.entire_frame_compile_time_s is None else facts.entire_frame_compile_time_s + backward_s,
        _first_line(getattr(facts, "recompile_reason", "")),  # torch 2.6 does not record it
        *broke,
    )


def _first_line(text: Any) -> str:
    return " ".join(str(text).splitlines()[0].split()) if text else ""


def _operations(module: fx.GraphModule) -> Iterator[Operation]:
    from perfnb.step.arithmetic import operator_of, tensors_in  # imported here because it imports this module

    returned = {each for node in module.graph.nodes if node.op == "output" for each in node.all_input_nodes}
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        value, operator, name = node.meta.get("val"), None, str(getattr(node.target, "__name__", node.target))
        if isinstance(node.target, torch._ops.OpOverload):
            operator = operator_of(node.target)
            name = operator.name
        called = node.op == "call_function"
        view = called and (name == "getitem" if operator is None else operator.free)
        yield Operation(
            node.name,
            name if called else "",
            _modules_of(node),
            tuple(each.name for each in node.all_input_nodes),
            sum(_elements(tensor) * tensor.element_size() for tensor in tensors_in([value])),
            _flops(node, value) if called and not view else 0,
            _source_of(node.meta.get("stack_trace")),
            view,
            node in returned,
        )


def _class_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _flops(node: fx.Node, value: Any) -> int:
    """Return the number of FLOPs in an operation.

    If there is no formula, one FLOP is counted for each element of the result or of an input, whichever is larger.
    """
    from perfnb.step.arithmetic import flops_of, tensors_in

    if isinstance(node.target, torch._ops.OpOverload):
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: _with_numbers(each.meta.get("val")))
        known = flops_of(node.target, args, kwargs, _with_numbers(value))
        if known is not None:
            return known
    tensors = tensors_in([value, *(each.meta.get("val") for each in node.all_input_nodes)])
    return max(map(_elements, tensors), default=0)


def _with_numbers(value: Any) -> Any:
    """Return a value from a graph after replacing symbolic numbers with the numbers that the compiler saw."""
    if isinstance(value, Tensor):
        return torch.empty([*map(_number, value.shape)], dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return tuple(map(_with_numbers, value))
    return _number(value) if isinstance(value, torch.SymInt) else value


def _elements(tensor: Tensor) -> int:
    return math.prod(map(_number, tensor.shape))


def _number(size: Any) -> int:
    """Return a size as a number.

    For a symbolic size, return the value that the compiler saw, because reading the size itself would add a guard.
    """
    if isinstance(size, int):
        return size
    return 1 if size.node.hint is None else int(size.node.hint)
