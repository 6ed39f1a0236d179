"""Present latency, alone and under load, as a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Cell,
    Column,
    Document,
    Figure,
    Line,
    Part,
    Section,
    Series,
    State,
    Strip,
    Table,
    Value,
    Verdict,
    cells_of,
)
from perfnb.draw.palette import BLUE, GREEN, REQUEST, SKY, VERMILION, Mark
from perfnb.inference.load_model import HighestRate, highest_evidence, highest_sentence
from perfnb.inference.samples import FIRST_CALLS
from perfnb.profile.timing import noise_sentences
from perfnb.stats.intervals import Floats, quantile, quantile_interval

if TYPE_CHECKING:
    from perfnb.inference.batching import Batcher, Batching
    from perfnb.inference.latency import Latency
    from perfnb.inference.load_model import LoadModel
    from perfnb.inference.samples import Measured, OpenRun

#: The quantiles that are listed, and their line styles.
_QUANTILES = {
    0.5: Mark("p50", BLUE, "█", "solid"),
    0.95: Mark("p95", GREEN, "▒", "columns"),
    0.99: Mark("p99", VERMILION, "▓", "hatch"),
}
#: Their columns, by the names of the times and the bounds of their intervals.
_COLUMNS = {
    tuple(f"{mark.word}{end}_ms" for end in ("", "_low", "_high")): Column(mark.word, "ms", 2 * (mark.word == "p95"))
    for mark in _QUANTILES.values()
}
_ALONE, _TOKENS = Mark("back to back", BLUE, "█", "solid"), Mark("tokens", SKY, "▒", "columns")
#: The utilization at which batchers are compared.
_BATCHED_AT = 0.8
#: A bound that exceeds the curve's longest latency by more than this factor would make the curve look flat.
_FAR = 3
#: A curve that spans more than this factor has a logarithmic axis.
_DECADE = 10
#: The maximum number of requests that are drawn as dots.
_DOTS = 300
#: The minimum extra time after a pause, as a fraction of the median, that is mentioned in a note.
_WORTH_TELLING = 0.05
#: If fewer requests were served than this fraction of the rate that the service times allow, the time between requests
#: is reported.
_HELD_UP = 0.9
#: The number of requests needed to conclude that requests in a run took longer than alone, and the factor by which they
#: must have taken longer.
_FEWEST_UNLIKE, _UNLIKE = 10, 1.5
#: The names of the runs in the cost table.
_RUNS = {"closed": "back to back", "open": "at the requested rate", "highest": "at the highest rate"}


def latency_document(found: Latency, measured: Measured, load: LoadModel, asked: HighestRate | None) -> Document:
    """Return the latency document.

    It shows the highest rate within the bound, whether the requested rate saturates the service, and the load curve.
    `asked` is the highest rate for the requested bound.
    """
    several = f", {measured.concurrency} at a time" if measured.concurrency > 1 else ""
    return Document(
        "latency",
        measured.name,
        verdict=_verdict(found, measured, load, asked),
        figures=tuple(_figures(found, measured, load, asked)),
        facts=(f"{fmt.counted(len(load.service_ms), 'request')} served back to back{several}",),
        sections=tuple(_sections(found, measured, load, asked)),
        notes=tuple(_notes(found, measured, load)),
    )


def _verdict(found: Latency, measured: Measured, load: LoadModel, asked: HighestRate | None) -> Verdict:
    run, busy = found.open_run, _busy(measured.noise)
    state: State = "none"
    next_step = _batchers(found, measured, load, asked)
    if asked is not None:
        sentence = highest_sentence(asked)
        state = "bad" if asked.rate_per_s == 0 else "open" if asked.confirmed_requests is None else "good"
        if run is not None:
            sentence += f"; at {_rate(run.rate_per_s)}, the service is {'' if run.saturated else 'not '}saturated"
    elif run is not None:
        state = "bad" if run.saturated else "good"
        times = "requests arrive faster than they are served" if run.saturated else _tail_words(_latencies(run))
        sentence = f"{'Saturated' if run.saturated else 'Not saturated'} at {_rate(run.rate_per_s)}: {times}"
    else:
        times = fmt.interval(float(np.median(load.service_ms)), quantile_interval(load.service_ms, 0.5))
        sentence = f"A request takes {times} (median), and {_rate(load.closed_per_s)} are served back to back"
    if busy and state != "none":
        state, sentence = "open", f"{sentence}; undecided: {busy}"
        next_step = next_step or "Measure again on an idle machine: the highest rate may be several times as high."
    if measured.in_training:
        state = "open"
        next_step = "The model was in training mode: call model.eval() first, because that is how it is served."
    why = ["" if asked is None else highest_evidence(asked), "" if run is None else _waiting(run)]
    return Verdict(state, sentence, " ".join(filter(None, why)), next_step)


def _busy(noise: Mapping[str, Any]) -> str:
    """Return a note if other programs kept all CPUs busy when the measurement began."""
    load, cpus = noise.get("load_before") or 0.0, noise.get("cpus") or math.inf
    return f"the machine was busy (load {load:.1f} on {fmt.counted(cpus, 'CPU')})" if load > cpus else ""


def _rate(per_second: float) -> str:
    return fmt.rate(per_second, "requests")


def _latencies(run: OpenRun) -> Floats:
    return run.samples["latency_ms"].to_numpy(dtype=float)


def _tail_words(times_ms: Floats) -> str:
    """Return the highest known quantile, with its interval."""
    q = [q for q in _QUANTILES if q == 0.5 or quantile(times_ms, q) is not None][-1]
    time = fmt.interval(float(np.quantile(times_ms, q)), quantile_interval(times_ms, q))
    return f"{'the median' if q == 0.5 else _QUANTILES[q].word} is {time}"


def _waiting(run: OpenRun) -> str:
    """Return a sentence about the requests lost to saturation, or about the proportion of latency spent waiting."""
    if run.saturated:
        lost = fmt.counted(run.lost, "request")
        return f"{lost} that were due could not be served during the run." if run.lost else ""
    wait, late, service = (float(run.samples[name].mean()) for name in ("wait_ms", "late_ms", "service_ms"))
    return f"Waiting for earlier requests makes up {fmt.share((wait - late) / (wait + service))} of the mean latency."


def _figures(found: Latency, measured: Measured, load: LoadModel, asked: HighestRate | None) -> Iterator[Figure]:
    if asked is not None and asked.rate_per_s is not None:
        within = f"p{100 * asked.quantile:g} within {fmt.duration(asked.bound_ms)}"
        yield Figure("highest rate", asked.rate_per_s, "requests/s", (asked.low, asked.high), within)
    for label, q in (("service time", 0.5), ("p99 of service times", 0.99)):
        times = load.service_ms
        yield Figure(label, quantile(times, q), "ms", quantile_interval(times, q), "median" if q == 0.5 else "")
    yield Figure("throughput", load.closed_per_s, "requests/s", basis="back to back")
    if measured.batches_ms:
        size = found.batching.sizes["requests_per_s"].idxmax()
        basis = "the throughput of single requests"
        yield Figure(f"batches of {size} serve", found.batching.gain, "ratio", basis=basis)
    if measured.tokens is not None and len(measured.tokens):
        yield Figure("first token after", found.ttft_ms, "ms", basis="median, served back to back")
        if not math.isnan(found.itl_ms):
            yield Figure("between tokens", found.itl_ms, "ms", basis="median")
        yield Figure("answers", found.output_tokens_per_s, "tokens/s")
        if found.prompt_tokens_per_s is not None:
            yield Figure("prompts", found.prompt_tokens_per_s, "tokens/s", basis="until the first token")
        if not isinstance(cache := measured.cache, str):
            more = cache.bytes_at(cache.length + 1) - cache.bytes_at(cache.length)
            grows = f", and {fmt.size(more)} for each additional token" if more else ""
            yield Figure(
                "key-value cache", cache.bytes_at(cache.length), "bytes", basis=f"{cache.length:,} tokens{grows}"
            )


def _sections(found: Latency, measured: Measured, load: LoadModel, asked: HighestRate | None) -> Iterator[Section]:
    bound = None if measured.asked_bound is None else measured.asked_bound[0]
    yield _curve(found.curve, asked)
    yield _strip(found.open_run, load, bound)
    if measured.tokens is not None:
        yield from _token_by_token(found)
    yield _quantiles(found, measured, load)
    yield _loads(found.curve)
    if measured.batches_ms:
        yield _sizes(found.batching.sizes)
        yield _settings(found.batching, _batched_at(measured, load))
    costs = found.costs
    if costs[["price", "joules"]].notna().any(axis=None):
        columns = {
            "run": Column("run"),
            "requests_per_s": Column("rate", "/s"),
            "price": Column("price", "number"),
            "joules": Column("energy in J", "number"),
        }
        title = "Cost of 1,000 requests, in the currency of price_per_hour"
        yield Table.of(title, costs.rename(index=_RUNS).reset_index(), columns, noun="run")


def _curve(curve: pd.DataFrame, asked: HighestRate | None) -> Series:
    lines = []
    for mark, names in zip(_QUANTILES.values(), _COLUMNS, strict=True):
        values, *ends = (curve[name] for name in names)
        if values.notna().any():
            bounds = (fmt.known_bounds(pair) or (None, None) for pair in zip(*ends, strict=True))
            lines.append(Line(mark, cells_of(values), *zip(*bounds, strict=True)))
    known = [value for line in lines for value in line.values if value is not None]
    longest, levels = max(known, default=0.0), dict[str, float]()
    if asked is not None and asked.bound_ms <= _FAR * longest:
        at = f", kept up to {_rate(asked.rate_per_s)}" if asked.rate_per_s else ""
        levels[f"bound for p{100 * asked.quantile:g}{at}"] = asked.bound_ms
    x, y = Axis("requests per second", "/s"), Axis("latency", "ms", log=longest > _DECADE * min(known, default=0.0))
    title = "Latency under load, computed from the service times"
    return Series(title, x, y, curve["rate_per_s"].tolist(), tuple(lines), levels)


def _strip(run: OpenRun | None, load: LoadModel, bound: float | None) -> Strip:
    groups = [(_ALONE, _evenly(load.service_ms))]
    if run is not None:
        groups.append((Mark(f"at {_rate(run.rate_per_s)}", VERMILION, "▓", "hatch"), _evenly(_latencies(run))))
    at = None if bound is None else ("bound", bound)
    return Strip("Latency of single requests", Axis("latency", "ms"), tuple(groups), at)


def _evenly(times_ms: Floats) -> list[float]:
    """Return a drawable number of rows, evenly spaced from the fastest request to the slowest."""
    places = np.linspace(0, len(times_ms) - 1, min(_DOTS, len(times_ms))).round().astype(int)
    return [float(ms) for ms in np.sort(times_ms)[places]]


def _quantiles(found: Latency, measured: Measured, load: LoadModel) -> Table:
    """Return a table of the latency measured alone and at a rate, and the latency computed for that rate."""
    alone = _measured_cells(load.service_ms)
    rows: list[tuple[Cell, ...]] = [("back to back, measured", *alone, None, len(load.service_ms))]
    run = found.open_run
    if run is not None and not run.saturated:
        wait_ms = float(run.samples["wait_ms"].mean())
        name = f"at {fmt.rate(run.rate_per_s)}, measured"
        rows.append((name, *_measured_cells(_latencies(run)), wait_ms, len(run.samples)))
    if measured.asked_rate is not None and math.isfinite((at := found.at(measured.asked_rate)).wait_ms):
        cells = (Value(getattr(at, name), "ms", at.intervals.get(name)) for name, *_ in _COLUMNS)
        rows.append((f"at {fmt.rate(at.rate_per_s)}, computed", *cells, at.wait_ms, None))
    others = Column("mean wait", "ms", 2), Column("requests", "count", 3)
    return Table("Latency of requests", (Column("run"), *_COLUMNS.values(), *others), rows)


def _measured_cells(times_ms: Floats) -> list[Cell]:
    return [Value(quantile(times_ms, q), "ms", quantile_interval(times_ms, q)) for q in _QUANTILES]


def _loads(curve: pd.DataFrame) -> Table:
    columns: dict[Any, Column] = {
        "rate_per_s": Column("rate", "/s"),
        "utilization": Column("utilization", "share", 3),
        **_COLUMNS,
        "wait_ms": Column("mean wait", "ms", 1, bar=True),
    }
    return Table.of("Latency by rate, computed from the service times", curve, columns, noun="rate")


def _token_by_token(found: Latency) -> Iterator[Section]:
    """Yield the tokens of the request with the median latency.

    The request is taken from the run at a rate if there is one, and otherwise from the requests served back to back.
    """
    requests, tokens = found.tokens, found.token_times
    opened = requests[(requests["run"] == "open") & (not found.saturated)]
    usable = opened if len(opened) else requests[~requests["first"].astype(bool)]
    if usable.empty:
        return
    request = usable.sort_values("latency_ms").iloc[(len(usable) - 1) // 2]
    its = (tokens["run"] == request["run"]) & (tokens["served"] == request["served"])
    came = tokens.loc[its, "after_arrival_ms"].tolist()
    wait = max(0.0, float(request["latency_ms"] - request["service_ms"]))
    sizes = {"wait": wait, "prefill": came[0] - wait, "decode": came[-1] - came[0]}
    parts = tuple(Part(REQUEST[name], ms) for name, ms in sizes.items() if ms > 0)
    yield Bars("The request with the median latency, up to its last token", "ms", (Bar("", parts),))
    yield Strip("Arrival of its tokens", Axis("time since the request was due", "ms"), ((_TOKENS, came),))


def _batched_at(measured: Measured, load: LoadModel) -> float:
    """Return the rate for comparing batchers, which is the requested rate or the rate at 80 % utilization."""
    return measured.asked_rate or _BATCHED_AT * load.closed_per_s


def _batchers(found: Latency, measured: Measured, load: LoadModel, asked: HighestRate | None) -> str:
    """Return a recommendation for the batcher to use for the bound, or at the rate if there is no bound."""
    if not measured.batches_ms:
        return ""
    if asked is not None and asked.quantile in _QUANTILES:
        best = found.batching.best_within(asked.bound_ms, asked.quantile)
        if best is None or best.rate_per_s <= (asked.rate_per_s or 0.0):
            return "No batcher can serve a higher rate within the bound."
        return f"Use {_setting(best)}, which serves up to {_rate(best.rate_per_s)} within the bound (simulated)."
    rate = _batched_at(measured, load)
    best, alone = found.batching.best(rate), found.batching.at(rate, 1, 0.0)
    if best is None:
        return f"At {_rate(rate)}, every batcher is overrun."
    if best.most == 1:
        return f"At {_rate(rate)}, no batcher has a lower p99 than serving requests one by one (simulated)."
    instead = "serving one by one, which is overrun" if math.isinf(alone.p99_ms) else fmt.duration(alone.p99_ms)
    p99 = fmt.duration(best.p99_ms)
    return f"At {_rate(rate)}, use {_setting(best)}: p99 {p99} instead of {instead} (simulated)."


def _setting(batcher: Batcher) -> str:
    if batcher.most == 1:
        return "serving requests one by one"
    return f"a batcher with at most {batcher.most} requests and a delay of {fmt.duration(batcher.delay_ms)}"


def _sizes(sizes: pd.DataFrame) -> Table:
    columns = {
        "size": Column("batch size", "count"),
        ("median_ms", "ci_low_ms", "ci_high_ms"): Column("median", "ms"),
        "per_request_ms": Column("per request", "ms", priority=1),
        "requests_per_s": Column("rate", "/s", bar=True),
        "marginal_ms": Column("each additional one", "ms", priority=2),
    }
    return Table.of("Measured batches", sizes.rename_axis("size").reset_index(), columns, noun="size")


def _settings(batching: Batching, rate: float) -> Table:
    """Return the p99 latency for each combination of largest batch (columns) and delay (rows)."""
    table = batching.grid(rate).pivot(index="delay_ms", columns="most", values="p99_ms")
    table = table.map(lambda ms: "overrun" if math.isinf(ms) else ms).rename(columns=str).reset_index()
    columns = {name: Column(f"at most {name}", "ms") for name in table.columns}
    columns["delay_ms"] = Column("maximum delay", "ms")
    best = batching.best(rate)
    chosen = "" if best is None else f"; best: {_setting(best)}"
    return Table.of(f"Simulated p99 of dynamic batchers at {_rate(rate)}{chosen}", table, columns, noun="delay")


def _notes(found: Latency, measured: Measured, load: LoadModel) -> Iterator[str]:
    times, usual = load.service_ms, float(np.median(load.service_ms))
    if quantile(times, 0.99) is None:
        factor = fmt.significant(299 / max(1, len(times)), trim=True)
        yield f"p99 needs at least 299 requests: pass a budget_s {factor} times as long."
    if load.closed_per_s <= _HELD_UP * load.capacity_per_s:
        served, possible = _rate(load.closed_per_s), _rate(load.capacity_per_s)
        yield (
            f"{served} were served, fewer than the {possible} that these times allow. Between requests, a server is "
            f"busy for {fmt.duration(load.between_ms)}, due to perfnb's overhead and to waiting for Python's lock. "
            "Figures under load include this time."
        )
    if len(first := found.first_calls):
        yield f"The first calls of each size are excluded as warm-up ({len(first):,})."
    if measured.closed["size"].value_counts().max() <= FIRST_CALLS:
        yield "No size was called more than twice, so these times may include warm-up: raise budget_s."
    pauses = found.pauses
    longer = pauses[(pauses["ci_low_ms"] > 0) & (pauses["extra_ms"] > _WORTH_TELLING * usual)]
    if len(longer):
        pause, row = float(longer.index[-1]), longer.iloc[-1]
        extra = fmt.interval(row["extra_ms"], (row["ci_low_ms"], row["ci_high_ms"]))
        yield (
            f"A request that finds the server idle takes longer: {extra} more after a pause of {fmt.duration(pause)}. "
            "Figures at a given rate include this time."
        )
    if (run := found.open_run) is not None:
        yield from _run_notes(run, usual, pauses)
    if measured.batches_ms is not None and not measured.batches_ms:
        yield "There was no time to measure batches: raise budget_s."
    if (short := measured.short_batch) is not None:
        yield (
            f"No part of the input that batch= makes from {short} requests has the length {short}. If it leaves out "
            "requests, the figures for batches are wrong."
        )
    if measured.tokens is not None and measured.tokens.empty:
        yield "No tokens arrived."
    elif measured.tokens is not None and isinstance(measured.cache, str) and found.prompt_tokens_per_s is not None:
        yield f"Size of the key-value cache {fmt.UNKNOWN}: {measured.cache}."
    if measured.price_per_hour is not None and isinstance(why := measured.joules.get("closed"), str):
        yield f"Energy {fmt.UNKNOWN}: {why}."
    yield from noise_sentences(measured.noise)


def _run_notes(run: OpenRun, usual_ms: float, pauses: pd.DataFrame) -> Iterator[str]:
    """Yield notes if the clock was late, or if requests took much longer than alone, even after pauses."""
    if run.late > 0.01 and not run.saturated:
        late = fmt.share(run.late)
        yield f"The clock started requests up to {late} of a service time late, and these times include the delay."
    extra, took = fmt.known(pauses["extra_ms"].max()), float(run.samples["service_ms"].median())
    expected = usual_ms + max(0.0, extra or 0.0)
    if len(run.samples) >= _FEWEST_UNLIKE and took >= _UNLIKE * expected:
        yield (
            f"Requests took {fmt.duration(took)} in this run (median), {fmt.significant(took / expected)} times as "
            "long as when they were measured alone, so figures computed from the latter are too low. The machine "
            "was busy, or requests slow each other down: measure again."
        )
