// Tables. A grid has many rows, flat or nested, that can be sorted, filtered, opened and closed; only visible rows are
// drawn. A panel next to or below it describes the selected row. There is also a small table of figures.
import { closeButton, columnHead, h, holdsFocus, searchInput } from "./dom.js";
import { grouped } from "./format.js";

const ROW_HEIGHT = 26;
const DRAW_ALL_BELOW = 300;
const SPARE_ROWS = 20;
// A column without a width takes up the space left by the others, but at least this much.
const LEAST_WIDTH = 190;

export class Grid {
  // columns: {head, title, width, least, drop, text, value(i), draw(i, query)}; rows: {parent, words(i), pinned(i)}
  // `describe(i)` returns the content of the panel. `before` and `after` are placed around the search box, which shows
  // how many rows match. `noun` names several rows.
  constructor({ label, noun, columns, rows, describe, before, after, searched }) {
    Object.assign(this, { noun, columns, rows, describe });
    this.nested = rows.parent.some((parent) => parent >= 0);
    this.children = rows.parent.map(() => []);
    this.roots = [];
    this.level = [];
    rows.parent.forEach((parent, i) => {
      (parent < 0 ? this.roots : this.children[parent]).push(i);
      this.level.push(parent < 0 ? 1 : this.level[parent] + 1);
    });
    this.open = new Set();
    this.filter = null;
    this.sort = null;
    this.current = -1;
    this.selected = -1;
    this.head = h("thead");
    this.body = h("tbody", { click: (event) => this.clicked(event), keydown: (event) => this.keyed(event) });
    this.cols = h("colgroup");
    this.table = h("table", { role: this.nested ? "treegrid" : "grid", "aria-label": label }, this.cols, this.head, this.body);
    this.scroller = h("div", { class: "pf-scroll", tabindex: "-1", scroll: () => this.draw(false) }, this.table);
    this.input = searchInput(`Search ${noun}`);
    this.input.addEventListener("input", () => this.search(this.input.value));
    this.status = h("span", { class: "pf-status", role: "status" });
    this.panel = h("aside", { class: "pf-details", "aria-label": "Details", hidden: true, keydown: (event) => event.key === "Escape" && this.close() });
    this.element = h("div", { class: "pf-view" },
      h("div", { class: "pf-toolbar" }, before, searched && h("span", { class: "pf-search" }, this.input, this.status), after),
      h("div", { class: "pf-split" }, this.scroller, this.panel));
    new ResizeObserver(() => this.fit()).observe(this.scroller);
    this.fit();
    this.update();
  }

  // The columns that fit; those with the lowest `drop` are dropped first.
  fit() {
    const needed = ({ width, least = LEAST_WIDTH }) => width ?? least;
    const total = (columns) => columns.reduce((sum, column) => sum + needed(column), 0);
    let spare = (this.scroller.clientWidth || 1000) - total(this.columns);
    const dropped = new Set();
    for (const column of this.columns.filter(({ drop }) => drop).sort((a, b) => a.drop - b.drop)) {
      if (spare >= 0) break;
      spare += needed(column);
      dropped.add(column);
    }
    const shown = this.columns.filter((column) => !dropped.has(column));
    const isElastic = shown.some(({ width }) => width == null);
    this.table.style.minWidth = `${total(shown) - (isElastic ? LEAST_WIDTH / 4 : 0)}px`;
    this.table.style.maxWidth = isElastic ? "" : `${total(shown)}px`;
    if (shown.length === this.shown?.length) return this.draw(false);
    this.shown = shown;
    this.cols.replaceChildren(...shown.map((column) => h("col", { style: column.width ? `width:${column.width}px` : "" })));
    this.drawHead();
    if (this.order) this.draw(true);
  }

  drawHead() {
    this.head.replaceChildren(h("tr", { role: "row", "aria-rowindex": 1 }, this.shown.map((column) => {
      const direction = this.sort?.column === column ? this.sort.direction : 0;
      const state = ["none", "ascending", "descending"].at(direction);
      return h("th", { scope: "col", role: "columnheader", "aria-sort": state, class: column.text || column === this.columns[0] ? "pf-text" : "" },
        h("button", { type: "button", title: column.title, click: () => this.sortBy(column) },
          column.head, h("span", { class: "pf-arrow", "aria-hidden": "true" }, ["", "▲", "▼"].at(direction))));
    })));
  }

