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
    """Return the error for comparing a profile with something else, such as the profiles of several ranks."""
    kind = type(other).__name__
    hint = " Compare one rank with one: a[0].compare(b[0])." if kind == "Ranks" else ""
    return f"compare takes another profile, not {kind}.{hint}"


class ProfileComparison(Documented):
    """Two profiles, or traces, next to each other. A notebook displays it.

    Every figure is per step. ``a`` is the baseline, ``b`` the candidate that it is compared with, and ``grew_ms`` how
    much more time b takes. The tables of operators and kernels are computed on first access.
    """

    def __init__(self, diff: ProfileDiff, a: Recording, b: Recording) -> None:
        self._diff, self._a, self._b = diff, a, b

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer of either profile: its names, how they were matched, and its figures in both.

        ``grew_ms`` is the change of its own host time and ``grew_gpu_ms`` that of its own GPU time (``self_ms``,
        ``self_gpu_ms``: layers inside excluded), the latter only if both profiles have GPU work. ``gpu_ms_a`` and
        ``gpu_ms_b`` include the layers inside.
        """
        return self._diff.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """Milliseconds of each phase in both."""
        return self._diff.phases.copy()

    @property
    def ops(self) -> pd.DataFrame:
        """One row per operator of either, by layer, phase and input shapes: calls and times in both.

        Operators are matched from the outermost inwards. ``matched`` names the criterion: ``layer`` (the same operator
        in the same layer), ``shapes`` (the same operator and shapes), ``name`` (the same operator, in the order of
        execution), or ``only a``, ``only b``. An operator without a partner, such as a vendor's own
        (``aten::cudnn_convolution``), has no row if it is inside one that has: it is part of that.

        ``gpu_ms`` is the sum of the durations of all work launched inside, ``host_ms`` the time on the host;
        ``self_gpu_ms`` and ``self_host_ms`` exclude the rows inside and add up to the whole, with the row
        ``(no known op)`` for work launched by an unknown operator. ``grew_host_ms`` and ``grew_gpu_ms`` are how much
        more b takes; ``grew_ms`` is the GPU's if both traces have GPU work (missing if the operator has none), else the
        host's; ``ratio`` goes with it. ``around`` is the row it is inside, ``depth`` counts the operators around it,
        and ``is_range`` marks an annotated range.

        ``grew_ms`` includes what is inside, so a change appears in the row of its operator and of each one around it:
        do not sum it over all rows. The change of the step is
        ``(ops["self_gpu_ms_b"].fillna(0) - ops["self_gpu_ms_a"].fillna(0)).sum()`` (``self_host_ms`` for the host), or
        `by_op`.
        """
        return self._frame("ops", "diff_ops")

    @property
    def by_op(self) -> pd.DataFrame:
        """Outermost operators with all layers summed, largest change first: what the display lists.

        One row per operator and input shapes, including all that is inside it; ``layers`` is the number of layers where
        it occurs. An annotated range is listed with the time that no operator inside it took, and ``(no known op)``
        with the work launched by an unknown operator. Each moment and each kernel is in one row, so ``grew_ms`` can be
        summed. Columns as in `ops`, and ``kernels_a``, ``kernels_b`` (lists of names, heaviest first).
        """
        return self._frame("operators", "diff_by_op")

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels, copies and memsets behind each row of `ops` that launched some, largest change first.

        ``kernels_a`` and ``kernels_b`` are lists of names, heaviest first; ``calls`` and ``gpu_ms`` their sums; ``row``
        the row of `ops` and ``inside`` the outermost operator around it. Work launched by an unknown operator has one
        row per kernel name.
        """
        return self._frame("kernels", "diff_kernels")

    @property
    def gpu_time(self) -> pd.DataFrame:
        """The work of one GPU per step in both, in milliseconds: the mean over steps and GPUs.

        ``total`` runs from the start of a step's first work to the end of its last, ``idle`` is the part of it when
        nothing ran. Each is the length of a union of intervals. Empty if either has no GPU work.
        """
        return self._frame("gpu_time", "diff_gpu_time")

    def _frame(self, name: str, schema: str) -> pd.DataFrame:
        """Return one of the frames of the traces; empty where it is not known."""
        found: pd.DataFrame | None = getattr(self._traces, name, None)
        return conform(pd.DataFrame(), schema) if found is None else found.copy()

    @cached_property
    def _traces(self) -> TraceDiff | None:
        return diff_traces(self._a, self._b, self._diff.layers)

    def _document(self) -> Document:
        return comparison_document(self._diff, self._traces)


class StepComparison(Documented):
    """Two step times that were measured at different times."""

    def __init__(self, change: StepChange, names: tuple[str, str]) -> None:
        self._change, self._names = change, names

    def _document(self) -> Document:
        return step_document(self._change, self._names)
