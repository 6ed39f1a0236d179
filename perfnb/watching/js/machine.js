// The picture of a watch that has ended: its charts with the marks, and the passes and phases of the steps that ran
// during the watch.
import { legendOf, patternFills } from "../../draw/js/chart.js";
import { pictures } from "../../draw/js/document.js";
import { drawn, h } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { placeAfter } from "../../draw/js/sorted_places.js";
import { watchBoard } from "./board.js";
import { write } from "./chart.js";
import { watchStore } from "./store.js";

const MOST_STRETCHES = 160;
const LEAST_STRETCH_PX = 2.5;

function machinePicture(data) {
  const store = watchStore(data);
  const phases = data.steps && phasesOf(data.steps);
  const board = watchBoard(store, phases);
  const reset = h("button", { type: "button", click: board.follow }, "Reset zoom");
  const hint = h("span", { class: "pf-quiet" });
  board.drawn = () => {
    reset.disabled = !board.view;
    const { from, to } = board.time();
    const seen = board.phasesIn(from, to, 250).length;
    write(hint, seen ? phases.placed ? "lighter: estimated from the traced steps" : "" : "zoom in on the strip below to see phases in the charts");
  };
  const legend = phases && legendOf(phases.marks);
  legend?.append(h("li", {}, hint));
  const element = h("div", { class: "pf-view pf-machine" },
    h("div", { class: "pf-watch-header" }, board.line, h("div", { class: "pf-buttons" }, reset)), legend, board.element,
    phases && drawn("svg", { width: 0, height: 0, class: "pf-watch-patterns", "aria-hidden": "true" }, phases.defs));
  return { element, size: clock(store.last - store.first) };
}

// The intervals of the phases: their positions, their fills, and which of them are visible in a window.
function phasesOf(steps) {
  const { defs, fills } = patternFills(steps.phases);
  let us = 0;
  const start = steps.start.map((step) => (us += step) / 1e6);
  const end = start.map((from, i) => from + steps.us[i] / 1e6);
  const within = (from, to, width) => {
    const [first, last] = [Math.max(0, placeAfter(start, from) - 1), placeAfter(start, to)];
    if (last - first > MOST_STRETCHES || (last - first) * LEAST_STRETCH_PX > width) return [];
    const seen = [];
    for (let i = first; i < last; i += 1) {
      if (end[i] > from) seen.push([start[i], end[i], fills[steps.phase[i]], steps.placed[i] === 1]);
    }
    return seen;
  };
  const wordAt = (time) => {
    const i = placeAfter(start, time) - 1;
    return time < end[i] && `${steps.phases[steps.phase[i]].word}${steps.placed[i] ? " (estimated)" : ""}`;
  };
  return { marks: steps.phases, defs, within, wordAt, placed: steps.placed.includes(1) };
}

pictures.machine = ({ data }) => machinePicture(data);
