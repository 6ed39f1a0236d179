// The Layers tab: the model as a tree, and the ops of the selected layer.
import { figure, h, marked, stackedBar } from "../../draw/js/dom.js";
import { byteSize, count, duration, flopCount, grouped, share } from "../../draw/js/format.js";
import { figureColumn, nameColumn, searchGrid, smallTable } from "../../draw/js/grid.js";
import { tabMakers } from "../../draw/js/tabs.js";

const SPECIAL_TITLES = {
  "(loss)": "Backward pass of the loss; its forward pass is the phase loss",
  "(gradient accumulation)": "Time that the backward pass spends adding gradients to parameters; it cannot be attributed to layers",
  "(autograd engine)": "Time in the autograd engine itself, between backward ops",
  "(unattributed)": "Time of the traced step that belongs to no other row",
};
export const DIRECTIONS = ["forward", "backward", "recompute"];

export function layerFacts(data) {
  const { layers } = data;
  const path = (i) => {
    const parts = [];
    for (let up = i; up >= 0; up = layers.parent[up]) parts.unshift(layers.label[up]);
    return parts.join(".");
  };
  // The shortest unique end of a path, at least two parts.
  const end = (parts, size) => parts.slice(-size).join(".");
  const sharing = new Map();
  layers.parent.forEach((_, i) => {
    const parts = path(i).split(".");
    for (let size = 1; size <= parts.length; size += 1) sharing.set(end(parts, size), (sharing.get(end(parts, size)) ?? 0) + 1);
  });
  const brief = (i) => {
    const parts = path(i).split(".");
    let size = Math.min(2, parts.length);
    while (size < parts.length && sharing.get(end(parts, size)) > 1) size += 1;
    return end(parts, size);
  };
  const special = (i) => i >= layers.modules;
  const title = (i) => SPECIAL_TITLES[special(i) ? layers.label[i] : ""] ?? path(i);
  const rowClass = (i, before) => (special(i) ? (special(before) ? "pf-special" : "pf-special pf-first") : "");
  // A bar of the passes of a layer, or of its total where they are unknown.
  const bar = (i, heaviest) => {
    const parts = DIRECTIONS.map((kind) => [layers[`${kind}_ms`]?.[i] ?? 0, kind]);
    return stackedBar(parts.some(([ms]) => ms > 0) ? parts : [[layers.total_ms?.[i] ?? 0, "other"]], heaviest);
  };
  const inside = (i) => {
    const within = new Uint8Array(layers.parent.length);
    within[i] = 1;
    for (let j = i + 1; j < within.length; j += 1) if (layers.parent[j] >= 0) within[j] = within[layers.parent[j]];
    return within;
  };
  return { path, brief, special, title, rowClass, bar, inside };
}

function layerColumns(data, facts) {
  const { layers } = data;
  const heaviest = Math.max(0, ...layers.parent.map((parent, i) => (parent < 0 && !facts.special(i) ? layers.total_ms?.[i] ?? 0 : 0)));
  const recomputes = layers.recompute_ms?.some((ms) => ms > 0);
  const traced = "in a traced step, including layers inside";
  const number = (key, head, title, format, more) => figureColumn(layers[key], key, head, title, format, more);
  // These columns are always shown; missing figures are n/a.
  const always = (key, ...rest) => figureColumn(layers[key] ?? layers.parent.map(() => null), key, ...rest);
  return [
    nameColumn("label", "Layer", "Sort by name; a third click restores the order of the model", (i) => layers.label[i], {
      draw: (i, query) => h("span", { class: "pf-name", title: facts.title(i) }, marked(layers.label[i], query)),
    }),
    {
      key: "module", head: "Module", title: "Class of the module", text: true, width: 112, drop: 8,
      value: (i) => layers.module[i]?.toLowerCase(),
      draw: (i, query) => h("span", { class: "pf-class", title: layers.module[i] }, marked(layers.module[i] ?? "", query)),
    },
    number("calls", "Calls", "Calls per step", count, { width: 50, drop: 7 }),
    {
      key: "bar", head: "Time", title: "Forward, backward and recompute time, relative to the heaviest root", width: 96, text: true,
      value: (i) => -(layers.total_ms?.[i] ?? 0), draw: (i) => facts.bar(i, heaviest),
    },
    always("forward_ms", "Forward", `Forward time ${traced}`, duration),
    always("backward_ms", "Backward", `Backward time ${traced}`, duration, { width: 82 }),
    recomputes ? number("recompute_ms", "Recompute", `Time spent recomputing forward work in the backward pass ${traced}`, duration, { width: 88 }) : null,
    always("total_ms", "Total", `Forward, backward and recompute time ${traced}`, duration),
    number("self_ms", "Self", "Time in a traced step, excluding layers inside", duration, { drop: 5 }),
    number("gpu_ms", "GPU", `GPU time ${traced}`, duration, { drop: 6 }),
    always("share", "Share", "Share of the step, corrected for tracing overhead", share, { width: 66 }),
    number("forward_flops", "Forward FLOPs", "Arithmetic of the forward pass, including layers inside", flopCount, { drop: 3, width: 108 }),
    number("backward_flops", "Backward FLOPs", "Arithmetic of the backward pass, including layers inside", flopCount, { drop: 1, width: 116 }),
    number("activation_bytes", "Activation", "Memory saved for backward (activations), including layers inside", byteSize, { drop: 2, width: 84 }),
    number("parameters", "Parameters", "Parameters, including layers inside", count, { drop: 4, width: 88 }),
  ].filter(Boolean);
}

