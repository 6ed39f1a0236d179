// A small chart of a watch, with its scales and line styles. Its elements are created once, and only their attributes
// change.
import { niceTicks, roundNumber, roundSize } from "../../draw/js/chart.js";
import { drawn, h, onKeys } from "../../draw/js/dom.js";
import { clock, reading } from "../../draw/js/format.js";
import { readAt } from "./store.js";

// Dash patterns for lines with round ends, which make each dash longer by the line width.
const WATCH_DASHES = [null, "6 6", "0.1 5", "9 5 0.1 5", "14 6", "2.5 5", "6 5 0.1 5 0.1 5", "0.1 8"];
const LEAST_TOP = { percent: 100, bytes: 1024 ** 2, bytes_per_s: 1024, watts: 10, celsius: 50, megahertz: 100 };

// Lines are distinguished by colour and dash pattern.
const lineProps = ({ colour }, i) => ({ class: "pf-watch-line", style: `stroke:${colour}`, "stroke-dasharray": WATCH_DASHES[i % WATCH_DASHES.length], "stroke-width": 2 });

const lineKey = (line, i) => drawn("svg", { width: 20, height: 8, class: "pf-watch-key", "aria-hidden": "true" },
  drawn("line", { x1: 1, x2: 19, y1: 4, y2: 4, ...lineProps(line, i) }));

// Returns a round maximum for an axis, and its ticks. The axis includes the ceiling if the lines are close to it.
function valueAxis(chart, most) {
  const base = chart.unit.startsWith("bytes") ? 1024 : 10;
  const near = chart.ceiling != null && most >= 0.6 * chart.ceiling;
  const wanted = Math.max(LEAST_TOP[chart.unit] ?? 1, most, near ? chart.ceiling : 0);
  const step = niceTicks(wanted, 4, base)[1] ?? wanted;
  const top = near ? Math.max(1.06 * chart.ceiling, 1.02 * most) : step * Math.ceil(wanted / step - 1e-9);
  return { top, near, ticks: Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step) };
}

function tickWords(value, top, unit) {
  if (unit.startsWith("bytes")) return value ? `${roundSize(value, top)}${unit === "bytes" ? "" : "/s"}` : "0";
  return value ? roundNumber(reading(value, unit)) : "0";
}

const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

// Returns the ticks of a time axis, and the number of decimals that their seconds need.
export function clockTicks(from, to, wanted) {
  const rough = (to - from) / wanted;
  const step = TIME_STEPS.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400);
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-6); i * step <= to + 1e-9 * step && ticks.length < 50; i += 1) ticks.push(i * step);
  return { ticks, decimals: step < 1 ? Math.ceil(-Math.log10(step) - 1e-9) : 0 };
}

// Returns the visible points of a line, and one more on either side.
function inSight(own, from, to) {
  return [Math.max(0, own.before(from)), Math.min(own.size, own.before(to) + 2)];
}

export function mostOf(own, column, from, to) {
  const values = own.values.get(column);
  const [start, end] = inSight(own, from, to);
  let most = 0;
  for (let i = start; i < end; i += 1) if (values[i] > most) most = values[i];
  return most;
}

// Returns the path of a line. The line is broken at missing readings, and isolated readings are dots. If there are many
// points in a column of pixels, only the lowest and the highest are drawn.
export function linePath(own, column, [from, to], x, y) {
  const values = own.values.get(column);
  const [start, end] = inSight(own, from, to);
  const parts = [];
  let [open, alone, pixel] = [false, false, null];
  const point = (i) => {
    parts.push(`${open ? "L" : "M"}${x(own.t[i]).toFixed(1)},${y(values[i]).toFixed(1)}`);
    alone = !open;
    open = true;
  };
  const flush = () => {
    if (!pixel) return;
    const [low, high] = pixel.low < pixel.high ? [pixel.low, pixel.high] : [pixel.high, pixel.low];
    point(low);
    if (high !== low) point(high);
    pixel = null;
  };
  const lift = () => {
    flush();
    if (alone) parts.push("h0.01");
    [open, alone] = [false, false];
  };
  for (let i = start; i < end; i += 1) {
    if (own.broken[i]) lift();
    if (Number.isNaN(values[i])) {
      lift();
      continue;
    }
    const at = Math.round(x(own.t[i]));
    if (pixel?.at !== at) {
      flush();
      pixel = { at, low: i, high: i };
    } else {
      if (values[i] < values[pixel.low]) pixel.low = i;
      if (values[i] > values[pixel.high]) pixel.high = i;
    }
  }
  lift();
  return parts.join("");
}

// A pool of elements of the same kind. Creating new elements for each reading would take 50 % more time.
function pool(parent, make) {
  const made = [];
  return (count, set) => {
    while (made.length < count) {
      made.push(make());
      parent.append(made.at(-1));
    }
    made.forEach((element, i) => {
      element.style.display = i < count ? "" : "none";
      if (i < count) set(element, i);
    });
  };
}

