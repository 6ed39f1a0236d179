// Shows memory over a step: a chart with a cursor, and what is alive at the cursor.
import { drawn, figure, h, onKeys } from "../../draw/js/dom.js";
import { pictures } from "../../draw/js/document.js";
import { byteSize, duration } from "../../draw/js/format.js";
import { smallTable } from "../../draw/js/grid.js";
import { bars, series } from "../../draw/js/plots.js";
import { placeAfter } from "../../draw/js/sorted_places.js";

const LARGEST_SHOWN = 8;

function memoryCurve(data) {
  const { t, lines, spans, step_ms: end } = data;
  if (!t.length || !lines.length) return null;
  const last = t.length - 1;
  const total = (i) => lines.reduce((sum, { values }) => sum + (values[i] ?? 0), 0);
  // Returns the last instant at or before a time.
  const instantAt = (ms) => Math.max(0, placeAfter(t, ms) - 1);
  const peak = instantAt(data.peak_ms);
  let at = peak;

  const slider = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": "Instant of the step", "aria-orientation": "horizontal", "aria-valuemin": 0, "aria-valuemax": last });
  const panel = h("div", { class: "pf-alive" });
  const cursor = drawn("g", { class: "pf-cursor" }, drawn("line", { y1: 18 }), drawn("circle", { r: 3.5 }));
  let scales = null;
  const point = () => {
    cursor.setAttribute("transform", `translate(${scales.x(t[at])} 0)`);
    cursor.lastChild.setAttribute("cy", scales.y(total(at)));
  };
  const overlay = (x, y, [, lowest]) => {
    scales = { x, y };
    cursor.firstChild.setAttribute("y2", lowest + 12);
    point();
    return cursor;
  };
  const show = (to) => {
    at = Math.min(last, Math.max(0, to));
    if (scales) point();
    const phase = spans.find(([, begin, stop]) => begin <= t[at] && t[at] < stop);
    const when = duration(t[at]) + (phase ? `, ${phase[0].word}` : "");
    slider.setAttribute("aria-valuenow", at);
    slider.setAttribute("aria-valuetext", `${when}, ${byteSize(total(at))} alive`);
    const parts = lines.map(({ mark, values }) => ({ mark, value: values[at] ?? 0 }));
    panel.replaceChildren(
      h("h3", {}, at === peak ? `At the ${data.instant}` : "At this instant"),
      h("p", {}, h("b", {}, figure(byteSize(total(at)))), ` alive · ${when} `, at !== peak && h("button", { type: "button", class: "pf-link", click: toPeak }, `back to the ${data.instant}`)),
      bars({ unit: "bytes", bars: [{ parts }] }) ?? "", largestAlive(data, t[at]));
  };
  const toPeak = () => {
    show(peak);
    slider.focus();
  };

  // Memory is constant between two instants, so the lines have steps.
  const stepped = (values) => values.flatMap((value) => [value, value]);
  const [legend, chart] = series({
    title: "", x: { unit: "ms", label: "" }, y: { unit: "bytes", label: "alive" }, spans, levels: data.levels, stacked: true,
    at: [...stepped(t).slice(1), end], lines: lines.map(({ mark, values }) => ({ mark, values: stepped(values) })),
  }, { overlay, height: 270 });
  slider.append(chart);
  const follow = ({ buttons, clientX }) => {
    const from = slider.getBoundingClientRect().left + scales.x(0);
    if (buttons) show(instantAt((end * (clientX - from)) / (scales.x(end) - scales.x(0))));
  };
  slider.addEventListener("pointerdown", follow);
  slider.addEventListener("pointermove", follow);
  const leap = Math.max(1, Math.round(last / 20));
  const by = (steps) => () => show(at + steps);
  onKeys(slider, { ArrowRight: by(1), ArrowUp: by(1), ArrowLeft: by(-1), ArrowDown: by(-1), PageUp: by(leap), PageDown: by(-leap), Home: by(-last), End: by(last), Escape: toPeak });
  show(peak);
  // Moves to the instant at or before a time in the step, given in milliseconds.
  const reveal = (ms) => {
    show(instantAt(Number(ms)));
    slider.focus();
    slider.scrollIntoView({ block: "nearest" });
  };
  return { element: h("div", { class: "pf-view" }, legend, slider, panel), reveal, size: byteSize(total(peak)) };
}

function largestAlive({ largest, names, step_ms: end }, ms) {
  const text = (column, row) => names[largest[column][row]];
  const alive = [...largest.start.keys()].filter((row) => largest.start[row] <= ms && (ms < largest.end[row] || largest.end[row] >= end));
  const rows = alive.sort((a, b) => largest.bytes[b] - largest.bytes[a]).slice(0, LARGEST_SHOWN).map((row) => {
    const name = text("name", row) ?? text("layer", row) ?? "no layer";
    const life = `from ${duration(largest.start[row])} to ${largest.end[row] >= end ? "the end of the step" : duration(largest.end[row])}`;
    return [h("span", { class: "pf-name", title: `${name}, ${life}` }, name), text("category", row), text("op", row) ?? "",
      largest.start[row] <= 0 ? "before the step" : text("phase", row) ?? "", figure(byteSize(largest.bytes[row]))];
  });
  if (!rows.length) return h("p", { class: "pf-quiet" }, "No allocation to list.");
  return smallTable("Largest allocations alive", { words: ["allocation", "category", "allocated by", "in", "memory"], text: 4 }, rows);
}

pictures.memory = ({ data }) => memoryCurve(data);
