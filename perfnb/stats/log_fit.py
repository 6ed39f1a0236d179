"""Least squares of log cost on log size: a power, and a power beside a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfnb.stats.intervals import Floats

#: Scatter that even an exact law is granted: no prediction is better than this share.
_LEAST_SCATTER = 1e-9
#: The weights depend on the residuals, and these on the weights: a few turns settle both.
_TURNS = 4


@dataclass(frozen=True)
class Fit:
    """A fitted law, in logarithms.

    Attributes
    ----------
    factor, exponent, overhead : float
        cost = overhead + factor * size ^ exponent.
    logs : callable
        Log cost at log sizes.
    gradient : callable
        Its derivatives by the unknowns: one row a size.
    covariance : ndarray
        Of the unknowns; the exponent is the second.
    scatter : float
        Standard deviation of single sizes around the law.
    weights : ndarray
        One over the variance of each size, up to a common factor.
    squares : float
        Weighted sum of squared residuals.
    freedom : int
        Sizes less unknowns.
    """

    factor: float
    exponent: float
    overhead: float
    logs: Callable[[Floats], Floats]
    gradient: Callable[[Floats], Floats]
    covariance: Floats
    scatter: float
    weights: Floats
    squares: float
    residuals: Floats
    freedom: int

    @property
    def exponent_error(self) -> float:
        """Standard error of the exponent."""
        return float(np.sqrt(self.covariance[1, 1]))

    def deviation(self, x: Floats) -> Floats:
        """Standard deviation of a new log cost at log sizes from what is predicted."""
        rows = self.gradient(x)
        law = np.einsum("ij,jk,ik->i", rows, self.covariance, rows)
        return np.asarray(np.sqrt(self.scatter**2 + law))

    def squares_by(self, weights: Floats) -> float:
        """Sum of squared residuals with the weights of another fit."""
        return float(weights @ self.residuals**2)


def fit_power(x: Floats, y: Floats, errors: Floats | None) -> Fit:
    """Straight line through logarithms; by weights where the errors of the logarithms are known."""
    # The centre of the sizes makes the unknowns independent and keeps the sums well conditioned.
    centre = float(x.mean())

    def gradient(at: Floats) -> Floats:
        return np.column_stack([np.ones_like(at), at - centre])

    def solve(weights: Floats) -> Floats:
        root = np.sqrt(weights)
        return np.asarray(np.linalg.lstsq(gradient(x) * root[:, None], y * root, rcond=None)[0])

    weights = np.ones(len(x)) if errors is None else 1 / errors**2
    unknowns = solve(weights)
    for _ in range(_TURNS):
        weights = _weights(y - gradient(x) @ unknowns, len(unknowns), errors)
        unknowns = solve(weights)
    level, exponent = unknowns

    def logs(at: Floats) -> Floats:
        return np.asarray(level + exponent * (at - centre))

    factor = float(np.exp(level - exponent * centre))
    return _fitted(factor, float(exponent), 0.0, logs, gradient, x, y, weights, errors)


def fit_constant_and_power(x: Floats, y: Floats, errors: Floats | None, start: Fit) -> Fit | None:
    """A constant beside a power, by nonlinear least squares; ``None`` where the best constant is not above 0."""
    from scipy.optimize import least_squares

    centre = float(x.mean())

    # Unknowns: log of the power's cost at the centre, exponent, log of the constant. All are free of sign and unit.
    def curve(unknowns: Floats, at: Floats) -> Floats:
        return np.asarray(np.logaddexp(unknowns[0] + unknowns[1] * (at - centre), unknowns[2]))

    def slopes(unknowns: Floats, at: Floats) -> Floats:
        power = unknowns[0] + unknowns[1] * (at - centre)
        share = np.exp(power - np.logaddexp(power, unknowns[2]))
        return np.column_stack([share, share * (at - centre), 1 - share])

    begin = np.array([float(start.logs(np.array([centre]))[0]), start.exponent, float(y.min()) - 1.0])

    def solve(weights: Floats, begin: Floats) -> Floats:
        root = np.sqrt(weights)

        def deviations(unknowns: Floats) -> Floats:
            return np.asarray(root * (y - curve(unknowns, x)))

        def derivatives(unknowns: Floats) -> Floats:
            return np.asarray(-root[:, None] * slopes(unknowns, x))

        return np.asarray(least_squares(deviations, begin, jac=derivatives, x_scale="jac", max_nfev=100).x)

    weights = start.weights
    unknowns = solve(weights, begin)
    for _ in range(_TURNS if errors is not None else 0):
        weights = _weights(np.asarray(y - curve(unknowns, x)), len(unknowns), errors)
        unknowns = solve(weights, unknowns)
    # A constant below a thousandth of the least cost is none, and its logarithm has no derivative to speak of.
    if unknowns[2] < y.min() - np.log(1000) or unknowns[1] <= 0:
        return None
    factor = float(np.exp(unknowns[0] - unknowns[1] * centre))
    return _fitted(
        factor,
        float(unknowns[1]),
        float(np.exp(unknowns[2])),
        lambda at: curve(unknowns, at),
        lambda at: slopes(unknowns, at),
        x,
        y,
        weights,
        errors,
    )


def _weights(residuals: Floats, unknowns: int, errors: Floats | None) -> Floats:
    """One over the variance of each size: its measurement's, and the scatter around the law that this does not explain.

    The scatter is that with which the weighted squares are as many as the degrees of freedom (Mandel and Paule,
    Analytical Chemistry 42, 1970).
    """
    freedom = len(residuals) - unknowns
    if errors is None:
        return np.ones(len(residuals))
    from scipy.optimize import brentq

    least = errors**2

    def excess(scatter: float) -> float:
        return float(np.sum(residuals**2 / (least + scatter))) - freedom

    if freedom < 1 or excess(0.0) <= 0:
        return np.asarray(1 / least)
    return np.asarray(1 / (least + brentq(excess, 0.0, float(np.sum(residuals**2)) / freedom, xtol=1e-18)))


def _fitted(
    factor: float,
    exponent: float,
    overhead: float,
    logs: Callable[[Floats], Floats],
    gradient: Callable[[Floats], Floats],
    x: Floats,
    y: Floats,
    weights: Floats,
    errors: Floats | None,
) -> Fit:
    residuals = np.asarray(y - logs(x))
    rows = gradient(x)
    squares = float(weights @ residuals**2)
    freedom = len(x) - rows.shape[1]
    # What is known of the errors is a lower bound; without it the residuals are all that is known.
    variance = squares / freedom if freedom > 0 else 0.0
    if errors is not None:
        variance = max(1.0, variance)
    covariance = np.linalg.pinv((rows * weights[:, None]).T @ rows) * variance
    scatter = max(_LEAST_SCATTER, float(np.sqrt(variance / np.median(weights))))
    return Fit(
        factor,
        exponent,
        overhead,
        logs,
        gradient,
        np.asarray(covariance),
        scatter,
        weights,
        squares,
        residuals,
        freedom,
    )
