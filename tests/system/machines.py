"""Step times of machines that do not exist, whose truth is known: how steps scatter, and how a machine drifts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Samples = Callable[[np.random.Generator, int, int], np.ndarray]
Load = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def autoregressive(rng: np.random.Generator, runs: int, steps: int, rho: float) -> np.ndarray:
    """Standard normal values that hold on to a part of the one before; one row a run."""
    shocks = rng.standard_normal((runs, steps + 100)) * np.sqrt(1 - rho**2)
    from scipy.signal import lfilter  # takes more than a second to import

    return lfilter([1.0], [1.0, -rho], shocks, axis=1)[:, 100:]


def bimodal(rng: np.random.Generator, runs: int, steps: int) -> np.ndarray:
    slow = rng.random((runs, steps)) < 0.4
    return np.where(slow, 1.3, 1.0) * np.exp(rng.normal(0, 0.02, (runs, steps)))


def spiky(rng: np.random.Generator, runs: int, steps: int) -> np.ndarray:
    stalls = np.where(rng.random((runs, steps)) < 0.1, rng.exponential(5.0, (runs, steps)), 0.0)
    return np.exp(rng.normal(0, 0.02, (runs, steps))) + stalls


#: By name: a generator of step times (one row a run).
SAMPLES: dict[str, Samples] = {
    "lognormal": lambda rng, runs, steps: np.exp(rng.normal(0, 0.5, (runs, steps))),
    "bimodal": bimodal,
    "correlated": lambda rng, runs, steps: np.exp(0.1 * autoregressive(rng, runs, steps, 0.6)),
    "spiky": spiky,
}


def sinusoidal(rng: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    return 1 + 0.1 * np.sin(2 * np.pi * (seconds / 7 + rng.random((len(seconds), 1))))


def linear(rng: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    return 1 + rng.uniform(-0.15, 0.15, (len(seconds), 1)) * seconds / seconds.max()


def on_and_off(rng: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    """Return a neighbour that works for 3 s and rests for 3 s."""
    return np.where((seconds / 3 + 2 * rng.random((len(seconds), 1))) % 2 < 1, 1.3, 1.0)


#: By name: how much slower the machine is at each second (one row a run).
LOADS: dict[str, Load] = {"sinusoidal": sinusoidal, "linear": linear, "on and off": on_and_off}


def steps(rng: np.random.Generator, runs: int, count: int, load: Load, step_s: float) -> np.ndarray:
    """Return times of equal steps one after the other: the machine's load, a scatter of 1.5 %, and a stall now and
    then.
    """
    seconds = np.broadcast_to(np.arange(count) * step_s, (runs, count))
    stalls = np.where(rng.random((runs, count)) < 0.02, rng.exponential(1.0, (runs, count)), 0.0)
    return step_s * load(rng, seconds) * (np.exp(rng.normal(0, 0.015, (runs, count))) + stalls)


def interleaved(rng: np.random.Generator, times: np.ndarray, ratio: float = 1.0) -> np.ndarray:
    """Log ratios where each two neighbouring steps are a and b in random order, and b takes `ratio` times as long."""
    pairs = np.log(times).reshape(len(times), -1, 2)
    first = rng.integers(0, 2, pairs.shape[:2])[..., None]
    a, b = np.take_along_axis(pairs, first, 2), np.take_along_axis(pairs, 1 - first, 2)
    return (b - a)[..., 0] + np.log(ratio)
