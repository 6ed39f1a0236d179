// Shows memory over a step: a curve with a cursor, and the largest allocations that are alive at the cursor.
import { swatch, textWidth } from "../../draw/js/chart.js";
import { drawn, figure, h, holdsFocus, onKeys } from "../../draw/js/dom.js";
import { byteSize, duration, share } from "../../draw/js/format.js";
import { areaOf, plotted, pointsOf, spansBelow, stackedLines } from "../../draw/js/plots.js";
import { placeAfter } from "../../draw/js/sorted_places.js";
import { pictures } from "../../draw/js/document.js";

// If the step failed, the last instant is shown instead of the peak.
const instantWord = (data) => (data.incomplete ? "failure" : "peak");

const LARGEST_SHOWN = 8;

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
  // Returns an instant in words, such as "2.10 ms, forward". `before` is text that precedes the phase.
  const when = (i, before = "") => {
    const phase = data.phases.find((one) => one.start_ns <= t[i] && t[i] < one.end_ns);
    return `${duration(t[i] / 1e6)}${phase ? `, ${before}${phase.word}` : ""}`;
  };
  // Returns the last instant at or before a time.
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
  const place = {};
  const legend = memoryLegend(data, facts, () => redraw());
  const panel = h("div", { class: "pf-alive" });
  const slider = h("div", { class: "pf-plot", role: "slider", tabindex: 0, "aria-label": "Instant of the step", "aria-orientation": "horizontal", "aria-valuemin": 0, "aria-valuemax": facts.t.length - 1 });
  const redraw = () => slider.replaceChildren(memoryChart(data, facts, state, legend.shown, place));
  const show = (at) => {
    state.at = at;
    place.point?.(at);
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
  steer(slider, facts, state, (px) => place.timeAt(px), show, toPeak);
  redraw();
  show(state.at);
  const element = h("div", { class: "pf-view pf-memory pf-beside" }, h("div", { class: "pf-chart" }, slider, legend.element), panel);
  // Moves to the instant at or before a time in the step, given in milliseconds.
  const reveal = (ms) => {
    state.pinned = true;
    show(facts.instantAt(1e6 * Number(ms)));
    slider.focus();
    slider.scrollIntoView({ block: "nearest" });
  };
  return { element, reveal };
}

// The pointer and keys move the instant. A click pins it, and Escape or a second click at the same place unpins it.
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

// The legend shows the size of each category at the current instant. Lines can be switched on and off.
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

// Draws the chart with stacked areas, the phases below, and a mark at the peak. Memory is constant between instants, so
// lines have steps. The positions of instants, and the function that moves the cursor to one, are stored in `place`.
function memoryChart(data, facts, state, shown, place) {
  const lines = facts.lines.filter((line) => shown.has(line.key));
  const stepped = (values) => values.flatMap((value) => [value, value]);
  const at = [...stepped(facts.t).slice(1), data.step_ns].map((ns) => ns / 1e6);
  const used = [...data.categories.keys()].filter((i) => data.instants.categories[i]);
  const areas = stackedLines(at, used.map((i) => ({ mark: data.categories[i], values: stepped(facts.series[i]) })));
  const spans = data.phases.map((phase) => [phase, phase.start_ns / 1e6, phase.end_ns / 1e6]);
  const most = Math.max(1, facts.peakBytes, ...lines.map((line) => line.most));
  const chart = { title: "", x: { unit: "ms", label: "" }, y: { unit: "bytes" }, xs: [0, data.step_ns / 1e6], ys: [most], floor: 0, height: 270 };
  return plotted(chart, [...areas.map(({ mark }) => mark), ...data.phases], (x, y, [right, lowest], fills) => {
    const cursor = drawn("g", { class: "pf-cursor" }, drawn("line", { y1: 18, y2: lowest + 12 }), drawn("circle", { r: 3.5 }));
    place.timeAt = (px) => (data.step_ns * (px - x(0))) / (right - x(0));
    place.point = (i) => {
      cursor.setAttribute("transform", `translate(${x(facts.t[i] / 1e6)} 0)`);
      cursor.lastChild.setAttribute("cy", y(facts.total[i]));
    };
    place.point(state.at);
    return [
      areas.map((area, i) => areaOf(at, area, x, y, { class: "pf-area", "data-category": area.mark.word, fill: fills[i] })),
      spans.slice(1).map(([, begin]) => drawn("line", { class: "pf-edge", x1: x(begin), x2: x(begin), y1: y(most), y2: lowest })),
      lines.map(({ key, values }) => drawn("path", { class: `pf-series pf-line-${key}`, d: knownRuns(at, stepped(values), x, y) })),
      spansBelow(spans, x, lowest, fills.slice(areas.length), ({ word }, begin, end) => `${word}: ${duration(end - begin)}, from ${duration(begin)}`),
      peakMark(data, x(facts.t[data.peak.at] / 1e6), y(data.peak.bytes), x(0), right), failureMark(data, right, lowest), cursor];
  });
}

// Returns a line that has gaps where values are unknown.
function knownRuns(at, values, x, y) {
  const runs = values.reduce((all, value, i) => {
    if (value == null) return all.at(-1)?.length ? [...all, []] : all;
    all.at(-1).push(i);
    return all;
  }, [[]]);
  return runs.filter((run) => run.length).map((run) => `M${pointsOf(run.map((i) => at[i]), run.map((i) => values[i]), x, y).join("L")}`).join("");
}

function peakMark(data, x, y, left, right) {
  const words = `${data.incomplete ? "at the failure" : "peak"} ${byteSize(data.peak.bytes)}`;
  const before = x + textWidth(words) + 14 > right;
  return drawn("g", { class: "pf-peak" }, drawn("line", { x1: left, x2: right, y1: y, y2: y }), drawn("path", { d: `M${x},${y - 2} l-5,-8 h10 z` }),
    drawn("text", { x: x + (before ? -9 : 9), y: y - 6, "text-anchor": before ? "end" : "start" }, words));
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
