"""PCIe traffic from the counters of a GPU, where they can be trusted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pynvml

from perfnb.telemetry.nvml_devices import LOST
from perfnb.telemetry.readings import Rates, Values

#: What counts the bytes that a GPU has received and sent; older bindings have no names for these fields.
_FIELDS = {"pcie_receive_bytes_per_s": 198, "pcie_send_bytes_per_s": 197}
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_FULL = 2**32
#: For a link that is not known: the fastest there is, generation 6 with 16 lanes.
_FASTEST = 128e9
#: After so many readings in turn that came too late for the counters, they are given up.
_PATIENCE = 3


class PcieCounters:
    """Rates of a GPU's PCIe traffic from its counters of bytes.

    The counters begin again at 0 when they are full, in many drivers after 4 GiB, which a fast link carries in less
    than 0.1 s. A counter that may have gone round between two readings says nothing; that it may is assumed of each
    that was never seen above 4 GiB.

    Attributes
    ----------
    usable : bool
        Whether the counters are of use here: no longer after readings that were too far apart, and never where the
        driver does not have them.
    """

    def __init__(self) -> None:
        self.usable = True
        self._rates = Rates()
        self._last_ns: int | None = None
        self._link = _FASTEST
        self._wide = False
        self._late = 0

    def read(self, handle: Any, now_ns: int) -> Values:
        """Bytes per second by metric.

        Raises
        ------
        pynvml.NVMLError
            If counters that were read before cannot be read, or the device is lost.
        """
        try:
            counts = _counts(handle)
        except pynvml.NVMLError as error:
            if self._last_ns is not None or error.value in LOST:
                raise
            self.usable = False
            return {}
        if self._last_ns is None:
            self._link = _link(handle)
        self._wide = self._wide or max(counts.values()) >= _FULL
        late = not self._wide and (now_ns - (self._last_ns or now_ns)) / 1e9 * self._link >= _FULL
        self._late = self._late + 1 if late else 0
        self.usable = self._late < _PATIENCE
        self._last_ns = now_ns
        rates = {metric: self._rates.per_second(metric, count, now_ns) for metric, count in counts.items()}
        return dict.fromkeys(rates) if late else {**rates}


def _counts(handle: Any) -> dict[str, int]:
    counts = {}
    for metric, value in zip(_FIELDS, pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS.values())), strict=True):
        member = _MEMBERS.get(value.valueType)
        if value.nvmlReturn or member is None:
            raise pynvml.NVMLError(value.nvmlReturn or pynvml.NVML_ERROR_NOT_SUPPORTED)
        counts[metric] = int(getattr(value.value, member))
        if counts[metric] in (2**32 - 1, 2**64 - 1):  # what NVML puts where it has no value
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return counts


def _link(handle: Any) -> float:
    """The most that the link can carry in one direction, in bytes per second."""
    with suppress(pynvml.NVMLError):
        generation = int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        return float(250e6 * 2 ** (generation - 1) * int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)))
    return _FASTEST
