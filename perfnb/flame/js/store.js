// A flame graph's calls as arrays, in the order of a tree traversal, and the trees of callers and callees.
import { placeOf } from "../../draw/js/sorted_places.js";

// Creates the arrays from depths, names and own values, and from `before` for a difference.
function flameArrays(depth, name, own, before) {
  const size = depth.length;
  const [parent, end] = [new Int32Array(size).fill(-1), new Int32Array(size)];
  const [total, start, totalBefore] = [new Float64Array(size), new Float64Array(size), before && new Float64Array(size)];
  const [wide, open] = [before ? new Float64Array(size) : total, []];
  for (let i = 0; i < size; i += 1) {
    open.length = depth[i];
    parent[i] = open[depth[i] - 1] ?? -1;
    open.push(i);
  }
  for (let i = size - 1; i >= 0; i -= 1) {
    end[i] = Math.max(end[i], i + 1);
    total[i] += own[i];
    if (before) {
      totalBefore[i] += before[i];
      wide[i] += Math.max(own[i], before[i]);
    }
    const above = parent[i];
    if (above < 0) continue;
    total[above] += total[i];
    end[above] = Math.max(end[above], end[i]);
    if (before) {
      totalBefore[above] += totalBefore[i];
      wide[above] += wide[i];
    }
  }
  const reached = [0];
  const counts = [];
  for (let i = 0; i < size; i += 1) {
    const level = depth[i];
    start[i] = reached[level];
    reached[level] += wide[i];
    reached[level + 1] = start[i];
    counts[level] = (counts[level] ?? 0) + 1;
  }
  const rows = counts.map((count) => new Int32Array(count));
  const filled = new Int32Array(rows.length);
  for (let i = 0; i < size; i += 1) {
    rows[depth[i]][filled[depth[i]]] = i;
    filled[depth[i]] += 1;
  }
  const starts = rows.map((row) => {
    const values = new Float64Array(row.length);
    for (let k = 0; k < row.length; k += 1) values[k] = start[row[k]];
    return values;
  });
  return { size, depth, name, own, before, parent, end, total, totalBefore, wide, start, rows, starts, whole: reached[0] };
}

export function flameStore(data) {
  const { depth, name } = data;
  const store = flameArrays(new Int32Array(depth), new Int32Array(name), new Float64Array(data.self), data.before && new Float64Array(data.before));
  store.lower = data.names.map((text, i) => `${text} ${data.places[i]}`.toLowerCase());
  store.root = new Int32Array(store.size);
  for (let i = 0; i < store.size; i += 1) store.root[i] = store.parent[i] < 0 ? i : store.root[store.parent[i]];
  return store;
}

// The same calls, with siblings in order of first appearance.
export function flameInOrder(data, { size, parent, depth }) {
  const inside = [[]];
  for (let i = 0; i < size; i += 1) (inside[parent[i] + 1] ??= []).push(i);
  const order = [];
  const waiting = [-1];
  while (waiting.length) {
    const at = waiting.pop();
    if (at >= 0) order.push(at);
    waiting.push(...(inside[at + 1] ?? []).sort((a, b) => data.seen[b] - data.seen[a]));
  }
  const as = (values) => values && order.map((i) => values[i]);
  return { ...data, depth: as(depth), name: as(data.name), self: as(data.self), before: as(data.before) };
}

// The first call in a row that ends after `at`.
export const flameFirst = (store, level, at) => Math.max(0, placeOf(store.starts[level], at, 0, store.starts[level].length) - 1);

// The calls of matching functions that are not inside another match, and their total value.
export function flameMatches(store, lit) {
  const found = [];
  let sum = 0;
  for (let i = 0; i < store.size; ) {
    if (lit[store.name[i]]) {
      found.push(i);
      sum += store.total[i];
      i = store.end[i];
    } else i += 1;
  }
  return { found, sum };
}

// A tree that merges paths of names one at a time.
class FlameMerge {
  constructor() {
    this.nodes = [{ name: -1, own: 0, before: 0, inside: new Map() }];
  }

  inside(at, name) {
    const { inside } = this.nodes[at];
    if (!inside.has(name)) inside.set(name, this.nodes.push({ name, own: 0, before: 0, inside: new Map() }) - 1);
    return inside.get(name);
  }

  arrays(isDifference) {
    const sums = this.nodes.map(({ own, before }) => (isDifference ? Math.max(own, before) : own));
    for (let i = this.nodes.length - 1; i >= 0; i -= 1) for (const child of this.nodes[i].inside.values()) sums[i] += sums[child];
    const [depth, name, own, before] = [[], [], [], []];
    const waiting = [[0, -1]];
    while (waiting.length) {
      const [at, level] = waiting.pop();
      const node = this.nodes[at];
      if (level >= 0) {
        depth.push(level);
        name.push(node.name);
        own.push(node.own);
        before.push(node.before);
      }
      for (const child of [...node.inside.values()].sort((a, b) => sums[a] - sums[b])) waiting.push([child, level + 1]);
    }
    const made = flameArrays(Int32Array.from(depth), Int32Array.from(name), Float64Array.from(own), isDifference ? Float64Array.from(before) : undefined);
    made.root = new Int32Array(made.size).fill(-1);
    return made;
  }
}

// The trees of a function's callers and callees. The function itself is the outermost call in both.
export function flameSandwich(store, f) {
  const lit = [];
  lit[f] = true;
  const { found } = flameMatches(store, lit);
  const [callers, callees] = [new FlameMerge(), new FlameMerge()];
  for (const i of found) {
    let up = 0;
    for (let at = i; at >= 0; at = store.parent[at]) up = callers.inside(up, store.name[at]);
    callers.nodes[up].own += store.total[i];
    callers.nodes[up].before += store.totalBefore?.[i] ?? 0;
    const open = [0];
    for (let at = i; at < store.end[i]; at += 1) {
      open.length = store.depth[at] - store.depth[i] + 1;
      const down = callees.inside(open.at(-1), store.name[at]);
      callees.nodes[down].own += store.own[at];
      callees.nodes[down].before += store.before?.[at] ?? 0;
      open.push(down);
    }
  }
  const isDifference = Boolean(store.before);
  return { callers: callers.arrays(isDifference), callees: callees.arrays(isDifference), calls: found.length };
}
