// The Machine tab: hardware telemetry during the steps, with passes and phases.
import { patternFills, swatch } from "../../draw/js/chart.js";
import { drawn, figure, h } from "../../draw/js/dom.js";
import { UNKNOWN, clock, count, grouped } from "../../draw/js/format.js";
import { placeAfter } from "../../draw/js/search.js";
import { pictures } from "../../draw/js/document.js";
import { metricsTable, watchBoard, watchTable, watchWords, wordLists } from "./board.js";
import { write } from "./chart.js";
import { watchStore } from "./store.js";

const MOST_STRETCHES = 160;
const LEAST_STRETCH_PX = 2.5;

function machineTab(data) {
  const store = watchStore(data);
  const phases = data.steps && phasesOf(data.steps);
  const below = data.steps ? 1 : 0;
  const passes = data.steps?.passes.map(([word, start, end, steps]) => [word, 0, start, end, steps === 1 ? "1 step" : `${count(steps)} steps`]) ?? [];
  const bands = [...passes, ...store.marked().map(([name, depth, start, end]) => [name, depth + below, start, end])];
  const board = watchBoard(store, { bands: () => bands, phases, leastSpan: data.steps ? 0.02 : 4 * data.interval_s });
  const reset = h("button", { type: "button", click: board.follow }, "Reset zoom");
  const hint = h("span", { class: "pf-quiet" });
  board.drawn = () => {
    reset.disabled = !board.zoomed();
    const { from, to } = board.time();
    const seen = board.phasesIn(from, to, 250).length;
    write(hint, seen ? phases.placed ? "lighter: estimated from the traced steps" : "" : "zoom in on the strip below to see phases in the charts");
  };
  const words = watchWords(store);
  const element = h("div", { class: "pf-view pf-machine" },
    h("div", { class: "pf-watch-header" }, board.line, h("div", { class: "pf-buttons" }, reset)),
    phases ? h("ul", { class: "pf-legend" }, phases.marks.map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word))), h("li", {}, hint)) : null,
    board.element, data.steps ? byPhase(data.steps) : null, watchTable(data), wordLists(words));
  if (phases) element.append(drawn("svg", { width: 0, height: 0, class: "pf-watch-patterns", "aria-hidden": "true" }, phases.defs));
  return { element, shown: board.draw };
}

// The stretches of phases: where they are, their fills, and which of them are visible in a window.
function phasesOf({ phases, stretches }) {
  const { defs, fills } = patternFills(phases);
  let us = 0;
  const start = stretches.start.map((step) => (us += step) / 1e6);
  const end = start.map((from, i) => from + stretches.us[i] / 1e6);
  const within = (from, to, width) => {
    const [first, last] = [Math.max(0, placeAfter(start, from) - 1), placeAfter(start, to)];
    if (last - first > MOST_STRETCHES || (last - first) * LEAST_STRETCH_PX > width) return [];
    const seen = [];
    for (let i = first; i < last; i += 1) {
      if (end[i] > from) seen.push([start[i], end[i], fills[stretches.phase[i]], stretches.placed[i] === 1]);
    }
    return seen;
  };
  const wordsAt = (time) => {
    const i = placeAfter(start, time) - 1;
    return i >= 0 && time < end[i] ? ` · ${phases[stretches.phase[i]].word}${stretches.placed[i] ? " (estimated)" : ""}` : "";
  };
  return { marks: phases, defs, within, wordsAt, placed: stretches.placed.includes(1) };
}

function byPhase({ by_phase: { phases, rows }, stretches }) {
  if (!rows.length) return null;
  const few = () => h("span", { class: "pf-unknown", title: "too few readings" }, UNKNOWN);
  const placed = stretches.placed.includes(1) ? "; phases of untraced steps are estimated from the traced ones" : "";
  const left = stretches.left_out ? `; ${grouped(stretches.left_out)} more stretches are not drawn` : "";
  const caption = `Mean in each phase (n/a: too few readings, rates such as CPU need phases longer than the reading interval${placed}${left})`;
  const heads = phases.map((mark) => h("th", { scope: "col" }, swatch(mark), ` ${mark.word}`));
  return metricsTable(caption, heads, rows, (mean) => (mean == null ? few() : figure(mean)));
}

pictures.machine = ({ data }) => ({ ...machineTab(data), size: clock(data.duration_s) });
