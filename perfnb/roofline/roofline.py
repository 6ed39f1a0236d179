"""Define `Roofline`, which shows how close a profile's layers and ops come to the machine's limits."""

from __future__ import annotations

from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.roofline.levels import RooflineLevels
from perfnb.roofline.tab import roofline_document


class Roofline(Documented, RooflineLevels):
    """The machine's measured ceilings, with all layers and ops below them. Notebooks display it.

    See S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", Communications of the ACM 52 (4), 2009.

    Attributes
    ----------
    points : DataFrame
        One row for each layer (its own work, without the layers inside) and each op that moves bytes. The columns are
        ``kind``, ``name``, ``flops`` and ``bytes`` per step, ``ms``, ``intensity`` (FLOP/byte),
        ``achieved_flops_per_s``, ``attainable_flops_per_s`` (the roof above it), ``efficiency`` (the ratio of the two),
        ``bound`` (compute, memory, or missing) and ``dtype``.
    peaks : dict of str to float
        For each dtype, the FLOP/s that large products reach on this machine, or that a part of this step reached if it
        was faster.
    bandwidth : float or None
        The bytes/s of a large copy, counting reads and writes, or ``None`` if it was not measured.
    utilisation : float or None
        The model FLOPs utilisation, from 0 to 1, or ``None`` if the peak is unknown or exceeded. It is the number of
        FLOPs in forward and backward, without recomputation, divided by the number of FLOPs that the ceiling of the
        step's main dtype would allow in the same time (A. Chowdhery et al., "PaLM", appendix B, 2022, where it is
        relative to the vendor's peak).
    flops : int or None
        The number of FLOPs per step in ops that have a formula, including recomputation.
    uncounted : DataFrame
        The ops without a formula, with their calls, time in milliseconds and share of a traced step.
    device : str
        The device that was measured.
    dtype : str or None
        The dtype to whose peak `utilisation` refers.
    refuted : mapping of str to float
        The measured FLOP/s of those dtypes where part of this step was faster. `peaks` contains the rate of that part.
    others : float
        The share of the CPUs that other programs used while the peaks were measured, from 0 to 1.
    counters : mapping of str to float
        The mean values of a watched GPU's hardware counters over the timed steps, from 0 to 1, by column of
        ``samples``.
    """

    def _document(self) -> Document:
        return roofline_document(self)


def roofline_result(levels: RooflineLevels) -> Roofline:
    """Return the same figures as a separate result, whose tables are copies."""
    own = {"points": levels.points.copy(), "uncounted": levels.uncounted.copy(), "peaks": dict(levels.peaks)}
    return Roofline(**{**vars(levels), **own})
