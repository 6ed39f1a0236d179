// The Roofline tab: how close each layer and op comes to the hardware limit.
import { drawnToFit, levelRules, logTicks, namesBeside, roundNumber, textWidth, uprightRules } from "../../draw/js/chart.js";
import { drawn, fact, figure, freshId, h } from "../../draw/js/dom.js";
import { UNKNOWN, byteRate, byteSize, count, duration, flopCount, flopRate, grouped, intensityWords, share, significant } from "../../draw/js/format.js";
import { Grid, figureColumn, nameColumn, smallTable } from "../../draw/js/grid.js";
import { pictures } from "../../draw/js/document.js";

const ROOF = { left: 74, right: 18, top: 18, height: 330, below: 46, labels: 6, least: 3, most: 15 };
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];
const BOUND_WORDS = { compute: "compute-bound", memory: "memory-bound" };

function rooflineTab(data) {
  const { points } = data;
  const all = points.name.map((_, i) => i);
  const hasOps = points.op.some(Boolean);
  const state = { ops: false, chosen: -1 };
  const holder = h("div", { class: "pf-roof" });
  const tip = h("p", { class: "pf-tip", role: "status" });
  const shown = () => all.filter((i) => state.ops || !points.op[i]);
  let plot = null;
  const choose = (i) => {
    state.chosen = i;
    plot?.mark(i);
    tip.replaceChildren(...pointWords(data, i));
  };
  const refit = drawnToFit(holder, (width) => {
    plot = rooflinePlot(data, shown(), width, choose);
    holder.replaceChildren(plot.element);
    choose(state.chosen);
  });
  const table = h("div");
  let grid = null;
  const fill = () => {
    grid = rooflineGrid(data, shown(), choose);
    table.replaceChildren(grid.element);
    if (!shown().includes(state.chosen)) choose(-1);
    refit();
  };
  const box = h("input", { type: "checkbox", change: () => {
    state.ops = box.checked;
    fill();
  } });
  fill();
  const element = h("div", { class: "pf-view pf-roofline" }, rooflineFacts(data),
    h("div", { class: "pf-toolbar" }, roofLegend(data), hasOps ? h("label", { class: "pf-check" }, box, "show ops") : null),
    holder, tip, table, uncountedOps(data));
  return { element, shown: () => {
    refit();
    grid.fit();
  } };
}

function rooflineFacts(data) {
  const bounds = data.points.bound.filter((_, i) => !data.points.op[i]);
  const kinds = Object.entries(BOUND_WORDS).map(([key, word]) => [bounds.filter((bound) => bound === key).length, word]);
  const words = kinds.filter(([size]) => size).map(([size, word]) => `${grouped(size)} ${word}`).join(", ");
  const missed = data.uncounted.total_share;
  return [
    h("dl", { class: "pf-facts pf-memory-facts" },
      fact("Utilisation", figure(share(data.utilisation)), "of the device's arithmetic throughput, over a timed step"),
      fact("Arithmetic", figure(flopCount(data.flops)), "per step, counted from formulas"),
      data.peaks.map(([dtype, peak]) => fact("Ceiling", figure(flopRate(peak)), `${dtype}, measured`)),
      fact("Bandwidth", figure(byteRate(data.bandwidth)), "measured with a large copy")),
    data.counters ? h("p", {}, data.counters) : null,
    data.doubt ? h("p", {}, data.doubt) : null,
    h("p", { class: "pf-quiet" }, words ? `Layers: ${words}. ` : "", missed
      ? `Ops without a formula take ${share(missed)} of the traced step; these figures exclude their arithmetic.`
      : "Every op that takes time has a formula."),
  ];
}

