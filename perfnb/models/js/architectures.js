// Comparison of architectures: why one is slower, on one screen.
import { h, titled } from "../../draw/js/dom.js";
import { share, significant } from "../../draw/js/format.js";
import { settle } from "../../draw/js/notebook.js";
import { architectureMetrics } from "./metrics.js";
import { architectureShares } from "./shares.js";
import { architectureTrees } from "./trees.js";

const MOST_PAIRS = 6;

function architecturesView(data) {
  const size = data.names.length;
  return h("article", { class: "perfnb", "aria-label": `Comparison of ${data.names.join(", ")}` }, h("div", { class: "pf-view pf-compare" },
    h("header", {}, titled(size === 1 ? "1 architecture" : `${size} architectures compared`, data.facts.join(" · "))),
    h("div", { class: "pf-beside" }, architectureShares(data), architectureRatios(data)),
    architectureMetrics(data), architectureTrees(data), architectureNotes(data)));
}

// Each pair as a sentence, the largest differences first; further pairs on demand.
function architectureRatios(data) {
  const far = ({ ratio }) => (ratio > 0 ? Math.abs(Math.log(ratio)) : -1);
  const sorted = data.ratios.length > MOST_PAIRS ? [...data.ratios].sort((a, b) => far(b) - far(a)) : data.ratios;
  const list = h("ul", { class: "pf-pairs" }, sorted.map(({ words: [before, figures, after], told, p, detectable }, at) => h("li", {
    hidden: at >= MOST_PAIRS, class: told ? "" : "pf-not-told", title: [p == null ? null : `p = ${significant(p)}`,
      detectable == null ? null : `Smallest difference that these measurements can detect: ${share(detectable)}`].filter(Boolean).join("\n"),
  }, `${before} `, h("b", {}, figures), ` ${after}`)));
  const more = sorted.length > MOST_PAIRS ? h("button", { type: "button", class: "pf-link", "aria-expanded": "false", click: () => {
    const open = more.getAttribute("aria-expanded") === "false";
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Fewer pairs" : `All ${sorted.length} pairs`;
    [...list.children].forEach((item, at) => item.toggleAttribute("hidden", !open && at >= MOST_PAIRS));
  } }, `All ${sorted.length} pairs`) : null;
  return h("section", { "aria-label": "Pair by pair" }, h("div", { class: "pf-toolbar" }, h("h3", {}, "Pair by pair")),
    sorted.length ? [list, more, h("p", { class: "pf-quiet pf-rule-words" }, data.rule)] : h("p", { class: "pf-quiet" }, "Nothing to compare."));
}

function architectureNotes(data) {
  return data.notes.length
    ? h("section", { class: "pf-notes" }, h("h3", {}, "Notes"), h("ul", {}, data.notes.map((note) => h("li", {}, note))))
    : null;
}

function render({ model, el }) {
  const data = JSON.parse(model.get("data"));
  const root = architecturesView(data);
  return settle(root, data.id, el);
}

const architectures = { render };
export default architectures;
