"""What the timeline's store answers, against a search through all events."""

from __future__ import annotations

import base64
import random

import pytest

from tests.scripts import evaluated
from tests.timeline import timeline_samples as samples
from tests.timeline.timeline_samples import Event, Track

#: Answers of the store to questions about random events.
_ASK = """async ([packed, asked]) => {
  const store = await unpackTimeline(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)));
  const found = store.find(asked.query);
  const events = [...store.start.keys()];
  return {
    found, matches: store.matches(),
    parent: events.map((i) => store.parent(i)), self: events.map((i) => store.self(i)),
    launched: events.map((i) => store.launched(i).events.sort((a, b) => a - b)),
    busy: store.rows.map((row) => store.inside(row, asked.t0, asked.t1).busy),
    longest: asked.ranges.map(([from, to]) => store.duration[store.longest(from, to)]),
    table: store.longestIn(asked.t0, asked.t1, 15).map((i) => store.duration[i]),
  };
}"""


@pytest.mark.parametrize("seed", range(2))
def test_the_store_answers_as_a_search_through_all_events(seed: int) -> None:
    rng = random.Random(seed)
    threads, kernels = [Track("thread", f"Thread {n}") for n in range(2)], Track("stream", "GPU")

    def nest(track: Track, begin: float, end: float, depth: int) -> None:
        at = begin
        while at < end and depth < 4:
            length = min(end - at, rng.choice([0, 1, 2, 5, 30]))
            track.events.append(
                Event(rng.choice("abc"), at, length, depth=depth, key=f"{id(track)}{len(track.events)}")
            )
            if length > 2:
                nest(track, at, at + length, depth + 1)
            at += length + rng.choice([0, 0.5, 3])

    for track in threads:
        nest(track, 0, 200, 0)
    hosts = [event.key for track in threads for event in track.events]
    kernels.events += [
        Event(rng.choice("ak"), 2.5 * k, rng.randint(1, 5), depth=k % 2, launch=rng.choice([*hosts, ""]))
        for k in range(60)
    ]
    data = samples.encoded([*threads, kernels])
    ordered = [e for track in [*threads, kernels] for e in sorted(track.events, key=lambda e: (e.depth, e.start_us))]
    of = {id(e): track for track in [*threads, kernels] for e in track.events}
    places = {e.key: i for i, e in enumerate(ordered) if e.key}
    n, t0, t1 = len(ordered), 40.0, 90.25
    ranges = [sorted(rng.sample(range(n + 1), 2)) for _ in range(200)]
    asked = {"query": "a", "t0": t0 * 1e3, "t1": t1 * 1e3, "ranges": ranges}
    given = evaluated("timeline/js/store.js", _ASK, [base64.b64encode(data).decode(), asked])

    def within(inner: Event, outer: Event) -> bool:
        same = of[id(inner)] is of[id(outer)] and inner.depth > outer.depth
        return same and outer.start_us <= inner.start_us < outer.start_us + outer.duration_us

    def parent(e: Event) -> list[int]:
        return [i for i, o in enumerate(ordered) if within(e, o) and o.depth == e.depth - 1]

    hits = sorted((i for i, e in enumerate(ordered) if e.name == "a"), key=lambda i: (ordered[i].start_us, i))
    assert given["found"] == len(hits)
    assert given["matches"] == hits
    for i, e in enumerate(ordered):
        if of[id(e)] is kernels:  # its lines are lanes
            assert (given["parent"][i], given["self"][i], given["launched"][i]) == (-1, None, [])
            continue
        if e.duration_us:
            assert [given["parent"][i]] == (parent(e) or [-1])
        inside = sum(o.duration_us for o in ordered if within(o, e) and o.depth == e.depth + 1)
        assert given["self"][i] == pytest.approx(1e3 * (e.duration_us - inside))
        work = [
            k for k, o in enumerate(ordered) if o.launch and (o.launch == e.key or within(ordered[places[o.launch]], e))
        ]
        assert given["launched"][i] == (work if e.key else [])
    rows: dict[tuple[int, int], float] = {}
    for e in ordered:
        key = (id(of[id(e)]), e.depth)
        rows[key] = rows.get(key, 0) + max(0, min(t1, e.start_us + e.duration_us) - max(t0, e.start_us))
    assert given["busy"] == pytest.approx([1e3 * busy for busy in rows.values()])
    lengths = [1e3 * e.duration_us for e in ordered]
    assert given["longest"] == [max(lengths[a:b]) for a, b in ranges]
    shown = [e for e in ordered if e.name == "a" and e.start_us < t1 and e.start_us + e.duration_us >= t0]
    assert given["table"] == sorted((1e3 * e.duration_us for e in shown), reverse=True)[:15]
