// The timeline's elements, and the code that updates them when its state changes.
import { boxPalette, shadesOf } from "../../draw/js/canvas.js";
import { canvasView } from "../../draw/js/canvas_view.js";
import { legendOf } from "../../draw/js/chart.js";
import { h, holdsFocus } from "../../draw/js/dom.js";
import { byteSize, duration, grouped } from "../../draw/js/format.js";
import { eventDetails, intervalDetails, timelineTable, timelineTip, timelineWords } from "./details.js";
import { LANE, timelineFrame, timelineLanes } from "./frame.js";

const SHORTEST_NS = 20;
const MOST_LINES = 200;

// A click or drag in the overview moves the visible range there.
function steerOverview(top, state, frame, view) {
  const move = (event) => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    const px = event.clientX - top.getBoundingClientRect().left - LANE.gutter;
    const middle = begin + (px / frame.size.width) * (end - begin);
    view.show(middle - (state.t1 - state.t0) / 2, middle + (state.t1 - state.t0) / 2, true);
  };
  top.addEventListener("pointerdown", (event) => {
    if (event.button || event.offsetY > LANE.overview) return;
    top.setPointerCapture(event.pointerId);
    move(event);
  });
  top.addEventListener("pointermove", (event) => top.hasPointerCapture(event.pointerId) && move(event));
}