// `showEvents` goes to a layer's events on the timeline, if there is one.
function layersTab(data, facts, showEvents) {
  const { layers } = data;
  const containers = [...new Set(layers.parent)].filter((i) => i >= 0);
  const hot = data.hot_path.filter((i) => containers.includes(i));
  const rows = {
    parent: layers.parent,
    words: (i, query) => `${query.includes(".") ? facts.path(i) : layers.label[i]}\n${layers.module[i] ?? ""}`,
    pinned: facts.special,
  };
  const button = (word, title, open) => h("button", { type: "button", title, click: () => grid.setOpen(open) }, word);
  const { grid, element, reveal } = searchGrid({
    label: "Layers", columns: layerColumns(data, facts), rows, rowClass: facts.rowClass, words: "Search by name or class", size: layers.modules, noun: "layers",
    after: h("span", { class: "pf-buttons" },
      button("Heaviest path", "Open the path to the heaviest layer, close the others", hot),
      button("Open all", "Open every layer", containers), button("Close all", "Close every layer", [])),
    describe: (i) => layerDetails(data, facts, grid, i, showEvents),
  });
  grid.setOpen(hot);
  return { element, size: grouped(layers.modules), shown: () => grid.fit(), reveal };
}

function layerDetails(data, facts, grid, i, showEvents) {
  const { layers } = data;
  const entry = (word, key, format) => layers[key] && h("div", {}, h("dt", {}, word), h("dd", {}, figure(format(layers[key][i]))));
  const list = h("dl", {},
    entry("total", "total_ms", duration), entry("self", "self_ms", duration), entry("share", "share", share),
    entry("forward", "forward_ms", duration), entry("backward", "backward_ms", duration), entry("recompute", "recompute_ms", duration), entry("GPU", "gpu_ms", duration),
    entry("calls", "calls", count), entry("ops", "ops", count), entry("kernels", "kernels", count),
    entry("parameters", "parameters", count), entry("parameter memory", "parameter_bytes", byteSize), entry("activations", "activation_bytes", byteSize),
    entry("forward FLOPs", "forward_flops", flopCount), entry("backward FLOPs", "backward_flops", flopCount), entry("recompute FLOPs", "recompute_flops", flopCount),
    entry("min. bytes moved", "moved_bytes", byteSize), entry("peak memory", "peak_bytes", byteSize));
  const hasInside = grid.children[i].length > 0;
  const holder = h("div");
  const drawOps = (inside) => holder.replaceChildren(opsOfLayer(data, inside ? facts.inside(i) : null, i));
  const box = h("input", { type: "checkbox", checked: hasInside, change: () => drawOps(box.checked) });
  drawOps(hasInside);
  const title = facts.special(i) ? SPECIAL_TITLES[layers.label[i]] : layers.module[i];
  return [
    h("h3", {}, facts.path(i)), title ? h("p", { class: "pf-quiet" }, title) : null, list,
    showEvents && !facts.special(i) ? h("p", { class: "pf-buttons pf-to-timeline" }, h("button", { type: "button", click: () => showEvents(i) }, "Show in timeline")) : null,
    h("div", { class: "pf-ops-head" }, h("h4", {}, "Ops"),
      hasInside ? h("label", {}, box, "including layers inside") : null),
    holder,
  ];
}

// Sums over uses of ops in layers, `places` in the columns `used`, for each key, heaviest first: {at: the first, calls, cpu, gpu}.
export function usesBy(used, places, key) {
  const sums = new Map();
  for (const at of places) {
    const sum = sums.get(key(at)) ?? { at, calls: 0, cpu: null, gpu: null };
    sum.calls += used.calls?.[at] ?? 0;
    if (used.self_cpu_ms?.[at] != null) sum.cpu = (sum.cpu ?? 0) + used.self_cpu_ms[at];
    if (used.gpu_ms?.[at] != null) sum.gpu = (sum.gpu ?? 0) + used.gpu_ms[at];
    sums.set(key(at), sum);
  }
  const weight = (sum) => (used.gpu_ms ? sum.gpu : sum.cpu) ?? 0;
  return [...sums.values()].sort((a, b) => weight(b) - weight(a));
}

// Such sums as a table: `heads` and `entries(sum)` come before their figures.
export function usesTable(label, used, sums, heads, entries) {
  const rows = sums.map((sum) => [...entries(sum), figure(count(sum.calls)), figure(duration(sum.cpu)), ...(used.gpu_ms ? [figure(duration(sum.gpu))] : [])]);
  return smallTable(label, { words: [...heads, "Calls", "Self CPU", ...(used.gpu_ms ? ["GPU"] : [])], text: heads.length }, rows);
}

// Ops of layer `i`, or of all layers in `within`, heaviest first.
function opsOfLayer({ layer_ops: used, ops }, within, i) {
  const places = [...used.layer.keys()].filter((at) => used.layer[at] >= 0 && (within ? within[used.layer[at]] : used.layer[at] === i));
  if (!places.length) return h("p", { class: "pf-quiet" }, within ? "No op was recorded here." : "No op of its own was recorded here.");
  const sums = usesBy(used, places, (at) => `${used.op[at]} ${used.direction[at]}`);
  return usesTable("Ops of the layer", used, sums, ["Op", "Direction"], ({ at }) => {
    const [op, direction] = [ops.label[used.op[at]], used.direction[at]];
    const kind = h("i", { class: `pf-key pf-${DIRECTIONS.includes(direction) ? direction : "other"}`, "aria-hidden": "true" });
    return [h("span", { class: "pf-name", title: op }, op), h("span", { class: "pf-kind" }, kind, direction)];
  });
}

tabMakers.layers = ({ data, facts, has, go }) => layersTab(data, facts, has("timeline") ? (i) => go("timeline", i) : null);
