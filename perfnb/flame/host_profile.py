"""`HostProfile`: stacks and function times that another tool recorded, as `perfnb.load` returns them."""

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
    """The time of a program, function by function. A notebook displays it, with a flame graph.

    Names in it come from the file: do not trust them. Each access to a table returns a new frame.
    """

    def __init__(self, record: HostRecord) -> None:
        self._record = record

    @property
    def functions(self) -> pd.DataFrame:
        """One row per function, most time of its own first.

        ``self_ms`` is time in the function itself, ``total_ms`` with what it calls; a function that calls itself counts
        once. A file that counts samples or bytes has ``self_samples`` or ``self_bytes`` instead, and the shares
        (``self_share``, ``total_share``) are of the whole. ``calls`` are known from cProfile only. ``line`` is where
        the function starts, if the file has it.
        """
        return self._functions.copy()

    @cached_property
    def _functions(self) -> pd.DataFrame:
        return function_table(self._record)

    @property
    def stacks(self) -> pd.DataFrame:
        """One row per distinct stack (``a;b;c``, outermost first), heaviest first; empty for cProfile.

        Raises
        ------
        TraceError
            If the stacks have more than 268,435,456 letters in all.
        """
        return stack_table(self._record)

    @property
    def samples(self) -> int | None:
        """Number of samples; ``None`` if the file holds none."""
        return self._record.samples

    @property
    def meta(self) -> dict[str, Any]:
        """Name of the file, its format, the unit of its values, and facts that it lacks."""
        record = self._record
        return {
            "name": record.name,
            "format": record.format,
            "unit": record.unit,
            "samples": record.samples,
            "notes": list(record.notes),
        }

    def compare(self, other: HostProfile) -> HostComparison:
        """Compare `other` with this profile: which functions grew and which shrank, by their own time.

        Parameters
        ----------
        other : HostProfile
            The profile to compare with this one, usually the later one; it may be of another format.

        Raises
        ------
        TypeError
            If `other` is not a host profile.
        """
        if not isinstance(other, HostProfile):
            raise TypeError(f"compare takes another host profile, not {shown(other)}.")
        return HostComparison(diff_records(self._record, other._record))

    def save(self, path: str | Path) -> Path:
        """Write the profile to the folder `path` (Parquet and JSON), completely or not at all.

        Raises
        ------
        RecordingError
            If `path` holds something other than a host profile, or cannot be written.
        """
        return save_record(self._record, path)

    def _document(self) -> Document:
        return host_document(self._record, self._functions)


class HostComparison(Documented):
    """Two host profiles, function by function. A notebook displays it, with a flame graph of both.

    ``a`` is the baseline, ``b`` the candidate that is compared with it.
    """

    def __init__(self, diff: HostDiff) -> None:
        self._diff = diff

    @property
    def functions(self) -> pd.DataFrame:
        """One row per function of either, matched by name and file, largest change first.

        ``grew_ms`` is how much more time of its own it takes in b; missing unless both profiles have times.
        ``grew_share`` is the change of its share (0 to 1). A function that one of them lacks counts there as 0.
        """
        return self._diff.functions.copy()

    def _document(self) -> Document:
        return host_diff_document(self._diff)
