// The layout of the timeline, and the drawing of one frame: the rows, what is drawn over them (the selected event, its
// partners, a marked range) and above them (overview, axis). A frame costs as much as its pixels, however many events
// there are: each row is one line of pixels, computed pixel by pixel with a search, and stretched to the row's height.
import { canvasPattern, canvasTheme, cssOf, inkOn, mixed, PLAIN, resized, rgbOf, SHADES, shaded, shadeOf } from "../../draw/js/canvas.js";
import { niceTicks, roundSize } from "../../draw/js/chart.js";
import { duration } from "../../draw/js/format.js";
import { placeOf } from "../../draw/js/sorted_places.js";
import { placeNear } from "./store.js";

export const LANE = { row: 18, gap: 8, memory: 64, folded: 18, axis: 24, overview: 40 };
const COVERS = 8;

const paintBox = (context, colour, ...box) => {
  context.fillStyle = colour;
  context.fillRect(...box);
};

function timelineTheme(element) {
  const theme = canvasTheme(element);
  const towards = (part) => mixed(theme.fg, theme.bg, part);
  return { ...theme, quiet: towards(0.72), line: towards(0.13), wash: towards(0.05) };
}

// The colours of boxes (as pixels) and of their labels, by kind, shade, share of the pixel, and whether a search hides
// them.
function boxPalette(kinds, { fg, bg }, context) {
  const colours = new Uint32Array(kinds.length * SHADES.length * COVERS * 2);
  const words = [];
  kinds.forEach(({ colour }, k) => {
    shaded(rgbOf(colour)).forEach((full, s) => {
      words.push(inkOn(full));
      for (let cover = 0; cover < COVERS; cover += 1) {
        const solid = mixed(full, bg, 0.35 + (0.65 * cover) / (COVERS - 1));
        [solid, mixed(mixed(solid, fg, 0.3), bg, 0.16)].forEach(([r, g, b], dim) => {
          colours[((k * SHADES.length + s) * COVERS + cover) * 2 + dim] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
        });
      }
    });
  });
  return { colours, words, patterns: kinds.map((kind) => canvasPattern(context, kind)) };
}

// Ops of the same kind are shaded by name. Phases, steps and layers have the plain colour of their kind.
const shadeIn = (row, name) => (row.shaded ? shadeOf(name) : PLAIN);

// Writes a row to pixels[base..base + width). Boxes that are wide enough for a pattern are added to `boxes`.
function paintRow(store, row, t0, t1, width, pixels, base, { colours }, roomy, boxes) {
  const { start, duration, kind, name, before, lit, longest } = store;
  const scale = width / (t1 - t0);
  let i = store.firstAt(row, t0);
  while (i < row.last && start[i] < t1) {
    const x = (start[i] - t0) * scale;
    const wide = duration[i] * scale;
    const from = x <= 0 ? 0 : x | 0;
    if (wide >= 1.5) {
      const to = Math.min(width, Math.max(from + 1, Math.round(x + wide)));
      const dim = lit && lit[i + 1] === lit[i] ? 1 : 0;
      pixels.fill(colours[((kind[i] * SHADES.length + shadeIn(row, name[i])) * COVERS + COVERS - 1) * 2 + dim], base + from, base + (to - from > 3 ? to - 1 : to));
      if (to - from > roomy) boxes.push({ i, row, from, to, dim });
      i += 1;
      continue;
    }
    let next = placeNear(start, t0 + (from + 1) / scale, i + 1, row.last);
    let most = next > i + 1 ? longest(i, next) : i;
    if (duration[most] * scale >= 1.5) {
      next = most;
      most = i;
    }
    const cover = Math.min(COVERS - 1, Math.round((before[next] - before[i]) * scale * (COVERS - 1)));
    const dim = lit && lit[next] === lit[i] ? 1 : 0;
    if (from < width) pixels[base + from] = colours[((kind[most] * SHADES.length + PLAIN) * COVERS + cover) * 2 + dim];
    i = next;
  }
}

// Lines of pixels, one per row, which are stretched by drawImage.
function stripOf() {
  const canvas = document.createElement("canvas");
  let image = null;
  return {
    canvas,
    pixels(width, height) {
      if (!image || canvas.width !== width || canvas.height < height) {
        [canvas.width, canvas.height] = [width, height];
        image = canvas.getContext("2d").createImageData(width, height);
        this.words = new Uint32Array(image.data.buffer);
      } else this.words.fill(0);
      return this.words;
    },
    put: () => canvas.getContext("2d").putImageData(image, 0, 0),
  };
}

