"""The traces of lab 8: small, made up by perfnb, and identical on every machine.

What they teach is planted here. None of their figures were measured on a GPU.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfnb.errors import LabError
from perfnb.labs.trace_builder import BACKWARD, MAIN, Machine
from perfnb.step.kept_rates import cache_folder

NOTE = "Made up by perfnb for lab 8. No figure in it was measured."
CUDA = (("cuda_runtime", "cudaLaunchKernel"), ("cuda_driver", "cuLaunchKernelEx"))
HIP = (("cuda_runtime", "hipLaunchKernel"), ("cuda_runtime", "hipExtModuleLaunchKernel"))

#: Sentences per batch, tokens, width and layers of the text encoder.
BATCH, TOKENS, WIDTH, LAYERS = 8, 128, 512, 10
#: Microseconds of each operator's kernels on GPU A, and the factor for GPU B.
ENCODER_US = {"embedding": 9.0, "add": 2.4, "norm": 2.8, "projection": 5.6, "attention": 8.0, "up": 12.0, "gelu": 3.2,
              "down": 11.0}  # fmt: skip
ON_B = {"embedding": 0.8, "add": 0.9, "norm": 0.7, "projection": 1.2, "attention": 3.2, "up": 1.2, "gelu": 1.1,
        "down": 1.2}  # fmt: skip


def encoder(gpu: str) -> Machine:
    """Inference of a text encoder on GPU ``"A"`` or ``"B"``: nearly every launch is late.

    GPU B is slower, above all in attention, but its host is faster, so its step is shorter.
    """
    on_a = gpu == "A"
    times = ENCODER_US if on_a else {name: us * ON_B[name] for name, us in ENCODER_US.items()}
    machine = Machine(CUDA if on_a else HIP, 1.0 if on_a else 0.9, seed=1 if on_a else 2, **_about(f"GPU {gpu}"))
    rows, prefix = BATCH * TOKENS, "cuda" if on_a else "hip"
    hidden = (BATCH, TOKENS, WIDTH)

    def linear(name: str, outputs: int, inputs: int, us: float, kernel: str) -> None:
        with machine.module(name), machine.op("aten::linear", ((BATCH, TOKENS, inputs), (outputs, inputs)), 5):
            with machine.op("aten::t", ((outputs, inputs),), 4):
                pass
            with machine.op("aten::addmm", ((outputs,), (rows, inputs), (inputs, outputs)), 12):
                machine.launch(kernel, us * 0.85, call=1)
                machine.launch(f"{kernel}_reduce", us * 0.15)  # arrives while the first is running

    def simple(op: str, us: float, kernel: str) -> None:
        with machine.op(op, (hidden,), 14):
            machine.launch(kernel, us)

    with machine.span("ProfilerStep#4"):
        machine.works(60)
        with machine.module("TextEncoder_0"):
            with machine.module("Embedding_0"), machine.op("aten::embedding", ((30_000, WIDTH), (BATCH, TOKENS)), 20):
                machine.moves("Memset (Device)", 2.0, prefix=prefix)
                machine.launch("embedding_gather", times["embedding"])
            for number in range(LAYERS):
                with machine.module(f"EncoderLayer_{number}"):
                    with machine.module(f"LayerNorm_{2 * number}"):
                        simple("aten::native_layer_norm", times["norm"], "layer_norm_rows")
                    for place, name in enumerate(("query", "key", "value")):
                        linear(f"Linear_{6 * number + place}", WIDTH, WIDTH, times["projection"], "gemm_64x64")
                        assert name
                    simple("aten::scaled_dot_product_attention", times["attention"], "attention_forward")
                    linear(f"Linear_{6 * number + 3}", WIDTH, WIDTH, times["projection"], "gemm_64x64")
                    simple("aten::add", times["add"], "elementwise_add")
                    with machine.module(f"LayerNorm_{2 * number + 1}"):
                        simple("aten::native_layer_norm", times["norm"], "layer_norm_rows")
                    linear(f"Linear_{6 * number + 4}", 4 * WIDTH, WIDTH, times["up"], "gemm_128x128")
                    with machine.module(f"GELU_{number}"):
                        simple("aten::gelu", times["gelu"], "elementwise_gelu")
                    linear(f"Linear_{6 * number + 5}", WIDTH, 4 * WIDTH, times["down"], "gemm_128x128")
                    simple("aten::add", times["add"], "elementwise_add")
        with machine.op("aten::copy_", (hidden,), 10):
            machine.moves("Memcpy DtoH (Device -> Pageable)", 4.0, prefix=prefix)
            machine.call(f"{prefix}StreamSynchronize", 3, waits=True)
        machine.works(30)
    return machine


#: Images per batch, iterations, and channels of the convolutions in the training run.
IMAGES, ITERATIONS, CHANNELS = 256, 6, (3, 32, 32, 64, 64, 128, 128)
#: Microseconds to free and to allocate memory, and of a convolution kernel.
GIVES_BACK_US, TAKES_US, CONVOLUTION_US = 1900.0, 11.0, 700.0


def training() -> Machine:
    """Training of a small network without step marks, on GPU B, which keeps freeing memory.

    The kernels are long, so the GPU does not wait for launches: each `hipFree` waits for the GPU, then takes two
    milliseconds in which nothing is launched.
    """
    machine, sequence = Machine(HIP, seed=3, **_about("GPU B")), itertools.count(100)

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
        machine.moves("Memcpy HtoD (Pageable -> Device)", 900, prefix="hip")
        with machine.module("SmallNet_0"):
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


#: Ranks of the job, two of which have a trace; their steps; and the clock offset of the second.
WORLD, STEPS, AHEAD_US = 64, (30, 31), 150.0
#: Microseconds of embedding lookups, by rank and step: rank 1 has larger tables.
LOOKUPS_US = ((2200.0, 2300.0), (4700.0, 7100.0))
#: Microseconds of a collective after the last rank arrives, of the kernels between two of them, and, by rank, of a
#: collective with ranks that have no trace here.
EXCHANGE_US, COMPUTED_US, OTHERS_US = 1500.0, 2600.0, (900.0, 2600.0)
#: Microseconds per step in which each rank's host is busy but launches nothing.
SILENT_US = 16_000.0
COMPUTES, TALKS, COPIES = 7, 20, 24


def job() -> tuple[Machine, Machine]:
    """Two ranks of a recommender's training. Rank 1 arrives late at the first exchange of each step.

    The host launches, copies and fills; for a while it is busy with something that the trace does not record, and at
    the end of a step it waits for the GPU without an event.
    """
    ranks = _rank(0), _rank(1)
    for place, number in enumerate(STEPS):
        begins = max(machine.now - AHEAD_US * rank for rank, machine in enumerate(ranks)) + 300
        spans = []
        for rank, machine in enumerate(ranks):
            machine.now = begins + AHEAD_US * rank
            spans.append(machine.span(f"ProfilerStep#{number}"))
        for span in spans:
            span.__enter__()
        _step(ranks, place)
        ends = max(machine.now - AHEAD_US * rank for rank, machine in enumerate(ranks))
        for rank, machine in enumerate(ranks):
            machine.now = ends + AHEAD_US * rank
            spans[rank].__exit__(None, None, None)
    return ranks


def _rank(rank: int) -> Machine:
    job = {"backend": "nccl", "rank": rank, "world_size": WORLD}
    begin = 1000.0 + AHEAD_US * rank
    return Machine(CUDA, seed=4 + rank, begin=begin, distributedInfo=job, **_about("GPU A"))


def _step(ranks: tuple[Machine, ...], place: int) -> None:
    """One step of both ranks, exchange by exchange."""
    everyone = str(list(range(WORLD)))
    done = [0.0, 0.0]
    for rank, machine in enumerate(ranks):
        machine.works(120)
        machine.moves("Memcpy HtoD (Pinned -> Device)", 300, COPIES)
        machine.moves("Memset (Device)", 20, COMPUTES)
        with machine.op("fbgemm::lookup_forward", us=30):
            done[rank] = machine.launch("embedding_lookup_forward", LOOKUPS_US[rank][place])
    done = _together(ranks, done, "alltoall", "ncclDevKernel_SendRecv", everyone)
    for rank, machine in enumerate(ranks):
        with machine.op("aten::mm", us=30):
            done[rank] = machine.launch("gemm_256x128", COMPUTED_US, after=done[rank])
    done = _together(ranks, done, "alltoall", "ncclDevKernel_SendRecv", everyone)
    for rank, machine in enumerate(ranks):
        machine.now += SILENT_US
        with machine.op("aten::mm", us=30):
            machine.launch("gemm_256x128", 2 * COMPUTED_US, after=done[rank])
        with machine.op("c10d::allreduce_", us=20):  # with other ranks, while this rank computes
            began = max(machine.now + 10, done[rank])
            group = str([rank, rank + 8])
            machine.collective(
                "ncclDevKernel_AllReduce_Sum_f32", began, began + OTHERS_US[rank], TALKS, "allreduce", group
            )
        done[rank] = machine.free_at()
    for _ in range(3):
        done = _together(ranks, done, "allreduce", "ncclDevKernel_AllReduce_Sum_f32", everyone)
    for rank, machine in enumerate(ranks):
        with machine.op("fbgemm::lookup_backward", us=30):
            machine.launch("embedding_lookup_backward", LOOKUPS_US[rank][place] * 0.2, after=done[rank])
        machine.waits()
        machine.works(200)


def _together(ranks: tuple[Machine, ...], done: list[float], kind: str, kernel: str, group: str) -> list[float]:
    """A collective that each rank starts after its earlier work, and that ends for all at the same time."""
    begins = []
    for rank, machine in enumerate(ranks):
        machine.works(40)
        begins.append(max(done[rank], machine.now + 10, machine.free_at(TALKS)))
    last = max(begin - AHEAD_US * rank for rank, begin in enumerate(begins))
    ends = [last + EXCHANGE_US + AHEAD_US * rank for rank in (0, 1)]
    for rank, machine in enumerate(ranks):
        with machine.op(f"c10d::{kind}_", us=20):
            machine.collective(kernel, begins[rank], ends[rank], TALKS, kind, group)
    return ends


def _about(gpu: str) -> dict[str, Any]:
    return {"note": NOTE, "deviceProperties": [{"id": 0, "name": f"{gpu} (made up)"}]}


#: The lab's traces by name.
TRACES: dict[str, Callable[[], bytes]] = {
    "encoder_a": lambda: encoder("A").text(),
    "encoder_b": lambda: encoder("B").text(),
    "training_b": lambda: training().text(),
    "rank_0": lambda: job()[0].text(),
    "rank_1": lambda: job()[1].text(),
}


def trace_file(name: str) -> Path:
    """Write one of lab 8's traces to perfnb's cache folder and return its path.

    Parameters
    ----------
    name : str
        One of `TRACES`; the file is named after it, with ``.json.gz`` appended.

    Raises
    ------
    LabError
        If there is no such trace, or it cannot be written.
    """
    if name not in TRACES:
        raise LabError(f"There is no trace {name!r}; there are {', '.join(TRACES)}.")
    folder = cache_folder()
    if folder is None:
        raise LabError(f"There is no folder to write the trace {name} to: set one in PERFNB_CACHE.")
    path = folder / "lab_traces" / f"{name}.json.gz"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(TRACES[name]())
        beside.replace(path)
    except OSError as error:
        raise LabError(
            f"The trace {name} could not be written to {path.parent} ({error.strerror}): set another folder "
            "in PERFNB_CACHE."
        ) from error
    return path
