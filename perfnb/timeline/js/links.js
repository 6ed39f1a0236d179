// How events are connected: nesting, launches, and which backward belongs to which forward.
// Rows of a stream are lanes for overlapping work: nothing on them is nested.
import { placeOf } from "../../draw/js/search.js";

const NESTED_TRACKS = new Set(["layers", "thread", "python"]);

export function timelineLinks({ arrays, reach, before, header, rows, tracks, rowOf, rowAt }) {
  const { start, duration, layer, launch, forward, kind, category } = arrays;
  const total = start.length;
  const end = (i) => start[i] + duration[i];
  const nests = (row) => NESTED_TRACKS.has(row.track.kind);
  const children = (i) => {
    const row = rowOf(i);
    const below = nests(row) ? rowAt(row.track, row.depth + 1) : null;
    return below ? [placeOf(start, start[i], below.first, below.last), placeOf(start, end(i), below.first, below.last)] : [0, 0];
  };
  // The event on `row` at a moment.
  const holding = (row, time) => {
    const at = placeOf(reach, time, row.first, row.last);
    return at < row.last && start[at] <= time ? at : -1;
  };
  const parent = (i) => {
    const row = rowOf(i);
    const above = row.depth && nests(row) ? rowAt(row.track, row.depth - 1) : null;
    const at = above ? holding(above, start[i] + duration[i] / 2) : -1;
    return at >= 0 && start[at] <= start[i] ? at : -1;
  };
  // Its time without its children's; null where there can be none.
  const self = (i) => {
    if (!nests(rowOf(i))) return null;
    const [from, to] = children(i);
    return Math.max(0, duration[i] - (before[to] - before[from]));
  };

  const op = header.categories.indexOf("cpu_op");
  const backwards = header.kinds.findIndex((one) => one.word === "backward");
  const isLayer = (i) => rowOf(i).track.kind === "layers";
  // The outermost op around an event with the same layer as the innermost; the event itself if it is an op.
  const opAround = (i) => {
    let found = -1;
    for (let at = i; at >= 0; at = parent(at)) {
      if (category[at] !== op) {
        if (found >= 0) break;
      } else if (found < 0 || layer[at] === layer[found]) found = at;
      else break;
    }
    return found;
  };
  const launcher = (i) => (launch[i] >= 0 ? opAround(launch[i]) : -1);

  // A layer and those inside it, by name.
  const within = (code) => {
    const name = header.layers[code];
    return Uint8Array.from(header.layers, (other) => (other === name || other.startsWith(`${name}.`) ? 1 : 0));
  };
  const cut = (row, from, to) => [placeOf(start, from, row.first, row.last), placeOf(start, to, row.first, row.last)];
  // The events on threads that an event covers, as ranges [from, to): itself and its children; for a layer, what ran
  // during it, in the same phase, on the threads of its ops.
  const hosted = (i) => {
    const own = rowOf(i);
    if (own.track.kind === "python") {
      // The ops of a Python call are on the track of its thread.
      const track = tracks.find((one) => one.kind === "thread" && one.title === own.track.thread);
      return (track?.rows ?? []).map((row) => cut(row, start[i], end(i))).filter(([from, to]) => from < to);
    }
    if (own.track.kind === "thread") {
      const below = own.track.rows.filter((row) => row.depth > own.depth).map((row) => cut(row, start[i], end(i)));
      return [[i, i + 1], ...below].filter(([from, to]) => from < to);
    }
    if (own.track.kind !== "layers" || layer[i] < 0) return [];
    const inside = within(layer[i]);
    const of = (k) => kind[k] === kind[i] && layer[k] >= 0 && inside[layer[k]];
    const found = [];
    for (const track of tracks) {
      if (track.kind !== "thread") continue;
      const ranges = track.rows.map((row) => cut(row, start[i], end(i)));
      const ours = ranges.some(([from, to]) => {
        for (let k = from; k < to; k += 1) if (of(k)) return true;
        return false;
      });
      if (ours) found.push(...ranges.filter(([from, to]) => from < to));
    }
    return found;
  };
  // The events whose links point into the given ranges.
  const pointing = (links, ranges, test = () => true) => {
    if (!ranges.length) return [];
    const sorted = [...ranges].sort((a, b) => a[0] - b[0]);
    const firsts = sorted.map(([from]) => from);
    const found = [];
    for (let k = 0; k < total; k += 1) {
      const to = links[k];
      if (to < firsts[0]) continue;
      const at = placeOf(firsts, to + 1, 0, firsts.length) - 1;
      if (to < sorted[at][1] && test(to, k)) found.push(k);
    }
    return found.sort((a, b) => start[a] - start[b] || a - b);
  };
  // Device work launched by event `i` and its children.
  const launched = (i) => {
    const same = isLayer(i) ? (by) => kind[by] === kind[i] : undefined;
    const events = pointing(launch, hosted(i), same);
    return { events, busy: events.reduce((sum, k) => sum + duration[k], 0) };
  };
  // The events that are not inside another of them.
  const outermost = (events) => {
    const all = new Set(events);
    return events.filter((k) => {
      for (let at = parent(k); at >= 0; at = parent(at)) if (all.has(at)) return false;
      return true;
    });
  };
  const sameLayer = (i, test) => {
    const found = [];
    for (const row of rows) {
      if (row.track.kind !== "layers") continue;
      for (let k = row.first; k < row.last; k += 1) if (layer[k] === layer[i] && test(k)) found.push(k);
    }
    return found.sort((a, b) => start[a] - start[b]);
  };
  const touching = (times) => (k) => times.some((time) => start[k] <= time && time < end(k));
  // Without a node, a layer's forward and backward are paired within one step.
  const inStep = (i) => {
    const steps = tracks.find((track) => track.kind === "steps")?.rows[0];
    const at = steps ? holding(steps, start[i]) : -1;
    return at < 0 ? [-Infinity, Infinity] : [start[at], end(at)];
  };
  // The backward nodes created by an event or its children; for a layer also its intervals.
  const backwardOf = (i) => {
    if (isLayer(i) && (kind[i] === backwards || layer[i] < 0)) return { layers: [], nodes: [] };
    const nodes = outermost(pointing(forward, hosted(i), isLayer(i) ? (by) => kind[by] === kind[i] : undefined));
    if (!isLayer(i)) return { layers: [], nodes };
    const holds = touching(nodes.map((node) => start[node]));
    let layers = sameLayer(i, (k) => kind[k] === backwards && holds(k));
    const [, last] = inStep(i);
    if (!layers.length) layers = sameLayer(i, (k) => kind[k] === backwards && start[k] >= start[i] && start[k] < last);
    return { layers, nodes };
  };
  // The forward of a backward event: the op that created its node, and the outermost op around that.
  const forwardOf = (i) => {
    if (isLayer(i)) {
      if (kind[i] !== backwards || layer[i] < 0) return [];
      const inside = within(layer[i]);
      const made = [];
      for (const [from, to] of hosted(i)) for (let k = from; k < to; k += 1) if (forward[k] >= 0 && layer[k] >= 0 && inside[layer[k]]) made.push(start[forward[k]]);
      const holds = touching(made);
      const found = sameLayer(i, (k) => kind[k] !== backwards && holds(k));
      const [first] = inStep(i);
      return found.length ? found : sameLayer(i, (k) => kind[k] !== backwards && start[k] >= first && start[k] <= start[i]);
    }
    let at = i;
    while (at >= 0 && forward[at] < 0) at = parent(at);
    if (at < 0) return [];
    const outer = opAround(forward[at]);
    return outer >= 0 && outer !== forward[at] ? [outer, forward[at]] : [forward[at]];
  };
  // The interval of the layer that contains an event on a thread, or its launch.
  const layerAround = (i) => {
    if (layer[i] < 0 || isLayer(i)) return -1;
    const by = launch[i] >= 0 ? launch[i] : i;
    return sameLayer(by, (k) => kind[k] === kind[by] && touching([start[by]])(k))[0] ?? -1;
  };
  return { children, parent, self, opAround, launcher, launched, backwardOf, forwardOf, layerAround };
}
