// The code shared by the live panel and the picture of a watch: charts with a common time axis, and a strip below them
// that shows the whole history.
import { drawn, h } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { clockTicks, linePath, mostOf, put, watchChart, write } from "./chart.js";

const STRIP = { side: 8, band: 17, height: 36, below: 20, edge: 7 };
const MOST_LEVELS = 3;
const MOST_BANDS = 200;

function watchStrip(store, board, bands) {
  const holder = h("div", { class: "pf-watch-strip", role: "slider", tabindex: 0, "aria-label": "Time shown", "aria-orientation": "horizontal" });
  const words = h("span", {});
  let frame = null;

  const draw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width < 80) return;
    const { first, last, from, to } = board.time();
    const [x0, x1] = [STRIP.side, width - STRIP.side];
    const x = (time) => x0 + ((x1 - x0) * (time - first)) / (last - first || 1);
    const all = bands();
    const levels = Math.min(MOST_LEVELS, 1 + Math.max(-1, ...all.map(([, depth]) => depth)));
    const top = 2 + levels * STRIP.band;
    const y0 = top + STRIP.height;
    frame = { x, timeAt: (px) => first + ((last - first) * (px - x0)) / (x1 - x0) };
    const seen = all.filter(([, depth, start, end]) => depth < MOST_LEVELS && x(Math.min(last, end ?? last)) - x(start) >= 1.5).slice(-MOST_BANDS);
    const [left, right] = [Math.max(x0, x(from)), Math.max(x0 + 2, Math.min(x1, x(to)))];
    const box = (name, begin, end) => drawn("rect", { class: name, x: begin.toFixed(1), y: 1, width: Math.max(0, end - begin).toFixed(1), height: y0 - 1 });
    const { ticks: times, decimals } = clockTicks(first, last, width / 130);
    const word = (time) => drawn("text", { x: x(time).toFixed(1), y: y0 + 15, "text-anchor": x(time) > x1 - 20 ? "end" : x(time) < x0 + 20 ? "start" : "middle" }, clock(time, decimals));
    holder.replaceChildren(drawn("svg", { width, height: y0 + STRIP.below, "aria-hidden": "true" },
      drawn("rect", { class: "pf-watch-ground", x: x0, y: top, width: x1 - x0, height: STRIP.height }), pastLine(x, y0, first, last),
      seen.map((band) => bandBox(band, x, last)), times.map(word),
      box("pf-watch-shade", x0, left), box("pf-watch-shade", right, x1), box("pf-watch-window", left, Math.max(left + 2, right)),
      [left, right].map((at) => drawn("line", { class: "pf-watch-grip", x1: at.toFixed(1), x2: at.toFixed(1), y1: top + 10, y2: y0 - 10 }))));
    put(holder, {
      "aria-valuemin": Math.floor(first), "aria-valuemax": Math.ceil(last), "aria-valuenow": Math.round(Math.min(last, Math.max(first, (from + to) / 2))),
      "aria-valuetext": `from ${clock(Math.max(first, from), 1)} to ${clock(Math.min(last, to), 1)} of ${clock(last)}${board.zoomed() ? "" : store.running ? ", following" : ", the whole"}`,
    });
  };

  // Choose the first available line, which is a GPU's line if there are GPUs.
  const pastLine = (x, y0, first, last) => {
    const charts = [...store.data.charts].sort((a, b) => Number(b.key === "gpu") - Number(a.key === "gpu"));
    const lines = charts.flatMap((chart) => chart.lines.map((one) => ({ ...one, chart })));
    const found = lines.find(({ device, column }) => store.devices.get(device)?.known.has(column));
    if (!found) return null;
    const own = store.devices.get(found.device);
    const most = mostOf(own, found.column, first, last) || 1;
    write(words, `line: ${found.chart.title}, ${found.word}`);
    return drawn("path", { class: "pf-watch-past", fill: "none", d: linePath(own, found.column, [first, last], x, (value) => y0 - 2 - ((STRIP.height - 6) * value) / most) });
  };

  steerWindow(holder, board, () => frame);
  return { element: holder, words, draw };
}

