// Memory over a step: a curve with a cursor, and the largest allocations alive at its instant.
import { drawnToFit, levelRules, niceTicks, patternFills, roundNumber, roundSize, swatch, textWidth } from "../../draw/js/chart.js";
import { drawn, figure, h, holdsFocus, onKeys } from "../../draw/js/dom.js";
import { byteSize, duration, share, significant, timeUnit } from "../../draw/js/format.js";
import { placeAfter } from "../../draw/js/sorted_places.js";
import { pictures } from "../../draw/js/document.js";

// If the step failed, the last instant is shown in place of the peak.
const instantWord = (data) => (data.incomplete ? "failure" : "peak");

const LARGEST_SHOWN = 8;
const PLOT = { left: 66, right: 14, top: 26, height: 270, strip: 9, below: 54 };

function memoryFacts(data) {
  const { instants, largest, names } = data;
  const t = instants.t;
  const zeros = t.map(() => 0);
  const series = instants.categories.map((values) => values ?? zeros);
  const total = instants.total ?? zeros;
  const { start, end } = largest;
  const most = (values) => values?.reduce((top, value) => Math.max(top, value ?? 0), 0) ?? 0;
  const lines = [
    { key: "reserved", word: "reserved", values: instants.reserved, title: "Memory that the allocator has reserved on the device, in use or not" },
    { key: "process", word: "process", values: instants.process, title: "Resident memory of the whole process, including what the allocator cannot see" },
  ].filter((line) => line.values).map((line) => ({ ...line, most: most(line.values) }));
  // "2.10 ms, forward": an instant, with words before its phase.
  const when = (i, before = "") => {
    const phase = data.phases.find((one) => one.start_ns <= t[i] && t[i] < one.end_ns);
    return `${duration(t[i] / 1e6)}${phase ? `, ${before}${phase.word}` : ""}`;
  };
  // The last instant at or before a time.
  const instantAt = (time) => Math.max(0, placeAfter(t, time) - 1);
  const aliveAt = (i) => {
    const found = [];
    for (let row = 0; row < start.length && start[row] <= t[i]; row += 1) {
      if (t[i] < end[row] || end[row] >= data.step_ns) found.push(row);
    }
    return found.sort((a, b) => largest.bytes[b] - largest.bytes[a]).slice(0, LARGEST_SHOWN);
  };
  const named = (column) => (row) => names[largest[column][row]] ?? null;
  return {
    t, series, total, lines, peakBytes: most(total), when, instantAt, aliveAt, start, end,
    layer: named("layer"), op: named("op"), phase: named("phase"), name: named("name"),
  };
}

function memoryCurve(data) {
  const facts = memoryFacts(data);
  if (!facts.t.length) return null;
  const state = { at: data.peak.at, pinned: false };
  const legend = memoryLegend(data, facts, () => refit());
  const panel = h("div", { class: "pf-alive" });
  const slider = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": "Instant of the step", "aria-orientation": "horizontal", "aria-valuemin": 0, "aria-valuemax": facts.t.length - 1 });
  let plot = null;
  const show = (at) => {
    state.at = at;
    plot?.point(at, at === data.peak.at && !state.pinned);
    legend.show(at);
    const words = facts.when(at);
    slider.setAttribute("aria-valuenow", at);
    slider.setAttribute("aria-valuetext", `${words}, ${byteSize(facts.total[at])} alive`);
    panel.replaceChildren(...aliveList(data, facts, state, at, words, toPeak));
  };
  const toPeak = () => {
    const focused = holdsFocus(panel);
    state.pinned = false;
    show(data.peak.at);
    if (focused) slider.focus();
  };
  const refit = drawnToFit(slider, (width) => {
    plot = memoryPlot(data, facts, legend.shown, width);
    slider.replaceChildren(plot.element);
    show(state.at);
  });
  steer(slider, facts, state, (x) => plot.timeAt(x), show, toPeak);
  show(state.at);
  const element = h("div", { class: "pf-view pf-memory pf-beside" }, h("div", { class: "pf-chart" }, slider, legend.element), panel);
  // Moves to the instant at or before a time of the step, in milliseconds.
  const reveal = (ms) => {
    state.pinned = true;
    show(facts.instantAt(1e6 * Number(ms)));
    slider.focus();
    slider.scrollIntoView({ block: "nearest" });
  };
  return { element, shown: refit, reveal };
}

// Pointer and keys move the instant. A click pins it; Escape or a second click at the same place unpins it.
function steer(slider, facts, state, timeAt, show, toPeak) {
  const under = (event) => facts.instantAt(timeAt(event.clientX - slider.getBoundingClientRect().left));
  let wanted = null;
  slider.addEventListener("pointermove", (event) => {
    if (state.pinned) return;
    if (wanted == null) requestAnimationFrame(() => {
      if (wanted != null && wanted !== state.at) show(wanted);
      wanted = null;
    });
    wanted = under(event);
  });
  slider.addEventListener("pointerleave", () => {
    wanted = null;
    if (!state.pinned) toPeak();
  });
  slider.addEventListener("click", (event) => {
    const at = under(event);
    state.pinned = !(state.pinned && at === state.at);
    show(at);
  });
  const last = facts.t.length - 1;
  const leap = Math.max(1, Math.round(last / 20));
  const by = (step, leaps = step) => (event) => {
    state.pinned = true;
    show(Math.min(last, Math.max(0, state.at + (event.shiftKey ? leaps : step))));
  };
  onKeys(slider, {
    ArrowRight: by(1, leap), ArrowUp: by(1), ArrowLeft: by(-1, -leap), ArrowDown: by(-1), PageUp: by(leap), PageDown: by(-leap), Home: by(-Infinity), End: by(Infinity), Escape: toPeak,
  });
}

