// The code shared by the live panel and the picture of a watch: charts with a common time axis, and a strip below them
// that shows the whole history.
import { drawn, h, onKeys } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { announce, linePath, mostOf, timeLabels, watchChart, write } from "./chart.js";

const STRIP = { side: 8, band: 17, height: 36, below: 20 };
const MOST_LEVELS = 3;
const FAR = 1e6;

function watchStrip(store, board) {
  const holder = h("div", { class: "pf-watch-strip", role: "slider", tabindex: 0, "aria-label": "Time shown", "aria-orientation": "horizontal" });
  const words = h("span");
  let timeAt = null;

  const draw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width < 80) return;
    const { first, last, from, to } = board.time();
    const [x0, x1] = [STRIP.side, width - STRIP.side];
    const x = (time) => x0 + ((x1 - x0) * (time - first)) / (last - first || 1);
    timeAt = (px) => first + ((last - first) * (px - x0)) / (x1 - x0);
    const bands = store.marked();
    const top = 2 + STRIP.band * Math.min(MOST_LEVELS, Math.max(0, ...bands.map(([, depth]) => depth + 1)));
    const low = top + STRIP.height;
    const seen = bands.filter(([, depth, start, end]) => depth < MOST_LEVELS && x(Math.min(last, end ?? last)) - x(start) >= 1.5);
    const [left, right] = [Math.max(x0, x(from)), Math.min(x1, x(to))];
    const box = (name, begin, end) => drawn("rect", { class: name, x: begin, y: 1, width: Math.max(0, end - begin), height: low - 1 });
    holder.replaceChildren(drawn("svg", { width, height: low + STRIP.below, "aria-hidden": "true" },
      drawn("rect", { class: "pf-watch-ground", x: x0, y: top, width: x1 - x0, height: STRIP.height }), pastLine(x, low, first, last),
      seen.map((band) => bandBox(band, x, last)), timeLabels(first, last, x, [x0, x1], low + 15),
      box("pf-watch-shade", x0, left), box("pf-watch-shade", right, x1), box("pf-watch-window", left, Math.max(left + 2, right))));
    const whole = board.view ? "" : store.running ? ", following" : ", the whole";
    announce(holder, [first, last], (from + to) / 2, `from ${clock(from, 1)} to ${clock(Math.min(last, to), 1)} of ${clock(last)}${whole}`);
  };

  // Choose the first available line, which is a GPU's line if there are GPUs.
  const pastLine = (x, low, first, last) => {
    const lines = store.data.charts.flatMap((chart) => chart.lines.map((line) => ({ ...line, chart })));
    const known = lines.filter(({ device, column }) => store.has(device, column));
    const found = known.find(({ chart }) => chart.key === "gpu") ?? known[0];
    if (!found) return null;
    const own = store.devices.get(found.device);
    const most = mostOf(own, found.column, first, last) || 1;
    write(words, `line: ${found.chart.title}, ${found.word}`);
    return drawn("path", { class: "pf-watch-past", fill: "none", d: linePath(own, found.column, [first, last], x, (value) => low - 2 - ((STRIP.height - 6) * value) / most) });
  };

  steerWindow(holder, board, (event) => timeAt?.(event.clientX - holder.getBoundingClientRect().left));
  return { element: holder, words, draw };
}

function bandBox([name, depth, start, end, note], x, last) {
  const [left, right] = [x(start), x(Math.min(last, end ?? last))];
  const y = 2 + depth * STRIP.band;
  const room = Math.floor((right - left - 8) / 6.6);
  return drawn("g", { class: "pf-watch-band" },
    drawn("title", {}, `${name}: ${clock(start, 1)} to ${end == null ? "now" : clock(end, 1)}${note ? `, ${note}` : ""}`),
    drawn("rect", { class: end == null && "pf-watch-open", x: left, y, width: Math.max(1, right - left - 1), height: STRIP.band - 3, rx: 2 }),
    drawn("text", { x: left + 5, y: y + 11 }, name.length <= room ? name : room >= 4 ? `${name.slice(0, room - 1)}…` : ""));
}

