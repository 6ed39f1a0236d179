"""`ProfileComparison`: the result of `Profile.compare`."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from perfnb.diff.layers import ProfileDiff
from perfnb.diff.step_times import StepChange
from perfnb.diff.traces import TraceDiff, diff_traces
from perfnb.diff.view import comparison_document, step_document
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform


def not_comparable(other: object) -> str:
    """Return the error for comparing a profile with anything else, such as the profiles of several ranks."""
    kind = type(other).__name__
    hint = " Compare individual ranks: a[0].compare(b[0])." if kind == "Ranks" else ""
    return f"compare requires another profile, not {kind}.{hint}"


class ProfileComparison(Documented):
    """A comparison of two profiles or traces. Notebooks display it.

    All figures are per step. ``a`` is the baseline and ``b`` the candidate; ``grew_ms`` is how much more time b takes.
    The tables of operators and kernels are computed when you first access them.
    """

    def __init__(self, diff: ProfileDiff, a: Recording, b: Recording) -> None:
        self._diff, self._a, self._b = diff, a, b

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer in either profile: its names, how it was matched, and its figures in both profiles.

        ``grew_ms`` is the change in the layer's own host time, and ``grew_gpu_ms`` the change in its own GPU time
        (``self_ms`` and ``self_gpu_ms``, which exclude the layers inside). The latter exists only if both profiles have
        GPU work. ``gpu_ms_a`` and ``gpu_ms_b`` include the layers inside.
        """
        return self._diff.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """Milliseconds of each phase in both profiles."""
        return self._diff.phases.copy()

    @property
    def ops(self) -> pd.DataFrame:
        """One row per operator in either profile, by layer, phase and input shapes: calls and times in both.

        Operators are matched from the outermost inwards. ``matched`` is the criterion: ``layer`` (the same operator in
        the same layer), ``shapes`` (the same operator and shapes), ``name`` (the same operator, in the order of
        execution), ``only a`` or ``only b``. An operator without a partner, such as a vendor-specific one
        (``aten::cudnn_convolution``), has no row of its own if it is inside a matched operator, because it is part of
        that operator.

        ``gpu_ms`` is the total duration of all work launched inside the operator, and ``host_ms`` its time on the host.
        ``self_gpu_ms`` and ``self_host_ms`` exclude the rows inside and add up to the whole, together with the row
        ``(no known op)`` for work launched by an unknown operator. ``grew_host_ms`` and ``grew_gpu_ms`` are how much
        more time b takes. ``grew_ms`` is the GPU time's change if both traces have GPU work (missing if the operator
        has none), otherwise the host time's; ``ratio`` refers to the same time. ``around`` is the row of the enclosing
        operator, ``depth`` the number of enclosing operators, and ``is_range`` marks annotated ranges.

        ``grew_ms`` includes the rows inside, so a change appears in the row of its operator and of every enclosing
        operator: do not sum it over all rows. The step's change is ``(ops["self_gpu_ms_b"].fillna(0) -
        ops["self_gpu_ms_a"].fillna(0)).sum()`` (``self_host_ms`` for the host), or `by_op`.
        """
        return self._frame("ops", "diff_ops")

    @property
    def by_op(self) -> pd.DataFrame:
        """The outermost operators, summed over all layers, largest change first, as in the report.

        There is one row per operator and input shapes, which includes everything inside the operator; ``layers`` is the
        number of layers where it occurs. Annotated ranges are listed with the time outside their operators, and ``(no
        known op)`` with the work launched by unknown operators. Every moment and every kernel belongs to exactly one
        row, so you can sum ``grew_ms``. The columns are those of `ops`, plus ``kernels_a`` and ``kernels_b`` (lists of
        names, heaviest first).
        """
        return self._frame("operators", "diff_by_op")

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels, copies and memsets that each row of `ops` launched, largest change first.

        ``kernels_a`` and ``kernels_b`` are lists of names, heaviest first, and ``calls`` and ``gpu_ms`` are their sums.
        ``row`` is the row in `ops`, and ``inside`` is its outermost enclosing operator. For work launched by unknown
        operators, there is one row per kernel name.
        """
        return self._frame("kernels", "diff_kernels")

    @property
    def gpu_time(self) -> pd.DataFrame:
        """One GPU's work per step in both profiles, in milliseconds, as the mean over steps and GPUs.

        ``total`` is the time from the start of a step's first work to the end of its last, and ``idle`` is the part of
        it when nothing ran. Each figure is the length of a union of intervals. The frame is empty if either profile has
        no GPU work.
        """
        return self._frame("gpu_time", "diff_gpu_time")

    def _frame(self, name: str, schema: str) -> pd.DataFrame:
        """Return one of the traces' frames; empty if it is not known."""
        found: pd.DataFrame | None = getattr(self._traces, name, None)
        return conform(pd.DataFrame(), schema) if found is None else found.copy()

    @cached_property
    def _traces(self) -> TraceDiff | None:
        return diff_traces(self._a, self._b, self._diff.layers)

    def _document(self) -> Document:
        return comparison_document(self._diff, self._traces)


class StepComparison(Documented):
    """A comparison of two step times that were measured at different times."""

    def __init__(self, change: StepChange, names: tuple[str, str]) -> None:
        self._change, self._names = change, names

    def _document(self) -> Document:
        return step_document(self._change, self._names)
