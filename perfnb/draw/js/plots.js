// Draws the bars, effects and charts of documents.
import { drawnToFit, legendOf, levelRules, logTicks, namesBeside, niceTicks, patternFills, roundNumber, swatch, textWidth, uprightRules } from "./chart.js";
import { columnHead, drawn, figure, h, linkTo } from "./dom.js";
import { inUnit, share } from "./format.js";

// Draws each measurement as a dot, in order, which makes drift and outliers visible.
export function valueDots(samples, unit, interval) {
  const known = (samples ?? []).filter((value) => value != null);
  if (known.length < 3) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const y = (value) => 26 - (24 * (value - low)) / (high - low || 1) - 1;
  const words = `The measurements in order, from ${inUnit(low, unit)} to ${inUnit(high, unit)}`;
  const band = interval && drawn("rect", { x: 0, width: 104, y: y(interval[1]), height: Math.max(1, y(interval[0]) - y(interval[1])), class: "pf-band" });
  return drawn("svg", { viewBox: "0 0 104 28", width: 104, height: 28, class: "pf-dots-plot", role: "img", "aria-label": words },
    drawn("title", {}, words), band, known.map((value, i) => drawn("circle", { cx: 3 + (98 * i) / (known.length - 1), cy: y(value), r: 1.6 })));
}

// Draws stacked bars on one scale. If the table of layers has a column with the name of a part, a click on it sorts the
// layers by that column.
export function bars(section, context) {
  const stacks = section.bars.map(({ label, parts }) => ({ label, parts: parts.filter(({ value }) => value > 0), total: parts.reduce((sum, { value }) => sum + value, 0) }));
  const longest = Math.max(0, ...stacks.map(({ total }) => total));
  if (!longest) return null;
  const amount = (value) => inUnit(value, section.unit);
  const sums = new Map();
  for (const { mark, value } of stacks.flatMap(({ parts }) => parts)) sums.set(mark.word, { mark, value: value + (sums.get(mark.word)?.value ?? 0) });
  const words = ({ mark, value }, total) => `${mark.word} ${amount(value)}, ${share(value / total)}`;
  const stack = ({ parts, total }) => h("div", { class: "pf-phases", role: "img", style: `width:${(100 * total) / longest}%`, "aria-label": parts.map((part) => words(part, total)).join("; ") },
    parts.map((part) => h("i", { class: `pf-${part.mark.pattern}`, title: words(part, total), style: `background-color:${part.mark.colour};flex-grow:${part.value / total}` })));
  const only = stacks.length === 1;
  const rows = stacks.map((bar) => (only ? stack(bar) : h("div", { class: "pf-bar-row" },
    h("span", { class: "pf-bar-label", title: bar.label }, bar.label), h("div", { class: "pf-bar-track" }, stack(bar)), h("b", {}, figure(amount(bar.total))))));
  const sorts = (word) => context?.table("layers")?.columns.some(({ head }) => head === word);
  const entry = ({ mark, value }) => h("li", {}, swatch(mark),
    sorts(mark.word) ? linkTo(mark.word, `Sort the layers by ${mark.word}`, () => context.reveal("layers", { sortBy: mark.word })) : h("span", { class: "pf-word" }, mark.word),
    only && h("b", {}, figure(share(value / longest))), only && h("span", { class: "pf-quiet" }, figure(amount(value))));
  return h("div", {}, rows, h("ul", { class: "pf-legend" }, [...sums.values()].map(entry)));
}

