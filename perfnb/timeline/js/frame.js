// The layout of the timeline, and what it draws in addition to boxes: lines to the partners of the selected event, a
// marked range, memory, and the overview and axis at the top.
import { boxFrame, cssOf, mixed, paintBox, pixelLines, placeNear, resized, ROW } from "../../draw/js/canvas.js";
import { niceTicks, roundSize } from "../../draw/js/chart.js";
import { duration } from "../../draw/js/format.js";
import { placeOf } from "../../draw/js/sorted_places.js";

export const LANE = { gap: 8, memory: 64, axis: 24, overview: 40, gutter: 150 };

// Round times for the axis and their labels, in one unit that distinguishes neighbours.
function timeMarks(t0, t1, wanted) {
  const rough = (t1 - t0) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const most = Math.max(Math.abs(t0), Math.abs(t1));
  const [unit, word] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([one]) => most >= one && step >= one / 1000) ?? [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const marks = [];
  for (let at = Math.ceil(t0 / step) * step; at <= t1; at += step) {
    const value = (Math.round(at / step) * step) / unit;
    marks.push([at, `${(value || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${word}`]);
  }
  return marks;
}

// The tracks, one below the other. A folded track only shows its head.
export function timelineLanes(store, folded) {
  let y = 0;
  const lane = (key, { title, note }, open, more) => {
    const made = { key, title, note, y, folds: open > ROW, folded: open > ROW && folded.has(key), ...more };
    made.height = made.folded ? ROW : open;
    y += made.height + LANE.gap;
    return made;
  };
  const lanes = [
    ...store.tracks.map((track) => {
      const made = lane(`${track.kind} ${track.title}`, track, (1 + (track.rows.at(-1)?.depth ?? 0)) * ROW, { track });
      made.rows = made.folded && track.head ? [track.head] : track.rows;
      for (const row of track.rows) row.y = made.y + (made.folded ? 0 : row.depth * ROW);
      track.lane = made;
      return made;
    }),
    ...store.header.memory.map((memory) => lane(`memory ${memory.title}`, memory, LANE.memory, { memory, rows: [] })),
  ];
  return { lanes, height: y - LANE.gap + 4 };
}