  // The first click sorts heaviest first (text from A), the second reverses, the third restores the order.
  sortBy(column) {
    const first = column.text ? 1 : -1;
    const isFirst = this.sort?.column !== column;
    this.sort = isFirst || this.sort.direction === first ? { column, direction: isFirst ? first : -first } : null;
    this.drawHead();
    this.update();
    this.head.querySelectorAll("button")[this.shown.indexOf(column)]?.focus();
  }

  sorted(siblings) {
    if (!this.sort) return siblings;
    const { column: { value }, direction } = this.sort;
    const rank = (i) => (this.rows.pinned(i) ? 2 : value(i) == null ? 1 : 0);
    const order = (x, y) => (x < y ? -direction : x > y ? direction : 0);
    return [...siblings].sort((a, b) => rank(a) - rank(b) || (rank(a) === 0 && order(value(a), value(b))) || a - b);
  }

  // Keeps the rows whose words contain `query`, their ancestors, and all rows inside them.
  search(query) {
    this.query = query.trim().toLowerCase();
    this.filter = null;
    this.status.textContent = "";
    if (this.query) {
      const { parent, words, pinned } = this.rows;
      const found = parent.map((_, i) => words(i, this.query).toLowerCase().includes(this.query));
      const open = new Set();
      found.forEach((hit, i) => {
        for (let up = hit ? parent[i] : -1; up >= 0 && !open.has(up); up = parent[up]) open.add(up);
      });
      const within = [];
      for (const up of parent) within.push(up >= 0 && (found[up] || within[up]));
      this.filter = { found, open, keep: found.map((hit, i) => hit || within[i] || open.has(i)) };
      this.status.textContent = `${grouped(found.filter(Boolean).length)} of ${grouped(parent.filter((_, i) => !pinned(i)).length)} ${this.noun}`;
    }
    this.scroller.scrollTop = 0;
    this.update();
  }

  get opened() {
    return this.filter ? this.filter.open : this.open;
  }

  kept(rows) {
    return this.filter ? rows.filter((i) => this.filter.keep[i]) : rows;
  }

  // Determines which rows are listed, in order, and draws them.
  update() {
    this.order = [];
    const backwards = (siblings) => [...this.sorted(this.kept(siblings))].reverse();
    const stack = backwards(this.roots);
    while (stack.length) {
      const i = stack.pop();
      this.order.push(i);
      if (this.opened.has(i)) stack.push(...backwards(this.children[i]));
    }
    this.place = new Map(this.order.map((i, at) => [i, at]));
    if (!this.place.has(this.current)) this.current = this.order[0] ?? -1;
    this.table.setAttribute("aria-rowcount", this.order.length + 1);
    this.draw(true);
  }

  draw(anew) {
    const total = this.order.length;
    const isLong = total > DRAW_ALL_BELOW;
    const top = Math.floor(this.scroller.scrollTop / ROW_HEIGHT);
    const bottom = top + Math.ceil((this.scroller.clientHeight || 500) / ROW_HEIGHT);
    if (!anew && !(isLong && (top < this.from || bottom > this.to))) return;
    const [from, to] = isLong ? [Math.max(0, top - SPARE_ROWS), Math.min(total, bottom + SPARE_ROWS)] : [0, total];
    const focused = holdsFocus(this.body);
    Object.assign(this, { from, to });
    const spacer = (rows) => h("tr", { class: "pf-space", "aria-hidden": "true", style: `height:${rows * ROW_HEIGHT}px` });
    const drawn = this.order.slice(from, to).map((i, at) => this.row(i, from + at));
    if (!total) drawn.push(h("tr", {}, h("td", { colspan: this.shown.length, class: "pf-text pf-quiet" }, "No matches.")));
    this.body.replaceChildren(spacer(from), ...drawn, spacer(total - to));
    if (focused) this.rowOf(this.current)?.focus({ preventScroll: true });
  }

