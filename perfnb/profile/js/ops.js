// The Ops tab: every operator of the step, and the layers that call it.
import { h, stackedBar } from "../../draw/js/dom.js";
import { count, duration, flopCount, grouped } from "../../draw/js/format.js";
import { figureColumn, nameColumn, searchGrid } from "../../draw/js/grid.js";
import { tabMakers } from "../../draw/js/tabs.js";
import { usesBy, usesTable } from "./layers.js";

function opsTab({ ops, layers, layer_ops: used }, facts, revealLayer) {
  const places = ops.label.map(() => []);
  used.layer.forEach((layer, at) => layer >= 0 && places[used.op[at]].push(at));
  const users = places.map((own) => usesBy(used, own, (at) => used.layer[at]).map((sum) => ({ ...sum, layer: used.layer[sum.at] })));
  const main = ops.gpu_ms ? "gpu_ms" : "self_cpu_ms";
  const heaviest = Math.max(0, ...(ops[main] ?? [0]).map((ms) => ms ?? 0));
  const number = (key, head, title, format, more) => figureColumn(ops[key], key, head, title, format, more);
  const columns = [
    nameColumn("label", "Op", "Sort by name; a third click restores the original order", (i) => ops.label[i]),
    number("calls", "Calls", "Calls per step", count, { width: 62 }),
    {
      key: "bar", head: "Time", title: `${ops.gpu_ms ? "GPU" : "Self CPU"} time, relative to the heaviest op`, width: 96, drop: 3, text: true,
      value: (i) => -(ops[main]?.[i] ?? 0), draw: (i) => stackedBar([[ops[main]?.[i] ?? 0, "other"]], heaviest),
    },
    number("self_cpu_ms", "Self CPU", "CPU time in a traced step, excluding ops that it calls", duration, { width: 80 }),
    number("total_cpu_ms", "Total CPU", "CPU time in a traced step, including ops that it calls", duration, { width: 84, drop: 2 }),
    number("gpu_ms", "GPU", "Time of its kernels in a traced step", duration),
    number("flops", "FLOPs", "Arithmetic per step", flopCount, { width: 92, drop: 1 }),
    layers.label.length > 0 && {
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
  const link = ({ layer }) => h("button", { type: "button", class: "pf-link", title: `Show ${facts.path(layer)}`, click: () => revealLayer(layer) }, facts.brief(layer));
  const { grid, element, reveal } = searchGrid({
    label: "Ops", columns, rows: { parent: ops.label.map(() => -1), words: (i) => ops.label[i] }, words: "Search ops", size: ops.label.length, noun: "ops",
    describe: (i) => [
      h("h3", {}, ops.label[i]),
      layers.label.length > 0 && h("p", { class: "pf-quiet" }, users[i].length ? "The layers that it runs in, forward and backward." : "It runs in no layer."),
      users[i].length && usesTable("Layers of the op", used, users[i], ["Layer"], (sum) => [link(sum)]),
    ],
  });
  return { element, size: grouped(ops.label.length), shown: () => grid.fit(), reveal };
}

tabMakers.ops = ({ data, facts, go }) => opsTab(data, facts, (i) => go("layers", i));