function roofLegend(data) {
  const dot = (kind, word) => h("li", {}, h("i", { class: `pf-dot pf-dot-${kind}`, "aria-hidden": "true" }), h("span", { class: "pf-word" }, word));
  const bounds = new Set(data.points.bound);
  return h("ul", { class: "pf-legend" }, ["compute", "memory"].filter((bound) => bounds.has(bound)).map((bound) => dot(bound, BOUND_WORDS[bound])),
    bounds.has(null) ? dot("unknown", "unknown bound") : null, h("li", { class: "pf-quiet" }, "dot: layer, square: op; area: time relative to its kind"));
}

// "model.head: compute-bound, 90 % of the roof" with its figures.
function pointWords(data, i) {
  const { points } = data;
  if (i < 0) return [h("span", { class: "pf-quiet" }, "Hover over a dot or select a row for its figures. Arrow keys move between dots.")];
  const bound = BOUND_WORDS[points.bound[i]];
  const roof = points.efficiency[i] == null ? "roof unknown" : `${share(points.efficiency[i])} of the roof, ${flopRate(points.attainable[i])}`;
  return [h("b", { class: "pf-name" }, points.name[i]), ` ${points.op[i] ? "op" : "layer"}, ${bound ?? "bound unknown"}: `,
    `${flopRate(points.achieved[i])} (${roof}); ${intensityWords(points.intensity[i])}, ${flopCount(points.flops[i])}, `,
    `at least ${byteSize(points.bytes[i])} moved, ${duration(points.ms[i])} per step${points.dtype[i] ? `, ${points.dtype[i]}` : ""}`];
}

// Powers of ten from just below the lowest to just above the highest.
function decades(values, spare) {
  const known = values.filter((value) => value > 0).map(Math.log10);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return [low - spare, Math.max(high + spare, low + 1)];
}

