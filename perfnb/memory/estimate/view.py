"""How a memory estimate is shown: one line, a text table, an HTML table."""

from __future__ import annotations

from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header


def estimate_line(estimate: Any) -> str:
    """The estimate in one line."""
    peak = f"peak {fmt.size(estimate.peak_bytes)} in {escape.plain(estimate.peak_phase, 20)}"
    return f"{escape.plain(estimate.model, 40)}: {peak}, {_step(estimate)}"


def estimate_text(estimate: Any) -> str:
    """The estimate as text: the peak, and each category at the peak and at most."""
    rows = [f"{mark.word:<16} {peak:>10} {share:>6} {most:>10}" for mark, peak, share, most in _rows(estimate)]
    caveat = [escape.plain(estimate.caveat, 300)] if estimate.caveat else []
    return "\n".join([_headline(estimate), f"{'':<16} {'at peak':>10} {'share':>6} {'at most':>10}", *rows, *caveat])


def estimate_html(estimate: Any) -> str:
    """The estimate as an HTML table without scripts."""
    rows = [[tables.keyed(mark), *map(escape.html, cells)] for mark, *cells in _rows(estimate)]
    about = f"memory estimate · {_step(estimate)} · {escape.plain(estimate.device, 20)}"
    caveat = [escape.plain(estimate.caveat, 300)] if estimate.caveat else []
    words = header(escape.plain(estimate.model, 40), about, fmt.capital(_peak(estimate)), *caveat)
    return framed(words + tables.table("Memory by category", ["category", "at peak", "share", "at most"], rows))


def _headline(estimate: Any) -> str:
    about = f"{_step(estimate)} · {escape.plain(estimate.device, 20)}"
    return f"{escape.plain(estimate.model, 40)} · {about} · estimated {_peak(estimate)}"


def _peak(estimate: Any) -> str:
    at = f" ({escape.plain(estimate.peak_op, 60)})" if estimate.peak_op else ""
    return f"peak {fmt.size(estimate.peak_bytes)} in {escape.plain(estimate.peak_phase, 20)}{at}"


def _step(estimate: Any) -> str:
    size = "" if estimate.batch_size is None else f" with a batch of {estimate.batch_size:,}"
    if not estimate.training:
        return f"inference{size}"
    return f"training{size}" + (f" and {escape.plain(estimate.optimizer, 40)}" if estimate.optimizer else "")


def _rows(estimate: Any) -> list[tuple[palette.Mark, str, str, str]]:
    whole = estimate.peak_bytes or 1
    shown = []
    for name, mark in palette.CATEGORIES.items():
        peak, most = estimate.by_category[name], getattr(estimate, name, estimate.by_category[name])
        if peak or most:
            shown.append((mark, fmt.size(peak), fmt.share(peak / whole), fmt.size(most)))
    return shown
