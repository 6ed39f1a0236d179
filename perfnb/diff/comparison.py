"""`ProfileComparison`: what `Profile.compare` gives."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from perfnb.diff.layers import ProfileDiff
from perfnb.diff.traces import TraceDiff, diff_traces
from perfnb.diff.view import diff_html, diff_page, diff_text
from perfnb.draw.shown import Page, Shown
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform


def not_comparable(other: object) -> str:
    """The sentence that refuses to compare a profile, or the profiles of several ranks, with something."""
    kind = type(other).__name__
    hint = " Compare one rank with one: a[0].compare(b[0])." if kind == "Ranks" else ""
    return f"compare takes another profile, not {kind}.{hint}"


class ProfileComparison(Page, Shown):
    """Two profiles, or traces, side by side. Shows itself in a notebook.

    Every figure is per step. The first is ``a``, the one that it is compared with ``b``; ``grew_ms`` is what b takes
    more. The tables of operators and kernels are computed when first asked for.
    """

    def __init__(self, diff: ProfileDiff, a: Recording, b: Recording) -> None:
        self._diff, self._a, self._b = diff, a, b

    @property
    def layers(self) -> pd.DataFrame:
        """A row a layer of either: its names, how they were matched, and its figures in both.

        ``grew_ms`` is of its own time on the host and ``grew_gpu_ms`` of its own time on the GPU (``self_ms``,
        ``self_gpu_ms``: layers inside excluded), the latter where both have work on a GPU. ``gpu_ms_a`` and
        ``gpu_ms_b`` include the layers inside.
        """
        return self._diff.layers.copy()

    @property
    def phases(self) -> pd.DataFrame:
        """Milliseconds of each phase in both."""
        return self._diff.phases.copy()

    @property
    def ops(self) -> pd.DataFrame:
        """A row an operator of either, in a layer and phase and with its input shapes: calls and times in both.

        Operators are matched through what they lie in, from the outermost on. ``matched`` tells by what: ``layer`` (the
        same operator in the same layer), ``shapes`` (the same operator and shapes), ``name`` (the same operator, by
        the order in which they run), or ``only a``, ``only b``. An operator without a partner, such as the maker's own
        (``aten::cudnn_convolution``), has no row if it lies in one that has a row: it is part of that.

        ``gpu_ms`` is the sum of the durations of all work launched inside, ``host_ms`` the time on the host, and
        ``self_gpu_ms`` and ``self_host_ms`` the parts that are in no row inside: they add up to the whole, with the
        row ``(no known op)`` for work that no operator is known to have launched. ``grew_host_ms`` and ``grew_gpu_ms``
        are what b takes more; ``grew_ms`` is the second where both traces have work on a GPU, and missing where an
        operator has none, else the first; ``ratio`` goes with it. ``around`` is the row that it lies in, ``depth``
        counts the operators around it, and ``is_range`` tells an annotated range from an operator.

        ``grew_ms`` counts what lies inside as well, so a change stands in the row of the operator in which it is and
        of each around it: do not sum it up over all rows. What adds up to the step's change is
        ``(ops["self_gpu_ms_b"].fillna(0) - ops["self_gpu_ms_a"].fillna(0)).sum()`` (``self_host_ms`` for the host), or
        `by_op`.
        """
        return conform(pd.DataFrame(), "diff_ops") if self._traces is None else self._traces.ops.copy()

    @property
    def by_op(self) -> pd.DataFrame:
        """The operators that lie in no other, all layers in one, what changed most first: what the display lists.

        A row an operator with its input shapes, with all that lies inside it; ``layers``: in how many it is. An
        annotated range stands here with what no operator inside it took, and ``(no known op)`` for the work that no
        operator is known to have launched: each moment and each kernel is in one row, so ``grew_ms`` may be summed up.
        Columns as in `ops`, and ``kernels_a``, ``kernels_b`` (lists of names, the heaviest first).
        """
        return conform(pd.DataFrame(), "diff_by_op") if self._traces is None else self._traces.operators.copy()

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels, copies and fills behind each row of `ops` that launched some, what changed most first.

        ``kernels_a`` and ``kernels_b`` are lists of names, the heaviest first; ``calls`` and ``gpu_ms`` their sums, and
        ``row`` the row of `ops`, ``inside`` the outermost operator around it. What no operator is known to have
        launched has a row for each name of a kernel.
        """
        return conform(pd.DataFrame(), "diff_kernels") if self._traces is None else self._traces.kernels.copy()

    @property
    def gpu_time(self) -> pd.DataFrame:
        """What a GPU did in a step of both, in milliseconds: the mean over steps and GPUs.

        ``total`` is from the begin of a step's first work to the end of its last, ``idle`` what of it nothing ran in.
        Each is the length of a union of intervals. Empty where one of the two has no work on a GPU.
        """
        traces = self._traces
        if traces is None or traces.gpu_time is None:
            return conform(pd.DataFrame(), "diff_gpu_time")
        return traces.gpu_time.copy()

    def _page(self) -> str:
        return diff_page(self._diff, self._traces)

    @cached_property
    def _traces(self) -> TraceDiff | None:
        return diff_traces(self._a, self._b, self._diff.layers)

    def _text(self) -> str:
        return diff_text(self._diff, self._traces)

    def _line(self) -> str:
        matched = int(self._diff.layers["matched"].notna().sum())
        return f"{matched} layers matched of {len(self._diff.layers)}"

    def _html(self) -> str:
        return diff_html(self._diff, self._traces)