  row(i, at) {
    const inside = this.kept(this.children[i]).length > 0;
    const props = {
      role: "row", "aria-rowindex": at + 2, "data-row": i, tabindex: i === this.current ? 0 : -1,
      "aria-selected": String(i === this.selected), class: this.rows.pinned(i) ? "pf-special" : "",
      "aria-level": this.nested ? this.level[i] : null,
      "aria-expanded": inside ? String(this.opened.has(i)) : null,
    };
    const cells = this.shown.map((column, c) => {
      const content = column.draw(i, this.filter?.found[i] ? this.query : "");
      if (c > 0) return h("td", { role: "gridcell", class: column.text ? "pf-text" : "" }, content);
      const indent = this.nested && `padding-left:${Math.min(16 * (this.level[i] - 1), 240) + 4}px`;
      const isBlank = !String(content?.textContent ?? content ?? "").trim();  // a cell without words is not a heading
      return h(isBlank ? "td" : "th", { scope: isBlank ? null : "row", role: isBlank ? "gridcell" : "rowheader", class: "pf-text", style: indent },
        this.nested && h("span", { class: inside ? "pf-twisty" : "pf-leaf", "aria-hidden": "true" }), content);
    });
    return h("tr", props, cells);
  }

  rowOf(i) {
    return this.body.querySelector(`tr[data-row="${i}"]`);
  }

  toggle(i, open = !this.opened.has(i)) {
    if (!this.kept(this.children[i]).length) return;
    if (open) this.opened.add(i);
    else this.opened.delete(i);
    this.update();
  }

  setOpen(rows) {
    this.opened.clear();
    rows.forEach((i) => this.opened.add(i));
    this.update();
  }

  // Makes row `i` the current one and scrolls to it.
  go(i, focus = true) {
    for (let up = this.rows.parent[i]; up >= 0; up = this.rows.parent[up]) this.opened.add(up);
    if (!this.place.has(i)) this.update();
    this.rowOf(this.current)?.setAttribute("tabindex", "-1");
    this.current = i;
    const top = this.place.get(i) * ROW_HEIGHT;
    const room = this.scroller.clientHeight - this.head.offsetHeight - ROW_HEIGHT;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    this.draw(false);
    const row = this.rowOf(i);
    row?.setAttribute("tabindex", "0");
    if (focus) row?.focus({ preventScroll: true });
  }

  select(i) {
    this.rowOf(this.selected)?.setAttribute("aria-selected", "false");
    this.selected = i;
    this.rowOf(i)?.setAttribute("aria-selected", "true");
    this.panel.replaceChildren(closeButton(() => this.close()), ...this.describe(i).flat(Infinity).filter(Boolean));
    this.panel.hidden = false;
    this.panel.scrollTop = 0;
  }

  close() {
    this.panel.hidden = true;
    this.rowOf(this.selected)?.setAttribute("aria-selected", "false");
    this.go(this.selected);
    this.selected = -1;
  }

  // Selects a row, even if the search hides it.
  reveal(i) {
    this.input.value = "";
    if (this.filter) this.search("");
    this.go(i);
    this.select(i);
  }

  clicked(event) {
    const row = event.target.closest("tr[data-row]");
    if (!row) return;
    const i = Number(row.dataset.row);
    if (event.target.closest(".pf-twisty")) {
      this.go(i, false);
      return this.toggle(i);
    }
    this.go(i);
    this.select(i);
  }

  keyed(event) {
    const at = this.place.get(this.current);
    if (at == null || event.altKey || event.ctrlKey || event.metaKey || !event.target.closest("tr[data-row]")) return;
    const i = this.current;
    const isOpen = this.opened.has(i) && this.kept(this.children[i]).length > 0;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const last = this.order.length - 1;
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page };
    if (event.key in moves) this.go(this.order[Math.min(last, Math.max(0, moves[event.key]))]);
    else if (event.key === "ArrowRight" && isOpen) this.go(this.order[at + 1]);
    else if (event.key === "ArrowRight") this.toggle(i, true);
    else if (event.key === "ArrowLeft" && isOpen) this.toggle(i, false);
    else if (event.key === "ArrowLeft" && this.rows.parent[i] >= 0) this.go(this.rows.parent[i]);
    else if (event.key === "Enter" || event.key === " ") this.select(i);
    else return;
    event.preventDefault();
  }
}

// A small table of figures in the details panel. The first `text` columns contain words.
export function smallTable(label, { words, text }, rows) {
  const cell = (content, i) => h(i ? "td" : "th", { scope: i ? null : "row", class: i < text ? "pf-text" : "" }, content);
  return h("table", { class: "pf-small", "aria-label": label },
    h("thead", {}, h("tr", {}, words.map((word, i) => columnHead(word, i < text)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
}
