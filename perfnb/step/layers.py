"""Layer spans: global forward hooks turn every module call into a span of the trace.

A span's label is ``pf#<n>``, where n is the number of the call; `Calls` has the module of each call. Labels are unique
because torch merges nested spans of one name, and ASCII because its exporter loses other characters. Backward hooks are
not used, because they break in-place operations and fire early: attribution finds a layer's backward in the trace by
autograd's sequence numbers.

torch's profiler records the thread that started it and the threads in which autograd runs its backward passes. Calls on
any other thread, which may come at any time, get no span; `Calls` only remembers their modules.
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

#: A span, at a third of the cost of `record_function`. Its category is that of operators, which no `record_function`
#: gets.
function_span: Any = torch._C._profiler._RecordFunctionFast

#: Frames of torch between a module's caller and its hooks; their first argument is the module that is called.
_CALLING = ("_call_impl", "_wrapped_call_impl", "__call__")
#: The module that runs the step; frames outside it are not part of the step.
_RUNNER = "perfnb.step.steps"

Stack = list[tuple[nn.Module, int, Any]]


class _Handle(Protocol):
    def remove(self) -> None: ...


@dataclass
class Calls:
    """The module calls of all passes with layer spans."""

    #: Number of the call, its module, and the number of the enclosing call.
    records: list[tuple[int, nn.Module, int | None]] = field(default_factory=list)
    #: Numbers of the calls that computed a loss.
    loss: set[int] = field(default_factory=set)
    #: Number of the first call of each step.
    begins: list[int] = field(default_factory=list)
    #: For each outermost module, by ``id``: whether the step called it itself, not through a module's method.
    called_whole: dict[int, bool] = field(default_factory=dict)
    #: Modules called on threads that the profiler does not record, by ``id``.
    elsewhere: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)

    def begin_step(self) -> None:
        """Later calls belong to the next step."""
        self.begins.append(len(self.records))

    def unseen(self) -> list[nn.Module]:
        """The modules, except losses, that were only called on threads that the profiler does not record."""
        seen = {id(module) for _, module, _ in self.records}
        alive = [reference() for reference in list(self.elsewhere.values())]
        return [m for m in alive if m is not None and id(m) not in seen and not isinstance(m, _Loss)]


class LayerSpans:
    """Context manager in which each module call opens a span in the trace.

    Parameters
    ----------
    only : list of Module or None
        Restrict the spans to these modules, their submodules, and outermost calls.
    calls : Calls, optional
        Calls of earlier passes, to which those of this one are added.
    outermost : callable, optional
        Called with the positional arguments of each outermost call.
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
        # always_call: an exception in forward must close the span
        self._handles.append(register_module_forward_hook(self._close, always_call=True))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # An interrupt skips even these hooks. A span can only be closed on its own thread.
        _close_down_to(self._own_stack, 0)

    def call(self, module: nn.Module, argument: Any) -> Any:
        """Call a module inside a span, without calling any other hook."""
        self._open(module, (argument,))
        output = module.forward(argument)
        self._close(module, (argument,), output)
        return output

    def _open(self, module: nn.Module, args: Any) -> None:
        # Runs for every module call, so it must be fast.
        if is_compiling():
            return
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        if not stack and not self._is_recorded():
            self.calls.elsewhere[id(module)] = weakref.ref(module)
            return
        # An outermost call always gets a span: it is forward, whichever models are wanted.
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
        if is_compiling():  # first, or the compiler would compile the stack too
            return
        stack: Stack | None = getattr(self._local, "stack", None)
        if not stack:
            return
        if stack[-1][0] is not module:
            # Either a span inside this call is still open, or this module got none.
            open_at = [place for place, entry in enumerate(stack) if entry[0] is module]
            if not open_at:
                return
            _close_down_to(stack, open_at[-1] + 1)
        _, number, span = stack.pop()
        span.__exit__(None, None, None)
        if not stack and computes_loss(module, output):
            self.calls.loss.add(number)

    def _is_recorded(self) -> bool:
        """Whether the profiler records this thread: it was started here, or autograd runs here on its behalf."""
        return threading.get_ident() == self._own_thread or profiler_active()


def others_listen() -> bool:
    """Whether other global hooks see every module call."""
    hooks = (*_global_forward_pre_hooks.values(), *_global_forward_hooks.values())
    return any(not isinstance(getattr(hook, "__self__", None), LayerSpans) for hook in hooks)


def _inside_a_method(frame: FrameType | None) -> bool:
    """Whether the outermost module call of this frame comes from a module's method, such as ``generate``."""
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
    """Whether an outermost call was a loss: one of torch's loss classes, or a scalar result without parameters."""
    if isinstance(module, _Loss):
        return True
    scalar = isinstance(output, torch.Tensor) and output.dim() == 0
    return scalar and next(module.parameters(), None) is None