function bandBox([name, depth, start, end, note], x, last) {
  const [left, right] = [x(start), x(Math.min(last, end ?? last))];
  const y = 2 + depth * STRIP.band;
  const room = Math.floor((right - left - 8) / 6.6);
  return drawn("g", { class: "pf-watch-band" },
    drawn("title", {}, `${name}: ${clock(start, 1)} to ${end == null ? "now" : clock(end, 1)}${note ? `, ${note}` : ""}`),
    drawn("rect", { class: end == null && "pf-watch-open", x: left.toFixed(1), y, width: Math.max(1, right - left - 1).toFixed(1), height: STRIP.band - 3, rx: 2 }),
    drawn("text", { x: (left + 5).toFixed(1), y: y + 11 }, name.length <= room ? name : room >= 4 ? `${name.slice(0, room - 1)}…` : ""));
}

// Dragging zooms, dragging the window moves it, and dragging its edges resizes it. The keyboard can be used instead.
function steerWindow(holder, board, frameOf) {
  let drag = null;
  const pxOf = (event) => event.clientX - holder.getBoundingClientRect().left;
  const kindAt = (px) => {
    const { first, last, from, to } = board.time();
    const { x } = frameOf();
    const whole = to - from >= 0.98 * (last - first);
    if (!whole || board.zoomed()) {
      if (Math.abs(px - x(from)) < STRIP.edge) return "from";
      if (Math.abs(px - x(to)) < STRIP.edge) return "to";
      if (!whole && px > x(from) && px < x(to)) return "move";
    }
    return "new";
  };
  holder.addEventListener("pointerdown", (event) => {
    if (event.button || !frameOf()) return;
    const px = pxOf(event);
    const { from, to } = board.time();
    drag = { kind: kindAt(px), px, at: frameOf().timeAt(px), from, to, moved: false };
    holder.setPointerCapture(event.pointerId);
  });
  holder.addEventListener("pointermove", (event) => {
    if (!frameOf()) return;
    const px = pxOf(event);
    if (!drag) {
      holder.style.cursor = { new: "crosshair", move: "grab" }[kindAt(px)] ?? "ew-resize";
      return;
    }
    if (Math.abs(px - drag.px) > 3) drag.moved = true;
    if (!drag.moved) return;
    const time = frameOf().timeAt(px);
    if (drag.kind === "new") board.zoom(Math.min(drag.at, time), Math.max(drag.at, time));
    else if (drag.kind === "move") board.zoom(drag.from + time - drag.at, drag.to + time - drag.at);
    else if (drag.kind === "from") board.zoom(Math.min(time, drag.to), drag.to);
    else board.zoom(drag.from, Math.max(time, drag.from));
  });
  for (const end of ["pointerup", "pointercancel"]) holder.addEventListener(end, () => { drag = null; });
  holder.addEventListener("dblclick", () => board.follow());
  holder.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { first, last, from, to } = board.time();
    const span = to - from;
    const by = (event.shiftKey ? 0.5 : 0.1) * span;
    const middle = (from + to) / 2;
    const moves = {
      ArrowLeft: [from - by, to - by], ArrowDown: [from - by, to - by], ArrowRight: [from + by, to + by], ArrowUp: [from + by, to + by],
      "+": [middle - span / 4, middle + span / 4], "=": [middle - span / 4, middle + span / 4], "-": [middle - span, middle + span], "_": [middle - span, middle + span],
      Home: [first, first + span], End: [last - span, last],
    };
    if (event.key === "Escape") board.follow();
    else if (event.key in moves) board.zoom(...moves[event.key]);
    else return;
    event.preventDefault();
  });
}

const FOLLOWED_S = [10, 20, 30, 60];

