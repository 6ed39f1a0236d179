// One small chart of a watch: its elements are created once, and only their attributes change.
import { drawn } from "../../draw/js/chart.js";
import { h } from "../../draw/js/dom.js";
import { clock, reading } from "../../draw/js/format.js";
import { clockTicks, lineKey, lineLook, linePath, lineProps, mostOf, pool, put, tickWords, valueAxis, write } from "./lines.js";
import { readAt } from "./store.js";

const SMALL = { left: 58, right: 10, top: 14, height: 92, below: 20, phases: 9 };

export function watchChart(chart, store, board) {
  const looks = chart.lines.map((line) => lineLook(line, chart));
  const amounts = chart.lines.map(() => h("b", {}));
  const entries = chart.lines.map((line, i) => h("li", {}, lineKey(looks[i]), h("span", { class: "pf-word" }, line.word), amounts[i]));
  const ceilingWords = chart.ceiling == null ? "" : `${chart.ceiling_word} ${reading(chart.ceiling, chart.unit)}`;
  const ceilingNote = h("span", { class: "pf-quiet" }, ceilingWords);
  const plot = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": `${chart.title}, at an instant`, "aria-orientation": "horizontal" });
  const element = h("section", { class: "pf-watch-chart", "aria-label": chart.title, "data-chart": chart.key, "data-unit": chart.unit },
    h("div", { class: "pf-watch-head" }, h("h3", { title: chart.note || null }, chart.title), ceilingNote),
    h("ul", { class: "pf-watch-words" }, entries), plot);
  const picture = chartPicture(chart, looks, ceilingWords);
  plot.append(picture.svg);
  const known = () => chart.lines.map(({ device, column }) => store.devices.get(device)?.known.has(column) ?? false);
  let [width, frame] = [0, null];

  const draw = () => {
    const shown = known();
    const any = shown.some(Boolean);
    element.hidden = !any;
    if (!any) return;
    width = Math.floor(plot.clientWidth);
    if (width < 80) return;
    const { from, to, end } = board.time();
    const most = Math.max(0, ...chart.lines.map(({ device, column }, i) => (shown[i] ? mostOf(store.devices.get(device), column, from, Math.min(to, end)) : 0)));
    const axis = valueAxis(chart, most);
    const x1 = width - SMALL.right;
    const y0 = SMALL.top + SMALL.height;
    frame = {
      x: (time) => SMALL.left + ((x1 - SMALL.left) * (time - from)) / (to - from), y: (value) => y0 - (SMALL.height * value) / axis.top,
      timeAt: (px) => from + ((to - from) * (px - SMALL.left)) / (x1 - SMALL.left), x1, y0, width, from, to, axis,
    };
    ceilingNote.hidden = axis.near;
    entries.forEach((entry, i) => { entry.hidden = !shown[i]; });
    picture.draw(frame, chart.lines.map(({ device, column }, i) => {
      const own = shown[i] && store.devices.get(device);
      return own ? linePath(own, column, [from, Math.min(to, end)], frame.x, frame.y) : "";
    }), board.phasesIn(from, to, x1 - SMALL.left));
    point();
  };

  // The cursor and the figures: at the pointer, or else at the last visible reading.
  const point = () => {
    if (!frame || element.hidden) return;
    const at = board.cursor();
    const { to, end } = board.time();
    const when = at ?? Math.min(to, end);
    const values = chart.lines.map(({ device, column }) => {
      const own = store.devices.get(device);
      return own ? readAt(own, column, when, Math.max(store.data.interval_s, at == null ? 2 * store.data.interval_s : 0)) : null;
    });
    values.forEach((value, i) => write(amounts[i], value == null ? "–" : reading(value, chart.unit)));
    picture.point(frame, at, values);
    const said = chart.lines.map((line, i) => (values[i] == null ? null : `${line.word} ${reading(values[i], chart.unit)}`)).filter(Boolean);
    put(plot, {
      "aria-valuemin": Math.floor(frame.from), "aria-valuemax": Math.ceil(frame.to), "aria-valuenow": Math.round(Math.min(frame.to, Math.max(frame.from, when))),
      "aria-valuetext": `at ${clock(when, 1)}: ${said.join(", ") || "no reading"}`,
    });
  };
  const timeOf = (event) => frame && frame.timeAt(event.clientX - plot.getBoundingClientRect().left);
  const lead = () => {
    const i = known().findIndex(Boolean);
    return i < 0 ? null : store.devices.get(chart.lines[i].device);
  };
  steerCursor(plot, board, timeOf, lead);
  return { element, plot, draw, point };
}

// Pointer and arrows move the cursor of all charts from reading to reading.
function steerCursor(plot, board, timeOf, lead) {
  const nearest = (own, time) => {
    const i = own.before(time);
    if (i < 0) return 0;
    return i + 1 < own.size && own.t[i + 1] - time < time - own.t[i] ? i + 1 : i;
  };
  const within = (own, i) => {
    const { from, to, end } = board.time();
    const first = Math.max(0, own.before(from - 1e-9) + 1);
    return Math.min(Math.max(i, first), Math.max(first, own.before(Math.min(to, end))));
  };
  plot.addEventListener("pointermove", (event) => {
    const own = lead();
    const time = timeOf(event);
    if (!own?.size || time == null) return;
    const at = own.t[within(own, nearest(own, time))];
    board.pointAt(Math.abs(at - time) < 2.5 * board.interval() ? at : time);
  });
  plot.addEventListener("pointerleave", () => board.pointAt(null));
  plot.addEventListener("blur", () => board.pointAt(null));
  plot.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const own = lead();
    if (!own?.size) return;
    const now = nearest(own, board.cursor() ?? board.time().end);
    const leap = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: now - leap, ArrowRight: now + leap, ArrowDown: now - leap, ArrowUp: now + leap, PageDown: now - 10, PageUp: now + 10, Home: -1, End: Infinity }[event.key];
    if (to != null) board.pointAt(own.t[within(own, to)]);
    else if (event.key === "Escape") board.pointAt(null);
    else return;
    event.preventDefault();
  });
}

function chartPicture(chart, looks, ceilingWords) {
  const [rules, marks, below] = [drawn("g"), drawn("g"), drawn("g")];
  const lines = looks.map((look) => drawn("path", { ...lineProps(look), fill: "none" }));
  const ceiling = drawn("line", { class: "pf-watch-ceiling" });
  const ceilingText = drawn("text", { class: "pf-watch-on", "text-anchor": "end" }, ceilingWords);
  const axisLine = drawn("line", { class: "pf-axis" });
  const inside = drawn("svg", { class: "pf-watch-inside" }, lines);
  const cursor = drawn("line", { class: "pf-watch-cursor" });
  const dots = looks.map(({ shade }) => drawn("circle", { class: `pf-watch-dot pf-watch-${shade}`, r: 3 }));
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
