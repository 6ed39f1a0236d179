"""What `latency` shows: the load curve's axes and marks, the batching map, one request token by token."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from perfnb.draw import palette
from perfnb.inference.latency import HighestRate, Latency, OpenRun
from perfnb.inference.latency_pictures import draw_curve, draw_timeline
from perfnb.inference.samples import TOKEN_COLUMNS
from tests.inference.test_latency import back_to_back, lognormal
from tests.inference.test_latency import fake as slowly_known


def fake(times_ms: np.ndarray, **measured: Any) -> Latency:
    """A latency of known service times, with few simulated runs behind its intervals."""
    return slowly_known(times_ms, runs=20, **measured)


def drawn(found: Latency) -> Figure:
    figure = Figure()
    draw_curve(figure, found)
    return figure


def with_tokens() -> Latency:
    """A request that waited 30 ms, with tokens after 50 and 5 and 5 ms, in a run at a rate."""
    closed = [("closed", 0, 0, 7.0, 7.0)]
    opened = [("open", 0, 0, 80.0, 50.0), ("open", 0, 1, 85.0, 55.0), ("open", 0, 2, 90.0, 60.0)]
    tokens, opened_tokens = (
        pd.DataFrame(rows, columns=list(TOKEN_COLUMNS)[:5]).reindex(columns=list(TOKEN_COLUMNS))
        for rows in (closed, opened)
    )
    sample = back_to_back(lognormal(40)).iloc[:1].assign(wait_ms=30.0, service_ms=61.0, latency_ms=91.0)
    return fake(lognormal(40), tokens=tokens, open_run=OpenRun(10.0, sample, 0, 0.0, opened_tokens))


@pytest.mark.parametrize(("spread", "scale"), [(0.05, "linear"), (1.0, "log")])
def test_a_range_of_more_than_a_decade_has_a_log_axis(
    spread: float, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fake(np.random.default_rng(3).lognormal(2.0, spread, 400))
    if scale == "linear":  # the curve itself ends where waiting takes over
        monkeypatch.setattr(Latency, "curve", found.curve.iloc[:4])

    upper, lower = drawn(found).axes

    assert upper.get_yscale() == scale
    assert lower.get_yscale() == "linear"
    assert upper.get_xscale() == "linear"


def test_the_curve_marks_the_bound_the_highest_rate_and_what_was_measured() -> None:
    asked, run = HighestRate(70.0, 60.0, 80.0, 40.0, 0.99), OpenRun(20.0, back_to_back(lognormal(400)), 0, 0.0)
    found = fake(lognormal(400), asked=asked, open_run=run)

    upper, lower = drawn(found).axes

    said = {text.get_text() for text in upper.get_legend().get_texts()}
    assert said == {"p50", "p95", "p99", "highest rate", "p50 measured", "p95 measured", "p99 measured"}
    assert [text.get_text() for text in upper.texts] == ["p99 within 40.0 ms: 70.0/s"]
    assert any(np.allclose(line.get_ydata(), 40.0) for line in upper.lines)
    assert [text.get_text() for text in lower.get_legend().get_texts()] == ["mean wait", "mean service"]


def test_a_highest_rate_that_is_not_known_is_a_line_alone() -> None:
    found = fake(lognormal(400), asked=HighestRate(None, 0.0, 40.0, 50.0, 0.99, refuted_per_s=(80.0, 40.0)))

    upper, _ = drawn(found).axes

    assert [text.get_text() for text in upper.texts] == ["p99 within 50.0 ms: rate not known"]
    assert "is not known: in runs at 80.0/s and 40.0/s it was longer." in found._html()


def test_a_bound_that_no_rate_keeps_is_a_line_alone() -> None:
    none = fake(lognormal(400)).highest_rate(1.0)

    upper, _ = drawn(fake(lognormal(400), asked=none)).axes

    assert none.rate_per_s == 0
    assert any(np.allclose(line.get_ydata(), 1.0) for line in upper.lines)
    assert "highest rate" not in {text.get_text() for text in upper.get_legend().get_texts()}


def test_a_quantile_that_is_not_known_is_not_drawn() -> None:
    upper, _ = drawn(fake(lognormal(50))).axes

    assert "p99" not in {text.get_text() for text in upper.get_legend().get_texts()}


def test_the_map_has_a_figure_in_each_cell_and_a_mark_at_the_best() -> None:
    batches_ms = {size: np.full(100, 9.0 + size) for size in (2, 4)}
    found = fake(np.full(400, 10.0), asked_rate=150.0, batches_ms=batches_ms)  # one by one 100 a second are served
    best = found.batching.best(150.0)

    html, text = found._repr_mimebundle_()["text/html"], str(found)

    assert text.count("★") == html.count("★") == 2  # the best cell and the caption
    assert "overrun" in text
    shades = [float(each) for each in re.findall(r"rgba\(\d+,\d+,\d+,(\d\.\d\d)\)", html)]
    assert len(shades) == 1 + 2 * 6
    assert max(shades) == 0.5  # overrun
    assert min(shades) == 0.06
    (line,) = [each for each in text.splitlines() if "★" in each and "at most" not in each and "best" not in each]
    assert f"★ {best.p99_ms:.1f} ms" in line


def test_one_request_is_shown_token_by_token() -> None:
    found = with_tokens()

    text, html = str(found), found._repr_mimebundle_()["text/html"]

    assert "The request of median latency in the run at a rate, token by token:" in text
    (bar,) = [line for line in text.splitlines() if set(line) == set("░█▒")]
    assert [bar.count(palette.REQUEST[part].glyph) for part in ("wait", "prefill", "decode")] == [24, 40, 8]
    assert "░ waiting                30.0 ms   33 %" in text
    assert "waiting 30.0 ms, first token (prefill) 50.0 ms, later tokens (decode) 10.0 ms" in html
    assert html.count("5.00 ms</td>") == 2
    assert found.token_times["after_arrival_ms"].tolist() == [7.0, 80.0, 85.0, 90.0]
    figure = Figure()
    draw_timeline(figure, 30.0, [80.0, 85.0, 90.0])
    (axes,) = figure.axes
    *_, between = axes.collections
    assert [path.vertices[0][0] for path in between.get_paths()] == [80.0, 85.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        *(palette.REQUEST[part].word for part in ("wait", "prefill", "decode")),
        "token",
    ]


def test_the_tail_is_said_to_be_waiting_or_service() -> None:
    samples = back_to_back(np.full(400, 10.0))
    samples.loc[:19, "wait_ms"] = 30.0
    samples["latency_ms"] = samples["wait_ms"] + samples["service_ms"]
    run = OpenRun(20.0, samples, 0, 0.0)
    found = fake(np.full(400, 10.0), open_run=run, asked_rate=20.0)

    text = " ".join(str(found).split())

    assert "Of the mean latency, 13 % is waiting for requests before it; of that of the slowest 5.0 %, 75 %." in text
    assert "Computed for this rate from the service times: p50 10.0 ms" in text
    few = dataclasses.replace(run, samples=samples.iloc[:80])
    assert "of that of the slowest" not in str(fake(np.full(400, 10.0), open_run=few, asked_rate=20.0))


def test_a_bound_that_no_rate_keeps_is_named_in_the_picture() -> None:
    found = fake(lognormal(40), asked=HighestRate(0.0, 0.0, 0.0, 5.0, 0.99))

    assert "p99 within 5.00 ms: at no rate" in [each.get_text() for each in drawn(found).axes[0].texts]
