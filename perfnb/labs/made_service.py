"""The service of lab 9: a log of one morning, and a server on a simulated clock.

All times are planted, so that no clock decides what the lab teaches. None of them were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfnb.errors import LabError

#: Cards per second in each of the ten minutes from nine o'clock.
CARDS_PER_S = (3.0, 5.0, 7.0, 9.2, 9.6, 9.4, 8.0, 6.0, 4.0, 3.0)
#: Seconds of one pass of the model over a whole card, and fewest and most characters of an answer.
PASS_S, FEWEST, MOST = 0.00625, 8, 24


def monday(times_as_many: int = 1) -> pd.DataFrame:
    """The log of ten minutes: a row per card, in the order of arrival.

    The server answers one card after the other, each with one full pass of the model per character.

    Parameters
    ----------
    times_as_many : int
        How many times as many cards arrive as on the real Monday.

    Returns
    -------
    DataFrame
        ``arrived_s`` in seconds after nine o'clock; ``characters`` of the answer; ``service_s``, the time that the
        server spent on this card; ``answered_s`` in seconds after nine o'clock.
    """
    generator = np.random.default_rng(9)
    counts = generator.poisson(60.0 * times_as_many * np.array(CARDS_PER_S))
    arrived = [np.sort(generator.uniform(60.0 * m, 60.0 * (m + 1), count)) for m, count in enumerate(counts)]
    arrived_s = np.concatenate(arrived).round(4)
    characters = generator.integers(FEWEST, MOST, len(arrived_s), endpoint=True)
    service_s = PASS_S * characters
    return pd.DataFrame(
        {
            "arrived_s": arrived_s,
            "characters": characters,
            "service_s": service_s,
            "answered_s": arrived_s + queued(arrived_s.tolist(), service_s.tolist()),
        }
    )


def queued(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Latencies of one server that takes one request after the other, in the order of arrival."""
    free, found = 0.0, []
    for arrived, service in zip(arrivals, services, strict=True):
        free = max(free, arrived) + service
        found.append(free - arrived)
    return found


class PlantedService:
    """A server on a simulated clock, whose requests take the given seconds. Only waiting and serving take time."""

    def __init__(self, services: Sequence[float]) -> None:
        self._services = list(services)
        self._now = 0.0
        self.served = 0

    def now(self) -> float:
        """Seconds on the simulated clock."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Wait until a moment of the simulated clock; returns at once if it has passed."""
        self._now = max(self._now, float(moment))

    def serve(self) -> None:
        """Serve the next request, and return when its answer is ready."""
        if self.served == len(self._services):
            raise LabError(f"All {self.served} requests have been served; call serve() once for each.")
        self._now += self._services[self.served]
        self.served += 1
