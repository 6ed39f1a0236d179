"""Fit a power law to the growth of a cost with size, predict costs, and check whether one law fits all sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats, Samples

#: The scatter that is allowed for each size in addition to the measured noise, for example because of padding.
_GRANTED = 0.03
#: The minimum scatter, even for an exact law, because no prediction is more accurate than this.
_LEAST_SCATTER = 1e-9
#: The weights depend on the residuals, and the residuals depend on the weights. Both converge within a few rounds.
_ROUNDS = 4
#: A constant is added if the p-value is below the first number and there are at least as many sizes as the second.
_CONSTANT, _FEWEST_FOR_CONSTANT = 0.01, 5
#: A break is reported if its p-value is below the first number and it changes a prediction by more than the second.
_BREAK, _RELEVANT = 0.05, 0.05
#: The minimum number of sizes on each side of a break.
_SIDE = 2
#: Keeps ratios finite if a law fits exactly, and jumps finite if lines are far apart.
_LEAST_SQUARES, _GREATEST_RISE = 1e-200, 700.0


class PredictedCost(NamedTuple):
    """The predicted median of a new measurement at a size, with its prediction interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Break:
    """A change in the law between two neighbouring sizes.

    Attributes
    ----------
    below, above : float
        The sizes on either side.
    jump : float
        The cost according to the law above, divided by the cost according to the law below, midway between the two
        sizes, minus 1. For example, 0.4 is 40 % more.
    exponent_below, exponent_above : float
        The exponents on either side.
    p_value : float
        The p-value of the hypothesis that a single law holds.
    """

    below: float
    above: float
    jump: float
    exponent_below: float
    exponent_above: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"A single law does not fit: the exponent is {self.exponent_below:.2g} up to size {self.below:.4g} and "
            f"{self.exponent_above:.2g} from {self.above:.4g}, with a jump of {100 * self.jump:+.0f} % in between."
        )