// `bands` returns the marks, `phases` are the phases of the steps, and `leastSpan` limits the zoom.
export function watchBoard(store, { bands, phases = null, leastSpan }) {
  const state = { view: null, frozen: null, cursor: null };
  let [wanted, visible, once, missed] = [0, true, false, false];
  const board = {
    interval: () => store.data.interval_s,
    cursor: () => state.cursor,
    zoomed: () => state.view != null,
    paused: () => state.frozen != null,
    // `from` and `to` are the visible window, `first` and `last` the history, and `end` is the end of the drawing.
    time: () => {
      const first = Number.isFinite(store.first) ? store.first : 0;
      const end = Math.max(first, state.frozen ?? (Number.isFinite(store.last) ? store.last : 0));
      const followed = FOLLOWED_S.find((span) => span >= end - first);
      const last = store.running ? Math.max(end, first + FOLLOWED_S[0]) : Math.max(end, first + leastSpan);
      const [from, to] = state.view ?? (!store.running ? [first, last] : followed ? [first, first + followed] : [end - FOLLOWED_S.at(-1), end]);
      return { first, last, end, from, to };
    },
    zoom: (from, to) => {
      const { first, last } = board.time();
      const span = Math.min(last - first, Math.max(leastSpan, to - from));
      const middle = (from + to) / 2;
      const start = Math.min(last - span, Math.max(first, to - from < leastSpan ? middle - span / 2 : from));
      state.view = [start, start + span];
      draw();
    },
    follow: () => {
      state.view = null;
      draw();
    },
    pause: (on) => {
      state.frozen = on ? board.time().end : null;
      draw();
    },
    pointAt: (time) => {
      if (time === state.cursor) return;
      state.cursor = time;
      request(1);
    },
    phasesIn: (from, to, width) => (phases ? phases.within(from, to, width) : []),
  };
  const charts = store.data.charts.map((chart) => watchChart(chart, store, board));
  const strip = watchStrip(store, board, bands);
  const at = h("span", { class: "pf-watch-at" });
  const quiet = h("span", {}, (store.data.facts ?? []).join(" · "));
  const grid = h("div", { class: "pf-watch-grid" }, charts.map((chart) => chart.element));
  const waiting = h("p", { class: "pf-quiet pf-empty", hidden: true }, "No readings yet.");
  const element = h("div", { class: "pf-watch-board" }, grid, waiting, strip.element,
    h("p", { class: "pf-watch-help pf-quiet" }, strip.words, h("span", {}, "drag to zoom, drag the window to move it, double click for all")));

  // Draw if the cursor moved (1), or redraw everything (2). This happens at most once per frame. After the first time,
  // it only happens if the board is visible, so a printed page contains everything.
  const request = (what) => {
    if (!wanted) requestAnimationFrame(paint);
    wanted = Math.max(wanted, what);
  };
  const draw = () => request(2);
  const paint = () => {
    const what = wanted;
    wanted = 0;
    if (!visible && once && what > 1) {
      missed = true;
      return;
    }
    if (what > 1) {
      missed = false;
      once ||= grid.clientWidth > 0;
      for (const chart of charts) chart.draw();
      strip.draw();
      waiting.hidden = charts.some((chart) => !chart.element.hidden);
      board.drawn?.();
    } else for (const chart of charts) chart.point();
    write(at, state.cursor == null ? "" : `at ${clock(state.cursor, 1)}${inside(bands(), state.cursor)}${phases?.wordsAt(state.cursor) ?? ""}`);
    quiet.style.visibility = state.cursor == null ? "" : "hidden";
  };
  const inside = (all, time) => {
    const names = all.filter(([, , start, end]) => start <= time && time <= (end ?? Infinity)).sort((a, b) => a[1] - b[1]).map(([name]) => name);
    return names.length ? ` · ${names.slice(0, MOST_LEVELS).join(" › ")}` : "";
  };
  const seen = new IntersectionObserver((entries) => {
    visible = entries.at(-1).isIntersecting;
    if (visible && missed) draw();
  });
  seen.observe(element);
  const sized = new ResizeObserver(draw);
  sized.observe(element);
  const close = () => {
    seen.disconnect();
    sized.disconnect();
  };
  return Object.assign(board, { element, line: h("p", { class: "pf-watch-facts pf-quiet" }, quiet, at), draw, close });
}
