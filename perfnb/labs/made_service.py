"""The service in lab 9, which consists of one morning's log and a server on a simulated clock.

All times are made up and none were measured, so the lab teaches the same lesson on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfnb.errors import LabError

#: Cards per second in each of the ten minutes after nine o'clock.
CARDS_PER_S = (3.0, 5.0, 7.0, 9.2, 9.6, 9.4, 8.0, 6.0, 4.0, 3.0)
#: Seconds that the model takes for one pass over a whole card, and the shortest and longest answers in characters.
PASS_S, FEWEST, MOST = 0.00625, 8, 24


def monday(times_as_many: int = 1) -> pd.DataFrame:
    """Return the log of ten minutes, with one row per card in the order of arrival.

    The server answers the cards one after the other. Each answer takes one full pass of the model per character.

    Parameters
    ----------
    times_as_many : int
        The factor by which the number of cards is larger than on the real Monday.

    Returns
    -------
    DataFrame
        The columns are ``arrived_s`` and ``answered_s``, in seconds after nine o'clock, ``characters``, the length of
        the answer, and ``service_s``, the time that the server spent on this card.
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
    """Return the latencies of requests that a single server processes one by one, in the order of arrival."""
    free, found = 0.0, []
    for arrived, service in zip(arrivals, services, strict=True):
        free = max(free, arrived) + service
        found.append(free - arrived)
    return found


class PlantedService:
    """A server on a simulated clock, with a given service time in seconds for each request.

    Only waiting and serving take time.
    """

    def __init__(self, services: Sequence[float]) -> None:
        self._services = list(services)
        self._now = 0.0
        self.served = 0

    def now(self) -> float:
        """Return the time on the simulated clock, in seconds."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Wait until a point in simulated time. Return immediately if it has already passed."""
        self._now = max(self._now, float(moment))

    def serve(self) -> None:
        """Serve the next request, and return when its answer is ready."""
        if self.served == len(self._services):
            raise LabError(f"All {self.served} requests have been served. Call serve() only once per request.")
        self._now += self._services[self.served]
        self.served += 1
