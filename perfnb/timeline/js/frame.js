// The layout of the timeline, and the drawing of one frame.
import { placeOf } from "../../draw/js/search.js";
import { niceTicks, roundSize } from "../../draw/js/chart.js";
import { LANE, SHADES, boxList, boxPalette, cssOf, mixed, paintRow, readTheme, shadeOf, stripOf, timeMarks } from "./canvas.js";
import { timelineMarks } from "./marks.js";
import { placeNear } from "./search.js";

export function timelineLanes(store, folded) {
  let y = 0;
  const lane = (key, facts, open, more) => {
    const isFolded = folded.has(key) && open > LANE.folded;
    const height = isFolded ? LANE.folded : open;
    y += height + LANE.gap;
    return { key, title: facts.title, note: facts.note, y: y - height - LANE.gap, height, folds: open > LANE.folded, folded: isFolded, ...more };
  };
  const lanes = [
    ...store.tracks.map((track) => {
      const made = lane(`${track.kind} ${track.title}`, track, Math.max(1, 1 + (track.rows.at(-1)?.depth ?? 0)) * LANE.row, { track });
      made.rows = made.folded && track.head ? [track.head] : track.rows;
      return made;
    }),
    ...store.header.memory.map((memory) => lane(`memory ${memory.title}`, memory, LANE.memory, { memory, rows: [] })),
  ];
  const laneOf = new Map(lanes.map((one) => [one.track ?? one.memory, one]));
  return { lanes, laneOf, height: Math.max(LANE.row, y - LANE.gap + 4) };
}