// Draws ratios as dots with intervals, on a logarithmic scale with 1 × in the middle, like
// perfnb.draw.as_text.scale_of.
export function effects(section) {
  if (!section.rows.length) return null;
  const ends = section.rows.flatMap(({ ratio, interval }) => [ratio, ...(interval ?? [])]).filter((value) => value > 0).map(Math.log);
  const most = section.rows.some(({ ratio }) => ratio != null && ratio < 0.95) ? Math.max(Math.log(2), -Math.min(0, ...ends)) : Infinity;
  const longest = Math.min(most, Math.max(0, ...ends.map(Math.abs))) || 1;
  const at = (ratio) => 50 + 46 * Math.max(-1, Math.min(1, Math.log(ratio) / longest));
  const band = section.same_within == null ? null : [1 / (1 + section.same_within), 1 + section.same_within].map(at);
  const scale = ({ ratio, interval }) => h("span", { class: "pf-effect", "aria-hidden": "true" },
    band && h("i", { class: "pf-same", style: `left:${band[0]}%;width:${band[1] - band[0]}%` }), h("i", { class: "pf-one" }),
    interval && h("i", { class: "pf-spread", style: `left:${at(Math.max(interval[0], 1e-9))}%;right:${100 - at(Math.max(interval[1], 1e-9))}%` }),
    h("i", { class: "pf-at", style: `left:${at(ratio)}%` }));
  // Details are below their row, because a narrow page would hide them to the right of it.
  const row = (effect) => [h("tr", {},
    h("th", { scope: "row", class: "pf-text" }, h("span", { class: "pf-name", title: effect.label }, effect.label)),
    h("td", {}, figure(effect.words)), h("td", {}, effect.ratio > 0 && scale(effect)), h("td", { class: "pf-text" }, effect.verdict)),
  effect.detail && h("tr", { class: "pf-below" }, h("td", { colspan: 4, class: "pf-text pf-quiet pf-wraps" }, effect.detail))];
  const note = section.same_within != null && h("p", { class: "pf-quiet" }, `1 × is the baseline. Ratios within ${share(section.same_within)} of it, in the band, count as the same.`);
  return [h("div", { class: "pf-wide" }, h("table", { class: "pf-effects", "aria-label": section.title },
    h("thead", {}, h("tr", {}, columnHead(section.head, true), columnHead("ratio"), columnHead("faster or less ← 1 × → slower or more", true), columnHead("verdict", true))),
    h("tbody", {}, section.rows.flatMap(row)))), note];
}

const FRAME = { left: 78, right: 16, top: 22, height: 170, below: 40 };

// Ticks for sizes on a logarithmic axis are powers of 2: 4 MiB, 64 MiB, 1 GiB.
function sizeTicks(low, high, words) {
  const base = [2, 4].find((step) => (high - low) / Math.log10(step) < 6) ?? 16;
  const ticks = [];
  for (let power = Math.ceil(low / Math.log10(base)); power <= high / Math.log10(base); power += 1) ticks.push([base ** power, words(base ** power)]);
  return ticks;
}

// Returns {at, ticks}: a function that places numbers on an axis, and the axis's ticks.
function scaleOf({ unit, log }, values, [from, to], wanted, floor) {
  const known = values.filter((value) => value != null && (!log || value > 0));
  if (log) {
    const [low, high] = [Math.log10(Math.min(...known)), Math.log10(Math.max(...known))];
    const spare = Math.max(0.04 * (high - low), high - low < 0.3 ? 0.15 : 0);
    const [a, b] = [low - spare, high + spare];
    return { at: (value) => from + ((to - from) * (Math.log10(Math.max(value, 1e-300)) - a)) / (b - a), ticks: (unit.startsWith("bytes") ? sizeTicks : logTicks)(a, b, (value) => roundNumber(inUnit(value, unit))) };
  }
  const high = Math.max(...known, floor ?? -Infinity);
  const low = Math.min(...known, floor ?? Infinity);
  const span = high - low || Math.abs(high) || 1;
  const ticks = niceTicks(span, wanted, unit.startsWith("bytes") ? 1024 : 10).map((tick) => [low + tick, roundNumber(inUnit(low + tick, unit))]);
  return { at: (value) => from + ((to - from) * (value - low)) / span, ticks };
}

// A chart with two axes, which is redrawn to fit. `shapes` is called with the functions that place numbers, and returns
// the elements to draw.
function plotted({ title, x, y, xs, ys, floor, height = FRAME.height }, marks, shapes) {
  const holder = h("div", { class: "pf-chart" });
  const lowest = FRAME.top + height;
  drawnToFit(holder, (width) => {
    const right = width - FRAME.right;
    const across = scaleOf(x, xs, [FRAME.left, right], Math.max(2, width / 170));
    const up = y && scaleOf(y, ys, [lowest, FRAME.top], 3, floor);
    const { defs, fills } = patternFills(marks);
    holder.replaceChildren(drawn("svg", { width, height: lowest + FRAME.below, ...(title ? { role: "img", "aria-label": title } : { "aria-hidden": "true" }) }, defs,
      uprightRules(across.ticks, across.at, [FRAME.top, lowest]), up && levelRules(up.ticks, up.at, [FRAME.left, right]),
      drawn("text", { x: (FRAME.left + right) / 2, y: lowest + 36, "text-anchor": "middle" }, x.label),
      y?.label && drawn("text", { x: FRAME.left, y: 10 }, y.label), shapes(across.at, up?.at, [right, lowest], fills)));
  });
  return holder;
}

