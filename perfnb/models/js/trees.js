// The architectures' layers side by side: times on one scale, colours and patterns by kind of layer.
import { swatch } from "../../draw/js/chart.js";
import { figureColumn } from "../../draw/js/columns.js";
import { figure, h, stackedBar } from "../../draw/js/dom.js";
import { UNKNOWN, duration, share } from "../../draw/js/format.js";
import { Grid } from "../../draw/js/grid.js";
import { metricWords } from "./metrics.js";
import { DIRECTIONS, SPECIAL_TITLES, layerFacts } from "../../profile/js/layers.js";

export function architectureTrees(data) {
  const heaviest = Math.max(0, ...data.trees.flatMap((tree) => (tree ? tree.parent.map((parent, i) => (parent < 0 && i < tree.modules ? tree.total_ms[i] ?? 0 : 0)) : [])));
  const tip = h("p", { class: "pf-tip", role: "status" }, h("span", { class: "pf-quiet" }, "Select a layer for its figures. Up and down move between layers, right and left open and close them."));
  const panels = data.trees.map((tree, at) => treePanel(data, tree, at, heaviest, (words) => tip.replaceChildren(...words)));
  const open = (which) => panels.forEach(({ grid, ways }) => grid?.setOpen(ways[which]));
  const button = (word, title, which) => h("button", { type: "button", title, click: () => open(which) }, word);
  return h("section", { class: "pf-trees", "aria-label": "Layers side by side" },
    h("div", { class: "pf-toolbar" }, h("h3", {}, "Layers side by side"), h("span", { class: "pf-buttons" },
      button("Top levels", "Open the outermost layers, close the others", "top"), button("Heaviest paths", "Open the path to the heaviest layer of each", "heaviest"))),
    h("div", { class: "pf-forest" }, panels.map(({ element }) => element)), tip);
}

function treePanel(data, tree, at, heaviest, say) {
  const head = h("h4", {}, h("span", { class: "pf-name", title: data.names[at] }, data.names[at]), h("b", {}, figure(metricWords(data.metrics[0], at))));
  if (!tree) return { element: h("div", { class: "pf-tree" }, head, h("p", { class: "pf-quiet" }, `${UNKNOWN}: its layers were not measured`)) };
  const facts = layerFacts({ layers: tree });
  const grid = new Grid({
    label: `Layers of ${data.names[at]}`, columns: treeColumns(data, tree, facts, heaviest),
    rows: { parent: tree.parent, words: (i) => tree.label[i], pinned: facts.special }, onSelect: (i) => say(nodeWords(data, tree, facts, at, i)),
    rowClass: (i, before) => (facts.special(i) ? (facts.special(before) ? "pf-special" : "pf-special pf-first") : ""),
  });
  const ways = openWays(tree, grid, facts);
  grid.setOpen(ways.top);
  return { element: h("div", { class: "pf-tree" }, head, grid.element), grid, ways };
}

// What to open: the outermost layers, skipping those with a single child, and the path to the heaviest.
function openWays(tree, grid, facts) {
  const roots = grid.roots.filter((i) => !facts.special(i));
  const top = [...roots];
  if (roots.length === 1) for (let [inside] = [grid.children[roots[0]]]; inside.length === 1; inside = grid.children[inside[0]]) top.push(inside[0]);
  const heaviest = [];
  const heavier = (a, b) => ((tree.total_ms[b] ?? 0) > (tree.total_ms[a] ?? 0) ? b : a);
  for (let now = roots; now.length;) {
    const next = now.reduce(heavier);
    heaviest.push(next);
    now = grid.children[next];
  }
  return { top, heaviest };
}

function treeColumns(data, tree, facts, heaviest) {
  const kindOf = (i) => data.kinds[tree.kind[i]];
  const holds = new Set(tree.parent);
  const shownKind = (i) => (facts.special(i) || (holds.has(i) && kindOf(i)?.word === "other") ? null : kindOf(i));
  return [
    {
      key: "label", head: "Layer", title: "Sort by name; a third click restores the order of the model", text: true, value: (i) => tree.label[i].toLowerCase(),
      draw: (i) => h("span", { class: "pf-name", title: [SPECIAL_TITLES[facts.special(i) ? tree.label[i] : ""] ?? facts.path(i), tree.module[i], shownKind(i)?.word].filter(Boolean).join("\n") },
        shownKind(i) ? swatch(shownKind(i)) : null, tree.label[i]),
    },
    {
      key: "bar", head: "", title: "Forward, backward and recompute time, relative to the slowest architecture", text: true, width: 64, drop: 1, value: (i) => -(tree.total_ms[i] ?? 0),
      draw: (i) => {
        const parts = DIRECTIONS.map((kind) => [tree[`${kind}_ms`][i] ?? 0, kind]);
        return stackedBar(parts.some(([ms]) => ms > 0) ? parts : [[tree.total_ms[i] ?? 0, "other"]], heaviest);
      },
    },
    figureColumn(tree.total_ms, "total_ms", "Time", "Time in a traced step, layers inside included", duration, { width: 70 }),
    figureColumn(tree.share, "share", "Share", "Share of the step, layers inside included", share, { width: 58 }),
  ];
}

function nodeWords(data, tree, facts, at, i) {
  const kind = data.kinds[tree.kind[i]];
  const named = [tree.module[i], kind?.word].filter(Boolean).join(", ");
  const passes = DIRECTIONS.filter((pass) => tree[`${pass}_ms`][i] > 0).map((pass) => `${pass} ${duration(tree[`${pass}_ms`][i])}`);
  return [h("b", {}, facts.path(i)), ` in ${data.names[at]}${named ? ` (${named})` : ""}: ${duration(tree.total_ms[i])}, ${share(tree.share[i])} of the step`,
    passes.length ? `; ${passes.join(", ")}` : "", tree.self_ms[i] == null ? "" : `; ${duration(tree.self_ms[i])}`];
}
