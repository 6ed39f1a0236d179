// The texts beside the charts of a watch.
// Missing sensors and caveats, then how to read the charts.
import { columnHead, figure, h } from "../../draw/js/dom.js";

export function watchWords(store) {
  const { absent, charts } = store.data;
  const left = store.marksLeftOut;
  const more = left ? [`${left.toLocaleString("en-US")} earlier ${left === 1 ? "mark is" : "marks are"} not drawn`] : [];
  const seen = charts.filter(({ lines, note }) => note && lines.some(({ device, column }) => store.devices.get(device)?.known.has(column)));
  return [[...absent, ...store.notes, ...more], seen.map(({ title, note }) => `${title}: ${note}`)];
}

export const wordLists = ([lines, notes]) => [
  lines.length ? h("ul", { class: "pf-watch-notes" }, lines.map((line) => h("li", {}, line))) : null,
  notes.length ? h("details", { class: "pf-quiet pf-watch-notes" }, h("summary", {}, "How to read the charts"), h("ul", {}, notes.map((note) => h("li", {}, note)))) : null,
].filter(Boolean);

export function watchTable({ table }) {
  if (!table.length) return h("p", {});
  const heads = ["Metric", "median", "95th percentile", "maximum", "total"];
  return h("div", { class: "pf-scroll pf-watch-table", tabindex: 0 }, h("table", { class: "pf-small" },
    h("caption", {}, "Over the whole watch"),
    h("thead", {}, h("tr", {}, heads.map((head, i) => columnHead(head, !i)))),
    h("tbody", {}, table.map(([device, metric, ...figures], row) => h("tr", { class: row && table[row - 1][0] !== device ? "pf-first" : null },
      h("th", { scope: "row", class: "pf-text" }, device, h("span", { class: "pf-quiet" }, ` ${metric}`)), figures.map((text) => h("td", {}, text ? figure(text) : "")))))));
}
