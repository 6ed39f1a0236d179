"""Define the results of comparing two profiles or two step times."""

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
    """Return the error message for comparing a profile with anything else, such as the profiles of several ranks."""
    kind = type(other).__name__
    hint = " Compare individual ranks: a[0].compare(b[0])." if kind == "Ranks" else ""
    return f"compare requires another profile, not {kind}.{hint}"


class ProfileComparison(Documented):
    """A comparison of two profiles or traces. Notebooks display it.

    All figures are per step. ``a`` is the baseline, ``b`` is the candidate, and ``grew_ms`` is how much more time b
    takes. The tables of operators and kernels are computed when you first access them.
    """

    def __init__(self, diff: ProfileDiff, a: Recording, b: Recording) -> None:
        self._diff, self._a, self._b = diff, a, b

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer in either profile: its names, how it was matched, and its figures in both profiles.

        ``grew_ms`` is the change in the layer's own host time (``self_ms``), and ``grew_gpu_ms`` is the change in its
        own GPU time (``self_gpu_ms``). Both exclude the layers inside. ``grew_gpu_ms`` exists only if both profiles
        contain GPU work. ``gpu_ms_a`` and ``gpu_ms_b`` include the layers inside.
        """
        return self._diff.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """The milliseconds of each phase in both profiles."""
        return self._diff.phases.copy()

    @property
    def ops(self) -> pd.DataFrame:
        """One row per operator in either profile, by layer, phase and input shapes, with its calls and times in both.

        Operators are matched from the outermost inwards. ``matched`` is the criterion that was used: ``layer`` (the
        same operator in the same layer), ``shapes`` (the same operator and shapes), ``name`` (the same operator, in the
        order of execution), ``only a`` or ``only b``. An operator without a partner, for example a vendor-specific one
        (``aten::cudnn_convolution``), does not have a row if it is inside a matched operator, because it counts as part
        of that operator.

        ``gpu_ms`` is the total duration of all work launched inside the operator, and ``host_ms`` is the operator's
        time on the host. ``self_gpu_ms`` and ``self_host_ms`` exclude the rows inside. Together with the row ``(no
        known op)``, which contains the work launched by unknown operators, they add up to the whole. ``grew_host_ms``
        and ``grew_gpu_ms`` are how much more time b takes. If both traces contain GPU work, ``grew_ms`` is the change
        in GPU time, which is missing if the operator has none. Otherwise, it is the change in host time. ``ratio``
        refers to the same time. ``around`` is the row of the enclosing operator, ``depth`` is the number of enclosing
        operators, and ``is_range`` marks annotated ranges.

        ``grew_ms`` includes the rows inside. A change therefore appears in the row of its operator and in the rows of
        all enclosing operators, so do not sum ``grew_ms`` over all rows. To compute the change in the step, use
        ``(ops["self_gpu_ms_b"].fillna(0) - ops["self_gpu_ms_a"].fillna(0)).sum()`` (or ``self_host_ms`` for the host),
        or use `by_op`.
        """
        return self._frame("ops", "diff_ops")

    @property
    def by_op(self) -> pd.DataFrame:
        """The outermost operators, summed over all layers, with the largest change first, as in the report.

        There is one row for each combination of operator and input shapes. It includes everything inside the operator,
        and ``layers`` is the number of layers where it occurs. The rows of annotated ranges contain the time outside
        their operators, and the row ``(no known op)`` contains the work launched by unknown operators. Every moment and
        every kernel belongs to exactly one row, so you can sum ``grew_ms``. The columns are the same as in `ops`, plus
        ``kernels_a`` and ``kernels_b`` (lists of names, heaviest first).
        """
        return self._frame("operators", "diff_by_op")

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels, copies and memsets launched by each row of `ops`, with the largest change first.

        ``kernels_a`` and ``kernels_b`` are lists of names, heaviest first, and ``calls`` and ``gpu_ms`` are their sums.
        ``row`` is the row in `ops`, and ``inside`` is the row of the outermost operator around it. For work launched by
        unknown operators, there is one row per kernel name.
        """
        return self._frame("kernels", "diff_kernels")

    @property
    def gpu_time(self) -> pd.DataFrame:
        """One GPU's work per step in both profiles, in milliseconds, as the mean over steps and GPUs.

        ``total`` is the time from the start of a step's first work to the end of its last work, and ``idle`` is the
        part of this time when nothing ran. Each figure is the length of a union of intervals. The frame is empty if
        either profile does not contain GPU work.
        """
        return self._frame("gpu_time", "diff_gpu_time")

    def _frame(self, name: str, schema: str) -> pd.DataFrame:
        """Return one of the frames of the trace comparison, which is empty if it is unknown."""
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
