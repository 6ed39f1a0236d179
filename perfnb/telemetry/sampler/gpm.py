"""Read hardware counters on NVIDIA GPUs since Hopper, through NVML's GPM ("GPU performance monitoring")."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pynvml

from perfnb.telemetry.sampler.source import Values

#: NVML's numbers for the counters: the share of time when multiprocessors were active, the share of time when Tensor
#: Cores were active, and the used share of the maximum memory bandwidth.
GPM_METRICS = {"sm_active_percent": 2, "tensor_active_percent": 5, "dram_active_percent": 10}
#: The counters are not meaningful over a shorter time.
_LEAST_NS = 100_000_000


class GpmCounters:
    """The mean values of a GPU's counters between readings.

    Attributes
    ----------
    usable : bool
        Whether the counters can be read. False if the GPU or the driver does not have them, or if a reading has failed.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples: list[Any] = []
        self._taken_ns: int | None = None
        self.usable = False
        with suppress(pynvml.NVMLError, AttributeError):  # raised by older drivers and older bindings
            if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
                self.usable = True

    def read(self, now_ns: int) -> Values:
        """Return the mean percentage of each metric since the last reading.

        The values are ``None`` for the first reading, or if the last reading was too recent.
        """
        if not self.usable:
            return {}
        values: Values = dict.fromkeys(GPM_METRICS)
        if self._taken_ns is not None and now_ns - self._taken_ns < _LEAST_NS:
            return values
        try:
            first, second = self._samples
            pynvml.nvmlGpmSampleGet(self._handle, second)
            if self._taken_ns is not None:
                values |= _between(first, second)
            self._samples, self._taken_ns = [second, first], now_ns
        except pynvml.NVMLError:  # if the GPU is lost, the other sensors report this
            self.close()
        return values

    def close(self) -> None:
        """Free the samples, if this has not been done yet."""
        self.usable = False
        for sample in self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples = []


def _between(first: Any, second: Any) -> Values:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
    asked.sample1, asked.sample2 = first, second
    for place, number in enumerate(GPM_METRICS.values()):
        asked.metrics[place].metricId = number
    pynvml.nvmlGpmMetricsGet(asked)
    read = zip(GPM_METRICS, asked.metrics, strict=False)
    return {name: metric.value for name, metric in read if not metric.nvmlReturn and 0 <= metric.value <= 100.5}