export function timelineFrame(state, canvas, top) {
  const context = canvas.getContext("2d");
  const [strip, boxes] = [stripOf(), boxList()];
  const look = { theme: null, palette: null, layout: null, version: 0 };
  let widths = null;
  const size = { width: 0, height: 0, gutter: 0, ratio: 1 };
  const x = (time) => ((time - state.t0) / (state.t1 - state.t0)) * size.width;
  const timeAt = (px) => state.t0 + (px / size.width) * (state.t1 - state.t0);
  const rowTop = (row) => {
    const lane = look.layout.laneOf.get(row.track);
    return lane.y + (lane.folded ? 0 : row.depth * LANE.row);
  };
  const place = (i) => {
    const from = x(state.store.start[i]);
    return { x0: from, x1: Math.max(from + 2, x(state.store.end(i))), y: rowTop(state.store.rowOf(i)) - state.scroll, height: LANE.row - 1 };
  };

  const setTheme = (element) => {
    look.theme = readTheme(element);
    look.palette = boxPalette(state.store.header.kinds, look.theme);
    look.version += 1;
    widths = new Float32Array(state.store.labels.length);
  };
  const resize = (width, height, gutter) => {
    Object.assign(size, { width, height, gutter, ratio: window.devicePixelRatio || 1 });
    for (const [node, wide, high] of [[canvas, width, height], [top, width + gutter, LANE.axis + LANE.overview]]) {
      [node.width, node.height] = [Math.round(wide * size.ratio), Math.round(high * size.ratio)];
      [node.style.width, node.style.height] = [`${wide}px`, `${high}px`];
    }
  };

  const over = timelineMarks(state, look, context, top, { size, x, place, rowTop });
  const drawRows = () => {
    const { store } = state;
    const across = canvas.width;
    const shown = [];
    for (const lane of look.layout.lanes) {
      for (const row of lane.rows) {
        const y = rowTop(row) - state.scroll;
        if (y > -LANE.row && y < size.height) shown.push([row, y]);
      }
    }
    boxes.size = 0;
    const pixels = strip.pixels(across, Math.max(1, Math.ceil(size.height / LANE.row) + 2));
    shown.forEach(([row], r) => paintRow(store, row, state.t0, state.t1, across, pixels, r * across, look.palette, 24 * size.ratio, boxes));
    strip.put();
    context.imageSmoothingEnabled = false;
    shown.forEach(([, y], r) => context.drawImage(strip.canvas, 0, r, across, 1, 0, y, size.width, LANE.row - 1));
  };

  const widthOf = (code) => {
    if (!widths[code]) widths[code] = context.measureText(state.store.labels[code]).width || 1;
    return widths[code];
  };
  // Names are cut to fit; a box that starts left of the visible range has its name at the edge.
  const drawNames = () => {
    const { store } = state;
    context.font = `11px ${look.theme.family}`;
    context.textBaseline = "middle";
    for (let k = 0; k < boxes.size; k += 1) {
      const [i, from] = [boxes.at[k], boxes.x0[k] / size.ratio + 4];
      const room = boxes.x1[k] / size.ratio - from - 4;
      let code = store.name[i];
      if (widthOf(code) > room && store.brief[code] !== code) code = store.brief[code];
      const text = store.labels[code];
      widthOf(code);
      const letters = Math.floor((text.length * room) / widths[code]) - 1;
      if (widths[code] > room && letters < 2) continue;
      context.fillStyle = boxes.dim[k] ? cssOf(look.theme.quiet) : look.palette.words[store.kind[i] * SHADES.length + shadeOf(boxes.row[k], store.name[i])];
      const y = rowTop(boxes.row[k]) - state.scroll + LANE.row / 2;
      if (widths[code] <= room) context.fillText(text, from, y);
      else context.fillText(`${text.slice(0, letters)}…`, from, y, room);
    }
  };

  const drawMemory = () => {
    const { theme } = look;
    const { memory_t: times, memory_bytes: bytes } = state.store;
    for (const { memory, y: place, height } of look.layout.lanes) {
      const y = place - state.scroll;
      if (!memory || y > size.height || y + height < 0) continue;
      const [most, end] = [1.08 * memory.most || 1, memory.first + memory.count];
      const at = (value) => y + height - (height * Math.max(0, value)) / most;
      context.beginPath();
      context.moveTo(0, y + height);
      let i = placeOf(times, state.t0, memory.first, end);
      let now = i > memory.first ? bytes[i - 1] : 0;
      for (let px = 0; px < size.width; px += 1) {
        const next = placeNear(times, timeAt(px + 1), i, end);
        const peak = next > i ? Math.max(now, bytes[state.store.highest(i, next)]) : now;
        context.lineTo(px, at(peak));
        if (next > i) now = bytes[next - 1];
        context.lineTo(px + 1, at(next > i ? peak : now));
        i = next;
      }
      context.lineTo(size.width, y + height);
      context.fillStyle = cssOf([0, 114, 178], 0.28);
      context.strokeStyle = cssOf(mixed([0, 114, 178], theme.fg, 0.75));
      context.lineWidth = 1;
      context.fill();
      context.stroke();
      context.font = `10.5px ${theme.family}`;
      context.textBaseline = "middle";
      const ticks = height > LANE.folded ? niceTicks(memory.most, 2, 1024).slice(1) : [];
      for (const value of ticks) {
        context.fillStyle = cssOf(theme.fg, 0.16);
        context.fillRect(0, Math.round(at(value)), size.width, 1);
        const words = roundSize(value, memory.most);
        const wide = context.measureText(words).width;
        context.fillStyle = cssOf(theme.bg, 0.75);
        context.fillRect(2, at(value) - 7, wide + 6, 14);
        context.fillStyle = cssOf(theme.quiet);
        context.fillText(words, 5, at(value));
      }
    }
  };

  const draw = () => {
    if (!size.width || !look.theme) return;
    const { store } = state;
    const { theme } = look;
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    for (const lane of look.layout.lanes) {
      context.fillStyle = cssOf(theme.wash);
      context.fillRect(0, lane.y - state.scroll, size.width, lane.height);
    }
    const marks = timeMarks(state.t0, state.t1, Math.max(3, size.width / 120));
    context.fillStyle = cssOf(theme.line);
    for (const [time] of marks) context.fillRect(Math.round(x(time)), 0, 1, size.height);
    drawRows();
    drawMemory();
    drawNames();
    const steps = store.tracks.find((track) => track.kind === "steps");
    context.fillStyle = cssOf(theme.fg, 0.28);
    if (steps && steps.count < 200) for (let i = steps.first; i < steps.first + steps.count; i += 1) context.fillRect(Math.round(x(store.start[i])), 0, 1, size.height);
    over.drawOver();
    over.drawTop(marks);
    [canvas.dataset.from, canvas.dataset.to] = [state.t0, state.t1];
  };

  // What is at a point of the picture: an event (the longest of those that share the pixel), or memory.
  const hit = (px, py) => {
    const { store } = state;
    const y = py + state.scroll;
    const lane = look.layout.lanes.find((one) => y >= one.y - 1 && y < one.y + one.height);
    if (!lane) return null;
    const time = timeAt(px);
    if (lane.memory) {
      const i = placeOf(store.memory_t, time, lane.memory.first, lane.memory.first + lane.memory.count);
      return { lane, time, bytes: i > lane.memory.first ? store.memory_bytes[i - 1] : null };
    }
    const row = lane.folded ? lane.rows[0] : store.rowAt(lane.track, Math.floor((y - lane.y) / LANE.row));
    if (!row) return { lane, time };
    const near = (1.5 * (state.t1 - state.t0)) / size.width;
    const from = store.firstAt(row, time - near);
    const to = placeNear(store.start, time + near, from, row.last);
    for (let i = from; i < Math.min(to, from + 4); i += 1) {
      if (store.start[i] <= time && store.end(i) >= time && store.duration[i] > near) return { lane, time, event: i, of: 1 };
    }
    return from < to && store.start[from] <= time + near ? { lane, time, event: store.longest(from, to), of: to - from } : { lane, time };
  };
  return {
    draw, hit, resize, setTheme, size, x, timeAt, rowTop, place,
    lay: () => {
      look.layout = timelineLanes(state.store, state.folded);
      look.version += 1;
      return look.layout;
    },
  };
}
