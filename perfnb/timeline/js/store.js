// The timeline's events: typed arrays sorted by track, depth and start, and the queries on them.
import { placeOf } from "../../draw/js/search.js";
import { timelineLinks } from "./links.js";
import { greatestOf } from "./search.js";

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
  // For each row (one depth of one track): the latest end up to an event, and the total time before it.
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
    // For a folded track: the deepest row that covers most of the first row's time.
    const time = (row) => before[row.last] - before[row.first];
    track.head = track.rows.findLast((row) => time(row) >= 0.6 * time(track.rows[0]));
    return track;
  });
  // Labels for boxes: the name, or its most telling part if it is too wide.
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

  // Search: `lit` counts the matches before each event, so that any range can be checked for a match at once.
  let lit = null;
  let scope = rows;
  const small = { names: header.names.map((text) => text.toLowerCase()), layers: header.layers.map((text) => text.toLowerCase()) };
  const flags = (texts, test) => Uint8Array.from(texts, (text) => (test(text) ? 1 : 0));
  const search = (query) => {
    lit = null;
    scope = rows;
    if (!query) return 0;
    const exact = query.startsWith("layer:") && header.layers.indexOf(query.slice(6));
    const wanted = query.toLowerCase();
    const names = exact === false || exact < 0 ? flags(small.names, (text) => text.includes(wanted)) : new Uint8Array(small.names.length);
    const layers = exact === false || exact < 0 ? flags(small.layers, (text) => text.includes(wanted)) : flags(small.layers.keys(), (i) => i === exact);
    lit = new Uint32Array(total + 1);
    for (let i = 0; i < total; i += 1) lit[i + 1] = lit[i] + (names[name[i]] | (layer[i] < 0 ? 0 : layers[layer[i]]));
    const spans = rows.filter((row) => row.track.kind === "layers" && lit[row.last] > lit[row.first]);
    if (exact >= 0 && exact !== false && spans.length) scope = spans;
    return scope.reduce((sum, row) => sum + lit[row.last] - lit[row.first], 0);
  };
  // The position of an event, present or not, in a row ordered by start, then by index.
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

  // The longest events in a time range; with a search, the longest matches.
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
  // This store's event `i` in another store.
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
