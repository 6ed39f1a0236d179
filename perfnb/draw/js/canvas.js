// Rows of boxes on a canvas, which are the events of a timeline or the calls in a flame graph. A frame costs as much as
// its pixels, however many boxes there are: each row is one line of pixels, computed pixel by pixel with a search, and
// stretched to the row's height. Colours are numbers, because a canvas does not support CSS variables.
import { STROKES } from "./chart.js";
import { h } from "./dom.js";
import { placeOf } from "./sorted_places.js";

export const ROW = 18;
const LETTER = 6.1;
const COVERS = 8;

// Mixes a part of the first colour with the second colour.
export const mixed = (a, b, part) => a.map((value, i) => value * part + b[i] * (1 - part));
export const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
export const cssOf = (colour, alpha = 1) => `rgba(${colour.map(Math.round).join(",")},${alpha})`;

// Boxes of the same colour are shaded by name, so that neighbours differ. The shade at PLAIN is the colour itself.
export const SHADES = [-0.16, -0.07, 0, 0.12, 0.24];
export const PLAIN = 2;
export const shadeOf = (name) => (Math.imul(name, 0x9e3779b1) >>> 16) % SHADES.length;

export function paintBox(context, fill, ...box) {
  context.fillStyle = fill;
  context.fillRect(...box);
}

// The strokes of a pattern, without a background, as a canvas fill, or nothing for a mark without a pattern.
export function canvasPattern(context, { pattern }) {
  if (!STROKES[pattern]) return null;
  const [side, path, width, shade] = STROKES[pattern];
  const fine = Math.ceil(window.devicePixelRatio || 1);
  const tile = h("canvas", { width: side * fine, height: side * fine });
  const pen = tile.getContext("2d");
  pen.scale(fine, fine);
  Object.assign(pen, { lineWidth: width, lineCap: pattern === "dots" ? "round" : "butt", strokeStyle: shade === "light" ? "#fff8" : "#0007" });
  pen.stroke(new Path2D(path));
  const fill = context.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix().scale(1 / fine));
  return fill;
}

// Every shade of the marks' colours, with the marks' patterns.
export function shadesOf(marks, context) {
  return marks.flatMap((mark) => {
    const pattern = canvasPattern(context, mark);
    return SHADES.map((shade) => ({ colour: mixed(shade < 0 ? [0, 0, 0] : [255, 255, 255], rgbOf(mark.colour), Math.abs(shade)), pattern }));
  });
}

// Adds the colours of labels, and of pixels by the share of the pixel that boxes cover and by whether a search dims them.
export function boxPalette(fills, { fg, bg }) {
  const colours = new Uint32Array(fills.length * COVERS * 2);
  const inks = fills.map(({ colour }, f) => {
    for (let cover = 0; cover < COVERS; cover += 1) {
      const solid = mixed(colour, bg, 0.35 + (0.65 * cover) / (COVERS - 1));
      [solid, mixed(mixed(solid, fg, 0.3), bg, 0.16)].forEach(([r, g, b], dim) => {
        colours[(f * COVERS + cover) * 2 + dim] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
      });
    }
    // Black or white, whichever is more readable on the colour.
    const linear = colour.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.19 ? "#000" : "#fff";
  });
  return { fills, colours, inks };
}