export function timelineView(element, store, facts, showLayer) {
  const state = {
    store, rows: [], lanes: [], t0: 0, t1: 1, goal: null, scroll: 0, selected: -1, hovered: -1, links: [], interval: null, folded: new Set(), query: "",
  };
  const top = h("canvas", { class: "pf-tl-top", "aria-hidden": "true" });
  const titles = h("div", { class: "pf-tl-titles" });
  const legend = h("div", { class: "pf-tl-legend" });
  const table = h("div", { class: "pf-tl-table", hidden: true });
  const note = h("p", { class: "pf-quiet" });
  const frame = timelineFrame(state, top);
  const words = timelineWords(state, facts);

  // The table is updated once the picture has stopped moving.
  let [listing, listed] = [0, ""];
  const list = () => {
    const now = `${state.t0} ${state.t1} ${state.query} ${state.selected} ${state.store.total}`;
    if (table.hidden || now === listed) return;
    clearTimeout(listing);
    listing = setTimeout(() => {
      listed = now;
      const held = holdsFocus(table);
      table.replaceChildren(...timelineTable(state, words, facts, (i) => view.choose(i, true)));
      if (held) table.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
    }, 150);
  };
  const toggle = h("button", { type: "button", title: "List the longest visible events", "aria-pressed": "false", click: () => {
    table.hidden = !table.hidden;
    toggle.setAttribute("aria-pressed", String(!table.hidden));
    list();
  } }, "Table");

  const fold = (lane) => {
    if (!state.folded.delete(lane.key)) state.folded.add(lane.key);
    view.lay();
  };
  // The tracks and their titles, one below the other.
  const lay = () => {
    const focused = [...titles.children].findIndex(holdsFocus);
    const { lanes, height } = timelineLanes(state.store, state.folded);
    Object.assign(state, { lanes, rows: lanes.flatMap((lane) => lane.rows) });
    titles.replaceChildren(...lanes.map((lane) => {
      const more = [lane.memory && `max ${byteSize(lane.memory.most)}`, lane.note].filter(Boolean);
      const props = { class: "pf-tl-title", style: `top:${lane.y}px;height:${lane.height}px`, title: [lane.title, ...more].join("\n") };
      const text = [h("span", { class: "pf-tl-name" }, lane.title), lane.height > 32 && more.map((line) => h("small", { class: "pf-quiet" }, line))];
      return lane.folds ? h("button", { type: "button", ...props, "aria-expanded": String(!lane.folded), click: () => fold(lane) }, text) : h("div", props, text);
    }));
    titles.children[focused]?.focus({ preventScroll: true });
    return height;
  };
  const chosen = (i) => {
    const { store: now } = state;
    state.interval = null;
    state.links = [];
    if (i < 0) return;
    const link = (from, to) => from >= 0 && to >= 0 && state.links.push({ from, to });
    const { layers, nodes } = now.backwardOf(i);
    for (const from of new Set([now.layerAround(i), now.launcher(i), now.launch[i], ...now.forwardOf(i)])) link(from, i);
    for (const to of [...now.launched(i).events.slice(0, MOST_LINES), ...(layers.length ? layers : nodes).slice(0, MOST_LINES)]) link(i, to);
  };
  // The longest visible layer, or the longest event if there are no layers.
  const first = () => {
    const { store: now, t0, t1 } = state;
    const rows = [...now.rows].sort((a, b) => (b.track.kind === "layers") - (a.track.kind === "layers"));
    return rows.map((row) => now.inside(row, t0, t1)).filter(({ from, to }) => from < to).map(({ from, to }) => now.longest(from, to))[0] ?? -1;
  };
  let matches = 0;
  const view = canvasView(element, state, frame, {
    label: "Timeline", words: "Search events and layers", hint: "Click an event for its times, its layer, and what it launched or was launched by.",
    keys: [["Shift+drag", "measure"]], gutter: LANE.gutter, buttons: [toggle], above: [legend, note], head: top, inside: titles, below: [table],
    least: SHORTEST_NS, margin: 0.35, lay, chosen, first, settled: list,
    bounds() {
      const { start_ns: begin, end_ns: end } = state.store.header;
      return [begin - 0.015 * (end - begin), end + 0.015 * (end - begin)];
    },
    recolour() { state.palette = boxPalette(shadesOf(state.store.header.kinds, frame.context), state.theme); },
    search(query) {
      state.query = query;
      matches = state.store.find(query);
      return matches;
    },
    status(rank) {
      if (!state.query) return "";
      return rank ? `${grouped(rank)} of ${grouped(matches)}` : `${grouped(matches)} of ${grouped(state.store.total)} events`;
    },
    up: (i) => state.store.parent(i),
    down: (i) => state.store.longest(...state.store.children(i)),
    spoken: (i) => `${words.brief(i)}, ${words.when(state.store.start[i])}`,
    details() {
      if (state.interval) return intervalDetails(state, words);
      return state.selected >= 0 ? eventDetails(state, words, (i) => view.choose(i, true), showLayer) : null;
    },
    tip: (found) => (found.event >= 0 || found.bytes != null) && timelineTip(state, words, found),
    mark(a, b) {
      if (state.selected >= 0) view.choose(-1);
      state.interval = [a, b];
      view.describe();
      view.redraw();
    },
    open(i) {
      const { track, depth } = state.store.rowOf(i);
      if (track.lane.folded && depth > track.lane.rows[0].depth) fold(track.lane);
    },
  });
  const accept = () => {
    const { header, kind, total, tracks } = state.store;
    legend.replaceChildren(legendOf(header.kinds.filter((_, k) => kind.includes(k)), { "aria-label": "Kinds of events" }));
    note.hidden = header.total_events <= total;
    note.textContent = `Showing events of ${duration(header.shortest_ns / 1e6)} and longer: ${grouped(total)} of ${grouped(header.total_events)}.`;
    frame.canvas.setAttribute("aria-label", `Timeline of ${grouped(total)} events in ${grouped(tracks.length)} tracks`);
    view.accept();
  };
  steerOverview(top, state, frame, view);
  // Python calls take many rows to show what ops and layers show in a few, and some threads have none of the step's work.
  const other = store.header.kinds.findIndex((kind) => kind.word === "other");
  for (const { kind, title, first: from, count } of store.tracks) {
    const isIdle = kind === "thread" && store.kind.subarray(from, from + count).every((one) => one === other);
    if (kind === "python" || isIdle) state.folded.add(`${kind} ${title}`);
  }
  accept();
  view.whole(true);
  return {
    shown: view.shown,
    // When all events replace a coarser level, the visible range, selection, search and marked range are preserved.
    replace(next) {
      const selected = state.selected >= 0 ? state.store.same(state.selected, next) : -1;
      const { interval } = state;
      Object.assign(state, { store: next, selected: -1 });
      accept();
      view.choose(selected);
      if (interval) state.interval = interval;
      view.describe();
    },
    goToLayer(row) {
      const code = state.store.header.layer_rows.indexOf(row);
      view.look(`layer:${state.store.header.layers[code] ?? facts.path(row)}`);
      view.choose(-1);
      if (matches) view.next(1, true);
      frame.canvas.focus();
    },
  };
}
