// Charts with one time axis and the history below, as in the live panel and the Machine tab.
import { h } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { watchChart } from "./chart.js";
import { write } from "./lines.js";
import { MOST_LEVELS, watchStrip } from "./strip.js";

const FOLLOWED_S = [10, 20, 30, 60];

// `options`: bands() returns marks, phases are those of the steps; leastSpan limits the zoom.
export function watchBoard(store, { bands, phases = null, leastSpan }) {
  const state = { view: null, frozen: null, cursor: null };
  let [wanted, visible, once, missed] = [0, true, false, false];
  const board = {
    interval: () => store.data.interval_s,
    cursor: () => state.cursor,
    zoomed: () => state.view != null,
    paused: () => state.frozen != null,
    // from, to: the visible window; first, last: the history; end: where the drawing ends.
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
  const quiet = h("span", {}, store.data.facts.join(" · "));
  const grid = h("div", { class: "pf-watch-grid" }, charts.map((chart) => chart.element));
  const waiting = h("p", { class: "pf-quiet pf-empty", hidden: true }, "No readings yet.");
  const element = h("div", { class: "pf-watch-board" }, grid, waiting, strip.element,
    h("p", { class: "pf-watch-help pf-quiet" }, strip.words, h("span", {}, "drag to zoom, drag the window to move it, double click for all")));

  // 1: the cursor moved; 2: redraw everything. At most once per frame, and after the first time only if visible, so
  // that a printed page has everything.
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
