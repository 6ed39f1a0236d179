"""Whether one law holds over all sizes, or changes at one of them: a cache that overflows, another kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfnb.stats.intervals import Floats
from perfnb.stats.log_fit import Fit

#: A change is reported where chance makes a larger one in 1 of 20 clean laws ...
_LEVEL = 0.05
#: ... and where it moves some predicted cost by more than this share.
_RELEVANT = 0.05
#: Fewest sizes on each side of a break.
_SIDE = 2
#: Random data sets that show what chance makes.
_DRAWS = 2000
#: The greatest rise of a logarithm that is told.
_GREATEST_RISE = 700.0


@dataclass(frozen=True)
class Break:
    """A change of the law between two neighbouring sizes.

    Attributes
    ----------
    below, above : float
        The sizes on both sides of the break.
    jump : float
        How much more the cost is, in the middle between them, by the law above than by the law below: 0.4 is 40 %.
    exponent_below, exponent_above : float
        Exponents of the laws on both sides.
    p_value : float
        Of the hypothesis that one law holds.
    """

    below: float
    above: float
    jump: float
    exponent_below: float
    exponent_above: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"One law does not hold: the exponent is {self.exponent_below:.2g} up to size {self.below:.4g} and "
            f"{self.exponent_above:.2g} from {self.above:.4g}, with a jump of {self.jump:+.0%} between."
        )


def find_break(x: Floats, y: Floats, fit: Fit, errors: Floats | None = None) -> Break | None:
    """The place where two laws fit better than one, if they do so by more than chance; ``None`` otherwise.

    For each place with at least two sizes on both sides, a step and a change of slope are added to the law. The
    largest of their F statistics (Quandt, 1960; Andrews, Econometrica 61, 1993) is compared with the largest of 2,000
    random data sets of the same sizes, which is exact for normal deviations (Dwass, 1957). A smooth curve in the
    logarithms is found in the same way. What two laws leave is taken for chance, and no less than the errors where
    they are known.

    Parameters
    ----------
    x, y : ndarray
        Logarithms of size and cost, by ascending size.
    fit : Fit
        The one law.
    errors : ndarray, optional
        Standard error of each log cost.
    """
    places = [place for place in range(_SIDE, len(x) - _SIDE + 1) if x[place] > x[place - 1]]
    places = [p for p in places if len(np.unique(x[:p])) >= _SIDE and len(np.unique(x[p:])) >= _SIDE]
    root = np.sqrt(fit.weights) if errors is None else 1 / errors
    rows = fit.gradient(x) * root[:, None]
    freedom = len(x) - rows.shape[1] - 2
    if not places or freedom < 1:
        return None
    step = [np.column_stack([x >= x[p], (x >= x[p]) * (x - x[p])]) * root[:, None] for p in places]
    added = np.stack([_beyond(rows, columns) for columns in step])
    known = errors is not None
    law = _projector(rows)
    whitened = fit.residuals * root
    whitened = whitened - law @ whitened
    found = _gains(whitened[None], added, freedom, known)[0]
    best = int(np.argmax(found))
    draws = _normal(len(x))
    largest = _gains(draws - draws @ law, added, freedom, known).max(axis=1)
    p_value = (1 + np.sum(largest >= found[best])) / (1 + _DRAWS)
    change = added[best] @ (added[best].T @ whitened) / root
    if p_value > _LEVEL or np.abs(change).max() < _RELEVANT:
        return None
    return _described(x, y, places[best], float(p_value))


def _described(x: Floats, y: Floats, place: int, p_value: float) -> Break:
    """Straight lines through the logarithms on both sides."""
    below = np.polyfit(x[:place], y[:place], 1)
    above = np.polyfit(x[place:], y[place:], 1)
    middle = (x[place - 1] + x[place]) / 2
    # Lines through two points far apart can lie further from each other than a float reaches.
    rise = min(float(np.polyval(above, middle) - np.polyval(below, middle)), _GREATEST_RISE)
    jump = math.expm1(rise)
    sizes = np.exp(x[place - 1 : place + 1])
    return Break(float(sizes[0]), float(sizes[1]), jump, float(below[0]), float(above[0]), p_value)


def _beyond(rows: Floats, columns: Floats) -> Floats:
    """Orthonormal directions of what the columns add to the rows of the law."""
    return np.asarray(np.linalg.svd(columns - _projector(rows) @ columns, full_matrices=False)[0])


def _projector(rows: Floats) -> Floats:
    return np.asarray(rows @ np.linalg.pinv(rows))


def _gains(whitened: Floats, added: Floats, freedom: int, known: bool) -> Floats:
    """F statistic of each data set (row) at each place (column); where errors are known, it is of 1 at least."""
    explained = np.square(np.einsum("dn,pnk->dpk", whitened, added)).sum(axis=2)
    left = (np.square(whitened).sum(axis=1, keepdims=True) - explained) / freedom
    return np.asarray((explained / 2) / np.maximum(left, 1.0 if known else np.finfo(float).tiny))


@lru_cache(maxsize=32)
def _normal(count: int) -> Floats:
    return np.random.default_rng(count).standard_normal((_DRAWS, count))
