"""Sample a step's Python stacks with a thread that reads the frames of the thread running the step.

The sampler uses the interpreter for a few dozen microseconds every few milliseconds, so the step runs at nearly full
speed. A sample represents the time since the previous sample. If code does not release the interpreter, the next sample
is delayed and represents the whole delay.

Phases are determined by the same rules as in `perfnb.attribution`: the outermost module calls are the forward pass, the
code run by autograd's engine is the backward pass, and the code between the two is the loss.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from time import sleep
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from perfnb.step.data_waits import Intake
from perfnb.step.installed import Installed
from perfnb.step.layers import Layer
from perfnb.step.loaders import see_loaders
from perfnb.step.namespace import is_installed
from perfnb.step.refusals import is_compiled
from perfnb.step.steps import BatchSource, StepRunner
from perfnb.step.worker_stacks import DEEPEST, INTERVAL_S, WorkerStack

#: The interval in seconds after which Python switches threads during sampling. Python's default is 0.005.
_SWITCH_S = 0.0005
#: torch's functions between a module's caller and its ``forward``.
_CALLING = ("_wrapped_call_impl", "_call_impl", "inner")
_MODULE_FILE = nn.Module._call_impl.__code__.co_filename
_ENGINE = "_engine_run_backward"
_OPTIMIZER = os.path.join("torch", "optim", "")
_OPTIMIZER_CALLS = ("wrapper", "step", "zero_grad", "_use_grad")

#: A frame: its code, the current line, and the ``id`` and class name of the module if the frame is a call to a module.
Frame = tuple[CodeType, int, tuple[int, str] | None]


@dataclass(frozen=True)
class Sample:
    """A sample of a step: its frames, outermost first, and the amount of time that the sample represents."""

    time_ns: int
    weight_ns: int
    frames: tuple[Frame, ...]
    waits_for_data: bool


class Call(NamedTuple):
    """A call in the tree of all samples.

    Attributes
    ----------
    parent : int
        The index of the enclosing call, or -1 if there is none.
    kind : str
        ``phase``, ``layer``, ``worker`` (for a loader worker), ``own`` (for a user function) or ``other``.
    name, file, line : str, str, int
        The name and location of the call. For user functions, `line` is the line that was running. For other functions,
        it is the first line of the function, or -1 if there is none.
    code : str
        The text of the line, for user functions.
    self_ns, samples : int
        The time and the number of the samples whose innermost call is this one.
    """

    parent: int
    kind: str
    name: str
    file: str
    line: int
    code: str
    self_ns: int
    samples: int


class StackSampler(Installed):
    """Context manager that samples the thread that entered it while that thread runs steps.

    Parameters
    ----------
    outermost : iterable of (Module, bool)
        The modules that the step calls directly, and whether each of them computes the loss.
    """

    def __init__(self, outermost: Iterable[tuple[nn.Module, bool]] = ()) -> None:
        self._outermost = [(module, loss) for module, loss in outermost if not is_compiled(module)]
        self._samples: list[list[Sample]] = []
        #: For each step, the times at which a phase (``forward``, ``loss`` or ``backward``) starts or ends, the name of
        #: the phase, and whether it starts.
        self._marks: list[list[tuple[int, str, bool]]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._sample, name="perfnb-stacks", daemon=True)
        self._watched = 0
        self._begin: int | None = None
        #: The duration of all previous steps, and the time covered by samples so far, both in nanoseconds.
        self._before = self._sampled_until = 0

    def _install(self, stack: ExitStack) -> None:
        self._watched = threading.get_ident()
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        for module, loss in self._outermost:
            kind = "loss" if loss else "forward"
            stack.callback(module.register_forward_pre_hook(self._marker(kind, True), prepend=True).remove)
            stack.callback(module.register_forward_hook(self._marker(kind, False), always_call=True).remove)
        self._watch_backward(stack)
        self._thread.start()
        stack.callback(self._thread.join)
        stack.callback(setattr, self, "_stopped", True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Sample a step."""
        self._samples.append([])
        self._marks.append([])
        self._begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self._before += time.perf_counter_ns() - self._begin
            self._begin = None

    def _marker(self, kind: str, starts: bool) -> Callable[..., None]:
        def mark(*_: Any) -> None:
            if self._marks and threading.get_ident() == self._watched:
                self._marks[-1].append((time.perf_counter_ns(), kind, starts))

        return mark

    def _watch_backward(self, stack: ExitStack) -> None:
        """Record when autograd's engine runs."""
        engine: Any = getattr(torch.autograd, _ENGINE, None)
        if engine is None:  # a sample can still contain the engine's frame
            return
        start, end = self._marker("backward", True), self._marker("backward", False)

        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            start()
            try:
                return engine(*args, **kwargs)
            finally:
                end()

        setattr(torch.autograd, _ENGINE, run)
        stack.callback(setattr, torch.autograd, _ENGINE, engine)

    def _sample(self) -> None:
        draw = random.Random()  # a separate generator, because the step's random numbers must not change
        while not self._stopped:
            sleep(INTERVAL_S * (0.5 + draw.random()))  # cheaper than an event with a timeout
            frame = sys._current_frames().get(self._watched)
            now, begin = time.perf_counter_ns(), self._begin
            if frame is None or begin is None:
                continue
            frames, waits = _frames(frame)
            reached = self._before + now - begin
            if frames and self._begin == begin and self._samples:
                self._samples[-1].append(Sample(now, max(0, reached - self._sampled_until), frames, waits))
                self._sampled_until = reached
            del frame

    def calls(self, layers: list[Layer], places: Mapping[int, int], workers: Iterable[WorkerStack] = ()) -> list[Call]:
        """Return all samples as a tree.

        The tree contains the phases with their layers and functions, and the loader workers with their functions.

        Parameters
        ----------
        layers : list of Layer
            The layers of the models.
        places : mapping of int to int
            The index in `layers` of each module, keyed by the module's ``id``.
        workers : iterable of WorkerStack
            The stacks that were sampled in loader workers.
        """
        tree = _Tree(layers, places)
        for samples, marks in zip(self._samples, self._marks, strict=True):
            for sample, phase in zip(samples, phases_of(samples, marks), strict=True):
                tree.add(sample, phase)
        for stack in workers:
            tree.add_worker(stack)
        return tree.calls()

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(map(len, self._samples))


