"""How a cost grows with size: a power law, its exponent, its predictions, and whether one law holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.stats.breaks import Break, find_break
from perfnb.stats.intervals import Floats, Samples
from perfnb.stats.log_fit import Fit, fit_constant_and_power, fit_power

#: Deviation of its own that each size is granted beside the measured noise: sizes differ in alignment and in padding.
_GRANTED = 0.03
#: Below this p-value a constant beside the power is taken to be there.
_CONSTANT = 0.01
#: Fewest sizes by which a constant can be told from a power.
_FEWEST_FOR_CONSTANT = 5
#: What is left where a law fits to the last digit: a ratio to it still is a float.
_LEAST_SQUARES = 1e-200


class Prediction(NamedTuple):
    """What a new measurement at a size will give: its median, and an interval that holds it in 95 of 100 cases."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PowerLaw:
    """cost = overhead + factor * size ^ exponent, fitted to one median a size.

    Attributes
    ----------
    sizes, measured : tuple of float
        What was fitted, by ascending size.
    exponent, factor, overhead : float
        Of the law; the overhead is 0 where the data show none.
    exponent_ci : tuple of float or None
        95 % interval of the exponent; ``None`` where there are too few sizes for one.
    broken : Break or None
        Where the law changes, if one law does not hold.
    """

    sizes: tuple[float, ...]
    measured: tuple[float, ...]
    exponent: float
    factor: float
    overhead: float
    exponent_ci: tuple[float, float] | None
    broken: Break | None
    _fit: Fit

    @property
    def holds(self) -> bool:
        """Whether the residuals are those of one law."""
        return self.broken is None

    @property
    def warning(self) -> str | None:
        """A sentence that says where one law does not hold; ``None`` where it does."""
        return None if self.broken is None else str(self.broken)

    @cached_property
    def fit(self) -> pd.DataFrame:
        """One row a size: measured, predicted, and the residual as a share of what is predicted."""
        predicted = np.exp(self._fit.logs(np.log(self.sizes)))
        measured = np.array(self.measured)
        columns = {
            "size": self.sizes,
            "measured": measured,
            "predicted": predicted,
            "residual": measured / predicted - 1,
        }
        return pd.DataFrame(columns).astype("float64")

    def predict(self, size: float, confidence: float = 0.95) -> Prediction:
        """Cost at a size, with an interval for a new median there, which widens outside the range of sizes.

        The t interval of a prediction by (weighted) least squares (Draper and Smith, Applied Regression Analysis): the
        scatter of single sizes around the law, and the uncertainty of the law at this size. It is infinite where there
        are no more sizes than unknowns.
        """
        if not size > 0:
            raise ValueError(f"A size is above 0, not {size!r}.")
        from scipy.special import stdtrit

        place = np.array([math.log(size)])
        middle = float(self._fit.logs(place)[0])
        if self._fit.freedom < 1:
            return Prediction(math.exp(middle), 0.0, math.inf)
        half = float(stdtrit(self._fit.freedom, (1 + confidence) / 2) * self._fit.deviation(place)[0])
        return Prediction(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def fit_power_law(sizes: Samples, costs: Samples, noise: Samples | None = None, confidence: float = 0.95) -> PowerLaw:
    """Fit a power law by least squares of the logarithms, so that each size counts by its relative deviation.

    A constant overhead is added where it makes the deviations smaller than chance does in 99 of 100 cases (F test of
    nested models).

    Parameters
    ----------
    sizes, costs : sequence of float
        One cost, such as the median time, at each size; both above 0, at least two different sizes.
    noise : sequence of float, optional
        Relative standard error of each cost (`intervals.relative_standard_error`), to which 3 % are added for what
        sizes have of their own (alignment, padding). Sizes are weighted by it and by what the costs deviate beyond it,
        which is the same for each size. Leave it out for costs that are counted, such as FLOPs.
    """
    from scipy.special import fdtrc, stdtrit

    x, y, errors = _checked(sizes, costs, noise)
    fit = fit_power(x, y, errors)
    broken = find_break(x, y, fit, errors)
    if len(x) >= _FEWEST_FOR_CONSTANT and _bends_like_a_constant(x, fit):
        richer = fit_constant_and_power(x, y, errors, fit)
        if richer is not None:
            left = richer.squares_by(fit.weights)
            gain = max(0.0, fit.squares - left) / max(left / richer.freedom, _LEAST_SQUARES)
            shown = fdtrc(1, richer.freedom, gain) < _CONSTANT
            if shown and find_break(x, y, richer, errors) is None:
                fit, broken = richer, None
    exponent_ci = None
    if fit.freedom >= 1:
        half = float(stdtrit(fit.freedom, (1 + confidence) / 2)) * fit.exponent_error
        exponent_ci = (fit.exponent - half, fit.exponent + half)
    return PowerLaw(
        tuple(np.exp(x).tolist()),
        tuple(np.exp(y).tolist()),
        fit.exponent,
        fit.factor,
        fit.overhead,
        exponent_ci,
        broken,
        fit,
    )


def _bends_like_a_constant(x: Floats, fit: Fit) -> bool:
    """Whether the residuals have any of the shape that a small constant gives them: the score test at 1 in 10."""
    from scipy.special import fdtrc

    root = np.sqrt(fit.weights)
    shape = np.exp(-(fit.logs(x) - fit.logs(x).min()))
    rows = fit.gradient(x) * root[:, None]
    residuals = fit.residuals * root
    direction = shape * root - rows @ np.linalg.lstsq(rows, shape * root, rcond=None)[0]
    length = float(direction @ direction)
    if length < 1e-12 * float(root @ root):
        return False
    along = float(direction @ residuals) / math.sqrt(length)
    left = max(fit.squares - along**2, _LEAST_SQUARES) / (fit.freedom - 1)
    return along > 0 and bool(fdtrc(1, fit.freedom - 1, along**2 / left) < 0.1)


def _checked(sizes: Samples, costs: Samples, noise: Samples | None) -> tuple[Floats, Floats, Floats | None]:
    n, cost = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    if len(n) != len(cost) or (noise is not None and len(noise) != len(n)):
        raise ValueError("There must be one cost, and one noise if any, for each size.")
    if not (np.isfinite(n).all() and np.isfinite(cost).all() and (n > 0).all() and (cost > 0).all()):
        raise ValueError("Sizes and costs must be finite and above 0.")
    if len(np.unique(n)) < 2:
        raise ValueError("A law needs at least two different sizes.")
    order = np.argsort(n, kind="stable")
    x, y = np.log(n[order]), np.log(cost[order])
    return x, y, None if noise is None else np.hypot(np.asarray(noise, dtype=float)[order], _GRANTED)
