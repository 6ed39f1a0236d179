// A small chart of a watch, with its scales and line styles.
import { levelRules, niceTicks, roundNumber } from "../../draw/js/chart.js";
import { drawn, h, onKeys } from "../../draw/js/dom.js";
import { clock, reading } from "../../draw/js/format.js";
import { readAt } from "./store.js";

// Dash patterns for lines with round ends, which make each dash longer by the line width.
const WATCH_DASHES = [null, "6 6", "0.1 5", "9 5 0.1 5", "14 6", "2.5 5", "6 5 0.1 5 0.1 5", "0.1 8"];
const LEAST_TOP = { percent: 100, bytes: 1024 ** 2, bytes_per_s: 1024, watts: 10, celsius: 50, megahertz: 100 };
const SMALL = { left: 58, right: 10, top: 14, height: 92, below: 20, phases: 9 };

// Lines are distinguished by colour and dash pattern.
const lineProps = ({ colour }, i) => ({ class: "pf-watch-line", style: `stroke:${colour}`, "stroke-dasharray": WATCH_DASHES[i % WATCH_DASHES.length], "stroke-width": 2 });

const lineKey = (line, i) => drawn("svg", { width: 20, height: 8, class: "pf-watch-key", "aria-hidden": "true" },
  drawn("line", { x1: 1, x2: 19, y1: 4, y2: 4, ...lineProps(line, i) }));

const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

// Returns the labels below a time axis between two places.
export function timeLabels(from, to, x, [left, right], y) {
  const rough = (to - from) / Math.max(2, (right - left) / 78);
  const step = TIME_STEPS.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400);
  const decimals = step < 1 ? Math.ceil(-Math.log10(step) - 1e-9) : 0;
  const labels = [];
  for (let i = Math.ceil(from / step - 1e-6); i * step <= to + 1e-9 * step; i += 1) {
    const at = x(i * step);
    labels.push(drawn("text", { x: at.toFixed(1), y, "text-anchor": at > right - 16 ? "end" : at < left + 16 ? "start" : "middle" }, clock(i * step, decimals)));
  }
  return labels;
}

// Returns the visible points of a line, and one more on either side.
const inSight = (own, from, to) => [Math.max(0, own.before(from)), Math.min(own.size, own.before(to) + 2)];

export const mostOf = (own, column, from, to) => own.values.get(column).subarray(...inSight(own, from, to)).reduce((most, value) => (value > most ? value : most), 0);

// Returns the path of a line. The line is broken at missing readings, and isolated readings are dots. If there are many
// points in a column of pixels, only the lowest and the highest are drawn.
export function linePath(own, column, [from, to], x, y) {
  const values = own.values.get(column);
  const [start, end] = inSight(own, from, to);
  const pixel = (i) => (Number.isNaN(values[i]) ? null : Math.round(x(own.t[i])));
  const point = (i) => `${x(own.t[i]).toFixed(1)},${y(values[i]).toFixed(1)}`;
  const parts = [];
  for (let i = start, open = false; i < end;) {
    const at = pixel(i);
    let [low, high, next] = [i, i, i + 1];
    for (; next < end && !own.broken[next] && pixel(next) === at; next += 1) {
      if (values[next] < values[low]) low = next;
      if (values[next] > values[high]) high = next;
    }
    if (at != null) {
      parts.push(open && !own.broken[i] ? "L" : "M", point(Math.min(low, high)), open && !own.broken[i] ? "" : "h0.01");
      if (low !== high) parts.push("L", point(Math.max(low, high)));
    }
    open = at != null;
    i = next;
  }
  return parts.join("");
}

