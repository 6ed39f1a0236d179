// The timeline's events: typed arrays sorted by track, depth and start, the queries on them, and how events are
// connected.
import { boxStore, greatestOf, PLAIN, SHADES, shadeOf } from "../../draw/js/canvas.js";
import { placeOf } from "../../draw/js/sorted_places.js";

// The rows of a stream are lanes for overlapping work, which is not nested.
const NESTED_TRACKS = new Set(["layers", "thread", "python"]);

// Nesting, launches, and the links between forward and backward.
function timelineLinks({ start, duration, layer, launch, forward, kind, category, total, before, header, rows, tracks, end, rowOf, firstAt }) {
  const rowAt = (track, level) => track.rows.find((row) => row.depth === level);
  const nests = (row) => NESTED_TRACKS.has(row.track.kind);
  const children = (i) => {
    const row = rowOf(i);
    const below = nests(row) ? rowAt(row.track, row.depth + 1) : null;
    return below ? during(below, i) : [0, 0];
  };
  // The event on `row` at a given time.
  const holding = (row, time) => {
    const at = firstAt(row, time);
    return at < row.last && start[at] <= time ? at : -1;
  };
  const parent = (i) => {
    const row = rowOf(i);
    const above = row.depth && nests(row) ? rowAt(row.track, row.depth - 1) : null;
    const at = above ? holding(above, start[i] + duration[i] / 2) : -1;
    return at >= 0 && start[at] <= start[i] ? at : -1;
  };
  const steps = tracks.find((track) => track.kind === "steps")?.rows[0];
  const stepAt = (time) => (steps ? holding(steps, time) : -1);
  // An event's time without its children, or null if it cannot have children.
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

  // A layer and the layers inside it, by name.
  const within = (code) => {
    const name = header.layers[code];
    return Uint8Array.from(header.layers, (other) => (other === name || other.startsWith(`${name}.`) ? 1 : 0));
  };
  // The events in some rows that start during an event, as ranges [from, to).
  const during = (row, i) => [placeOf(start, start[i], row.first, row.last), placeOf(start, end(i), row.first, row.last)];
  const covered = (rows, i) => rows.map((row) => during(row, i)).filter(([from, to]) => from < to);
  // The events on threads that an event covers, as ranges [from, to). They are the event and its children or, for a
  // layer, the events that ran during it in the same phase on the threads of its ops.
  const hosted = (i) => {
    const own = rowOf(i);
    if (own.track.kind === "python") {
      // The ops in a Python call are on its thread's track.
      const track = tracks.find((one) => one.kind === "thread" && one.title === own.track.thread);
      return covered(track?.rows ?? [], i);
    }
    if (own.track.kind === "thread") return [[i, i + 1], ...covered(own.track.rows.filter((row) => row.depth > own.depth), i)];
    if (own.track.kind !== "layers" || layer[i] < 0) return [];
    const inside = within(layer[i]);
    const of = (k) => kind[k] === kind[i] && layer[k] >= 0 && inside[layer[k]];
    const found = [];
    for (const track of tracks) {
      if (track.kind !== "thread") continue;
      const ranges = covered(track.rows, i);
      const ours = ranges.some(([from, to]) => {
        for (let k = from; k < to; k += 1) if (of(k)) return true;
        return false;
      });
      if (ours) found.push(...ranges);
    }
    return found;
  };
  // The events whose links point to the events that event `i` covers. For a layer, only its phase counts.
  const pointing = (links, i) => {
    const ranges = hosted(i).sort((a, b) => a[0] - b[0]);
    if (!ranges.length) return [];
    const [firsts, anyPhase] = [ranges.map(([from]) => from), !isLayer(i)];
    const found = [];
    for (let k = 0; k < total; k += 1) {
      const to = links[k];
      if (to < firsts[0]) continue;
      const at = placeOf(firsts, to + 1, 0, firsts.length) - 1;
      if (to < ranges[at][1] && (anyPhase || kind[to] === kind[i])) found.push(k);
    }
    return found.sort((a, b) => start[a] - start[b] || a - b);
  };
  // Device work launched by event `i` and its children.
  const launched = (i) => {
    const events = pointing(launch, i);
    return { events, busy: events.reduce((sum, k) => sum + duration[k], 0) };
  };
  // The events that are not inside any other event in the list.
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
  // If there is no node, a layer's forward and backward are paired within a step.
  const inStep = (i) => {
    const at = stepAt(start[i]);
    return at < 0 ? [-Infinity, Infinity] : [start[at], end(at)];
  };
  // The backward nodes created by an event or its children and, for a layer, its backward intervals.
  const backwardOf = (i) => {
    if (isLayer(i) && (kind[i] === backwards || layer[i] < 0)) return { layers: [], nodes: [] };
    const nodes = outermost(pointing(forward, i));
    if (!isLayer(i)) return { layers: [], nodes };
    const holds = touching(nodes.map((node) => start[node]));
    let layers = sameLayer(i, (k) => kind[k] === backwards && holds(k));
    const [, last] = inStep(i);
    if (!layers.length) layers = sameLayer(i, (k) => kind[k] === backwards && start[k] >= start[i] && start[k] < last);
    return { layers, nodes };
  };
  // The forward ops of a backward event: the op that created its node, and the outermost op around that op.
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
  // The layer interval that contains an event on a thread, or its launch.
  const layerAround = (i) => {
    if (layer[i] < 0 || isLayer(i)) return -1;
    const by = launch[i] >= 0 ? launch[i] : i;
    return sameLayer(by, (k) => kind[k] === kind[by] && touching([start[by]])(k))[0] ?? -1;
  };
  return { steps, stepAt, children, parent, self, launcher, launched, backwardOf, forwardOf, layerAround };
}

