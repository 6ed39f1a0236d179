// Code shared by charts: patterns, ticks, and a holder that redraws its content when its width changes.
import { drawn, freshId, h } from "./dom.js";
import { significant } from "./format.js";

// The style sheet's patterns as fills: [side of the tile, strokes, stroke width, light or dark].
export const STROKES = {
  hatch: [7, "M-1,1 L1,-1 M0,7 L7,0 M6,8 L8,6", 1.3, "light"],
  rising: [6, "M-1,5 L1,7 M0,0 L6,6 M5,-1 L7,1", 1.2, "dark"],
  cross: [6, "M0,6 L6,0 M0,0 L6,6", 0.9, "dark"],
  dots: [5, "M2.5,2.5 h0.01", 2, "dark"],
  rows: [4, "M0,2 H4", 1, "dark"],
  columns: [5, "M2.5,0 V5", 1.4, "light"],
  grid: [6, "M3,0 V6 M0,3 H6", 0.9, "light"],
};

// Creates patterns for marks ({colour, pattern}), and returns the fill for each mark.
export function patternFills(marks) {
  const defs = drawn("defs");
  const fills = marks.map(({ colour, pattern }) => {
    const strokes = STROKES[pattern];
    if (!strokes) return colour;
    const [side, path, width, shade] = strokes;
    const id = freshId("fill");
    defs.append(drawn("pattern", { id, width: side, height: side, patternUnits: "userSpaceOnUse" },
      drawn("rect", { width: side, height: side, fill: colour }),
      drawn("path", { d: path, "stroke-width": width, "stroke-linecap": pattern === "dots" ? "round" : "butt", fill: "none",
        stroke: shade === "light" ? "#fff" : "#000", "stroke-opacity": shade === "light" ? 0.5 : 0.45 })));
    return `url(#${id})`;
  });
  return { defs, fills };
}

// Round numbers from 0 to `most`. There are about `wanted` of them, in steps of 1, 2 or 5 times a power of the base.
export function niceTicks(most, wanted, base = 10) {
  if (!(most > 0)) return [0];
  let unit = 1;
  if (base === 1024) while (unit * 1024 <= most) unit *= 1024;
  const rough = most / unit / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = unit * power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

// Formats sizes in the unit of the largest size: "0.5 GiB", "1 GiB".
export function roundSize(value, most) {
  const power = Math.floor(Math.log2(Math.max(1, most)) / 10);
  return value ? `${significant(value / 1024 ** power, true)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}` : "0";
}

// Ticks from 10^low to 10^high: [value, label], where the label is false if there is none.
export function logTicks(low, high, words) {
  const wide = high - low > 7 ? 2 : 1;
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const factor of high - low < 5 ? [1, 2, 5] : [1]) {
      const value = factor * 10 ** power;
      const labelled = factor === 1 ? power % wide === 0 : high - low < 1.6;
      if (Math.log10(value) >= low && Math.log10(value) <= high) ticks.push([value, labelled && words(value)]);
    }
  }
  return ticks;
}

// The lines of a grid with their labels, for ticks [value, text]: vertical lines at x, or horizontal lines at y.
export const uprightRules = (ticks, x, [top, bottom], low = 20) => ticks.map(([value, text]) => [
  drawn("line", { class: text ? "pf-rule" : "pf-rule pf-faint", x1: x(value), x2: x(value), y1: top, y2: bottom }),
  text && drawn("text", { x: x(value), y: bottom + low, "text-anchor": "middle" }, text)]);
export const levelRules = (ticks, y, [left, right]) => ticks.map(([value, text]) => [
  drawn("line", { class: text ? "pf-rule" : "pf-rule pf-faint", x1: left, x2: right, y1: y(value), y2: y(value) }),
  text && drawn("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text)]);

export const roundNumber = (text) => text.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");

// The approximate width of a text in pixels, at a font size of 11.5px.
export const textWidth = (text) => 6.3 * text.length;

// The labels of at most `most` dots, next to or below the dots, where they do not cover anything.
export function namesBeside(dots, most, [left, right, top]) {
  const taken = dots.map(({ at: [x, y], radius }) => [x - radius, y - radius, x + radius, y + radius]);
  const labels = [];
  for (const { at: [x, y], radius, name } of dots) {
    if (labels.length === most) break;
    const text = name.length > 26 ? `…${name.slice(-25)}` : name;
    const wide = textWidth(text);
    const places = [[x + radius + 5, y + 4, "start", 0], [x - radius - 5, y + 4, "end", -wide], [x, y + radius + 14, "middle", -wide / 2]];
    const boxOf = ([px, py, , shift]) => [px + shift, py - 11, px + shift + wide, py + 3];
    const place = places.find((one) => {
      const box = boxOf(one);
      return box[0] > left && box[2] < right && box[1] > top && taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
    });
    if (!place) continue;
    taken.push(boxOf(place));
    labels.push(drawn("text", { class: "pf-halo", x: place[0], y: place[1], "text-anchor": place[2], "aria-hidden": "true" }, text));
  }
  return labels;
}

// Calls draw(width) whenever the holder's width changes. Nothing is drawn while the holder is hidden.
export function drawnToFit(holder, draw) {
  let before = 0;
  const fit = () => {
    const width = Math.floor(holder.clientWidth);
    if (!width || width === before) return;
    before = width;
    draw(width);
  };
  new ResizeObserver(fit).observe(holder);
  return () => {
    before = 0;
    fit();
  };
}

export const swatch = (mark) => h("i", { class: `pf-key pf-${mark.pattern}`, style: `background-color:${mark.colour}`, "aria-hidden": "true" });

// A legend for the marks in a picture.
export const legendOf = (marks, props) => h("ul", { class: "pf-legend", ...props }, marks.map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word))));
