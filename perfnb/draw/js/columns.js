// A column with one figure per row; none if the frame's column has no known value.
import { columnHead, figure, h } from "./dom.js";

export function figureColumn(values, key, head, title, format, more = {}) {
  return values && {
    key, head, title, width: 78, value: (i) => values[i], draw: (i) => figure(format(values[i])), ...more,
  };
}

// A search box that shows how many rows match.
export function searchBox(placeholder, size, noun, search) {
  const status = h("span", { class: "pf-status", role: "status" });
  const input = h("input", { type: "search", placeholder, "aria-label": placeholder, spellcheck: "false", autocomplete: "off" });
  const run = () => {
    const matches = search(input.value);
    status.textContent = input.value.trim() ? `${matches.toLocaleString("en-US")} of ${size.toLocaleString("en-US")} ${noun}` : "";
  };
  input.addEventListener("input", run);
  const clear = () => {
    if (!input.value) return;
    input.value = "";
    run();
  };
  return { element: h("span", { class: "pf-search" }, input, status), clear };
}

// A grid with a details panel for the selected row beside or below it.
export function withDetails(toolbar, grid, describe) {
  const panel = h("aside", { class: "pf-details", "aria-label": "Details", hidden: true });
  const close = () => {
    panel.hidden = true;
    const row = grid.selected;
    grid.selected = -1;
    grid.draw(true);
    if (row >= 0) grid.go(row);
  };
  const show = (i) => {
    const button = h("button", { type: "button", class: "pf-close", "aria-label": "Close details", title: "Close", click: close }, "×");
    panel.replaceChildren(button, ...describe(i));
    panel.hidden = false;
    panel.scrollTop = 0;
  };
  panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
  return { show, element: h("div", { class: "pf-view" }, toolbar, h("div", { class: "pf-split" }, grid.element, panel)) };
}

// A small table of figures in the details panel.
export function smallTable(label, heads, rows) {
  const narrow = { Direction: 92, Calls: 50, "Self CPU": 74, GPU: 74, Kind: 112, Track: 150, Start: 78, Duration: 78, Events: 78, Busy: 78, Share: 66 };
  const cell = (tag, content, i) => h(tag, { scope: tag === "th" ? (i ? "col" : "row") : null, class: i < heads.text ? "pf-text" : "" }, content);
  return h("table", { class: "pf-small", "aria-label": label },
    h("colgroup", {}, heads.words.map((word) => h("col", { style: narrow[word] ? `width:${narrow[word]}px` : "" }))),
    h("thead", {}, h("tr", {}, heads.words.map((word, i) => columnHead(word, i < heads.text)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((content, i) => cell(i ? "td" : "th", content, i))))));
}
