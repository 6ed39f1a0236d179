// Drawing the timeline. A frame costs as much as its pixels, however many events there are: each row is one line of
// pixels, computed pixel by pixel with a search, and stretched to the row's height.
import { h } from "../../draw/js/dom.js";
import { placeNear } from "./search.js";

export const LANE = { row: 18, gap: 8, memory: 64, folded: 18, axis: 24, overview: 40 };
export const SHADES = [-0.16, -0.07, 0, 0.12, 0.24];
const COVERS = 8;

export const mixed = (a, b, part) => a.map((value, i) => value * part + b[i] * (1 - part));
export const cssOf = (colour, alpha = 1) => `rgba(${colour.map(Math.round).join(",")},${alpha})`;
const luminance = (colour) => colour.reduce((sum, c, i) => {
  const x = c / 255;
  return sum + [0.2126, 0.7152, 0.0722][i] * (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
}, 0);

// The notebook's colours as numbers: a canvas knows no CSS variables.
export function readTheme(element) {
  const canvas = h("canvas", { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const { color, backgroundColor, fontFamily } = getComputedStyle(element);
  const paint = (...colours) => {
    for (const colour of ["#fff", ...colours]) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const [fg, bg] = [paint(backgroundColor, color), paint(backgroundColor)];
  return { fg, bg, quiet: mixed(fg, bg, 0.72), line: mixed(fg, bg, 0.13), wash: mixed(fg, bg, 0.05), family: fontFamily };
}

// Colours of boxes as pixels, and of their labels: by kind, shade, share of the pixel, and whether a search hides them.
export function boxPalette(kinds, { fg, bg }) {
  const colours = new Uint32Array(kinds.length * SHADES.length * COVERS * 2);
  const words = [];
  kinds.forEach(({ colour }, k) => {
    const hex = /^#([0-9a-f]{6})$/i.exec(colour)?.[1] ?? "8c8c8c";
    const plain = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    SHADES.forEach((shade, s) => {
      const full = mixed(shade < 0 ? [0, 0, 0] : [255, 255, 255], plain, Math.abs(shade));
      words.push(luminance(full) > 0.19 ? "#000" : "#fff");
      for (let cover = 0; cover < COVERS; cover += 1) {
        const solid = mixed(full, bg, 0.35 + (0.65 * cover) / (COVERS - 1));
        [solid, mixed(mixed(solid, fg, 0.3), bg, 0.16)].forEach(([r, g, b], dim) => {
          colours[((k * SHADES.length + s) * COVERS + cover) * 2 + dim] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
        });
      }
    });
  });
  return { colours, words };
}

// Ops of one kind are shaded by name; phases, steps and layers have the plain colour of their kind.
const PLAIN = 2;
export const shadeOf = (row, name) => (row.shaded ? (Math.imul(name, 0x9e3779b1) >>> 16) % SHADES.length : PLAIN);

// One row as pixels[base..base + width); boxes wide enough for a label go to `boxes`.
export function paintRow(store, row, t0, t1, width, pixels, base, { colours }, roomy, boxes) {
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
      pixels.fill(colours[((kind[i] * SHADES.length + shadeOf(row, name[i])) * COVERS + COVERS - 1) * 2 + dim], base + from, base + (to - from > 3 ? to - 1 : to));
      if (to - from > roomy) boxes.add(i, row, from, to, dim);
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

// The boxes of a frame with room for a label; the list is reused from frame to frame.
export function boxList() {
  const list = { size: 0, at: [], row: [], x0: [], x1: [], dim: [] };
  list.add = (i, row, x0, x1, dim) => {
    const k = list.size;
    [list.at[k], list.row[k], list.x0[k], list.x1[k], list.dim[k]] = [i, row, x0, x1, dim];
    list.size += 1;
  };
  return list;
}

// Lines of pixels, one per row, which drawImage stretches.
export function stripOf() {
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
export function timeMarks(t0, t1, wanted) {
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
