// The timeline without a canvas: the longest events as a table, a search, and the details of the selected event.
import { h } from "../../draw/js/dom.js";
import { eventDetails, timelineTable, timelineWords } from "./details.js";

export const canDraw = () => Boolean(h("canvas", {}).getContext?.("2d"));

export function plainTimeline(element, store, facts, showLayer) {
  const state = { store, t0: store.header.start_ns, t1: store.header.end_ns + 1, selected: -1, interval: null };
  const words = timelineWords(state, facts);
  const table = h("div", { class: "pf-tl-table" });
  const panel = h("aside", { class: "pf-details pf-tl-details", "aria-label": "Timeline details", hidden: true });
  const search = h("input", { type: "search", placeholder: "Search events and layers", "aria-label": "Search events and layers", spellcheck: "false", autocomplete: "off" });
  const choose = (i) => {
    state.selected = i;
    panel.hidden = i < 0;
    panel.replaceChildren(...(i >= 0 ? eventDetails(state, words, choose, showLayer) : []));
    list();
  };
  const list = () => table.replaceChildren(...timelineTable(state, words, facts, choose));
  const run = () => {
    state.store.search(search.value.trim());
    list();
  };
  search.addEventListener("input", run);
  element.replaceChildren(h("p", { class: "pf-quiet", role: "status" }, "This browser has no canvas to draw the timeline on. Its longest events:"),
    h("div", { class: "pf-toolbar" }, h("span", { class: "pf-search" }, search)), panel, table);
  list();
  return {
    shown: () => {},
    replace(next) {
      const chosen = state.selected >= 0 ? state.store.same(state.selected, next) : -1;
      Object.assign(state, { store: next, t0: next.header.start_ns, t1: next.header.end_ns + 1 });
      state.store.search(search.value.trim());
      choose(chosen);
    },
    goToLayer(row) {
      const code = state.store.header.layer_rows.indexOf(row);
      search.value = `layer:${state.store.header.layers[code] ?? facts.path(row)}`;
      run();
      choose(state.store.match(-1, -Infinity, 1));
    },
  };
}

// The static twin's part on the timeline, for a browser that cannot unpack it.
export function twinsTracks(id) {
  if (!/^[\w-]+$/.test(id)) return null;
  const tables = [...document.querySelectorAll(`.perfnb-static-${id} table`)];
  const found = tables.find((table) => table.caption?.textContent.startsWith("Tracks of "));
  return found ? h("div", { class: "perfnb-static" }, found.cloneNode(true)) : null;
}
