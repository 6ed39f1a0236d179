"""The traces for lab 8, which are small and identical on every machine.

All but one of them are made up. This module decides what they teach, and none of their figures were measured on a GPU.
The exception is `copies`, which was recorded on an H100.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from perfnb.errors import LabError
from perfnb.files import write_file
from perfnb.step.kept_rates import cache_folder

#: Identifiers of the process and its main thread, and of the backward thread.
MAIN, BACKWARD = 4000, 4001
#: Duration of a launch call, and the delay between its start and the earliest start of the work, in microseconds.
CALL_US, ARRIVES_US = 4.5, 6.0
#: Gap between two kernels of a graph, in microseconds.
GRAPH_GAP_US = 0.8
#: Streams for computation, collectives and copies.
COMPUTES, TALKS, COPIES = 7, 20, 24


class MadeMachine:
    """A simulated host with a GPU that writes its own trace. All times are in microseconds.

    A host thread moves from event to event and launches work on GPU streams, which run it in order. The caller
    specifies every duration, and reproducible random noise of up to 10 % is added.

    Parameters
    ----------
    launch : sequence of (str, str)
        Category and name of the calls that launch kernels.
    pace : float
        A factor by which the durations of the host's work are multiplied.
    seed : int
        The seed of the noise.
    ahead : float
        The offset by which the clock of the trace is ahead.
    **facts
        Metadata that the trace contains in addition to its events.
    """

    def __init__(
        self, launch: Sequence[tuple[str, str]], pace: float = 1.0, seed: int = 0, ahead: float = 0.0, **facts: Any
    ) -> None:
        self.now, self.thread = 1000.0, MAIN
        self._launch, self._pace, self._ahead, self._facts = launch, pace, ahead, facts
        self._chance = random.Random(seed)
        self._events: list[dict[str, Any]] = []
        self._free: dict[int, float] = {}
        self._number = 0

    def works(self, us: float) -> None:
        """Spend host time on something that the trace does not record."""
        self.now = round(self.now + self._about(us) * self._pace, 3)

    @contextmanager
    def span(self, name: str, category: str = "user_annotation", **args: Any) -> Iterator[None]:
        """Record a host span around the body of the ``with`` statement."""
        began = self.now
        yield
        self._on_host(name, category, began, args)

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Record a layer's forward pass."""
        with self.span(f"nn.Module: {name}", "python_function"):
            self.works(8)
            yield
            self.works(4)

    @contextmanager
    def op(self, name: str, shapes: Sequence[Sequence[int]] = (), us: float = 6, **args: Any) -> Iterator[None]:
        """Record an operator whose own time is added to that of the body."""
        with self.span(name, "cpu_op", **{"Input Dims": [list(shape) for shape in shapes], **args}):
            self.works(us / 2)
            yield
            self.works(us / 2)

    def launch(self, kernel: str, us: float, call: int = 0, after: float = 0.0) -> float:
        """Launch a kernel and return the time at which it ends."""
        return self._launched(self._launch[call], ("kernel", kernel), self._about(us), after=after)

    def moves(self, what: str, us: float, stream: int = 7, prefix: str = "cuda", size: int = 65_536) -> None:
        """Launch a copy or a fill of `size` bytes."""
        kind = what[:6]  # Memcpy or Memset
        call, work = ("cuda_runtime", f"{prefix}{kind}Async"), (f"gpu_{kind.lower()}", what)
        self._launched(call, work, self._about(us), stream, bytes=size)

    def replays(self, graph: Sequence[tuple[str, str, float]]) -> None:
        """Launch a graph with a single call. Each of its items is a category, a name and a duration."""
        self._number += 1
        called, self.now = self.now, round(self.now + 4 * self._about(CALL_US), 3)
        self._on_host("cudaGraphLaunch", "cuda_runtime", called, {"correlation": self._number})
        end = max(called + 2 * ARRIVES_US, self.free_at())
        for category, name, us in graph:
            begin = end + GRAPH_GAP_US
            end = round(begin + us, 3)
            facts = {"device": 0, "stream": COMPUTES, "correlation": self._number}
            self._add(name, category, begin, end, 0, COMPUTES, facts)
        self._free[COMPUTES] = end

    def work(self) -> list[tuple[str, str, float]]:
        """Return the category, name and duration of all kernels and fills on the GPU."""
        kinds = ("kernel", "gpu_memset")
        return [(each["cat"], each["name"], each["dur"]) for each in self._events if each["cat"] in kinds]

    def collective(self, kernel: str, begin: float, end: float, kind: str, group: str) -> None:
        """Launch a collective whose start and end are given because they depend on other ranks."""
        args = {"Collective name": kind, "Process Group Ranks": group}
        self._launched(self._launch[0], ("kernel", kernel), end - begin, TALKS, begin, **args)

    def call(self, name: str, us: float, *, waits: bool = False) -> None:
        """Record a GPU library call that launches nothing. It can wait until the GPU has finished all of its work."""
        began = self.now
        if waits:
            self.waits()
        self.now = round(self.now + self._about(us), 3)
        self._number += 1
        self._on_host(name, "cuda_runtime", began, {"correlation": self._number})

    def waits(self) -> None:
        """Let the host wait until the GPU has finished all of its work, without recording an event."""
        self.now = max(self.now, *self._free.values(), 0.0)

    def free_at(self, stream: int = 7) -> float:
        """Return the time at which a stream finishes its work."""
        return self._free.get(stream, 0.0)

    def text(self) -> bytes:
        """Return the compressed trace."""
        content = {"schemaVersion": 1, **self._facts, "traceEvents": self._events}
        return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0)

    def _launched(
        self, call: tuple[str, str], work: tuple[str, str], us: float, stream: int = 7, after: float = 0.0, **args: Any
    ) -> float:
        """Record a call and the work that it launches, and return the time at which the work ends.

        Both are given as a category and a name.
        """
        self._number += 1
        number, called = self._number, self.now
        self.now = round(self.now + self._about(CALL_US), 3)
        self._on_host(call[1], call[0], called, {"correlation": number})
        begin = round(max(called + self._about(ARRIVES_US), self.free_at(stream), after), 3)
        end = self._free[stream] = round(begin + us, 3)
        facts = {"device": 0, "stream": stream, "correlation": number, **args}
        self._add(work[1], work[0], begin, end, 0, stream, facts)
        return end

    def _about(self, us: float) -> float:
        return us * self._chance.uniform(0.9, 1.1)

    def _on_host(self, name: str, category: str, began: float, args: Any) -> None:
        self._add(name, category, began, self.now, MAIN, self.thread, args)

    def _add(self, name: str, category: str, begin: float, end: float, process: int, thread: int, args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
        times = {"ts": round(begin + self._ahead, 3), "dur": round(end - begin, 3)}
        self._events.append({**event, **times, "args": args})


NOTE = "Made up by perfnb for lab 8. None of its figures were measured."
CUDA = (("cuda_runtime", "cudaLaunchKernel"), ("cuda_driver", "cuLaunchKernelEx"))
HIP = (("cuda_runtime", "hipLaunchKernel"), ("cuda_runtime", "hipExtModuleLaunchKernel"))

#: Cards per batch, boxes per card, and the larger Reader's width and number of blocks.
CARDS, BOXES, WIDTH, BLOCKS = 8, 128, 512, 10
#: Microseconds that each operator's kernels take on GPU A, and the factor for GPU B.
READER_US = {
    **{"stem": (4.0, 1.2), "places": (5.0, 0.8), "add": (2.4, 0.9), "norm": (2.8, 0.7), "projection": (5.6, 1.2)},
    **{"attention": (8.0, 3.2), "up": (12.0, 1.2), "gelu": (3.2, 1.1), "down": (11.0, 1.2)},
}


def reader(gpu: str) -> MadeMachine:
    """Simulate inference with the larger Reader on GPU ``"A"`` or ``"B"``, where nearly every launch is late.

    GPU B is slower than GPU A, particularly in attention. Its host is faster, however, so its step is shorter.
    """
    on_a = gpu == "A"
    times = {name: us if on_a else us * factor for name, (us, factor) in READER_US.items()}
    machine = MadeMachine(CUDA if on_a else HIP, 1.0 if on_a else 0.9, seed=1 if on_a else 2, **_about(f"GPU {gpu}"))
    rows, prefix = CARDS * BOXES, "cuda" if on_a else "hip"
    hidden = (CARDS, BOXES, WIDTH)

    def linear(name: str, outputs: int, inputs: int, us: float, kernel: str = "gemm_64x64") -> None:
        with machine.module(name), machine.op("aten::linear", ((CARDS, BOXES, inputs), (outputs, inputs)), 5):
            with machine.op("aten::t", ((outputs, inputs),), 4):
                pass
            with machine.op("aten::addmm", ((outputs,), (rows, inputs), (inputs, outputs)), 12):
                machine.launch(kernel, us * 0.85, call=1)
                machine.launch(f"{kernel}_reduce", us * 0.15)  # arrives while the first kernel is running

    def simple(op: str, us: float, kernel: str) -> None:
        with machine.op(op, (hidden,), 14):
            machine.launch(kernel, us)

    with machine.span("ProfilerStep#4"):
        machine.works(60)
        with machine.module("Reader_0"):
            linear("Linear_0", WIDTH, 64, times["stem"])
            with machine.module("Embedding_0"), machine.op("aten::embedding", ((256, WIDTH), (BOXES,)), 20):
                machine.moves("Memset (Device)", 2.0, prefix=prefix)
                machine.launch("embedding_gather", times["places"])
            for number in range(BLOCKS):
                with machine.module(f"Block_{number}"):
                    with machine.module(f"LayerNorm_{2 * number}"):
                        simple("aten::native_layer_norm", times["norm"], "layer_norm_rows")
                    for place in range(3):  # query, key and value
                        linear(f"Linear_{6 * number + place + 1}", WIDTH, WIDTH, times["projection"])
                    simple("aten::scaled_dot_product_attention", times["attention"], "attention_forward")
                    linear(f"Linear_{6 * number + 4}", WIDTH, WIDTH, times["projection"])
                    simple("aten::add", times["add"], "elementwise_add")
                    with machine.module(f"LayerNorm_{2 * number + 1}"):
                        simple("aten::native_layer_norm", times["norm"], "layer_norm_rows")
                    linear(f"Linear_{6 * number + 5}", 4 * WIDTH, WIDTH, times["up"], "gemm_128x128")
                    with machine.module(f"GELU_{number}"):
                        simple("aten::gelu", times["gelu"], "elementwise_gelu")
                    linear(f"Linear_{6 * number + 6}", WIDTH, 4 * WIDTH, times["down"], "gemm_128x128")
                    simple("aten::add", times["add"], "elementwise_add")
        with machine.op("aten::copy_", (hidden,), 10):
            machine.moves("Memcpy DtoH (Device -> Pageable)", 4.0, prefix=prefix, size=CARDS * BOXES * 40)
            machine.call(f"{prefix}StreamSynchronize", 3, waits=True)
        machine.works(30)
    return machine


def replayed() -> MadeMachine:
    """Simulate the same kernels on GPU A, launched as a single CUDA graph."""
    once, machine = reader("A"), MadeMachine(CUDA, seed=1, **_about("GPU A"))
    with machine.span("ProfilerStep#4"):
        machine.works(60)
        machine.replays(once.work())
        with machine.op("aten::copy_", ((CARDS, BOXES, 10),), 10):
            machine.moves("Memcpy DtoH (Device -> Pageable)", 4.0, size=CARDS * BOXES * 40)
            machine.call("cudaStreamSynchronize", 3, waits=True)
        machine.works(30)
    return machine


#: The training run's images per batch, number of iterations, and channels of its convolutions.
IMAGES, ITERATIONS, CHANNELS = 256, 6, (3, 32, 32, 64, 64, 128, 128)
#: Microseconds that it takes to free memory, to allocate memory, and to run a convolution kernel.
GIVES_BACK_US, TAKES_US, CONVOLUTION_US = 1900.0, 11.0, 700.0


def training() -> MadeMachine:
    """Simulate training the network that finds a card's boxes, on GPU B, without step marks.

    The run frees memory all the time. The kernels are long, so the GPU does not wait for launches. Instead, each
    `hipFree` waits for the GPU and then takes two milliseconds, during which nothing is launched.
    """
    machine, sequence = MadeMachine(HIP, seed=3, **_about("GPU B")), itertools.count(100)

    def convolution(place: int, inputs: int, outputs: int) -> int:
        number = next(sequence)
        shapes = ((IMAGES, inputs, 64, 64), (outputs, inputs, 3, 3), (outputs,))
        with machine.module(f"Conv2d_{place}"), machine.op("aten::conv2d", shapes, 12):
            machine.call("hipMalloc", TAKES_US)
            with machine.op("aten::convolution", shapes, 10, **{"Sequence number": number, "Fwd thread id": 0}):
                machine.launch("convolution_forward", CONVOLUTION_US, call=1)
                machine.launch("elementwise_bias", 60, call=1)
        with machine.module(f"ReLU_{place}"), machine.op("aten::relu", ((IMAGES, outputs, 64, 64),), 8):
            machine.call("hipMalloc", TAKES_US)
            machine.launch("elementwise_relu", 90, call=1)
        return number

    def backward(number: int) -> None:
        node: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
        name = "autograd::engine::evaluate_function: ConvolutionBackward0"
        with machine.op(name, us=8, **node), machine.op("ConvolutionBackward0", us=8, **node):
            with machine.op("aten::convolution_backward", us=20):
                for kernel, us in (("convolution_backward_data", 1.1), ("convolution_backward_weights", 1.3)):
                    machine.call("hipMalloc", TAKES_US)
                    machine.launch(kernel, CONVOLUTION_US * us, call=1)
            for _ in range(4):
                machine.call("hipFree", GIVES_BACK_US, waits=True)

    for _ in range(ITERATIONS):
        machine.works(200)
        machine.moves("Memcpy HtoD (Pageable -> Device)", 900, prefix="hip", size=IMAGES * 3 * 64 * 64 * 4)
        with machine.module("BoxFinder_0"):
            numbers = [convolution(n, *pair) for n, pair in enumerate(itertools.pairwise(CHANNELS))]
        machine.thread = BACKWARD
        for number in reversed(numbers):
            backward(number)
        machine.thread = MAIN
        with machine.span("Optimizer.step#SGD.step"), machine.op("aten::_foreach_add_", us=40):
            for _ in numbers:
                machine.launch("multi_tensor_add", 25, call=1)
    machine.call("hipDeviceSynchronize", 5, waits=True)
    return machine


#: The number of ranks in the job, two of which have a trace, the steps of the traces, and the second clock's offset.
WORLD, STEPS, AHEAD_US = 64, (30, 31, 32), 150.0
#: Microseconds of embedding lookups by rank and step. Rank 1 has larger tables.
LOOKUPS_US = ((2200.0, 2300.0, 2250.0), (4700.0, 7100.0, 5600.0))
#: Microseconds of a collective after the last rank arrives and of the kernels between two collectives, and, by rank, of
#: a collective with ranks that have no trace here.
EXCHANGE_US, COMPUTED_US, OTHERS_US = 1500.0, 2600.0, (900.0, 2600.0)
#: Microseconds per step during which each rank's host is busy but launches nothing.
SILENT_US = 16_000.0


def job() -> tuple[MadeMachine, MadeMachine]:
    """Simulate two ranks that train a recommender. Rank 1 arrives late at the first exchange of each step.

    The host launches kernels, copies and fills. For part of each step it is busy with something that the trace does not
    record, and at the end of the step it waits for the GPU without an event.
    """
    ranks = _rank(0), _rank(1)
    for place, number in enumerate(STEPS):
        with ExitStack() as steps:
            align(ranks, 300)
            for machine in ranks:
                steps.enter_context(machine.span(f"ProfilerStep#{number}"))
            _step(ranks, place)
            align(ranks)
    return ranks


def _rank(rank: int) -> MadeMachine:
    job = {"backend": "nccl", "rank": rank, "world_size": WORLD}
    return MadeMachine(CUDA, seed=4 + rank, ahead=AHEAD_US * rank, distributedInfo=job, **_about("GPU A"))


def align(ranks: Sequence[MadeMachine], later: float = 0.0) -> None:
    """Let all ranks continue when the last one is ready, or `later` microseconds after that."""
    now = max(machine.now for machine in ranks) + later
    for machine in ranks:
        machine.now = now


def _step(ranks: tuple[MadeMachine, ...], place: int) -> None:
    """Simulate one step of both ranks, exchange by exchange."""
    done = []
    for machine, lookups_us in zip(ranks, LOOKUPS_US, strict=True):
        machine.works(120)
        machine.moves("Memcpy HtoD (Pinned -> Device)", 300, COPIES, size=7_500_000)
        machine.moves("Memset (Device)", 20, COMPUTES, size=20_000_000)
        with machine.op("fbgemm::lookup_forward", us=30):
            done.append(machine.launch("embedding_lookup_forward", lookups_us[place]))
    after = _together(ranks, done, "alltoall", "ncclDevKernel_SendRecv")
    for rank, machine in enumerate(ranks):
        with machine.op("aten::mm", us=30):
            done[rank] = machine.launch("gemm_256x128", COMPUTED_US, after=after)
    after = _together(ranks, done, "alltoall", "ncclDevKernel_SendRecv")
    for rank, machine in enumerate(ranks):
        machine.now += SILENT_US
        with machine.op("aten::mm", us=30):
            machine.launch("gemm_256x128", 2 * COMPUTED_US, after=after)
        with machine.op("c10d::allreduce_", us=20):  # with other ranks, while this rank computes
            began, kernel = max(machine.now + 10, after), "ncclDevKernel_AllReduce_Sum_f32"
            machine.collective(kernel, began, began + OTHERS_US[rank], "allreduce", str([rank, rank + 8]))
        done[rank] = machine.free_at()
    for _ in range(3):
        after = _together(ranks, done, "allreduce", "ncclDevKernel_AllReduce_Sum_f32")
        done = [after, after]
    for machine, lookups_us in zip(ranks, LOOKUPS_US, strict=True):
        with machine.op("fbgemm::lookup_backward", us=30):
            machine.launch("embedding_lookup_backward", lookups_us[place] * 0.2, after=after)
        machine.waits()
        machine.works(200)


def _together(ranks: tuple[MadeMachine, ...], done: list[float], kind: str, kernel: str) -> float:
    """Run a collective that each rank starts after its earlier work, and return its end, the same for all ranks."""
    begins = []
    for machine, earlier in zip(ranks, done, strict=True):
        machine.works(40)
        begins.append(max(earlier, machine.free_at(TALKS)))
    return exchange(ranks, begins, EXCHANGE_US, kind, kernel, WORLD)


def exchange(
    ranks: Sequence[MadeMachine], begins: Sequence[float], us: float, kind: str, kernel: str, world: int
) -> float:
    """Run a collective that takes `us` microseconds after the last rank begins, and return its end on all ranks."""
    end = max(begins) + us
    for machine, begin in zip(ranks, begins, strict=True):
        with machine.op(f"c10d::{kind}_", us=20):
            machine.collective(kernel, begin, end, kind, str(list(range(world))))
    return end


def _about(gpu: str) -> dict[str, Any]:
    return {"note": NOTE, "deviceProperties": [{"id": 0, "name": f"{gpu} (made up)"}]}


def recorded() -> bytes:
    """Return the trace of six steps that copy cards to an H100, first from pageable and then from pinned memory."""
    return Path(__file__).with_name("copies_h100.json.gz").read_bytes()


#: The lab's traces by name.
TRACES: dict[str, Callable[[], bytes]] = {
    "reader_a": lambda: reader("A").text(),
    "reader_b": lambda: reader("B").text(),
    "reader_a_again": lambda: replayed().text(),
    "copies": recorded,
    "training_b": lambda: training().text(),
    "rank_0": lambda: job()[0].text(),
    "rank_1": lambda: job()[1].text(),
}


def trace_file(name: str) -> Path:
    """Write one of lab 8's traces to perfnb's cache folder and return its path.

    Parameters
    ----------
    name : str
        One of `TRACES`. The name of the file is this name followed by ``.json.gz``.

    Raises
    ------
    LabError
        If there is no trace with this name, or if it cannot be written.
    """
    if name not in TRACES:
        raise LabError(f"There is no trace {name!r}; there are {', '.join(TRACES)}.")
    folder = cache_folder()
    if folder is None:
        raise LabError(f"There is no folder to write the trace {name} to. Set PERFNB_CACHE to a writable folder.")
    path = folder / "lab_traces" / f"{name}.json.gz"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file([TRACES[name]()], path)
    except OSError as error:
        why = f"The trace {name} could not be written to {path.parent} ({error.strerror})"
        raise LabError(f"{why}. Set PERFNB_CACHE to a different folder.") from error
    return path
