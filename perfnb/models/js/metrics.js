// One metric per architecture with its interval, and two metrics against each other.
import { drawn, drawnToFit, logTicks, namesBeside, niceTicks, roundNumber, roundSize } from "../../draw/js/chart.js";
import { figure, h } from "../../draw/js/dom.js";
import { byteSize, count, duration, flopCount, flopRate, intensityWords, intervalBounds, rate } from "../../draw/js/format.js";
import { namesWidth, picker } from "./shares.js";

const SCATTER = { left: 74, right: 20, top: 16, below: 42, dot: 6, names: 12, wide: 12 };
const FORMS = {
  duration, count, flops: flopCount, size: byteSize, flop_rate: flopRate, intensity: intensityWords, rate: (value) => rate(value, "samples"),
};
export const metricWords = (metric, i) => FORMS[metric.form](metric.values[i]);
const boundsOf = (metric, i) => {
  const bounds = metric.bounds?.map((side) => side[i]);
  return bounds?.every((bound) => bound != null) ? bounds : null;
};

export function architectureMetrics(data) {
  const entries = data.metrics.map((metric, at) => [at, metric.word, metric.values.every((value) => value == null)]);
  const known = entries.filter(([, , missing]) => !missing).map(([at]) => at);
  const find = (key) => known.find((at) => data.metrics[at].key === key);
  const state = { first: find("median_ms") ?? known[0] ?? 0, second: find("step_flops") ?? find("parameters") ?? known[0] ?? 0 };
  const table = h("div");
  const plot = h("div", { class: "pf-plane" });
  const tip = h("p", { class: "pf-tip", role: "status" });
  const choose = (i) => tip.replaceChildren(...dotWords(data, state, i));
  const refit = drawnToFit(plot, (width) => plot.replaceChildren(metricScatter(data, state, width, choose)));
  const update = () => {
    table.replaceChildren(metricTable(data, data.metrics[state.first]));
    refit();
    choose(-1);
  };
  const pick = (key) => (at) => {
    state[key] = at;
    update();
  };
  const element = h("div", { class: "pf-beside pf-even" },
    h("section", { "aria-label": "One metric" }, h("div", { class: "pf-toolbar" },
      h("h3", {}, h("label", {}, "Metric ", picker("Metric", entries, state.first, pick("first"))))), table),
    h("section", { "aria-label": "Two metrics" }, h("div", { class: "pf-toolbar" },
      h("h3", {}, h("label", {}, "Against ", picker("Second metric", entries, state.second, pick("second"))))), plot, tip));
  update();
  return element;
}

// One row per architecture: the bar starts at zero, the line on it is the interval.
function metricTable(data, metric) {
  const most = Math.max(1e-300, ...data.names.map((_, i) => boundsOf(metric, i)?.[1] ?? metric.values[i] ?? 0));
  const part = (value) => `${Math.min(100, Math.max(0, (100 * value) / most))}%`;
  return h("table", { class: "pf-metric", "aria-label": metric.word }, h("colgroup", {}, [`width:${namesWidth(data, 660) + 10}px`, "", "width:164px"].map((style) => h("col", { style }))),
    h("tbody", {}, data.names.map((name, i) => {
      const [value, bounds] = [metric.values[i], boundsOf(metric, i)];
      const said = bounds && metric.form === "duration" ? intervalBounds(value, bounds) : null;
      return h("tr", {}, h("th", { scope: "row", class: "pf-text" }, h("span", { class: "pf-name", title: name }, name)),
        h("td", { "aria-hidden": "true" }, value == null ? null : h("div", { class: "pf-amount-bar" }, h("i", { style: `width:${part(value)}` }),
          bounds && h("s", { style: `left:${part(bounds[0])};right:calc(100% - ${part(bounds[1])})` }))),
        h("td", { class: "pf-text" }, figure(metricWords(metric, i)), said && h("span", { class: "pf-quiet", title: "95 % confidence interval" }, ` ${said}`)));
    })));
}

