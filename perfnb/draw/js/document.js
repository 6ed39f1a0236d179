// Any result as a live view: what perfnb.draw.as_json makes of a document.
import { drawnToFit, levelRules, niceTicks, swatch, uprightRules } from "./chart.js";
import { drawn, fact, figure, h, marked, notesSection, titled } from "./dom.js";
import * as format from "./format.js";
import { searchGrid } from "./grid.js";
import { widgetOf } from "./notebook.js";
import { tabs } from "./tabs.js";

// By kind: draws a picture, the section that no other can show, from {data, model, section, reveal}.
export const pictures = {};

const WRITTEN = {
  ms: format.duration, bytes: format.byteSize, share: format.share, flops: format.flopCount, count: format.count,
  number: (value) => format.significant(value), ratio: (value) => (value == null ? format.UNKNOWN : `${format.significant(value)} ×`),
  "bytes/s": (value) => (value == null ? format.UNKNOWN : `${format.byteSize(value)}/s`), "flops/s": format.flopRate, "/s": (value) => format.rate(value, ""),
};
export const inUnit = (value, unit) => (WRITTEN[unit] ?? ((number) => format.rate(number, unit.replace(/\/s$/, ""))))(value);

// An interval in the unit and with the digits of its value.
export function withInterval(value, unit, interval) {
  const text = inUnit(value, unit);
  if (value == null || interval == null) return text;
  const [number] = text.split(" ");
  const decimals = (number.split(".")[1] ?? "").length;
  const factor = unit === "share" ? 100 : scaleOf(value, text);
  const end = (bound) => (bound * factor).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
  return `${text} [${interval.map(end).join(", ")}]`;
}

function scaleOf(value, text) {
  const unit = text.slice(text.indexOf(" ") + 1);
  if (["s", "ms", "µs"].includes(unit)) return { s: 1e-3, ms: 1, µs: 1e3 }[unit];
  const bytes = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].indexOf(unit.replace(/\/s$/, ""));
  if (bytes >= 0) return 1024 ** -bytes;
  const power = /^([kMGTPE])($|[ /]|FLOP)/.exec(unit);
  return power ? 1000 ** -("kMGTPE".indexOf(power[1]) + 1) : 1;
}

const isMark = (cell) => cell != null && typeof cell === "object" && "pattern" in cell;
const isValue = (cell) => cell != null && typeof cell === "object" && "number" in cell;
const numberIn = (cell) => (isValue(cell) ? cell.number : typeof cell === "number" ? cell : null);
const textIn = (cell, unit) => (isMark(cell) ? cell.word : isValue(cell) ? withInterval(cell.number, cell.unit, cell.interval)
  : unit === "text" ? String(cell ?? "") : inUnit(cell, unit));

function copyButton(text, words) {
  const button = h("button", { type: "button", class: "pf-copy", title: words, "aria-label": words, click: async () => {
    await navigator.clipboard?.writeText(text());
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } }, "copy");
  return button;
}

const codeBlock = (text) => h("div", { class: "pf-code" }, h("pre", {}, text), copyButton(() => text, "Copy the code"));

function verdictOf({ state, sentence, why, next, code, confidence }) {
  if (!sentence) return null;
  const line = (word, said) => said && h("p", {}, h("span", { class: "pf-quiet" }, `${word} `), said);
  return h("section", { class: `pf-answer pf-${state}`, "aria-label": "Verdict" },
    h("p", { class: "pf-sentence" }, h("b", {}, sentence), confidence && h("span", { class: "pf-quiet" }, ` (${confidence} confidence)`)),
    line("Why", why), line("Next", next), code && codeBlock(code));
}

function bars(section) {
  const totals = section.bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0));
  const longest = Math.max(...totals, 0);
  if (!(longest > 0)) return null;
  const words = (part, total) => `${part.mark.word} ${inUnit(part.value, section.unit)}, ${format.share(part.value / total)}`;
  const seen = new Map();
  const rows = section.bars.map((bar, i) => {
    for (const { mark, value } of bar.parts) if (value > 0) seen.set(mark.word, mark);
    return h("div", { class: "pf-bar-row" }, bar.label && h("span", { class: "pf-bar-label", title: bar.label }, bar.label),
      h("div", { class: "pf-bar-track" }, h("div", { class: "pf-phases", role: "img", style: `width:${(100 * totals[i]) / longest}%`,
        "aria-label": bar.parts.map((part) => words(part, totals[i])).join("; ") },
        bar.parts.filter(({ value }) => value > 0).map((part) => h("i", { class: `pf-${part.mark.pattern}`, title: words(part, totals[i]),
          style: `background-color:${part.mark.colour};flex-grow:${part.value / totals[i]}` })))),
      bar.label && h("b", {}, figure(inUnit(totals[i], section.unit))));
  });
  const only = section.bars.length === 1 && section.bars[0];
  const legend = h("ul", { class: "pf-legend" }, only
    ? only.parts.filter(({ value }) => value > 0).map((part) => h("li", {}, swatch(part.mark), h("span", { class: "pf-word" }, part.mark.word),
      h("b", {}, figure(inUnit(part.value, section.unit))), h("span", { class: "pf-quiet" }, format.share(part.value / totals[0]))))
    : [...seen.values()].map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word))));
  return [rows, legend];
}

