"""Layer spans: every module call becomes a span in the trace, by torch's global forward hooks.

A span's label is ``pf#<n>``, n being the number of the call: unique, because torch merges nested spans of one
name, and ASCII, because its exporter loses other characters. Which module the n-th call belongs to stands in
`Calls`. Backward hooks are not used: they break in-place operations and fire early; a layer's backward is found
in the trace by autograd's sequence numbers.

torch's profiler records the thread that started it, and the threads in which autograd runs that thread's backward
pass. Any other thread may call modules at any time, also while spans are installed or removed: its calls get no span,
and `Calls` only remembers which modules they were.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import (
    _global_forward_hooks,
    _global_forward_pre_hooks,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from perfnb.step.guard import profiler_active
from perfnb.trace_names import LAYER_SPAN

#: A span in a running profiler, at a third of the cost of `record_function`. The trace has it in the category of
#: operators, where no range of the user's can pass for one.
function_span: Any = torch._C._profiler._RecordFunctionFast

#: Frames of torch between a module's caller and its hooks; their first argument is the module that is called.
_CALLING = ("_call_impl", "_wrapped_call_impl", "__call__")
#: What runs the step: what lies around it is no part of it.
_RUNNER = "perfnb.step.steps"

Stack = list[tuple[nn.Module, int, Any]]


class _Handle(Protocol):
    def remove(self) -> None: ...


@dataclass
class Calls:
    """The module calls of the passes that mark layers.

    Attributes
    ----------
    records : list of (int, Module, int or None)
        Number of the call, its module, and the number of the call around it.
    loss : set of int
        Numbers of the calls that computed a loss.
    begins : list of int
        Number of the first call of each step.
    elsewhere : dict of int to weak reference
        The modules that were called in threads which the profiler does not record, by their ``id``.
    called_whole : dict of int to bool
        Of each outermost module, by ``id``: whether the step called it, and not a method of a module that did.
    """

    records: list[tuple[int, nn.Module, int | None]] = field(default_factory=list)
    loss: set[int] = field(default_factory=set)
    begins: list[int] = field(default_factory=list)
    called_whole: dict[int, bool] = field(default_factory=dict)
    elsewhere: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)

    def begin_step(self) -> None:
        """The calls from here on belong to another step."""
        self.begins.append(len(self.records))

    def unseen(self) -> list[nn.Module]:
        """The modules, other than losses, that were only called where the profiler does not record."""
        seen = {id(module) for _, module, _ in self.records}
        alive = [reference() for reference in list(self.elsewhere.values())]
        return [m for m in alive if m is not None and id(m) not in seen and not isinstance(m, _Loss)]


class LayerSpans:
    """Context manager: while it is entered, each module call opens a span in the trace.

    Parameters
    ----------
    only : list of Module or None
        Restrict the spans to these modules, what they contain, and outermost calls.
    calls : Calls, optional
        Calls of an earlier pass, to which those of this one are added.
    outermost : callable, optional
        Told the positional arguments of each outermost call.
    """

    def __init__(
        self,
        only: list[nn.Module] | None = None,
        calls: Calls | None = None,
        outermost: Callable[[Any], None] | None = None,
    ) -> None:
        self.calls = Calls() if calls is None else calls
        self._outermost = outermost
        self._wanted = None if only is None else {id(module) for model in only for module in model.modules()}
        self._numbers = itertools.count(len(self.calls.records))
        self._local = threading.local()
        self._own_stack: Stack = []
        self._own_thread = 0
        self._handles: list[_Handle] = []

    def __enter__(self) -> LayerSpans:
        self._own_thread = threading.get_ident()
        self._local.stack = self._own_stack
        self._handles.append(register_module_forward_pre_hook(self._open))
        # always_call: an exception in forward must not leave its span open
        self._handles.append(register_module_forward_hook(self._close, always_call=True))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # An interrupt skips even the hooks that are always called. A span ends only on the thread that opened it.
        _close_down_to(self._own_stack, 0)

    def call(self, module: nn.Module, argument: Any) -> Any:
        """Call a module within a span, and tell no other hook of it."""
        self._open(module, (argument,))
        output = module.forward(argument)
        self._close(module, (argument,), output)
        return output

    def _open(self, module: nn.Module, args: Any) -> None:
        # Runs for every module call: as little as can be.
        if is_compiling():
            return
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        if not stack and not self._is_recorded():
            self.calls.elsewhere[id(module)] = weakref.ref(module)
            return
        # An outermost call has its span in any case: it is forward, whichever models are wanted.
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
        if is_compiling():  # asked first: a compiler that reads on would compile the stack too
            return
        stack: Stack | None = getattr(self._local, "stack", None)
        if not stack:
            return
        if stack[-1][0] is not module:
            # Either a span was left open inside this call, or this module was given none.
            open_at = [place for place, entry in enumerate(stack) if entry[0] is module]
            if not open_at:
                return
            _close_down_to(stack, open_at[-1] + 1)
        _, number, span = stack.pop()
        span.__exit__(None, None, None)
        if not stack and computes_loss(module, output):
            self.calls.loss.add(number)

    def _is_recorded(self) -> bool:
        """Whether the profiler records this thread: it began here, or autograd runs here on behalf of its thread."""
        return threading.get_ident() == self._own_thread or profiler_active()


def others_listen() -> bool:
    """Whether somebody else's hooks hear of every module call."""
    hooks = (*_global_forward_pre_hooks.values(), *_global_forward_hooks.values())
    return any(not isinstance(getattr(hook, "__self__", None), LayerSpans) for hook in hooks)


def _inside_a_method(frame: FrameType | None) -> bool:
    """Whether a method of a module, such as ``generate``, leads to the outermost module call that this frame makes."""
    while frame is not None and frame.f_globals.get("__name__") != _RUNNER:
        code = frame.f_code
        if code.co_name not in _CALLING and code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if issubclass(type(first), nn.Module):  # by type: isinstance asks a proxy for its class
                return True
        frame = frame.f_back
    return False


def _close_down_to(stack: Stack, height: int) -> None:
    while len(stack) > height:
        stack.pop()[2].__exit__(None, None, None)


def computes_loss(module: nn.Module, output: Any) -> bool:
    """Whether an outermost call was a loss: torch's own loss class, or no parameters and a scalar result."""
    if isinstance(module, _Loss):
        return True
    scalar = isinstance(output, torch.Tensor) and output.dim() == 0
    return scalar and next(module.parameters(), None) is None
