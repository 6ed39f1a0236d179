"""Measure the machine's roofline ceilings once: the FLOP/s of large matrix products, and the bytes/s of a large copy.

Each measurement uses the best of many repetitions, because that one is disturbed least by other work. Measurements use
the user's thread and precision settings and do not draw random numbers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import psutil
import torch

from perfnb.step.environment import describe_environment
from perfnb.step.kept_rates import Rate, keep, kept

#: The dtypes of the matrix products that are measured. `torch.mm` does not support any others.
DTYPES = ("float64", "float32", "float16", "bfloat16")

#: The seconds per turn of a ceiling, its minimum and maximum number of turns, and the improvement that leads to another
#: turn.
_TURN_S, _LEAST_TURNS, _MOST_TURNS, _BETTER = 0.12, 4, 12, 1.03
#: The largest matrix products that are measured.
_SLOWEST_S = 0.1
#: The kinds of devices whose ceilings can be measured.
MEASURABLE = ("cpu", "cuda")
_SIZES, _LARGEST = (256, 512, 1024, 2048, 4096, 8192), {"cpu": 4096, "cuda": 8192}
_COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}

#: If other programs use more than this share of the CPUs, a rate is measured again after this many seconds.
_MANY_OTHERS, _AGAIN_S = 0.1, 600.0

#: A number of FLOPs or bytes, and a function that executes or moves that many.
_Run: TypeAlias = tuple[float, Callable[[], Any]]


def measure_ceilings(
    dtypes: Iterable[str], device: str = "cpu", *, refresh: bool = False, only_kept: bool = False
) -> dict[str, Any]:
    """Return the FLOP/s for each dtype and the bytes/s that a device achieves.

    It takes about half a second to measure a rate that is not yet known.

    Parameters
    ----------
    dtypes : iterable of str
        Names of dtypes, such as ``float32``. Dtypes that cannot be measured are omitted.
    device : str
        ``cpu`` or a CUDA device.
    refresh : bool
        Whether to repeat the measurement and keep the higher rate.
    only_kept : bool
        Whether to omit rates that are not yet known instead of measuring them.

    Returns
    -------
    dict
        A dictionary that is ready for JSON, with the keys ``device`` (its name), ``threads``, ``flops_per_s`` (by
        dtype), ``bytes_per_s`` (``None`` if there is not enough memory for the copy), ``measured_at``, and ``others``
        (the share of the CPUs that other programs used, from 0 to 1). If a rate was measured on a busy machine, it is
        measured again a few minutes later, and the higher rate is kept.
    """
    target = torch.device(device)
    machine = _machine(target)
    wanted = [f"flops_per_s/{name}/{_precision(target, name)}" for name in dict.fromkeys(dtypes) if name in DTYPES]
    names = {key: key.split("/")[1] for key in wanted} | {"bytes_per_s": ""}
    known = kept(_key(machine))
    now = datetime.now(UTC)
    unknown = {key: name for key, name in names.items() if refresh or key not in known or _doubtful(known[key], now)}
    if only_kept:
        unknown = {}
    with _Others() as others:
        measured = _measure({key: _ceiling(target, name) for key, name in unknown.items()})
    share = others.share if target.type == "cpu" else 0.0
    fresh = {key: Rate(rate, now.isoformat(timespec="seconds"), share) for key, rate in measured.items()}
    rates = {key: _better(known.get(key), rate) for key, rate in fresh.items()}
    if changed := {key: rate for key, rate in rates.items() if known.get(key) != rate}:
        keep(_key(machine), changed)
    known |= rates
    found = [known[key] for key in names if key in known]
    return {
        "device": machine["device"],
        "threads": machine["threads"],
        "flops_per_s": {name: known[key].per_s for key, name in names.items() if name and key in known},
        "bytes_per_s": known["bytes_per_s"].per_s if "bytes_per_s" in known else None,
        "measured_at": min((rate.at for rate in found), default=None),
        "others": max((rate.others for rate in found), default=0.0),
    }


def _doubtful(rate: Rate, now: datetime) -> bool:
    """Check whether a rate was measured on a busy machine and is old enough to be measured again."""
    try:
        age_s = (now - datetime.fromisoformat(rate.at)).total_seconds()
    except (ValueError, TypeError):  # not a date, or a date without a time zone
        age_s = math.inf
    return rate.others > _MANY_OTHERS and age_s > _AGAIN_S


def _better(known: Rate | None, fresh: Rate) -> Rate:
    """Return the higher of two rates. A lower rate that was measured on a quieter machine confirms the known rate."""
    if known is None or fresh.per_s > known.per_s:
        return fresh
    return known if known.others <= fresh.others else Rate(known.per_s, known.at, fresh.others)


class _Others:
    """Context manager that measures the share of the CPUs used by other programs."""

    share = 0.0

    def __enter__(self) -> _Others:
        self._begin = time.perf_counter(), time.process_time(), _busy_s()
        return self

    def __exit__(self, *exc_info: object) -> None:
        begin, own, busy = self._begin
        there = (time.perf_counter() - begin) * (os.cpu_count() or 1)
        by_others = _busy_s() - busy - (time.process_time() - own)
        self.share = round(min(max(by_others / there, 0.0), 1.0), 3) if there > 0 else 0.0


def _busy_s() -> float:
    """Return the number of CPU seconds used on the machine since it was started."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