export function timelineFrame(state, top) {
  const frame = boxFrame(state, (i, letters) => {
    const { header, name, brief } = state.store;
    const full = header.names[name[i]];
    return full.length > letters ? brief[name[i]] : full;
  });
  const { context, size, x, timeAt } = frame;
  const above = top.getContext("2d");
  const overview = pixelLines();
  let painted = [];

  const resize = (width, height) => {
    frame.resize(width, height);
    resized(top, width + LANE.gutter, LANE.axis + LANE.overview);
  };

  // Lines from the selected event to its partners. If a partner is not visible, its line ends at the edge.
  const drawLinks = () => {
    const { store, theme } = state;
    const clamp = (value, most) => Math.min(most + 24, Math.max(-24, value));
    for (const { from, to } of state.links) {
      const [a, b] = [from, to].map((i) => ({ x0: x(store.start[i]), x1: x(store.end(i)), y: frame.top(store.rowOf(i)) }));
      const [x0, x1] = [clamp((Math.max(a.x0, 0) + Math.min(a.x1, size.width)) / 2, size.width), clamp(b.x0 + 1, size.width)];
      const down = b.y >= a.y;
      const [y0, y1] = [clamp(a.y + (down ? ROW - 1 : 0), size.height), clamp(b.y + (down ? 0 : ROW - 1), size.height)];
      const bend = Math.max(28, Math.abs(y1 - y0) * 0.5) * (down ? 1 : -1);
      for (const [strokeStyle, lineWidth] of [[cssOf(theme.bg, 0.8), 4], [cssOf(theme.fg, 0.85), 1.5]]) {
        Object.assign(context, { strokeStyle, lineWidth });
        context.stroke(new Path2D(`M${x0},${y0}C${x0},${y0 + bend} ${x1},${y1 - bend} ${x1},${y1}`));
      }
      context.beginPath();
      context.arc(x1, y1, 3, 0, 7);
      context.fillStyle = cssOf(theme.fg);
      context.fill();
      frame.outline(from === state.selected ? to : from, theme.fg, 1.2);
    }
  };

  const drawInterval = () => {
    if (!state.interval) return;
    const [a, b] = state.interval.map((time) => Math.min(size.width + 2, Math.max(-2, x(time))));
    paintBox(context, cssOf(state.theme.fg, 0.1), a, 0, b - a, size.height);
    for (const at of [a, b]) paintBox(context, cssOf(state.theme.fg, 0.7), at - 0.5, 0, 1, size.height);
  };

  const drawMemory = ({ memory, y: place, height }) => {
    const { theme, store: { memory_t: times, memory_bytes: bytes, highest } } = state;
    const y = place - state.scroll;
    const [most, end] = [1.08 * memory.most || 1, memory.first + memory.count];
    const at = (value) => y + height - (height * Math.max(0, value)) / most;
    context.beginPath();
    context.moveTo(0, y + height);
    let i = placeOf(times, state.t0, memory.first, end);
    let now = i > memory.first ? bytes[i - 1] : 0;
    for (let px = 0; px < size.width; px += 1) {
      const next = placeNear(times, timeAt(px + 1), i, end);
      context.lineTo(px, at(next > i ? Math.max(now, bytes[highest(i, next)]) : now));
      if (next > i) now = bytes[next - 1];
      context.lineTo(px + 1, at(now));
      i = next;
    }
    context.lineTo(size.width, y + height);
    Object.assign(context, { fillStyle: cssOf([0, 114, 178], 0.28), strokeStyle: cssOf(mixed([0, 114, 178], theme.fg, 0.75)), lineWidth: 1 });
    context.fill();
    context.stroke();
    for (const value of height > ROW ? niceTicks(memory.most, 2, 1024).slice(1) : []) {
      paintBox(context, cssOf(theme.fg, 0.16), 0, Math.round(at(value)), size.width, 1);
      const text = roundSize(value, memory.most);
      paintBox(context, cssOf(theme.bg, 0.75), 2, at(value) - 7, context.measureText(text).width + 6, 14);
      context.fillStyle = cssOf(theme.quiet);
      context.fillText(text, 5, at(value));
    }
  };

  // The whole time range with a frame around the visible part, and the axis of the visible part.
  const drawTop = (marks) => {
    const { store, theme, palette } = state;
    const { width, ratio } = size;
    const { gutter } = LANE;
    const { start_ns: begin, end_ns: end } = store.header;
    const across = Math.round(width * ratio);
    const rows = store.tracks.filter(({ head }) => head).map(({ head }) => head);
    const shown = [store, store.lit, palette, across];
    if (shown.some((part, i) => part !== painted[i])) overview.paint(store, rows, [begin, end], across, palette);
    painted = shown;
    above.setTransform(ratio, 0, 0, ratio, 0, 0);
    above.clearRect(0, 0, gutter + width, LANE.axis + LANE.overview);
    const high = LANE.overview - 6;
    paintBox(above, cssOf(theme.wash), gutter, 0, width, high);
    above.imageSmoothingEnabled = rows.length > 16;
    above.drawImage(overview.canvas, 0, 0, across, Math.max(1, rows.length), gutter, 1, width, high - 2);
    const at = (time) => gutter + ((time - begin) / (end - begin)) * width;
    let [from, to] = [Math.max(gutter, at(state.t0)), Math.min(gutter + width, at(state.t1))];
    if (to - from < 4) [from, to] = [(from + to) / 2 - 2, (from + to) / 2 + 2];
    paintBox(above, cssOf(theme.bg, 0.68), gutter, 0, from - gutter, high);
    above.fillRect(to, 0, gutter + width - to, high);
    Object.assign(above, { strokeStyle: cssOf(theme.fg, 0.75), lineWidth: 1.5, font: `11px ${theme.family}`, textBaseline: "middle", textAlign: "left" });
    above.fillStyle = cssOf(theme.quiet);
    above.strokeRect(from + 0.5, 0.75, Math.max(2, to - from - 1), high - 1.5);
    above.fillText(`All: ${duration((end - begin) / 1e6)}`, 2, high / 2);
    above.fillText(`Visible: ${duration((Math.min(end, state.t1) - Math.max(begin, state.t0)) / 1e6)}`, 2, LANE.overview + LANE.axis / 2);
    above.textAlign = "center";
    const middle = LANE.overview + LANE.axis / 2 - 2;
    for (const [time, text] of marks) {
      const px = gutter + x(time);
      paintBox(above, cssOf(theme.fg, 0.35), px, LANE.overview + LANE.axis - 5, 1, 5);
      above.fillStyle = cssOf(theme.quiet);
      const half = above.measureText(text).width / 2;
      if (px - half >= gutter && px + half <= gutter + width) above.fillText(text, px, middle);
    }
    if (state.interval) {
      const [a, b] = state.interval;
      const text = duration((b - a) / 1e6);
      const half = above.measureText(text).width / 2 + 6;
      const px = Math.min(gutter + width - half, Math.max(gutter + half, gutter + x((a + b) / 2)));
      above.clearRect(px - half - 40, LANE.overview, 2 * half + 80, LANE.axis - 5);
      paintBox(above, cssOf(theme.fg), px - half, LANE.overview, 2 * half, LANE.axis - 5);
      above.fillStyle = cssOf(theme.bg);
      above.fillText(text, px, middle);
    }
  };

  const draw = () => {
    const { store, theme, lanes } = state;
    frame.clear();
    for (const lane of lanes) paintBox(context, cssOf(theme.wash), 0, lane.y - state.scroll, size.width, lane.height);
    const marks = timeMarks(state.t0, state.t1, Math.max(3, size.width / 120));
    for (const [time] of marks) paintBox(context, cssOf(theme.line), Math.round(x(time)), 0, 1, size.height);
    frame.drawBoxes();
    for (const lane of lanes) if (lane.memory) drawMemory(lane);
    const steps = store.steps && store.steps.last - store.steps.first < 200 ? store.start.subarray(store.steps.first, store.steps.last) : [];
    for (const time of steps) paintBox(context, cssOf(theme.fg, 0.28), Math.round(x(time)), 0, 1, size.height);
    drawInterval();
    drawLinks();
    frame.drawChosen();
    if (state.pointer) paintBox(context, cssOf(theme.fg, 0.3), Math.round(state.pointer.x), 0, 1, size.height);
    drawTop(marks);
  };

  // The event at a point in the picture, or the memory.
  const hit = (point) => {
    const { memory_t: times, memory_bytes: bytes } = state.store;
    const y = point.y + state.scroll;
    const lane = state.lanes.find((one) => one.memory && y >= one.y && y < one.y + one.height);
    if (!lane) return frame.hit(point);
    const { first, count } = lane.memory;
    const i = placeOf(times, timeAt(point.x), first, first + count);
    return { title: lane.title, time: timeAt(point.x), bytes: i > first ? bytes[i - 1] : null };
  };
  return { ...frame, draw, hit, resize };
}
