"""Compare the loader alone, the model alone, and both together, to determine what a perfect loader would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Centre, Floats, hodges_lehmann, interval_of_median

#: A description of each kind of block, in the order of the table.
KINDS = {
    "together": "the unmodified step",
    "loader": "the loader, with the model replaced",
    "model": "the model, on a batch kept in memory",
    "rest": "neither: everything else in the step",
    "iteration": "only taking batches",
}
#: A saving below this share of a step is considered negligible.
MATTERS = 0.05
#: If one saving is this many times as large as the other, it alone decides the verdict.
DECIDES = 2.0


@dataclass(frozen=True, repr=False, eq=False)
class InputBound:
    """The times of the five kinds of blocks in each round.

    Attributes
    ----------
    rounds_ms : mapping of str to sequence of float
        Milliseconds per step in each round's block, by kind.
    steps, executed : int
        The number of steps in a block, and the total number of steps.
    unforeseen_ms : float
        The time that the real models took for batches with new shapes in blocks without a model. It is already
        subtracted from the blocks' times.
    noise : mapping
        Possible disturbances of the steps.
    batches_a_start : float or None
        The number of batches after which the loader's workers restart, or ``None`` if they persist or there are none.
    parallel : bool
        Whether loading could overlap with the model, in workers or threads, or on the host while a GPU works.
    """

    rounds_ms: Mapping[str, Sequence[float]]
    steps: int
    executed: int
    unforeseen_ms: float = 0.0
    noise: Mapping[str, Any] = field(default_factory=dict)
    batches_a_start: float | None = None
    parallel: bool = True

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per round, with the milliseconds per step in its block of each kind."""
        return pd.DataFrame({kind: self.rounds_ms[kind] for kind in KINDS}).rename_axis("round")

    @property
    def times(self) -> pd.DataFrame:
        """Times per step, one row per kind of run: ``together``, ``loader``, ``model``, ``rest``, ``iteration``.

        The columns are ``ran`` (a description), ``median_ms`` with its 95 % interval from ``low_ms`` to ``high_ms``
        (missing if there are fewer than 6 blocks), ``blocks`` and ``steps``. Medians are computed over blocks, because
        a loader's workers deliver in bursts.
        """
        rows, count = [], len(self.rounds_ms["together"])
        for kind, words in KINDS.items():
            low, high = (interval_of_median(self._of(kind)) or (np.nan, np.nan))[:2]
            rows.append((words, self._median(kind), low, high, count, count * self.steps))
        columns = ["ran", "median_ms", "low_ms", "high_ms", "blocks", "steps"]
        return pd.DataFrame(rows, pd.Index(KINDS, name="kind"), columns)

    @cached_property
    def saved_by_loader(self) -> Centre:
        """The milliseconds per step that a perfect loader would save, by rounds: *together* minus *model*."""
        return hodges_lehmann(self._of("together") - self._of("model"))

    @cached_property
    def saved_by_model(self) -> Centre:
        """The milliseconds per step that a model without any cost would save: *together* minus *loader*."""
        return hodges_lehmann(self._of("together") - self._of("loader"))

    @property
    def saved_ms(self) -> float:
        """The most that a perfect loader could save, in milliseconds per step: *together* minus *model*."""
        return self.saved_by_loader.estimate

    @property
    def saved_ci_ms(self) -> tuple[float, float] | None:
        """The 95 % interval of `saved_ms`, or ``None`` if there are fewer than 6 rounds."""
        saved = self.saved_by_loader
        return (saved.low, saved.high) if saved.bounded else None

    @property
    def saved_share(self) -> float:
        """`saved_ms` as a share of the step, from 0 to 1."""
        return self.saved_ms / self.together_ms

    @property
    def together_ms(self) -> float:
        """The unmodified step's median time."""
        return self._median("together")

    @cached_property
    def overlap(self) -> float | None:
        """How much of the shorter of loader and model the longer one hides, from 0 to 1, or ``None`` if unknown.

        It is 0 if loading cannot overlap with the model (no workers and no GPU in use). If it is below 0, the two may
        slow each other down, for example because workers and model compete for cores; `hindered` is true if this is
        certain.
        """
        # In sequence, they take loader + model - rest, because both include the rest. If they overlap fully, they take
        # as long as the longer one.
        loader, model, rest = (self._median(kind) for kind in ("loader", "model", "rest"))
        sequential, overlapped = loader + model - rest, max(loader, model)
        room = sequential - overlapped
        if room <= MATTERS * self.together_ms:
            return None
        return (sequential - self.together_ms) / room if self.parallel else 0.0

    @cached_property
    def overlap_bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of `overlap`, or ``None`` if it is unknown or there are fewer than 6 rounds."""
        if self.overlap is None:
            return None
        if not self.parallel:
            return 0.0, 0.0
        hidden = hodges_lehmann(self._sequential - self._of("together"))
        room = min(self._median("loader"), self._median("model")) - self._median("rest")
        return (hidden.low / room, hidden.high / room) if hidden.bounded else None

    @cached_property
    def hindered(self) -> bool:
        """Whether loader and model take longer together than in sequence, for example because they share cores."""
        if not self.parallel:
            return False
        return hodges_lehmann(self._of("together") - self._sequential).low > MATTERS * self.together_ms

    @cached_property
    def verdict(self) -> str:
        """The verdict: "input-bound", "compute-bound", "balanced" or "inconclusive".

        A saving matters if its interval is above 0 and it is at least 5 % of the step. The loader or the model bounds
        the step if its saving matters and the other saving does not or is half as large, or if it takes twice as long
        as the other (excluding the rest, which is part of both). The two are balanced if both savings matter and
        neither is twice the other, or if neither saving matters because the loader is hidden behind a model that takes
        equally long. A step that consists almost entirely of the rest is compute-bound.
        """
        by_loader, by_model = self._matters(self.saved_by_loader), self._matters(self.saved_by_model)
        if by_loader and self._outweighs("loader", "model"):
            return "input-bound"
        if by_model and self._outweighs("model", "loader"):
            return "compute-bound"
        if by_loader is None or by_model is None:
            return "inconclusive"
        if by_loader and by_model:
            ratio = self.saved_by_loader.estimate / self.saved_by_model.estimate
            return "input-bound" if ratio >= DECIDES else "compute-bound" if ratio <= 1 / DECIDES else "balanced"
        if by_loader == by_model:
            return "compute-bound" if self.mostly_rest else "balanced"
        return "input-bound" if by_loader else "compute-bound"

    def _outweighs(self, one: str, other: str) -> bool:
        """Return whether `one` takes at least twice as long as `other`, with 95 % confidence."""
        one_ms, other_ms = (self._of(kind) - self._of("rest") for kind in (one, other))
        return hodges_lehmann(one_ms - DECIDES * other_ms).low > 0

    @property
    def mostly_rest(self) -> bool:
        """Whether almost the entire step is neither loader nor model."""
        return self._median("rest") >= (1 - 2 * MATTERS) * self.together_ms

    def _matters(self, saved: Centre) -> bool | None:
        """Return whether a saving is large enough to matter, or ``None`` if the interval is too wide to tell."""
        least = MATTERS * self.together_ms
        if not saved.bounded:
            return None
        if saved.low > 0 and saved.estimate >= least:
            return True
        return False if saved.high < 2 * least else None

    @property
    def _sequential(self) -> Floats:
        """The time that the loader and the model would take in sequence, for each round."""
        return self._of("loader") + self._of("model") - self._of("rest")

    def _of(self, kind: str) -> Floats:
        return np.asarray(self.rounds_ms[kind], dtype=np.float64)

    def _median(self, kind: str) -> float:
        return float(np.median(self._of(kind)))
