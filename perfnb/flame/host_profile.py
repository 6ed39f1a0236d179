"""Define `HostProfile`, which contains stacks and function times from another tool's recording."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.arguments import shown
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.flame.comparison import HostDiff, diff_records
from perfnb.flame.view import host_diff_document, host_document
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.saved import save_record
from perfnb.stacks.tables import function_table, stack_table


class HostProfile(Documented):
    """A program's time by function, as returned by `perfnb.load`. Notebooks display it with a flame graph.

    Names in the profile come from the file and should not be trusted. Each access to a table returns a new DataFrame.
    """

    def __init__(self, record: HostRecord) -> None:
        self._record = record

    @property
    def functions(self) -> pd.DataFrame:
        """One row per function, in descending order of the function's own time.

        ``self_ms`` is the time in the function itself, and ``total_ms`` includes the functions that it calls. A
        function that calls itself counts once. For a file that counts samples or bytes, the columns are
        ``self_samples`` or ``self_bytes`` instead. Shares (``self_share``, ``total_share``) refer to the whole profile.
        ``calls`` are only known from cProfile. ``line`` is where the function starts, if the file contains it.
        """
        return self._functions.copy()

    @cached_property
    def _functions(self) -> pd.DataFrame:
        return function_table(self._record)

    @property
    def stacks(self) -> pd.DataFrame:
        """One row per distinct stack (``a;b;c``, outermost call first), heaviest stack first. It is empty for cProfile.

        Raises
        ------
        TraceError
            If the stacks have more than 268,435,456 characters in total.
        """
        return stack_table(self._record)

    @property
    def samples(self) -> int | None:
        """The number of samples, or ``None`` if the file does not contain any."""
        return self._record.samples

    @property
    def meta(self) -> dict[str, Any]:
        """The file's name and format, the unit of its values, and notes on missing data."""
        record = self._record
        return {
            "name": record.name,
            "format": record.format,
            "unit": record.unit,
            "samples": record.samples,
            "notes": list(record.notes),
        }

    def compare(self, other: HostProfile) -> HostComparison:
        """Compare `other` with this profile to see which functions take more or less time of their own.

        Parameters
        ----------
        other : HostProfile
            The profile to compare with this one. It is usually the later of the two, and may be in a different format.

        Raises
        ------
        TypeError
            If `other` is not a host profile.
        """
        if not isinstance(other, HostProfile):
            raise TypeError(f"compare requires another host profile, not {shown(other)}.")
        return HostComparison(diff_records(self._record, other._record))

    def save(self, path: str | Path) -> Path:
        """Save the profile to the folder `path` as Parquet and JSON, either completely or not at all.

        Raises
        ------
        RecordingError
            If `path` contains something other than a host profile, or if it cannot be written.
        """
        return save_record(self._record, path)

    def _document(self) -> Document:
        return host_document(self._record, self._functions)


class HostComparison(Documented):
    """A comparison of two host profiles by function. Notebooks display it with a flame graph of both profiles.

    ``a`` is the baseline, and ``b`` is the candidate that is compared with it.
    """

    def __init__(self, diff: HostDiff) -> None:
        self._diff = diff

    @property
    def functions(self) -> pd.DataFrame:
        """One row per function in either profile, matched by name and file, in descending order of change.

        ``grew_ms`` is how much more of its own time the function takes in b. It is missing unless both profiles have
        times. ``grew_share`` is the change in the function's share (0 to 1). If a profile does not contain a function,
        its value in that profile counts as 0.
        """
        return self._diff.functions.copy()

    def _document(self) -> Document:
        return host_diff_document(self._diff)
