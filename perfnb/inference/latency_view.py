"""Latency alone and under load: text, static HTML with its curve, and a page."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.draw.picture import picture_html
from perfnb.inference.latency_pictures import CURVE_INCHES, TIMELINE_INCHES, draw_curve, draw_timeline
from perfnb.inference.load_model import HighestRate, bounded_words, highest_sentences, load_words
from perfnb.inference.samples import FIRST_CALLS
from perfnb.profile.timing import noise_sentences
from perfnb.stats.intervals import Floats, quantile, quantile_interval

if TYPE_CHECKING:
    from perfnb.inference.batching import Batcher, Batching
    from perfnb.inference.latency import Latency
    from perfnb.inference.samples import OpenRun

#: The row of the curve at whose rate batchers are compared: 80 % utilization.
_BATCHED_AT = 5
#: From how many times the median on the slowest request is named.
_SLOW = 1.5
#: The least that a pause adds, as a share of the median, to be worth a sentence.
_WORTH_TELLING = 0.05
_HEADS = ("rate", "utilization", "p50", "p95", "p99", "mean wait")
_SIZE_HEADS = ("batch size", "median", "per request", "requests/s", "one more costs")
_UNDER_LOAD = "Under load, computed from the service times"
_CURVE_ALT = (
    "Latency against the rate of requests: median, 95th and 99th percentile with intervals; below it the mean latency, "
    "of waiting and service"
)
#: Tokens in the table of a timeline; the frame has all.
_MOST_TOKENS = 100
#: The requests that count as the tail of a run, as a share, and how many make one worth a figure.
_TAIL, _FEWEST_IN_TAIL = 0.05, 5
#: Below this share of the rate that the service times allow, the time between requests is told.
_HELD_UP = 0.9
#: How many requests of a run show that they took longer than alone.
_FEWEST_UNLIKE = 10


def latency_line(found: Latency) -> str:
    """``p50 12.3 ms, p99 n/a, of 120 requests``."""
    known = [f"{word} {fmt.duration(found.quantile_ms(q))}" for word, q in (("p50", 0.5), ("p99", 0.99))]
    return f"{', '.join(known)}, of {len(found._load.service_ms):,} requests served back to back"


def latency_text(found: Latency, width: int = 100) -> str:
    """All of it as text."""
    lines = [line for sentence in _sentences(found) for line in escape.wrapped(sentence, width)]
    lines += ["", f"{_UNDER_LOAD}:", *_aligned([_HEADS, *_rows(found)])]
    batching = found._batching
    if batching is not None and len(batching.sizes) > 1:
        lines += ["", "Batches, measured:", *_aligned([_SIZE_HEADS, *_size_rows(batching)])]
        heads, rows, caption = _map(found, batching)
        lines += ["", *escape.wrapped(f"{caption}:", width), *_aligned([heads, *([*row] for row in rows)])]
    if (one := _typical(found)) is not None:
        lines += ["", *_timeline_text(one, width)]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns aligned at their right ends."""
    wide = [max(escape.cells(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(escape.fit(cell, each, ">") for cell, each in zip(row, wide, strict=True)) for row in rows]


def latency_html(found: Latency) -> str:
    """Sentences, the load curve and the other pictures, each with its table."""
    first, *rest = _sentences(found)
    rows = [[escape.html(cell) for cell in row] for row in _rows(found)]
    parts = [
        header(found._measured.name, "latency", first, *rest),
        _picture(functools.partial(draw_curve, found=found), CURVE_INCHES, _CURVE_ALT),
        tables.table(_UNDER_LOAD, _HEADS, rows, texts=0),
    ]
    if (one := _typical(found)) is not None:
        parts.append(_timeline_html(one))
    return framed("".join([*parts, _batching_html(found)]))


def _picture(draw: Any, inches: tuple[float, float], alt: str) -> str:
    return f"<p>{picture_html(draw, inches, alt)}</p>"


def latency_page(found: Latency) -> str:
    """A page of its own."""
    return static_page(f"Latency of {found._measured.name}", latency_html(found))


def _sentences(found: Latency) -> list[str]:
    served = len(found._load.service_ms)
    several = f", {found._measured.concurrency} at a time" if found._measured.concurrency > 1 else ""
    quantiles = _quantiles(found._load.service_ms)
    said = [f"Service time of {fmt.counted(served, 'request')}{several}: {quantiles}."]
    if found.quantile_ms(0.99) is None:
        longer = 299 / max(1, served)
        said.append(f"p99 needs at least 299 requests: a budget_s {fmt.significant(longer, trim=True)} times as long.")
    said += _between_sentences(found)
    if found._measured.in_training:
        said.append("The model was in training mode, in which it is not served: call its eval() first.")
    slow = found.slowest(1).iloc[0]
    if slow["service_ms"] > _SLOW * float(np.median(found._load.service_ms)):
        size = str(slow["size"])
        which = f"request {slow['request']:,}" + (f", size {escape.plain(size, 60)}" if _is_size(size) else "")
        said.append(f"The slowest took {fmt.duration(float(slow['service_ms']))}: {which}.")
    first = found.first_calls
    if len(first):
        slowest = fmt.duration(float(first["service_ms"].max()))
        said.append(
            f"The first calls of each size are left out as warm-up ({len(first):,}; the slowest took {slowest})."
        )
    if found._measured.closed["size"].value_counts().max() <= FIRST_CALLS:
        said.append("No size was called more than twice, so warm-up may be in these times: raise budget_s.")
    said += [
        *_pause_sentences(found),
        *_open_sentences(found),
        *_highest_sentences(found._asked),
        *_batching_sentences(found),
    ]
    said += [*_token_sentences(found), *_cost_sentences(found)]
    return [*said, *noise_sentences(found._measured.noise)]


def _quantiles(times_ms: Floats) -> str:
    known = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    return ", ".join(
        f"{word} {fmt.interval(quantile(times_ms, q), quantile_interval(times_ms, q))}" for word, q in known
    )


def _between_sentences(found: Latency) -> list[str]:
    """What keeps a server busy between requests, where no service time shows it."""
    served, possible = found._load.closed_per_s, found._load.capacity_per_s
    if served > _HELD_UP * possible:
        return []
    if found._measured.concurrency == 1:
        between = fmt.duration(found._load.between_ms)
        return [f"perfnb takes {between} between two requests. Figures under load include this."]
    return [
        f"{fmt.significant(served)} requests/s were served, fewer than the {fmt.significant(possible)} that these "
        "times allow: between requests the threads wait for Python's lock. Figures under load include this wait."
    ]


def _is_size(words: str) -> bool:
    """Whether these are shapes or a length: what has neither is told apart by its type."""
    return words[:1] == "(" or words.isdecimal()


def _pause_sentences(found: Latency) -> list[str]:
    """What a pause adds, after the longest that certainly adds something."""
    pauses, usual = found.pauses, float(np.median(found._load.service_ms))
    longer = pauses[(pauses["ci_low_ms"] > 0) & (pauses["extra_ms"] > _WORTH_TELLING * usual)]
    if longer.empty:
        return []
    pause, row = float(longer.index[-1]), longer.iloc[-1]
    extra = fmt.interval(float(row["extra_ms"]), (float(row["ci_low_ms"]), float(row["ci_high_ms"])))
    return [
        f"A request that finds the server idle takes longer: {extra} more after a pause of {fmt.duration(pause)}. "
        "Figures at a rate include this."
    ]


def _open_sentences(found: Latency) -> list[str]:
    run = found.open_run
    if run is None:
        return []
    computed = _computed_sentences(found)
    times = run.samples["latency_ms"].to_numpy(dtype=float)
    rate = f"{fmt.significant(run.rate_per_s)} requests/s"
    if run.saturated:
        lost = f": {fmt.counted(run.lost, 'request')} that were due could not be served in the run" if run.lost else ""
        saturated = f"At {rate} it is saturated{lost or ', as requests come faster than they are served'}."
        return [saturated, *_unlike_sentences(found, run)]
    said = [f"At {rate}, measured with {fmt.counted(len(times), 'request')}: {_quantiles(times)}."]
    wait, late, service = (float(run.samples[name].mean()) for name in ("wait_ms", "late_ms", "service_ms"))
    share = fmt.share((wait - late) / (wait + service))
    said.append(f"Of the mean latency, {share} is waiting for requests before it{_tail(run.samples)}.")
    if run.late > 0.01:
        much = (
            fmt.share(run.late) + " of a service time" if run.late < 1 else fmt.significant(run.late) + " service times"
        )
        said.append(f"The clock started requests up to {much} late, which is in these times.")
    return [*said, *_unlike_sentences(found, run), *computed]


def _unlike_sentences(found: Latency, run: OpenRun) -> list[str]:
    """Whether requests took much longer at a rate than alone, also after pauses: what was computed is then too low."""
    times = run.samples["service_ms"]
    if len(times) < _FEWEST_UNLIKE:
        return []
    extra = found.pauses["extra_ms"].max()
    usual = float(np.median(found._load.service_ms)) + (0.0 if pd.isna(extra) else max(0.0, float(extra)))
    took = float(times.median())
    if took < _SLOW * usual:
        return []
    return [
        f"Requests took {fmt.duration(took)} in this run (median), {fmt.significant(took / usual)} times as long as "
        "when they were measured alone, so what is computed from those times is too low. The machine was busy, or "
        "requests slow each other down: measure again."
    ]


def _tail(samples: pd.DataFrame) -> str:
    """Whether queueing or service makes the tail: the share of waiting among the slowest requests."""
    slowest = samples.nlargest(round(_TAIL * len(samples)), "latency_ms")
    if len(slowest) < _FEWEST_IN_TAIL:
        return ""
    waited = float((slowest["wait_ms"] - slowest["late_ms"]).sum() / slowest["latency_ms"].sum())
    return f"; of that of the slowest {fmt.share(_TAIL)}, {fmt.share(waited)}"


def _computed_sentences(found: Latency) -> list[str]:
    """What the service times alone say of the rate asked for: with far more requests than the run had."""
    if found._measured.asked_rate is None:
        return []
    load = found.at(found._measured.asked_rate)
    if load.p50_ms is not None and math.isinf(load.p50_ms):
        return []
    return [f"Computed for this rate from the service times: {load_words(load)}."]


def _highest_sentences(asked: HighestRate | str | None) -> list[str]:
    return highest_sentences(asked) if isinstance(asked, HighestRate) else [asked] if asked else []


def _token_sentences(found: Latency) -> list[str]:
    if found._measured.tokens is None:
        return []
    if found._measured.tokens.empty:
        return ["No tokens came."]
    each = f"then {fmt.duration(found.itl_ms)} between tokens, {fmt.rate(found.output_tokens_per_s, 'tokens')}"
    said = [f"First token after {fmt.duration(found.ttft_ms)}, {each} (medians, served back to back)."]
    table = found._steady_tokens
    prompts = found.prompt_tokens_per_s
    before = "" if prompts is None else f", at {fmt.rate(prompts, 'prompt tokens')}"
    share = float(table["prefill_ms"].sum() / table["service_ms"].sum()) if len(table) else math.nan
    said.append(f"Until the first token (prefill) passes {fmt.share(share)} of the service time{before}.")
    cache = found._measured.cache
    if isinstance(cache, str):
        return said if prompts is None else [*said, f"Size of the key-value cache {fmt.UNKNOWN}: {cache}."]
    length = cache.length
    took, more = cache.bytes_at(length), cache.bytes_at(length + 1) - cache.bytes_at(length)
    grows = f", and {fmt.size(more)} for each more" if more else ""
    return [*said, f"The key-value cache takes {fmt.size(took)} with {length:,} tokens{grows}."]


def _cost_sentences(found: Latency) -> list[str]:
    """What a thousand requests take, where the price or the energy is known."""
    table, said = found.costs, []
    ways = {"closed": "back to back", "open": "at the rate asked for", "highest": "at the highest rate"}
    for run, row in table.iterrows():
        price = "" if pd.isna(row["price"]) else f"cost {fmt.significant(float(row['price']))}"
        energy = "" if pd.isna(row["joules"]) else f"take {fmt.significant(float(row['joules']))} J"
        if price or energy:
            said.append(f"1,000 requests {' and '.join(filter(None, (price, energy)))} {ways[str(run)]}.")
    if table["price"].notna().any():
        said.append("Prices are in the currency of price_per_hour.")
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
    rate = _batched_at(found)
    best, alone = batching.best(rate), batching.at(rate, 1, 0.0)
    if best is None:
        said.append(f"At {fmt.significant(rate)}/s every batcher is overrun.")
    elif best.most == 1:
        said.append(f"At {fmt.significant(rate)}/s no batcher has a lower p99 than serving one by one (simulated).")
    else:
        times = f"{fmt.duration(best.p99_ms)} instead of {_simulated(alone.p99_ms)}"
        said.append(f"At {fmt.significant(rate)}/s, {_setting(best)} has a p99 of {times} (simulated).")
    said += _batching_bound_sentences(found, batching)
    if (short := found._measured.short_batch) is not None:
        said.append(
            f"Nothing in the input that batch= makes of {short} requests has the length {short}: if it leaves requests "
            "out, the figures of batches are wrong."
        )
    return said


def _batching_bound_sentences(found: Latency, batching: Batching) -> list[str]:
    """The batcher that serves the highest rate within the bound, and what it costs when little is to do."""
    highest = found._asked
    if highest is None or isinstance(highest, str) or highest.quantile not in (0.5, 0.95, 0.99):
        return []
    word, bound = f"p{100 * highest.quantile:g}", fmt.duration(highest.bound_ms)
    best = batching.highest_rate(highest.bound_ms, highest.quantile)
    if best is None or (highest.rate_per_s is not None and best.rate_per_s <= highest.rate_per_s):
        return [f"No batcher serves more within {bound}."]
    quiet = [batching.at(best.rate_per_s / 50, *setting).p50_ms for setting in ((best.most, best.delay_ms), (1, 0.0))]
    cost = f"; with hardly any load its p50 is {fmt.duration(quiet[0])} instead of {fmt.duration(quiet[1])}"
    said = f"For {word} within {bound}, {_setting(best)} serves up to {fmt.significant(best.rate_per_s)}/s (simulated)"
    return [f"{said}{cost if quiet[0] > 1.01 * quiet[1] else ''}."]


def _setting(batcher: Batcher) -> str:
    if batcher.most == 1:
        return "serving one by one"
    return f"a batcher of at most {batcher.most} requests and {fmt.duration(batcher.delay_ms)} delay"


def _size_rows(batching: Batching) -> list[tuple[str, ...]]:
    return [
        (
            f"{size}",
            fmt.interval(row["median_ms"], (row["ci_low_ms"], row["ci_high_ms"])),
            fmt.duration(row["per_request_ms"]),
            fmt.rate(row["requests_per_s"]),
            fmt.duration(row["marginal_ms"]) if place else "",
        )
        for place, (size, row) in enumerate(batching.sizes.iterrows())
    ]


def _batching_html(found: Latency) -> str:
    batching = found._batching
    if batching is None:
        return ""
    rows = [[escape.html(cell) for cell in row] for row in _size_rows(batching)]
    sizes = tables.table("Batches, measured", _SIZE_HEADS, rows, texts=0)
    if len(batching.sizes) == 1:
        return sizes
    heads, cells, caption = _map(found, batching)
    # Quiet for short, strong for long; on a log scale, because a batcher that is overrun takes far longer.
    grid = _pivoted(batching.grid(_batched_at(found)))
    known = np.log(grid.to_numpy(dtype=float, na_value=np.nan))
    finite = known[np.isfinite(known)]
    low, spread = (finite.min(), np.ptp(finite) or 1.0) if len(finite) else (0.0, 1.0)
    shaded = [
        [
            escape.html(row[0]),
            *(_shaded(cell, (value - low) / spread) for cell, value in zip(row[1:], line, strict=True)),
        ]
        for row, line in zip(cells, known, strict=True)
    ]
    return sizes + tables.table(escape.html(caption, 300), heads, shaded)


def _shaded(cell: str, share: float) -> str:
    """A cell of the map: its figure, on a ground that is the stronger the longer it takes."""
    if not cell:
        return ""
    strength = 0.06 + 0.44 * (1.0 if not math.isfinite(share) else share)
    red, green, blue = bytes.fromhex(palette.VERMILION[1:])
    words = f"<b>{escape.html(cell)}</b>" if cell.startswith(_BEST) else escape.html(cell)
    ground = f"background-color:rgba({red},{green},{blue},{strength:.2f})"
    return f'<span style="display:block;padding:2px 6px;{ground}">{words}</span>'


#: Marks the best cell of the map.
_BEST = "★ "


def _batched_at(found: Latency) -> float:
    """The rate at which batchers are compared: the one asked for, or that of 80 % utilization."""
    return found._measured.asked_rate or float(found.curve["rate_per_s"].iloc[_BATCHED_AT])


def _pivoted(grid: pd.DataFrame) -> pd.DataFrame:
    return grid.pivot(index="delay_ms", columns="most", values="p99_ms")


def _map(found: Latency, batching: Batching) -> tuple[list[str], list[list[str]], str]:
    """Heads, rows and caption of the batching map: p99 by largest batch (columns) and delay (rows)."""
    rate = _batched_at(found)
    table = _pivoted(batching.grid(rate))
    best = batching.best(rate)
    rows = []
    for delay, row in table.iterrows():
        chosen = [best is not None and (best.most, best.delay_ms) == (int(str(most)), delay) for most in table.columns]
        cells = [f"{_BEST if mark else ''}{_simulated(value)}" for value, mark in zip(row, chosen, strict=True)]
        rows.append([fmt.duration(delay), *cells])
    heads = ["longest delay", *(f"at most {most}" for most in table.columns)]
    said = f"p99 at {fmt.significant(rate)}/s by largest batch and longest delay, simulated"
    return heads, rows, said if best is None else f"{said}; {_BEST}best"


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
    return bounded_words(row[f"{stem}_ms"], (row[f"{stem}_low_ms"], row[f"{stem}_high_ms"]))


# One request, token by token


def _typical(found: Latency) -> _Timeline | None:
    """The request of median latency: of the run at a rate, or else of those served back to back."""
    if found._measured.tokens is None or found._measured.tokens.empty:
        return None
    requests = found.tokens
    opened = requests[(requests["run"] == "open") & (not found.saturated)]
    usable = opened if len(opened) else requests[~requests["first"].astype(bool)]
    if usable.empty:
        return None
    one = usable.sort_values("latency_ms").iloc[(len(usable) - 1) // 2]
    tokens = found.token_times
    came = tokens.loc[(tokens["run"] == one["run"]) & (tokens["served"] == one["served"]), "after_arrival_ms"]
    wait = float(one["latency_ms"] - one["service_ms"])
    where = "in the run at a rate" if len(opened) else "served back to back"
    return _Timeline(f"The request of median latency {where}, token by token", max(0.0, wait), came.tolist())


class _Timeline(NamedTuple):
    words: str
    wait_ms: float
    tokens_ms: list[float]

    @property
    def parts(self) -> list[tuple[palette.Mark, float]]:
        """Milliseconds of each part that there is."""
        first, last = self.tokens_ms[0], self.tokens_ms[-1]
        sizes = {"wait": self.wait_ms, "prefill": first - self.wait_ms, "decode": last - first}
        return [(palette.REQUEST[name], ms) for name, ms in sizes.items() if ms > 0]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Each token: when it came, and how long after the one before."""
        before = [math.nan, *self.tokens_ms]
        return [
            (f"{place}", fmt.duration(at), "" if math.isnan(last) else fmt.duration(at - last))
            for place, (at, last) in enumerate(zip(self.tokens_ms, before, strict=False), 1)
        ]


def _timeline_text(one: _Timeline, width: int) -> list[str]:
    marks, sizes = zip(*one.parts, strict=True)
    total = sum(sizes)
    entries = [(mark, fmt.duration(ms), fmt.share(ms / total)) for mark, ms in one.parts]
    return [f"{one.words}:", bars.stacked(marks, sizes, min(width, 72)), *bars.legend(entries, width)]


def _timeline_html(one: _Timeline) -> str:
    draw = functools.partial(draw_timeline, wait_ms=one.wait_ms, tokens_ms=one.tokens_ms)
    parts = ", ".join(f"{mark.word} {fmt.duration(ms)}" for mark, ms in one.parts)
    shown = one.rows[:_MOST_TOKENS]
    few = "" if len(shown) == len(one.rows) else f", the first {_MOST_TOKENS} of {len(one.rows):,}"
    table = tables.table(f"Tokens{few}", ("token", "came after", "since the one before"), shown, texts=0)
    return (
        f"<p>{escape.html(one.words)}: {escape.html(parts)}.</p>{_picture(draw, TIMELINE_INCHES, one.words)}"
        f"<details><summary>Its tokens</summary>{table}</details>"
    )
