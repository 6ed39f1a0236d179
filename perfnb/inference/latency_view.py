"""Latency alone and under load: text, static HTML with its curve, and a page."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.draw.picture import LINE, QUIET, picture_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.inference.latency import HighestRate, Latency

_INCHES = (6.6, 3.0)
#: Calls of each size that count as warm-up.
FIRST_CALLS = 2
#: The row of the curve at whose rate batchers are compared: 80 % utilization.
_BATCHED_AT = 5
_HEADS = ("rate", "utilization", "p50", "p95", "p99", "mean wait")
#: A quantile in the curve, with its colour and dashes.
_LINES = {"p50_ms": (palette.BLUE, "-"), "p95_ms": (palette.GREEN, "--"), "p99_ms": (palette.VERMILION, ":")}


def latency_line(found: Latency) -> str:
    """``p50 12.3 ms, p99 n/a, of 120 requests``."""
    known = [f"{word} {fmt.duration(found.quantile_ms(q))}" for word, q in (("p50", 0.5), ("p99", 0.99))]
    return f"{', '.join(known)}, of {len(found._service_ms):,} requests served back to back"


def latency_text(found: Latency, width: int = 100) -> str:
    """All of it as text."""
    lines = [line for sentence in _sentences(found) for line in escape.wrapped(sentence, width)]
    rows = [_HEADS, *_rows(found)]
    wide = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    lines += ["", "Under load, computed from the service times:"]
    lines += ["  ".join(cell.rjust(each) for cell, each in zip(row, wide, strict=True)) for row in rows]
    return "\n".join(lines)


def latency_html(found: Latency) -> str:
    """Sentences, the load curve as a picture, and its table."""
    first, *rest = _sentences(found)
    said = "".join(f"<p>{escape.html_sentence(sentence)}</p>" for sentence in rest)
    alt = "Latency against the rate of requests: median, 95th and 99th percentile with intervals, the wait as an area"
    rows = [[escape.html(cell) for cell in row] for row in _rows(found)]
    return framed(
        f"{header(found._name, 'latency', escape.plain(first, 2000))}{said}"
        f"<p>{picture_html(functools.partial(_draw, found=found), _INCHES, alt)}</p>"
        f"{tables.table('Under load, computed from the service times', _HEADS, rows, texts=0)}"
        f"{_batching_html(found)}"
    )


def latency_page(found: Latency) -> str:
    """A page of its own."""
    return static_page(f"Latency of {found._name}", latency_html(found))


def _sentences(found: Latency) -> list[str]:
    served = len(found._service_ms)
    several = f", {found._concurrency} at a time" if found._concurrency > 1 else ""
    quantiles = ", ".join(
        f"{word} {fmt.interval(found.quantile_ms(q), found.quantile_interval_ms(q))}"
        for word, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    )
    said = [f"Service time of {fmt.counted(served, 'request')}{several}: {quantiles}."]
    if found.quantile_ms(0.99) is None:
        said.append("p99 needs at least 299 requests: raise budget_s.")
    first = found.first_calls
    if len(first):
        slowest = fmt.duration(float(first["service_ms"].max()))
        said.append(
            f"The first calls of each size are left out as warm-up ({len(first):,}; the slowest took {slowest})."
        )
    if found._closed["size"].value_counts().max() <= FIRST_CALLS:
        said.append("No size was called more than twice, so warm-up may be in these times: raise budget_s.")
    said += [*_open_sentences(found), *_highest_sentences(found._highest), *_batching_sentences(found)]
    said += [*_token_sentences(found), *_cost_sentences(found)]
    return said


def _open_sentences(found: Latency) -> list[str]:
    run = found.open_run
    if run is None:
        return []
    from perfnb.stats.intervals import quantile, quantile_interval

    times = run.samples["latency_ms"].to_numpy(dtype=float)
    rate = f"{fmt.significant(run.rate_per_s)} requests/s"
    if run.saturated:
        return [f"At {rate} it is saturated: {run.lost:,} requests that were due could not be served in the run."]
    measured = ", ".join(
        f"{word} {fmt.interval(quantile(times, q), quantile_interval(times, q))}"
        for word, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    )
    said = [f"At {rate}, measured with {fmt.counted(len(times), 'request')}: {measured}."]
    wait, late, service = (float(run.samples[name].mean()) for name in ("wait_ms", "late_ms", "service_ms"))
    share = fmt.share((wait - late) / (wait + service))
    said.append(f"Of the mean latency, {share} is waiting for requests before it.")
    if run.late > 0.01:
        said.append(
            f"The clock started requests up to {fmt.share(run.late)} of a service time late, which is in these times."
        )
    return said


def _highest_sentences(found: HighestRate | str | None) -> list[str]:
    if found is None or isinstance(found, str):
        return [] if found is None else [found]
    word, bound = f"p{100 * found.quantile:g}", fmt.duration(found.bound_ms)
    if found.rate_per_s <= 0:
        return [f"No rate keeps {word} within {bound}: a request served alone is slower."]
    rate = f"{fmt.significant(found.rate_per_s)}/s [{fmt.significant(found.low)}, {fmt.significant(found.high)}]"
    said = f"Highest rate for {word} within {bound}: {rate}"
    if found.confirmed_ms is None:
        return [f"{said}, not confirmed: a run at this rate had too few requests."]
    if math.isinf(found.confirmed_ms):
        return [f"{said}; a run at this rate was saturated."]
    return [
        f"{said}; in a run at this rate {word} was {fmt.interval(found.confirmed_ms, found.confirmed_interval_ms)}."
    ]


def _token_sentences(found: Latency) -> list[str]:
    if found._tokens is None:
        return []
    if found._tokens.empty:
        return ["No tokens came."]
    each = f"then {fmt.duration(found.itl_ms)} between tokens, {fmt.rate(found.output_tokens_per_s, 'tokens')}"
    said = [f"First token after {fmt.duration(found.ttft_ms)}, {each} (medians, served back to back)."]
    table = found._steady_tokens
    prompts = found.prompt_tokens_per_s
    before = "" if prompts is None else f", at {fmt.rate(prompts, 'prompt tokens')}"
    share = float(table["prefill_ms"].sum() / table["service_ms"].sum()) if len(table) else math.nan
    said.append(f"Until the first token (prefill) passes {fmt.share(share)} of the service time{before}.")
    if isinstance(found._cache, str):
        return said if prompts is None else [*said, f"Size of the key-value cache {fmt.UNKNOWN}: {found._cache}."]
    length = found._cache.length
    took, more = found._cache.bytes_at(length), found._cache.bytes_at(length + 1) - found._cache.bytes_at(length)
    grows = f", and {fmt.size(more)} for each more" if more else ""
    return [*said, f"The key-value cache takes {fmt.size(took)} with {length:,} tokens{grows}."]


def _cost_sentences(found: Latency) -> list[str]:
    """What a thousand requests take, where the price or the energy is known."""
    table, said = found.costs, []
    ways = {"closed": "back to back", "open": "at the rate asked for", "highest": "at the highest rate"}
    for run, row in table.iterrows():
        price = "" if pd.isna(row["price"]) else f"cost {fmt.significant(float(row['price']))} of the price's currency"
        energy = "" if pd.isna(row["joules"]) else f"take {fmt.significant(float(row['joules']))} J"
        if price or energy:
            said.append(f"1,000 requests {' and '.join(filter(None, (price, energy)))} {ways[str(run)]}.")
    why = str(table["why"].iloc[0])
    if said and why:
        said.append(f"Energy {fmt.UNKNOWN}: {why}.")
    return said


def _batching_sentences(found: Latency) -> list[str]:
    batching = found._batching
    if batching is None:
        return []
    if len(batching.sizes) == 1:
        return ["There was no time to measure batches: raise budget_s."]
    if batching.gain < 1.05:
        return ["Batches serve no more requests a second than one by one."]
    size = batching.sizes["requests_per_s"].idxmax()
    said = [f"Batches of {size} serve {fmt.significant(batching.gain)} times as many requests a second as one by one."]
    rate = found.curve["rate_per_s"].iloc[_BATCHED_AT]
    best, alone = batching.best(rate), batching.at(rate, 1, 0.0)
    if best is None or best.most == 1:
        return [*said, f"At {fmt.significant(rate)}/s no batcher has a lower p99 than serving one by one."]
    setting = f"a batcher of at most {best.most} requests and {fmt.duration(best.delay_ms)} delay"
    times = f"a p99 of {fmt.duration(best.p99_ms)} instead of {fmt.duration(alone.p99_ms)}"
    return [*said, f"At {fmt.significant(rate)}/s, {setting} has {times} (simulated)."]


def _batching_html(found: Latency) -> str:
    batching = found._batching
    if batching is None:
        return ""
    heads = ("batch size", "median", "per request", "requests/s", "one more costs")
    rows = [
        (
            f"{size}",
            fmt.interval(row["median_ms"], (row["ci_low_ms"], row["ci_high_ms"])),
            fmt.duration(row["per_request_ms"]),
            fmt.rate(row["requests_per_s"]),
            fmt.duration(row["marginal_ms"]),
        )
        for size, row in batching.sizes.iterrows()
    ]
    sizes = tables.table("Batches, measured", heads, [[escape.html(cell) for cell in row] for row in rows], texts=0)
    rate = found.curve["rate_per_s"].iloc[_BATCHED_AT]
    return sizes + _batching_map(batching.grid(rate), f"p99 at {fmt.significant(rate)}/s by batcher, simulated")


def _batching_map(grid: pd.DataFrame, caption: str) -> str:
    """Latency by largest batch (columns) and delay (rows), the lowest in bold."""
    table = grid.pivot(index="delay_ms", columns="most", values="p99_ms")
    lowest = grid["p99_ms"].min()
    rows = []
    for delay, row in table.iterrows():
        cells = [escape.html(_simulated(value)) for value in row]
        bold = [f"<b>{cell}</b>" if value == lowest else cell for cell, value in zip(cells, row, strict=True)]
        rows.append([escape.html(f"waits up to {fmt.duration(delay)}"), *bold])
    heads = ["", *(f"at most {most}" for most in table.columns)]
    return tables.table(escape.html(caption), heads, rows)


def _simulated(ms: Any) -> str:
    if pd.isna(ms):
        return ""
    return "overrun" if math.isinf(ms) else fmt.duration(ms)


def _rows(found: Latency) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for _, row in found.curve.iterrows():
        p95, p99 = (_time(row, name) for name in ("p95", "p99"))
        times = (fmt.duration(row["p50_ms"]), p95, p99, fmt.duration(row["wait_ms"]))
        rows.append((f"{fmt.significant(row['rate_per_s'])}/s", fmt.share(float(row["utilization"])), *times))
    return rows


def _time(row: Any, stem: str) -> str:
    value, low, high = row[f"{stem}_ms"], row[f"{stem}_low_ms"], row[f"{stem}_high_ms"]
    if not pd.isna(high) and math.isinf(high) and not math.isinf(value):
        return f"{fmt.duration(value)} [from {fmt.duration(low)}]"
    return fmt.interval(value, (low, high))


def _draw(figure: Figure, found: Latency) -> None:
    axes = figure.subplots()
    curve = found.curve
    rates = curve["rate_per_s"].to_numpy(dtype=float)
    waits, service = (curve[name].to_numpy(dtype=float) for name in ("wait_ms", "service_ms"))
    axes.fill_between(rates, 0, service, color=LINE, linewidth=0, label="mean service")
    axes.fill_between(
        rates, service, service + waits, color=LINE, alpha=0.5, hatch="///", linewidth=0, label="mean wait"
    )
    highest = 0.0
    for name, (colour, dashes) in _LINES.items():
        stem = name.removesuffix("_ms")
        value, low, high = (
            curve[column].to_numpy(dtype=float, na_value=np.nan)
            for column in (name, f"{stem}_low_ms", f"{stem}_high_ms")
        )
        shown = np.isfinite(value)
        if not shown.any():
            continue
        highest = max(highest, float(value[shown].max()))
        axes.plot(rates[shown], value[shown], color=colour, linestyle=dashes, linewidth=1.3, label=stem)
        banded = shown & np.isfinite(low) & np.isfinite(high)
        axes.fill_between(rates[banded], low[banded], high[banded], color=colour, alpha=0.12, linewidth=0)
    rate = found._highest
    if rate is not None and not isinstance(rate, str) and rate.rate_per_s > 0:
        axes.axhline(rate.bound_ms, color=QUIET, linewidth=0.8)
        axes.plot([rate.rate_per_s], [rate.bound_ms], marker="o", color=QUIET, markersize=5, label="highest rate")
        highest = max(highest, rate.bound_ms)
    axes.set_ylim(0, 1.1 * highest if highest else None)
    axes.set_xlabel("requests per second")
    axes.set_ylabel("latency, ms")
    axes.grid(color=LINE, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=8)