const legend = (marks) => (marks.length > 1 || marks[0]?.word ? legendOf(marks) : null);
const known = (values) => (values ?? []).filter((value) => value != null);
const SERIES_DASHES = ["", "7 4", "2 3", "9 3 2 3"];

// Stacked lines become areas between the sums.
function stackedLines(at, lines) {
  let below = at.map(() => 0);
  return lines.map((line) => {
    const low = below;
    below = low.map((base, i) => base + (line.values[i] ?? 0));
    return { ...line, values: below, low, high: below };
  });
}

const pointsOf = (at, values, x, y) => values.map((value, i) => (value == null ? null : `${x(at[i]).toFixed(1)},${Math.max(FRAME.top, y(value)).toFixed(1)}`)).filter(Boolean);
const areaOf = (at, line, x, y, props) => drawn("path", { ...props, d: `M${[...pointsOf(at, line.high, x, y), ...pointsOf(at, line.low, x, y).reverse()].join("L")}Z` });

// Draws the events during a series below the chart, with a label if there is enough space for it.
function spansBelow(spans, x, lowest, fills, unit) {
  let free = -Infinity;
  return spans.map(([mark, begin, end], i) => {
    const [from, to, wide] = [x(begin), x(end), textWidth(mark.word)];
    const fits = to - from >= wide && (from + to - wide) / 2 > free;
    if (fits) free = (from + to + wide) / 2 + 6;
    return drawn("g", { class: "pf-span" }, drawn("title", {}, `${mark.word}: ${inUnit(begin, unit)} to ${inUnit(end, unit)}`),
      drawn("rect", { x: from, y: lowest + 1, width: Math.max(1, to - from - 1), height: 7, fill: fills[i], rx: 1.5 }),
      fits && drawn("text", { x: (from + to) / 2, y: lowest + 36, "text-anchor": "middle" }, mark.word));
  });
}

// `overlay` returns an element to draw on top. It is called with the functions that place numbers after each redraw.
export function series(section, { overlay, height } = {}) {
  const { at, levels, spans } = section;
  const lines = section.stacked ? stackedLines(at, section.lines) : section.lines;
  const values = [...known(lines.flatMap((line) => line.values)), ...Object.values(levels)];
  const most = 1.5 * Math.max(...values); // a wide band is cut off, or it would flatten its line
  const ys = [...values, ...lines.flatMap((line) => [...known(line.low), ...known(line.high).map((value) => Math.min(value, most))])];
  if (!known(lines.flatMap((line) => line.values)).length) return null;
  const marks = lines.map(({ mark }) => mark);
  const draw = (x, y, [right, lowest], fills) => [
    lines.map((line, i) => [
      line.low && line.high && areaOf(at, line, x, y, section.stacked ? { fill: fills[i] } : { fill: line.mark.colour, "fill-opacity": 0.2 }),
      !section.stacked && [
        drawn("path", { fill: "none", stroke: line.mark.colour, "stroke-width": 1.8, "stroke-dasharray": SERIES_DASHES[i % SERIES_DASHES.length], d: `M${pointsOf(at, line.values, x, y).join("L")}` }),
        known(line.values).length <= 60 && line.values.map((value, k) => value != null && drawn("circle", { cx: x(at[k]), cy: y(value), r: 2.6, fill: line.mark.colour },
          drawn("title", {}, `${line.mark.word} ${inUnit(value, section.y.unit)} at ${inUnit(at[k], section.x.unit)}`)))]]),
    spansBelow(spans, x, lowest, fills.slice(marks.length), section.x.unit),
    Object.entries(levels).map(([name, value]) => [drawn("line", { class: "pf-level", x1: FRAME.left, x2: right, y1: y(value), y2: y(value) }),
      drawn("text", { class: "pf-halo", x: right, y: y(value) - 4, "text-anchor": "end" }, name.length > 60 ? `${name.slice(0, 59)}…` : name)]),
    overlay?.(x, y, [right, lowest])];
  const x = spans.length ? { ...section.x, label: "" } : section.x; // their words stand there
  const chart = { title: section.title, x, y: section.y, xs: at, ys, floor: section.y.log ? undefined : 0, height };
  return [legend(marks), plotted(chart, [...marks, ...spans.map(([mark]) => mark)], draw)];
}

