// The report's flame graph: the Python code of the step.
import { swatch } from "../../draw/js/chart.js";
import { h } from "../../draw/js/dom.js";
import { duration, share } from "../../draw/js/format.js";
import { pictures } from "../../draw/js/document.js";
import { flameView } from "./view.js";

pictures.flame = ({ data }) => {
  const { headline, graph, lines, notes } = data;
  const view = flameView(graph, "Flame graph");
  const heads = ["Phase", "Line", "Code", "Itself", "Total", "Share"];
  const table = lines.length > 0 && h("section", { class: "pf-fl-lines" }, h("h3", {}, "Lines of your code, most time of their own first"),
    h("table", { class: "pf-small" }, h("thead", {}, h("tr", {}, heads.map((word, k) => h("th", { scope: "col", class: k < 3 ? "pf-text" : null }, word)))),
      h("tbody", {}, lines.map((line) => h("tr", {}, h("td", { class: "pf-text" }, swatch(line.phase), " ", line.phase.word),
        h("th", { scope: "row", class: "pf-text pf-name", title: line.place }, line.place), h("td", { class: "pf-text", title: line.code }, h("code", { class: "pf-name" }, line.code)),
        h("td", {}, duration(line.self_ms)), h("td", {}, duration(line.total_ms)), h("td", {}, share(line.share)))))));
  const element = h("div", {}, h("p", { class: "pf-fl-head pf-quiet" }, headline), view.element, table, h("ul", { class: "pf-fl-notes pf-quiet" }, notes.map((note) => h("li", {}, note))));
  return { element, shown: view.shown, size: "" };
};