// The legend shows the size of each category at the instant; lines can be switched on and off.
function memoryLegend(data, facts, redraw) {
  const used = [...data.categories.keys()].filter((i) => data.instants.categories[i]);
  const amounts = new Map([...used, ...facts.lines].map((key) => [key, h("span", { class: "pf-amount" })]));
  const shown = new Set(facts.lines.filter((line) => line.most <= 1.7 * facts.peakBytes).map((line) => line.key));
  const element = h("ul", { class: "pf-amounts" },
    used.map((i) => h("li", {}, swatch(data.categories[i]), h("span", { class: "pf-word" }, data.categories[i].word), amounts.get(i))),
    facts.lines.map((line) => h("li", {}, h("button", {
      type: "button", class: "pf-switch", "aria-pressed": String(shown.has(line.key)), title: `${line.title}. Click to show or hide its line.`,
      click: (event) => {
        if (!shown.delete(line.key)) shown.add(line.key);
        event.currentTarget.setAttribute("aria-pressed", String(shown.has(line.key)));
        redraw();
      },
    }, h("i", { class: `pf-line-key pf-line-${line.key}`, "aria-hidden": "true" }), h("span", { class: "pf-word" }, line.word)), amounts.get(line))));
  const show = (at) => {
    for (const i of used) {
      const bytes = facts.series[i][at];
      amounts.get(i).replaceChildren(h("b", {}, figure(byteSize(bytes))), h("span", { class: "pf-quiet" }, share(facts.total[at] ? bytes / facts.total[at] : 0)));
    }
    for (const line of facts.lines) amounts.get(line).replaceChildren(h("b", {}, figure(byteSize(line.values[at]))));
  };
  return { element, show, shown };
}

function aliveList(data, facts, state, at, words, toPeak) {
  const { largest, categories } = data;
  const here = at === data.peak.at;
  const rows = facts.aliveAt(at).map((row) => {
    const mark = categories[largest.category[row]];
    const made = [facts.op(row) && `by ${facts.op(row)}`, facts.phase(row) && `in ${facts.phase(row)}`].filter(Boolean).join(" ");
    const name = facts.name(row) ?? facts.layer(row);
    const text = `${mark.word}${made ? `, made ${made}` : facts.start[row] <= 0 ? ", allocated before the step" : ""}`;
    const life = `${byteSize(largest.bytes[row])}, from ${duration(facts.start[row] / 1e6)} to ${facts.end[row] >= data.step_ns ? "the end of the step" : duration(facts.end[row] / 1e6)}`;
    return h("li", { title: `${name ?? "no layer"}\n${text}\n${life}` }, swatch(mark),
      h("div", {}, h("span", { class: name ? "pf-name" : "pf-quiet" }, name ?? "no layer"), h("small", {}, text)),
      h("b", {}, figure(byteSize(largest.bytes[row]))));
  });
  return [
    h("div", { class: "pf-alive-head" },
      h("h3", {}, here ? `At the ${instantWord(data)}` : state.pinned ? "At the pinned instant" : "At this instant"),
      state.pinned ? h("button", { type: "button", class: "pf-link", click: toPeak }, `back to the ${instantWord(data)}`) : null,
      h("p", {}, h("b", {}, figure(byteSize(facts.total[at]))), h("span", { class: "pf-quiet" }, ` alive · ${words}`))),
    rows.length ? h("ol", { "aria-label": "Largest allocations alive" }, rows) : h("p", { class: "pf-quiet" }, "No allocation to list."),
  ];
}