// From values to positions: logarithmic if they differ much, else linear from zero.
function metricAxis(metric, from, to) {
  const values = metric.values.filter((value) => value != null);
  const most = Math.max(...values, ...values.map((_, i) => boundsOf(metric, i)?.[1] ?? 0));
  const least = Math.min(...values);
  const base = metric.form === "size" ? 1024 : 10;
  const text = (value) => (base === 1024 ? roundSize(value, most) : roundNumber(FORMS[metric.form](value)));
  if (least > 0 && most / least >= SCATTER.wide) {
    const unit = base === 1024 ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
    const [low, high] = [Math.log10(least / unit) - 0.15, Math.log10(most / unit) + 0.15];
    return {
      place: (value) => from + ((to - from) * (Math.log10(value / unit) - low)) / (high - low), words: `${metric.word}, logarithmic`,
      ticks: logTicks(low, high).map(([value, shown]) => [value * unit, shown ? text(value * unit) : ""]),
    };
  }
  const end = 1.08 * (most || 1);
  return {
    place: (value) => from + ((to - from) * value) / end, words: metric.word,
    ticks: niceTicks(end, 4, base).map((value) => [value, value ? text(value) : "0"]),
  };
}

function metricScatter(data, state, width, choose) {
  const [across, up] = [data.metrics[state.second], data.metrics[state.first]];
  const on = data.names.map((_, i) => i).filter((i) => across.values[i] != null && up.values[i] != null);
  if (!on.length) return h("p", { class: "pf-quiet pf-empty" }, "No architecture has both metrics.");
  const { left, right, top, below, dot } = SCATTER;
  const height = Math.max(140, Math.min(240, 30 * data.names.length - 40));
  const [x1, y0] = [width - right, top + height];
  const [x, y] = [metricAxis(across, left, x1), metricAxis(up, y0, top)];
  const at = (i) => [x.place(across.values[i]), y.place(up.values[i])];
  const inside = (place, from, to) => Math.min(Math.max(place, Math.min(from, to)), Math.max(from, to));
  const whisker = (metric, i, line) => boundsOf(metric, i) && drawn("line", { class: "pf-whisker", ...line(boundsOf(metric, i)) });
  const element = drawn("svg", { width, height: y0 + below, role: "group", "aria-label": `${up.word} against ${across.word}` },
    x.ticks.map(([value, text]) => [drawn("line", { class: text ? "pf-rule" : "pf-rule pf-faint", x1: x.place(value), x2: x.place(value), y1: top, y2: y0 }),
      text && drawn("text", { x: x.place(value), y: y0 + 16, "text-anchor": "middle" }, text)]),
    y.ticks.map(([value, text]) => [drawn("line", { class: text ? "pf-rule" : "pf-rule pf-faint", x1: left, x2: x1, y1: y.place(value), y2: y.place(value) }),
      text && drawn("text", { x: left - 8, y: y.place(value) + 4, "text-anchor": "end" }, text)]),
    drawn("text", { x: x1, y: y0 + 34, "text-anchor": "end" }, `${x.words} →`), drawn("text", { x: left, y: top - 4 }, `↑ ${y.words}`));
  for (const i of on) {
    const [cx, cy] = at(i);
    element.append(...[whisker(up, i, ([low, high]) => ({ x1: cx, x2: cx, y1: inside(y.place(low), top, y0), y2: inside(y.place(high), top, y0) })),
      whisker(across, i, ([low, high]) => ({ y1: cy, y2: cy, x1: inside(x.place(low), left, x1), x2: inside(x.place(high), left, x1) }))].filter(Boolean));
  }
  element.append(drawn("g", { class: "pf-points" }, on.map((i) => drawn("circle", {
    class: "pf-dot-compute", cx: at(i)[0], cy: at(i)[1], r: dot, tabindex: 0, role: "img", "data-point": i,
    "aria-label": `${data.names[i]}: ${up.word} ${metricWords(up, i)}, ${across.word} ${metricWords(across, i)}`,
    pointerenter: () => choose(i), focus: () => choose(i),
  }))), ...namesBeside(on.map((i) => ({ at: at(i), radius: dot, name: data.names[i] })), SCATTER.names, [left, x1, top]));
  return element;
}

function dotWords(data, state, i) {
  if (i < 0) return [h("span", { class: "pf-quiet" }, "Hover over a dot or focus it with the keyboard for its figures.")];
  const words = [state.first, state.second].map((at) => data.metrics[at]).map((metric) => {
    const bounds = metric.form === "duration" && boundsOf(metric, i);
    return `${metric.word} ${metricWords(metric, i)}${bounds ? ` ${intervalBounds(metric.values[i], bounds)}` : ""}`;
  });
  return [h("b", {}, data.names[i]), `: ${[...new Set(words)].join(", ")}`];
}