def _machine(device: torch.device) -> dict[str, Any]:
    """Return everything that the ceilings depend on, apart from the dtype."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "threads": None, "torch": torch.__version__}
    facts = describe_environment()
    return {
        "device": facts["processor"],
        "threads": facts["threads"],
        "cpus": facts["cpus"],
        "torch": torch.__version__,
    }


def _key(machine: dict[str, Any]) -> str:
    return " | ".join(f"{name} {value}" for name, value in machine.items())


def _precision(device: torch.device, dtype: str) -> str:
    """Return the settings that let torch compute a product less exactly than its dtype implies."""
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    names = {
        "float32": ("fp32_precision", "allow_tf32"),
        "float16": ("allow_fp16_reduced_precision_reduction",),
        "bfloat16": ("allow_bf16_reduced_precision_reduction",),
    }
    settings = []
    for name in names.get(dtype, ()):
        # This fails in other versions of torch, or if the user has used both of its APIs.
        with suppress(AttributeError, AssertionError, RuntimeError):
            value = getattr(backend.matmul, name)
            settings += [f"{name}={value}"] if value not in ("none", "ieee", False) else []
    if dtype == "float32":
        try:
            settings.append(torch.get_float32_matmul_precision())
        except RuntimeError:
            settings.append("mixed")
    return ",".join(settings) or "exact"


class _Ceiling:
    """The highest rate achieved by a series of runs. Runs are added as long as the previous run is fast enough.

    Each of the `makers` creates a run, which consists of a function and the number of FLOPs or bytes that it needs.
    """

    def __init__(self, device: torch.device, makers: Sequence[Callable[[], _Run]]) -> None:
        self.rate: float | None = None
        self._device, self._clock = device, _CLOCKS[device.type]
        self._makers = list(reversed(makers))
        self._runs: list[_Run] = []

    def measure(self, budget_s: float) -> None:
        """Execute all runs that are not too slow, one after the other, until the time is up."""
        with torch.autocast(self._device.type, enabled=False):
            begin = time.perf_counter()
            while True:
                if not self._runs:
                    self._add()
                for place, (amount, run) in enumerate(self._runs):  # the list grows meanwhile
                    seconds = self._clock(run)
                    if seconds <= 0:  # the clock is standing still
                        return
                    self.rate = max(self.rate or 0.0, amount / seconds)
                    if place == len(self._runs) - 1 and 8 * seconds < _SLOWEST_S:
                        self._add()
                if time.perf_counter() - begin > budget_s:
                    return

    def _add(self) -> None:
        """Create the next run, and execute it once without using its time."""
        if self._makers:
            self._runs.append(self._makers.pop()())
            self._clock(self._runs[-1][1])


def _ceiling(device: torch.device, dtype: str) -> _Ceiling:
    """Return the ceiling of increasingly large matrix products in a dtype or, without a dtype, of a copy."""
    sizes = [size for size in _SIZES if size <= _LARGEST[device.type]]
    products = [partial(_product, size, device, getattr(torch, dtype)) for size in sizes] if dtype else []
    return _Ceiling(device, products or [partial(_copy, device)])


def _measure(ceilings: dict[str, _Ceiling]) -> dict[str, float]:
    """Return the rate of each ceiling that can be measured.

    The ceilings take turns, because a burst of other work then affects all of them. A ceiling that is still improving
    gets additional turns.
    """
    waiting = dict.fromkeys(ceilings, _LEAST_TURNS)
    with torch.no_grad():
        for _ in range(_MOST_TURNS):
            for name in [name for name, turns in waiting.items() if turns > 0]:
                ceiling = ceilings[name]
                before = ceiling.rate
                try:
                    ceiling.measure(_TURN_S)
                except (RuntimeError, MemoryError):  # the dtype is not supported here, or there is too little memory
                    waiting[name] = 0
                    continue
                better = before is not None and ceiling.rate is not None and ceiling.rate > _BETTER * before
                waiting[name] = max(waiting[name] - 1, 2 if better else 0)
    return {name: ceiling.rate for name, ceiling in ceilings.items() if ceiling.rate is not None}


def _product(size: int, device: torch.device, dtype: torch.dtype) -> _Run:
    """Return a product of square matrices with varied values.

    With constant values, a GPU would draw less power and run faster.
    """
    line = torch.arange(size, dtype=torch.float32, device=device).mul_(0.618034).frac_().sub_(0.5)
    left = torch.outer(line, line.flip(0)).to(dtype)
    right, out = left.t().contiguous(), torch.empty(size, size, dtype=dtype, device=device)
    return 2.0 * size**3, lambda: torch.mm(left, right, out=out)


def _copy(device: torch.device) -> _Run:
    """Return a run that copies more data than fits into any cache. Both reads and writes are counted."""
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2.0 * source.numel(), lambda: target.copy_(source)


def _on_gpu(run: Callable[[], Any]) -> float:
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    run()
    second.record()
    second.synchronize()
    return float(first.elapsed_time(second)) / 1e3


def _on_host(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


#: Functions that run another function and return its duration in seconds.
_CLOCKS = {"cpu": _on_host, "cuda": _on_gpu}