// Round times for the axis and their labels, in one unit that distinguishes neighbours.
function timeMarks(t0, t1, wanted) {
  const rough = (t1 - t0) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const most = Math.max(Math.abs(t0), Math.abs(t1));
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const decimalsIn = (unit) => Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const [unit, word] = units.find(([one]) => most >= one && decimalsIn(one) < 4) ?? units.find(([one]) => decimalsIn(one) < 4) ?? units[3];
  const digits = decimalsIn(unit);
  const marks = [];
  for (let at = Math.ceil(t0 / step) * step; at <= t1; at += step) {
    const value = (Math.round(at / step) * step) / unit;
    marks.push([at, `${(value || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${word}`]);
  }
  return marks;
}

function timelineMarks(state, look, context, top, { size, x, place, rowTop }) {
  const above = top.getContext("2d");
  const overview = stripOf();
  let drawnKey = "";
  const outline = (i, colour, width) => {
    const { x0, x1, y, height } = place(i);
    if (x1 < -4 || x0 > size.width + 4) return;
    const [left, right] = [Math.max(-4, x0), Math.min(size.width + 4, x1)];
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left, y, Math.max(2, right - left - 1), height);
  };

  // Lines from the selected event to its partners. If a partner is not visible, its line ends at the edge.
  const drawLinks = () => {
    const { theme } = look;
    const clamp = (value, most) => Math.min(most + 24, Math.max(-24, value));
    for (const { from, to } of state.links) {
      const [a, b] = [place(from), place(to)];
      const [x0, x1] = [clamp((Math.max(a.x0, 0) + Math.min(a.x1, size.width)) / 2, size.width), clamp(b.x0 + 1, size.width)];
      const down = b.y >= a.y;
      const [y0, y1] = [clamp(a.y + (down ? a.height : 0), size.height), clamp(b.y + (down ? 0 : b.height), size.height)];
      const bend = Math.max(28, Math.abs(y1 - y0) * 0.5) * (down ? 1 : -1);
      for (const [colour, width] of [[cssOf(theme.bg, 0.8), 4], [cssOf(theme.fg, 0.85), 1.5]]) {
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
        context.lineWidth = width;
        context.strokeStyle = colour;
        context.stroke();
      }
      context.beginPath();
      context.arc(x1, y1, 3, 0, 7);
      context.fillStyle = cssOf(theme.fg);
      context.fill();
      const partner = from === state.selected ? to : from;
      outline(partner, cssOf(theme.fg, 0.8), 1.2);
    }
  };

  const drawLayer = () => {
    if (state.layer < 0) return;
    const { store } = state;
    context.fillStyle = cssOf(look.theme.fg, 0.9);
    let left = 4000;
    for (const lane of look.layout.lanes) {
      if (lane.track?.kind !== "layers") continue;
      for (const row of lane.rows) {
        const y = rowTop(row) - state.scroll + LANE.row - 4;
        if (y < -4 || y > size.height) continue;
        for (let i = store.firstAt(row, state.t0); i < row.last && store.start[i] < state.t1 && left > 0; i += 1) {
          if (store.layer[i] !== state.layer) continue;
          const from = Math.max(0, x(store.start[i]));
          context.fillRect(from, y, Math.max(2, Math.min(size.width, x(store.end(i))) - from - 1), 3);
          left -= 1;
        }
      }
    }
  };

  const drawInterval = () => {
    if (!state.interval) return;
    const [a, b] = state.interval.map((time) => Math.min(size.width + 2, Math.max(-2, x(time))));
    paintBox(context, cssOf(look.theme.fg, 0.1), a, 0, b - a, size.height);
    for (const at of [a, b]) paintBox(context, cssOf(look.theme.fg, 0.7), at - 0.5, 0, 1, size.height);
  };

  // The selected event, the event under the pointer, and other events with the same name.
  const drawOver = () => {
    const { theme } = look;
    drawLayer();
    drawInterval();
    drawLinks();
    if (state.hovered >= 0 && state.hovered !== state.selected) outline(state.hovered, cssOf(theme.fg, 0.7), 1);
    if (state.selected >= 0) {
      outline(state.selected, cssOf(theme.bg), 4);
      outline(state.selected, cssOf(theme.fg), 2);
    }
    if (!state.pointer) return;
    paintBox(context, cssOf(theme.fg, 0.3), Math.round(state.pointer.x), 0, 1, size.height);
  };

  const drawTop = (marks) => {
    const { store } = state;
    const { theme, palette, layout } = look;
    const { gutter, width, ratio } = size;
    const { start_ns: begin, end_ns: end } = store.header;
    above.setTransform(ratio, 0, 0, ratio, 0, 0);
    above.clearRect(0, 0, gutter + width, LANE.axis + LANE.overview);
    const across = Math.round(width * ratio);
    const key = `${store.total} ${state.query} ${across} ${look.version}`;
    const heads = layout.lanes.filter((lane) => lane.track?.head).map((lane) => lane.track.head);
    if (key !== drawnKey) {
      drawnKey = key;
      const pixels = overview.pixels(across, Math.max(1, heads.length));
      heads.forEach((row, r) => paintRow(store, row, begin, end, across, pixels, r * across, palette, Infinity, null));
      overview.put();
    }
    const high = LANE.overview - 6;
    paintBox(above, cssOf(theme.wash), gutter, 0, width, high);
    above.imageSmoothingEnabled = heads.length > 16;
    above.drawImage(overview.canvas, 0, 0, across, Math.max(1, heads.length), gutter, 1, width, high - 2);
    const at = (time) => gutter + ((time - begin) / (end - begin)) * width;
    let [from, to] = [Math.max(gutter, at(state.t0)), Math.min(gutter + width, at(state.t1))];
    if (to - from < 4) [from, to] = [(from + to) / 2 - 2, (from + to) / 2 + 2];
    paintBox(above, cssOf(theme.bg, 0.68), gutter, 0, from - gutter, high);
    above.fillRect(to, 0, gutter + width - to, high);
    above.strokeStyle = cssOf(theme.fg, 0.75);
    above.lineWidth = 1.5;
    above.strokeRect(from + 0.5, 0.75, Math.max(2, to - from - 1), high - 1.5);
    for (const edge of [from, to]) paintBox(above, cssOf(theme.fg, 0.85), edge - 2, high / 2 - 7, 4, 14);
    above.font = `11px ${theme.family}`;
    above.textBaseline = "middle";
    above.fillStyle = cssOf(theme.quiet);
    above.textAlign = "left";
    above.fillText(`All: ${duration((end - begin) / 1e6)}`, 2, high / 2);
    above.fillText(`Visible: ${duration((Math.min(end, state.t1) - Math.max(begin, state.t0)) / 1e6)}`, 2, LANE.overview + LANE.axis / 2);
    above.textAlign = "center";
    for (const [time, words] of marks) {
      const px = gutter + x(time);
      paintBox(above, cssOf(theme.fg, 0.35), px, LANE.overview + LANE.axis - 5, 1, 5);
      above.fillStyle = cssOf(theme.quiet);
      const half = above.measureText(words).width / 2;
      if (px - half >= gutter && px + half <= gutter + width) above.fillText(words, px, LANE.overview + LANE.axis / 2 - 2);
    }
    if (state.interval) {
      const [a, b] = state.interval;
      const words = duration((b - a) / 1e6);
      const half = above.measureText(words).width / 2 + 6;
      const middle = Math.min(gutter + width - half, Math.max(gutter + half, gutter + (x(a) + x(b)) / 2));
      above.clearRect(middle - half - 40, LANE.overview, 2 * half + 80, LANE.axis - 5);
      paintBox(above, cssOf(theme.fg), middle - half, LANE.overview, 2 * half, LANE.axis - 5);
      above.fillStyle = cssOf(theme.bg);
      above.fillText(words, middle, LANE.overview + LANE.axis / 2 - 2);
    }
  };
  return { drawOver, drawTop };
}

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
  const strip = stripOf();
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
    look.theme = timelineTheme(element);
    look.palette = boxPalette(state.store.header.kinds, look.theme, context);
    look.version += 1;
    widths = new Float32Array(state.store.labels.length);
  };
  const resize = (width, height, gutter) => {
    Object.assign(size, { width, height, gutter, ratio: resized(canvas, width, height) });
    resized(top, width + gutter, LANE.axis + LANE.overview);
  };

  const over = timelineMarks(state, look, context, top, { size, x, place, rowTop });
  const drawRows = () => {
    const { store } = state;
    const across = canvas.width;
    const shown = look.layout.lanes.flatMap((lane) => lane.rows.map((row) => [row, rowTop(row) - state.scroll])).filter(([, y]) => y > -LANE.row && y < size.height);
    const boxes = [];
    const pixels = strip.pixels(across, Math.max(1, Math.ceil(size.height / LANE.row) + 2));
    shown.forEach(([row], r) => paintRow(store, row, state.t0, state.t1, across, pixels, r * across, look.palette, 8 * size.ratio, boxes));
    strip.put();
    context.imageSmoothingEnabled = false;
    shown.forEach(([, y], r) => context.drawImage(strip.canvas, 0, r, across, 1, 0, y, size.width, LANE.row - 1));
    return boxes;
  };

  // Patterns leave the edges plain to keep the colour visible.
  const drawPatterns = (boxes) => {
    for (const { i, row, from, to, dim } of boxes) {
      const pattern = look.palette.patterns[state.store.kind[i]];
      if (!pattern || dim) continue;
      context.fillStyle = pattern;
      context.fillRect(from / size.ratio, rowTop(row) - state.scroll + 3, (to - from) / size.ratio - 1, LANE.row - 7);
    }
  };

  const widthOf = (code) => {
    if (!widths[code]) widths[code] = context.measureText(state.store.labels[code]).width || 1;
    return widths[code];
  };
  // Names are truncated to fit. If a box starts to the left of the visible range, its name is at the edge.
  const drawNames = (boxes) => {
    const { store } = state;
    context.font = `11px ${look.theme.family}`;
    context.textBaseline = "middle";
    for (const { i, row, from: left, to, dim } of boxes) {
      const from = left / size.ratio + 4;
      const room = to / size.ratio - from - 4;
      let code = store.name[i];
      if (widthOf(code) > room && store.brief[code] !== code) code = store.brief[code];
      const text = store.labels[code];
      widthOf(code);
      const letters = Math.floor((text.length * room) / widths[code]) - 1;
      if (widths[code] > room && letters < 2) continue;
      const y = rowTop(row) - state.scroll + LANE.row / 2;
      const shade = store.kind[i] * SHADES.length + shadeIn(row, store.name[i]);
      if (!dim && look.palette.patterns[store.kind[i]]) {
        const ground = look.palette.colours[(shade * COVERS + COVERS - 1) * 2];
        paintBox(context, cssOf([ground & 255, (ground >> 8) & 255, (ground >> 16) & 255]), from - 2, y - 6, Math.min(widths[code], room) + 4, 12);
      }
      context.fillStyle = dim ? cssOf(look.theme.quiet) : look.palette.words[shade];
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
        paintBox(context, cssOf(theme.fg, 0.16), 0, Math.round(at(value)), size.width, 1);
        const words = roundSize(value, memory.most);
        const wide = context.measureText(words).width;
        paintBox(context, cssOf(theme.bg, 0.75), 2, at(value) - 7, wide + 6, 14);
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
      paintBox(context, cssOf(theme.wash), 0, lane.y - state.scroll, size.width, lane.height);
    }
    const marks = timeMarks(state.t0, state.t1, Math.max(3, size.width / 120));
    for (const [time] of marks) paintBox(context, cssOf(theme.line), Math.round(x(time)), 0, 1, size.height);
    const boxes = drawRows();
    drawMemory();
    drawPatterns(boxes);
    drawNames(boxes);
    const steps = store.tracks.find((track) => track.kind === "steps");
    context.fillStyle = cssOf(theme.fg, 0.28);
    if (steps && steps.count < 200) for (let i = steps.first; i < steps.first + steps.count; i += 1) context.fillRect(Math.round(x(store.start[i])), 0, 1, size.height);
    over.drawOver();
    over.drawTop(marks);
    [canvas.dataset.from, canvas.dataset.to] = [state.t0, state.t1];
  };

  // The event at a point in the picture (the longest event that shares the pixel), or the memory.
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
