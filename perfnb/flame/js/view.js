// The flame graph's elements: canvas, search, order, colours and details.
import { framesOf, whenThemeChanges } from "../../draw/js/canvas.js";
import { swatch } from "../../draw/js/chart.js";
import { pictures } from "../../draw/js/document.js";
import { freshId, h, searchInput } from "../../draw/js/dom.js";
import { byteSize, count, duration, grouped, share, significant } from "../../draw/js/format.js";
import { FLAME_ROW, flameFrame } from "./frame.js";
import { flameInOrder, flameMatches, flameSandwich, flameStore } from "./store.js";

const FLAME_TALLEST = 480;
const FLAME_WORDS = { ms: duration, bytes: byteSize, samples: (value) => `${count(value)} ${value === 1 ? "sample" : "samples"}`, none: () => "" };
const FLAME_HINTS = [["Click", "zoom in"], ["↑ ↓ ← →", "caller, callee, neighbours"], ["Enter", "zoom to the selected call"], ["S", "callers and callees"], ["0", "show all"], ["/", "search"]];

function flameView(data, label) {
  let store = flameStore(data);
  const isDifference = Boolean(data.before);
  const words = FLAME_WORDS[data.unit];
  const whole = store.size ? store.rows[0].reduce((sum, i) => sum + store.total[i], 0) : 0;
  const wholeBefore = isDifference ? store.rows[0].reduce((sum, i) => sum + store.totalBefore[i], 0) : 0;
  const hasPhases = data.phases.some(Boolean);
  const state = {
    data, t0: 0, t1: store.whole || 1, goal: null, scroll: 0, hovered: null, selected: null, lit: null, by: isDifference ? "change" : hasPhases ? "phase" : "package",
    parts: [{ store, up: false, base: 0 }], sandwich: -1,
  };
  const hintId = freshId("hint");
  const canvas = h("canvas", { class: "pf-fl-canvas", tabindex: 0, role: "application", "aria-label": `${label}: ${grouped(store.size)} calls`, "aria-describedby": hintId });
  const body = h("div", { class: "pf-fl-body" }, canvas);
  const scroller = h("div", { class: "pf-fl-scroll" }, body);
  const tip = h("div", { class: "pf-fl-tip", "aria-hidden": "true", hidden: true });
  const spoken = h("p", { class: "pf-fl-spoken", role: "status", "aria-live": "polite" });
  const panel = h("aside", { class: "pf-details", "aria-label": "Flame graph details" });
  const frame = flameFrame(state, canvas);
  const element = h("div", { class: "pf-view pf-flame" });

  const redraw = framesOf(state, frame.draw);
  const wholeOf = () => Math.max(...state.parts.map((part) => part.store.whole), 0) || 1;
  const goTo = (t0, t1, now) => {
    const end = wholeOf();
    const wide = Math.min(end, Math.max(t1 - t0, end * 1e-7));
    const from = Math.min(Math.max(0, t0), end - wide);
    if (now) [state.t0, state.t1, state.goal] = [from, from + wide, null];
    else state.goal = [from, from + wide];
    redraw();
  };
  const signed = (value) => `${value < 0 ? "−" : "+"}${words(Math.abs(value)) || significant(Math.abs(value))}`;
  const facts = ({ part, i }) => {
    const s = part.store;
    const [total, own] = [s.total[i], s.own[i]];
    const of = (value) => share(whole ? value / whole : null);
    const list = [["total", `${words(total)} (${of(total)})`.trim()]];
    if (!part.up) list.push(["itself", `${words(own)} (${of(own)})`.trim()]);
    if (s.parent[i] >= 0 && !part.up) list.push(["of its caller", share(s.total[s.parent[i]] ? total / s.total[s.parent[i]] : null)]);
    if (isDifference) list.push(["baseline", `${words(s.totalBefore[i])} (${share(wholeBefore ? s.totalBefore[i] / wholeBefore : null)})`], ["change", signed(total - s.totalBefore[i])]);
    return list;
  };
  const zoomTo = ({ part, i }) => goTo(part.store.start[i], part.store.start[i] + part.store.wide[i]);
  const choose = (place, reveal) => {
    state.selected = place;
    describe();
    if (place && reveal) {
      const { start, wide } = place.part.store;
      if (start[place.i] + wide[place.i] < state.t0 || start[place.i] > state.t1) zoomTo({ part: place.part, i: Math.max(place.i, place.part.store.parent[place.i]) });
      const y = frame.top(place.part, place.part.store.depth[place.i]);
      if (y < scroller.scrollTop || y + FLAME_ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y - scroller.clientHeight / 2;
    }
    spoken.textContent = place ? `${data.names[place.part.store.name[place.i]]}, ${facts(place).map(([word, value]) => `${word} ${value}`).join(", ")}` : "";
    redraw();
  };
  const describe = () => {
    const focused = panel.contains(panel.getRootNode().activeElement ?? null);
    if (!state.selected) {
      panel.replaceChildren(h("p", { class: "pf-quiet" }, "Click a call for its time, its callers and its callees."));
      return;
    }
    const { part, i } = state.selected;
    const f = part.store.name[i];
    panel.replaceChildren(
      h("button", { type: "button", class: "pf-close", "aria-label": "Close details", title: "Close", click: () => { choose(null); canvas.focus({ preventScroll: true }); } }, "×"),
      h("h3", {}, h("span", { class: "pf-name" }, data.names[f])),
      data.places[f] && h("p", { class: "pf-quiet" }, data.places[f]),
      h("dl", {}, facts(state.selected).map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value)))),
      h("span", { class: "pf-buttons" },
        h("button", { type: "button", click: () => zoomTo(state.selected) }, "Zoom to it"),
        state.sandwich !== f && h("button", { type: "button", click: () => sandwich(f) }, "Callers and callees"),
        state.sandwich >= 0 && h("button", { type: "button", click: () => sandwich(-1) }, "Back to all calls")));
    if (focused) panel.querySelector("button").focus({ preventScroll: true });
  };
  const title = h("p", { class: "pf-quiet pf-fl-title", hidden: true });
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

  const search = searchInput("Search functions and files");
  const status = h("span", { class: "pf-status", role: "status" });
  const run = () => {
    const query = search.value.trim().toLowerCase();
    state.lit = query ? store.lower.map((text) => text.includes(query)) : null;
    if (state.lit) {
      const { found, sum } = flameMatches(store, state.lit);
      status.textContent = `${grouped(found.length)} ${found.length === 1 ? "call" : "calls"}, ${[words(sum), share(whole ? sum / whole : null)].filter(Boolean).join(", ")}`;
    } else status.textContent = "";
    redraw();
  };
  search.addEventListener("input", run);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      search.value = "";
      run();
      canvas.focus({ preventScroll: true });
    }
  });

  const legend = h("ul", { class: "pf-legend", "aria-label": "Colours" });
  const choices = isDifference ? [["change", "Change"], ["package", "Package"]] : hasPhases ? [["phase", "Phase"], ["package", "Package"]] : [];
  const colours = choices.map(([key, word]) => h("button", { type: "button", "aria-pressed": String(state.by === key), click: () => {
    state.by = key;
    colours.forEach((button, k) => button.setAttribute("aria-pressed", String(choices[k][0] === key)));
    paint();
  } }, word));
  const paint = () => {
    frame.recolour();
    const marks = state.by === "phase" ? [...new Map(Array.from(store.rows[0] ?? [], (i) => data.phases[store.name[i]]).filter(Boolean).map((mark) => [mark.word, mark])).values()]
      : state.by === "change" ? [{ word: "+ takes more in the candidate", colour: "#D55E00", pattern: "solid" }, { word: "− takes less in the candidate", colour: "#0072B2", pattern: "hatch" }]
        : data.groups;
    legend.replaceChildren(...marks.map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word))));
    redraw();
  };

  // Siblings by weight, or as they were first seen.
  const orders = data.seen ? [["Heaviest first", store], ["Time order", null]] : [];
  const ordered = orders.map(([word], k) => h("button", { type: "button", "aria-pressed": String(k === 0), title: k ? "Calls in the order in which they were first seen" : "The widest calls first", click: () => {
    orders[1][1] ??= flameStore(flameInOrder(data, orders[0][1]));
    store = orders[k][1];
    ordered.forEach((button, other) => button.setAttribute("aria-pressed", String(other === k)));
    sandwich(-1);
  } }, word));
  const toolbar = h("div", { class: "pf-toolbar" }, h("span", { class: "pf-search" }, search, status),
    h("span", { class: "pf-buttons" }, ordered, colours, h("button", { type: "button", title: "Show all calls (0)", click: () => (state.sandwich >= 0 ? sandwich(-1) : goTo(0, wholeOf())) }, "All")));
  const hints = h("p", { class: "pf-tl-hints pf-quiet", id: hintId }, FLAME_HINTS.map(([key, word]) => h("span", {}, h("kbd", {}, key), ` ${word}`)));
  const note = data.left ? h("p", { class: "pf-quiet" }, `${grouped(data.left)} narrower calls are not drawn; their time is in the calls around them.`) : null;

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return frame.at(event.clientX - box.left, event.clientY - box.top);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const moved = (event.clientX - dragged.x) / frame.size.width;
      if (Math.abs(event.clientX - dragged.x) > 3) dragged.moved = true;
      if (dragged.moved) goTo(dragged.t0 - moved * (dragged.t1 - dragged.t0), dragged.t1 - moved * (dragged.t1 - dragged.t0), true);
    }
    const place = at(event);
    if (place?.i !== state.hovered?.i || place?.part !== state.hovered?.part) {
      state.hovered = place;
      redraw();
    }
    tip.hidden = !place;
    if (!place) return;
    const f = place.part.store.name[place.i];
    tip.replaceChildren(h("b", { class: "pf-name" }, data.names[f]), data.places[f] ? h("div", { class: "pf-quiet" }, data.places[f]) : "", h("div", {}, facts(place).map(([word, value]) => `${word} ${value}`).join(" · ")));
    const box = shell.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    state.hovered = null;
    redraw();
  });
  let dragged = null;
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
    if (!event.ctrlKey && canvas.getRootNode().activeElement !== canvas) return;
    if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    const middle = state.t0 + ((event.clientX - box.left) / box.width) * (state.t1 - state.t0);
    const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
    goTo(middle - (middle - state.t0) * factor, middle + (state.t1 - middle) * factor, true);
  }, { passive: false });
  const first = () => ({ part: state.parts.at(-1), i: 0 });
  const neighbour = ({ part, i }, step) => {
    const row = part.store.rows[part.store.depth[i]];
    const next = row[row.indexOf(i) + step];
    return next == null ? null : { part, i: next };
  };
  const moves = {
    ArrowUp: ({ part, i }) => (part.up ? childOf(part, i) : part.store.parent[i] >= 0 ? { part, i: part.store.parent[i] } : null),
    ArrowDown: ({ part, i }) => (part.up && part.store.parent[i] >= 0 ? { part, i: part.store.parent[i] } : part.up ? null : childOf(part, i)),
    ArrowLeft: (place) => neighbour(place, -1),
    ArrowRight: (place) => neighbour(place, 1),
  };
  const childOf = (part, i) => (i + 1 < part.store.end[i] ? { part, i: i + 1 } : null);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const next = state.selected ? moves[event.key](state.selected) : store.size ? first() : null;
      if (next) choose(next, true);
    } else if (event.key === "Enter" && state.selected) zoomTo(state.selected);
    else if (event.key === "s" && state.selected) sandwich(state.selected.part.store.name[state.selected.i]);
    else if (event.key === "0" || event.key === "Escape") {
      if (state.sandwich >= 0) sandwich(-1);
      else goTo(0, wholeOf());
    } else if (event.key === "/") search.focus();
    else return;
    event.preventDefault();
  });

  const shell = h("div", { class: "pf-fl-shell" }, scroller, tip);
  const lay = () => {
    const high = frame.height();
    body.style.height = `${high}px`;
    scroller.style.height = `${Math.min(FLAME_TALLEST, high)}px`;
    fit();
  };
  const fit = () => {
    if (!scroller.clientWidth) return;
    frame.resize(scroller.clientWidth, scroller.clientHeight);
    state.scroll = scroller.scrollTop;
    redraw();
  };
  scroller.addEventListener("scroll", () => {
    state.scroll = scroller.scrollTop;
    redraw();
  });
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
  // A function by its name, as tables call it.
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
  const view = flameView(data, "Flame graph");
  return { ...view, element: h("div", {}, section.title && h("h3", { class: "pf-section" }, section.title), view.element) };
};
