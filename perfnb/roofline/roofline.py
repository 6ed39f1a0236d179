"""`Roofline`: how close a profile's layers and ops come to what the machine can do."""

from __future__ import annotations

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.frame import framed
from perfnb.draw.shown import Shown
from perfnb.roofline.levels import RooflineLevels
from perfnb.roofline.tab import roofline_html, roofline_text


class Roofline(Shown):
    """The machine's measured ceilings, and every layer and op under them; displays itself in a notebook.

    See S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", Communications of the ACM 52 (4), 2009.
    """

    def __init__(self, figures: RooflineLevels) -> None:
        self._figures = figures

    @property
    def points(self) -> pd.DataFrame:
        """One row per layer (its own work, without the layers inside) and per op that moves bytes.

        ``kind``, ``name``, ``flops`` and ``bytes`` per step, ``ms``, ``intensity`` (FLOP/byte),
        ``achieved_flops_per_s``, ``attainable_flops_per_s`` (the roof above it), ``efficiency`` (the ratio of the two),
        ``bound`` (compute, memory, or missing), ``dtype``.
        """
        return self._figures.points.copy()

    @property
    def peaks(self) -> dict[str, float]:
        """FLOP/s by dtype that large products reach on this machine, or a part of this step if that was faster."""
        return dict(self._figures.peaks)

    @property
    def bandwidth(self) -> float | None:
        """Bytes/s of a large copy, reads and writes; ``None`` if it was not measured."""
        return self._figures.bandwidth

    @property
    def utilisation(self) -> float | None:
        """Model FLOPs utilisation of the timed step, 0 to 1; ``None`` if unknown, or if the peak is exceeded.

        The arithmetic of forward and backward, without recomputation, over what the ceiling of the step's main dtype
        allows in the same time (A. Chowdhery et al., "PaLM", appendix B, 2022; there with the vendor's peak).
        """
        return self._figures.utilisation

    @property
    def flops(self) -> int | None:
        """FLOPs per step of the ops that have a formula, including recomputation."""
        return self._figures.flops

    @property
    def uncounted(self) -> pd.DataFrame:
        """Ops without a formula, with their calls, time in milliseconds and share of a traced step."""
        return self._figures.uncounted.copy()

    def _text(self) -> str:
        return "\n".join(roofline_text(self._figures))

    def _line(self) -> str:
        return f"{fmt.flops(self.flops)} per step, utilisation {fmt.share(self.utilisation)}"

    def _html(self) -> str:
        return framed(roofline_html(self._figures, alone=True), narrow=True)