// Ratios as dots with their intervals, on a logarithmic scale with 1 × in the middle.
function effects(section) {
  const ends = section.rows.flatMap(({ ratio, interval }) => [ratio, ...(interval ?? [])]).filter((value) => value > 0).map(Math.log);
  if (!section.rows.length) return null;
  const most = Math.max(Math.log(2), -Math.min(0, ...ends));
  const longest = Math.min(most, Math.max(0, ...ends.map(Math.abs))) || 1;
  const at = (ratio) => 50 + 47 * Math.max(-1, Math.min(1, Math.log(ratio) / longest));
  const band = section.same_within == null ? null : [1 / (1 + section.same_within), 1 + section.same_within].map(at);
  const row = ({ label, ratio, interval, verdict, detail }) => h("tr", {},
    h("th", { scope: "row", class: "pf-text" }, h("span", { class: "pf-name", title: label }, label)),
    h("td", {}, figure(withInterval(ratio, "ratio", interval))),
    h("td", { class: "pf-scale" }, ratio > 0 && drawn("svg", { viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" },
      band && drawn("rect", { class: "pf-same", x: band[0], width: band[1] - band[0], y: 0, height: 14 }),
      drawn("line", { class: "pf-one", x1: 50, x2: 50, y1: 0, y2: 14 }),
      interval && drawn("line", { class: "pf-spread", x1: at(interval[0]), x2: at(interval[1]), y1: 7, y2: 7 }),
      drawn("line", { class: "pf-dot", x1: at(ratio) - 0.01, x2: at(ratio), y1: 7, y2: 7 }))),
    h("td", { class: "pf-text" }, verdict), h("td", { class: "pf-text pf-quiet" }, detail));
  return h("table", { class: "pf-effects", "aria-label": section.title }, h("thead", {}, h("tr", {},
    [section.head, "ratio", section.same_within == null ? "" : `shaded: the same within ${format.share(section.same_within)}`, "verdict", ""]
      .map((word, i) => h(word ? "th" : "td", word ? { scope: "col", class: i === 1 ? null : "pf-text" } : {}, word)))), h("tbody", {}, section.rows.map(row)));
}

function table(section, { reveal }) {
  const { columns, rows, nesting, tail, details } = section;
  if (!rows.length) return null;
  const body = rows.length - tail;
  const parent = rows.map((_, i) => (nesting && i < body ? nesting.parents[i] : -1));
  const most = Math.max(0, ...rows.slice(0, body).map((row) => numberIn(row[columns.findIndex(({ bar }) => bar)]) ?? 0));
  const column = ({ head, unit, priority, bar, help }, c) => ({
    key: String(c), head, title: help || head, text: unit === "text", width: c && (unit === "text" ? 130 : bar ? 130 : 92), drop: priority ? 1000 - priority : 0,
    value: (i) => (unit === "text" ? textIn(rows[i][c], unit).toLowerCase() : numberIn(rows[i][c])),
    draw: (i, query) => {
      const cell = rows[i][c];
      if (isMark(cell)) return [swatch(cell), ` ${cell.word}`];
      const words = textIn(cell, unit);
      if (unit === "text") return h("span", { class: c ? "" : "pf-name", title: words }, marked(words, c ? "" : query));
      const share = bar && most > 0 ? (100 * Math.max(0, numberIn(cell) ?? 0)) / most : 0;
      return [bar && h("span", { class: "pf-cell-bar", "aria-hidden": "true" }, h("i", { style: `width:${share}%` })), figure(words)];
    },
  });
  const listed = columns.map(column);
  const lines = () => [columns.map(({ head }) => head), ...view.grid.order.map((i) => rows[i].map((cell, c) => textIn(cell, columns[c].unit)))];
  const describe = (i) => [h("h3", {}, textIn(rows[i][0], "text")), details?.[i] && h("p", {}, details[i]),
    h("dl", {}, columns.slice(1).map(({ head, unit }, c) => h("div", {}, h("dt", {}, head), h("dd", {}, textIn(rows[i][c + 1], unit))))),
    section.selects && h("button", { type: "button", class: "pf-link", click: () => reveal(section.selects, textIn(rows[i][0], "text")) }, "show there")];
  const view = searchGrid({
    label: section.title, words: `Search ${section.noun}s`, size: rows.length, noun: `${section.noun}s`, columns: listed, describe,
    before: h("h3", { class: "pf-quiet" }, section.title), after: copyButton(() => lines().map((line) => line.join("\t")).join("\n"), "Copy the table as tab-separated text"),
    rows: { parent, words: (i) => textIn(rows[i][0], "text"), pinned: (i) => i >= body },
  });
  if (nesting) view.grid.setOpen(nesting.path.length ? nesting.path : parent.flatMap((up, i) => (up < 0 ? [i] : [])));
  const byName = new Map(rows.map((row, i) => [textIn(row[0], "text"), i]));
  return { element: view.element, reveal: (name) => byName.has(name) && view.reveal(byName.get(name)) };
}

const PLOT = { left: 74, right: 14, top: 12, height: 150, below: 40 };

// A chart on two axes, redrawn to fit; `shapes` gets the places of numbers and returns what is drawn.
function plotted(section, xs, ys, shapes, marks) {
  const [lowX, highX] = [Math.min(...xs), Math.max(...xs)];
  const top = Math.max(...ys, 0) || 1;
  const holder = h("div", { class: "pf-chart" });
  drawnToFit(holder, (width) => {
    const [x1, y0] = [width - PLOT.right, PLOT.top + PLOT.height];
    const x = (value) => PLOT.left + ((x1 - PLOT.left) * (value - lowX)) / (highX - lowX || 1);
    const y = (value) => y0 - (PLOT.height * value) / top;
    const across = niceTicks(highX - lowX, Math.max(2, width / 160)).map((tick) => [lowX + tick, inUnit(lowX + tick, section.x.unit)]);
    const up = niceTicks(top, 3, section.y?.unit === "bytes" ? 1024 : 10).map((tick) => [tick, section.y && inUnit(tick, section.y.unit)]);
    holder.replaceChildren(drawn("svg", { width, height: y0 + PLOT.below, role: "img", "aria-label": section.title },
      uprightRules(across, x, [PLOT.top, y0]), levelRules(up, y, [PLOT.left, x1]),
      drawn("text", { x: (PLOT.left + x1) / 2, y: y0 + 34, "text-anchor": "middle" }, section.x.label), shapes(x, y, [x1, y0])));
  });
  return [marks.length > 1 || marks[0]?.word ? h("ul", { class: "pf-legend" }, marks.map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word)))) : null, holder];
}