// Dragging the window moves it, and dragging anywhere else zooms. The keyboard can be used instead.
function steerWindow(holder, board, timeOf) {
  let drag = null;
  const moves = (time) => {
    const { first, last, from, to } = board.time();
    return to - from < 0.98 * (last - first) && time > from && time < to;
  };
  holder.addEventListener("pointerdown", (event) => {
    const at = timeOf(event);
    if (event.button || at == null) return;
    drag = { at, px: event.clientX, moves: moves(at), ...board.time() };
    holder.setPointerCapture(event.pointerId);
  });
  holder.addEventListener("pointermove", (event) => {
    const time = timeOf(event);
    if (!drag) holder.style.cursor = moves(time) ? "grab" : "crosshair";
    else if (drag.moves) board.zoom(drag.from + time - drag.at, drag.to + time - drag.at);
    else if (Math.abs(event.clientX - drag.px) > 3) board.zoom(Math.min(drag.at, time), Math.max(drag.at, time));
  });
  for (const end of ["pointerup", "pointercancel"]) holder.addEventListener(end, () => { drag = null; });
  // Moves the ends of the window by shares of its length.
  const change = (atStart, atEnd) => () => {
    const { from, to } = board.time();
    board.zoom(from + atStart * (to - from), to + atEnd * (to - from));
  };
  const [earlier, later, closer] = [change(-0.1, -0.1), change(0.1, 0.1), change(0.25, -0.25)];
  onKeys(holder, {
    ArrowLeft: earlier, ArrowDown: earlier, ArrowRight: later, ArrowUp: later, PageDown: change(-0.5, -0.5), PageUp: change(0.5, 0.5),
    "+": closer, "=": closer, "-": change(-0.5, 0.5), Home: change(-FAR, -FAR), End: change(FAR, FAR), Escape: board.follow,
  });
}

const FOLLOWED_S = [10, 20, 30, 60];

// `phases` are the phases of the steps, if there are any.
export function watchBoard(store, phases = null) {
  const leastSpan = phases ? 0.02 : 4 * store.data.interval_s;
  let wanted = 0;
  const board = {
    // The window, the end of the drawing, and the cursor, if they do not follow the readings.
    view: null, frozen: null, cursor: null,
    // `from` and `to` are the visible window, `first` and `last` the history, and `end` is the end of the drawing.
    time: () => {
      const first = Number.isFinite(store.first) ? store.first : 0;
      const end = Math.max(first, board.frozen ?? store.last);
      const followed = FOLLOWED_S.find((span) => span >= end - first);
      const last = Math.max(end, first + (store.running ? FOLLOWED_S[0] : leastSpan));
      const [from, to] = board.view ?? (!store.running ? [first, last] : followed ? [first, first + followed] : [end - FOLLOWED_S.at(-1), end]);
      return { first, last, end, from, to };
    },
    zoom: (from, to) => {
      const { first, last } = board.time();
      const span = Math.min(last - first, Math.max(leastSpan, to - from));
      const start = Math.min(last - span, Math.max(first, (from + to - span) / 2));
      board.view = [start, start + span];
      draw();
    },
    follow: () => {
      board.view = null;
      draw();
    },
    pause: (on) => {
      board.frozen = on ? board.time().end : null;
      draw();
    },
    pointAt: (time) => {
      board.cursor = time;
      request(1);
    },
    phasesIn: (from, to, width) => (phases ? phases.within(from, to, width) : []),
  };
  const charts = store.data.charts.map((chart) => watchChart(chart, store, board));
  const strip = watchStrip(store, board);
  const at = h("span", { class: "pf-watch-at" });
  const grid = h("div", { class: "pf-watch-grid" }, charts.map((chart) => chart.element));
  const waiting = h("p", { class: "pf-quiet pf-empty", hidden: true }, "No readings yet.");
  const element = h("div", { class: "pf-view" }, grid, waiting, strip.element,
    h("p", { class: "pf-watch-help pf-quiet" }, strip.words, h("span", {}, "drag to zoom, drag the window to move it")));

  // Draw the cursor (1), or everything (2). This happens at most once per frame, and not after the board was removed.
  const request = (what) => {
    if (!wanted) requestAnimationFrame(paint);
    wanted = Math.max(wanted, what);
  };
  const draw = () => request(2);
  const paint = () => {
    const everything = wanted > 1;
    wanted = 0;
    if (!element.isConnected) return;
    if (everything) {
      for (const chart of charts) chart.hide();
      waiting.hidden = charts.some(({ element: { hidden } }) => !hidden);
      const width = Math.max(...charts.map((chart) => chart.element.clientWidth)); // a layout, so before any drawing
      strip.draw();
      for (const chart of charts) chart.draw(width);
      board.drawn();
    } else for (const chart of charts) chart.point();
    const { cursor } = board;
    write(at, cursor == null ? "" : [`at ${clock(cursor, 1)}`, inside(cursor), phases?.wordAt(cursor)].filter(Boolean).join(" · "));
  };
  const inside = (time) => store.marked().filter(([, , start, end]) => start <= time && time <= (end ?? Infinity))
    .sort((a, b) => a[1] - b[1]).slice(0, MOST_LEVELS).map(([name]) => name).join(" › ");
  new ResizeObserver(draw).observe(element);
  const line = h("p", { class: "pf-watch-facts pf-quiet" }, h("span", {}, (store.data.facts ?? []).join(" · ")), at);
  return Object.assign(board, { element, line, draw });
}