function rooflinePlot(data, rows, width, choose) {
  const { left, right, top, height, below } = ROOF;
  const { points } = data;
  const [x1, y0] = [width - right, top + height];
  const on = rows.filter((i) => points.intensity[i] > 0 && points.achieved[i] > 0);
  const roofs = data.peaks.filter(([, peak]) => peak > 0);
  const ridges = data.bandwidth ? roofs.map(([, peak]) => peak / data.bandwidth) : [];
  const [low, high] = decades([...on.map((i) => points.intensity[i]), ...ridges.map((ridge) => ridge / 3)], 0.35);
  const [floor, top_] = decades([...on.map((i) => points.achieved[i]), ...roofs.map(([, peak]) => peak)], 0.28);
  const x = (value) => left + ((x1 - left) * (Math.log10(value) - low)) / (high - low);
  const y = (value) => y0 - (height * (Math.log10(value) - floor)) / (top_ - floor);
  const clip = freshId("clip");
  const element = drawn("svg", { width, height: y0 + below, role: "group", "aria-label": "Roofline: achieved FLOP/s against arithmetic intensity" },
    drawn("defs", {}, drawn("clipPath", { id: clip }, drawn("rect", { x: left, y: top, width: x1 - left, height }))),
    uprightRules(logTicks(low, high, (value) => significant(value, true)), x, [top, y0]),
    levelRules(logTicks(floor, top_, (value) => roundNumber(flopRate(value))), y, [left, x1]),
    drawn("text", { x: (left + x1) / 2, y: y0 + 38, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte moved"),
    drawn("g", { "clip-path": `url(#${clip})` }, roofs.map(([, peak], i) => roofLine(data, peak, i, { x, y, low, high, y0 }))),
    regionWords(ridges, x, left, x1, y0), roofWords(data, roofs, x, y, x1));
  const { elements, rings, radius, mark } = pointDots(data, on, x, y, choose);
  // Labels of the heaviest, where they fit.
  const labels = namesBeside(on.map((i) => ({ at: [x(points.intensity[i]), y(points.achieved[i])], radius: radius(i), name: points.name[i] })), ROOF.labels, [left, x1, top]);
  element.append(drawn("g", { class: "pf-points" }, elements), ...rings, ...labels);
  return { element, mark };
}

// The roof of one data type; what lies below it is attainable.
function roofLine(data, peak, i, { x, y, low, high, y0 }) {
  const [from, to] = [10 ** low, 10 ** high];
  const ridge = data.bandwidth ? peak / data.bandwidth : from;
  const start = data.bandwidth ? `M${x(from)},${y(from * data.bandwidth)} L${x(ridge)},${y(peak)}` : `M${x(from)},${y(peak)}`;
  const line = `${start} L${x(to)},${y(peak)}`;
  return [drawn("path", { class: "pf-under", d: `${line} V${y0} H${x(from)} Z` }),
    drawn("path", { class: "pf-roof-line", d: line, "stroke-dasharray": DASHES[i % DASHES.length] })];
}

function roofWords(data, roofs, x, y, x1) {
  const words = roofs.map(([dtype, peak]) => drawn("text", { class: "pf-strong", x: x1 - 4, y: y(peak) - 7, "text-anchor": "end" }, `${dtype} ${flopRate(peak)}`));
  if (!data.bandwidth || !roofs.length) return words;
  // The bandwidth's label follows its slope.
  const rise = (Math.atan2(y(10 * data.bandwidth) - y(data.bandwidth), x(10) - x(1)) * 180) / Math.PI;
  const least = Math.min(...roofs.map(([, peak]) => peak)) / data.bandwidth;
  const at = least / 10 ** 0.35;
  words.push(drawn("text", { class: "pf-strong", transform: `translate(${x(at)} ${y(at * data.bandwidth) - 8}) rotate(${rise})`, "text-anchor": "middle" }, byteRate(data.bandwidth)));
  return words;
}

function regionWords(ridges, x, left, x1, y0) {
  if (ridges.length !== 1) return [];
  const place = x(ridges[0]);
  const wide = textWidth("memory-bound") + 12;
  return [
    drawn("line", { class: "pf-edge", x1: place, x2: place, y1: ROOF.top, y2: y0 }),
    place - left > wide && drawn("text", { x: place - 7, y: y0 - 8, "text-anchor": "end" }, "memory-bound"),
    x1 - place > wide && drawn("text", { x: place + 7, y: y0 - 8 }, "compute-bound"),
  ];
}

// One dot is in the tab order; arrow keys select the next in order of intensity.
function pointDots(data, on, x, y, choose) {
  const { points } = data;
  // Ops sum over layers, so each kind is scaled separately.
  const heaviest = [0, 1].map((op) => Math.max(1e-12, ...on.map((i) => (points.op[i] === op ? points.ms[i] ?? 0 : 0))));
  const radius = (i) => Math.max(ROOF.least, (points.op[i] ? 0.7 : 1) * ROOF.most * Math.sqrt((points.ms[i] ?? 0) / heaviest[points.op[i]]));
  const order = [...on].sort((a, b) => points.intensity[a] - points.intensity[b]);
  const dots = new Map();
  const go = (i) => {
    choose(i);
    dots.get(i).focus();
  };
  for (const i of on) {
    const size = radius(i);
    const [cx, cy] = [x(points.intensity[i]), y(points.achieved[i])];
    const words = `${points.name[i]}, ${points.op[i] ? "op" : "layer"}, ${BOUND_WORDS[points.bound[i]] ?? "bound unknown"}, ${share(points.efficiency[i])} of the roof`;
    const common = {
      class: `pf-dot-${points.bound[i] ?? "unknown"}`, role: "img", tabindex: -1, "aria-label": words, "data-point": i,
      pointerenter: () => choose(i), click: () => go(i),
      keydown: (event) => {
        const at = order.indexOf(i);
        const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: order.length - 1 }[event.key];
        if (to == null) return;
        event.preventDefault();
        go(order[Math.min(order.length - 1, Math.max(0, to))]);
      },
      focus: () => choose(i),
    };
    dots.set(i, points.op[i]
      ? drawn("rect", { ...common, x: cx - 0.88 * size, y: cy - 0.88 * size, width: 1.76 * size, height: 1.76 * size })
      : drawn("circle", { ...common, cx, cy, r: size }));
  }
  // A ring on top of all dots marks the selected one, which may be covered by others.
  const rings = [0, 1].map(() => drawn("circle", { class: "pf-ring", visibility: "hidden" }));
  const mark = (chosen) => {
    for (const ring of rings) {
      ring.setAttribute("visibility", dots.has(chosen) ? "visible" : "hidden");
      if (!dots.has(chosen)) continue;
      ring.setAttribute("cx", x(points.intensity[chosen]));
      ring.setAttribute("cy", y(points.achieved[chosen]));
      ring.setAttribute("r", radius(chosen) + 2.5);
    }
    for (const [i, dot] of dots) {
      dot.classList.toggle("pf-chosen", i === chosen);
      dot.setAttribute("tabindex", i === (dots.has(chosen) ? chosen : on[0]) ? 0 : -1);
    }
  };
  // Small dots are drawn last, so that large ones do not hide them.
  return { elements: [...on].sort((a, b) => radius(b) - radius(a)).map((i) => dots.get(i)), rings, radius, mark };
}

function rooflineGrid(data, rows, choose) {
  const { points } = data;
  const column = (key, head, title, format, more) => figureColumn(rows.map((i) => points[key][i]), key, head, title, format, { width: 96, ...more });
  const columns = [
    nameColumn("name", "Layer or op", "Sort by name; a third click restores heaviest first", (at) => points.name[rows[at]]),
    {
      key: "bound", head: "Bound", title: "Left of the ridge memory bandwidth is the limit, right of it arithmetic; far below the roof, something else is", text: true, width: 122,
      value: (at) => points.bound[rows[at]],
      draw: (at) => {
        const bound = points.bound[rows[at]];
        return bound ? h("span", { class: "pf-kind" }, h("i", { class: `pf-dot pf-dot-${bound}`, "aria-hidden": "true" }), BOUND_WORDS[bound]) : figure(UNKNOWN);
      },
    },
    column("efficiency", "Efficiency", "Achieved over attainable FLOP/s", share, { width: 82 }),
    column("intensity", "Intensity", "Arithmetic per byte moved (lower bound on bytes)", intensityWords, { width: 106, drop: 4 }),
    column("achieved", "Achieved", "Achieved FLOP/s", flopRate, { width: 110, drop: 5 }),
    column("flops", "FLOPs", "Arithmetic per step", flopCount, { drop: 2 }),
    column("bytes", "Bytes", "Lower bound on bytes moved: inputs read once, outputs written once", byteSize, { width: 84, drop: 1 }),
    column("ms", "Time", "Time per step", duration, { width: 78 }),
    column("dtype", "Dtype", "Data type", (value) => value ?? UNKNOWN, { width: 78, drop: 3 }),
  ];
  return new Grid({
    label: "Roofline", columns, rows: { parent: rows.map(() => -1), words: (at) => points.name[rows[at]] }, onSelect: (at) => choose(rows[at]),
  });
}

function uncountedOps(data) {
  const { uncounted, points } = data;
  const left = points.left_out ? h("p", { class: "pf-quiet" }, `${grouped(points.left_out)} with less time are not listed.`) : null;
  if (!uncounted.op.length) return left;
  const rows = uncounted.op.slice(0, 12).map((op, i) => [h("span", { class: "pf-name", title: op }, op),
    figure(count(uncounted.calls[i])), figure(duration(uncounted.ms[i])), figure(share(uncounted.share[i]))]);
  return h("section", { class: "pf-uncounted" }, left, h("h3", {}, "Ops without a formula"),
    smallTable("Ops without a formula", { words: ["Op", "Calls", "Time", "Share"], text: 1 }, rows));
}

pictures.roofline = ({ data }) => ({ ...rooflineTab(data), size: share(data.utilisation) });