function series(section) {
  const known = (values) => (values ?? []).filter((value) => value != null);
  const ys = [...section.lines.flatMap((line) => [...known(line.values), ...known(line.high)]), ...Object.values(section.levels)];
  if (!ys.length) return null;
  const path = (values, x, y) => values.map((value, i) => (value == null ? "" : `${x(section.at[i]).toFixed(1)},${y(value).toFixed(1)}`)).filter(Boolean).join("L");
  return plotted(section, section.at, ys, (x, y, [x1]) => [
    section.lines.map((line) => [
      line.low && line.high && drawn("path", { class: "pf-spread-area", fill: line.mark.colour, d: `M${path(line.high, x, y)}L${path(line.low, x, y).split("L").reverse().join("L")}Z` }),
      drawn("path", { fill: "none", stroke: line.mark.colour, "stroke-width": 1.8, d: `M${path(line.values, x, y)}` })]),
    Object.entries(section.levels).map(([name, value]) => [drawn("line", { class: "pf-level", x1: PLOT.left, x2: x1, y1: y(value), y2: y(value) }),
      drawn("text", { x: PLOT.left + 5, y: y(value) - 4 }, name)])], section.lines.map(({ mark }) => mark));
}

function strip(section) {
  const values = section.groups.flatMap(([, group]) => group);
  if (!values.length) return null;
  const marks = section.groups.map(([mark]) => mark);
  return plotted({ ...section, x: section.axis, y: null }, section.at ? [...values, section.at[1]] : values, [section.groups.length], (x, y) => [
    section.groups.map(([mark, group], row) => group.map((value) => drawn("circle", { cx: x(value), cy: y(section.groups.length - row - 0.5), r: 3.5, fill: mark.colour, "fill-opacity": 0.55 },
      drawn("title", {}, inUnit(value, section.axis.unit))))),
    section.at && drawn("line", { class: "pf-level", x1: x(section.at[1]), x2: x(section.at[1]), y1: PLOT.top, y2: PLOT.top + PLOT.height })], marks);
}

