// The timeline's events: typed arrays sorted by track, depth and start, the queries on them, and how events are
// connected.
import { placeOf } from "../../draw/js/sorted_places.js";

// Does the same as placeOf, but with doubling steps, which is faster for indices near `from`.
export function placeNear(values, value, from, to) {
  let step = 1;
  while (from + step < to && values[from + step] < value) {
    from += step;
    step *= 2;
  }
  return placeOf(values, value, from, Math.min(to, from + step));
}

// The index of the first maximum in values[from..to). Whole blocks are looked up.
const BLOCK = 16;
function greatestOf(values) {
  const greatest = new Uint32Array(Math.ceil(values.length / BLOCK));
  for (let i = 0; i < values.length; i += 1) {
    const block = Math.floor(i / BLOCK);
    if (i % BLOCK === 0 || values[i] > values[greatest[block]]) greatest[block] = i;
  }
  return (from, to) => {
    let best = from;
    for (let i = from; i < to;) {
      const isWhole = i % BLOCK === 0 && i + BLOCK <= to;
      const at = isWhole ? greatest[i / BLOCK] : i;
      if (values[at] > values[best]) best = at;
      i += isWhole ? BLOCK : 1;
    }
    return best;
  };
}

// The rows of a stream are lanes for overlapping work, which is not nested.
const NESTED_TRACKS = new Set(["layers", "thread", "python"]);

