// Stores the readings of a watch in the browser as columns by device. Memory use is bounded, even over days.
import { placeAfter } from "../../draw/js/sorted_places.js";

const MOST_POINTS = 4000;
const LATEST_POINTS = 1000; // the number of latest points that are never merged
const ROOM_POINTS = 500;
const MOST_MARKS = 500;
const BREAK_INTERVALS = 2.5;

// The readings of one device. `broken` marks points with a gap before them.
function deviceReadings(columns) {
  const own = {
    size: 0, until: -Infinity, t: new Float64Array(MOST_POINTS), span: new Float64Array(MOST_POINTS), broken: new Uint8Array(MOST_POINTS),
    values: new Map(columns.map((column) => [column, new Float64Array(MOST_POINTS)])), known: new Set(),
  };
  own.add = (t, span, broken, values) => {
    if (own.size === MOST_POINTS) coarsen(own);
    const i = own.size;
    [own.t[i], own.span[i], own.broken[i]] = [t, span, broken ? 1 : 0];
    for (const [column, list] of own.values) {
      const value = values[column];
      list[i] = value ?? NaN;
      if (value != null) own.known.add(column);
    }
    own.size += 1;
  };
  // Returns the last point at or before a time, or -1 if there is none.
  own.before = (time) => placeAfter(own.t, time, own.size) - 1;
  own.nearest = (time) => {
    const i = own.before(time);
    return i < 0 || (i + 1 < own.size && own.t[i + 1] - time < time - own.t[i]) ? i + 1 : i;
  };
  return own;
}

// Makes room by merging neighbouring points, except for the latest, into means that are weighted by the time that each
// point covers. Points that cover the least time are merged first, so that the resolution of the past is uniform.
// Points on either side of a gap are merged last.
function coarsen(own) {
  const old = MOST_POINTS - LATEST_POINTS;
  const whole = own.t[own.size - 1] - own.t[0];
  let least = Infinity;
  for (let i = 1; i < old; i += 1) least = Math.min(least, own.span[i - 1] + own.span[i]);
  for (let most = least; own.size > MOST_POINTS - ROOM_POINTS; most *= 1.5) mergePairs(own, own.size - LATEST_POINTS, most, most > 4 * whole);
}

function mergePairs(own, old, most, overGaps) {
  const lists = [...own.values.values()];
  let to = 0;
  for (let i = 0; i < old; to += 1) {
    const pair = i + 1 < old && own.span[i] + own.span[i + 1] <= 1.001 * most && (overGaps || !own.broken[i + 1]);
    const [a, b] = [own.span[i], pair ? own.span[i + 1] : 0];
    const mean = (list) => {
      if (!pair || Number.isNaN(list[i + 1])) return list[i];
      return Number.isNaN(list[i]) ? list[i + 1] : (a * list[i] + b * list[i + 1]) / (a + b);
    };
    for (const list of [own.t, ...lists]) list[to] = mean(list);
    own.broken[to] = own.broken[i];
    own.span[to] = a + b;
    i += pair ? 2 : 1;
  }
  for (const list of [own.t, own.span, own.broken, ...lists]) list.copyWithin(to, old, own.size);
  own.size -= old - to;
}

// Stores the readings of all devices, the marks and the notes. Listeners are called on each change.
export function watchStore(first) {
  const listeners = new Set();
  const store = { listen: (listener) => (listeners.add(listener), () => listeners.delete(listener)) };
  const changed = (whole) => listeners.forEach((listener) => listener(whole));
  const markKey = ([, depth, start]) => `${depth} ${Math.round(1000 * start)}`;
  const addMarks = (marks) => {
    for (const mark of marks ?? []) {
      store.marks.delete(markKey(mark));
      store.marks.set(markKey(mark), mark);
    }
    for (const [key, [, , , end]] of store.marks) {
      if (store.marks.size <= MOST_MARKS) break;
      if (end == null) continue;
      store.marks.delete(key);
      store.marksLeftOut += 1;
    }
  };
  const addNote = (note) => note && !store.notes.includes(note) && store.notes.push(note);
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
    if (!data.charts) {
      Object.assign(store, { data, running: false });
      changed(true);
      return;
    }
    Object.assign(store, {
      data, pushed: data.pushed ?? 0, running: data.running ?? false, devices: new Map(), marks: new Map(), marksLeftOut: data.marks_left_out ?? 0,
      notes: [...(data.notes ?? [])], first: Infinity, last: -Infinity,
    });
    const columns = new Map(Object.keys(data.words).map((device) => [device, new Set()]));
    for (const { lines } of data.charts) for (const { device, column } of lines) columns.get(device)?.add(column);
    for (const [device, wanted] of columns) {
      store.devices.set(device, deviceReadings([...wanted]));
      const { first, step, devices } = data.history;
      const lists = Object.entries(devices[device] ?? {});
      const count = lists[0]?.[1][1].length ?? 0;
      for (let i = 0; i < count; i += 1) {
        if (lists.every(([, [, list]]) => list[i] == null)) continue;
        const values = Object.fromEntries(lists.map(([column, [factor, list]]) => [column, list[i] == null ? null : factor * list[i]]));
        addRow([device, first + i * step, step, values], step);
      }
    }
    addMarks(data.marks);
    changed(true);
  };
  // Each chunk repeats recent pushes, so that a page that starts listening late misses little.
  store.take = (pushes) => {
    const fresh = pushes.filter(([number]) => number > store.pushed);
    for (const [number, rows, marks, note] of fresh) {
      rows.forEach((row) => addRow(row, store.data.interval_s));
      addMarks(marks);
      addNote(note);
      store.pushed = number;
    }
    if (fresh.length && store.running) changed(false);
  };
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
  const value = own.values.get(column)?.[at];
  return Number.isNaN(value ?? NaN) ? null : value;
}
