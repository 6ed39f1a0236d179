"""Hardware counters of GPUs: means between two samples, as NVML's functions give them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from perfnb.telemetry.sampler.gpm import GPM_METRICS, GpmCounters
from perfnb.telemetry.sampler.nvml import NvmlSource

SECOND_NS = 10**9


class FakeGpm:
    """NVML's functions over counters that a test sets."""

    def __init__(self) -> None:
        self.supported, self.error, self.metric_error = True, 0, 0
        self.totals = dict.fromkeys(GPM_METRICS.values(), 0.0)
        self.samples: dict[int, dict[int, float]] = {}
        self.alive = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeGpm:
        monkeypatch.setattr(
            pynvml, "nvmlGpmQueryDeviceSupport", lambda _: SimpleNamespace(isSupportedDevice=self.supported)
        )
        for name in ("SampleAlloc", "SampleFree", "SampleGet", "MetricsGet"):
            monkeypatch.setattr(pynvml, f"nvmlGpm{name}", getattr(self, name))
        return self

    def SampleAlloc(self) -> Any:
        self.alive += 1
        return pynvml.c_nvmlGpmSample_t()

    def SampleFree(self, sample: Any) -> None:
        self.alive -= 1

    def SampleGet(self, handle: Any, sample: Any) -> Any:
        if self.error:
            raise pynvml.NVMLError(self.error)
        self.samples[id(sample)] = dict(self.totals)
        self.last = id(sample)
        return sample

    def MetricsGet(self, asked: Any) -> None:
        assert asked.numMetrics == len(GPM_METRICS)
        [before] = [totals for sample, totals in self.samples.items() if sample != self.last]
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = self.totals[metric.metricId] - before[metric.metricId]
            metric.nvmlReturn = self.metric_error if metric.metricId == 5 else 0


@pytest.fixture
def gpm(monkeypatch: pytest.MonkeyPatch) -> FakeGpm:
    return FakeGpm().install(monkeypatch)


def test_a_reading_is_the_mean_since_the_last_one(gpm: FakeGpm) -> None:
    counters = GpmCounters(None)
    assert set(counters.read(SECOND_NS).values()) == {None}
    gpm.totals = {2: 71.0, 5: 34.5, 10: 12.0}
    assert counters.read(2 * SECOND_NS) == {
        "sm_active_percent": 71.0,
        "tensor_active_percent": 34.5,
        "dram_active_percent": 12.0,
    }
    gpm.totals = {2: 72.0, 5: 35.5, 10: 14.0}
    assert counters.read(3 * SECOND_NS)["dram_active_percent"] == 2


def test_a_reading_too_soon_has_no_value_and_does_not_shorten_the_next(gpm: FakeGpm) -> None:
    counters = GpmCounters(None)
    counters.read(SECOND_NS)
    gpm.totals[2] = 10
    assert counters.read(SECOND_NS + 10**8 - 1)["sm_active_percent"] is None
    gpm.totals[2] = 30
    assert counters.read(SECOND_NS + 10**8)["sm_active_percent"] == 30


def test_a_counter_that_fails_or_is_absurd_is_missing_alone(gpm: FakeGpm) -> None:
    gpm.metric_error = pynvml.NVML_ERROR_NOT_SUPPORTED
    counters = GpmCounters(None)
    counters.read(SECOND_NS)
    found = []
    for second, totals in enumerate([(100.5, 20, 0), (100.4, 40, 100.6)], 2):  # rounding may exceed 100 %
        gpm.totals = dict(zip(GPM_METRICS.values(), totals, strict=True))
        found.append(list(counters.read(second * SECOND_NS).values()))
    assert found == [[100.5, None, 0], [None, None, None]]


@pytest.mark.parametrize("supported", [False, True])
def test_without_counters_there_is_no_column(gpm: FakeGpm, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpm.supported = False
    if supported:  # an older binding
        monkeypatch.delattr(pynvml, "nvmlGpmQueryDeviceSupport")
    counters = GpmCounters(None)
    assert not counters.usable
    assert counters.read(SECOND_NS) == {}


def test_samples_are_freed_at_the_end_and_after_an_error(gpm: FakeGpm) -> None:
    counters = GpmCounters(None)
    counters.read(SECOND_NS)
    gpm.error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert set(counters.read(2 * SECOND_NS).values()) == {None}
    assert not counters.usable
    counters.close()
    assert gpm.alive == 0


def test_counters_are_closed_before_nvml_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    source: Any = object.__new__(NvmlSource)
    source._open, source._gpm = True, {"GPU-0": SimpleNamespace(close=lambda: told.append("closed"))}
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: told.append("shut down"))
    source.close()
    source.close()
    assert told == ["closed", "shut down"]