// The chart: stacked areas, phases below, the peak marked. Memory is constant between instants, hence steps.
function memoryPlot(data, facts, shown, width) {
  const { left, right, top, height, strip, below } = PLOT;
  const lines = facts.lines.filter((line) => shown.has(line.key));
  const most = 1.04 * Math.max(1, facts.peakBytes, ...lines.map((line) => line.most));
  const [x1, y0] = [width - right, top + height];
  const x = (time) => left + ((x1 - left) * Math.min(1, Math.max(0, time / (data.step_ns || 1))));
  const y = (bytes) => y0 - (height * bytes) / most;
  const at = (value) => Math.round(value * 100) / 100;
  const xs = facts.t.map((time) => at(x(time)));
  const end = at(x(data.step_ns));
  const edge = (values) => knownSteps(values, xs, end, (value) => at(y(value)));
  const back = (values) => {
    const parts = [`V${at(y(values.at(-1)))}`];
    for (let i = values.length - 1; i > 0; i -= 1) parts.push(`H${xs[i]}V${at(y(values[i - 1]))}`);
    return `${parts.join("")}H${xs[0]}Z`;
  };
  const { defs, fills } = patternFills([...data.categories, ...data.phases]);
  let base = facts.t.map(() => 0);
  const areas = [];
  data.categories.forEach((mark, i) => {
    if (!data.instants.categories[i]) return;
    const upper = base.map((value, k) => value + facts.series[i][k]);
    areas.push(drawn("path", { class: "pf-area", "data-category": mark.word, d: edge(upper) + back(base), fill: fills[i] }));
    base = upper;
  });
  const yTicks = levelRules(niceTicks(most, 5, 1024).map((value) => [value, roundSize(value, most)]), (value) => at(y(value)), [left, x1]);
  const phaseEdges = data.phases.slice(1).map((phase) => drawn("line", { class: "pf-edge", x1: at(x(phase.start_ns)), x2: at(x(phase.start_ns)), y1: top, y2: y0 }));
  const point = drawn("g", { class: "pf-cursor" }, drawn("line", { y1: top - 4, y2: y0 + strip + 6 }), drawn("circle", { r: 3.5 }));
  const element = drawn("svg", { width, height: y0 + below, "aria-hidden": "true" }, defs, yTicks, areas, phaseEdges,
    drawn("path", { class: "pf-outline", d: edge(base) }),
    lines.map((line) => drawn("path", { class: `pf-series pf-line-${line.key}`, d: edge(line.values) })),
    phaseStrip(data, fills.slice(data.categories.length), x, y0 + 4), timeTicks(data, x, y0, x1),
    peakMark(data, facts, x, y, left, x1), failureMark(data, x1, y0), point);
  return {
    element,
    timeAt: (px) => ((px - left) / (x1 - left)) * data.step_ns,
    point: (i) => {
      point.setAttribute("transform", `translate(${at(x(facts.t[i]))} 0)`);
      point.lastChild.setAttribute("cy", at(y(facts.total[i])));
    },
  };
}

// A stepped line with gaps where values are unknown.
function knownSteps(values, xs, end, y) {
  let path = "";
  let open = false;
  values.forEach((value, i) => {
    if (open) path += `H${xs[i]}`;
    if (value != null) path += open ? `V${y(value)}` : `M${xs[i]},${y(value)}`;
    open = value != null;
  });
  return open ? `${path}H${end}` : path;
}

function phaseStrip(data, fills, x, top) {
  let free = -Infinity;
  return data.phases.map((phase, i) => {
    const [from, to] = [x(phase.start_ns), x(phase.end_ns)];
    const wide = textWidth(phase.word);
    const middle = (from + to) / 2;
    const fits = to - from >= wide && middle - wide / 2 > free;
    if (fits) free = middle + wide / 2 + 6;
    const words = `${phase.word}: ${duration((phase.end_ns - phase.start_ns) / 1e6)}, from ${duration(phase.start_ns / 1e6)}`;
    return drawn("g", { class: "pf-phase" }, drawn("title", {}, words),
      drawn("rect", { x: from, y: top, width: Math.max(1, to - from - 1), height: PLOT.strip, fill: fills[i], rx: 1.5 }),
      fits ? drawn("text", { x: middle, y: top + PLOT.strip + 13, "text-anchor": "middle" }, phase.word) : null);
  });
}

function timeTicks(data, x, y0, right) {
  const ms = data.step_ns / 1e6;
  const [factor, unit] = timeUnit(ms);
  const top = y0 + 31;
  return [
    drawn("line", { class: "pf-axis", x1: x(0), x2: right, y1: y0, y2: y0 }),
    niceTicks(ms * factor, right > 700 ? 8 : 5).map((value) => {
      const place = x((value / factor) * 1e6);
      const anchor = place > right - 24 ? "end" : "middle";
      return drawn("text", { x: place, y: top + 18, "text-anchor": anchor }, roundNumber(`${significant(value)} ${unit}`));
    }),
  ];
}

function peakMark(data, facts, x, y, left, right) {
  const place = x(facts.t[data.peak.at]);
  const words = `${data.incomplete ? "at the failure" : "peak"} ${byteSize(data.peak.bytes)}`;
  const before = place + textWidth(words) + 14 > right;
  return drawn("g", { class: "pf-peak" },
    drawn("line", { x1: left, x2: right, y1: y(data.peak.bytes), y2: y(data.peak.bytes) }),
    drawn("path", { d: `M${place},${y(data.peak.bytes) - 2} l-5,-8 h10 z` }),
    drawn("text", { x: place + (before ? -9 : 9), y: y(data.peak.bytes) - 6, "text-anchor": before ? "end" : "start" }, words));
}

function failureMark(data, right, y0) {
  return data.incomplete && drawn("g", { class: "pf-fault" },
    drawn("line", { x1: right, x2: right, y1: 4, y2: y0 }),
    drawn("text", { x: right - 6, y: 12, "text-anchor": "end" }, "failed here"));
}

pictures.memory = ({ data }) => {
  const made = memoryCurve(data);
  return made && { ...made, size: byteSize(data.peak.bytes) };
};
