"""The largest batch that fits, found with few evaluations."""

from __future__ import annotations

from collections.abc import Callable

#: Largest batch tried.
MOST = 2**40


def largest_fitting(need: Callable[[int], float], limit: float, start: int) -> int | None:
    """The largest batch size whose need is within `limit`.

    Parameters
    ----------
    need : callable
        Bytes needed by a batch of so many samples; nearly linear, and never decreasing.
    limit : float
        Bytes available.
    start : int
        Batch size to start from.

    Returns
    -------
    int or None
        0 if not even one sample fits; ``None`` if every batch does.
    """
    fits, known = 0, {start: need(start)}
    if known[start] <= limit:
        fits, size = start, start
        while True:
            size = _guess(known, limit, size + 1) or 2 * size
            known[size] = need(size)
            if known[size] > limit:
                too_large = size
                break
            fits = size
            if size >= MOST:
                return None
    else:
        too_large = start
    while too_large - fits > 1:
        guess = _guess(known, limit, fits + 1)
        if len(known) % 3 == 0 or guess is None or not fits < guess < too_large:
            # The line through two points gave nothing new: bisect.
            guess = (fits + too_large) // 2
        known[guess] = need(guess)
        if known[guess] <= limit:
            fits = guess
        else:
            too_large = guess
    return fits


def _guess(known: dict[int, float], limit: float, least: int) -> int | None:
    """Where the line through the two largest known sizes meets the limit."""
    sizes = sorted(size for size, bytes_ in known.items() if bytes_ < float("inf"))[-2:]
    if len(sizes) < 2:
        return None
    slope = (known[sizes[1]] - known[sizes[0]]) / (sizes[1] - sizes[0])
    if slope <= 0:
        return None
    # One more than what should fit: if it fails and the size below fits, the search is over.
    meets = int(sizes[1] + (limit - known[sizes[1]]) // slope)
    return min(MOST, meets if meets not in known and meets >= least else max(least, meets + 1))
