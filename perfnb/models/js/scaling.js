// A scaling study: the fit on log axes, and a slider that shows time and memory at any size.
import { drawnToFit, levelRules, logTicks, roundNumber, uprightRules } from "../../draw/js/chart.js";
import { drawn, figure, h, titled } from "../../draw/js/dom.js";
import { byteSize, duration, intervalBounds, significant } from "../../draw/js/format.js";
import { widgetOf } from "../../draw/js/notebook.js";

const SCALING = { left: 74, right: 22, top: 14, height: 300, below: 44 };

function scalingView(data) {
  const { curve, measured } = data;
  const last = curve.size.length - 1;
  const holder = h("div", { class: "pf-scaling-plot" });
  const slider = h("input", { type: "range", min: 0, max: last, value: nearestSize(curve.size, measured.size.at(-1)),
    "aria-label": "Size", input: () => read() });
  const words = h("p", { class: "pf-tip", role: "status" });
  let plot = null;
  const read = () => {
    const at = Number(slider.value);
    slider.setAttribute("aria-valuetext", roundNumber(significant(curve.size[at])));
    words.replaceChildren(...readOff(data, at));
    plot?.mark(at);
  };
  drawnToFit(holder, (width) => {
    plot = scalingPlot(data, width);
    holder.replaceChildren(plot.element);
    read();
  });
  return h("article", { class: "perfnb pf-scaling", "aria-label": "Scaling study" },
    h("header", {}, titled(data.title, "scaling study")), data.sentences.map((sentence) => h("p", {}, sentence)), holder, h("label", { class: "pf-scaling-size" }, "size ", slider), words);
}

const nearestSize = (sizes, wanted) => sizes.reduce((best, size, at) => (Math.abs(Math.log(size / wanted)) < Math.abs(Math.log(sizes[best] / wanted)) ? at : best), 0);

function readOff(data, at) {
  const { curve, measured } = data;
  const size = curve.size[at];
  const outside = size < measured.size[0] || size > measured.size.at(-1);
  const low = curve.low_ms[at];
  const high = curve.high_ms[at];
  const bounds = low == null || high == null ? "no interval: too few sizes" : `95 % prediction interval ${intervalBounds(curve.median_ms[at], [low, high])}`;
  return [h("b", {}, `size ${roundNumber(significant(size))}`), ": step ", h("b", {}, figure(duration(curve.median_ms[at]))), ` (${bounds})`,
    curve.peak_bytes[at] == null ? null : [", peak memory ", h("b", {}, figure(byteSize(curve.peak_bytes[at])))],
    outside ? ", outside the measured sizes" : ""].flat().filter((part) => part != null && part !== "");
}

function scalingPlot(data, width) {
  const { left, right, top, height, below } = SCALING;
  const { curve, measured } = data;
  const [x1, y0] = [width - right, top + height];
  const known = (values) => values.filter((value) => value > 0).map(Math.log10);
  const [low, high] = [Math.log10(curve.size[0]), Math.log10(curve.size.at(-1))];
  const times = known([...curve.median_ms, ...measured.median_ms]);
  const [floor, ceiling] = [Math.min(...times) - 0.25, Math.max(...times) + 0.25];
  const x = (value) => left + ((x1 - left) * (Math.log10(value) - low)) / (high - low);
  const y = (value) => Math.max(top, Math.min(y0, y0 - (height * (Math.log10(value) - floor)) / (ceiling - floor)));
  const line = (values) => values.map((value, i) => `${i ? "L" : "M"}${x(curve.size[i]).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const banded = curve.low_ms.every((value) => value > 0) && curve.high_ms.every((value) => value != null);
  const band = banded && `${line(curve.high_ms)}L${[...curve.size.keys()].reverse().map((i) => `${x(curve.size[i]).toFixed(1)},${y(curve.low_ms[i]).toFixed(1)}`).join("L")}Z`;
  const element = drawn("svg", { width, height: y0 + below, role: "img", "aria-label": "Step time by size on log axes, with the prediction interval" },
    uprightRules(logTicks(low, high, (value) => roundNumber(significant(value))), x, [top, y0]),
    levelRules(logTicks(floor, ceiling, (value) => roundNumber(duration(value))), y, [left, x1]),
    drawn("text", { x: (left + x1) / 2, y: y0 + 37, "text-anchor": "middle" }, "size"),
    band && drawn("path", { class: "pf-scaling-band", d: band }),
    drawn("path", { class: "pf-scaling-law", d: line(curve.median_ms) }),
    measured.size.map((size, i) => [
      measured.ci_low_ms[i] > 0 && drawn("line", { class: "pf-scaling-interval", x1: x(size), x2: x(size), y1: y(measured.ci_low_ms[i]), y2: y(measured.ci_high_ms[i]) }),
      drawn("circle", { class: "pf-scaling-point", cx: x(size), cy: y(measured.median_ms[i]), r: 4 })]));
  const cursor = drawn("line", { class: "pf-scaling-cursor", y1: top, y2: y0 });
  const ring = drawn("circle", { class: "pf-scaling-ring", r: 6 });
  element.append(cursor, ring);
  const mark = (at) => {
    const place = x(curve.size[at]);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, place);
    ring.setAttribute("cx", place);
    ring.setAttribute("cy", y(curve.median_ms[at]));
  };
  return { element, mark };
}

const scaling = widgetOf(scalingView);
export default scaling;
