// The Ops tab: every operator of the step, and the layers that call it.
import { figureColumn, searchBox, smallTable, withDetails } from "../../draw/js/columns.js";
import { figure, h, marked, stackedBar } from "../../draw/js/dom.js";
import { count, duration, flopCount } from "../../draw/js/format.js";
import { Grid } from "../../draw/js/grid.js";
import { tabMakers } from "../../draw/js/tabs.js";

function layersByOp(data) {
  const { layer_ops: used } = data;
  const gpu = used.gpu_ms != null;
  const found = data.ops.label.map(() => new Map());
  used.layer.forEach((layer, at) => {
    if (layer < 0) return;
    const sums = found[used.op[at]];
    const sum = sums.get(layer) ?? { layer, calls: 0, cpu: null, gpu: null };
    sum.calls += used.calls?.[at] ?? 0;
    if (used.self_cpu_ms?.[at] != null) sum.cpu = (sum.cpu ?? 0) + used.self_cpu_ms[at];
    if (used.gpu_ms?.[at] != null) sum.gpu = (sum.gpu ?? 0) + used.gpu_ms[at];
    sums.set(layer, sum);
  });
  const weight = (sum) => (gpu ? sum.gpu : sum.cpu) ?? 0;
  return found.map((sums) => [...sums.values()].sort((a, b) => weight(b) - weight(a)));
}

function opsTab(data, facts, revealLayer) {
  const { ops } = data;
  const users = layersByOp(data);
  const main = ops.gpu_ms ? "gpu_ms" : "self_cpu_ms";
  const heaviest = Math.max(0, ...(ops[main] ?? [0]).map((ms) => ms ?? 0));
  const number = (key, head, title, format, more) => figureColumn(ops[key], key, head, title, format, more);
  const columns = [
    {
      key: "label", head: "Op", title: "Sort by name; a third click restores the original order", text: true,
      value: (i) => ops.label[i].toLowerCase(),
      draw: (i, query) => h("span", { class: "pf-name", title: ops.label[i] }, marked(ops.label[i], query)),
    },
    number("calls", "Calls", "Calls per step", count, { width: 62 }),
    {
      key: "bar", head: "Time", title: `${ops.gpu_ms ? "GPU" : "Self CPU"} time, relative to the heaviest op`, width: 96, drop: 3, text: true,
      value: (i) => -(ops[main]?.[i] ?? 0), draw: (i) => stackedBar([[ops[main]?.[i] ?? 0, "other"]], heaviest),
    },
    number("self_cpu_ms", "Self CPU", "CPU time in a traced step, excluding ops that it calls", duration, { width: 80 }),
    number("total_cpu_ms", "Total CPU", "CPU time in a traced step, including ops that it calls", duration, { width: 84, drop: 2 }),
    number("gpu_ms", "GPU", "Time of its kernels in a traced step", duration),
    number("flops", "FLOPs", "Arithmetic per step", flopCount, { width: 92, drop: 1 }),
    {
      key: "layers", head: "Layers", title: "The layers in which it takes the most time", text: true, width: 290, drop: 4,
      value: (i) => -users[i].length,
      draw: (i) => {
        const more = users[i].length - 3;
        const names = users[i].slice(0, 3).map((sum) => facts.brief(sum.layer)).join(", ");
        const full = users[i].slice(0, 20).map((sum) => facts.path(sum.layer)).join("\n");
        return h("span", { class: "pf-name pf-quiet", title: full || "in no layer" },
          users[i].length ? names + (more > 0 ? ` + ${more} more` : "") : "–");
      },
    },
  ].filter(Boolean);
  let view = null;
  const rows = { parent: ops.label.map(() => -1), words: (i) => ops.label[i] };
  const grid = new Grid({ label: "Ops", columns, rows, onSelect: (i) => view.show(i) });
  const search = searchBox("Search ops", ops.label.length, "ops", (query) => grid.search(query));
  view = withDetails(h("div", { class: "pf-toolbar" }, search.element), grid, (i) => opDetails(data, users[i], facts, i, revealLayer));
  const reveal = (i) => {
    search.clear();
    grid.go(i);
    grid.select(i);
  };
  return { element: view.element, size: ops.label.length.toLocaleString("en-US"), shown: () => grid.fit(), reveal };
}

function opDetails(data, users, facts, i, revealLayer) {
  const gpu = data.layer_ops.gpu_ms != null;
  const rows = users.map((sum) => [
    h("button", { type: "button", class: "pf-link", title: `Show ${facts.path(sum.layer)}`, click: () => revealLayer(sum.layer) }, facts.brief(sum.layer)),
    figure(count(sum.calls)), figure(duration(sum.cpu)), ...(gpu ? [figure(duration(sum.gpu))] : []),
  ]);
  return [
    h("h3", {}, data.ops.label[i]),
    h("p", { class: "pf-quiet" }, users.length ? "The layers that it runs in, forward and backward." : "It runs in no layer."),
    users.length ? smallTable("Layers of the op", { words: ["Layer", "Calls", "Self CPU", ...(gpu ? ["GPU"] : [])], text: 1 }, rows) : null,
  ].filter(Boolean);
}

tabMakers.ops = ({ data, facts, go }) => opsTab(data, facts, (i) => go("layers", i));
