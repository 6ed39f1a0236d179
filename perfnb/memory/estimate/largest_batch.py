"""The largest batch that fits, found by few questions to whoever knows what a batch takes."""

from __future__ import annotations

from collections.abc import Callable

#: Batches larger than this are not asked for.
MOST = 2**40


def largest_fitting(need: Callable[[int], float], limit: float, start: int) -> int | None:
    """The largest batch size whose need is within `limit`.

    Parameters
    ----------
    need : callable
        Bytes that a batch of so many samples needs; nearly a straight line, and never falling.
    limit : float
        Bytes that there are.
    start : int
        A batch size to begin with.

    Returns
    -------
    int or None
        0 where not even one sample fits; ``None`` where every batch does.
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
            # A line through two points has led nowhere new: halve.
            guess = (fits + too_large) // 2
        known[guess] = need(guess)
        if known[guess] <= limit:
            fits = guess
        else:
            too_large = guess
    return fits


def _guess(known: dict[int, float], limit: float, least: int) -> int | None:
    """Where the line through the two largest sizes that are known meets the limit."""
    sizes = sorted(size for size, bytes_ in known.items() if bytes_ < float("inf"))[-2:]
    if len(sizes) < 2:
        return None
    slope = (known[sizes[1]] - known[sizes[0]]) / (sizes[1] - sizes[0])
    if slope <= 0:
        return None
    # One more than what should fit: its failure, with what is below it, settles the question soonest.
    meets = int(sizes[1] + (limit - known[sizes[1]]) // slope)
    return min(MOST, meets if meets not in known and meets >= least else max(least, meets + 1))
