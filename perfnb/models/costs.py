"""Architectures compared on one batch: what each costs, where its time goes, and how far they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

#: Kinds of layers, by which the time of models of different make can be set side by side.
KINDS = ("attention", "linear", "convolution", "normalisation", "activation", "embedding", "other")


@dataclass(frozen=True)
class ArchitectureFigures:
    """What a comparison of architectures found.

    Attributes
    ----------
    table : DataFrame
        One row a name (the index), in the given order: ``parameters``, ``parameter_bytes``, ``forward_flops``,
        ``backward_flops``, ``median_ms``, ``ci_low_ms``, ``ci_high_ms``, ``throughput_per_s``, ``peak_bytes``,
        ``activation_bytes``, ``achieved_flops_per_s``, ``intensity`` (FLOP/byte), ``launches_or_ops``; each may be NA.
    shares : DataFrame
        Where the time goes: ``name``, ``by`` (kind or phase), ``part`` (one of `KINDS`, or a phase), ``ms``,
        ``share``. For one name and ``by`` the shares add up to 1, and the times to the median.
    ratios : DataFrame
        Pairs: ``a``, ``b``, ``ratio`` (time of b by time of a), ``ci_low``, ``ci_high``, ``p_holm``, ``verdict`` of b
        against a (faster, slower, same, inconclusive), ``smallest_detectable`` (relative).
    layers : mapping of str to DataFrame
        Each model's frame ``layers``, with a column ``kind``.
    samples_ms : mapping of str to tuple of float
        The times of each model's steps; those in one place were measured side by side.
    training : bool
        With loss and backward pass, or the forward pass alone.
    device : str
        Name of the device.
    batch : str
        The batch in words.
    rounds : int
        How many times each model was measured.
    equal_within : float
        Relative difference up to which two times are the same, 0.02 for 2 %.
    notes : tuple of str
        What else a reader must know.
    """

    table: pd.DataFrame
    shares: pd.DataFrame
    ratios: pd.DataFrame
    layers: Mapping[str, pd.DataFrame]
    samples_ms: Mapping[str, tuple[float, ...]]
    training: bool
    device: str
    batch: str
    rounds: int
    equal_within: float
    notes: tuple[str, ...] = ()