export function put(element, props) {
  for (const [key, value] of Object.entries(props)) {
    const text = String(value);
    if (element.getAttribute(key) !== text) element.setAttribute(key, text);
  }
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SMALL = { left: 58, right: 10, top: 14, height: 92, below: 20, phases: 9 };

export function watchChart(chart, store, board) {
  const amounts = chart.lines.map(() => h("b", {}));
  const entries = chart.lines.map((line, i) => h("li", {}, lineKey(line, i), h("span", { class: "pf-word" }, line.word), amounts[i]));
  const ceilingWords = chart.ceiling == null ? "" : `${chart.ceiling_word} ${reading(chart.ceiling, chart.unit)}`;
  const ceilingNote = h("span", { class: "pf-quiet" }, ceilingWords);
  const plot = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": `${chart.title}, at an instant`, "aria-orientation": "horizontal" });
  const element = h("section", { class: "pf-watch-chart", "aria-label": chart.title, "data-chart": chart.key, "data-unit": chart.unit },
    h("div", { class: "pf-watch-head" }, h("h3", { title: chart.note || null }, chart.title), ceilingNote),
    h("ul", { class: "pf-watch-words" }, entries), plot);
  const picture = chartPicture(chart, ceilingWords);
  plot.append(picture.svg);
  // Returns the readings of each line, if there are any.
  const sources = () => chart.lines.map(({ device, column }) => (store.devices.get(device)?.known.has(column) ? store.devices.get(device) : null));
  let [width, frame] = [0, null];

  const draw = () => {
    const owns = sources();
    element.hidden = !owns.some(Boolean);
    if (element.hidden) return;
    width = Math.floor(plot.clientWidth);
    if (width < 80) return;
    const { from, to, end } = board.time();
    const until = Math.min(to, end);
    const most = Math.max(0, ...owns.map((own, i) => (own ? mostOf(own, chart.lines[i].column, from, until) : 0)));
    const axis = valueAxis(chart, most);
    const x1 = width - SMALL.right;
    const y0 = SMALL.top + SMALL.height;
    frame = {
      x: (time) => SMALL.left + ((x1 - SMALL.left) * (time - from)) / (to - from), y: (value) => y0 - (SMALL.height * value) / axis.top,
      timeAt: (px) => from + ((to - from) * (px - SMALL.left)) / (x1 - SMALL.left), x1, y0, width, from, to, axis,
    };
    ceilingNote.hidden = axis.near;
    entries.forEach((entry, i) => { entry.hidden = !owns[i]; });
    const paths = owns.map((own, i) => (own ? linePath(own, chart.lines[i].column, [from, until], frame.x, frame.y) : ""));
    picture.draw(frame, paths, board.phasesIn(from, to, x1 - SMALL.left));
    point();
  };

  // Draws the cursor and the figures at the pointer, or at the last visible reading if there is no pointer.
  const point = () => {
    if (!frame || element.hidden) return;
    const at = board.cursor();
    const { to, end } = board.time();
    const when = at ?? Math.min(to, end);
    const interval = (at == null ? 2 : 1) * store.data.interval_s;
    const values = sources().map((own, i) => (own ? readAt(own, chart.lines[i].column, when, interval) : null));
    values.forEach((value, i) => write(amounts[i], value == null ? "–" : reading(value, chart.unit)));
    picture.point(frame, at, values);
    const said = chart.lines.map((line, i) => (values[i] == null ? null : `${line.word} ${reading(values[i], chart.unit)}`)).filter(Boolean);
    put(plot, {
      "aria-valuemin": Math.floor(frame.from), "aria-valuemax": Math.ceil(frame.to), "aria-valuenow": Math.round(Math.min(frame.to, Math.max(frame.from, when))),
      "aria-valuetext": `at ${clock(when, 1)}: ${said.join(", ") || "no reading"}`,
    });
  };
  const timeOf = (event) => frame && frame.timeAt(event.clientX - plot.getBoundingClientRect().left);
  steerCursor(plot, board, timeOf, () => sources().find(Boolean));
  return { element, plot, draw, point };
}

// The pointer and the arrow keys move the cursor of all charts from reading to reading.
function steerCursor(plot, board, timeOf, lead) {
  const within = (own, i) => {
    const { from, to, end } = board.time();
    const first = Math.max(0, own.before(from - 1e-9) + 1);
    return Math.min(Math.max(i, first), Math.max(first, own.before(Math.min(to, end))));
  };
  plot.addEventListener("pointermove", (event) => {
    const own = lead();
    const time = timeOf(event);
    if (!own?.size || time == null) return;
    const at = own.t[within(own, own.nearest(time))];
    board.pointAt(Math.abs(at - time) < 2.5 * board.interval() ? at : time);
  });
  plot.addEventListener("pointerleave", () => board.pointAt(null));
  plot.addEventListener("blur", () => board.pointAt(null));
  const step = (by, leap = by) => (event) => {
    const own = lead();
    if (!own?.size) return false;
    const now = own.nearest(board.cursor() ?? board.time().end);
    return board.pointAt(own.t[within(own, now + (event.shiftKey ? leap : by))]);
  };
  onKeys(plot, {
    ArrowLeft: step(-1, -10), ArrowDown: step(-1, -10), ArrowRight: step(1, 10), ArrowUp: step(1, 10), PageDown: step(-10), PageUp: step(10),
    Home: step(-Infinity), End: step(Infinity), Escape: () => board.pointAt(null),
  });
}

function chartPicture(chart, ceilingWords) {
  const [rules, marks, below] = [drawn("g"), drawn("g"), drawn("g")];
  const lines = chart.lines.map((line, i) => drawn("path", { ...lineProps(line, i), fill: "none" }));
  const ceiling = drawn("line", { class: "pf-watch-ceiling" });
  const ceilingText = drawn("text", { class: "pf-watch-on", "text-anchor": "end" }, ceilingWords);
  const axisLine = drawn("line", { class: "pf-axis" });
  const inside = drawn("svg", { class: "pf-watch-inside" }, lines);
  const cursor = drawn("line", { class: "pf-watch-cursor" });
  const dots = chart.lines.map(({ colour }) => drawn("circle", { class: "pf-watch-dot", style: `stroke:${colour}`, r: 3 }));
  const svg = drawn("svg", { height: SMALL.top + SMALL.height + SMALL.below, "aria-hidden": "true" },
    rules, below, ceiling, axisLine, inside, marks, ceilingText, cursor, dots);
  const yTicks = pool(rules, () => drawn("g", {}, drawn("line", { class: "pf-rule" }), drawn("text", { "text-anchor": "end" })));
  const xTicks = pool(below, () => drawn("text"));
  const phases = pool(marks, () => drawn("rect", { height: SMALL.phases - 1 }));
  const draw = (frame, paths, stretches) => {
    const { x, y, x1, y0, axis, from, to } = frame;
    put(svg, { width: frame.width });
    put(inside, { x: SMALL.left, y: 0, width: x1 - SMALL.left, height: y0 + 2, viewBox: `${SMALL.left} 0 ${x1 - SMALL.left} ${y0 + 2}` });
    put(axisLine, { x1: SMALL.left, x2: x1, y1: y0, y2: y0 });
    yTicks(axis.ticks.length, (g, i) => {
      const at = y(axis.ticks[i]).toFixed(1);
      put(g.firstChild, { x1: SMALL.left, x2: x1, y1: at, y2: at });
      put(g.lastChild, { x: SMALL.left - 7, y: Number(at) + 4 });
      write(g.lastChild, tickWords(axis.ticks[i], axis.top, chart.unit));
    });
    const { ticks, decimals } = clockTicks(from, to, Math.max(2, (x1 - SMALL.left) / 78));
    xTicks(ticks.length, (text, i) => {
      const at = x(ticks[i]);
      put(text, { x: at.toFixed(1), y: y0 + 15 + (stretches.length ? SMALL.phases : 0), "text-anchor": at > x1 - 16 ? "end" : at < SMALL.left + 16 ? "start" : "middle" });
      write(text, clock(ticks[i], decimals));
    });
    for (const part of [ceiling, ceilingText]) part.style.display = axis.near ? "" : "none";
    if (axis.near) {
      const at = y(chart.ceiling).toFixed(1);
      put(ceiling, { x1: SMALL.left, x2: x1, y1: at, y2: at });
      put(ceilingText, { x: x1, y: Number(at) - 4 });
    }
    lines.forEach((line, i) => put(line, { d: paths[i] }));
    phases(stretches.length, (rect, i) => {
      const [start, end, fill, placed] = stretches[i];
      const left = Math.max(SMALL.left, x(start));
      put(rect, { x: left.toFixed(1), y: y0 + 1, width: Math.max(0.5, Math.min(x1, x(end)) - left - 0.5).toFixed(1), fill, opacity: placed ? 0.5 : 1 });
    });
    put(svg, { height: y0 + SMALL.below + (stretches.length ? SMALL.phases : 0) });
  };
  const point = ({ x, y, y0, x1 }, at, values) => {
    const place = at == null ? NaN : x(at);
    const seen = place >= SMALL.left - 0.5 && place <= x1 + 0.5;
    cursor.style.display = seen ? "" : "none";
    if (seen) put(cursor, { x1: place.toFixed(1), x2: place.toFixed(1), y1: SMALL.top - 6, y2: y0 });
    dots.forEach((dot, i) => {
      const on = seen && values[i] != null;
      dot.style.display = on ? "" : "none";
      if (on) put(dot, { cx: place.toFixed(1), cy: y(values[i]).toFixed(1) });
    });
  };
  return { svg, draw, point };
}
