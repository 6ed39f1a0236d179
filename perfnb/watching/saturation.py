"""Determine which resources were used up while a machine was watched, and which GPUs had to wait.

All functions in this module are pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from perfnb import quantities as fmt

if TYPE_CHECKING:
    from perfnb.watching.summary import MachineSummary

#: The shares of the available amount above which CPU and memory count as used up.
_CPU_FULL, _MEMORY_FULL = 0.9, 0.95
#: A GPU counts as waiting if it was busy for less than the first share of the time, but sometimes busier than the
#: second share.
_STARVED_PERCENT, _USED_PERCENT = 50.0, 5.0


@dataclass(frozen=True)
class Saturation:
    """A resource that was used up, or a GPU that had to wait.

    Attributes
    ----------
    kind : str
    device : str
        The device, or the cgroup if the cgroup sets the limit.
    used, limit : float
        The usage and its limit. For a CPU, the usage is the median in percent of one core, and for memory, it is the
        maximum in bytes. For a GPU that had to wait, it is the percentage of time.
    own : float or None
        The usage of the watched process.
    """

    kind: Literal["cpu", "memory", "starved"]
    device: str
    used: float
    limit: float
    own: float | None = None


def figure_of(summary: MachineSummary, device: str, metric: str, figure: str = "median") -> float | None:
    """Return a figure from the summary's table, or ``None`` if it is unknown."""
    table = summary.table
    return fmt.known(table.at[(device, metric), figure]) if (device, metric) in table.index else None


def cpu_limit_of(summary: MachineSummary, device: str) -> float | None:
    """Return the CPU limit of a host or a cgroup in percent of one core."""
    limit = summary.facts.get(device, {}).get("cpu_limit" if device == "cgroup" else "cpus")
    return 100.0 * limit if limit else None


def memory_limit_of(summary: MachineSummary, device: str) -> float | None:
    """Return the memory size of a device, or the memory limit of a cgroup."""
    return summary.facts.get(device, {}).get("memory_limit_bytes" if device == "cgroup" else "memory_bytes")


def saturations(summary: MachineSummary) -> Iterator[Saturation]:
    """Yield the resources that limited the process, starting with the most important one."""
    for device in ("cgroup", "host"):
        used, limit = figure_of(summary, device, "cpu_percent"), cpu_limit_of(summary, device)
        if used is not None and limit is not None and used >= _CPU_FULL * limit:
            yield Saturation("cpu", device, used, limit, figure_of(summary, "process", "cpu_percent"))
    gpus = [device for device in summary.facts if device.startswith("gpu")]
    for gpu in gpus:
        busy, most = (figure_of(summary, gpu, "busy_percent", name) for name in ("median", "max"))
        if busy is not None and most is not None and busy < _STARVED_PERCENT and most > _USED_PERCENT:
            yield Saturation("starved", gpu, busy, 100.0, figure_of(summary, "process", "cpu_percent"))
    for device in ("cgroup", "host", *gpus):
        used, limit = figure_of(summary, device, "memory_bytes", "max"), memory_limit_of(summary, device)
        if used is not None and limit is not None and used >= _MEMORY_FULL * limit:
            metric = "torch_reserved_bytes" if device in gpus else "memory_bytes"
            own = figure_of(summary, device if device in gpus else "process", metric, "max")
            yield Saturation("memory", device, used, limit, own)