// Sets the value of a slider and its description.
export function announce(slider, [from, to], time, words) {
  const now = Math.round(Math.min(to, Math.max(from, time)));
  const said = { valuemin: Math.floor(from), valuemax: Math.ceil(to), valuenow: now, valuetext: words };
  for (const [name, value] of Object.entries(said)) slider.setAttribute(`aria-${name}`, value);
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function watchChart(chart, store, board) {
  const amounts = chart.lines.map(() => h("b"));
  const entries = chart.lines.map((line, i) => h("li", {}, lineKey(line, i), h("span", { class: "pf-word" }, line.word), amounts[i]));
  const ceilingWords = chart.ceiling == null ? "" : `${chart.ceiling_word} ${reading(chart.ceiling, chart.unit)}`;
  const ceilingNote = h("span", { class: "pf-quiet" }, ceilingWords);
  const plot = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": `${chart.title}, at an instant`, "aria-orientation": "horizontal" });
  const element = h("section", { class: "pf-watch-chart", "aria-label": chart.title, "data-chart": chart.key },
    h("div", { class: "pf-watch-head" }, h("h3", { title: chart.note || null }, chart.title), ceilingNote),
    h("ul", { class: "pf-legend pf-watch-words" }, entries), plot);
  // Returns the readings of each line, if there are any.
  const sources = () => chart.lines.map(({ device, column }) => store.has(device, column) && store.devices.get(device));
  const each = (owns, use) => owns.map((own, i) => (own ? use(own, chart.lines[i].column, i) : null));
  let frame = null;

  const draw = (width) => {
    if (element.hidden || width < 80) return;
    const owns = sources();
    const { from, to, end } = board.time();
    const until = Math.min(to, end);
    const [left, right, bottom] = [SMALL.left, width - SMALL.right, SMALL.top + SMALL.height];
    const most = Math.max(...each(owns, (own, column) => mostOf(own, column, from, until)));
    const near = chart.ceiling != null && most >= 0.6 * chart.ceiling;
    const wanted = Math.max(LEAST_TOP[chart.unit] ?? 1, most, near ? chart.ceiling : 0);
    const top = 1.04 * wanted;
    const x = (time) => left + ((right - left) * (time - from)) / (to - from);
    const y = (value) => bottom - (SMALL.height * value) / top;
    const stretches = board.phasesIn(from, to, right - left);
    const low = bottom + (stretches.length ? SMALL.phases : 0);
    const ticks = niceTicks(wanted, 4, chart.unit.startsWith("bytes") ? 1024 : 10).map((tick) => [tick, tick ? roundNumber(reading(tick, chart.unit)) : "0"]);
    const cursor = drawn("g", {});
    frame = { x, y, from, to, right, bottom, cursor, timeAt: (px) => from + ((to - from) * (px - left)) / (right - left) };
    ceilingNote.hidden = near;
    entries.forEach((entry, i) => { entry.hidden = !owns[i]; });
    plot.replaceChildren(drawn("svg", { width, height: low + SMALL.below, "aria-hidden": "true" },
      levelRules(ticks, y, [left, right]), timeLabels(from, to, x, [left, right], low + 15),
      near && drawn("line", { class: "pf-level", x1: left, x2: right, y1: y(chart.ceiling), y2: y(chart.ceiling) }),
      drawn("line", { class: "pf-axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      drawn("svg", { class: "pf-watch-inside", x: left, width: right - left, height: bottom + 2, viewBox: `${left} 0 ${right - left} ${bottom + 2}` },
        each(owns, (own, column, i) => drawn("path", { ...lineProps(chart.lines[i], i), fill: "none", d: linePath(own, column, [from, until], x, y) }))),
      stretches.map(([start, stop, fill, placed]) => {
        const begin = Math.max(left, x(start));
        return drawn("rect", { x: begin, y: bottom + 1, width: Math.max(0.5, Math.min(right, x(stop)) - begin - 0.5), height: SMALL.phases - 1, fill, opacity: placed ? 0.5 : 1 });
      }),
      near && drawn("text", { class: "pf-halo", x: right, y: y(chart.ceiling) - 4, "text-anchor": "end" }, ceilingWords), cursor));
    point();
  };

  // Draws the cursor and the figures at the pointer, or at the last visible reading if there is no pointer.
  const point = () => {
    if (!frame || element.hidden) return;
    const at = board.cursor;
    const { x, y, from, to, right, bottom } = frame;
    const when = at ?? Math.min(to, board.time().end);
    const values = each(sources(), (own, column) => readAt(own, column, when, (at == null ? 2 : 1) * store.data.interval_s));
    const words = values.map((value) => (value == null ? "–" : reading(value, chart.unit)));
    words.forEach((word, i) => write(amounts[i], word));
    const place = at == null ? -1 : x(at);
    frame.cursor.replaceChildren(...(place < SMALL.left - 0.5 || place > right + 0.5 ? [] : [
      drawn("line", { class: "pf-watch-cursor", x1: place.toFixed(1), x2: place.toFixed(1), y1: SMALL.top - 6, y2: bottom }),
      ...chart.lines.flatMap(({ colour }, i) => (values[i] == null ? [] : drawn("circle", { class: "pf-watch-dot", style: `stroke:${colour}`, r: 3, cx: place, cy: y(values[i]) })))]));
    const said = chart.lines.flatMap(({ word }, i) => (values[i] == null ? [] : `${word} ${words[i]}`));
    announce(plot, [from, to], when, `at ${clock(when, 1)}: ${said.join(", ") || "no reading"}`);
  };
  steerCursor(plot, board, (event) => frame?.timeAt(event.clientX - plot.getBoundingClientRect().left), () => sources().find(Boolean));
  return { element, draw, point, hide: () => { element.hidden = !sources().some(Boolean); } };
}

// The pointer and the keys move the cursor of all charts from reading to reading.
function steerCursor(plot, board, timeOf, lead) {
  const within = (own, i) => {
    const { from, to, end } = board.time();
    const first = Math.max(0, own.before(from - 1e-9) + 1);
    return own.t[Math.min(Math.max(i, first), Math.max(first, own.before(Math.min(to, end))))];
  };
  const leave = () => board.pointAt(null);
  plot.addEventListener("pointermove", (event) => {
    const [own, time] = [lead(), timeOf(event)];
    if (own && time != null) board.pointAt(within(own, own.nearest(time)));
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  const step = (by) => () => {
    const own = lead();
    return own ? board.pointAt(within(own, own.nearest(board.cursor ?? board.time().end) + by)) : false;
  };
  onKeys(plot, {
    ArrowLeft: step(-1), ArrowDown: step(-1), ArrowRight: step(1), ArrowUp: step(1), PageDown: step(-10), PageUp: step(10),
    Home: step(-Infinity), End: step(Infinity), Escape: leave,
  });
}
