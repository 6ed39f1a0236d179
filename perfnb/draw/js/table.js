// Tables of documents. They can be sorted, searched, opened and closed like any grid, copied, saved, and linked to
// other sections.
import { swatch } from "./chart.js";
import { copyButton, factRows, figure, h, linkTo, marked, saveButton } from "./dom.js";
import { grouped, inUnit } from "./format.js";
import { Grid, smallTable } from "./grid.js";

// Flat tables with fewer rows do not need a search box.
const SEARCHED_FROM = 12;

const isObject = (cell) => cell != null && typeof cell === "object";
// The number by which a cell is sorted, and the text that it displays.
const numberIn = (cell) => (isObject(cell) ? cell.number ?? null : typeof cell === "number" ? cell : null);
function textIn(cell, unit) {
  if (isObject(cell)) return cell.word ?? cell.words ?? inUnit(cell.number, unit);
  return typeof cell === "string" || unit === "text" ? String(cell ?? "") : inUnit(cell, unit);
}
const isKnown = (cell) => (typeof cell === "string" ? cell !== "" : isObject(cell) ? cell.number != null || "word" in cell : cell != null);

const PIXELS = 7.2;
const MOST_TEXT = 250;
const MOST_NAME = 420;
const widthOf = (column, cells, most = column.unit === "text" ? MOST_TEXT : 220) => Math.max(52, Math.min(most,
  PIXELS * Math.max(column.head.length + 2, ...cells.slice(0, 300).map((cell) => textIn(cell, column.unit).length + (isObject(cell) && "word" in cell ? 3 : 0))) + 24));

function cellBar(column, cell, most) {
  const part = (value) => (most > 0 ? (100 * Math.max(0, value ?? 0)) / most : 0);
  const marks = column.marks ?? [];
  const parts = isObject(cell) && cell.parts ? cell.parts.map((value, i) => [value, marks[i]]) : [[numberIn(cell), null]];
  return h("span", { class: "pf-cell-bar", "aria-hidden": "true" }, parts.filter(([value]) => value > 0).map(([value, mark]) => h("i", {
    class: mark ? `pf-${mark.pattern}` : null, style: `width:${part(value)}%;${mark ? `background-color:${mark.colour}` : ""}`,
  })));
}

function gridColumn(section, c, most, searched) {
  const { rows } = section;
  const column = section.columns[c];
  const { head, unit, priority, bar } = column;
  const text = unit === "text";
  const width = widthOf(column, rows.map((row) => row[c]), c ? undefined : MOST_NAME) + (bar ? 74 : 0);
  const isLong = c > 0 && c === section.columns.length - 1 && text && width >= MOST_TEXT;
  return {
    head, title: column.help || head, text, drop: priority ? 1000 - priority : 0,
    width: (c === 0 && searched) || isLong ? undefined : width, least: isLong ? MOST_TEXT : undefined,
    value: (i) => (text ? textIn(rows[i][c], unit).toLowerCase() : numberIn(rows[i][c])),
    draw: (i, query) => {
      const cell = rows[i][c];
      if (isObject(cell) && "pattern" in cell) return h("span", { class: "pf-kind" }, swatch(cell), cell.word);
      const words = textIn(cell, unit);
      if (c === 0) return h("span", { class: "pf-name", title: section.names?.[i] ?? words }, marked(words, query));
      if (text || typeof cell === "string") return h("span", { class: "pf-name pf-quiet", title: words }, marked(words, query));
      return bar ? h("span", { class: "pf-barred" }, cellBar(column, cell, most), h("span", {}, figure(words))) : figure(words);
    },
  };
}

// The rows of `inner` that belong to row `i` or to any row in `within`. Rows with the same texts are added up.
function innerRows({ owner, rows, columns, names }, belongs) {
  const texts = columns.map(({ unit }) => unit === "text");
  const sums = new Map();
  owner.forEach((row, at) => {
    if (!belongs(row)) return;
    const key = rows[at].filter((_, c) => texts[c]).join(" ");
    const sum = sums.get(key);
    if (!sum) sums.set(key, [...rows[at]]);
    else rows[at].forEach((cell, c) => { if (!texts[c] && cell != null) sum[c] = (sum[c] ?? 0) + cell; });
  });
  const weight = columns.findLastIndex(({ unit }, c) => unit !== "text" && [...sums.values()].some((row) => row[c] != null));
  return [...sums.values()].sort((a, b) => (b[weight] ?? 0) - (a[weight] ?? 0)).map((row) => row.map((cell, c) => (texts[c] ? names[cell] ?? "" : cell)));
}