@dataclass(frozen=True)
class PowerLaw:
    """cost = overhead + factor * size ^ exponent, fitted to one median per size.

    Attributes
    ----------
    sizes, measured : tuple of float
        The fitted data, in ascending order of size.
    exponent, factor, overhead : float
        The parameters of the law. The overhead is 0 unless the data shows that there is one.
    exponent_ci : tuple of float or None
        The exponent's 95 % interval, or ``None`` if there are too few sizes.
    broken : Break or None
        The place where the law changes, or ``None`` if a single law fits all sizes.
    """

    sizes: tuple[float, ...]
    measured: tuple[float, ...]
    exponent: float
    factor: float
    overhead: float
    exponent_ci: tuple[float, float] | None
    broken: Break | None
    _fit: _Fit

    @property
    def warning(self) -> str | None:
        """A warning that describes where the law changes, or ``None`` if a single law fits all sizes."""
        return None if self.broken is None else str(self.broken)

    @cached_property
    def fit(self) -> pd.DataFrame:
        """One row per size: the measured and predicted costs, and the residual as a share of the prediction."""
        predicted = np.exp(self._fit.logs(np.log(self.sizes)))
        rows = pd.DataFrame({"size": self.sizes, "measured": self.measured, "predicted": predicted})
        return rows.assign(residual=rows["measured"] / rows["predicted"] - 1).astype("float64")

    def predict(self, size: float, confidence: float = 0.95) -> PredictedCost:
        """Predict the cost at a size, with an interval for a new median at that size.

        The interval becomes wider outside the measured range. The t interval of a prediction by (weighted) least
        squares (Draper and Smith, Applied Regression Analysis) combines the scatter of single sizes around the law with
        the uncertainty of the law at this size. The interval is infinite if there are no more sizes than unknowns.
        """
        if not size > 0:
            raise ValueError(f"A size must be above 0, not {size!r}.")
        from scipy.special import stdtrit

        place = np.array([math.log(size)])
        middle = float(self._fit.logs(place)[0])
        if self._fit.freedom < 1:
            return PredictedCost(math.exp(middle), 0.0, math.inf)
        half = float(stdtrit(self._fit.freedom, (1 + confidence) / 2) * self._fit.deviation(place)[0])
        return PredictedCost(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def fit_power_law(sizes: Samples, costs: Samples, noise: Samples | None = None, confidence: float = 0.95) -> PowerLaw:
    """Fit a power law by least squares on the logarithms, which weights each size by its relative deviation.

    A constant overhead is added if it improves the fit by more than chance would in 99 of 100 cases (F test of nested
    models).

    Parameters
    ----------
    sizes, costs : sequence of float
        The sizes, and one cost, such as the median time, for each size. All values must be above 0, and there must be
        at least two different sizes.
    noise : sequence of float, optional
        The relative standard error of each cost (`intervals.relative_standard_error`). Another 3 % is added for other
        differences between sizes, such as alignment and padding. Sizes are weighted by this error and by any additional
        scatter, which is the same for each size. Omit it for costs that are counted, such as FLOPs.
    """
    from scipy.special import fdtrc, stdtrit

    x, y, errors = _checked(sizes, costs, noise)
    fit = _fitted(x, y, errors)
    broken = _find_break(x, y, fit, errors)
    if len(x) >= _FEWEST_FOR_CONSTANT and fit.unknowns[1] > 0 and _bends_upwards(x, fit):
        # The fit starts with a constant of one third of the smallest cost.
        richer = _fitted(x, y, errors, np.append(fit.unknowns, y.min() - 1.0))
        left = float(np.sum((richer.residuals / fit.sigma) ** 2))
        gain = max(0.0, fit.squares - left) / max(left / richer.freedom, _LEAST_SQUARES)
        # A constant below a thousandth of the smallest cost is ignored, and so is a constant if the cost decreases.
        there = richer.unknowns[2] >= y.min() - math.log(1000) and richer.unknowns[1] > 0
        if there and fdtrc(1, richer.freedom, gain) < _CONSTANT and _find_break(x, y, richer, errors) is None:
            fit, broken = richer, None
    level, exponent, *constant = map(float, fit.unknowns)
    exponent_ci = None
    if fit.freedom >= 1:
        half = float(stdtrit(fit.freedom, (1 + confidence) / 2) * np.sqrt(fit.covariance[1, 1]))
        exponent_ci = (exponent - half, exponent + half)
    return PowerLaw(
        tuple(np.exp(x).tolist()),
        tuple(np.exp(y).tolist()),
        exponent,
        math.exp(level - exponent * fit.centre),
        math.exp(constant[0]) if constant else 0.0,
        exponent_ci,
        broken,
        fit,
    )


def _bends_upwards(x: Floats, fit: _Fit) -> bool:
    """Return whether the residuals have the curvature that a constant added to the power would cause."""
    if len(np.unique(x)) < 3:
        return False
    # Dividing by the spread keeps each power from being negligible compared with the others.
    place = (x - fit.centre) / x.std()
    return bool(np.polyfit(place, fit.residuals, 2, w=1 / fit.sigma)[0] > 0)


@dataclass(frozen=True)
class _Fit:
    """A law fitted to logarithms."""

    #: The mean of the log sizes. Subtracting it makes the unknowns independent and the sums well conditioned.
    centre: float
    #: The log of the power's cost at the centre, the exponent, and the log of the constant if there is one.
    unknowns: Floats
    #: The standard deviation of each log cost, or 1 for all of them if it is unknown.
    sigma: Floats
    residuals: Floats
    #: The covariance of the unknowns.
    covariance: Floats
    #: The standard deviation of individual sizes around the law.
    scatter: float

    @property
    def freedom(self) -> int:
        return len(self.residuals) - len(self.unknowns)

    @property
    def squares(self) -> float:
        """The weighted sum of squared residuals."""
        return float(np.sum((self.residuals / self.sigma) ** 2))

    def logs(self, x: Floats) -> Floats:
        """Return the log cost at the given log sizes."""
        return _logs(self.unknowns, x - self.centre)

    def slopes(self, x: Floats) -> Floats:
        """Return the derivatives of the log cost with respect to the unknowns, with one row per log size."""
        return _slopes(self.unknowns, x - self.centre)

    def deviation(self, x: Floats) -> Floats:
        """Return the standard deviation of a new log cost from its prediction."""
        rows = self.slopes(x)
        return np.asarray(np.sqrt(self.scatter**2 + np.einsum("ij,jk,ik->i", rows, self.covariance, rows)))


def _logs(unknowns: Floats, x: Floats) -> Floats:
    power = unknowns[0] + unknowns[1] * x
    return np.asarray(power if len(unknowns) == 2 else np.logaddexp(power, unknowns[2]))


def _slopes(unknowns: Floats, x: Floats) -> Floats:
    share = np.exp(unknowns[0] + unknowns[1] * x - _logs(unknowns, x))
    return np.column_stack([share, share * x, 1 - share])[:, : len(unknowns)]


def _fitted(x: Floats, y: Floats, errors: Floats | None, start: Floats | None = None) -> _Fit:
    """Fit a straight line to the logarithms or, if `start` is given, a power plus a constant.

    If the errors of the log costs are known, sizes are weighted by these errors and by the scatter that they do not
    explain.
    """
    centre = float(x.mean())
    sigma = np.ones(len(x)) if errors is None else errors
    unknowns = _solved(x - centre, y, sigma, start)
    for _ in range(_ROUNDS):
        if errors is None:
            break
        sigma = _with_scatter(y - _logs(unknowns, x - centre), len(unknowns), errors)
        unknowns = _solved(x - centre, y, sigma, None if start is None else unknowns)
    residuals = y - _logs(unknowns, x - centre)
    rows = _slopes(unknowns, x - centre) / sigma[:, None]
    freedom = len(x) - len(unknowns)
    # Known errors are a lower bound. Without them, only the residuals are available.
    variance = float(np.sum((residuals / sigma) ** 2)) / freedom if freedom > 0 else 0.0
    variance = variance if errors is None else max(1.0, variance)
    scatter = max(_LEAST_SCATTER, float(np.sqrt(variance) * np.median(sigma)))
    return _Fit(centre, unknowns, sigma, residuals, np.asarray(np.linalg.pinv(rows.T @ rows) * variance), scatter)


def _solved(x: Floats, y: Floats, sigma: Floats, start: Floats | None) -> Floats:
    from scipy.optimize import least_squares

    def deviations(unknowns: Floats) -> Floats:
        return np.asarray((_logs(unknowns, x) - y) / sigma)

    def derivatives(unknowns: Floats) -> Floats:
        return np.asarray(_slopes(unknowns, x) / sigma[:, None])

    if start is None:
        return np.asarray(np.polyfit(x, y, 1, w=1 / sigma)[::-1])
    return np.asarray(least_squares(deviations, start, jac=derivatives, x_scale="jac", max_nfev=100).x)


def _with_scatter(residuals: Floats, unknowns: int, errors: Floats) -> Floats:
    """Return the standard deviation of each size.

    It is the measurement error plus a scatter around the law that is the same for all sizes. The scatter is chosen so
    that the weighted squares equal the degrees of freedom (Mandel and Paule, Analytical Chemistry 42, 1970).
    """
    from scipy.optimize import brentq

    freedom = len(residuals) - unknowns

    def excess(scatter: float) -> float:
        return float(np.sum(residuals**2 / (errors**2 + scatter))) - freedom

    if freedom < 1 or excess(0.0) <= 0:
        return errors
    return np.asarray(np.sqrt(errors**2 + brentq(excess, 0.0, float(np.sum(residuals**2)) / freedom, xtol=1e-18)))


def _find_break(x: Floats, y: Floats, fit: _Fit, errors: Floats | None) -> Break | None:
    """Return the place where two laws fit significantly better than one (Chow, Econometrica 28, 1960).

    The result is ``None`` if there is no such place. At each place with at least two different sizes on both sides, a
    step and a change of slope are added to the law. The best place is tested at a level divided by the number of places
    (Bonferroni). A smooth curve in the logarithms is reported in the same way. The remaining deviation after fitting
    two laws is treated as chance, and as at least as large as the errors if they are known.
    """
    places = [
        place
        for place in range(_SIDE, len(x) - _SIDE + 1)
        if x[place] > x[place - 1] and min(len(np.unique(x[:place])), len(np.unique(x[place:]))) >= _SIDE
    ]
    sigma = fit.sigma if errors is None else errors
    rows = fit.slopes(x) / sigma[:, None]
    freedom = len(x) - rows.shape[1] - 2
    if not places or freedom < 1:
        return None
    law = rows @ np.linalg.pinv(rows)
    left = fit.residuals / sigma
    left = left - law @ left
    tested = []
    for place in places:
        step = np.column_stack([x >= x[place], (x >= x[place]) * (x - x[place])]) / sigma[:, None]
        added = np.linalg.svd(step - law @ step, full_matrices=False)[0]
        tested.append((_p_of_two(added.T @ left, left, freedom, errors is not None), place, added))
    p_value, place, added = min(tested, key=lambda found: found[0])
    p_value = min(1.0, p_value * len(places))
    change = added @ (added.T @ left) * sigma
    if p_value > _BREAK or np.abs(change).max() < _RELEVANT:
        return None
    below, above = np.polyfit(x[:place], y[:place], 1), np.polyfit(x[place:], y[place:], 1)
    middle = (x[place - 1] + x[place]) / 2
    # The distance between lines through two points may overflow a float.
    rise = min(float(np.polyval(above, middle) - np.polyval(below, middle)), _GREATEST_RISE)
    sizes = np.exp(x[place - 1 : place + 1])
    return Break(float(sizes[0]), float(sizes[1]), math.expm1(rise), float(below[0]), float(above[0]), p_value)


def _p_of_two(gained: Floats, whole: Floats, freedom: int, known: bool) -> float:
    """Return the p-value of two additional unknowns that explain `gained` of the residuals `whole`.

    Both arguments are in units of the standard deviation. If the standard deviation is unknown, this is the F test. If
    a lower bound is known, the gain is divided by at least 1. The p-value is then averaged, in closed form, over the
    cases where chi squared divided by its degrees of freedom is below 1 and where it is not.
    """
    from scipy.special import gammainc, gammaincc

    explained = float(gained @ gained)
    rest = max(float(whole @ whole) - explained, 0.0) / freedom
    statistic = explained / 2 / max(rest, 1.0 if known else _LEAST_SQUARES)
    tail = math.exp(-freedom / 2 * math.log1p(2 * statistic / freedom))
    if not known:
        return tail
    below = math.exp(-statistic) * float(gammainc(freedom / 2, freedom / 2))
    return below + tail * float(gammaincc(freedom / 2, freedom / 2 + statistic))


def _checked(sizes: Samples, costs: Samples, noise: Samples | None) -> tuple[Floats, Floats, Floats | None]:
    n, cost = np.asarray(sizes, dtype=float), np.asarray(costs, dtype=float)
    if len(n) != len(cost) or (noise is not None and len(noise) != len(n)):
        raise ValueError("There must be one cost for each size, and one noise value if noise is given.")
    if not (np.isfinite(n).all() and np.isfinite(cost).all() and (n > 0).all() and (cost > 0).all()):
        raise ValueError("Sizes and costs must be finite and above 0.")
    if len(np.unique(n)) < 2:
        raise ValueError("A law needs at least two different sizes.")
    order = np.argsort(n, kind="stable")
    x, y = np.log(n[order]), np.log(cost[order])
    return x, y, None if noise is None else np.hypot(np.asarray(noise, dtype=float)[order], _GRANTED)