export const PLAIN_TRACKS = new Set(["steps", "phases", "layers"]);
const ARRAY_TYPES = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, i4: Int32Array, u2: Uint16Array, i2: Int16Array, u1: Uint8Array };

export async function unpackTimeline(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return timelineStore(await new Response(stream).arrayBuffer());
}

function timelineStore(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const arrays = {};
  for (const [key, [type, offset, length]] of Object.entries(header.arrays)) arrays[key] = new ARRAY_TYPES[type](buffer, 4 + size + offset, length);
  const { depth, name, layer, kind } = arrays;
  // A row is one depth of a track.
  const tracks = header.tracks.map((facts) => {
    const track = { ...facts, rows: [] };
    for (let first = track.first, last = first, end = first + track.count; first < end; first = last) {
      last = placeOf(depth, depth[first] + 1, first, end);
      track.rows.push({ track, depth: depth[first], first, last });
    }
    return track;
  });
  const rows = tracks.flatMap((track) => track.rows);
  const store = Object.assign(boxStore(rows, arrays), { header, tracks });
  const { start, duration, before, end, firstAt } = store;
  // For a folded track, the deepest row that covers most of the first row's time.
  const time = (row) => before[row.last] - before[row.first];
  for (const track of tracks) track.head = track.rows.findLast((row) => time(row) >= 0.6 * time(track.rows[0]));
  // Ops of the same kind are shaded by name. Phases, steps and layers have the plain colour of their kind.
  const codes = new Uint16Array(start.length);
  for (const row of rows) {
    const isPlain = PLAIN_TRACKS.has(row.track.kind);
    for (let i = row.first; i < row.last; i += 1) codes[i] = kind[i] * SHADES.length + (isPlain ? PLAIN : shadeOf(name[i]));
  }
  // The most informative parts of the names, for boxes that are too narrow for the whole name.
  const brief = header.names.map((text) => text.replace(/^(?:aten::|.*\.(?=[^.\s]+$)|autograd::engine::evaluate_function: |void |at::native::)/s, ""));
  const inside = (row, t0, t1) => {
    const [from, to] = [firstAt(row, t0), placeOf(start, t1, row.first, row.last)];
    if (from >= to) return { from, to: from, busy: 0 };
    return { from, to, busy: before[to] - before[from] - Math.max(0, t0 - start[from]) - Math.max(0, end(to - 1) - t1) };
  };
  // Finds events by a part of their name or layer, or by `layer:` and a layer's full name. In the latter case, only the
  // layer's own intervals are counted, if there are any.
  const find = (query) => {
    const exact = query.startsWith("layer:") ? header.layers.indexOf(query.slice(6)) : -1;
    const matching = (texts) => texts.map((text) => exact < 0 && text.toLowerCase().includes(query.toLowerCase()));
    const [names, layers] = [matching(header.names), matching(header.layers)];
    if (exact >= 0) layers[exact] = true;
    const test = query && ((i) => names[name[i]] || layers[layer[i]]);
    return (exact >= 0 && store.search(test, rows.filter((row) => row.track.kind === "layers"))) || store.search(test);
  };
  // The longest events in a time range or, during a search, the longest matches.
  const longestIn = (t0, t1, most) => {
    const found = [];
    const { lit } = store;
    for (const row of rows) {
      for (let i = firstAt(row, t0); i < row.last && start[i] < t1; i += 1) {
        if (duration[i] <= (duration[found[most - 1]] ?? -1) || (lit && lit[i + 1] === lit[i])) continue;
        const at = found.findIndex((other) => duration[other] < duration[i]);
        found.splice(at < 0 ? found.length : at, 0, i);
        if (found.length > most) found.pop();
      }
    }
    return found;
  };
  // The index in another store of this store's event `i`.
  const same = (i, other) => {
    const { track } = store.rowOf(i);
    for (const to of other.rows) {
      if (to.track.title !== track.title) continue;
      const at = placeOf(other.start, start[i], to.first, to.last);
      if (other.start[at] === start[i] && other.header.names[other.name[at]] === header.names[name[i]]) return at;
    }
    return -1;
  };
  const highest = header.memory.length ? greatestOf(arrays.memory_bytes) : null;
  return Object.assign(store, timelineLinks(store), { codes, brief, inside, find, longestIn, same, highest });
}
