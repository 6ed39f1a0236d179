"""A stand-in for torch's module of an accelerator: work is launched at once and done later, by a clock of the test."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from tests.fake_clock import FakeClock

#: torch's name for a backend that registered itself.
KIND = "privateuseone"


class FakeEvent:
    """A timing event on stream 0 of a device, as ``torch.cuda.Event``."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self._at = device, 0

    def record(self, stream: int | None = None) -> None:
        """Happens when what was launched before is done; a device's only stream with events has its number."""
        index = self._device.current_device() if stream is None else stream
        self._at = max(self._device.clock.now_ns, self._device.done[index, 0])

    def synchronize(self) -> None:
        """Wait for it."""
        self._device.wait_until(self._at)

    def elapsed_time(self, other: FakeEvent) -> float:
        """Return milliseconds from this event to another. Both must have happened."""
        if other._at > self._device.clock.now_ns:
            raise RuntimeError("not ready")
        return (other._at - self._at) / 1e6


class FakeDevice:
    """What torch's modules of accelerators have in common; a test takes away what its device lacks."""

    def __init__(self, clock: FakeClock, devices: int = 1) -> None:
        self.clock, self.devices = clock, devices
        self.initialized = False
        #: When the work of each device and stream is done.
        self.done: dict[tuple[int, int], int] = defaultdict(int)
        self.waits: list[int | None] = []
        self.random = torch.arange(4)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
        """Be torch's module for `KIND` until the test is over."""
        self.clock.install(monkeypatch)
        monkeypatch.setattr(torch, KIND, self, raising=False)
        return self

    def launch(self, ms: float, *, device: int = 0, stream: int = 0) -> None:
        """Start work, as a kernel's launch does: the host continues at once."""
        self.initialized = True
        start = max(self.clock.now_ns, self.done[device, stream])
        self.done[device, stream] = start + round(ms * 1e6)

    def wait_until(self, time_ns: int) -> None:
        """Let the host wait."""
        self.clock.now_ns = max(self.clock.now_ns, time_ns)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        assert self.initialized, "asked before the first use"
        return self.devices

    def current_device(self) -> int:
        return 0

    def current_stream(self, index: int) -> int:
        return index

    def get_device_name(self, index: int) -> str:
        return f"Stand-in {index}"

    def synchronize(self, index: int | None = None) -> None:
        self.waits.append(index)
        self.wait_until(max((at for (device, _), at in self.done.items() if device == (index or 0)), default=0))

    def Event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        return FakeEvent(self)

    def memory_allocated(self, index: int) -> int:
        return 1024 if any(at for (device, _), at in self.done.items() if device == index) else 0

    def memory_stats(self, index: int) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": 1024 * (index + 1),
            "reserved_bytes.all.current": 4096,
            "reserved_bytes.all.peak": 8192,
            "num_alloc_retries": 3,
            "num_ooms": 0,
        }

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.random.clone()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        [self.random] = states
