// Stores the readings of a watch in the browser as columns by device. Memory use is bounded, even over days.
import { placeAfter } from "../../draw/js/sorted_places.js";

const MOST_POINTS = 4000;
const LATEST_POINTS = 1000; // the number of latest points that are never merged
const MERGED_POINTS = 2000;
const MOST_MARKS = 500;
const BREAK_INTERVALS = 2.5;

// The readings of one device. `broken` marks points with a gap before them.
function deviceReadings() {
  const [t, span, broken, values] = [new Float64Array(MOST_POINTS), new Float64Array(MOST_POINTS), new Uint8Array(MOST_POINTS), new Map()];
  const own = { size: 0, until: -Infinity, t, span, broken, values };
  own.add = (time, covered, afterGap, row) => {
    if (own.size === MOST_POINTS) coarsen(own);
    for (const [column, value] of Object.entries(row)) {
      if (value != null && !values.has(column)) values.set(column, new Float64Array(MOST_POINTS).fill(NaN));
    }
    [t[own.size], span[own.size], broken[own.size]] = [time, covered, afterGap ? 1 : 0];
    for (const [column, list] of values) list[own.size] = row[column] ?? NaN;
    own.size += 1;
  };
  // Returns the last point at or before a time, or -1 if there is none.
  own.before = (time) => placeAfter(t, time, own.size) - 1;
  own.nearest = (time) => {
    const i = own.before(time);
    return i < 0 || (i + 1 < own.size && t[i + 1] - time < time - t[i]) ? i + 1 : i;
  };
  return own;
}

// Makes room by merging the points in each of many equal parts of the past, except for the latest points, into means
// that are weighted by the time that each point covers.
function coarsen(own) {
  const { t, span, broken } = own;
  const lists = [t, ...own.values.values()];
  const old = own.size - LATEST_POINTS;
  const parts = Array.from(t.subarray(0, old), (time) => Math.floor((MERGED_POINTS * (time - t[0])) / (t[old] - t[0])));
  let to = -1;
  for (let i = 0; i < old; i += 1) {
    if (parts[i] !== parts[i - 1]) {
      to += 1;
      for (const list of [...lists, span, broken]) list[to] = list[i];
      continue;
    }
    const [a, b] = [span[to], span[i]];
    for (const list of lists) {
      if (Number.isNaN(list[to])) list[to] = list[i];
      else if (!Number.isNaN(list[i])) list[to] = (a * list[to] + b * list[i]) / (a + b);
    }
    span[to] = a + b;
  }
  for (const list of [...lists, span, broken]) list.copyWithin(to + 1, old, own.size);
  own.size -= old - to - 1;
}

// Stores the readings of all devices, the marks and the notes. Listeners are called on each change.
export function watchStore(first) {
  const listeners = new Set();
  const store = { listen: (listener) => (listeners.add(listener), () => listeners.delete(listener)) };
  const changed = (whole) => listeners.forEach((listener) => listener(whole));
  const markKey = ([, depth, start]) => `${depth} ${Math.round(1000 * start)}`;
  const addMarks = (marks) => {
    for (const mark of marks) {
      store.marks.delete(markKey(mark));
      store.marks.set(markKey(mark), mark);
    }
    for (const [key, [, , , end]] of store.marks) {
      if (store.marks.size > MOST_MARKS && end != null) store.marks.delete(key);
    }
  };
  const addRow = ([device, t, span, values], interval) => {
    const own = store.devices.get(device);
    if (!own || !(t > own.until)) return;
    own.add(t, span > 0 ? span : interval, own.size && t - own.until > BREAK_INTERVALS * interval, values);
    own.until = t;
    store.first = Math.min(store.first, t);
    store.last = Math.max(store.last, t);
  };
  // Replaces everything at the start, after a reload, and at the end of the watch, when it becomes a document.
  store.load = (data) => {
    Object.assign(store, { data, running: data.running ?? false });
    if (data.charts) {
      Object.assign(store, {
        pushed: data.pushed ?? 0, devices: new Map(Object.keys(data.words).map((device) => [device, deviceReadings()])), marks: new Map(),
        notes: [...(data.notes ?? [])], first: Infinity, last: -Infinity,
      });
      const { first: from, step, devices } = data.history;
      for (const [device, columns] of Object.entries(devices)) {
        const lists = Object.entries(columns);
        lists[0][1][1].forEach((_, i) => {
          const known = lists.filter(([, [, list]]) => list[i] != null).map(([column, [factor, list]]) => [column, factor * list[i]]);
          if (known.length) addRow([device, from + i * step, step, Object.fromEntries(known)], step);
        });
      }
      addMarks(data.marks);
    }
    changed(true);
  };
  // Each chunk repeats recent pushes, so that a page that starts listening late misses little.
  store.take = (pushes) => {
    const fresh = pushes.filter(([number]) => number > store.pushed);
    for (const [number, rows, marks, note] of fresh) {
      rows.forEach((row) => addRow(row, store.data.interval_s));
      addMarks(marks);
      if (note && !store.notes.includes(note)) store.notes.push(note);
      store.pushed = number;
    }
    if (fresh.length && store.running) changed(false);
  };
  store.has = (device, column) => store.devices.get(device)?.values.has(column);
  store.marked = () => [...store.marks.values()];
  store.load(first);
  return store;
}

// Returns the reading nearest to a time, or null if there is none.
export function readAt(own, column, time, interval) {
  const [i, at] = [own.before(time), own.nearest(time)];
  if (at >= own.size) return null;
  const outside = i < 0 || i + 1 >= own.size || own.broken[i + 1];
  if (outside && Math.abs(own.t[at] - time) > (BREAK_INTERVALS * interval) / 2) return null;
  const value = own.values.get(column)[at];
  return Number.isNaN(value) ? null : value;
}
