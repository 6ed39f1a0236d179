"""Loader alone, model alone, together: what a step waits for, and what a perfect loader would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats, interval_of_median
from perfnb.stats.signed_rank import Centre, hodges_lehmann

#: Of each kind of block what it ran, in the order of the table.
KINDS = {
    "together": "the step as it is",
    "loader": "the loader, the model replaced",
    "model": "the model, with a batch kept in memory",
    "rest": "neither: what else the step does",
    "iteration": "only taking batches",
}
#: Share of a step below which a gain does not matter.
MATTERS = 0.05
#: What gains so many times more than the other decides alone.
DECIDES = 2.0


@dataclass(frozen=True)
class InputBound:
    """Blocks of the five kinds, in rounds.

    Attributes
    ----------
    rounds_ms : mapping of str to tuple of float
        By kind, milliseconds a step of each round's block.
    steps : int
        Steps in a block.
    executed : int
        How often the step ran in all.
    unforeseen_ms : float
        Time of true models in blocks without model, which was taken off.
    noise : mapping
        What went on beside the steps.
    batches_a_start : float or None
        Batches between two starts of the loader's workers; ``None`` where they stay, or it has none.
    parallel : bool
        Whether anything could load while the model runs: workers, threads, or the host beside a GPU.
    """

    rounds_ms: Mapping[str, Sequence[float]]
    steps: int
    executed: int
    unforeseen_ms: float = 0.0
    noise: Mapping[str, Any] = field(default_factory=dict)
    batches_a_start: float | None = None
    parallel: bool = True

    @property
    def rounds(self) -> int:
        """How many rounds were run."""
        return len(self.rounds_ms["together"])

    @cached_property
    def times(self) -> pd.DataFrame:
        """By kind ``ran``, ``median_ms`` a step, its interval ``low_ms`` to ``high_ms``, ``blocks``, ``steps``.

        Medians of blocks, for a loader's workers deliver in bursts. The interval is missing below 6 rounds.
        """
        rows = {}
        for kind, words in KINDS.items():
            values = self._of(kind)
            interval = interval_of_median(values)
            low, high = (np.nan, np.nan) if interval is None else interval[:2]
            rows[kind] = (words, float(np.median(values)), low, high, len(values), len(values) * self.steps)
        columns = ["ran", "median_ms", "low_ms", "high_ms", "blocks", "steps"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("kind")

    @cached_property
    def saved_by_loader(self) -> Centre:
        """Milliseconds a step that a perfect loader would save: together less the model alone, round by round."""
        return hodges_lehmann(self._of("together") - self._of("model"))

    @cached_property
    def saved_by_model(self) -> Centre:
        """Milliseconds a step that a model which takes no time would save: together less the loader alone."""
        return hodges_lehmann(self._of("together") - self._of("loader"))

    @property
    def together_ms(self) -> float:
        """Median of the step as it is."""
        return float(np.median(self._of("together")))

    @cached_property
    def overlap(self) -> float | None:
        """How much of the shorter of loader and model is hidden behind the longer: 0 none, 1 all.

        One after the other they take loader + model - rest (the rest is in both), side by side the longer of the two.
        Below 0 they may hinder each other, see `hindered`. ``None`` where one of the two is so short that nothing can
        be told.
        """
        together, loader, model, rest = (float(np.median(self._of(kind))) for kind in list(KINDS)[:4])
        one_after_other, side_by_side = loader + model - rest, max(loader, model)
        room = one_after_other - side_by_side
        if room <= MATTERS * together:
            return None
        return (one_after_other - together) / room if self.parallel else 0.0

    @cached_property
    def overlap_bounds(self) -> tuple[float, float] | None:
        """95 % interval of `overlap`, of rounds; ``None`` where that is, or below 6 rounds."""
        if self.overlap is None:
            return None
        if not self.parallel:
            return 0.0, 0.0
        together, loader, model, rest = (self._of(kind) for kind in list(KINDS)[:4])
        hidden = hodges_lehmann(loader + model - rest - together)
        room = min(float(np.median(loader)), float(np.median(model))) - float(np.median(rest))
        return (hidden.low / room, hidden.high / room) if hidden.bounded else None

    @cached_property
    def hindered(self) -> bool:
        """Whether together they take longer than one after the other, as where workers take the model's cores."""
        if not self.parallel:
            return False
        together, loader, model, rest = (self._of(kind) for kind in list(KINDS)[:4])
        return hodges_lehmann(together - (loader + model - rest)).low > MATTERS * self.together_ms

    @cached_property
    def verdict(self) -> str:
        """ "input-bound", "compute-bound", "balanced" or "inconclusive".

        A saving matters if it is above 0 with its interval and at least 5 % of the step. The step is bound by the one
        whose saving matters, if the other's does not or is half of it, or if it takes twice as long as the other
        (without the rest, which is in both). Where both matter alike, or neither does for the loader hides behind a
        model as long as itself, they are balanced. A step of which nearly all is neither is bound by what it computes.
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
        """Whether one takes at least twice as long as the other, the interval included."""
        one_ms, other_ms = (self._of(kind) - self._of("rest") for kind in (one, other))
        return hodges_lehmann(one_ms - DECIDES * other_ms).low > 0

    @property
    def mostly_rest(self) -> bool:
        """Whether nearly all of the step is neither loader nor model."""
        return float(np.median(self._of("rest"))) >= (1 - 2 * MATTERS) * self.together_ms

    def _matters(self, saved: Centre) -> bool | None:
        """Whether a saving is large enough to matter; ``None`` where the interval leaves it open."""
        least = MATTERS * self.together_ms
        if not saved.bounded:
            return None
        if saved.low > 0 and saved.estimate >= least:
            return True
        return False if saved.high < 2 * least else None

    def _of(self, kind: str) -> Floats:
        return np.asarray(self.rounds_ms[kind], dtype=np.float64)
