// The elements of the flame graph: canvas, search box, order, colours and details.
import { canvasParts, framesOf, moveTo, whenThemeChanges } from "../../draw/js/canvas.js";
import { legendOf } from "../../draw/js/chart.js";
import { pictures } from "../../draw/js/document.js";
import { closeButton, factRows, h, holdsFocus, onKeys, pressedOne } from "../../draw/js/dom.js";
import { byteSize, count, duration, grouped, share, significant } from "../../draw/js/format.js";
import { FLAME_ROW, flameFrame } from "./frame.js";
import { flameInOrder, flameMatches, flameSandwich, flameStore } from "./store.js";

const FLAME_TALLEST = 480;
const FLAME_WORDS = { ms: duration, bytes: byteSize, samples: (value) => `${count(value)} ${value === 1 ? "sample" : "samples"}`, none: () => "" };
const FLAME_KEYS = [["Click", "zoom in"], ["↑ ↓ ← →", "caller, callee, neighbours"], ["Enter", "zoom to the selected call"], ["S", "callers and callees"], ["0", "show all"], ["/", "search"]];

function flameView(data) {
  let store = flameStore(data);
  const isDifference = Boolean(data.before);
  const words = FLAME_WORDS[data.unit];
  const sumOf = (values) => (store.rows[0] ?? []).reduce((sum, i) => sum + values[i], 0);
  const [whole, wholeBefore] = [sumOf(store.total), isDifference ? sumOf(store.totalBefore) : 0];
  const hasPhases = data.phases.some(Boolean);
  const state = {
    data, t0: 0, t1: store.whole || 1, goal: null, scroll: 0, hovered: null, selected: null, lit: null, by: isDifference ? "change" : hasPhases ? "phase" : "package",
    parts: [{ store, up: false, base: 0 }], sandwich: -1,
  };
  const { canvas, body, scroller, tip, spoken, panel, hints, search, status, point, whenSearched } = canvasParts("Flame graph", "Search functions and files", FLAME_KEYS);
  canvas.setAttribute("aria-label", `Flame graph: ${grouped(store.size)} calls`);
  const frame = flameFrame(state, canvas);
  const element = h("div", { class: "pf-view pf-flame" });

  const redraw = framesOf(state, frame.draw);
  const wholeOf = () => Math.max(...state.parts.map((part) => part.store.whole), 0) || 1;
  const goTo = (t0, t1, now) => {
    moveTo(state, [0, wholeOf()], wholeOf() * 1e-7, t0, t1, now);
    redraw();
  };
  const facts = ({ part, i }) => {
    const s = part.store;
    const [total, own] = [s.total[i], s.own[i]];
    const of = (value, all = whole) => `${words(value)} (${share(all ? value / all : null)})`.trim();
    const list = [["total", of(total)]];
    if (!part.up) list.push(["itself", of(own)]);
    if (s.parent[i] >= 0 && !part.up) list.push(["of its caller", share(s.total[s.parent[i]] ? total / s.total[s.parent[i]] : null)]);
    if (isDifference) {
      const grew = total - s.totalBefore[i];
      list.push(["baseline", of(s.totalBefore[i], wholeBefore)], ["change", `${grew < 0 ? "−" : "+"}${words(Math.abs(grew)) || significant(Math.abs(grew))}`]);
    }
    return list;
  };
  const inWords = (place, between) => facts(place).map(([word, value]) => `${word} ${value}`).join(between);
  const zoomTo = ({ part, i }) => goTo(part.store.start[i], part.store.start[i] + part.store.wide[i]);
  const choose = (place, reveal) => {
    state.selected = place;
    describe();
    if (place && reveal) {
      const { start, wide, parent, depth } = place.part.store;
      if (start[place.i] + wide[place.i] < state.t0 || start[place.i] > state.t1) zoomTo({ part: place.part, i: Math.max(place.i, parent[place.i]) });
      const y = frame.top(place.part, depth[place.i]);
      if (y < scroller.scrollTop || y + FLAME_ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y - scroller.clientHeight / 2;
    }
    spoken.textContent = place ? `${data.names[place.part.store.name[place.i]]}, ${inWords(place, ", ")}` : "";
    redraw();
  };
  const describe = () => {
    const focused = holdsFocus(panel);
    if (!state.selected) {
      panel.replaceChildren(h("p", { class: "pf-quiet" }, "Click a call for its time, its callers and its callees."));
      return;
    }
    const { part, i } = state.selected;
    const f = part.store.name[i];
    const close = closeButton(() => { choose(null); canvas.focus({ preventScroll: true }); });
    panel.replaceChildren(close, h("h3", {}, h("span", { class: "pf-name" }, data.names[f])), data.places[f] && h("p", { class: "pf-quiet" }, data.places[f]), factRows(facts(state.selected)),
      h("span", { class: "pf-buttons" },
        h("button", { type: "button", click: () => zoomTo(state.selected) }, "Zoom to it"),
        state.sandwich !== f && h("button", { type: "button", click: () => sandwich(f) }, "Callers and callees"),
        state.sandwich >= 0 && h("button", { type: "button", click: () => sandwich(-1) }, "Back to all calls")));
    if (focused) close.focus({ preventScroll: true });
  };
  const title = h("p", { class: "pf-quiet", hidden: true });
  const sandwich = (f) => {
    state.sandwich = f;
    if (f < 0) state.parts = [{ store, up: false, base: 0 }];
    else {
      const { callers, callees, calls } = flameSandwich(store, f);
      const base = Math.max(0, callers.rows.length - 1);
      state.parts = [{ store: callers, up: true, base }, { store: callees, up: false, base }];
      title.replaceChildren("Callers of ", h("b", { class: "pf-name" }, data.names[f]), " above it, callees below; ", `${words(callees.whole)} in ${grouped(calls)} ${calls === 1 ? "place" : "places"}. `,
        h("button", { type: "button", class: "pf-link", click: () => sandwich(-1) }, "Back to all calls"));
    }
    title.hidden = f < 0;
    frame.recolour();
    state.hovered = null;
    lay();
    goTo(0, wholeOf(), true);
    choose(f < 0 ? null : { part: state.parts[1], i: 0 });
    if (f >= 0) scroller.scrollTop = frame.top(state.parts[1], 0) - scroller.clientHeight / 2;
  };
  const showAll = () => (state.sandwich >= 0 ? sandwich(-1) : goTo(0, wholeOf()));

  whenSearched((query) => {
    state.lit = query ? store.lower.map((text) => text.includes(query.toLowerCase())) : null;
    const { found, sum } = state.lit ? flameMatches(store, state.lit) : {};
    status.textContent = found ? `${grouped(found.length)} ${found.length === 1 ? "call" : "calls"}, ${[words(sum), share(whole ? sum / whole : null)].filter(Boolean).join(", ")}` : "";
    redraw();
  });

  const legend = h("div", {});
  const choices = isDifference ? [["change", "Change"], ["package", "Package"]] : hasPhases ? [["phase", "Phase"], ["package", "Package"]] : [];
  const paint = (by = state.by) => {
    state.by = by;
    frame.recolour();
    const marks = by === "phase" ? frame.phases : by === "change" ? [{ word: "+ takes more in the candidate", colour: "#D55E00", pattern: "solid" }, { word: "− takes less in the candidate", colour: "#0072B2", pattern: "hatch" }] : data.groups;
    legend.replaceChildren(legendOf(marks, { "aria-label": "Colours" }));
    redraw();
  };
  // Siblings are sorted by weight, or in order of first appearance.
  const stores = [store, null];
  const order = (place) => () => {
    stores[place] ??= flameStore(flameInOrder(data, stores[0]));
    store = stores[place];
    sandwich(-1);
  };
  const orders = data.seen ? [["Heaviest first", order(0), "The widest calls first"], ["Time order", order(1), "Calls in the order they were first seen"]] : [];
  const toolbar = h("div", { class: "pf-toolbar" }, h("span", { class: "pf-search" }, search, status), h("span", { class: "pf-buttons" },
    pressedOne(orders), pressedOne(choices.map(([key, word]) => [word, () => paint(key)])), h("button", { type: "button", title: "Show all calls (0)", click: showAll }, "All")));
  const note = data.left ? h("p", { class: "pf-quiet" }, `${grouped(data.left)} narrower calls are not drawn; their time is in the calls around them.`) : null;

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return frame.at(event.clientX - box.left, event.clientY - box.top);
  };
  const hover = (event) => {
    const place = event && at(event);
    if (place?.i !== state.hovered?.i || place?.part !== state.hovered?.part) {
      state.hovered = place;
      redraw();
    }
    const f = place && place.part.store.name[place.i];
    point(shell, event, place && [h("b", { class: "pf-name" }, data.names[f]), data.places[f] && h("div", { class: "pf-quiet" }, data.places[f]), h("div", {}, inWords(place, " · "))]);
  };
  let dragged = null;
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const moved = (event.clientX - dragged.x) / frame.size.width;
      if (Math.abs(event.clientX - dragged.x) > 3) dragged.moved = true;
      if (dragged.moved) goTo(dragged.t0 - moved * (dragged.t1 - dragged.t0), dragged.t1 - moved * (dragged.t1 - dragged.t0), true);
    }
    hover(event);
  });
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    dragged = { x: event.clientX, t0: state.t0, t1: state.t1, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = dragged;
    dragged = null;
    if (!was || was.moved) return;
    const place = at(event);
    choose(place);
    if (place) zoomTo(place);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && (canvas.getRootNode().activeElement !== canvas || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    const middle = state.t0 + ((event.clientX - box.left) / box.width) * (state.t1 - state.t0);
    const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
    goTo(middle - (middle - state.t0) * factor, middle + (state.t1 - middle) * factor, true);
  }, { passive: false });
  const above = ({ part, i }) => (part.store.parent[i] >= 0 ? { part, i: part.store.parent[i] } : null);
  const below = ({ part, i }) => (i + 1 < part.store.end[i] ? { part, i: i + 1 } : null);
  const beside = (step) => ({ part, i }) => {
    const row = part.store.rows[part.store.depth[i]];
    const next = row[row.indexOf(i) + step];
    return next == null ? null : { part, i: next };
  };
  const go = (move) => () => {
    const next = state.selected ? move(state.selected) : store.size ? { part: state.parts.at(-1), i: 0 } : null;
    if (next) choose(next, true);
  };
  onKeys(canvas, {
    ArrowUp: go((place) => (place.part.up ? below : above)(place)), ArrowDown: go((place) => (place.part.up ? above : below)(place)), ArrowLeft: go(beside(-1)), ArrowRight: go(beside(1)),
    Enter: () => state.selected && zoomTo(state.selected), s: () => state.selected && sandwich(state.selected.part.store.name[state.selected.i]),
    0: showAll, Escape: showAll, "/": () => search.focus(),
  });

  const shell = h("div", { class: "pf-canvas-shell" }, scroller, tip);
  const lay = () => {
    const high = frame.height();
    body.style.height = `${high}px`;
    scroller.style.height = `${Math.min(FLAME_TALLEST, high)}px`;
    fit();
  };
  const fit = () => {
    if (!scroller.clientWidth) return;
    frame.resize(scroller.clientWidth, scroller.clientHeight);
    scrolled();
  };
  const scrolled = () => {
    state.scroll = scroller.scrollTop;
    redraw();
  };
  scroller.addEventListener("scroll", scrolled);
  const recolour = () => {
    if (!element.isConnected) return;
    frame.setTheme(element.closest(".perfnb"));
    paint();
  };
  element.replaceChildren(...[toolbar, legend, title, note, shell, hints, panel, spoken].filter(Boolean));
  new ResizeObserver(fit).observe(scroller);
  whenThemeChanges(element, recolour);
  describe();
  const shown = () => {
    recolour();
    lay();
  };
  // Finds a function by the name that tables use for it.
  const reveal = (name) => {
    const f = data.names.findIndex((text) => text === name || text.startsWith(`${name}:`));
    if (f < 0) return;
    sandwich(f);
    element.scrollIntoView({ block: "nearest" });
    canvas.focus({ preventScroll: true });
  };
  return { element, shown, reveal };
}

pictures.flame = ({ data, section }) => {
  const view = flameView(data);
  return { ...view, element: h("div", {}, section.title && h("h3", { class: "pf-section" }, section.title), view.element) };
};
