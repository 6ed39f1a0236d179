"""Write trace files by hand, event by event, in the format of torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MAIN, BACKWARD = 100, 101  # the numbers of the threads; the process has the same number as the main thread
NODE = "autograd::engine::evaluate_function: "


class Written:
    """Builds a trace. Times are in microseconds."""

    def __init__(self, process: int = MAIN, **facts: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = process
        self.facts = facts

    def event(
        self, name: str, begin: float, end: float, cat: str = "cpu_op", tid: int = MAIN, pid: int = -1, **args: Any
    ) -> Written:
        pid = self.process if pid == -1 else pid
        times = {"ts": begin, "dur": round(end - begin, 3)}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args})
        return self

    def step(self, number: int, begin: float, end: float, tid: int = MAIN) -> Written:
        return self.event(f"ProfilerStep#{number}", begin, end, "user_annotation", tid)

    def module(self, name: str, begin: float, end: float, tid: int = MAIN) -> Written:
        return self.event(f"nn.Module: {name}", begin, end, "python_function", tid)

    def op(self, name: str, begin: float, end: float, sequence: int | None = None, tid: int = MAIN) -> Written:
        number = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 0}
        return self.event(name, begin, end, tid=tid, **number)

    def node(self, name: str, begin: float, end: float, sequence: int, tid: int = BACKWARD) -> Written:
        number = {"Sequence number": sequence, "Fwd thread id": 1}
        self.event(NODE + name, begin, end, tid=tid, **number)
        return self.event(name, begin + 1, end - 1, tid=tid, **number)

    def kernel(self, name: str, launch: float, begin: float, end: float, tid: int = MAIN, **more: Any) -> Written:
        number = 1000 + len(self.events)
        self.event("cudaLaunchKernel", launch, launch + 1, "cuda_runtime", tid, correlation=number)
        args = {"device": 0, "stream": 7, "correlation": number, **more}
        return self.event(name, begin, end, "kernel", 7, 0, **args)

    def memory(self, time: float, size: int, total: int | None, *device: int, reserved: int = 0) -> Written:
        """Add an allocation or a free, on the CPU or on a device with a given kind and number."""
        kind, number = device or (0, -1)
        args = {"Addr": 4096, "Bytes": size, "Device Type": kind, "Device Id": number, "Total Reserved": reserved}
        args |= {} if total is None else {"Total Allocated": total}
        place = {"pid": self.process, "tid": BACKWARD, "ts": time, "args": args}
        self.events.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", **place})
        return self

    def write(self, path: Path) -> Path:
        text = json.dumps({**self.facts, "traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def training(steps: int = 2) -> Written:
    """Return steps of a model with two layers.

    Each step takes 1000 µs: 500 in forward, 30 in loss, 220 in backward, and 150 in the optimizer.
    """
    trace = Written(deviceProperties=[{"id": 0, "name": "Small GPU"}], distributedInfo={"rank": 3, "world_size": 8})
    for number in range(steps):
        t, n = 2000.0 * number, 10 * number
        trace.step(9 + number, t, t + 1000)
        trace.event("enumerate(DataLoader)#_Iter.__next__", t + 10, t + 50, "user_annotation")
        trace.module("Net_0", t + 60, t + 560)
        trace.module("Linear_0", t + 70, t + 300).op("aten::mm", t + 80, t + 280, n + 1)
        trace.kernel("gemm", t + 90, t + 100, t + 400)
        trace.module("ReLU_0", t + 300, t + 350).op("aten::relu", t + 310, t + 340, n + 2)
        trace.kernel("relu", t + 320, t + 400, t + 420)
        trace.module("Linear_1", t + 350, t + 550).op("aten::mm", t + 360, t + 540, n + 3)
        trace.kernel("gemm", t + 370, t + 420, t + 520)
        trace.module("MSELoss_0", t + 560, t + 590).op("aten::mse_loss", t + 565, t + 585, n + 4)
        trace.node("MseLossBackward0", t + 600, t + 620, n + 4)
        trace.node("MmBackward0", t + 620, t + 720, n + 3).kernel("gemm_t", t + 640, t + 650, t + 750, BACKWARD)
        trace.node("ReluBackward0", t + 720, t + 740, n + 2)
        trace.node("MmBackward0", t + 740, t + 800, n + 1).kernel("gemm_t", t + 760, t + 770, t + 810, BACKWARD)
        trace.node("torch::autograd::AccumulateGrad", t + 800, t + 820, -1)
        trace.event("Optimizer.step#SGD.step", t + 840, t + 990, "user_annotation")
        trace.op("aten::_foreach_add_", t + 850, t + 900)
    return trace