function scatter(section) {
  const rows = section.dots.map(({ label, mark, x, y }) => [label, mark, x, y]);
  const columns = [["name", "text"], ["", "text"], [section.x.label, section.x.unit], [section.y.label, section.y.unit]].map(([head, unit]) => ({ head, unit, priority: 0 }));
  return table({ ...section, columns, rows, tail: 0, noun: "point" }, {});
}

function heat(section) {
  const most = Math.max(0, ...section.values.flat().filter((value) => value != null)) || 1;
  return h("div", { class: "pf-scroll" }, h("table", { class: "pf-heat", "aria-label": section.title },
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "pf-text" }, section.across), section.columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, section.values.map((row, i) => h("tr", {}, h("th", { scope: "row", class: "pf-text" }, section.rows[i]),
      row.map((value) => h("td", { style: `background:color-mix(in srgb, #0072b2 ${(55 * (value ?? 0)) / most}%, transparent)` }, inUnit(value, section.unit))))))));
}

function choice(section, context) {
  const holder = h("div");
  const names = Object.keys(section.options);
  const show = (name) => holder.replaceChildren(...section.options[name].map((part) => sectionView(part, context)).filter(Boolean));
  const picker = h("select", { "aria-label": section.title, change: (event) => show(event.target.value) }, names.map((name) => h("option", { value: name }, name)));
  show(names[0]);
  return [names.length > 1 && h("label", { class: "pf-quiet" }, `${section.title} `, picker), holder];
}

const DRAWN = { bars, effects, table, series, strip, scatter, heat, choice, code: ({ text }) => codeBlock(text),
  picture: (section, context) => pictures[section.kind]?.({ ...context, section, data: section.data }) };

function sectionView(section, context) {
  const made = DRAWN[section.type]?.(section, context);
  if (!made) return null;
  const element = made.element ?? made;
  if (section.key && made.reveal) context.sections.set(section.key, made.reveal);
  const ownTitle = ["table", "scatter", "choice"].includes(section.type);
  return h("section", { "aria-label": section.title || null }, !ownTitle && section.title && h("h3", { class: "pf-section" }, section.title), element);
}

function documentView(data, model) {
  const sections = new Map();
  const opened = new Map();
  const reveal = (key, name) => {
    opened.get(key)?.();
    sections.get(key)?.(name);
  };
  const context = { model, sections, reveal };
  const body = (part) => part.sections.map((section) => sectionView(section, context)).filter(Boolean);
  const entries = data.tabs.map((tab) => ({ key: tab.kind, title: tab.kind, element: h("div", {}, verdictOf(tab.verdict), body(tab)) }));
  const views = entries.length ? tabs("Parts", entries) : null;
  data.tabs.forEach((tab) => tab.sections.forEach((section) => section.key && opened.set(section.key, () => views.show(tab.kind))));
  const notes = [...new Set([...data.notes, ...data.tabs.flatMap((tab) => tab.notes)])];
  return h("article", { class: "perfnb", "aria-label": `${data.kind} ${data.subject}`.trim() },
    h("header", {}, titled(data.subject || data.kind, [data.subject && data.kind, data.device].filter(Boolean).join(" · ")), verdictOf(data.verdict),
      data.figures.length > 0 && h("dl", { class: "pf-facts" }, data.figures.map(({ label, value, unit, interval, basis }, i) =>
        h("div", { class: i ? null : "pf-main" }, h("dt", {}, label), h("dd", {}, h("div", { class: "pf-line" }, h("b", {}, figure(inUnit(value, unit))),
          interval && h("span", { class: "pf-interval" }, withInterval(value, unit, interval).replace(/^[^[]*/, ""))), basis && h("small", {}, basis))))),
      data.facts.length > 0 && h("p", { class: "pf-quiet" }, data.facts.join(" · "))),
    body(data), views && [views.list, views.panels], notesSection(notes));
}

const document_ = widgetOf((data, model) => documentView(data, model));
export default document_;