def _frames(frame: FrameType | None) -> tuple[tuple[Frame, ...], bool]:
    """Return the frames of a step, outermost first, and whether the step is waiting for data.

    There are no frames outside a step.
    """
    found: list[Frame] = []
    waits = False
    while frame is not None:
        code = frame.f_code
        if code is _RUN:
            return tuple(reversed(found)), waits
        if code in _FETCHING or code.co_filename == _LOADERS:
            waits = True
        elif len(found) < DEEPEST:
            module = None
            if code.co_name == "_call_impl" and code.co_filename == _MODULE_FILE:
                called = frame.f_locals.get("self")
                module = (id(called), type(called).__name__)
                del called
            found.append((code, frame.f_lineno, module))
        frame = frame.f_back
    return (), False


_RUN = StepRunner._run.__code__
_FETCHING = (BatchSource.next.__code__, Intake.take.__code__)
#: Any code called by the functions in this file is waiting for a batch that the step itself requested.
_LOADERS = see_loaders.__code__.co_filename


def phases_of(samples: list[Sample], marks: list[tuple[int, str, bool]]) -> list[str]:
    """Return the phase of each sample in a step."""
    spans = _spans(marks)
    backward = [(start, end) for start, end, kind in spans if kind == "backward"]
    phases = []
    for sample in samples:
        now = sample.time_ns
        kinds = {kind for start, end, kind in spans if start <= now <= end}
        names = {code.co_name for code, _, _ in sample.frames}
        if sample.waits_for_data:
            phases.append("data")
        elif any(code.co_name in _OPTIMIZER_CALLS and _OPTIMIZER in code.co_filename for code, _, _ in sample.frames):
            phases.append("optimizer")
        elif "backward" in kinds or _ENGINE in names:
            phases.append("backward")
        elif "loss" in kinds:
            phases.append("loss")
        elif "forward" in kinds or any(module is not None for _, _, module in sample.frames):
            phases.append("forward")
        else:
            phases.append("other")
    times = [(sample.time_ns, phase) for sample, phase in zip(samples, phases, strict=True)]
    ends = [end for _, end, kind in spans if kind == "forward"] + [now for now, phase in times if phase == "forward"]
    begins = [start for start, _ in backward] + [now for now, phase in times if phase == "backward"]
    for place, (now, phase) in enumerate(times):
        if phase == "other" and any(begin > now for begin in begins):
            last = max((end for _, end in backward if end <= now), default=0)
            if any(last <= end <= now for end in ends):
                phases[place] = "loss"
    return phases