// Nesting, launches, and the links between forward and backward.
function timelineLinks({ arrays, reach, before, header, rows, tracks, rowOf, rowAt }) {
  const { start, duration, layer, launch, forward, kind, category } = arrays;
  const total = start.length;
  const end = (i) => start[i] + duration[i];
  const nests = (row) => NESTED_TRACKS.has(row.track.kind);
  const children = (i) => {
    const row = rowOf(i);
    const below = nests(row) ? rowAt(row.track, row.depth + 1) : null;
    return below ? during(below, i) : [0, 0];
  };
  // The event on `row` at a given time.
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
    const steps = tracks.find((track) => track.kind === "steps")?.rows[0];
    const at = steps ? holding(steps, start[i]) : -1;
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
  return { children, parent, self, opAround, launcher, launched, backwardOf, forwardOf, layerAround };
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
  const { start, duration, depth, name, layer } = arrays;
  const total = start.length;
  // The latest end up to an event and the total time before it, for each row (one depth of a track).
  const reach = new Float64Array(total);
  const before = new Float64Array(total + 1);
  const rows = [];
  const tracks = header.tracks.map((facts) => {
    const track = { ...facts, rows: [] };
    for (let from = track.first, end = from + track.count; from < end;) {
      const to = placeOf(depth, depth[from] + 1, from, end);
      const row = { track, depth: depth[from], first: from, last: to, shaded: !PLAIN_TRACKS.has(track.kind) };
      let latest = -Infinity;
      for (let i = from; i < to; i += 1) {
        latest = Math.max(latest, start[i] + duration[i]);
        reach[i] = latest;
        before[i + 1] = before[i] + duration[i];
      }
      rows.push(row);
      track.rows.push(row);
      from = to;
    }
    // For a folded track, the deepest row that covers most of the first row's time.
    const time = (row) => before[row.last] - before[row.first];
    track.head = track.rows.findLast((row) => time(row) >= 0.6 * time(track.rows[0]));
    return track;
  });
  // The label for a box, which is the name, or its most informative part if the name is too wide.
  const labels = [...header.names];
  const brief = header.names.map((text, code) => {
    const short = /^(?:aten::|.*\.(?=[^.\s]+$)|autograd::engine::evaluate_function: |void |at::native::)/s.exec(text)?.[0].length;
    return short ? labels.push(text.slice(short)) - 1 : code;
  });
  const used = new Uint8Array(256);
  for (let i = 0; i < total; i += 1) used[arrays.kind[i]] = 1;
  const firsts = rows.map((row) => row.first);
  const rowOf = (i) => rows[placeOf(firsts, i + 1, 0, rows.length) - 1];
  const end = (i) => start[i] + duration[i];
  const rowAt = (track, level) => track.rows.find((row) => row.depth === level);
  const firstAt = (row, time) => placeOf(reach, time, row.first, row.last);
  const greatest = greatestOf(duration);
  const longest = (from, to) => (from < to ? greatest(from, to) : -1);
  const inside = (row, t0, t1) => {
    const [from, to] = [firstAt(row, t0), placeOf(start, t1, row.first, row.last)];
    if (from >= to) return { from, to: from, busy: 0 };
    return { from, to, busy: before[to] - before[from] - Math.max(0, t0 - start[from]) - Math.max(0, end(to - 1) - t1) };
  };

  // Search. `lit` contains the number of matches before each event, which makes it fast to check a range for matches.
  let lit = null;
  let scope = rows;
  const search = (query) => {
    lit = null;
    scope = rows;
    if (!query) return 0;
    const exact = query.startsWith("layer:") ? header.layers.indexOf(query.slice(6)) : -1;
    const wanted = query.toLowerCase();
    const names = header.names.map((text) => exact < 0 && text.toLowerCase().includes(wanted));
    const layers = header.layers.map((text, code) => (exact < 0 ? text.toLowerCase().includes(wanted) : code === exact));
    lit = new Uint32Array(total + 1);
    for (let i = 0; i < total; i += 1) lit[i + 1] = lit[i] + (names[name[i]] || (layer[i] >= 0 && layers[layer[i]]) ? 1 : 0);
    const spans = rows.filter((row) => row.track.kind === "layers" && lit[row.last] > lit[row.first]);
    if (exact >= 0 && spans.length) scope = spans;
    return scope.reduce((sum, row) => sum + lit[row.last] - lit[row.first], 0);
  };
  // The position at which an event is, or would be, in a row that is sorted by start and then by index.
  const standing = (row, i, time) => {
    if (i >= row.first && i < row.last) return i;
    let at = placeOf(start, time, row.first, row.last);
    if (row.first < i) while (at < row.last && start[at] === time) at += 1;
    return at;
  };
  // The next match after event `i` (from a given time if that is -1), or the previous one.
  const match = (i, time, direction) => {
    let best = -1;
    for (const row of scope) {
      const at = standing(row, i, time);
      const [from, to] = direction > 0 ? [at + (at === i ? 1 : 0), row.last] : [row.first, at];
      if (from >= to || lit[from] === lit[to]) continue;
      const hit = direction > 0 ? placeOf(lit, lit[from] + 1, from + 1, to) - 1 : placeOf(lit, lit[to], from, to) - 1;
      const later = best < 0 ? 0 : start[hit] - start[best] || hit - best;
      if (best < 0 || later * direction < 0) best = hit;
    }
    return best;
  };
  const rank = (i) => scope.reduce((sum, row) => sum + lit[standing(row, i, start[i])] - lit[row.first], 0);

  // The longest events in a time range or, during a search, the longest matches.
  const longestIn = (t0, t1, most) => {
    const found = [];
    let least = -1;
    for (const row of rows) {
      for (let i = firstAt(row, t0); i < row.last && start[i] < t1; i += 1) {
        if (duration[i] <= least || (lit && lit[i + 1] === lit[i])) continue;
        const at = found.findIndex((other) => duration[other] < duration[i]);
        found.splice(at < 0 ? found.length : at, 0, i);
        if (found.length > most) found.pop();
        if (found.length === most) least = duration[found[most - 1]];
      }
    }
    return found;
  };
  // The index in another store of this store's event `i`.
  const same = (i, other) => {
    const row = rowOf(i);
    for (const to of other.rows) {
      if (to.track.title !== row.track.title) continue;
      const at = placeOf(other.start, start[i], to.first, to.last);
      if (other.start[at] === start[i] && other.header.names[other.name[at]] === header.names[name[i]]) return at;
    }
    return -1;
  };
  return {
    ...arrays, header, labels, brief, tracks, rows, total, reach, before, rowOf, rowAt, end, firstAt, longest, inside,
    ...timelineLinks({ arrays, reach, before, header, rows, tracks, rowOf, rowAt }), search, match, rank, longestIn, same, used, highest: header.memory.length ? greatestOf(arrays.memory_bytes) : null,
    get lit() { return lit; },
  };
}
