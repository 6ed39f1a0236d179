"""Build a trace's columns one event at a time, for formats that are not decoded in bulk."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import Any

import numpy as np

from perfnb.errors import TraceError
from perfnb.trace.columns import EVENT_COLUMNS, MISSING, Ints, TraceColumns
from perfnb.trace.trace_file import Kept, Limits

#: The largest distance of a time from 0, which is 146 years in nanoseconds. The sum of two such times still fits in
#: int64.
FAR_NS = 2**62
_TEXTS = {
    **{"shapes": "shape_texts", "collective": "collective_names", "group": "group_names"},
    **{"dtype": "dtype_names", "module": "module_names"},
}
_ALWAYS = ("name", "category", "start_ns", "duration_ns", "process", "thread")


class Rows:
    """The events in a trace, in any order.

    Parameters
    ----------
    source : str
        The name of the trace, for error messages.
    limits : Limits

    Attributes
    ----------
    process_names, thread_names : dict
        As in `TraceColumns`.
    devices : dict of int to dict
        The known facts about each device.
    caveats : list of str
    kept : Kept
        Counts the events, the distinct texts, and any other values that the reader counts with it.
    """

    def __init__(self, source: str, limits: Limits) -> None:
        self.source = source
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.devices: dict[int, dict[str, Any]] = {}
        self.caveats: list[str] = []
        self.kept = Kept(source, limits)
        self._codes: dict[str, dict[str, int]] = defaultdict(dict)
        self._columns = {name: array("q") for name in _ALWAYS}
        self._rare: dict[str, tuple[array[int], array[int]]] = {}

    def __len__(self) -> int:
        return len(self._columns["name"])

    def code(self, column: str, text: str) -> int:
        """Return the number that represents a text in a text column."""
        codes = self._codes[column]
        if text not in codes:
            self.kept.add(1, text)
        return codes.setdefault(text, len(codes))

    def add(
        self, name: str, category: str, start_ns: int, duration_ns: int, process: int, thread: int, **rare: int
    ) -> None:
        """Add an event.

        `rare` contains values for other columns of `TraceColumns`. Each value is an int64, or the `code` of a text.

        Raises
        ------
        TraceError
            If a time is out of range, or there are too many events.
        """
        if not (-FAR_NS < start_ns < FAR_NS and 0 <= duration_ns < FAR_NS):
            raise TraceError(
                f"{self.source} cannot be read as a trace: an event has a time that is out of range "
                f"({start_ns / 1e9:.3g} s, lasting {duration_ns / 1e9:.3g} s)."
            )
        row = len(self)
        self.kept.add()
        columns = self._columns
        columns["name"].append(self.code("name", name))
        columns["category"].append(self.code("category", category))
        columns["start_ns"].append(start_ns)
        columns["duration_ns"].append(duration_ns)
        columns["process"].append(process)
        columns["thread"].append(thread)
        for key, value in rare.items():
            if value != MISSING and -(2**63) <= value < 2**63:
                rows, values = self._rare.setdefault(key, (array("q"), array("q")))
                rows.append(row)
                values.append(value)

    def columns(self, base_ns: int = 0, **facts: Any) -> TraceColumns:
        """Return the columns. Times are relative to `base_ns`, and adding `base_ns` to them does not overflow."""
        timed: dict[str, Any] = {name: np.array(values, dtype=np.int64) for name, values in self._columns.items()}
        texts: dict[str, Any] = {labels: list(self._codes[name]) for name, labels in _TEXTS.items()}
        rare: dict[str, Any] = {name: self._sparse(name) for name in EVENT_COLUMNS if name not in _ALWAYS}
        return TraceColumns(
            names=list(self._codes["name"]),
            categories=list(self._codes["category"]),
            **timed,
            **rare,
            **texts,
            base_ns=base_ns,
            devices=[{"id": number, **facts_of} for number, facts_of in sorted(self.devices.items())],
            process_names=self.process_names,
            thread_names=self.thread_names,
            caveats=self.caveats,
            **facts,
        )

    def _sparse(self, name: str) -> Ints:
        column = np.full(len(self), MISSING, dtype=np.int64)
        if name in self._rare:
            rows, values = self._rare[name]
            column[np.frombuffer(rows, dtype=np.int64)] = np.frombuffer(values, dtype=np.int64)
        return column