def _spans(marks: list[tuple[int, str, bool]]) -> list[tuple[int, int, str]]:
    """Return the start, end and kind of each span between two marks.

    Module calls inside the backward pass are not counted as forward.
    """
    spans, open_ = [], []
    for now, kind, starts in marks:
        if starts:
            open_.append((now, kind))
            continue
        while open_:
            start, opened = open_.pop()
            if opened == kind:
                if not any(each == "backward" for _, each in open_):
                    spans.append((start, now, kind))
                break
    return spans


class _Tree:
    """Merges samples into a tree of calls."""

    def __init__(self, layers: list[Layer], places: Mapping[int, int]) -> None:
        self._layers, self._places = layers, places
        self._nodes: dict[tuple[int, str, str, str, int], int] = {}
        #: For each node, the time and the number of the samples that end in it.
        self._sums: list[list[int]] = []

    def add(self, sample: Sample, phase: str) -> None:
        """Add a sample to the tree."""
        node = self._inside(-1, "phase", phase, "", -1)
        for code, line, module in sample.frames:
            if code.co_filename == _MODULE_FILE and code.co_name in _CALLING:
                place = None if module is None else self._places.get(module[0])
                if place is None or module is None or self._layers[place].module != module[1]:
                    continue
                node = self._inside(node, "layer", self._layers[place].name, "", -1)
                continue
            node = self._function(node, code.co_qualname, code.co_filename, code.co_firstlineno, line)
        self._add(node, sample.weight_ns, 1)

    def add_worker(self, stack: WorkerStack) -> None:
        """Add a stack that was sampled in a loader worker."""
        node = self._inside(-1, "worker", f"loader worker {stack.worker}", "", -1)
        for name, file, first, line in stack.frames:
            node = self._function(node, name, file, first, line)
        self._add(node, stack.weight_ns, stack.samples)

    def _add(self, node: int, weight_ns: int, samples: int) -> None:
        self._sums[node][0] += weight_ns
        self._sums[node][1] += samples

    def _inside(self, parent: int, kind: str, name: str, file: str, line: int) -> int:
        node = self._nodes.setdefault((parent, kind, name, file, line), len(self._nodes))
        if node == len(self._sums):
            self._sums.append([0, 0])
        return node

    def _function(self, parent: int, name: str, file: str, first: int, line: int) -> int:
        """Return the node for a call to a function, or `parent` if the function belongs to perfnb."""
        kind = _kind(file)
        if kind == "perfnb":
            return parent
        return self._inside(parent, kind, name.replace(".<locals>", ""), file, line if kind == "own" else first)

    def calls(self) -> list[Call]:
        """Return the calls. Each call comes after the call that encloses it."""
        return [
            Call(*key, linecache.getline(key[3], key[4]).strip()[:200] if key[1] == "own" else "", *sums)
            for key, sums in zip(self._nodes, self._sums, strict=True)
        ]


_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@cache
def _kind(file: str) -> str:
    """Return the origin of the code in a file.

    The result is ``own`` for the user's code, which is neither part of Python nor installed. This includes notebook
    cells.
    """
    if file.startswith(_OWN_FOLDER):
        return "perfnb"
    foreign = not file or file.startswith(("<string", "<__array_function__")) or "-packages" in file
    return "other" if foreign or is_installed(file) else "own"