// The notebook's text colour, background and font at the position of an element, and mixtures of both colours.
export function canvasTheme(element) {
  const canvas = h("canvas", { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const { color, backgroundColor, fontFamily } = getComputedStyle(element);
  const paint = (...colours) => {
    for (const colour of ["#fff", ...colours]) paintBox(context, colour, 0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const [fg, bg] = [paint(backgroundColor, color), paint(backgroundColor)];
  return { fg, bg, family: fontFamily, quiet: mixed(fg, bg, 0.72), line: mixed(fg, bg, 0.13), wash: mixed(fg, bg, 0.05) };
}

// Sets the size of a canvas on the page, and returns the number of canvas pixels per CSS pixel.
export function resized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  return ratio;
}

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
export function greatestOf(values) {
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

// Boxes as arrays, which include `start` and `duration` and are sorted by row and start. A row is {first, last}.
export function boxStore(rows, arrays) {
  const { start, duration } = arrays;
  const total = start.length;
  // The latest end up to a box and the total time before it, for each row.
  const reach = new Float64Array(total);
  const before = new Float64Array(total + 1);
  for (const { first, last } of rows) {
    let latest = -Infinity;
    for (let i = first; i < last; i += 1) {
      latest = Math.max(latest, start[i] + duration[i]);
      reach[i] = latest;
      before[i + 1] = before[i] + duration[i];
    }
  }
  const greatest = greatestOf(duration);
  const firsts = rows.map((row) => row.first);
  let [found, isSorted] = [[], true];
  const store = {
    // During a search, `lit` contains the number of matches before each box, to check a range of boxes for matches.
    ...arrays, rows, total, reach, before, lit: null,
    end: (i) => start[i] + duration[i],
    rowOf: (i) => rows[placeOf(firsts, i + 1, 0, rows.length) - 1],
    firstAt: (row, time) => placeOf(reach, time, row.first, row.last),
    longest: (from, to) => (from < to ? greatest(from, to) : -1),
    // The box in a row at a time or, if that is narrow, the longest box that is near, and the number of these boxes.
    at(row, time, near) {
      const under = store.firstAt(row, time);
      if (under < row.last && start[under] <= time && duration[under] > near) return { event: under, of: 1 };
      const [from, to] = [store.firstAt(row, time - near), placeOf(start, time + near, row.first, row.last)];
      return { event: store.longest(from, to), of: to - from };
    },
    // Finds the boxes that pass a test, and returns their number in the rows of `scope`.
    search(test, scope = rows) {
      [found, isSorted] = [[], false];
      store.lit = test ? new Uint32Array(total + 1) : null;
      for (let i = 0; test && i < total; i += 1) store.lit[i + 1] = store.lit[i] + (test(i) ? 1 : 0);
      for (const { first, last } of test ? scope : []) for (let i = first; i < last; i += 1) if (store.lit[i + 1] > store.lit[i]) found.push(i);
      return found.length;
    },
    // The boxes that were found, by start.
    matches() {
      if (!isSorted) found.sort((a, b) => start[a] - start[b] || a - b);
      isSorted = true;
      return found;
    },
  };
  return store;
}

// Paints the boxes of a row from t0 to t1 as a line of pixels. Returns the boxes that are wider than `roomy` pixels.
function paintRow({ start, duration, codes, before, lit, longest, firstAt }, row, [t0, t1], pixels, { colours }, roomy) {
  const boxes = [];
  const scale = pixels.length / (t1 - t0);
  for (let i = firstAt(row, t0), next = i; i < row.last && start[i] < t1; i = next) {
    const x = (start[i] - t0) * scale;
    const wide = duration[i] * scale;
    const from = x <= 0 ? 0 : Math.floor(x);
    const isWide = wide >= 1.5;
    let most = i;
    next = i + 1;
    if (!isWide) {
      next = placeNear(start, t0 + (from + 1) / scale, next, row.last);
      most = longest(i, next);
      if (duration[most] * scale >= 1.5) [next, most] = [most, i];
    }
    const cover = isWide ? COVERS - 1 : Math.min(COVERS - 1, Math.round((before[next] - before[i]) * scale * (COVERS - 1)));
    const dim = lit && lit[next] === lit[i] ? 1 : 0;
    const to = isWide ? Math.min(pixels.length, Math.max(from + 1, Math.round(x + wide))) : from + 1;
    pixels.fill(colours[(codes[most] * COVERS + cover) * 2 + dim], from, to - from > 3 ? to - 1 : to);
    if (to - from > roomy) boxes.push({ i, row, from, to, dim });
  }
  return boxes;
}

// Lines of pixels, one per row, which are stretched by drawImage.
export function pixelLines() {
  const canvas = h("canvas");
  const context = canvas.getContext("2d");
  let image = null;
  return {
    canvas,
    paint(store, rows, times, width, palette, roomy = Infinity) {
      if (image?.width !== width || image.height < rows.length) {
        image = context.createImageData(width, Math.max(1, rows.length));
        [canvas.width, canvas.height] = [width, image.height];
      }
      const pixels = new Uint32Array(image.data.buffer).fill(0);
      const boxes = rows.flatMap((row, r) => paintRow(store, row, times, pixels.subarray(r * width, (r + 1) * width), palette, roomy));
      context.putImageData(image, 0, 0);
      return boxes;
    },
  };
}

// Draws the visible part of the rows in `state`. Each row has a position `y`. `textOf` returns the text for a box and a
// number of letters.
export function boxFrame(state, textOf) {
  const canvas = h("canvas", { class: "pf-canvas", tabindex: 0, role: "application" });
  const context = canvas.getContext("2d");
  const lines = pixelLines();
  const size = { width: 0, height: 0, ratio: 1 };
  const x = (time) => ((time - state.t0) / (state.t1 - state.t0)) * size.width;
  const timeAt = (px) => state.t0 + (px / size.width) * (state.t1 - state.t0);
  const top = (row) => row.y - state.scroll;
  const outline = (i, colour, width) => {
    const { store } = state;
    const [left, right] = [Math.max(-4, x(store.start[i])), Math.min(size.width + 4, x(store.end(i)))];
    Object.assign(context, { lineWidth: width, strokeStyle: cssOf(colour) });
    context.strokeRect(left, top(store.rowOf(i)), Math.max(2, right - left - 1), ROW - 1);
  };
  const resize = (width, height) => Object.assign(size, { width, height, ratio: resized(canvas, width, height) });
  const clear = () => {
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
  };

  // Names are truncated to fit. If a box starts to the left of the visible range, its name is at the edge. Patterns leave
  // the edges and the name's background plain to keep the colour visible.
  const drawName = ({ i, row, from, to, dim }) => {
    const { store, theme, palette } = state;
    const [left, y, wide] = [from / size.ratio, top(row), (to - from) / size.ratio];
    const { colour, pattern } = palette.fills[store.codes[i]];
    if (pattern && !dim) paintBox(context, pattern, left, y + 3, wide - 1, ROW - 7);
    const letters = Math.floor((wide - 8) / LETTER);
    const full = textOf(i, letters);
    if (full.length > letters && letters < 3) return;
    const text = full.length > letters ? `${full.slice(0, letters - 1)}…` : full;
    if (pattern && !dim) paintBox(context, cssOf(colour), left + 2, y + 3, Math.min(context.measureText(text).width, wide - 8) + 4, 12);
    context.fillStyle = dim ? cssOf(theme.quiet) : palette.inks[store.codes[i]];
    context.fillText(text, left + 4, y + ROW / 2, wide - 8);
  };
  const drawBoxes = () => {
    const { store, theme, palette } = state;
    const rows = state.rows.filter((row) => top(row) > -ROW && top(row) < size.height);
    const boxes = lines.paint(store, rows, [state.t0, state.t1], canvas.width, palette, 8 * size.ratio);
    context.imageSmoothingEnabled = false;
    rows.forEach((row, r) => context.drawImage(lines.canvas, 0, r, canvas.width, 1, 0, top(row), size.width, ROW - 1));
    Object.assign(context, { font: `11px ${theme.family}`, textBaseline: "middle" });
    boxes.forEach(drawName);
    Object.assign(canvas.dataset, { from: state.t0, to: state.t1, boxes: boxes.length });
  };
  // The outlines of the box under the pointer and the selected box.
  const drawChosen = () => {
    const { hovered, selected, theme } = state;
    if (hovered >= 0 && hovered !== selected) outline(hovered, theme.fg, 1);
    if (selected >= 0) outline(selected, theme.bg, 4);
    if (selected >= 0) outline(selected, theme.fg, 2);
  };
  const draw = () => {
    clear();
    drawBoxes();
    drawChosen();
  };
  const hit = ({ x: px, y: py }) => {
    const row = state.rows.find(({ y }) => py + state.scroll >= y && py + state.scroll < y + ROW);
    return row ? state.store.at(row, timeAt(px), (1.5 * (state.t1 - state.t0)) / size.width) : null;
  };
  return { canvas, context, size, x, timeAt, top, outline, resize, clear, drawBoxes, drawChosen, draw, hit };
}