export function strip(section) {
  const groups = section.groups.map(([mark, values]) => [mark, known(values)]);
  const values = groups.flatMap(([, group]) => group);
  if (!values.length) return null;
  const height = 26 * groups.length;
  const draw = (x, _, [right, lowest], fills) => [
    groups.map(([, group], row) => group.map((value) => drawn("circle", { cx: x(value), cy: FRAME.top + 26 * row + 13, r: 4, fill: fills[row], "fill-opacity": 0.65 },
      drawn("title", {}, inUnit(value, section.axis.unit))))),
    section.at && [drawn("line", { class: "pf-level", x1: x(section.at[1]), x2: x(section.at[1]), y1: FRAME.top, y2: lowest }),
      drawn("text", { class: "pf-halo", x: x(section.at[1]), y: FRAME.top - 5, "text-anchor": x(section.at[1]) + textWidth(section.at[0]) > right ? "end" : "start" }, section.at[0])]];
  const marks = groups.map(([mark]) => mark);
  return [legend(marks), plotted({ title: section.title, x: section.axis, xs: section.at ? [...values, section.at[1]] : values, height }, marks, draw)];
}

export function scatter(section, context) {
  const { lines } = section;
  const hasPlace = (value, { log }) => value != null && (!log || value > 0);
  const dots = section.dots.filter((dot) => hasPlace(dot.x, section.x) && hasPlace(dot.y, section.y));
  if (!dots.length) return null;
  const marks = [...new Map(dots.map(({ mark }) => [mark.word, mark])).values()];
  const points = lines.flatMap(([, ends]) => ends);
  const draw = (x, y, [right], fills) => {
    const placed = dots.map((dot) => ({ at: [x(dot.x), y(dot.y)], radius: 5, name: dot.label }));
    return [
      lines.map(([mark, ends], i) => [drawn("path", { class: "pf-roof-line", style: `stroke:${mark.colour}`, "stroke-dasharray": SERIES_DASHES[i % SERIES_DASHES.length],
        d: `M${ends.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join("L")}` }),
      drawn("text", { class: "pf-halo", x: right - 4, y: y(ends.at(-1)[1]) - 6, "text-anchor": "end" }, mark.word)]),
      dots.map((dot, i) => drawn("circle", { class: "pf-point", cx: placed[i].at[0], cy: placed[i].at[1], r: 5, fill: fills[marks.findIndex(({ word }) => word === dot.mark.word)],
        click: () => section.selects && context.reveal(section.selects, dot.label) },
        drawn("title", {}, `${dot.label}: ${inUnit(dot.x, section.x.unit)}, ${inUnit(dot.y, section.y.unit)}`))),
      namesBeside(placed, 8, [FRAME.left, right, FRAME.top])];
  };
  const chart = { title: section.title, x: section.x, y: section.y, xs: [...dots.map((dot) => dot.x), ...points.map(([a]) => a)], ys: [...dots.map((dot) => dot.y), ...points.map(([, b]) => b)], height: 280 };
  return [legend(marks), plotted(chart, marks, draw)];
}

export function heat(section) {
  const most = Math.max(0, ...known(section.values.flat()));
  if (!section.values.length) return null;
  const cell = (value) => h("td", { style: value == null ? null : `background:color-mix(in srgb, #0072b2 ${(55 * Math.max(0, value)) / (most || 1)}%, transparent)` }, inUnit(value, section.unit));
  return h("div", { class: "pf-wide" }, h("table", { class: "pf-heat", "aria-label": section.title },
    h("thead", {}, h("tr", {}, columnHead(section.across, true), section.columns.map((name) => columnHead(name)))),
    h("tbody", {}, section.values.map((row, i) => h("tr", {}, h("th", { scope: "row", class: "pf-text" }, section.rows[i]), row.map(cell))))));
}
