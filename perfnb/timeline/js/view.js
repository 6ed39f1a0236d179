// The timeline's elements, and the code that updates them when its state changes.
import { canvasParts, framesOf, whenThemeChanges } from "../../draw/js/canvas.js";
import { legendOf } from "../../draw/js/chart.js";
import { closeButton, h, holdsFocus } from "../../draw/js/dom.js";
import { byteSize, duration, grouped } from "../../draw/js/format.js";
import { steerOverview, steerTimeline, timelineActs } from "./acts.js";
import { eventDetails, intervalDetails, timelineTable, timelineWords } from "./details.js";
import { LANE, timelineFrame, timelineLanes } from "./frame.js";

const TALLEST = 480;
const HINTS = [["W S", "zoom"], ["A D", "pan"], ["← →", "neighbours"], ["↑ ↓", "caller, callee"], ["F", "zoom to selection"], ["0", "show all"], ["/", "search"], ["N", "next match"], ["Shift+drag", "measure"]];

export function timelineView(element, store, facts, showLayer) {
  const state = {
    store, t0: 0, t1: 1, goal: null, scroll: 0, selected: -1, hovered: -1, layer: -1, links: [], interval: null, pointer: null, folded: new Set(), query: "",
  };
  const top = h("canvas", { class: "pf-tl-top", "aria-hidden": "true" });
  const { canvas, body, scroller, tip, spoken, panel, hints, search, status, point, whenSearched } = canvasParts("Timeline", "Search events and layers", HINTS);
  panel.classList.add("pf-tl-details");
  const titles = h("div", { class: "pf-tl-titles" });
  body.append(titles);
  const table = h("div", { class: "pf-tl-table", hidden: true });
  const note = h("p", { class: "pf-quiet" });
  const frame = timelineFrame(state, canvas, top);
  const words = timelineWords(state, facts);

  let [listing, listed] = [0, ""];
  const redraw = framesOf(state, frame.draw, () => list());
  // The table is updated once the picture has stopped moving.
  const list = () => {
    const now = `${state.t0} ${state.t1} ${state.query} ${state.selected} ${state.store.total}`;
    if (table.hidden || now === listed) return;
    clearTimeout(listing);
    listing = setTimeout(() => {
      listed = now;
      const held = holdsFocus(table);
      table.replaceChildren(...timelineTable(state, words, facts, (i) => act.choose(i, true)));
      if (held) table.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
    }, 150);
  };
  const ui = {
    redraw, canvas, scroller, spoken, search, point, describe: () => describe(), layout: () => layout, fold: (lane) => fold(lane), tell: (rank) => tell(rank),
    say: (text) => {
      panel.replaceChildren(h("p", { class: "pf-quiet" }, text));
      spoken.textContent = text;
    },
    get shell() { return shell; },
  };
  const act = timelineActs(state, frame, words, ui);

  let matches = 0;
  const tell = (rank) => {
    status.textContent = !state.query ? "" : `${rank ? `${grouped(rank)} of ` : ""}${grouped(matches)}${rank ? "" : ` of ${grouped(state.store.total)} events`}`;
    for (const button of steps) button.disabled = !matches;
  };
  const run = (query) => {
    state.query = query;
    matches = state.store.search(query);
    tell(0);
    redraw();
  };
  whenSearched(run, act.next);
  const button = (word, title, click, more = {}) => h("button", { type: "button", title, click, ...more }, word);
  const steps = [button("‹", "Previous match (Shift+N)", () => act.next(-1), { "aria-label": "Previous match" }), button("›", "Next match (N)", () => act.next(1), { "aria-label": "Next match" })];
  const toggle = button("Table", "List the longest visible events", () => {
    table.hidden = !table.hidden;
    toggle.setAttribute("aria-pressed", String(!table.hidden));
    listed = "";
    list();
  }, { "aria-pressed": "false" });
  const toolbar = h("div", { class: "pf-toolbar" },
    h("span", { class: "pf-search" }, search, h("span", { class: "pf-buttons pf-tl-steps" }, steps), status),
    h("span", { class: "pf-buttons" }, button("−", "Zoom out (S)", () => act.zoom(1.6), { "aria-label": "Zoom out" }), button("+", "Zoom in (W)", () => act.zoom(1 / 1.6), { "aria-label": "Zoom in" }),
      button("All", "Show the whole time range (0)", act.whole), toggle));
  const legend = h("div", { class: "pf-tl-legend" });
  const wheel = h("span", {});
  const sayWheel = (focused) => { wheel.textContent = focused ? "The wheel zooms; press Esc to scroll the page again" : "Click to zoom with the wheel (or use Ctrl+wheel); drag to pan"; };
  canvas.addEventListener("focus", () => sayWheel(true));
  canvas.addEventListener("blur", () => sayWheel(false));
  sayWheel(false);
  hints.prepend(wheel);
  const more = h("button", { type: "button", class: "pf-tl-more", hidden: true });
  const shell = h("div", { class: "pf-canvas-shell" }, top, scroller, more, tip);

  const describe = () => {
    const inside = holdsFocus(panel);
    const close = closeButton(() => { act.choose(-1); canvas.focus({ preventScroll: true }); });
    if (state.interval) panel.replaceChildren(close, ...intervalDetails(state, words));
    else if (state.selected >= 0) panel.replaceChildren(close, ...eventDetails(state, words, (i) => act.choose(i, true), showLayer));
    else panel.replaceChildren(h("p", { class: "pf-quiet" }, "Click an event for its times, its layer, and what it launched or was launched by."));
    if (inside) canvas.focus({ preventScroll: true });
  };
  let layout = null;
  let [tallest, given] = [TALLEST, 0];
  const fold = (lane) => {
    if (!state.folded.delete(lane.key)) state.folded.add(lane.key);
    lay();
  };
  // The tracks and their titles, one below the other.
  const lay = () => {
    const focused = [...titles.children].findIndex((node) => node === titles.getRootNode().activeElement);
    layout = frame.lay();
    body.style.height = `${layout.height}px`;
    if (given && parseFloat(scroller.style.height) !== given) tallest = parseFloat(scroller.style.height);  // as the reader dragged it
    given = Math.min(tallest, layout.height);
    scroller.style.height = `${given}px`;
    scroller.style.maxHeight = `${layout.height}px`;
    titles.replaceChildren(...layout.lanes.map((lane) => {
      const style = `top:${lane.y}px;height:${lane.height}px`;
      const most = lane.memory ? `max ${byteSize(lane.memory.most)}` : null;
      const title = [lane.title, most, lane.note].filter(Boolean).join("\n");
      const text = [h("span", { class: "pf-tl-name" }, lane.title), lane.height > 32 ? [most, lane.note].filter(Boolean).map((line) => h("small", { class: "pf-quiet" }, line)) : null].flat();
      return lane.folds
        ? h("button", { type: "button", class: "pf-tl-title", style, title, "aria-expanded": String(!lane.folded), click: () => fold(lane) }, text)
        : h("div", { class: "pf-tl-title", style, title }, text);
    }));
    titles.children[focused]?.focus({ preventScroll: true });
    fit();
  };
  const fit = () => {
    const wide = scroller.clientWidth;
    if (!wide || !layout) return;
    const gutter = Math.round(Math.min(190, Math.max(128, 0.15 * wide)));
    shell.style.setProperty("--pf-gutter", `${gutter}px`);
    frame.resize(wide - gutter, Math.min(scroller.clientHeight, layout.height), gutter);
    scrolled();
  };
  // A button names the next track below the edge, which readers would otherwise miss.
  const scrolled = () => {
    state.scroll = scroller.scrollTop;
    const below = layout.lanes.filter((lane) => lane.y + LANE.row > state.scroll + frame.size.height);
    more.hidden = !below.length;
    if (below.length) more.replaceChildren("↓ ", h("span", { class: "pf-name" }, below[0].title), below.length > 1 ? ` + ${below.length - 1}` : "");
    more.title = below.map((lane) => lane.title).join("\n");
    redraw();
  };
  more.addEventListener("click", () => {
    const next = layout.lanes.find((lane) => lane.y + LANE.row > state.scroll + frame.size.height);
    if (next) scroller.scrollTop = next.y + next.height - frame.size.height + LANE.gap;
  });
  const recolour = () => {
    if (!element.isConnected) return;
    frame.setTheme(element.closest(".perfnb"));
    redraw();
  };
  const accept = () => {
    const { header, used, total } = state.store;
    legend.replaceChildren(legendOf(header.kinds.filter((_, k) => used[k]), { "aria-label": "Kinds of events" }));
    note.hidden = !(header.total_events > total);
    note.textContent = note.hidden ? "" : `Showing events of ${duration(header.shortest_ns / 1e6)} and longer: ${grouped(total)} of ${grouped(header.total_events)}.`;
    canvas.setAttribute("aria-label", `Timeline of ${grouped(total)} events in ${grouped(header.tracks.length)} tracks`);
    lay();
    recolour();
    run(state.query);
    describe();
  };

  element.replaceChildren(toolbar, legend, note, shell, hints, panel, table, spoken);
  steerTimeline(canvas, scroller, state, frame, act);
  steerOverview(top, state, frame, act);
  scroller.addEventListener("scroll", scrolled);
  new ResizeObserver(fit).observe(scroller);
  whenThemeChanges(element, recolour);
  [state.t0, state.t1] = act.bounds();
  // Python calls are folded, because they take many rows to show what ops and layers show in a few.
  for (const track of store.tracks) if (track.kind === "python") state.folded.add(`python ${track.title}`);
  // Threads without any of the step's work are folded to save space.
  if (timelineLanes(store, state.folded).height > TALLEST) {
    const other = store.header.kinds.findIndex((kind) => kind.word === "other");
    for (const track of store.tracks) {
      if (track.kind === "thread" && store.kind.subarray(track.first, track.first + track.count).every((kind) => kind === other)) state.folded.add(`thread ${track.title}`);
    }
  }
  accept();
  return {
    shown: () => {
      recolour();
      fit();
    },
    // When all events replace a coarser level, the visible range, selection, search and marked range are preserved.
    replace(next) {
      const chosen = state.selected >= 0 ? state.store.same(state.selected, next) : -1;
      const { interval } = state;
      state.store = next;
      state.hovered = -1;
      accept();
      act.choose(chosen);
      if (interval) act.mark(...interval);
    },
    goToLayer(row) {
      const code = state.store.header.layer_rows.indexOf(row);
      search.value = `layer:${state.store.header.layers[code] ?? facts.path(row)}`;
      run(search.value.trim());
      act.choose(-1);
      const first = state.store.match(-1, -Infinity, 1);
      if (first >= 0) {
        act.choose(first, true, true);
        tell(1);
      }
      canvas.focus();
    },
  };
}