function innerTable(inner, belongs, context) {
  const listed = innerRows(inner, belongs);
  if (!listed.length) return h("p", { class: "pf-quiet" }, "None was recorded here.");
  const held = inner.columns.map((_, c) => c).filter((c) => c === 0 || listed.some((row) => row[c] !== "" && row[c] != null));
  const texts = held.filter((c) => inner.columns[c].unit === "text").length;
  const cell = (row, c) => {
    const words = textIn(row[c], inner.columns[c].unit);
    if (inner.columns[c].unit !== "text") return figure(words);
    if (c > 0 || !context.has(inner.selects)) return h("span", { class: "pf-name", title: words }, words);
    return linkTo(words, `Show ${words}`, () => context.reveal(inner.selects, words));
  };
  return smallTable(inner.title, { words: held.map((c) => inner.columns[c].head), text: texts }, listed.slice(0, 300).map((row) => held.map((c) => cell(row, c))));
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

export function tableSection(section, context) {
  const { columns, rows, nesting, tail, details, inner, noun, title, names, selects } = section;
  if (!rows.length) return null;
  const body = rows.length - tail;
  const searched = nesting != null || rows.length >= SEARCHED_FROM;
  const parent = rows.map((_, i) => (nesting && i < body ? nesting.parents[i] : -1));
  const barred = columns.findIndex(({ bar }) => bar);
  const most = barred < 0 ? 0 : Math.max(0, ...rows.slice(0, body).map((row) => numberIn(row[barred]) ?? 0));
  const held = columns.map((_, c) => c).filter((c) => c === 0 || rows.some((row) => isKnown(row[c])));
  const nameOf = (i) => textIn(rows[i][0], "text");
  const path = (i) => (parent[i] < 0 ? nameOf(i) : `${path(parent[i])}.${nameOf(i)}`);
  const isWithin = (row, i) => row === i || (row > i && isWithin(parent[row], i));
  const describe = (i) => {
    const holder = h("div");
    const nested = parent.includes(i);
    const fill = (all) => holder.replaceChildren(innerTable(inner, (row) => (all ? isWithin(row, i) : row === i), context));
    if (inner) fill(nested);
    const heading = names?.[i] ?? path(i);
    const whole = heading.endsWith(nameOf(i));  // the full name of what the first column names
    const known = columns.map((column, c) => [column, rows[i][c]]).slice(whole ? 1 : 0).filter(([column, cell]) => isKnown(cell) && (column.unit !== "text" || textIn(cell, "text").length < 40));
    return [
      h("h3", {}, heading), details?.[i] && h("p", {}, details[i]),
      factRows(known.map(([column, cell]) => [column.head, figure(textIn(cell, column.unit))])),
      selects.filter(([key]) => context.has(key)).map(([key, words]) => h("p", { class: "pf-buttons" },
        h("button", { type: "button", click: () => context.reveal(key, whole ? heading : nameOf(i)) }, words))),
      inner && h("div", { class: "pf-ops-head" }, h("h4", {}, inner.title),
        nested && h("label", {}, h("input", { type: "checkbox", checked: true, change: (event) => fill(event.target.checked) }), `including ${noun}s inside`)),
      inner && holder,
    ];
  };
  const listed = (order, write) => [held.map((c) => columns[c].head), ...order.map((i) => held.map((c) => (c === 0 ? path(i) : write(rows[i][c], columns[c].unit))))];
  const lines = () => listed(grid.order, textIn).map((line) => line.join("\t")).join("\n");
  const numbers = () => listed([...rows.keys()], (cell) => String(numberIn(cell) ?? textIn(cell, "text"))).map((line) => line.map(quoted).join(",")).join("\n");
  const containers = [...new Set(parent)].filter((i) => i >= 0);
  const opens = (word, help, open) => h("button", { type: "button", title: help, click: () => grid.setOpen(open) }, word);
  const tools = h("span", { class: "pf-buttons" },
    containers.length > 0 && [nesting.path.length > 0 && opens("Heaviest path", `Open the path to the heaviest ${noun}, close the others`, nesting.path),
      opens("Open all", `Open every ${noun}`, containers), opens("Close all", `Close every ${noun}`, [])],
    copyButton(lines, "Copy the rows as tab-separated text"), saveButton(numbers, `${noun}s.csv`, "Save all rows as CSV, with numbers in full", "CSV"));
  const shown = held.map((c) => gridColumn(section, c, most, searched));
  if (details?.some(Boolean)) {
    shown.push({ head: "note", text: true, least: 320, drop: 1, value: (i) => details[i], draw: (i) => h("span", { class: "pf-name pf-quiet", title: details[i] }, details[i]) });
  }
  const heading = h("h3", { class: "pf-section" }, title);
  const grid = new Grid({
    label: title, noun: `${noun.replace(/(?<=[^aeiou])y$/, "ie")}s`, columns: shown, describe, searched, before: !searched && heading, after: tools,
    rows: { parent, pinned: (i) => i >= body, words: (i, query) => `${query.includes(".") ? path(i) : nameOf(i)}\n${columns[1]?.unit === "text" ? textIn(rows[i][1], "text") : ""}` },
  });
  if (nesting) grid.setOpen(nesting.path.length ? nesting.path : grid.roots);
  // A name is a row's own name, its path, or its number. The first of several equal names is selected.
  const backwards = [...rows.keys()].reverse();
  const places = new Map([...backwards.map((i) => [nameOf(i), i]), ...backwards.map((i) => [names?.[i] ?? path(i), i])]);
  const reveal = (name) => {
    const column = name?.sortBy && shown.find(({ head }) => head === name.sortBy);
    if (column) {
      grid.sort = null;
      return grid.sortBy(column);
    }
    const at = typeof name === "number" ? name : places.get(name);
    return at >= 0 && grid.reveal(at);
  };
  return { element: h("div", {}, searched && heading, grid.element), reveal, shown: () => grid.fit(), size: section.key ? grouped(body) : null };
}
