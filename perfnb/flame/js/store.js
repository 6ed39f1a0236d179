// A flame graph's calls as a tree, and the trees of a function's callers and callees.
import { boxStore, ROW } from "../../draw/js/canvas.js";

function callOf(parent, name, own = 0, before = 0) {
  const call = { parent, name, own, before, inside: [], total: 0, totalBefore: 0, wide: 0, start: 0 };
  parent?.inside.push(call);
  return call;
}

export function flameTree(data) {
  const open = [callOf(null, -1)];
  data.depth.forEach((depth, i) => {
    const call = callOf(open[depth], data.name[i], data.self[i], data.before?.[i]);
    open[depth + 1] = call;
    Object.assign(call, { seen: data.seen?.[i], outermost: open[1].name });
  });
  return open[0];
}

// The calls in a tree by depth, with their totals and places. Siblings are sorted by `order`.
export function flameRows(root, order) {
  const all = [root];
  for (const call of all) {
    Object.assign(call, { total: call.own, totalBefore: call.before, wide: Math.max(call.own, call.before) });
    for (const inner of call.inside) all.push(inner);
  }
  for (const { parent, total, totalBefore, wide } of all.slice(1).reverse()) {
    parent.total += total;
    parent.totalBefore += totalBefore;
    parent.wide += wide;
  }
  const inside = (calls) => calls.flatMap((call) => {
    let at = call.start;
    for (const inner of call.inside.sort(order)) {
      inner.start = at;
      at += inner.wide;
    }
    return call.inside;
  });
  const rows = [];
  for (let row = inside([root]); row.length; row = inside(row)) rows.push(row);
  return rows;
}

export function flameStore(rows) {
  const calls = rows.flat();
  let last = 0;
  const lines = rows.map((row, k) => {
    last += row.length;
    return { y: k * ROW, first: last - row.length, last };
  });
  return boxStore(lines, { calls, start: Float64Array.from(calls, ({ start }) => start), duration: Float64Array.from(calls, ({ wide }) => wide) });
}

// The calls of matching functions that are not inside another match.
export function flameMatches(root, isMatch) {
  const found = [];
  const waiting = [...root.inside];
  while (waiting.length) {
    const call = waiting.pop();
    if (isMatch(call.name)) found.push(call);
    else waiting.push(...call.inside);
  }
  return found;
}

// The trees of a function's callers and callees. The function itself is the outermost call in both.
export function flameSandwich(root, f) {
  const [callers, callees] = [callOf(null, -1), callOf(null, -1)];
  const merged = (above, name, own, before) => {
    const call = above.inside.find((inner) => inner.name === name) ?? callOf(above, name);
    call.own += own;
    call.before += before;
    return call;
  };
  const found = flameMatches(root, (name) => name === f);
  for (const call of found) {
    let up = callers;
    for (let at = call; at.parent; at = at.parent) up = merged(up, at.name, 0, 0);
    up.own += call.total;
    up.before += call.totalBefore;
    const waiting = [[call, callees]];
    while (waiting.length) {
      const [from, above] = waiting.pop();
      const to = merged(above, from.name, from.own, from.before);
      waiting.push(...from.inside.map((inner) => [inner, to]));
    }
  }
  return { callers, callees, found };
}
